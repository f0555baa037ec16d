"""Public failure reports: a check names the condition before the start, from the facts that the report gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmdoctor_checks.catalog import CHECKS
from llmdoctor_core.facts import Fact
from llmdoctor_core.finding import Outcome
from test_conformance import given

from .reports import REPORTS

FILE = Path(__file__).parents[1] / "data" / "failure-reports.jsonl"
EXPECTED = {
    report["id"]: set(report["expected"]) for report in map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
}
OURS = {check.code for check in CHECKS}


def named(facts: tuple[Fact, ...], codes: set[str]) -> set[str]:
    """Those of the codes whose check fires on the facts."""
    kinds = tuple(type(fact) for fact in facts)
    found = set()
    for check in CHECKS:
        if check.code not in codes:
            continue
        if any(not need.optional and not need.reasoned and need.fact not in kinds for need in check.needs()):
            continue
        if any(finding.outcome in (Outcome.WARN, Outcome.FAIL) for finding in given(check, facts)):
            found.add(check.code)
    return found


@pytest.mark.parametrize("report", REPORTS)
def test_the_condition_is_named_before_the_start(report: str) -> None:
    assert named(REPORTS[report], EXPECTED[report])


def test_four_of_five_reports_that_a_check_could_see_are_told_as_facts() -> None:
    seen = {report for report, codes in EXPECTED.items() if codes & OURS}
    assert len(REPORTS.keys() & seen) / len(seen) >= 0.8
