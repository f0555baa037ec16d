"""systemd units and Quadlet container files: ExecStart (or Image and Exec) with their environment and limits."""

from __future__ import annotations

import re

from msgspec.structs import replace

from llmdoctor_core.facts import Place

from .deployment import Deployment, Word
from .shell import split
from .words import deployment_from, docker_size


def read(text: str, name: str) -> list[Deployment]:
    """The launches of a unit file; specifiers such as ``%h`` stay as written."""
    settings = _settings(text)
    places = {}
    environment: dict[str, str] = {}
    for key, value, line in settings:
        if key == "Environment":
            for word in split(value, line):
                variable, _, content = word.text.partition("=")
                environment[variable] = content
                places[f"env:{variable}"] = Place(kind="file", name=name, line=line)
    given = {key: (value, line) for key, value, line in settings}
    base = Deployment(argv=(), engine="systemd", environment=environment, places=places, name=name)
    if "LimitMEMLOCK" in given:
        base = replace(base, memlock_unlimited=given["LimitMEMLOCK"][0] == "infinity")
        places["memlock"] = Place(kind="file", name=name, line=given["LimitMEMLOCK"][1])
    if "MemoryMax" in given and given["MemoryMax"][0] != "infinity":
        base = replace(base, memory_limit=docker_size(given["MemoryMax"][0], f"{name} MemoryMax"))
        places["memory"] = Place(kind="file", name=name, line=given["MemoryMax"][1])
    if "Image" in given:
        base = replace(base, engine="podman", image=given["Image"][0], gpu_access=False)
        if "ShmSize" in given:
            base = replace(base, shm_bytes=docker_size(given["ShmSize"][0], f"{name} ShmSize"))
            places["/dev/shm"] = Place(kind="file", name=name, line=given["ShmSize"][1])
        devices = [(value, line) for key, value, line in settings if key == "AddDevice" and "nvidia" in value]
        if devices or "--gpus" in given.get("PodmanArgs", ("", 0))[0]:
            base = replace(base, gpu_access=True)
    found = []
    for key, value, line in settings:
        if key in ("ExecStart", "Exec"):
            words = _expanded(split(value, line), environment)
            if key == "ExecStart":
                words[:1] = [Word(word.text.lstrip("@-:+!"), word.line) for word in words[:1]]
            launch = deployment_from(words, name, base)
            found += [launch] if launch else []
    return found


def _expanded(words: list[Word], environment: dict[str, str]) -> list[Word]:
    """Words with the unit's variables: ``${NAME}`` inside a word, ``$NAME`` as a word of its own is split at spaces.

    What comes from an EnvironmentFile is not known here and stays as written.
    """
    found: list[Word] = []
    for text, line in words:
        alone = re.fullmatch(r"\$(\w+)", text)
        if alone and alone[1] in environment:
            found += split(environment[alone[1]], line)
        else:
            found.append(Word(re.sub(r"\$\{(\w+)\}", lambda m: environment.get(m[1], m[0]), text), line))
    return found


def _settings(text: str) -> list[tuple[str, str, int]]:
    """Key, value and line; continued values keep their line breaks, so that each word keeps its line."""
    settings: list[tuple[str, str, int]] = []
    continued = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("#", ";")):
            line = ""
        if continued and settings:
            key, value, first = settings[-1]
            settings[-1] = (key, f"{value}\n{line.removesuffix(chr(92))}", first)
        elif "=" in line:
            key, _, value = line.partition("=")
            settings.append((key.strip(), value.strip().removesuffix("\\"), number))
        continued = line.endswith("\\") or (continued and not line)
    return settings
