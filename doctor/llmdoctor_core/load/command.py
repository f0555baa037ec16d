"""The person's command as a short load starts it: on a port of its own, its lines visible, changed in nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Stage
from llmdoctor_core.units import whole

LLAMA_VERBOSITY = ("-lv", "--verbosity", "--log-verbosity")
LLAMA_VERBOSE = ("-v", "--verbose", "--log-verbose")
LLAMA_MODEL = ("-m", "--model")
LLAMA_REMOTE = ("-mu", "--model-url", "-hf", "-hfr", "--hf-repo")


class Command(Struct, frozen=True, kw_only=True):
    """What is started: the words, and one sentence for each change with its reason."""

    argv: tuple[str, ...]
    changed: tuple[str, ...] = ()


def value_of(argv: tuple[str, ...], flags: tuple[str, ...]) -> str | None:
    """The value that the last of these flags is given (``--port 8000``, ``--port=8000``), or None."""
    found = None
    for position, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag in flags:
            found = value if equals else (argv[position + 1] if position + 1 < len(argv) else None)
    return found


def prepare(
    runtime: str,
    argv: tuple[str, ...],
    environment: Mapping[str, str],
    *,
    port: int,
    until: Stage,
    weightless: bool = False,
    hollow: Path | None = None,
    without: tuple[str, ...] = (),
) -> Command:
    """The command with what a short load must change. The last of a repeated flag wins in every runtime here.

    ``hollow`` is the file that stands in for a llama.cpp model; ``without`` names flags that the build turned out not
    to know. Raises InputError where the runtime cannot do what is asked.
    """
    if not argv or argv[0].startswith("-"):
        raise InputError("a load needs the server's whole command after --, e.g. -- vllm serve Qwen/Qwen3-8B")
    if runtime == "vllm":
        return _vllm(argv, port, until, weightless)
    if runtime == "llamacpp":
        return _llamacpp(argv, environment, port, until, hollow, without)
    raise InputError(f"a short load of {runtime} is not known yet: vllm and llamacpp are")


def _vllm(argv: tuple[str, ...], port: int, until: Stage, weightless: bool) -> Command:
    if until == "plan":
        raise InputError(
            "--until plan: vLLM sizes nothing without starting; its cheapest is --until cache --weightless"
        )
    if value_of(argv, ("--uds",)):
        raise InputError("--uds: the load asks the server over TCP on a port of its own; leave --uds out for it")
    added = ["--host", "127.0.0.1", "--port", str(port)]
    changed = [f"--host 127.0.0.1 --port {port}: a port of its own, so that a running service is not disturbed"]
    if weightless:
        added += ["--load-format", "dummy"]
        changed.append("--load-format dummy: random weights, nothing is downloaded but configuration and tokenizer")
    return Command(argv=(*argv, *added), changed=tuple(changed))


def _llamacpp(
    argv: tuple[str, ...],
    environment: Mapping[str, str],
    port: int,
    until: Stage,
    hollow: Path | None,
    without: tuple[str, ...],
) -> Command:
    added = ["--host", "127.0.0.1", "--port", str(port)]
    changed = [f"--host 127.0.0.1 --port {port}: a port of its own, so that a running service is not disturbed"]
    wanted = 5 if until == "plan" else 4
    if "-lv" not in without and _verbosity(argv, environment) < wanted:
        added += ["-lv", str(wanted)]
        changed.append(f"-lv {wanted}: llama.cpp hides its size lines below (builds since b9297, May 2026)")
    given = {"--repack", "-nr", "--no-repack"} & set(argv) or "LLAMA_ARG_REPACK" in environment
    if "-nr" not in without and not given:
        added.append("-nr")
        changed.append("-nr: without copies of the weights for the CPU's matrix units, whose sizes differ by CPU")
    if until == "plan" and "-fit" not in without:
        added += ["-fit", "on"]
        changed.append("-fit on: the projection without allocation is part of fitting")
    if "--log-disable" in argv:
        argv = tuple(word for word in argv if word != "--log-disable")
        changed.append("without --log-disable: the lines are what is measured")
    if hollow is not None:
        argv = _without_remote(argv)
        added += ["-m", str(hollow), "--no-warmup"]
        changed.append(f"-m {hollow.name}: the real header in a sparse file of the real size")
        changed.append("--no-warmup: a run over empty weights tells nothing and would page the whole file in")
    return Command(argv=(*argv, *added), changed=tuple(changed))


def _verbosity(argv: tuple[str, ...], environment: Mapping[str, str]) -> int:
    if set(LLAMA_VERBOSE) & set(argv):
        return 99
    given = value_of(argv, LLAMA_VERBOSITY) or environment.get("LLAMA_ARG_LOG_VERBOSITY", "")
    return whole(given) or 0


def _without_remote(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Without the flags that would download the model: the hollow file stands in for it."""
    kept: list[str] = []
    skip = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif flag in (*LLAMA_REMOTE, "-hff", "--hf-file"):
            skip = not equals
        else:
            kept.append(word)
    return tuple(kept)


def api_key(argv: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    """The key that the server will ask for, to ask it properly. Never shown."""
    given = value_of(argv, ("--api-key",)) or environment.get("VLLM_API_KEY") or environment.get("LLAMA_API_KEY")
    return given.split(",")[0] if given else None


def secured(argv: tuple[str, ...]) -> bool:
    """Whether the server will speak TLS."""
    return value_of(argv, ("--ssl-certfile", "--ssl-cert-file")) is not None


def typed(words: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command to start and the variables assigned in front of it. Wrappers that shape it (``numactl``) stay.

    Raises InputError for a command that starts a container or another user's process: the load could not end it.
    """
    from llmdoctor_core.deploy.deployment import Word
    from llmdoctor_core.deploy.words import deployment_from
    from llmdoctor_core.remedy import shell_script

    found = deployment_from([Word(word, 0) for word in words])
    if found is None:
        return words, {}
    if found.engine:
        raise InputError(
            f"a load starts the server itself: run llmdoctor inside the {found.engine or 'container'} instead, or give "
            "the server's own command"
        )
    if "sudo" in found.wrapper:
        raise InputError("sudo: a load ends what it starts, and could not end another user's process; leave it out")
    wrapper = tuple(word for word in found.wrapper if word not in ("exec", "env", "nohup") and "=" not in word)
    if shell_script(found.wrapper):
        raise InputError("a load starts the server itself: give the command that the shell's -c holds")
    return (*wrapper, *found.argv[found.implied :]), found.environment


def whole_environment(assigned: Mapping[str, str], python: str | None = None) -> dict[str, str]:
    """The environment the server is started in: this process's, what was assigned in front of the command, and the
    commands of the target interpreter's environment first on PATH."""
    environment = {**os.environ, **assigned}
    if python is not None and "/" in python:
        environment["PATH"] = f"{Path(python).absolute().parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return environment
