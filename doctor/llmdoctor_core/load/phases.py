"""The phases of a start, told from its lines: which it is in, since when, and what a silence there usually means."""

from __future__ import annotations

import sys
import threading
from functools import lru_cache
from importlib import resources

import msgspec
from msgspec import Struct

from llmdoctor_core.facts import PhaseTime, Stage

from .output import Line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STAGES: tuple[Stage, ...] = ("nothing", "plan", "cache", "ready", "first-token")


class Phase(Struct, frozen=True, kw_only=True):
    """One phase of a runtime's start, as data/phases.toml describes it. ``patience`` is in seconds."""

    runtime: str
    name: str
    begins: tuple[str, ...]
    patience: float
    behind: tuple[str, ...]
    source: str
    until: tuple[str, ...] = ()
    stage: Stage | None = None
    proof: tuple[str, ...] = ()
    anytime: bool = False


@lru_cache(maxsize=1)
def _table() -> tuple[Phase, ...]:
    text = resources.files(__package__).joinpath("data/phases.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["phase"], tuple[Phase, ...])


def phases(runtime: str) -> tuple[Phase, ...]:
    """The phases of that runtime's start, in order; empty for one that is not known."""
    return tuple(phase for phase in _table() if phase.runtime == runtime)


class Progress:
    """Where a start stands. Fed with lines on the reading thread, asked by another."""

    def __init__(self, runtime: str) -> None:
        self._phases = phases(runtime)
        self._marks = tuple({text for phase in self._phases for text in (*phase.begins, *phase.until, *phase.proof)})
        self._lock = threading.Lock()
        self._entered: list[tuple[Phase, float]] = [(self._phases[0], 0.0)]
        self._furthest = 0
        self._held = False
        self._stage: Stage = "nothing"

    def is_mark(self, text: str) -> bool:
        """Whether the line tells of some phase: such a line is never left out."""
        return any(mark in text for mark in self._marks)

    def feed(self, line: Line) -> None:
        """One line of output."""
        if not self.is_mark(line.text):
            return
        with self._lock:
            current = self._entered[-1][0]
            if self._held and any(text in line.text for text in current.until):
                self._held = False
            for number, phase in enumerate(self._phases):
                if not self._held and any(text in line.text for text in phase.begins):
                    self._enter(number, phase, line.at)
                if (not self._held or phase is current) and any(text in line.text for text in phase.proof):
                    self._prove(phase.stage)

    def _enter(self, number: int, phase: Phase, at: float) -> None:
        if phase is self._entered[-1][0] or (not phase.anytime and number <= self._furthest):
            return
        self._entered.append((phase, at))
        self._held = bool(phase.until)
        if not phase.anytime:
            self._furthest = number

    def _prove(self, stage: Stage | None) -> None:
        if stage and STAGES.index(stage) > STAGES.index(self._stage):
            self._stage = stage

    def prove(self, stage: Stage) -> None:
        """What is known from elsewhere: an HTTP answer."""
        with self._lock:
            self._prove(stage)

    def begin(self, name: str, at: float) -> None:
        """A phase that no line tells of: ours, the first token."""
        with self._lock:
            for number, phase in enumerate(self._phases):
                if phase.name == name:
                    self._held = False
                    self._enter(number, phase, at)

    @property
    def stage(self) -> Stage:
        """The furthest stage proven."""
        with self._lock:
            return self._stage

    @property
    def current(self) -> Phase:
        with self._lock:
            return self._entered[-1][0]

    def entered(self) -> int:
        """How many phases were begun, to see whether a new one was."""
        with self._lock:
            return len(self._entered)

    def times(self, now: float, complete: bool) -> tuple[PhaseTime, ...]:
        """The phases so far with their seconds; ``complete`` says whether the last one is done."""
        with self._lock:
            entered = list(self._entered)
        ends = [at for _, at in entered[1:]] + [now]
        return tuple(
            PhaseTime(
                name=phase.name,
                began=round(began, 2),
                seconds=round(max(end - began, 0.0), 2),
                complete=complete or end is not now,
            )
            for (phase, began), end in zip(entered, ends, strict=True)
        )
