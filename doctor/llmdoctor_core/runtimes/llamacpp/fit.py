"""What --fit makes of a launch: an unset context lowered, then layers moved to the CPU, until the devices hold it.

Source: ``common_params_fit_impl`` of common/fit.cpp, llama.cpp b11434. It measures with passes that allocate nothing;
here model and caches are known exactly and the compute buffer within bounds, so its answer is known within bounds too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from llmdoctor_core.facts import Launch
from llmdoctor_core.runtimes.numbers import WHOLE

from .builds import has
from .context import Context
from .devices import AUTOMATIC, Split
from .geometry import Geometry

MIB = 1 << 20
FULL_CONTEXT = 0xFFFFFFFF

Range = tuple[int, int]
Usage = Callable[[int | None, int | None], list[Range]]
"""Bytes that each device is asked for, least and most, at a total context and a number of layers on devices."""


class Fit(Struct, frozen=True, kw_only=True):
    """What --fit decides; None where it changes nothing. Ranges where the compute buffer leaves it open."""

    context: Range | None = None
    """The total context an unset -c is lowered to."""
    gpu_layers: Range | None = None
    """Layers that stay on the device (one device, a model without experts)."""
    open: bool = False
    """True where it moves layers or experts to the CPU and how many is not known: the devices then hold less."""
    notes: tuple[str, ...] = ()


def fitted(launch: Launch, kept: Geometry, setting: Context, spread: Split, usage: Usage, build: int) -> Fit:
    """The decision of --fit. Without a device with known memory, or with --fit off, nothing is changed."""
    if launch.get("fit") != "on" or not spread.devices:
        return Fit()
    free = [gpu.memory_free if gpu.memory_free is not None else gpu.memory_total for gpu in spread.devices]
    if any(size is None for size in free):
        return Fit()
    targets = [(size or 0) - margin for size, margin in zip(free, margins(launch, len(free)), strict=True)]
    asked = usage(None, None)
    if all(most <= target for (_, most), target in zip(asked, targets, strict=True)):
        return Fit()
    surely = any(least > target for (least, _), target in zip(asked, targets, strict=True))
    room = sum(targets)
    notes = [] if surely else ["whether --fit changes anything lies within the bounds of weights and compute buffer"]
    context, enough = None, False
    if setting.chosen and setting.training and sum(most for _, most in asked) > room:
        context, enough = _context(launch, kept, setting, usage, asked, targets, build)
    over = usage(context[0] if context else None, None)
    if (enough and len(targets) == 1) or all(least <= target for (least, _), target in zip(over, targets, strict=True)):
        return Fit(context=context, notes=tuple(notes))
    return _layers(launch, kept, spread, usage, context, targets, notes)


def margins(launch: Launch, devices: int) -> list[int]:
    """Bytes that --fit leaves free on each device; a single value counts for all."""
    words = [word for word in re.split(r"[,/]+", str(launch.get("fit_target") or "1024")) if WHOLE.fullmatch(word)]
    numbers = [int(word) * MIB for word in words] or [1024 * MIB]
    if len(numbers) == 1:
        return numbers * devices
    return (numbers + [1024 * MIB] * devices)[:devices]


def _context(
    launch: Launch, kept: Geometry, setting: Context, usage: Usage, asked: list[Range], targets: list[int], build: int
) -> tuple[Range | None, bool]:
    """The lowered total by linear interpolation between the least context and the whole, at both ends of the bounds.

    True beside it where the least context leaves room at either end: with one device --fit then moves no layers.
    """
    streams = setting.streams if has(build, "context per sequence") else 1
    most = (setting.training or 0) * streams
    least = int(launch.get("fit_ctx") or 4096) * streams
    if most <= least:
        return None, False
    room = sum(targets)
    if len(targets) > 1:
        weights = sum(low for low, _ in usage(least, None))
        room -= (len(targets) + 1) * weights // max(kept.all_layers, 1) // (6 if kept.experts else 2)
    at_least = usage(least, None)
    found, enough = [], False
    for end in (1, 0):
        full, small = (sum(device[end] for device in devices) for devices in (asked, at_least))
        enough |= room > small
        if full <= room:
            found.append(most)
        elif room <= small or full <= small:
            found.append(least)
        else:
            context = least + (most - least) * (room - small) // (full - small)
            found.append(max(context - context % (256 * streams), least))
    return (min(found), max(found)), enough


def _layers(
    launch: Launch,
    kept: Geometry,
    spread: Split,
    usage: Usage,
    context: Range | None,
    targets: list[int],
    notes: list[str],
) -> Fit:
    """Layers that stay on the device when even the least context does not fit."""
    for name, said in (
        ("gpu_layers", "-ngl"),
        ("tensor_split", "-ts"),
        ("override_tensor", "-ot"),
        ("cpu_moe", "-cmoe"),
        ("n_cpu_moe", "-ncmoe"),
    ):
        if launch.given(name) and launch.get(name) not in AUTOMATIC:
            notes.append(f"--fit gives up: {said} is set, so it moves no layers; the context stays lowered")
            return Fit(context=context, notes=tuple(notes))
    if len(targets) > 1 or kept.experts:
        notes.append("--fit moves layers or experts to the CPU; how many is not forecast for this model or split")
        return Fit(context=context, open=True, notes=tuple(notes))
    total = context[0] if context else None

    def fits(count: int, end: int) -> bool:
        return usage(total, count)[0][end] <= targets[0]

    held = [_most(partial(fits, end=end), kept.all_layers + 1) for end in (1, 0)]
    notes.append(f"--fit leaves {held[0]} to {held[1]} of {kept.all_layers + 1} layers on the device")
    return Fit(context=context, gpu_layers=(held[0], held[1]), notes=tuple(notes))


def _most(holds: Callable[[int], bool], upper: int) -> int:
    """The largest count up to ``upper`` that holds, where every smaller one holds too; 0 where none does."""
    low, high = 0, upper
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
