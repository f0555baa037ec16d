"""The tables of this room (data/*.json), read once."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=8)
def table(name: str) -> dict[str, Any]:
    """The table data/``name``.json. Not through importlib.resources, which costs 15 ms of import."""
    text = Path(__file__).with_name("data").joinpath(f"{name}.json").read_text(encoding="utf-8")
    rows: dict[str, Any] = json.loads(text)
    return rows
