"""Writes the JSON schemas of the documents that others build on: the case and the forecast."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from llmdoctor_core.case import Case
from llmdoctor_core.facts import Forecast

FOLDER = Path(__file__).parents[1] / "docs/schema"
SCHEMAS = {"case-1.json": Case, "forecast-1.json": Forecast}


def text_of(kind: type) -> str:
    """The schema of a type as JSON text."""
    return json.dumps(msgspec.json.schema(kind), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    for name, kind in SCHEMAS.items():
        (FOLDER / name).write_text(text_of(kind), encoding="utf-8")
