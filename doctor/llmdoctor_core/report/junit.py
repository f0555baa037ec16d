"""JUnit: one test case a check, in the dialect that GitLab, Jenkins, Azure and Buildkite read."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from llmdoctor_core.examine import Examination
from llmdoctor_core.finding import Finding, Outcome
from llmdoctor_core.text import clean, localized

from . import View

WORST_FIRST = (Outcome.ERROR, Outcome.FAIL, Outcome.WARN, Outcome.SKIP)


def render(examinations: Sequence[Examination], view: View) -> str:
    """One ``testsuite`` an examination."""
    suites = ElementTree.Element("testsuites")
    suites.extend(_suite(examination, view) for examination in examinations)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _suite(examination: Examination, view: View) -> ElementTree.Element:
    """Several findings of a check share its test case: GitLab keeps only the first of a name."""
    found: dict[str, list[Finding]] = {}
    names = dict(examination.checks)
    for finding in examination.findings:
        found.setdefault(finding.code, []).append(finding)
        names.setdefault(finding.code, finding.name)
    suite = ElementTree.Element(
        "testsuite", name=clean(f"llmdoctor {examination.name}".rstrip()), timestamp=_timestamp(examination)
    )
    for code, name in names.items():
        _case(suite, examination, code, name, found.get(code, []), view)
    counts = {tag: len(suite.findall(f"testcase/{tag}")) for tag in ("failure", "error", "skipped")}
    suite.set("tests", str(len(names)))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    suite.set("time", f"{sum(examination.seconds.values()):.3f}")
    return suite


def _timestamp(examination: Examination) -> str:
    return (examination.case.observed_at or "1970-01-01T00:00:00Z").removesuffix("Z")


def _case(
    suite: ElementTree.Element, examination: Examination, code: str, name: str, findings: list[Finding], view: View
) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"llmdoctor.{code.rstrip('0123456789').lower()}",
        name=f"{code} {name}",
        time=f"{examination.seconds.get(code, 0.0):.3f}",
    )
    live = [finding for finding in findings if not finding.suppressed]
    outcome = next((o for o in WORST_FIRST if any(finding.outcome is o for finding in live)), None)
    text = "\n".join(lines(finding, view) for finding in findings)
    if outcome is Outcome.ERROR:
        ElementTree.SubElement(case, "error", type=code, message=_first(live, outcome, view)).text = text
    elif outcome is Outcome.FAIL:
        ElementTree.SubElement(case, "failure", type=code, message=_first(live, outcome, view)).text = text
    elif outcome is Outcome.SKIP:
        ElementTree.SubElement(case, "skipped", message=_first(live, outcome, view))
    elif text:
        ElementTree.SubElement(case, "system-out").text = text


def _first(findings: list[Finding], outcome: Outcome, view: View) -> str:
    return next(localized(f, view.language, view.packages) for f in findings if f.outcome is outcome)


def lines(finding: Finding, view: View) -> str:
    """A finding as a few plain lines: message, place, evidence, what to do next."""
    rows = [f"{finding.outcome.value.upper()} {localized(finding, view.language, view.packages)}"]
    if finding.suppressed:
        rows.append(f"ignored: {finding.suppressed}")
    if finding.where:
        rows.append(f"where: {finding.where}")
    rows += [f"evidence: {item.fact} {item.value} ({item.source})" for item in finding.evidence]
    rows.append(f"more: llmdoctor explain {finding.code}")
    return clean("\n".join(rows))
