"""The compute buffer: the peak of llama.cpp's graph allocator, an estimate with bounds."""

from __future__ import annotations

from llmdoctor_core.facts import Estimate, Launch, Model

from .cache import Types
from .context import Context
from .devices import HOST, Split
from .geometry import Geometry


def compute_buffers(
    launch: Launch, model: Model, kept: Geometry, setting: Context, types: Types, spread: Split, build: int
) -> dict[int, Estimate | None]:
    """The compute buffer of each device in bytes, by device number."""
    return dict.fromkeys((*range(len(spread.devices)), HOST))
