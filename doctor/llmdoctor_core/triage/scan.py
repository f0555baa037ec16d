"""Reads a log of any size and hands out the few lines that some pattern may match, in bounded memory.

A block is cut into lines with their digits left out. What a serving log repeats a million times is then a handful of
different lines, and only those not seen before are looked at, by their words. No line is dropped unlooked at: two
lines that differ in digits alone hold the same words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from .anchors import DIGITS, FOLD, Index

BLOCK = 1 << 20
KEPT = 40_000
"""Different lines remembered before the memory is emptied."""
TRACEBACK = b"traceback"
FOLLOWED = 400
"""Lines after "Traceback" in which its exception is looked for."""
LOOKED = 200
"""How often lines that differ in digits alone are handed out."""

COLOURS = (b"\x1b[", b"\\ub[", b"#[")
COLOUR = re.compile(rb"(?:\x1b|\\ub|#)\[[;?]*[A-Za-z]")
"""What colours a line, its digits left out: as it is, in a JSON string, and as rsyslog writes it."""
FOLD_LINES = FOLD[:10] + b"\n" + FOLD[11:]
"""The folded alphabet with line breaks left in."""
TAIL = 60
"""Last lines of the log that are kept."""

Read = Callable[[int], bytes]


class Scan:
    """One reading of a log. Iterate it once; then ``lines``, ``bytes`` and ``tail`` tell what was read."""

    def __init__(self, read: Read, indexes: Iterable[Index]) -> None:
        """``read(n)`` gives up to n bytes, none at the end. Lines that one of the indexes knows are handed out."""
        self._read = read
        self._index = Index.together(indexes)
        self._words = self._index.words | {TRACEBACK}
        self.lines = 0
        self.bytes = 0
        self.tail: list[bytes] = []

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of every line that some pattern may match, and of the lines below a traceback."""
        seen: set[bytes] = set()
        wanted: dict[bytes, int] = {}
        following = 0
        for block, complete in self._blocks():
            lines = block.translate(None, DIGITS).split(b"\n")
            fresh = set(lines) - seen
            if fresh:
                seen |= fresh
                wanted |= dict.fromkeys(self._interesting(list(fresh)), 0)
                if len(seen) > KEPT:
                    seen = set(lines)
                    wanted = {line: count for line, count in wanted.items() if line in seen}
            if following or not wanted.keys().isdisjoint(lines):
                whole = block.split(b"\n")
                for offset, line in enumerate(lines):
                    if line in wanted:
                        wanted[line] += 1
                        if wanted[line] > LOOKED and not following:
                            continue
                        if TRACEBACK in line.lower():
                            following = FOLLOWED
                    elif not following:
                        continue
                    following = max(0, following - 1)
                    yield self.lines + offset + 1, whole[offset]
            self.lines += len(lines) - (not complete)
            self.tail = (self.tail + block.rsplit(b"\n", TAIL)[-TAIL:])[-TAIL:]

    def _interesting(self, fresh: list[bytes]) -> Iterator[bytes]:
        """Those of the lines that some pattern may match."""
        together = b"\n".join(fresh)
        if b"\\n" in together:
            together = together.replace(b"\\n", b"  ")
        if any(begun in together for begun in COLOURS):
            together = COLOUR.sub(b" ", together)
        for line, folded in zip(fresh, together.translate(FOLD_LINES).split(b"\n"), strict=True):
            words = folded.split()
            if not self._words.isdisjoint(words) and (TRACEBACK in words or self._index.may_match(set(words))):
                yield line

    def _blocks(self) -> Iterator[tuple[bytes, bool]]:
        """Blocks without their last line break, and whether each ends with a line; a very long line is cut."""
        rest = b""
        while data := self._read(BLOCK):
            self.bytes += len(data)
            head, newline, tail = data.rpartition(b"\n")
            if newline:
                yield rest + head, True
                rest = tail
            else:
                rest += data
                if len(rest) > BLOCK:
                    yield rest, False
                    rest = b""
        if rest:
            yield rest, True
