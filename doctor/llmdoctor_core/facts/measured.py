"""What a short real load printed: its phases with time, the figures it measured, and how it ended."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .base import Fact

Stage = Literal["nothing", "plan", "cache", "ready", "first-token"]
"""How far a load came, in this order."""

Ending = Literal["reached", "died", "timed out", "refused", "interrupted"]
"""``refused``: the server was ready and did not answer the request for one token."""


class PhaseTime(Struct, frozen=True, kw_only=True):
    """One phase of the start: ``weights``, ``profiling``, ``cache``, ... Seconds since the command was started."""

    name: str
    began: float
    seconds: float
    complete: bool = True
    """False for the phase in which the load ended without reaching its stage."""


class Figure(Struct, frozen=True, kw_only=True):
    """One measured figure: bytes, tokens, blocks, a ratio or seconds.

    ``step`` is the smallest difference that the runtime prints, in the figure's unit: a value printed as ``57.50 GiB``
    stands for anything within half a step of it. ``device`` is the runtime's own name (``CUDA0``, ``0``), None for a
    figure of the whole engine.
    """

    name: str
    value: float
    step: float = 0.0
    device: str | None = None
    source: str = ""
    """The line, or the endpoint, that it was read from."""


class ServerEnd(Struct, frozen=True, kw_only=True):
    """How the server's process ended by itself: its exit status, or the signal that killed it."""

    exit_status: int | None = None
    signal: str | None = None


class Measured(Fact, frozen=True, kw_only=True):
    """One short real load of the launch."""

    runtime: str
    version: str | None = None
    command: tuple[str, ...]
    """The command as it was started."""
    changed: tuple[str, ...] = ()
    """What was changed in the person's command and why, one sentence each."""
    weightless: bool = False
    """True where dummy or hollow weights stood in: the figures of weights and every quality are not confirmed."""
    started_at: str | None = None
    until: Stage
    reached: Stage
    ending: Ending
    end: ServerEnd | None = None
    """Set where the process ended before it was asked to."""
    phases: tuple[PhaseTime, ...] = ()
    figures: tuple[Figure, ...] = ()
    silent_seconds: float = 0.0
    """How long the server had printed nothing when the load ended."""
    timeout: float | None = None
    tail: tuple[str, ...] = ()
    """The last lines it printed."""
    memory_kept: dict[str, int] = {}
    """Bytes by GPU that were in use before the start, were not returned and outlived the wait."""
    left: tuple[str, ...] = ()
    """Processes or files that could not be removed."""
    notes: tuple[str, ...] = ()

    def figure(self, name: str, device: str | None = None) -> Figure | None:
        """The figure of that name (and device), or None."""
        for figure in self.figures:
            if figure.name == name and (device is None or figure.device == device):
                return figure
        return None
