"""Confirms a forecast with a short real load: predicted beside measured, the findings, and what this host learnt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from llmdoctor_core.case import Case
from llmdoctor_core.derive import Facts
from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import (
    CalibrationEntry,
    Forecast,
    Gpus,
    Launch,
    LaunchRequest,
    Measured,
    Model,
    ModelSource,
    System,
    Unavailable,
)
from llmdoctor_core.finding import Finding, Outcome
from llmdoctor_core.triage import findings as triage_findings

from . import calibration
from .command import value_of
from .compare import Row, circumstances, compare, shown
from .figures import settled
from .findings import findings as load_findings
from .hollow import Part, remote_parts
from .run import Event, Plan, load


class Confirmation(Struct, frozen=True, kw_only=True):
    """What a load came to. ``case`` holds the measured fact; ``log`` is the server's output as kept."""

    case: Case
    measured: Measured
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    log: str
    learnt: CalibrationEntry | None = None


def confirm(
    case: Case,
    argv: tuple[str, ...],
    environment: Mapping[str, str],
    plan: Plan,
    *,
    tell: Callable[[Event], None] = lambda _event: None,
    store: Path | None = None,
    learn: bool = True,
) -> Confirmation:
    """Start the launch of the case for real and hold it against its forecast.

    ``argv`` is the command with its words, ``environment`` the server's own, whole (``command.whole_environment``).
    ``store`` is the file of this host's measurements, by default the one in the state directory. Raises InputError
    where the command cannot be started.
    """
    facts = Facts(case)
    request = facts.get(LaunchRequest)
    if isinstance(request, Unavailable):
        raise InputError(f"nothing to load: {request.reason}")
    loaded = load(
        request.runtime,
        argv,
        environment,
        plan,
        tell=tell,
        gpu_memory=lambda: gpu_memory(environment),
        remote_model=_remote(case, argv, environment),
    )
    measured, launch, forecast = loaded.measured, facts.get(Launch), facts.get(Forecast)
    rows: tuple[Row, ...] = ()
    if isinstance(forecast, Forecast):
        figures = settled(measured.figures, forecast)
        rows = compare(forecast, figures, circumstances(measured, forecast, launch, facts.get(Gpus)))
    found = load_findings(measured, rows, facts.get(System), loaded.log)
    if measured.ending in ("died", "timed out", "refused"):
        known = {finding.code for finding in found}
        found += tuple(finding for finding in triage_findings(loaded.diagnosis) if finding.code not in known)
    learnt = _learn(facts, measured, store) if learn else None
    return Confirmation(
        case=replace(case, measured=measured),
        measured=measured,
        rows=rows,
        findings=tuple(sorted(found, key=_gravity)),
        log=loaded.log,
        learnt=learnt,
    )


def _gravity(finding: Finding) -> tuple[int, bool]:
    """Errors and failures first, and of those the condition before the bare fact that the server died."""
    order = [Outcome.ERROR, Outcome.FAIL, Outcome.WARN, Outcome.SKIP, Outcome.PASS]
    return order.index(finding.outcome), finding.code.startswith("LOAD")


def _learn(facts: Facts, measured: Measured, store: Path | None) -> CalibrationEntry | None:
    launch, model, forecast = facts.get(Launch), facts.get(Model), facts.get(Forecast)
    if isinstance(launch, Unavailable) or isinstance(model, Unavailable) or isinstance(forecast, Unavailable):
        return None
    entry = calibration.entry_of(measured, launch, model, facts.optional(Gpus), forecast)
    if entry is not None:
        calibration.add(entry, store)
    return entry


def gpu_memory(environment: Mapping[str, str]) -> dict[str, int]:
    """Bytes in use by GPU (its UUID, else its index), through the same NVML probe as the facts; empty without one."""
    from llmdoctor_core.observe import facts_from
    from llmdoctor_core.probes.host import Host
    from llmdoctor_core.probes.nvml import probe

    gpus = facts_from(probe(Host(environ=environment), 10.0)).get("gpus")
    if not isinstance(gpus, Gpus):
        return {}
    return {gpu.uuid or str(gpu.index): gpu.memory_used for gpu in gpus.devices if gpu.memory_used is not None}


def _remote(case: Case, argv: tuple[str, ...], environment: Mapping[str, str]) -> Callable[[], list[Part]] | None:
    """The headers of a model that llama-server would download: from its URL, or from where the case found it."""
    url = value_of(argv, ("-mu", "--model-url")) or environment.get("LLAMA_ARG_MODEL_URL")
    source = case.model
    if not url and isinstance(source, ModelSource) and source.where.startswith(("http://", "https://")):
        url = source.where
    if not url:
        return None
    token = environment.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token and "huggingface.co/" in url else {}
    return lambda: remote_parts(url, headers)


def rows_text(rows: tuple[Row, ...]) -> list[str]:
    """Predicted beside measured, one line a figure, for a terminal or a log."""
    lines = []
    for row in rows:
        name = row.name.replace("_", " ") + (f" of {row.device}" if row.device is not None else "")
        expected = shown(row, row.predicted)
        if not row.exact and row.predicted is not None:
            expected = f"{shown(row, row.low)} to {shown(row, row.high)}"
        lines.append(f"{name:<28} predicted {expected:>26}   measured {shown(row, row.measured):>14}   {row.verdict}")
        lines += [f"{'':<28} {reason}" for reason in row.reasons]
    return lines


def phases_text(measured: Measured) -> list[str]:
    """The phases with their seconds, one line each."""
    return [
        f"{phase.name:<16} {phase.seconds:8.1f} s" + ("" if phase.complete else "   not finished")
        for phase in measured.phases
    ]


def document(confirmation: Confirmation) -> dict[str, Any]:
    """The load as a document: the ``load`` part of a JSON report."""
    return {
        "measured": msgspec.to_builtins(confirmation.measured),
        "rows": msgspec.to_builtins(confirmation.rows),
        "learnt": msgspec.to_builtins(confirmation.learnt),
    }
