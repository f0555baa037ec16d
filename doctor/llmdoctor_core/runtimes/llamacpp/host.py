"""Host memory that no one counts: the prompt cache, context checkpoints, repacked copies of weights."""

from __future__ import annotations

from llmdoctor_core.facts import HostSurprise, Launch, Model

from . import cache as caches
from .cache import Types
from .context import Context
from .devices import HOST, Split
from .geometry import Geometry

MIB = 1 << 20


def surprises(
    launch: Launch, model: Model, kept: Geometry, setting: Context, types: Types, spread: Split
) -> tuple[HostSurprise, ...]:
    """Host memory that no line at the start mentions (tools/server/server-context.cpp, server-task.cpp)."""
    found = []
    limit = int(launch.get("cache_ram") or 0)
    if limit > 0:
        found.append(
            HostSurprise(
                name="prompt cache",
                bytes=limit * MIB,
                why="the server keeps the states of finished conversations in host memory up to this limit "
                "(--cache-ram, 0 switches it off)",
            )
        )
    elif limit < 0:
        found.append(
            HostSurprise(name="prompt cache", bytes=0, why="--cache-ram -1: host memory without a limit is filled")
        )
    count = int(launch.get("ctx_checkpoints") or 0)
    each = checkpoint_bytes(launch, kept, setting, types)
    if count > 0 and each:
        found.append(
            HostSurprise(
                name="context checkpoints",
                bytes=count * setting.slots * each,
                why=f"up to {count} checkpoints a slot (--ctx-checkpoints) of {each / MIB:.2f} MiB each in host memory",
            )
        )
    if copied := repacked_bytes(launch, model, spread):
        found.append(
            HostSurprise(
                name="repacked weights",
                bytes=copied,
                why="on processors with AMX or wide dot products the layers on the CPU hold their quantised matrices a "
                "second time, repacked, about this much; --no-repack (-nr) keeps one copy",
            )
        )
    return tuple(found)


def repacked_bytes(launch: Launch, model: Model, spread: Split) -> int:
    """Quantised matrices of layers on the CPU, which CPU builds may copy into a layout of their own."""
    if launch.get("repack") is False:
        return 0
    return sum(
        group.bytes
        for group in model.source.gguf_tensors
        if group.layer is not None
        and group.dtype not in ("f32", "f16", "bf16")
        and spread.of_layer[min(group.layer, len(spread.of_layer) - 1)] == HOST
    )


def checkpoint_bytes(launch: Launch, kept: Geometry, setting: Context, types: Types) -> int:
    """One context checkpoint: the window of the sliding layers, or one sequence's recurrent state; 0 without either."""
    size = caches.row_bytes(types, kept.widest_value)
    window = 0
    if not launch.get("swa_full"):
        window = sum(
            size(row) * min(cache.window or 0, setting.slot)
            for cache in kept.caches
            if cache.window is not None
            for row in cache.rows
        )
    return window + sum(state.convolution + state.recurrent for state in kept.states) * caches.F32
