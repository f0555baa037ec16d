"""The report as a document: what ``--format json`` prints and what other formats are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from llmdoctor_core import __version__
from llmdoctor_core.examine import Examination, RemedyShown, worst
from llmdoctor_core.facts import Forecast, Launch, Unavailable
from llmdoctor_core.finding import Finding
from llmdoctor_core.text import clean, localized

from . import View

FORMAT_VERSION = "1.0"


def document(examinations: Sequence[Examination], view: View) -> dict[str, Any]:
    """The report's contract, additive within a major ``format_version``. Several hosts stand under ``hosts``."""
    if len(examinations) == 1:
        return host_document(examinations[0], view)
    return {
        "format_version": FORMAT_VERSION,
        "tool": {"name": "llmdoctor", "version": __version__},
        "exit_code": worst(examination.exit_code for examination in examinations),
        "hosts": [{"host": examination.name, **host_document(examination, view)} for examination in examinations],
    }


def host_document(examination: Examination, view: View) -> dict[str, Any]:
    """One examination as a document."""
    launch = examination.launch
    return {
        "format_version": FORMAT_VERSION,
        "tool": {"name": "llmdoctor", "version": __version__},
        "runtime": runtime(launch),
        "summary": examination.summary(),
        "exit_code": examination.exit_code,
        "findings": [
            finding_document(finding, view, examination.remedies.get(finding.code)) for finding in examination.findings
        ],
        "forecast": msgspec.to_builtins(examination.forecast)
        if isinstance(examination.forecast, Forecast)
        else {"unavailable": examination.forecast.reason},
    }


def runtime(launch: Launch | Unavailable) -> dict[str, Any]:
    if isinstance(launch, Unavailable):
        return {"unavailable": launch.reason}
    return {"name": launch.runtime, "version": launch.version, "assumed": launch.version_assumed}


def finding_document(finding: Finding, view: View, remedy: RemedyShown | None = None) -> dict[str, Any]:
    """One finding; ``message`` is always English, translations stand in ``localized``."""
    translated = localized(finding, "ko", view.packages)
    message = clean(finding.message)
    return {
        "code": finding.code,
        "fingerprint": finding.fingerprint,
        "name": finding.name,
        "outcome": finding.outcome.value,
        "message": message,
        "message_id": finding.message_id,
        "params": {name: _plain(value) for name, value in finding.params.items()},
        "localized": {} if translated == message else {"ko": translated},
        "evidence": [
            {"fact": item.fact, "value": clean(item.value), "source": item.source} for item in finding.evidence
        ],
        "where": msgspec.to_builtins(finding.where) if finding.where else None,
        "remedy": msgspec.to_builtins(remedy) if remedy else {"id": finding.remedy} if finding.remedy else None,
        "suppressed": finding.suppressed,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | type(None)):
        return value
    return clean(str(value))
