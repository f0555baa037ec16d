"""What is known of drivers, compilers, releases and features: dated data with a source on every row."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import resources
from typing import Any

from msgspec import Struct

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Row = dict[str, Any]


class Table(Struct, frozen=True):
    """One data file. ``date`` is when its rows were last compared with their sources, ISO 8601."""

    name: str
    title: str
    date: str
    rows: tuple[Row, ...]


@lru_cache(maxsize=64)
def table(name: str) -> Table:
    """The table of that name. Raises FileNotFoundError where there is none."""
    text = (resources.files(__package__) / "data" / f"{name}.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    return Table(name=name, title=content["title"], date=str(content["date"]), rows=tuple(content["row"]))


def row(table_name: str, /, **wanted: object) -> Row | None:
    """The first row of the table whose columns have the wanted values, or None."""
    for candidate in table(table_name).rows:
        if all(candidate.get(column) == value for column, value in wanted.items()):
            return candidate
    return None
