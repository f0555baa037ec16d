"""Holds what a load measured beside the forecast: equal, within its bounds, or outside, with the known reasons."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources
from typing import Literal

import msgspec
from msgspec import Struct

from llmdoctor_core.facts import (
    CacheForecast,
    Certainty,
    DeviceMemory,
    Estimate,
    Figure,
    Forecast,
    Gpus,
    Launch,
    Measured,
    Unavailable,
)
from llmdoctor_core.units import gib

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LLAMACPP = "llama.cpp"
"""As a forecast names the runtime."""
Verdict = Literal["equal", "within", "outside", "not predicted", "not measured"]
Unit = Literal["bytes", "tokens", "blocks", "ratio", "seconds"]


class Row(Struct, frozen=True, kw_only=True):
    """One figure, predicted beside measured. ``low`` and ``high`` bound an estimate, and coincide for an exact one."""

    name: str
    device: str | None = None
    unit: Unit
    predicted: float | None
    low: float | None = None
    high: float | None = None
    exact: bool = True
    measured: float | None
    step: float = 0.0
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    source: str = ""


class _Predicted(Struct, frozen=True):
    name: str
    unit: Unit
    value: float
    certainty: Certainty
    device: str | None = None
    per: Literal["engine", "device", "sum"] = "engine"
    """``engine``: one figure for all. ``device``: one for each device. ``sum``: the devices' together."""


_UNITS: dict[str, Unit] = {
    "cache_tokens": "tokens", "request_tokens": "tokens", "slot_tokens": "tokens", "block_tokens": "tokens",
    "context_tokens": "tokens",
    "blocks": "blocks", "max_concurrency": "ratio", "ready_seconds": "seconds", "first_token_seconds": "seconds",
}  # fmt: skip
"""Units of the figures that are not bytes."""
UNCOMPARED = frozenset({"model_train_tokens", "gpu_memory_total", "slots", "max_model_len"})
"""Figures of a log that are no answer to a forecast."""


def compare(
    forecast: Forecast, figures: Sequence[Figure], circumstances: frozenset[str] = frozenset()
) -> tuple[Row, ...]:
    """The rows of all figures that were predicted or measured, in the forecast's order."""
    rows = []
    taken: set[str] = set()
    for predicted in _predictions(forecast):
        answer = _measured(predicted, figures)
        taken.add(predicted.name)
        if answer is not None or predicted.value:  # of nothing, nothing is printed
            rows.append(_row(predicted, answer, circumstances))
    for name in dict.fromkeys(figure.name for figure in figures if figure.name not in taken | UNCOMPARED):
        found = [figure for figure in figures if figure.name == name]
        total = _total(found) if found[0].device is not None else found[-1]
        rows.append(
            Row(name=name, unit=_UNITS.get(name, "bytes"), predicted=None, measured=total.value, step=total.step,
                verdict="not predicted", reasons=_reasons(name, circumstances), source=total.source)
        )  # fmt: skip
    return tuple(rows)


def _predictions(forecast: Forecast) -> Iterable[_Predicted]:
    return _llamacpp(forecast) if forecast.runtime.name == LLAMACPP else _vllm(forecast)


def _vllm(forecast: Forecast) -> Iterable[_Predicted]:
    """Of graphs, what the release subtracts before it sizes the cache: its own estimate, not what capturing took."""
    for memory in forecast.memory:
        for name, value, figure in (
            ("weights", memory.weights, "weights"),
            ("activations", memory.activations, "activations"),
            ("graphs", memory.graphs or None, "graphs_estimate"),
            ("other", memory.other, "other"),
            ("cache", memory.cache, "available_cache"),
        ):
            if value is not None:
                yield _Predicted(figure, "bytes", value, _certainty(memory, name, value), str(memory.device), "device")
    cache = forecast.cache
    if cache is None:
        return
    yield _Predicted("request_tokens", "tokens", cache.request_tokens, "exact")
    if cache.block_tokens is not None:
        yield _Predicted("block_tokens", "tokens", cache.block_tokens, "exact")
    if cache.blocks is not None:
        yield _Predicted("blocks", "blocks", cache.blocks, cache.certainty)
    if cache.tokens is not None:
        yield _Predicted("cache_tokens", "tokens", cache.tokens, _tokens_certainty(cache))
    if cache.max_concurrency is not None:
        yield _Predicted("max_concurrency", "ratio", cache.max_concurrency, _concurrency_certainty(cache))


def _llamacpp(forecast: Forecast) -> Iterable[_Predicted]:
    """Devices by their number as in ``CUDA0``, the host as ``CPU``."""
    for memory in forecast.memory:
        device = "CPU" if memory.device < 0 else str(memory.device)
        for name, value, figure in (
            ("weights", memory.weights, "weights"),
            ("activations", memory.activations, "compute"),
            ("other", memory.other or None, "output"),
        ):
            if value is not None:
                yield _Predicted(figure, "bytes", value, _certainty(memory, name, value), device, "device")
    cache = forecast.cache
    if cache is None:
        return
    if cache.bytes is not None:
        yield _Predicted("cache", "bytes", cache.bytes, "exact", per="sum")
    if cache.state_bytes:
        yield _Predicted("state", "bytes", cache.state_bytes, "exact", per="sum")
    if cache.tokens is not None:
        yield _Predicted("context_tokens", "tokens", cache.tokens, "exact")
    if cache.slot_tokens is not None:
        yield _Predicted("slot_tokens", "tokens", cache.slot_tokens, "exact")


def _certainty(memory: DeviceMemory, name: str, value: float) -> Certainty:
    return memory.certainty.get(name, Estimate(low=value, high=value, why="no bounds were given"))


def device_of(name: str | None) -> str | None:
    """llama.cpp's buffer device (CUDA0, CPU_Mapped, CUDA_Host, Host) as a device of the forecast: ``0``, ``CPU``."""
    if name is None or name.isdigit():
        return name
    number = re.search(r"\d+$", name)
    return number[0] if number else "CPU"


def _tokens_certainty(cache: CacheForecast) -> Certainty:
    return "exact" if cache.certainty == "exact" else (cache.tokens_certainty or cache.certainty)


def _concurrency_certainty(cache: CacheForecast) -> Certainty:
    tokens = _tokens_certainty(cache)
    if tokens == "exact" or not cache.tokens or not cache.max_concurrency:
        return tokens
    scale = cache.max_concurrency / cache.tokens
    return Estimate(low=tokens.low * scale, high=tokens.high * scale, why=tokens.why)


def _measured(predicted: _Predicted, figures: Sequence[Figure]) -> Figure | None:
    """The figure that answers the prediction: from the log before the endpoints, which tell less of rounding."""
    found = [figure for figure in figures if figure.name == predicted.name]
    found = [figure for figure in found if not figure.source.startswith("/")] or found
    if predicted.per == "sum":
        found = [figure for figure in found if figure.device is None] or found
        return _total(found) if found else None
    if predicted.per == "device" and any(figure.device for figure in found):
        found = [figure for figure in found if device_of(figure.device) == predicted.device]
        return _total(found) if found else None
    if predicted.name == "available_cache" and found:  # of several ranks the smallest counts
        return min(found, key=lambda figure: figure.value)
    return found[-1] if found else None


def _total(figures: Sequence[Figure]) -> Figure:
    """Several lines together: a cache a kind of layer, a buffer a device. Each was rounded by itself."""
    return msgspec.structs.replace(
        figures[-1], value=sum(figure.value for figure in figures), step=sum(figure.step for figure in figures)
    )


def _row(predicted: _Predicted, found: Figure | None, circumstances: frozenset[str]) -> Row:
    exact = predicted.certainty == "exact"
    low = predicted.value if predicted.certainty == "exact" else predicted.certainty.low
    high = predicted.value if predicted.certainty == "exact" else predicted.certainty.high
    verdict: Verdict = "not measured"
    if found is not None:
        half = found.step / 2 * (1 + 1e-4) + 1e-9  # a figure is a whole number of bytes, its printed half is none
        if abs(found.value - predicted.value) <= half:
            verdict = "equal"
        elif not exact and low - half <= found.value <= high + half:
            verdict = "within"
        else:
            verdict = "outside"
    return Row(
        name=predicted.name,
        device=predicted.device,
        unit=predicted.unit,
        predicted=predicted.value,
        low=low,
        high=high,
        exact=exact,
        measured=None if found is None else found.value,
        step=0.0 if found is None else found.step,
        verdict=verdict,
        reasons=_reasons(predicted.name, circumstances) if verdict == "outside" else (),
        source="" if found is None else found.source,
    )


def printed(forecast: Forecast, log: str) -> tuple[tuple[str, bool], ...]:
    """The lines that the forecast said the server will print, and whether it did, word for word.

    The source in front of a message (``srv load_model:``) is not compared, nor how far it is indented.
    """
    if forecast.cache is None:
        return ()
    said = " ".join(log.split())
    return tuple((line, " ".join(_message(line).split()) in said) for line in forecast.cache.lines)


def _message(line: str) -> str:
    return re.sub(r"^(?:srv|slot|cmn|spec)\s+\S+:", "", line)


class _Reason(Struct, frozen=True, kw_only=True):
    figures: tuple[str, ...]
    when: str
    says: str
    source: str


@lru_cache(maxsize=1)
def _table() -> tuple[_Reason, ...]:
    text = resources.files(__package__).joinpath("data/reasons.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["reason"], tuple[_Reason, ...])


def _reasons(name: str, circumstances: frozenset[str]) -> tuple[str, ...]:
    return tuple(reason.says for reason in _table() if name in reason.figures and reason.when in circumstances)


def circumstances(
    measured: Measured, forecast: Forecast, launch: Launch | Unavailable, gpus: Gpus | Unavailable
) -> frozenset[str]:
    """What holds of this load that is known to move figures: the ``when`` of data/reasons.toml."""
    holds = set()
    if not isinstance(gpus, Unavailable) and any(gpu.processes for gpu in gpus.visible):
        holds.add("other process on a GPU")
    if not isinstance(launch, Unavailable):
        ranks = [launch.get(name) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")]
        if any(isinstance(count, int) and count > 1 for count in ranks):
            holds.add("several ranks")
        if launch.runtime == "llamacpp" and not launch.given("ctx_size"):
            holds.add("no context given")
    if forecast.cache and any(part.kind == "state" for part in forecast.cache.parts):
        holds.add("state layers")
    if measured.weightless:
        holds.add("weightless")
    if forecast.runtime.name == "vllm":
        holds.add("profiled memory")
    if forecast.runtime.assumed and measured.version not in (None, forecast.runtime.version):
        holds.add("assumed version")
    if any(phase.name in ("kernel build", "compile") and phase.seconds > 10 for phase in measured.phases):
        holds.add("kernels were built")
    return frozenset(holds)


def shown(row: Row, value: float | None) -> str:
    """A value in the row's unit, for people."""
    if value is None:
        return "-"
    if row.unit == "bytes":
        return gib(value)
    if row.unit == "ratio":
        return f"{value:,.2f}x"
    if row.unit == "seconds":
        return f"{value:,.1f} s"
    return f"{value:,.0f} {row.unit}"
