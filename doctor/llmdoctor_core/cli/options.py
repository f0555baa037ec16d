"""Options that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from llmdoctor_core.case import Case
    from llmdoctor_core.intake import Intake

C = TypeVar("C", bound=Callable[..., Any])

LAUNCH: tuple[Any, ...] = (
    click.option("-f", "--file", metavar="FILE", help="Read the launch from a compose file, manifest, unit or script."),
    click.option("--runtime", metavar="NAME", help="vllm or llamacpp; told from the command after -- where it can be."),
    click.option("--model", metavar="MODEL", help="Hugging Face id, folder, GGUF file or URL, or ollama:NAME."),
    click.option("--draft", metavar="MODEL", help="Draft model, where the command does not name it."),
    click.option("--revision", metavar="REV", help="Revision of the model on the hub."),
    click.option("--python", metavar="PATH", help="Interpreter of the environment the server runs in."),
    click.option("--gpu", metavar="GPU", help="Assume this GPU instead of asking the host: A100-80GB, L4x4."),
    click.option("--facts", "facts_file", metavar="FILE", help="Facts that the collector printed on another host."),
    click.option("--runtime-version", metavar="X.Y.Z", help="Assume this version of the runtime."),
    click.option("--entrypoint", type=click.Choice(["serve", "llm"]), default="serve", help="vLLM's usage context."),
    click.option("--kv-memory", metavar="SIZE", help="Fix the KV cache's memory on each GPU, e.g. 58.33GiB."),
    click.option("--offline", is_flag=True, help="Use no network (HF_HUB_OFFLINE is honoured too)."),
    click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]"),
)
LANGUAGE = click.option("--lang", metavar="en|ko", help="Language of messages (else LLMDOCTOR_LANG, else the locale).")
OUTPUT = click.option(
    "-o", "--output", metavar="FILE", default="-", help="Write the report there; - is standard output."
)


def launch_options(function: C) -> C:
    """The options that describe a launch."""
    wrapped: Any = function
    for option in reversed(LAUNCH):
        wrapped = option(wrapped)
    return cast("C", wrapped)


def intake_from(given: dict[str, Any], *, gpus_only: bool = False) -> Intake:
    """The launch options as an ``Intake``. Raises InputError for a malformed size."""
    from llmdoctor_core.intake import Intake
    from llmdoctor_core.units import parse_size

    kv_memory = given["kv_memory"]
    return Intake(
        command=tuple(given["command"]),
        file=given.get("file"),
        runtime=given["runtime"],
        model=given["model"],
        draft=given["draft"],
        python=given["python"],
        gpu=given["gpu"],
        facts=read_file(given["facts_file"], 64 << 20) if given["facts_file"] else None,
        runtime_version=given["runtime_version"],
        entrypoint=given["entrypoint"],
        kv_memory=parse_size(kv_memory, "--kv-memory") if kv_memory else None,
        revision=given["revision"],
        offline=given["offline"],
        gpus_only=gpus_only,
    )


def cases_from(given: dict[str, Any], *, gpus_only: bool = False) -> list[Case]:
    """The cases of the launch options: one, or one for each launch of a deployment file."""
    from llmdoctor_core.deploy import MAX_BYTES
    from llmdoctor_core.intake import build_cases

    file = given.get("file")
    if file and given["command"]:
        raise click.UsageError("the launch is given twice: by -f and after --; leave one out")
    text = read_file(file, MAX_BYTES).decode("utf-8", errors="replace") if file else None
    return build_cases(intake_from(given, gpus_only=gpus_only), text)


def case_from(given: dict[str, Any], *, gpus_only: bool = False) -> Case:
    """The case of the one launch that is meant. Raises InputError for a deployment file that holds several."""
    from llmdoctor_core.errors import InputError

    cases = cases_from(given, gpus_only=gpus_only)
    if len(cases) > 1:
        raise InputError(f"{given['file']} holds {len(cases)} launches, and one is wanted: give its command after --")
    return cases[0]


def only_the_case(given: dict[str, Any]) -> None:
    """Raises UsageError for what describes a launch beside ``--case``: the case holds one, and it would go unread."""
    names = {"file": "-f", "facts_file": "--facts", "runtime_version": "--runtime-version", "kv_memory": "--kv-memory"}
    for name in ("file", "facts_file", "runtime", "model", "draft", "revision", "python", "gpu", "runtime_version"):
        if given.get(name):
            raise click.UsageError(f"{names.get(name, '--' + name)} does not go with --case, which holds the launch")
    if given["command"] or given["kv_memory"]:
        what = "a command after --" if given["command"] else "--kv-memory"
        raise click.UsageError(f"{what} does not go with --case, which holds the launch")


def language(given: str | None) -> str:
    from llmdoctor_core.text import pick_language

    return pick_language(given, dict(os.environ))


def read_file(path: str, limit: int) -> bytes:
    """A file's bytes, ``-`` for standard input. Raises InputError when it cannot be read or is larger than limit."""
    from llmdoctor_core.errors import InputError

    try:
        if path == "-":
            data = sys.stdin.buffer.read(limit + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(limit + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if len(data) > limit:
        raise InputError(f"{path} is larger than {limit:,} bytes")
    return data


def read_case(path: str) -> Case:
    """The case of a case file or of a bundle. Raises InputError when it is neither."""
    from llmdoctor_core.bundle import is_bundle, read_bundle
    from llmdoctor_core.case import MAX_CASE_BYTES, decode
    from llmdoctor_core.errors import InputError

    if path == "-" or not is_bundle(Path(path)):
        return decode(read_file(path, MAX_CASE_BYTES), path)
    case = read_bundle(Path(path)).case
    if case is None:
        raise InputError(f"{path} holds no case")
    return case


def files_matching(pattern: str) -> list[str]:
    """The file of that name, or all that a glob pattern matches, in order."""
    if Path(pattern).exists() or pattern == "-":
        return [pattern]
    anchor = Path(pattern).anchor
    return sorted(map(str, Path(anchor).glob(str(Path(pattern).relative_to(anchor)))))


def write(path: str, text: str) -> None:
    """Write text to a file, ``-`` for standard output. Raises InputError when that cannot be done."""
    from llmdoctor_core.errors import InputError

    if path == "-":
        try:
            click.echo(text, nl=not text.endswith("\n"))
        except BrokenPipeError:  # the reader left (| head): what was found out still counts
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            raise InputError(f"cannot write standard output: {error.strerror or error}") from None
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    click.echo(f"wrote {path}", err=True)
