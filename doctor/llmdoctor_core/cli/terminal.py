"""What the terminal takes: decided once, by flag, variables and kind of output."""

from __future__ import annotations

import os
import shutil
import sys


def colour(flag: str, path: str) -> bool:
    """``--color`` > NO_COLOR > FORCE_COLOR > a terminal that is not dumb."""
    if flag != "auto":
        return flag == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE"):
        return True
    return path == "-" and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def columns(path: str) -> int | None:
    """Width of the terminal; None for a file or pipe, where lines are not wrapped."""
    return shutil.get_terminal_size().columns if path == "-" and sys.stdout.isatty() else None
