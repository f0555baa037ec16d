"""The compute buffer: the peak of llama.cpp's graph allocator, an estimate with bounds.

On the CPU with flash attention it is linear in the batch: width * n_ubatch * 4 + 2 * n_ubatch * cells. The width has no
closed form; data/compute.toml says how it is bounded and what the bounds were held against.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import Any

from llmdoctor_core.facts import Estimate, Latent, Launch, Model

from . import cache as caches
from .builds import DATA, has
from .cache import F32, Types
from .context import Context
from .devices import HOST, Split
from .geometry import Geometry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WHY = (
    "the peak of a graph allocator has no closed form: width of the graph x n_ubatch, attention masks and rows of "
    "logits, bounded by what servers of b7585 to b11434 printed"
)
PIPELINE_COPIES = 4
"""GGML_SCHED_MAX_COPIES: several devices in a row keep the inputs of as many batches."""


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return tomllib.loads((DATA / "compute.toml").read_text())


def compute_buffers(
    launch: Launch, model: Model, kept: Geometry, setting: Context, types: Types, spread: Split, build: int
) -> dict[int, Estimate]:
    """The compute buffer of each device in bytes, by device number."""
    table = _table()
    low, high = (_width(model, table[end]) * setting.ubatch * F32 for end in ("low", "high"))
    spans = _cells(launch, kept, setting, build)
    half = has(build, "half mask") and not types.transposed
    masks = sum(spans) * setting.ubatch * (2 if half else 4)
    many = not has(build, "few logits rows")
    logits = model.vocabulary * F32 * (setting.ubatch if many else setting.slots)
    scores = model.heads * max(spans, default=0) * setting.ubatch * F32 if types.transposed else 0
    copies = PIPELINE_COPIES if len(spread.devices) > 1 else 1
    low = max(low + (masks if half else masks // 2 if not spread.devices else 0), scores)
    with_output = max(low, logits if many else 0)
    high = high * (table["high"]["indexer"] if _indexed(kept) else 1) + logits + 1.3 * scores
    high += masks * copies * (1 if half else 1.5) + _beside(kept, setting, types, spans)
    graph = Estimate(low=math.floor(with_output), high=math.ceil(high), why=WHY)
    if not spread.devices:
        return {HOST: graph}
    inputs = model.hidden_size * setting.ubatch * F32
    on_host = HOST in spread.of_layer or spread.cache_on_host
    host = Estimate(
        low=math.floor(0.5 * inputs),
        high=math.ceil(high if on_host else masks * copies + 3 * inputs * copies + logits / setting.ubatch),
        why=WHY,
    )
    found = {}
    for number in range(len(spread.devices)):
        least = with_output if number == spread.output else low if number in spread.of_layer else 0
        found[number] = Estimate(low=math.floor(least), high=graph.high, why=WHY)
    return found | {HOST: host}


def _beside(kept: Geometry, setting: Context, types: Types, spans: list[int]) -> int:
    """Copies that some graphs hold beside the activations: a layer's states, keys and values of an f32 cache as f16."""
    states = 2 * caches.states(kept, setting).bytes // max(len(kept.states), 1)
    if "f32" not in (types.key, types.value):
        return states
    row = max((row.key + row.value for cache in kept.caches for row in cache.rows), default=0)
    return states + 2 * row * max(spans, default=0)


def _width(model: Model, factor: dict[str, float]) -> float:
    """Elements that live at once for one token, by one end of the table."""
    experts = (model.expert_intermediate_size or 0) * model.experts_per_token
    latent = [cache for layer in model.layers for cache in layer.caches if isinstance(cache, Latent)]
    head = latent[0].rank + latent[0].rope_dim if latent else model.head_dim
    keys = model.source.gguf or {}
    inner = _count(keys.get(f"{model.architecture}.ssm.inner_size"))
    extra = _count(keys.get(f"{model.architecture}.embedding_length_per_layer_input")) * len(model.layers)
    return (
        max(
            factor["feed_forward"] * max(model.intermediate_size or 0, experts),
            factor["query"] * model.heads * head,
            factor["inner"] * inner,
        )
        + factor["embedding"] * model.hidden_size
        + factor["per_layer_embedding"] * extra
    )


def _count(value: object) -> int:
    """A count of the header; 0 for what is missing or malformed."""
    return value if isinstance(value, int) and 0 <= value < 1 << 32 else 0


def _cells(launch: Launch, kept: Geometry, setting: Context, build: int) -> list[int]:
    """Cells of each attention cache: a mask spans them for every token of the batch."""
    full = bool(launch.get("swa_full"))
    return [
        caches.cells(cache, setting, full_window=full, build=build)
        for cache in (*kept.caches, *kept.late)
        if cache.rows or cache.window is None
    ]


def _indexed(kept: Geometry) -> bool:
    return any(cache.kind == "indexer" for cache in (*kept.caches, *kept.late))
