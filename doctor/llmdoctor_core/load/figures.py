"""The figures of one load's log: through the runtimes' own readers, and of the context that was asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmdoctor_core.facts import Figure, Forecast, Stage
from llmdoctor_core.runtimes.llamacpp.log import Buffer, read_log

if TYPE_CHECKING:
    from llmdoctor_core.triage.reading import Reading

MIB = 1 << 20
HUNDREDTH = MIB / 100
"""llama.cpp prints two decimals of a MiB."""
_FITTED = ("successfully fit params", "failed to fit params", "encountered an error while trying to fit")
_BREAKDOWN = re.compile(
    r"common_memory_breakdown_print: \|\s+- (?P<device>\S+)[^|]*\|.*?(?P<parts>\d+ = +\d+ \+ +\d+ \+ +\d+)"
)
"""``- Host | 199 = 92 + 90 + 17`` and ``- CUDA0 (A100) | 81559 = 80000 + (1100 = 500 + 400 + 200) + 59``."""
_KINDS = {"model": "weights", "compute": "compute", "output": "output", "KV": "cache", "RS": "state"}


def figures_of_log(runtime: str, lines: Sequence[str], until: Stage, reading: Reading) -> tuple[Figure, ...]:
    """What the log measured, in bytes, tokens and blocks. ``reading`` is what triage read of the same lines."""
    if runtime != "llamacpp":
        return reading.figures
    return tuple(_planned(lines) if until == "plan" else _allocated(lines))


def settled(figures: Sequence[Figure], forecast: Forecast) -> tuple[Figure, ...]:
    """vLLM's figures in the forecast's terms.

    A release that sizes the cache after an estimate of its graphs prints that estimate within the peak of activations;
    one since 0.27 prints weights and other memory together. Both are taken apart (gpu_worker.py, vLLM 0.32.0).
    """
    if forecast.runtime.name != "vllm":
        return tuple(figures)
    by_name = {figure.name: figure for figure in figures}
    estimate, weights = by_name.get("graphs_estimate"), by_name.get("weights")
    inside = any(memory.graphs for memory in forecast.memory)
    found = []
    for figure in figures:
        if figure.name == "activations" and inside and estimate is not None:
            found.append(_less(figure, "activations", estimate))
        elif figure.name == "consumed":
            found += [_less(figure, "other", weights)] if weights is not None else []
        else:
            found.append(figure)
    return tuple(found)


def _less(figure: Figure, name: str, part: Figure) -> Figure:
    return replace(figure, name=name, value=figure.value - part.value, step=figure.step + part.step)


def _allocated(lines: Iterable[str]) -> Iterable[Figure]:
    """The real context: what the measuring pass of --fit printed before it does not count."""
    log = read_log(lines)
    yield from _buffers(log.buffers)
    for cache in log.caches:
        yield Figure(name="cache", value=cache.bytes, step=HUNDREDTH, source=cache.text)
    for state in log.states:
        yield Figure(name="state", value=state.bytes, step=HUNDREDTH, source=state.text)
    if log.slot_tokens is not None:
        yield Figure(name="slot_tokens", value=log.slot_tokens, source="n_ctx_slot")
    if "n_ctx" in log.settings:
        yield Figure(name="context_tokens", value=log.settings["n_ctx"], source="llama_context: n_ctx")


def _planned(lines: Sequence[str]) -> Iterable[Figure]:
    """The measuring pass, which allocates nothing: its buffers of caches and weights are empty, its sizes are not."""
    end = next((number for number, line in enumerate(lines) if any(text in line for text in _FITTED)), len(lines))
    log = read_log(lines[:end])
    for cache in log.caches:
        yield Figure(name="cache", value=cache.bytes, step=HUNDREDTH, source=cache.text)
    for state in log.states:
        yield Figure(name="state", value=state.bytes, step=HUNDREDTH, source=state.text)
    yield from _buffers([buffer for buffer in log.buffers if buffer.kind in ("compute", "output")])
    for line in lines[:end]:
        if match := _BREAKDOWN.search(line):
            model = int(match["parts"].split()[2])
            yield Figure(name="weights", value=model * MIB, step=MIB, device=match["device"], source=line.strip())


def _buffers(buffers: Iterable[Buffer]) -> Iterable[Figure]:
    for buffer in buffers:
        yield Figure(
            name=_KINDS[buffer.kind],
            value=buffer.bytes,
            step=HUNDREDTH,
            device=buffer.device,
            source=f"{buffer.device} {buffer.kind} buffer size",
        )
