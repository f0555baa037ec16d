"""What real loads on this host measured of overheads that no arithmetic gives: memory of activations and graphs."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .base import Fact


class CalibrationKey(Struct, frozen=True, kw_only=True):
    """What two launches must share for the overheads of one to hold for the other."""

    runtime: str
    version: str
    architecture: str
    model: str
    """Hidden size, layers and bytes of the weights, as text: architectures come in sizes."""
    gpu: str
    arguments: dict[str, Any]


class CalibrationEntry(Struct, frozen=True, kw_only=True):
    """One measurement: bytes by overhead and device, and when it was made (UTC, ISO 8601)."""

    key: CalibrationKey
    measured_at: str
    overheads: dict[str, int]
    """``activations``, or ``activations@CUDA0`` for one device, to bytes."""
    ready_seconds: float | None = None


class Calibration(Fact, frozen=True, kw_only=True):
    """The measurements of this host for the launch's runtime."""

    entries: tuple[CalibrationEntry, ...]
