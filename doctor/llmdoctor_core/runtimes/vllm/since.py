"""Reads tables of what differs between releases: each row says since which release its value holds."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@lru_cache(maxsize=256)
def release(version: str) -> tuple[int, ...]:
    """``0.19.2rc1.dev21+g97`` as (0, 19, 2): a candidate counts as its release."""
    numbers: list[int] = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


@lru_cache(maxsize=8)
def table(name: str) -> dict[str, Any]:
    """A TOML file of this runtime's data folder."""
    text = resources.files(__package__).joinpath("data", name).read_text(encoding="utf-8")
    return tomllib.loads(text)


def at(rows: list[dict[str, Any]], version: str) -> dict[str, Any]:
    """Value by name as ``version`` has it. Rows of one name stand in order of release; a version older than a name's
    first row gets that row's value."""
    asked = release(version)
    found: dict[str, Any] = {}
    for row in rows:
        if row["name"] not in found or release(row["since"]) <= asked:
            found[row["name"]] = row["value"]
    return found
