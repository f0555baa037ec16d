"""What a log told: conditions in the order of their claim to be the first cause, and what was read out of it."""

from __future__ import annotations

from string import Formatter

from msgspec import Struct

from llmdoctor_core.finding import Evidence, Finding, Outcome

from .reading import Reading
from .signatures import Confidence, Rank


class LogLine(Struct, frozen=True, kw_only=True):
    """One line as evidence: where it stands, who wrote it, and its message without carriers."""

    source: str
    number: int
    text: str
    process: str = ""


class Condition(Struct, frozen=True, kw_only=True):
    """A condition that the log shows, under the code that a check before the start has too."""

    code: str
    name: str
    rank: Rank
    confidence: Confidence
    says: str
    """One English sentence with ``{parameters}``."""
    params: dict[str, str] = {}
    """The values that the sentence names, and others that the lines told."""
    do: str = ""
    next: str = ""
    also: tuple[str, ...] = ()
    evidence: tuple[LogLine, ...] = ()
    count: int = 1
    """How many lines showed it, over all ranks and repetitions."""

    @property
    def message(self) -> str:
        """The sentence with its parameters filled in."""
        return self.says.format_map(self.params) if self.params else self.says


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The outcome of ``triage``."""

    sources: tuple[str, ...]
    lines: int
    bytes: int
    conditions: tuple[Condition, ...]
    """The first is the most likely first cause."""
    unexplained: tuple[LogLine, ...] = ()
    """First exceptions that no signature knows."""
    reached: str = ""
    """The last milestone of a start that the log passed."""
    reading: Reading = Reading()
    tail: tuple[str, ...] = ()
    broken: tuple[Finding, ...] = ()
    """ERROR findings for symptom files that did not load."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """Codes in the order of their likelihood: those shown, then what the first could be as well."""
        also = self.conditions[0].also if self.conditions else ()
        return tuple(dict.fromkeys([*(condition.code for condition in self.conditions), *also]))

    @property
    def first(self) -> Condition | None:
        return self.conditions[0] if self.conditions else None

    @property
    def silent(self) -> bool:
        """Whether nothing in it is of a server that is known: such a log tells neither health nor trouble."""
        told = self.conditions or self.unexplained or self.reached or self.reading.runtime or self.reading.figures
        return not told


def placeholders(sentence: str) -> tuple[str, ...]:
    """The parameters that a sentence names."""
    return tuple(name for _, name, _, _ in Formatter().parse(sentence) if name)


def findings(diagnosis: Diagnosis, remedies: dict[str, str | None] | None = None) -> tuple[Finding, ...]:
    """The conditions as findings, in the same order. ``remedies`` gives the remedy of a code (its check's)."""
    remedies = remedies or {}
    found = []
    for condition in diagnosis.conditions:
        named = set(placeholders(condition.says))
        advice = condition.do.replace("{", "{{").replace("}", "}}") if named else condition.do
        found.append(
            Finding(
                outcome=Outcome.WARN if condition.rank == "warning" else Outcome.FAIL,
                code=condition.code,
                name=condition.name,
                message_id=condition.says + (f". {advice}" if advice else ""),
                params={name: condition.params[name] for name in named},
                evidence=tuple(
                    Evidence(fact=line.process or "log", value=line.text, source=f"{line.source}:{line.number}")
                    for line in condition.evidence
                ),
                remedy=remedies.get(condition.code),
            )
        )
    return (*diagnosis.broken, *found)
