"""Runs checks over a case: in order, skipping what lacks facts, keeping our crash apart from their fault."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import replace

from .case import Case
from .check import Check
from .derive import Facts
from .errors import InputError
from .facts import Forecast, Launch, LaunchRequest, Place, Unavailable
from .finding import Finding, Outcome
from .sweep import Point


class Exit(enum.IntEnum):
    """Exit codes of the command, in one place."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    UNKNOWN = 3
    FIX_INCOMPLETE = 4
    INTERRUPTED = 130


class RemedyShown(Struct, frozen=True, kw_only=True):
    """The cheapest plan for a condition, in words."""

    id: str
    title: str
    safety: str
    steps: tuple[str, ...]


class Examination(Struct, frozen=True, kw_only=True):
    """What came of examining one case: the input of every report."""

    case: Case
    name: str = ""
    """Host, file or service examined, where there are several."""
    findings: tuple[Finding, ...]
    forecast: Forecast | Unavailable
    launch: Launch | Unavailable
    checks: tuple[tuple[str, str], ...]
    """Code and name of every check that was run or skipped."""
    seconds: dict[str, float] = {}
    """How long each check took, by code."""
    exit_code: int = 0
    told: tuple[str, ...] = ()
    """What a load or a running server said, line by line, for a terminal."""
    remedies: dict[str, RemedyShown] = {}
    """What would end a finding, by its code; empty where no report shows it."""
    sweep: tuple[Point, ...] = ()
    """Forecasts over a range, for reports that draw them."""

    def count(self, outcome: Outcome) -> int:
        return sum(finding.outcome is outcome and not finding.suppressed for finding in self.findings)

    def summary(self) -> dict[str, int]:
        """Counts by outcome. A check that found nothing is a pass."""
        silent = len(self.checks) - len({finding.code for finding in self.findings} & {code for code, _ in self.checks})
        counts = {outcome.value: self.count(outcome) for outcome in Outcome}
        counts["pass"] += silent
        counts["suppressed"] = sum(bool(finding.suppressed) for finding in self.findings)
        return counts


class Policy(Struct, frozen=True, kw_only=True):
    """What of a run's outcome decides the exit code. Selectors are codes, names or code prefixes."""

    select: tuple[str, ...] = ()
    ignore: dict[str, str] = {}
    """Selector to reason: such findings stay in the report and do not count."""
    require: tuple[str, ...] = ()
    fail_on: Outcome = Outcome.FAIL
    profile: str = "preflight"
    baseline: frozenset[str] = frozenset()
    """Fingerprints of findings that were there before and do not count."""


DEFAULT_POLICY = Policy()


def matches(selector: str, code: str, name: str) -> bool:
    """Whether a selector (``GPU001``, ``GPU``, ``no-gpu-visible``) means that check."""
    return selector == name or code.startswith(selector.upper().rstrip("*"))


def known_selectors(selectors: Iterable[str], conditions: Mapping[str, str]) -> None:
    """Raises InputError for a selector that no condition (code to name) answers to, with the nearest."""
    for selector in selectors:
        if not any(matches(selector, code, name) for code, name in conditions.items()):
            names = [word for condition in conditions.items() for word in condition]
            near = get_close_matches(selector, names, n=3) or get_close_matches(selector.upper(), names, n=3)
            raise InputError(f"no condition {selector!r}" + (f"; near are {', '.join(near)}" if near else ""))


def examine(
    case: Case,
    checks: Iterable[Check],
    policy: Policy = DEFAULT_POLICY,
    broken: tuple[Finding, ...] = (),
    name: str = "",
) -> Examination:
    """Run the checks that the policy selects and that apply to the case's runtime.

    ``broken`` are ERROR findings of plug-ins that did not load; they are part of the outcome.
    """
    facts = Facts(case)
    request = facts.optional(LaunchRequest)
    runtime = request.runtime if request else None
    chosen = [check for check in checks if _applies(check, runtime, policy)]
    findings: list[Finding] = list(broken)
    seconds = {}
    places = request.places if request else {}
    for check in chosen:
        began = time.perf_counter()
        findings += [suppressed(_placed(found, places), policy) for found in run(check, facts)]
        seconds[check.code] = time.perf_counter() - began
    forecast, launch = facts.get(Forecast), facts.get(Launch)
    findings += [_crashed(what, how) for what, how in facts.crashes.items()]
    examination = Examination(
        case=case,
        name=name,
        findings=tuple(findings),
        forecast=forecast,
        launch=launch,
        checks=tuple((check.code, check.name) for check in chosen),
        seconds=seconds,
    )
    return replace(examination, exit_code=int(exit_code(examination, policy)))


def _applies(check: Check, runtime: str | None, policy: Policy) -> bool:
    if check.runtimes and runtime is not None and runtime not in check.runtimes:
        return False
    if policy.select:
        return any(matches(selector, check.code, check.name) for selector in policy.select)
    return policy.profile in check.profiles


def run(check: Check, facts: Facts) -> list[Finding]:
    """One check over the facts: its findings, a SKIP where a fact is missing, an ERROR where the check crashes."""
    try:
        arguments: dict[str, object] = {}
        for need in check.needs():
            fact = facts.get(need.fact)
            if isinstance(fact, Unavailable) and not need.reasoned:
                if not need.optional:
                    return [_skipped(fact).of(check.code, check.name, None)]
                arguments[need.parameter] = None
            else:
                arguments[need.parameter] = fact
        return [finding.of(check.code, check.name, check.remedy) for finding in check.function(**arguments)]
    except Exception as error:  # a crash of a check is our bug and must not hide the others' findings
        crash = Finding(
            outcome=Outcome.ERROR,
            message_id="{check} crashed: {error}; a bug in llmdoctor or a plug-in, not in your machine",
            params={"check": f"{check.code} {check.name}", "error": f"{type(error).__name__}: {error}"},
        )
        return [crash.of(check.code, check.name, None)]


def _crashed(what: str, how: str) -> Finding:
    return Finding(
        outcome=Outcome.ERROR,
        code="DOC001",
        name="derivation-crashed",
        message_id="working out the {what} crashed: {how}; a bug in llmdoctor, not in your machine",
        params={"what": what.lower(), "how": how},
    )


def _skipped(missing: Unavailable) -> Finding:
    return Finding(outcome=Outcome.SKIP, message_id="not observed: {reason}", params={"reason": missing.reason})


def _placed(finding: Finding, places: dict[str, Place]) -> Finding:
    """The finding pointed to the file and line that set what it is about, where the launch was read from a file."""
    if not places:
        return finding
    place = places.get(finding.where.name) if finding.where else None
    if place is None and finding.where and finding.where.kind == "file":
        return finding
    return replace(finding, where=place or places.get("launch", finding.where))


def suppressed(finding: Finding, policy: Policy) -> Finding:
    """The finding, marked with the reason where the policy ignores it or has it in the baseline."""
    if finding.outcome not in (Outcome.WARN, Outcome.FAIL):
        return finding
    for selector, reason in policy.ignore.items():
        if matches(selector, finding.code, finding.name):
            return replace(finding, suppressed=reason or "ignored")
    if finding.fingerprint in policy.baseline:
        return replace(finding, suppressed="in the baseline")
    return finding


def exit_code(examination: Examination, policy: Policy) -> Exit:
    """The exit code by the contract: what could not be told comes before what was found."""
    live = [finding for finding in examination.findings if not finding.suppressed]
    if any(finding.outcome is Outcome.ERROR for finding in live):
        return Exit.UNKNOWN
    for finding in live:
        if finding.outcome is Outcome.SKIP and any(matches(r, finding.code, finding.name) for r in policy.require):
            return Exit.UNKNOWN
    counted = {Outcome.FAIL} if policy.fail_on is Outcome.FAIL else {Outcome.FAIL, Outcome.WARN}
    return Exit.FINDINGS if any(finding.outcome in counted for finding in live) else Exit.OK


def worst(codes: Iterable[int]) -> int:
    """The exit code of several examinations: what could not be told comes before what was found."""
    return max(codes, default=0)
