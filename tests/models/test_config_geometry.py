"""Published configurations are understood: heads, layer kinds, bytes of cache equal independently computed ones."""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import pytest

from llmdoctor_core.facts import (
    AnyCache,
    ChunkedLocal,
    Full,
    Indexer,
    Latent,
    Model,
    ModelSource,
    Nothing,
    SharedWith,
    SlidingWindow,
    State,
)
from llmdoctor_core.models import describe

CONFIGS = Path(__file__).parents[1] / "configs"
GEOMETRY: dict[str, Any] = json.loads((CONFIGS / "geometry.json").read_text())
MODELLED = sorted(name for name, row in GEOMETRY.items() if "unmodelled" not in row)
KIND = {"gdn": "linear_attention", "mamba1": "mamba1", "mamba2": "mamba2", "kda": "kda", "short_conv": "conv"}


def described(name: str) -> Model:
    config = json.loads((CONFIGS / name).read_text())
    return describe(
        ModelSource(name=name.removesuffix(".json").replace("--", "/"), origin="folder", where=name, config=config)
    )


def kind(caches: tuple[AnyCache, ...], layers: tuple[Any, ...]) -> str:
    first = caches[0]
    if len(caches) == 2 and isinstance(caches[1], State):
        return "both"
    if isinstance(first, SharedWith):
        return kind(layers[first.layer].caches, layers)
    if isinstance(first, State):
        return KIND[first.kind]
    return {
        Full: "full_attention",
        Latent: "full_attention",
        SlidingWindow: "sliding_attention",
        ChunkedLocal: "chunked_attention",
        Nothing: "none",
    }[type(first)]


def token_bytes(cache: AnyCache) -> int:
    """Two bytes an element."""
    if isinstance(cache, Latent):
        return 2 * (cache.rank + cache.rope_dim)
    if isinstance(cache, Indexer):
        return 2 * cache.key_dim
    if isinstance(cache, Full | SlidingWindow | ChunkedLocal):
        return 2 * cache.kv_heads * (cache.key_dim + cache.value_dim)
    return 0


@pytest.mark.parametrize("name", MODELLED)
def test_geometry_of_published_configs(name: str) -> None:
    expected = GEOMETRY[name]
    model = described(name)
    assert len(model.layers) == expected["layers"]
    assert model.hidden_size == expected["hidden"]
    assert (model.heads, model.kv_heads, model.head_dim) == (
        expected["heads"],
        expected["kv_heads"],
        expected["head_dim"],
    )
    kinds = Counter(kind(layer.caches, model.layers) for layer in model.layers)
    shared = sum(isinstance(layer.caches[0], SharedWith) for layer in model.layers)
    if shared:
        kinds["(shared)"] = shared
    assert dict(kinds) == expected["kinds"]

    caches = [cache for layer in model.layers for cache in layer.caches]
    latent = any(isinstance(c, Latent) for c in caches)
    counted = Full | Latent | Indexer if latent else Full | Latent  # MiniMax M3's index keys were left out
    assert sum(token_bytes(c) for c in caches if isinstance(c, counted)) == expected["full_b"]
    windowed = [c for c in caches if isinstance(c, SlidingWindow | ChunkedLocal)]
    assert sum(token_bytes(c) for c in windowed) == expected["swa_b"]
    assert {getattr(c, "window", getattr(c, "chunk", None)) for c in windowed} == (
        {expected["window"]} if windowed else set()
    )
    states = [c for c in caches if isinstance(c, State)]
    assert sum(state_bytes(c) for c in states) == expected["state_b"]


def state_bytes(state: State) -> int:
    """Convolution state in two bytes an element, recurrent state in four."""
    recurrent = 0 if state.kind == "short_conv" else prod(state.shapes[-1]) * 4
    return prod(state.shapes[0]) * 2 + recurrent
