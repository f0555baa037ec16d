"""What remedies write and say: dated data with a source on every row."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@lru_cache(maxsize=8)
def table(name: str) -> dict[str, Any]:
    """The data file of that name, without its suffix. Raises FileNotFoundError where there is none."""
    return tomllib.loads((resources.files(__package__) / "data" / f"{name}.toml").read_text(encoding="utf-8"))
