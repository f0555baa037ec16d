"""Which batch sizes a release of vLLM captures as CUDA graphs (config/vllm.py: _set_cudagraph_sizes)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST = 512
"""Largest size captured by default, in tokens."""
INTERACTIVE = 32
"""Up to this size every batch is captured with --performance-mode interactivity."""


def sizes(
    rules: Mapping[str, Any],
    *,
    sequences: int,
    batched_tokens: int,
    speculative_tokens: int,
    most: int,
    largest: int | None = None,
    interactive: bool = False,
) -> list[int]:
    """Sizes captured by default, ascending, in tokens.

    ``most`` is the release's ceiling on this device and model, ``largest`` a --max-cudagraph-capture-size. ``rules``
    are the release's rows of ``data/defaults.toml``.
    """
    if rules["graph_sizes"] == "every eighth to 512":
        top = largest or most
        grid = [1, 2, 4, *range(8, min(top, MOST) + 1, 8), *range(MOST + 16, top + 1, 16)]
        if top > MOST:  # gpt-oss has its own grid
            grid = [1, 2, 4, *range(8, 256, 8), *range(256, top + 1, 16)]
        return [size for size in grid if size <= batched_tokens]
    query = 1 + speculative_tokens if rules["graph_sizes_speculate"] else 1
    ceiling = largest if largest is not None else min(sequences * query * 2, most)
    top = min(batched_tokens, ceiling)
    found = set(range(1, min(top, INTERACTIVE) + 1) if interactive else (1, 2, 4))
    found |= {*range(8, min(top + 1, 256), 8), *range(256, top + 1, 16)}
    found = {size for size in found if size <= top}
    if rules["graph_sizes_whole_batch"] and batched_tokens <= top:
        found.add(batched_tokens)
    if largest is None:
        found |= {size for size in _decode_sizes(rules, sequences, query, ceiling, most) if size <= batched_tokens}
    return sorted(found)


def _decode_sizes(rules: Mapping[str, Any], sequences: int, query: int, ceiling: int, most: int) -> list[int]:
    """Sizes of uniform decode batches: every request with its draft tokens (since 0.29.0)."""
    if query > 1 and rules["graph_sizes_decode"] != "none":
        requests = min(sequences, most)
        counts = {*range(8, min(requests + 1, 256), 8), *range(256, requests + 1, 16), 1, 2, 4, requests}
        return [count * query for count in counts if count <= requests and count * query <= ceiling]
    if query == 1 and rules["graph_sizes_decode"] == "always" and sequences <= ceiling:
        return [sequences]
    return []
