"""A server's output as clean lines with the second they came, in bounded memory however much it prints."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable

from msgspec import Struct

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_END = re.compile(rb"\r\n|\n|\r")
MAX_LINE = 16 << 10
KEPT = 4 << 20
"""Bytes kept of the beginning and of the end each; no start that is well prints so much."""


class Line(Struct, frozen=True):
    """One line of output: seconds since the start of the command, and its text."""

    at: float
    text: str


def clean(raw: bytes) -> str:
    """Text of a raw line: broken UTF-8 replaced, escape sequences and control characters removed."""
    return _CONTROL.sub("", _ESCAPE.sub("", raw.decode("utf-8", "replace"))).rstrip()


class Output:
    """Lines as they come: all are shown to ``on_line``, the first and the last are kept.

    Filled by one reading thread and read by another; ``keep`` decides which lines of the middle stay too.
    """

    def __init__(self, on_line: Callable[[Line], None], keep: Callable[[str], bool]) -> None:
        self._on_line, self._keep = on_line, keep
        self._lock = threading.Lock()
        self._partial = b""
        self._head: list[Line] = []
        self._tail: deque[Line] = deque()
        self._head_size = self._tail_size = self._middle_size = 0
        self._middle: list[Line] = []
        self.lines = self.left_out = 0
        self.last_at = 0.0

    def feed(self, chunk: bytes, at: float) -> None:
        """Bytes as read from the pipe, at ``at`` seconds."""
        *whole, self._partial = _END.split(self._partial + chunk)
        for raw in whole:
            self._add(raw, at)
        if len(self._partial) > MAX_LINE:
            self._add(self._partial, at)
            self._partial = b""

    def close(self, at: float) -> None:
        """The end of the output: a last line without its end counts."""
        if self._partial:
            self._add(self._partial, at)
            self._partial = b""

    def _add(self, raw: bytes, at: float) -> None:
        line = Line(at, clean(raw[:MAX_LINE]))
        with self._lock:
            self.lines += 1
            self.last_at = at
            if self._head_size < KEPT:
                self._head.append(line)
                self._head_size += len(line.text) + 1
            else:
                self._tail.append(line)
                self._tail_size += len(line.text) + 1
                while self._tail_size > KEPT:
                    self._leave_out(self._tail.popleft())
        self._on_line(line)

    def _leave_out(self, line: Line) -> None:
        self._tail_size -= len(line.text) + 1
        if self._middle_size < KEPT and self._keep(line.text):
            self._middle.append(line)
            self._middle_size += len(line.text) + 1
        else:
            self.left_out += 1

    def text(self) -> str:
        """What was kept, oldest first, with a line that says how many were left out."""
        with self._lock:
            gap = [f"[{self.left_out:,} lines left out by llmdoctor]"] if self.left_out else []
            kept = [line.text for line in (*self._head, *self._middle)]
            return "\n".join([*kept, *gap, *(line.text for line in self._tail)])

    def last(self, count: int) -> tuple[str, ...]:
        """The last ``count`` lines that are not blank."""
        with self._lock:
            found: list[str] = []
            for line in (*reversed(self._tail), *reversed(self._head)):
                if line.text.strip():
                    found.append(line.text)
                if len(found) == count:
                    break
        return tuple(reversed(found))
