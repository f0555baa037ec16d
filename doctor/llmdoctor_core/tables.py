"""How old the data is: every table of ours and of the catalogues, with its title, date and number of rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import resources
from importlib.resources import as_file
from pathlib import Path
from typing import Any

from msgspec import Struct

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class DataTable(Struct, frozen=True, kw_only=True):
    """One data file. ``date`` is when its rows were last held against their sources."""

    title: str
    date: str
    rows: int
    file: str


def tables(packages: tuple[str, ...]) -> list[DataTable]:
    """Every data file with a title and a date in the packages, oldest first."""
    found = [table for package in ("llmdoctor_core", *packages) for table in _of_package(package)]
    return sorted(found, key=lambda table: table.date)


def _of_package(package: str) -> Iterator[DataTable]:
    with as_file(resources.files(package)) as root:
        for path in sorted((*root.rglob("*.toml"), *root.rglob("*.json"))):
            data = _read(path)
            if "title" in data and "date" in data:
                yield DataTable(
                    title=str(data["title"]),
                    date=str(data["date"]),
                    rows=_rows(data),
                    file=f"{package}/{path.relative_to(root).as_posix()}",
                )


def _read(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    return data if isinstance(data, dict) else {}


def _rows(data: dict[str, Any]) -> int:
    return sum(len(value) for value in data.values() if isinstance(value, list | dict))
