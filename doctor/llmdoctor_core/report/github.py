"""GitHub Actions: annotations as workflow commands, and the step summary where GitHub asks for one."""

from __future__ import annotations

from collections.abc import Sequence

from llmdoctor_core.examine import Examination
from llmdoctor_core.finding import Finding, Outcome
from llmdoctor_core.text import clean, localized

from . import View

SHOWN = 10
"""Annotations of one level that GitHub shows a step; the rest would be dropped silently."""


def render(examinations: Sequence[Examination], view: View) -> str:
    """``::error`` and ``::warning`` lines, worst first, the last of a level naming how many more there are."""
    lines = []
    for outcome, level in ((Outcome.ERROR, "error"), (Outcome.FAIL, "error"), (Outcome.WARN, "warning")):
        findings = [f for e in examinations for f in e.findings if f.outcome is outcome and not f.suppressed]
        lines += _level(findings, level, view)
    for examination in examinations:
        counts = examination.summary()
        words = ", ".join(f"{counts[name]} {name}" for name in ("pass", "warn", "fail", "skip", "error"))
        lines.append(f"{clean(examination.name)} {words}".strip())
    return "\n".join(lines) + "\n"


def _level(findings: list[Finding], level: str, view: View) -> list[str]:
    lines = [_annotation(finding, level, view) for finding in findings[:SHOWN]]
    if (left := len(findings) - SHOWN) > 0:
        lines[-1] += f" (and {left} more: see the step summary)"
    return lines


def _annotation(finding: Finding, level: str, view: View) -> str:
    properties = {"title": f"{finding.code} {finding.name}"}
    if finding.where and finding.where.kind == "file":
        properties = {"file": finding.where.name, "line": str(finding.where.line or 1)} | properties
    written = ",".join(f"{name}={_escaped(value, property_value=True)}" for name, value in properties.items())
    return f"::{level} {written}::{_escaped(localized(finding, view.language, view.packages))}"


def _escaped(text: str, *, property_value: bool = False) -> str:
    text = clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_value else text
