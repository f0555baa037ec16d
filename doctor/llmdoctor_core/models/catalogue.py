"""The built-in catalogue: well-known models without any file or network (data/catalogue.json)."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from ..facts import ModelSource, TokenizerFacts
from .tables import table


def names() -> tuple[str, ...]:
    """Names of the models in the catalogue, as the hub spells them."""
    return tuple(row["name"] for row in _rows())


def find(name: str) -> ModelSource | None:
    """The model of that name, with or without its owner, in whatever case; None where no row has exactly that name."""
    row = _index().get(name.strip().lower())
    return None if row is None else _source(row)


def near(name: str) -> tuple[str, ...]:
    """Up to three names of the catalogue that ``name`` may have meant, the nearest first."""
    wanted = name.strip().lower()
    bare = wanted.rpartition("/")[2]
    index = _index()
    # A fine-tune or a quantised copy carries the name of its model and more behind it.
    stems = sorted((key for key in index if bare.startswith(f"{key}-")), key=len, reverse=True)
    keys = [
        *stems,
        *get_close_matches(wanted, index, n=6, cutoff=0.6),
        *get_close_matches(bare, index, n=6, cutoff=0.6),
    ]
    found: dict[str, None] = {}
    for key in keys:
        found.setdefault(index[key]["name"])
    return tuple(found)[:3]


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table("catalogue")["models"]
    return rows


@lru_cache(maxsize=1)
def _index() -> dict[str, dict[str, Any]]:
    index: dict[str, dict[str, Any]] = {}
    for row in _rows():
        full = row["name"].lower()
        index[full] = row
        # A bare name that two owners share would be ambiguous; the first row keeps it.
        index.setdefault(full.rpartition("/")[2], row)
    for key in list(index):
        # The hub knows Llama 3.1 by two names.
        index.setdefault(key.replace("meta-llama-3", "llama-3"), index[key])
    return index


def _source(row: dict[str, Any]) -> ModelSource:
    longest = row.get("model_max_length")
    return ModelSource(
        name=row["name"],
        origin="catalogue",
        where=f"built-in catalogue: {row['source']}",
        config=expanded(row["config"]),
        quantization_config=row.get("quantization"),
        weight_bytes=row.get("weight_bytes"),
        tokenizer=TokenizerFacts(model_max_length=longest),
        unrecorded=tuple(row.get("unrecorded", ())),
        notes=tuple(row.get("notes", ())),
    )


def expanded(value: Any) -> Any:
    """Undoes the catalogue's abbreviations of long lists.

    ``{"runs": [[value, times], ...]}`` and ``{"repeat": [values], "times": n}``.
    """
    if isinstance(value, dict):
        if value.keys() == {"runs"}:
            return [expanded(entry) for entry, times in value["runs"] for _ in range(times)]
        if value.keys() == {"repeat", "times"}:
            return [expanded(entry) for entry in value["repeat"]] * value["times"]
        return {key: expanded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [expanded(entry) for entry in value]
    return value
