"""The terminal: verdict first, memory as a bar per device, the link matrix, then what is wrong and how to end it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llmdoctor_core.examine import Examination
from llmdoctor_core.facts import (
    CacheForecast,
    DeviceMemory,
    Estimate,
    Forecast,
    Gpus,
    Links,
    Unavailable,
)
from llmdoctor_core.finding import Finding, Outcome
from llmdoctor_core.text import clean, localized
from llmdoctor_core.units import gib

from . import View
from .words import PARTS, cache_rows, model_notes, subject, verdict

STYLE = {
    Outcome.FAIL: "bold red",
    Outcome.WARN: "yellow",
    Outcome.ERROR: "bold magenta",
    Outcome.SKIP: "dim",
    Outcome.PASS: "green",
}
BAR_CELLS = 48
IN_FULL = 4
"""Up to so many examinations are shown in full; of more, the verdicts."""


def render(examinations: Sequence[Examination], view: View) -> str:
    """The report as text; plain, unwrapped lines where ``view.width`` is None."""
    out = io.StringIO()
    console = console_for(out, view)
    for examination in examinations:
        if len(examinations) > 1:
            console.print(said(f"== {examination.name}", style="bold"))
        if len(examinations) <= IN_FULL:
            _in_full(console, examination, view)
        else:
            text, outcome = verdict(examination)
            console.print(said(text, style=STYLE[outcome]))
    return out.getvalue()


def console_for(out: io.StringIO, view: View) -> Console:
    """The one way a console is made: what comes from outside is text, never markup."""
    return Console(
        file=out,
        width=view.width or 100_000,
        force_terminal=view.colour,
        color_system="standard" if view.colour else None,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=view.width is None,
        legacy_windows=False,
    )


def _in_full(console: Console, examination: Examination, view: View) -> None:
    _verdict(console, examination)
    for line in examination.told:
        console.print(said(line))
    _forecast(console, examination.forecast)
    for note in model_notes(examination):
        console.print(said(f"  note: {note}", style="dim"))
    _links(console, examination)
    for finding in _shown(examination, view):
        _finding(console, finding, view)
    _summary(console, examination)


def _verdict(console: Console, examination: Examination) -> None:
    if line := subject(examination):
        console.print(said(line, style="bold"))
    text, outcome = verdict(examination)
    console.print(said(text, style=STYLE[outcome]))


def _forecast(console: Console, forecast: Forecast | Unavailable) -> None:
    if isinstance(forecast, Unavailable):
        console.print(said(f"no forecast: {forecast.reason}", style="dim"))
        return
    render_forecast(console, forecast)


def said(text: str, style: str = "") -> Text:
    """Text for the terminal: nothing that it quotes can steer it."""
    return Text(clean(text), style=style)


def render_forecast(console: Console, forecast: Forecast) -> None:
    """Memory and cache of one forecast."""
    for device in forecast.memory:
        _memory(console, device)
    if forecast.cache:
        _cache(console, forecast.cache)
    for surprise in forecast.host:
        words = f"host memory, in no start-up line: {surprise.name} up to {gib(surprise.bytes)} ({surprise.why})"
        console.print(said(f"  {words}"))
    for note in forecast.notes:
        console.print(said(f"  note: {note}", style="dim"))


def _memory(console: Console, device: DeviceMemory) -> None:
    console.print()
    total = device.total
    heading = f"device {device.device} {device.name}".rstrip()
    budget = f", budget {gib(device.budget)}" if device.budget is not None else ""
    console.print(said(f"{heading}  {gib(total) if total else 'memory unknown'}{budget}", style="bold"))
    if total:
        console.print(Text("  ").append_text(_bar(device, total)))
    for name, label, colour in PARTS:
        value = getattr(device, name)
        if value is None:
            continue
        line = Text("  ■ ", style=colour).append(f"{label:<12}{gib(value):>12}", style="default")
        certainty = device.certainty.get(name)
        if isinstance(certainty, Estimate):
            line.append(
                f"  estimate {gib(certainty.low)} to {gib(certainty.high)}: {clean(certainty.why)}", style="dim"
            )
        console.print(line)


def _bar(device: DeviceMemory, total: int) -> Text:
    bar = Text("[")
    drawn = 0
    for name, _, colour in PARTS:
        size = max(getattr(device, name) or 0, 0)
        cells = min(round(BAR_CELLS * size / total), BAR_CELLS - drawn)
        drawn += cells
        bar.append(("·" if name == "headroom" else "█") * cells, style=colour)
    return bar.append("·" * (BAR_CELLS - drawn)).append("]")


def _cache(console: Console, cache: CacheForecast) -> None:
    console.print()
    rows = cache_rows(cache)
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        console.print(said(f"  {label:<{width}}  {value}"))
    prints = "will print" if cache.certainty == "exact" else "will print, about"
    for line in cache.lines:
        console.print(said(f"  {prints}: {line}", style="dim"))


def _links(console: Console, examination: Examination) -> None:
    links, gpus = examination.case.links, examination.case.gpus
    if isinstance(links, Links) and isinstance(gpus, Gpus) and len(gpus.devices) > 1:
        console.print()
        console.print(matrix(links, gpus))


def matrix(links: Links, gpus: Gpus) -> Table:
    """The link matrix as ``nvidia-smi topo -m`` draws it."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for gpu in gpus.devices:
        table.add_column(f"GPU{gpu.index}", justify="right")
    for row in gpus.devices:
        cells = []
        for column in gpus.devices:
            link = links.between(row.index, column.index)
            cells.append("X" if row.index == column.index else link.label if link else "?")
        table.add_row(f"GPU{row.index}", *cells)
    return table


def _shown(examination: Examination, view: View) -> list[Finding]:
    """Worst first; skips only when asked for."""
    order = [Outcome.ERROR, Outcome.FAIL, Outcome.WARN] + ([Outcome.SKIP] if view.verbosity > 0 else [])
    return [finding for outcome in order for finding in examination.findings if finding.outcome is outcome]


def _finding(console: Console, finding: Finding, view: View) -> None:
    console.print()
    heading = said(f"{finding.outcome.value.upper()} ", style=STYLE[finding.outcome])
    console.print(heading.append(f"{finding.code} {finding.name}", style="bold"))
    console.print(Padding(said(localized(finding, view.language, view.packages)), (0, 0, 0, 2), expand=False))
    if finding.where:
        console.print(said(f"  where: {finding.where}"))
    for item in finding.evidence:
        console.print(said(f"  evidence: {item.fact} {item.value} ({item.source})", style="dim"))
    if finding.suppressed:
        console.print(said(f"  ignored: {finding.suppressed}", style="dim"))
    if finding.outcome in (Outcome.FAIL, Outcome.WARN):
        fix = f"llmdoctor fix shows the plan ({finding.remedy}); " if finding.remedy else ""
        console.print(said(f"  {fix}more: llmdoctor explain {finding.code}", style="dim"))


def _summary(console: Console, examination: Examination) -> None:
    counts = examination.summary()
    console.print()
    line = " · ".join(f"{name} {counts[name]}" for name in ("pass", "warn", "fail", "skip", "error"))
    suppressed = f" · ignored {counts['suppressed']}" if counts["suppressed"] else ""
    console.print(said(f"{line}{suppressed} · exit code {examination.exit_code}", style="bold"))
