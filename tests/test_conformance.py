"""What every check keeps to: code, name, pages, translations, an example each way, SKIP where nothing is known."""

from __future__ import annotations

import ast
import inspect
import re
import string
import textwrap
from collections.abc import Iterator
from importlib import resources

import pytest

from checks.cases import CASES
from llmdoctor_checks import catalog, retired
from llmdoctor_core.case import Case, fact_types
from llmdoctor_core.check import Check
from llmdoctor_core.derive import DERIVED, Facts
from llmdoctor_core.examine import run
from llmdoctor_core.facts import Fact, Unavailable
from llmdoctor_core.finding import Finding, Outcome
from llmdoctor_core.text import templates
from llmdoctor_remedies.catalog import REMEDIES

EXPLAIN = resources.files("llmdoctor_checks") / "explain"
SECTIONS = {
    "en": ("What it checks", "Why it matters", "How to fix", "When to ignore", "Evidence", "References"),
    "ko": ("무엇을 확인합니까", "왜 중요합니까", "해결 방법", "무시해도 되는 경우", "근거", "참고"),
}
PARTICLE = re.compile(r"\}\s?(?:은|는|이|가|을|를|과|와|으로|로|이다|입니다|이며)(?=[\s.,!?)]|$)")
FAMILIES = ("GPU", "LINK", "CUDA", "PY", "MODEL", "GGUF", "DRAFT", "TP", "CTX", "MEM", "ARG", "HOST", "KVT")
each_check = pytest.mark.parametrize("check", catalog.CHECKS, ids=lambda check: check.code)


def given(check: Check, facts: tuple[Fact, ...]) -> list[Finding]:
    """The check's findings on these facts; what it can do without and is not among them is absent."""
    arguments: dict[str, Fact | None] = {}
    for need in check.needs():
        kinds = (need.fact, Unavailable) if need.reasoned else (need.fact,)
        found = next((fact for fact in facts if isinstance(fact, kinds)), None)
        if found is None and need.reasoned:
            found = Unavailable(reason="not among the facts of the example")
        assert found is not None or need.optional, f"the example of {check.code} lacks {need.fact.__name__}"
        arguments[need.parameter] = found
    return check(**arguments)


def messages(check: Check) -> Iterator[str]:
    """The templates a check can yield: first arguments of fail, warn and skip in its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(check.function)))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("fail", "warn", "skip", "report")
        ):
            template = node.args[0]
            assert isinstance(template, ast.Constant), f"{check.code}: a message is not written out"
            yield template.value


def placeholders(template: str) -> set[str]:
    return {name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(template) if name}


def test_codes_and_names_are_unique() -> None:
    codes = [check.code for check in catalog.CHECKS]
    names = [check.name for check in catalog.CHECKS]
    assert len(set(codes)) == len(codes)
    assert len(set(names)) == len(names)


def test_no_retired_code_is_used_again() -> None:
    assert not {check.code for check in catalog.CHECKS} & retired.RETIRED.keys()


def test_the_catalogue_shows_one_family_after_the_other() -> None:
    assert tuple(dict.fromkeys(check.family for check in catalog.CHECKS)) == FAMILIES


@each_check
def test_facts_come_from_a_case_or_a_derivation(check: Check) -> None:
    assert {need.fact for need in check.needs()} <= fact_types() | DERIVED.keys()


@each_check
def test_nothing_known_is_a_skip(check: Check) -> None:
    assert [finding.outcome for finding in run(check, Facts(Case()))] == [Outcome.SKIP]


@each_check
def test_an_example_fires(check: Check) -> None:
    findings = [finding for finding in given(check, CASES[check.code].fires) if finding.outcome is not Outcome.SKIP]
    assert findings, f"{check.code} stays silent on its own example"
    for finding in findings:
        assert finding.outcome in (Outcome.WARN, Outcome.FAIL)
        assert finding.evidence
        assert placeholders(finding.message_id) <= finding.params.keys()
        assert "{" not in finding.message


@each_check
def test_an_example_stays_silent(check: Check) -> None:
    assert given(check, CASES[check.code].silent) == []


@each_check
def test_a_summary_is_one_sentence(check: Check) -> None:
    assert check.summary.endswith(".")


@each_check
@pytest.mark.parametrize("language", SECTIONS)
def test_a_page_in_both_languages(check: Check, language: str) -> None:
    page = (EXPLAIN / language / f"{check.code}.md").read_text(encoding="utf-8")
    heading, _, rest = page.partition("\n")
    assert heading == f"# {check.code} {check.name}"
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(SECTIONS[language])
    title, *_ = rest.strip().split("\n\n")
    assert not title.startswith("#")
    assert "\n" not in title
    for section in re.split(r"^## .+$", rest, flags=re.MULTILINE)[1:]:
        assert section.strip()


@each_check
def test_every_message_is_translated_with_the_same_placeholders(check: Check) -> None:
    korean = templates("ko", ("llmdoctor_checks",)).get(check.code, {})
    for template in messages(check):
        assert template in korean, f"{check.code}: no Korean for {template!r}"
        assert placeholders(korean[template]) == placeholders(template)
        assert not PARTICLE.search(korean[template])


def test_no_translation_is_left_over() -> None:
    known = {check.code: set(messages(check)) for check in catalog.CHECKS}
    for code, table in templates("ko", ("llmdoctor_checks",)).items():
        if code in known:
            assert table.keys() <= known[code], code


@each_check
def test_a_remedy_that_is_named_ends_the_condition(check: Check) -> None:
    if check.remedy:
        assert check.code in {code for remedy in REMEDIES if remedy.name == check.remedy for code in remedy.ends}
