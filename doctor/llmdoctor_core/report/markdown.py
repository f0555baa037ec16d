"""Markdown: for a pull request, an issue or GitHub's step summary."""

from __future__ import annotations

from collections.abc import Sequence

from llmdoctor_core.examine import Examination
from llmdoctor_core.facts import CacheForecast, DeviceMemory, Estimate, Forecast
from llmdoctor_core.finding import Finding, Outcome
from llmdoctor_core.text import clean, localized
from llmdoctor_core.units import gib

from . import View
from .words import PARTS, cache_rows, subject, verdict

ORDER = (Outcome.ERROR, Outcome.FAIL, Outcome.WARN)


def render(examinations: Sequence[Examination], view: View) -> str:
    """Verdict, memory and cache as tables, then each finding under its code; for one examination after the other."""
    return "\n".join(_one(examination, view) for examination in examinations)


def _one(examination: Examination, view: View) -> str:
    lines = [
        *([f"# {_escaped(examination.name)}", ""] if examination.name else []),
        f"## {_escaped(verdict(examination)[0])}",
        "",
        _escaped(subject(examination)),
        "",
    ]
    if isinstance(examination.forecast, Forecast):
        lines += _forecast(examination.forecast)
    for outcome in ORDER:
        for finding in examination.findings:
            if finding.outcome is outcome:
                lines += _finding(finding, view)
    counts = examination.summary()
    lines.append(" · ".join(f"{name} {counts[name]}" for name in counts) + f" · exit code {examination.exit_code}")
    return "\n".join(lines) + "\n"


def _forecast(forecast: Forecast) -> list[str]:
    lines = []
    if any(device.total for device in forecast.memory):
        labels = [label for _, label, _ in PARTS]
        lines += ["| device | total | " + " | ".join(labels) + " |", "|---|---:|" + "---:|" * len(labels)]
        lines += [_memory(device) for device in forecast.memory]
        lines.append("")
    if forecast.cache:
        lines += _cache(forecast.cache)
    return lines


def _memory(device: DeviceMemory) -> str:
    cells = [f"{device.device} {_escaped(device.name)}", gib(device.total) if device.total else "unknown"]
    for name, _, _ in PARTS:
        value = getattr(device, name)
        certainty = device.certainty.get(name)
        bounds = f" ({gib(certainty.low)} to {gib(certainty.high)})" if isinstance(certainty, Estimate) else ""
        cells.append("" if value is None else gib(value) + bounds)
    return "| " + " | ".join(cells) + " |"


def _cache(cache: CacheForecast) -> list[str]:
    rows = [f"| {_escaped(label.strip())} | {_escaped(value)} |" for label, value in cache_rows(cache)]
    return ["| cache | |", "|---|---|", *rows, ""]


def _finding(finding: Finding, view: View) -> list[str]:
    lines = [
        f"### {finding.outcome.value.upper()} `{finding.code}` {finding.name}",
        "",
        _escaped(localized(finding, view.language, view.packages)),
        "",
    ]
    if finding.where:
        lines.append(f"- where: `{clean(str(finding.where))}`")
    lines += [f"- evidence: {_escaped(f'{e.fact} {e.value} ({e.source})')}" for e in finding.evidence]
    if finding.suppressed:
        lines.append(f"- ignored: {_escaped(finding.suppressed)}")
    return [*lines, f"- more: `llmdoctor explain {finding.code}`", ""]


def _escaped(text: str) -> str:
    text = clean(text).replace("\\", "\\\\").replace("\n", " ")
    for character in "|<>`*_[]":
        text = text.replace(character, "\\" + character)
    return text
