"""Changing one argument of a vLLM command: whatever release's spelling it was typed in."""

from __future__ import annotations

from llmdoctor_core.runtimes.commandline import with_argument as changed

from . import releases


def with_argument(argv: tuple[str, ...], name: str, value: str | None) -> tuple[str, ...]:
    """The command with one argument set, or taken out. Raises KeyError for a name vLLM never had."""
    era = releases.tables().options[name].eras[-1]
    spellings = [flag for flag, option in releases.history().items() if option == name]
    negative = ["--no-" + flag[2:] for flag in spellings if flag.startswith("--")]
    flag = next(flag for flag in era.flags if flag.startswith("--"))
    return changed(argv, (*spellings, *negative), flag, value, era.kind not in ("boolean", "switch"))
