"""From the words of a command to the launch: wrappers taken off, container options understood."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from msgspec.structs import replace
from packaging.version import Version

from llmdoctor_core.facts import Place
from llmdoctor_core.units import MOST_DIGITS, parse_size, whole

from . import shell
from .deployment import Deployment, Word
from .shell import split

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENGINES = ("docker", "podman", "nerdctl")
WRAPPERS = {
    "sudo",
    "exec",
    "nohup",
    "time",
    "env",
    "setsid",
    "stdbuf",
    "nice",
    "ionice",
    "numactl",
    "taskset",
    "srun",
    "torchrun",
    "timeout",
    "uvx",
    "doas",
    "tini",
    "dumb-init",
    "gosu",
    "nsys",
}
"""Commands that run the command after them; their own options stand in between."""
RUNNERS = {"uv", "poetry", "pdm", "conda", "mamba", "pixi"}
"""Commands whose ``run`` does."""
SHELLS = {"sh", "bash", "zsh", "dash"}
NO_VERSION = "(?!)"
"""A pattern for the tags of an image that name no version of the runtime."""
DOCKER_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("data/containers.toml").read_text(encoding="utf-8"))


def default_shared_memory() -> int:
    """Bytes of /dev/shm in a container that sets nothing."""
    return int(_data()["shared_memory"]["default"])


def deployment_from(
    words: Iterable[Word], file: str | None = None, base: Deployment | None = None, runtime: str | None = None
) -> Deployment | None:
    """The launch in a command, or None where it is none of a known runtime.

    ``runtime`` is what an image runs that no table knows, as the person says.
    ``base`` holds what surrounds the command already (a compose service's image and environment).
    """
    rest = list(words)
    found = base or Deployment(argv=())
    front: list[str] = []
    invented = 0
    while rest:
        name = PurePosixPath(rest[0].text).name
        before = rest
        if _assignment(rest[0].text):
            variable, _, value = rest[0].text.partition("=")
            found = _with_variable(found, variable, value, rest[0], file)
            found = replace(found, variables={**found.variables, variable: value})
            rest = rest[1:]
        elif name in ENGINES:
            found, rest = _container(rest, found, file)
        elif name in SHELLS and (inner := _inline(rest, found, file)) is not None:
            front += [word.text for word in rest[: inner.position]]
            found, rest = inner.found, inner.words
            continue
        elif name in WRAPPERS or (name in RUNNERS and [word.text for word in rest[1:2]] == ["run"]):
            rest, invented = _unwrapped(rest)
        else:
            break
        front += [word.text for word in before[: len(before) - len(rest) + invented]]
    wrapper = itertools.dropwhile(lambda word: _assignment(word) or word == "env", front)
    launch = _launch(rest, replace(found, wrapper=tuple(wrapper)), file, runtime)
    return replace(launch, implied=invented) if launch and invented else launch


def _assignment(word: str) -> bool:
    name, equals, value = word.partition("=")
    return bool(equals) and name.isidentifier() and not value.startswith("=")  # vllm==0.11.0 is a requirement


def _with_variable(found: Deployment, name: str, value: str, word: Word, file: str | None) -> Deployment:
    return replace(
        found,
        environment={**found.environment, name: value},
        places={**found.places, **_place(f"env:{name}", word.line, file)},
    )


def _place(key: str, line: int, file: str | None) -> dict[str, Place]:
    return {key: Place(kind="file", name=file, line=line or None)} if file else {}


class Inline(NamedTuple):
    """The launch inside a shell's ``-c``: its words, what they run in, and where the shell's script stands."""

    found: Deployment
    words: list[Word]
    position: int


def _inline(rest: list[Word], found: Deployment, file: str | None) -> Inline | None:
    """The command inside ``bash -c "..."``: of several the one that launches, with what was exported before it."""
    for position, word in enumerate(rest[1:], 1):
        if re.fullmatch(r"-[a-z]*c", word.text):
            if position + 1 == len(rest):
                return Inline(found, [], position + 1)
            script = rest[position + 1]
            for statement in shell.statements(script.text, script.line, found.environment):
                if deployment_from(statement.words) is not None:
                    for name, value in statement.exported.items():
                        found = _with_variable(found, name, value.text, value, file)
                    return Inline(found, statement.words, position + 1)
            return Inline(found, split(script.text, script.line), position + 1)
        if not word.text.startswith("-"):
            return None
    return None


def _unwrapped(rest: list[Word]) -> tuple[list[Word], int]:
    """Without the wrapper and its own options: up to the first word that begins a launch.

    Beside it how many words at its front nobody typed: torchrun takes ``-m MODULE`` without a python in front.
    """
    for position in range(1, len(rest)):
        word = rest[position].text
        name = PurePosixPath(word).name
        if word.startswith("vllm.entrypoints"):
            line = rest[position].line
            if rest[position - 1].text == "-m":
                return [Word("python", line), *rest[position - 1 :]], 1
            return [Word("python", line), Word("-m", line), *rest[position:]], 2
        if _assignment(word) or name in {*ENGINES, *SHELLS, *WRAPPERS} or _is_server(rest[position:]):
            return rest[position:], 0
    return rest[1:], 0


def _is_server(rest: list[Word]) -> bool:
    return bool(rest) and runtime_of([word.text for word in rest]) is not None


def runtime_of(argv: list[str]) -> str | None:
    """The runtime whose server this command starts, by its first words; None where it is none that is known."""
    name = PurePosixPath(argv[0]).name if argv else ""
    second = argv[1] if len(argv) > 1 else ""
    if name == "vllm" and second == "serve":
        return "vllm"
    if name.startswith("llama-server") or (name == "llama" and second == "serve"):
        return "llamacpp"
    if name == "ollama":
        return "ollama"
    if name in ("trtllm-serve", "sglang"):
        return "trtllm" if name == "trtllm-serve" else "sglang"
    if re.fullmatch(r"python[\d.]*", name):
        if PurePosixPath(second).name == "vllm" and argv[2:3] == ["serve"]:
            return "vllm"
        module = next((argv[i + 1] for i, word in enumerate(argv[:-1]) if word == "-m"), "")
        return {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm"}.get(module.partition(".")[0])
    return None


def _launch(rest: list[Word], found: Deployment, file: str | None, said: str | None) -> Deployment | None:
    image = (image_row(found.image) or _image_of(said)) if found.image else None
    runtime = runtime_of([word.text for word in rest])
    argv = tuple(word.text for word in rest)
    if runtime is None and found.image:
        entrypoint = found.entrypoint
        if entrypoint is None and image:
            entrypoint = _entrypoint(image, _tag_version(found.image, image))
        argv = (*(entrypoint or ()), *argv)
        found = replace(found, implied=len(entrypoint or ()))
        known = image["runtime"] if image and not _other_program(found, argv) else None
        runtime = runtime_of(list(argv)) or known
    if runtime is None:
        return None
    places = dict(found.places)
    for word in rest:
        if word.text.startswith("-"):
            places |= _place(word.text.partition("=")[0], word.line, file)
    if rest and "launch" not in places:
        places |= _place("launch", rest[0].line, file)
    version = _tag_version(found.image, image) if found.image and image else None
    return replace(found, argv=argv, runtime=runtime, version=version, places=places)


def _image_of(runtime: str | None) -> dict[str, Any] | None:
    """The table's row of the image whose entry point a person's own image of that runtime most likely has."""
    rows = (row for row in _data()["images"] if row["runtime"] == runtime and row["entrypoint"])
    return next(({**row, "version": NO_VERSION} for row in rows), None)


def _entrypoint(image: dict[str, Any], version: str | None) -> tuple[str, ...]:
    """What the image runs: the newest one's where the tag names no version."""
    earlier = image.get("earlier")
    if earlier and version and Version(version) < Version(earlier["before"]):
        return tuple(earlier["entrypoint"])
    return tuple(image["entrypoint"])


def _other_program(found: Deployment, argv: tuple[str, ...]) -> bool:
    """Whether the image is told to run something else than its server: a worker of a cluster, a script, a download."""
    return found.entrypoint is not None and not (argv and argv[0].startswith("-"))


def image_row(image: str) -> dict[str, Any] | None:
    """The table's row of an image, whatever registry, tag or digest its name carries."""
    name = image.partition("@")[0]
    repository = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    for row in _data()["images"]:
        if repository == row["name"] or repository.endswith("/" + row["name"]):
            return dict(row)
    return None


def _tag_version(image: str, row: dict[str, Any]) -> str | None:
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    match = re.search(row["version"], tag)
    return match[1] if match else None


def _container(rest: list[Word], found: Deployment, file: str | None) -> tuple[Deployment, list[Word]]:
    """Options of ``docker run`` up to the image; what follows the image is the command."""
    engine = PurePosixPath(rest[0].text).name
    words = rest[1:]
    while words and words[0].text in ("container", "run", "create"):
        words = words[1:]
    switches = {switch for row in _data()["engine_switches"] for switch in row["switches"]}
    found = replace(found, engine=engine, gpu_access=False)
    while words and words[0].text.startswith("-"):
        flag, equals, value = words[0].text.partition("=")
        word, words = words[0], words[1:]
        if not equals and flag not in switches and not _bundled_switches(flag, switches) and words:
            value, words = words[0].text, words[1:]
        found = _with_option(found, flag, value, word, file)
    if not words:
        return found, []
    found = replace(found, image=words[0].text, places={**found.places, **_place("image", words[0].line, file)})
    return found, words[1:]


def _bundled_switches(flag: str, switches: set[str]) -> bool:
    """``-it``: short switches written together."""
    return not flag.startswith("--") and all(f"-{letter}" in switches for letter in flag[1:])


def _with_option(found: Deployment, flag: str, value: str, word: Word, file: str | None) -> Deployment:
    def noted(key: str, **changes: Any) -> Deployment:
        return replace(found, **changes, places={**found.places, **_place(key, word.line, file)})

    if flag in ("-e", "--env"):
        name, _, text = value.partition("=")
        return _with_variable(found, name, text, word, file)
    if flag == "--gpus":
        return noted("gpus", gpus=gpu_count(value), gpu_access=True)
    if flag == "--device" and ("gpu" in value or "nvidia" in value):
        return noted("gpus", gpu_access=True)
    if flag == "--runtime" and value == "nvidia":
        return noted("gpus", gpu_access=True)
    if flag == "--privileged":
        return noted("gpus", gpu_access=True)
    if flag == "--shm-size":
        return noted("/dev/shm", shm_bytes=docker_size(value, "--shm-size"))
    if flag == "--ipc":
        return noted("/dev/shm", ipc_host=value == "host")
    if flag in ("-m", "--memory"):
        return noted("memory", memory_limit=docker_size(value, "--memory"))
    if flag == "--cpus":
        return noted("cpus", cpu_limit=float(value) if re.fullmatch(r"\d+(\.\d+)?", value) else None)
    if flag in ("-v", "--volume"):
        source, _, target = value.partition(":")
        return noted("volumes", mounts={**found.mounts, target.partition(":")[0]: source})
    if flag == "--mount":
        parts = dict(part.partition("=")[::2] for part in value.split(","))
        target = parts.get("target") or parts.get("dst") or parts.get("destination") or ""
        return noted("volumes", mounts={**found.mounts, target: parts.get("source") or parts.get("src") or "volume"})
    if flag == "--ulimit" and value.startswith("memlock"):
        return noted("memlock", memlock_unlimited="-1" in value)
    if flag == "--read-only":
        return noted("read_only", read_only=True)
    if flag in ("-u", "--user"):
        return noted("user", user=value)
    if flag == "--name":
        return replace(found, name=value)
    if flag == "--entrypoint":
        return replace(found, entrypoint=tuple(shlex.split(value)))
    return found


def gpu_count(value: str) -> int | None:
    """``2`` and ``"device=0,1"`` say how many; ``all`` does not."""
    value = value.strip("'\"")
    if (number := whole(value)) is not None:
        return number
    for part in re.split(r'[",](?=device|count|capabilities|driver)|"', value):
        key, _, text = part.partition("=")
        if key == "device":
            return len([device for device in text.split(",") if device])
        if key == "count":
            return whole(text)
    return None


def docker_size(value: str, option: str) -> int:
    """Bytes of Docker's ``16g``, ``512m``, ``1gb``, ``67108864``. Raises InputError naming the option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", value.strip().lower())
    if not match or len(match[1]) > MOST_DIGITS:
        return parse_size(value, option)
    return int(float(match[1]) * DOCKER_UNITS[match[2]])
