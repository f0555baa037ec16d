"""Finds the first cause among what a log shows: causes before symptoms before wrappers, the earliest first."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from .anchors import Index, words_of
from .diagnosis import Condition, LogLine, placeholders
from .lines import Line, messages
from .reading import Reader
from .signatures import CONFIDENCES, RANKS, About, Milestone, Rank, Signature, Symptoms

EVIDENCE = 5
"""Lines that a condition shows as evidence."""
EXCEPTIONS = 6
LOOKED_AT = 4096
"""Characters of a message in which a signature is looked for; longer lines are data, not messages."""
AT_END = 40
"""How near the end of the log a line must be to tell where it stopped."""
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout)\b(?::|$)")
_QUIET = ("INFO", "WARNING", "DEBUG")


class Hit(Struct, frozen=True):
    """A signature that matched a line."""

    signature: Signature
    rank: Rank
    line: LogLine
    params: dict[str, str]
    quiet: bool
    order: int
    """Number of the line over all sources."""


class Watch:
    """The compiled patterns, found by the words that announce them."""

    def __init__(self, symptoms: Symptoms) -> None:
        self.symptoms = symptoms
        self._signatures = Index(signature.pattern for signature in symptoms.signatures)
        self._milestones = Index(milestone.pattern for milestone in symptoms.milestones)
        self._compiled: dict[str, re.Pattern[str]] = {}

    @property
    def indexes(self) -> tuple[Index, ...]:
        """What finds the lines that matter here."""
        return self._signatures, self._milestones, Reader.index()

    def signatures(self, text: str, words: frozenset[bytes]) -> Iterable[tuple[Signature, dict[str, str]]]:
        """The signatures that match a message of these words, with the parameters they take from it."""
        for number in self._signatures.numbers(words):
            signature = self.symptoms.signatures[number]
            if match := self._pattern(signature.pattern).search(text, 0, LOOKED_AT):
                yield signature, {name: value for name, value in match.groupdict().items() if value}

    def milestones(self, text: str, words: frozenset[bytes]) -> Iterable[Milestone]:
        """The milestones of a start that a message of these words reports."""
        for number in self._milestones.numbers(words):
            if self._pattern(self.symptoms.milestones[number].pattern).search(text, 0, LOOKED_AT):
                yield self.symptoms.milestones[number]

    def _pattern(self, pattern: str) -> re.Pattern[str]:
        if pattern not in self._compiled:
            self._compiled[pattern] = re.compile(pattern)
        return self._compiled[pattern]


class Judge:
    """Takes the lines of the logs in turn and gives the conditions in the end."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.reading = Reader()
        self._hits: list[Hit] = []
        self._passed: dict[str, int] = {}
        self._served = 0
        """Line at which a start last had its memory and its model, whatever went wrong before."""
        self._exceptions: list[tuple[LogLine, bool]] = []
        self._open_tracebacks: set[str] = set()
        self._offset = 0
        self._counts: dict[tuple[str, str], int] = {}

    @property
    def indexes(self) -> tuple[Index, ...]:
        """What finds the lines that matter here."""
        return self._watch.indexes

    def source_ends(self, lines: int) -> None:
        """The next lines come from another source."""
        self._offset += lines
        self._open_tracebacks.clear()

    def take(self, source: str, number: int, raw: str) -> None:
        """One line of a log."""
        for line in messages(raw):
            self._take(source, number, line)

    def _take(self, source: str, number: int, line: Line) -> None:
        place = LogLine(source=source, number=number, text=line.text.strip()[:600], process=line.tag)
        order = self._offset + number
        words = frozenset(words_of(line.text.encode("utf-8", "replace")))
        self.reading.take(line.text, words, f"{source}:{number}")
        for milestone in self._watch.milestones(line.text, words):
            if milestone.begins:
                self._passed.clear()
            self._passed[milestone.name] = order
            if milestone.outlives:
                self._served = order
        explained = False
        for signature, params in self._watch.signatures(line.text, words):
            explained = True
            if (signature.after and signature.after not in self._passed) or signature.before in self._passed:
                continue
            key = (signature.code, signature.pattern)
            self._counts[key] = self._counts.get(key, 0) + 1
            if self._counts[key] <= EVIDENCE * 4:
                self._hits.append(Hit(signature, signature.rank, place, params, line.level in _QUIET, order))
        self._follow_traceback(line, place, explained)

    def _follow_traceback(self, line: Line, place: LogLine, explained: bool) -> None:
        if "Traceback (most recent call last)" in line.text:
            self._open_tracebacks.add(line.tag)
        elif line.tag in self._open_tracebacks and _EXCEPTION.match(line.text):
            self._open_tracebacks.discard(line.tag)
            if len(self._exceptions) < 50:
                self._exceptions.append((place, explained))

    def reached(self) -> str:
        """The last milestone passed."""
        return max(self._passed, key=lambda name: self._passed[name], default="")

    def unexplained(self) -> tuple[LogLine, ...]:
        """The first exceptions that no signature knows, each text once."""
        first: dict[str, LogLine] = {}
        for place, explained in self._exceptions:
            if not explained:
                first.setdefault(place.text, place)
        return tuple(first.values())[:EXCEPTIONS]

    def conditions(self) -> tuple[Condition, ...]:
        """The conditions, the likeliest first cause first."""
        codes = {hit.signature.code for hit in self._hits if not hit.signature.at_end}
        live = [outlived for hit in self._hits if self._stands(hit, codes) and (outlived := self._outlived(hit))]
        grouped: dict[str, list[Hit]] = {}
        for hit in sorted(live, key=_claim):
            grouped.setdefault(hit.signature.code, []).append(hit)
        conditions = tuple(self._condition(hits) for hits in grouped.values())
        told = any(condition.rank in ("cause", "symptom") for condition in conditions)
        # what says only that something failed elsewhere is noise once it is told what
        return tuple(condition for condition in conditions if condition.rank != "wrapper" or not told)

    def _outlived(self, hit: Hit) -> Hit | None:
        """The hit, as a warning where the server came up all the same afterwards; None where that makes it nothing."""
        if hit.order > self._served:
            return hit
        if hit.rank in ("cause", "warning"):
            return Hit(hit.signature, "warning", hit.line, hit.params, hit.quiet, hit.order)
        return None

    def _stands(self, hit: Hit, codes: set[str]) -> bool:
        signature = hit.signature
        if signature.at_end and (
            hit.order < max(self._offset - AT_END, *self._passed.values(), 0) or self._anything_worse()
        ):
            return False
        if signature.needs and not codes.intersection(signature.needs):
            return False
        return not any(
            other.signature.code in signature.unless and other.signature is not signature for other in self._hits
        )

    def _anything_worse(self) -> bool:
        return any(hit.signature.rank in ("cause", "symptom") and not hit.signature.at_end for hit in self._hits)

    def _condition(self, hits: list[Hit]) -> Condition:
        best = hits[0].signature
        about = self._watch.symptoms.about.get(best.code, About(says="{code} was recognised in the log"))
        evidence: dict[str, LogLine] = {}
        for hit in sorted(hits, key=lambda hit: (-RANKS.index(hit.rank), hit.order)):
            evidence.setdefault(hit.line.text, hit.line)
        params = {"code": best.code}
        for hit in hits:
            params = hit.params | params
        says = best.says if best.says and params.keys() >= set(placeholders(best.says)) else about.says
        do = best.do if best.do and params.keys() >= set(placeholders(best.do)) else about.do
        return Condition(
            code=best.code,
            name=self._watch.symptoms.names.get(best.code, best.code.lower()),
            rank=hits[0].rank,
            confidence=best.confidence,
            says=says,
            params=params,
            do=do.format_map(params) if placeholders(do) else do,
            next=best.next or about.next,
            also=tuple(code for code in (best.also or about.also) if code != best.code),
            evidence=tuple(evidence.values())[:EVIDENCE],
            count=sum(self._counts[best.code, pattern] for pattern in {hit.signature.pattern for hit in hits}),
        )


def _claim(hit: Hit) -> tuple[int, bool, int, int]:
    """Sorts by the claim to be the first cause: rank, then loud before quiet lines, then confidence, then earliest."""
    signature = hit.signature
    return (
        -RANKS.index(hit.rank),
        hit.quiet,
        -CONFIDENCES.index(signature.confidence),
        hit.order,
    )
