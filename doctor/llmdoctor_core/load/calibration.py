"""Overheads that real loads on this host measured: kept, and put into the next forecast in place of its estimates."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from llmdoctor_core.facts import (
    Calibration,
    CalibrationEntry,
    CalibrationKey,
    DeviceMemory,
    Estimate,
    Forecast,
    Gpus,
    Launch,
    Measured,
    Model,
    Unavailable,
)

from .figures import settled

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMAT_VERSION = 1
OUTSIDE_CACHE = "outside cache"
"""The overhead that is the budget less the cache: what moves vLLM's cache, however its log divides it."""
KEPT = 500
"""Measurements kept; the oldest go first."""
SPREAD = 0.05
"""Share by which a measured overhead may move from one start to the next: an allowance. Repeated starts that were
published (vLLM 0.19.0, Llama-3.1-8B on an H100) leave the same 58.11 GiB four times."""


class Store(Struct, frozen=True, kw_only=True):
    """All measurements of this host."""

    format_version: int = FORMAT_VERSION
    entries: tuple[CalibrationEntry, ...] = ()


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, list[str]]]:
    text = resources.files(__package__).joinpath("data/calibration.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def key_of(launch: Launch, model: Model, gpus: Gpus | None, version: str | None = None) -> CalibrationKey:
    """The key of a launch. ``version`` is the one that really ran, where a load tells it."""
    names = _table().get(launch.runtime, {}).get("arguments", [])
    devices = sorted(gpu.name for gpu in gpus.visible) if gpus else []
    return CalibrationKey(
        runtime=launch.runtime,
        version=version or launch.version,
        architecture=model.architecture,
        model=f"hidden {model.hidden_size}, {len(model.layers)} layers, {model.weight_bytes or 0} bytes",
        gpu=", ".join(devices) or "no GPU",
        arguments={name: msgspec.to_builtins(launch[name]) for name in names if launch.get(name) is not None},
    )


def entry_of(
    measured: Measured, launch: Launch, model: Model, gpus: Gpus | None, forecast: Forecast
) -> CalibrationEntry | None:
    """What a load teaches; None where it measured no overhead (it died before, or its release prints none).

    A weightless load is none either: nothing was quantised, repacked or run as it will be.
    """
    if measured.weightless or measured.reached in ("nothing", "plan") or measured.started_at is None:
        return None
    wanted = _table().get(measured.runtime, {}).get("overheads", [])
    overheads: dict[str, int] = {}
    for figure in settled(measured.figures, forecast):
        name = {"compute": "activations", "graphs_estimate": "graphs"}.get(figure.name, figure.name)
        if name in wanted and figure.name != "graphs":
            key = name if figure.device is None else f"{name}@{figure.device}"
            overheads[key] = max(overheads.get(key, 0), int(figure.value))
    if (outside := _outside_cache(measured, forecast)) is not None:
        overheads[OUTSIDE_CACHE] = outside
    if not overheads:
        return None
    ready = measured.figure("ready_seconds")
    return CalibrationEntry(
        key=key_of(launch, model, gpus, measured.version),
        measured_at=measured.started_at,
        overheads=overheads,
        ready_seconds=ready.value if ready else None,
    )


def _outside_cache(measured: Measured, forecast: Forecast) -> int | None:
    """Bytes of the budget that the cache did not get, weights included, on the rank that got least."""
    found = [figure.value for figure in measured.figures if figure.name == "available_cache"]
    budgets = [device.budget for device in forecast.memory if device.budget is not None]
    if not found or not budgets or len(budgets) < len(forecast.memory):
        return None
    return int(min(budgets) - min(found))


def apply(
    forecast: Forecast,
    key: CalibrationKey,
    entries: Sequence[CalibrationEntry],
    again: Callable[[int], Forecast] | None = None,
) -> Forecast:
    """The forecast with this host's measurements in place of estimates, marked with their date; else as it was.

    ``again`` forecasts the same launch for a KV pool of that many bytes: it is asked where the measurements move the
    pool (vLLM), so that blocks, tokens and concurrency follow by the runtime's own arithmetic.
    """
    entry = find(entries, key)
    if entry is None or not forecast.memory:
        return forecast
    memory = tuple(_measured_device(device, entry) for device in forecast.memory)
    if memory == forecast.memory:
        return forecast
    day = entry.measured_at[:10]
    note = f"overheads measured on this host on {day} stand in for estimates (llmdoctor calibration list)"
    changed = replace(forecast, memory=memory, notes=(*forecast.notes, note))
    if forecast.runtime.name != "vllm" or again is None:
        return changed
    pools = [device.cache for device in memory if device.cache is not None]
    if len(pools) != len(memory) or not pools or min(pools) <= 0:
        return changed
    moved = again(min(pools)).cache
    if moved is None:
        return changed
    bounds = [device.certainty.get("cache") for device in memory]
    certainty = next((bound for bound in bounds if isinstance(bound, Estimate)), None)
    if certainty is not None and forecast.cache is not None and moved.blocks and moved.tokens:
        low, high = certainty.low / min(pools), certainty.high / min(pools)
        moved = replace(
            moved,
            certainty=Estimate(low=moved.blocks * low, high=moved.blocks * high, why=certainty.why),
            tokens_certainty=Estimate(low=moved.tokens * low, high=moved.tokens * high, why=certainty.why),
        )
    return replace(changed, cache=moved)


def _measured_device(device: DeviceMemory, entry: CalibrationEntry) -> DeviceMemory:
    """One device with the measured overheads; the cache takes what they leave, within the same budget."""
    certainty = dict(device.certainty)
    values: dict[str, int] = {}
    why = f"measured on this host on {entry.measured_at[:10]}"
    for name in ("activations", "graphs", "other"):
        value = _overhead(entry, name, device)
        if value is not None and certainty.get(name) != "exact":
            values[name] = value
            certainty[name] = Estimate(low=value * (1 - SPREAD), high=value * (1 + SPREAD), why=why)
    outside = entry.overheads.get(OUTSIDE_CACHE)
    if outside is not None and device.cache is not None and device.budget is not None:
        cache = device.budget - outside
        slack = max(outside - (device.weights or 0), 0) * SPREAD
        values["cache"] = cache
        certainty["cache"] = Estimate(low=cache - slack, high=cache + slack, why=f"what is outside of it was {why}")
    return replace(device, certainty=certainty, **values) if values else device


def _overhead(entry: CalibrationEntry, name: str, device: DeviceMemory) -> int | None:
    for key in (f"{name}@{device.device}", f"{name}@{device.name}", name):
        if key in entry.overheads:
            return entry.overheads[key]
    return None


def find(entries: Sequence[CalibrationEntry], key: CalibrationKey) -> CalibrationEntry | None:
    """The newest measurement under that key."""
    return max((entry for entry in entries if entry.key == key), key=lambda e: e.measured_at, default=None)


def observe(runtime: str, file: Path | None = None) -> Calibration | Unavailable:
    """The fact of a case: what was measured on this host of that runtime."""
    entries = tuple(entry for entry in read(file).entries if entry.key.runtime == runtime)
    return Calibration(entries=entries) if entries else Unavailable(reason="no load was measured on this host yet")


def path() -> Path:
    """The store's file in the user's state directory."""
    from llmdoctor_core.state import state_folder

    return state_folder() / "calibration.json"


def read(file: Path | None = None) -> Store:
    """All measurements; none where the file is missing, unreadable or of another format: they are only a help."""
    try:
        store = msgspec.json.decode((file or path()).read_bytes(), type=Store)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Store()
    return store if store.format_version == FORMAT_VERSION else Store()


def add(entry: CalibrationEntry, file: Path | None = None) -> None:
    """Keep a measurement, in place of an older one under the same key. A host without a writable state keeps none."""
    file = file or path()
    others = [other for other in read(file).entries if other.key != entry.key]
    _write(Store(entries=(*others, entry)[-KEPT:]), file)


def clear(file: Path | None = None, keep: Callable[[CalibrationEntry], bool] = lambda _entry: False) -> int:
    """Forget measurements (all but those to ``keep``); gives how many."""
    file = file or path()
    entries = read(file).entries
    kept = tuple(entry for entry in entries if keep(entry))
    if len(kept) != len(entries):
        _write(Store(entries=kept), file)
    return len(entries) - len(kept)


def _write(store: Store, file: Path) -> None:
    """Whole or not at all, also when two loads end at once."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".calibration-")
        try:
            with os.fdopen(descriptor, "wb") as out:
                out.write(msgspec.json.format(msgspec.json.encode(store), indent=1) + b"\n")
            Path(temporary).replace(file)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise


def described(entries: Sequence[CalibrationEntry]) -> list[str]:
    """One line an entry, for people."""
    from llmdoctor_core.units import gib

    lines = []
    for entry in entries:
        sizes = ", ".join(f"{name} {gib(value)}" for name, value in sorted(entry.overheads.items()))
        key = entry.key
        what = f"{key.runtime} {key.version}  {key.architecture} ({key.model})  {key.gpu}"
        lines.append(f"{entry.measured_at[:10]}  {what}: {sizes}")
    return lines
