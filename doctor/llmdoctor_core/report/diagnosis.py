"""The report of a log: first cause, what else it could be, what to do, and what the log tells beside its troubles."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
from rich.console import Console
from rich.padding import Padding

from llmdoctor_core.examine import Examination
from llmdoctor_core.finding import Outcome
from llmdoctor_core.text import localized
from llmdoctor_core.triage import Condition, Diagnosis, findings
from llmdoctor_core.units import gib

from . import View
from .document import FORMAT_VERSION, finding_document, host_document
from .terminal import STYLE, console_for, render_forecast, said

SHOWN = 4
"""Conditions shown in full; further ones are named."""


def document(diagnosis: Diagnosis, examination: Examination | None, view: View) -> str:
    """The diagnosis as JSON: conditions as findings in order, what was read, and the checks' report."""
    found = findings(diagnosis)
    whole = {
        "format_version": FORMAT_VERSION,
        "sources": diagnosis.sources,
        "lines": diagnosis.lines,
        "reached": diagnosis.reached or None,
        "conditions": [
            {**finding_document(finding, view), "confidence": condition.confidence, "also": condition.also,
             "next": condition.next or None}
            for finding, condition in zip(found[len(diagnosis.broken) :], diagnosis.conditions, strict=True)
        ],
        "unexplained": msgspec.to_builtins(diagnosis.unexplained),
        "reading": msgspec.to_builtins(diagnosis.reading),
        "checks": host_document(examination, view) if examination else None,
    }  # fmt: skip
    text = json.dumps(whole, ensure_ascii=False, indent=1, allow_nan=False, default=str)
    return text.encode("utf-8", "replace").decode() + "\n"  # a JSON log may hold half a surrogate pair


def render(diagnosis: Diagnosis, examination: Examination | None, view: View) -> str:
    """The diagnosis as text."""
    out = io.StringIO()
    console = console_for(out, view)
    _first(console, diagnosis)
    for condition in diagnosis.conditions[:SHOWN]:
        _condition(console, condition)
    for condition in diagnosis.conditions[SHOWN:]:
        console.print(said(f"also seen: {condition.code} {condition.name}", style="dim"))
    for line in diagnosis.unexplained:
        console.print()
        console.print(said("not known to any signature", style=STYLE[Outcome.ERROR]))
        console.print(said(f"  {line.source}:{line.number}  {line.text}"))
    _reading(console, diagnosis)
    if examination:
        _checks(console, examination, view)
    return out.getvalue()


def _first(console: Console, diagnosis: Diagnosis) -> None:
    first = diagnosis.first
    reached = f"; the start came as far as: {diagnosis.reached}" if diagnosis.reached else ""
    if first and first.rank == "warning":
        warned = f"{len(diagnosis.conditions)} to be warned of, first {first.code} {first.name}"
        text = f"NO FAILURE SEEN  {warned}{reached}"
        console.print(said(text, style=STYLE[Outcome.WARN]))
    elif first:
        text = f"FIRST CAUSE  {first.code} {first.name} ({first.confidence} confidence){reached}"
        console.print(said(text, style=STYLE[Outcome.FAIL]))
    elif diagnosis.unexplained:
        console.print(
            said(f"CAUSE NOT KNOWN  an exception that no signature knows{reached}", style=STYLE[Outcome.ERROR])
        )
    elif diagnosis.silent:
        what = (
            f"{diagnosis.lines:,} lines, none of them of a server that is known" if diagnosis.lines else "it is empty"
        )
        text = f"NOT A SERVER'S LOG  {what}: give the log from the start of the server on"
        console.print(said(text, style=STYLE[Outcome.ERROR]))
    else:
        console.print(said(f"NO TROUBLE SEEN  in {diagnosis.lines:,} lines{reached}", style=STYLE[Outcome.PASS]))


def _condition(console: Console, condition: Condition) -> None:
    console.print()
    style = STYLE[Outcome.WARN if condition.rank == "warning" else Outcome.FAIL]
    console.print(said(f"{condition.code} ", style=style).append(condition.name, style="bold"))
    console.print(Padding(said(condition.message), (0, 0, 0, 2), expand=False))
    if condition.do:
        console.print(Padding(said(f"do: {condition.do}"), (0, 0, 0, 2), expand=False))
    if condition.next:
        console.print(Padding(said(f"look next: {condition.next}"), (0, 0, 0, 2), expand=False))
    for line in condition.evidence:
        process = f" ({line.process})" if line.process else ""
        console.print(said(f"  {line.source}:{line.number}{process}  {line.text}", style="dim"))
    if condition.count > len(condition.evidence):
        console.print(said(f"  {condition.count} lines say so", style="dim"))
    if condition.also:
        console.print(said(f"  could also be: {', '.join(condition.also)}", style="dim"))
    console.print(said(f"  more: llmdoctor explain {condition.code}", style="dim"))


def _reading(console: Console, diagnosis: Diagnosis) -> None:
    reading = diagnosis.reading
    if reading.runtime is None and not reading.figures:
        return
    console.print()
    console.print(said("read out of the log", style="bold"))
    rows: list[tuple[str, Any]] = [
        ("runtime", " ".join(filter(None, (reading.runtime, reading.version)))),
        ("model", reading.model),
        ("command", " ".join(reading.argv)),
        *reading.facts.items(),
    ]
    rows += [(figure.name.replace("_", " "), _figure(figure.name, figure.value)) for figure in reading.figures]
    for name, value in rows:
        if value:
            console.print(said(f"  {name}: {value}"))


def _figure(name: str, value: float) -> str:
    counted = any(word in name for word in ("tokens", "blocks", "concurrency", "slots", "ctx", "seqs", "layers"))
    return f"{value:,g}" if counted or "seconds" in name else gib(value)


def _checks(console: Console, examination: Examination, view: View) -> None:
    from llmdoctor_core.facts import Forecast

    if isinstance(examination.forecast, Forecast):
        console.print()
        console.print(said("what the forecast says of this launch", style="bold"))
        if examination.forecast.refused:
            console.print(said(f"  would be refused: {examination.forecast.refused.message}"))
        render_forecast(console, examination.forecast)
    found = [f for f in examination.findings if f.outcome in (Outcome.FAIL, Outcome.WARN)]
    if found:
        console.print()
        console.print(said("what the checks say of this launch", style="bold"))
    for finding in found:
        text = localized(finding, view.language, view.packages)
        console.print(said(f"  {finding.outcome.value.upper()} {finding.code} {text}", style=STYLE[finding.outcome]))
