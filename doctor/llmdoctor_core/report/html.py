"""HTML: one file that needs no network: verdict, memory bars, link matrix, findings, the sweep as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources

from llmdoctor_core.examine import Examination
from llmdoctor_core.facts import CacheForecast, DeviceMemory, Estimate, Forecast, Gpus, Links
from llmdoctor_core.finding import Finding, Outcome
from llmdoctor_core.sweep import Point
from llmdoctor_core.text import clean, localized
from llmdoctor_core.units import GIB, gib

from . import View
from .words import PARTS, cache_rows, model_notes, subject, verdict

COLOUR = {
    "weights": "#3b6fb6",
    "activations": "#3aa6a0",
    "graphs": "#a45fb0",
    "other": "#8a8f98",
    "cache": "#4c9f50",
    "headroom": "#e4e7eb",
}
ORDER = (Outcome.ERROR, Outcome.FAIL, Outcome.WARN, Outcome.SKIP)
PLOT_WIDTH, PLOT_HEIGHT, MARGIN = 640, 240, 56


def render(examinations: Sequence[Examination], view: View) -> str:
    """The page. Nothing in it comes from elsewhere: style and plot stand inside."""
    style = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    title = verdict(examinations[0])[0] if len(examinations) == 1 else f"{len(examinations)} examinations"
    body = "\n".join(part for examination in examinations for part in _body(examination, view) if part)
    return (
        f'<!doctype html>\n<html lang="{view.language}">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>llmdoctor: {_text(title)}</title><style>{style}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _body(examination: Examination, view: View) -> list[str]:
    heading, outcome = verdict(examination)
    name = f"<p>{_text(examination.name)}</p>" if examination.name else ""
    return [
        f'<header class="{outcome.value}"><h1>{_text(heading)}</h1>{name}<p>{_text(subject(examination))}</p></header>',
        *_forecast(examination),
        _links(examination),
        _plot(examination.sweep),
        '<section class="findings"><h2>Findings</h2>',
        *(_finding(f, view) for o in ORDER for f in examination.findings if f.outcome is o),
        "</section>",
        f"<footer>{_summary(examination)}</footer>",
    ]


def _text(text: str) -> str:
    return escape(clean(text))


def _forecast(examination: Examination) -> list[str]:
    forecast = examination.forecast
    if not isinstance(forecast, Forecast):
        return [f'<section id="forecast"><p>No forecast: {_text(forecast.reason)}</p></section>']
    parts = ['<section id="forecast"><h2>Memory and cache</h2>']
    parts += [_memory(device) for device in forecast.memory if device.total]
    if forecast.cache:
        parts.append(_cache(forecast.cache))
    notes = (*forecast.notes, *model_notes(examination))
    parts += [f'<p class="note">{_text(note)}</p>' for note in notes]
    return [*parts, "</section>"]


def _memory(device: DeviceMemory) -> str:
    total = device.total or 1
    bars, legend = [], []
    for name, label, _ in PARTS:
        value = getattr(device, name)
        if value is None:
            continue
        share = max(0.0, min(100.0, 100 * value / total))
        bars.append(f'<span style="width:{share:.2f}%;background:{COLOUR[name]}" title="{label} {gib(value)}"></span>')
        legend.append(
            f"<tr><td><i style='background:{COLOUR[name]}'></i>{label}</td>{_amount(device, name, value)}</tr>"
        )
    return (
        f"<h3>Device {device.device} {_text(device.name)}, {gib(total)}</h3>"
        f'<div class="bar">{"".join(bars)}</div><table class="legend">{"".join(legend)}</table>'
    )


def _amount(device: DeviceMemory, name: str, value: int) -> str:
    certainty = device.certainty.get(name)
    if isinstance(certainty, Estimate):
        bounds = f"estimate, {gib(certainty.low)} to {gib(certainty.high)}: {_text(certainty.why)}"
        return f"<td>{gib(value)}</td><td>{bounds}</td>"
    return f"<td>{gib(value)}</td><td>{certainty or ''}</td>"


def _cache(cache: CacheForecast) -> str:
    rows = "".join(f"<tr><td>{_text(label)}</td><td>{_text(value)}</td></tr>" for label, value in cache_rows(cache))
    lines = "".join(f"<code>{_text(line)}</code>" for line in cache.lines)
    return f'<table class="cache">{rows}</table>' + (f"<p>The server will print:</p>{lines}" if lines else "")


def _links(examination: Examination) -> str:
    links, gpus = examination.case.links, examination.case.gpus
    if not (isinstance(links, Links) and isinstance(gpus, Gpus) and len(gpus.devices) > 1):
        return ""
    head = "".join(f"<th>GPU{gpu.index}</th>" for gpu in gpus.devices)
    rows = []
    for row in gpus.devices:
        cells = []
        for column in gpus.devices:
            link = links.between(row.index, column.index)
            label = "X" if row.index == column.index else link.label if link else "?"
            cells.append(f'<td class="{_text(label.rstrip("0123456789"))}">{_text(label)}</td>')
        rows.append(f"<tr><th>GPU{row.index}</th>{''.join(cells)}</tr>")
    table = f'<table class="matrix"><tr><th></th>{head}</tr>{"".join(rows)}</table>'
    return f'<section id="links"><h2>Links</h2>{table}</section>'


def _plot(points: tuple[Point, ...]) -> str:
    """What one request reserves over the first swept setting, as an SVG line for each value of the others."""
    if not points:
        return ""
    name, *others = points[0].settings
    series: dict[tuple[int, ...], list[Point]] = {}
    for point in points:
        series.setdefault(tuple(point.settings[other] for other in others), []).append(point)
    largest = max((point.request_bytes or 0 for point in points), default=0) or 1
    values = sorted({point.settings[name] for point in points})
    step = (PLOT_WIDTH - 2 * MARGIN) / max(1, len(values) - 1)

    def place(point: Point) -> str:
        x = MARGIN + step * values.index(point.settings[name])
        y = PLOT_HEIGHT - MARGIN / 2 - (PLOT_HEIGHT - MARGIN) * (point.request_bytes or 0) / largest
        return f"{x:.1f},{y:.1f}"

    lines = []
    for index, (key, line) in enumerate(series.items()):
        colour = list(COLOUR.values())[index % 5]
        drawn = " ".join(place(point) for point in line if point.request_bytes is not None)
        label = ", ".join(f"{other}={value:,}" for other, value in zip(others, key, strict=True))
        shape = f'points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"'
        lines.append(f"<polyline {shape}><title>{label}</title></polyline>")
        if label:
            lines.append(f'<text x="{MARGIN + 6}" y="{18 + 14 * index}" fill="{colour}">{label}</text>')
    ticks = "".join(
        f'<text x="{MARGIN + step * index:.1f}" y="{PLOT_HEIGHT - 4}" text-anchor="middle">{value:,}</text>'
        for index, value in enumerate(values)
    )
    return (
        f'<section id="sweep"><h2>One request over {_text(name)}</h2>'
        f'<svg viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" role="img">{"".join(lines)}{ticks}'
        f'<text x="4" y="{MARGIN / 2 + 4:.0f}">{largest / GIB:,.2f} GiB</text></svg></section>'
    )


def _finding(finding: Finding, view: View) -> str:
    parts = [
        f"<h3><b>{finding.outcome.value.upper()}</b> {finding.code} {finding.name}</h3>",
        f"<p>{_text(localized(finding, view.language, view.packages))}</p>",
    ]
    if finding.where:
        parts.append(f'<p class="where">{_text(str(finding.where))}</p>')
    if finding.evidence:
        items = (f"<li>{_text(f'{e.fact} {e.value}')} <small>{_text(e.source)}</small></li>" for e in finding.evidence)
        parts.append(f"<ul>{''.join(items)}</ul>")
    if finding.suppressed:
        parts.append(f"<p>ignored: {_text(finding.suppressed)}</p>")
    return f'<article class="{finding.outcome.value}">{"".join(parts)}</article>'


def _summary(examination: Examination) -> str:
    counts = examination.summary()
    return _text(
        " · ".join(f"{name} {count}" for name, count in counts.items()) + f" · exit code {examination.exit_code}"
    )
