"""Every format is well-formed for its reader, whatever text a log or a path puts into a finding."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xmlschema
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmdoctor_core.case import Case
from llmdoctor_core.errors import InputError
from llmdoctor_core.examine import Examination
from llmdoctor_core.facts import Place, Unavailable
from llmdoctor_core.finding import Finding, Outcome, fail, seen, skip, warn
from llmdoctor_core.report import FORMATS, View, renderer

SCHEMAS = Path(__file__).parent / "schemas"
HOSTILE = "[/usr/lib/x] [bold] :warning: \x1b[31m <script>alert(1)</script> \ud800 | & 100% {brace} 한글"
COMPOSE = Place(kind="file", name="compose.yaml", line=12)


def examination(*findings: Finding, name: str = "") -> Examination:
    why = Unavailable(reason="no launch")
    return Examination(
        case=Case(observed_at="2026-11-29T18:00:00Z"),
        name=name,
        findings=findings,
        forecast=why,
        launch=why,
        checks=(("GPU001", "no-gpu-visible"), ("GPU002", "gpu-held"), ("MEM801", "weights-do-not-fit")),
        exit_code=1,
    )


FAILED = fail("weights need {need}, there is {have}", need="20 GiB", have=HOSTILE, where=COMPOSE,
              evidence=(seen("gpu 0", HOSTILE, "NVML"),)).of("MEM801", "weights-do-not-fit", None)  # fmt: skip
WARNED = warn("held by {who}", who="pid 1", where=Place(kind="device", name="GPU0")).of("GPU002", "gpu-held", None)
SKIPPED = skip("not observed: {why}", why=HOSTILE).of("GPU001", "no-gpu-visible", None)
FULL = examination(FAILED, WARNED, SKIPPED)
VIEW = View(anchor="compose.yaml")


def rendered(name: str, *examinations: Examination, view: View = VIEW) -> str:
    return renderer(name)(examinations, view)


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_text_breaks_no_format_and_no_control_character_gets_out(name: str) -> None:
    text = rendered(name, FULL)
    assert "\x1b" not in text
    text.encode("utf-8")
    assert "MEM801" in text


@settings(max_examples=50)
@given(text=st.text(max_size=200))
def test_any_text_renders(text: str) -> None:
    finding = replace(FAILED, params={"need": text, "have": text}, evidence=(seen(text, text, text),))
    for name in FORMATS:
        rendered(name, examination(finding)).encode("utf-8")


def test_sarif_is_valid_and_every_result_has_a_file() -> None:
    document = json.loads(rendered("sarif", FULL))
    jsonschema.validate(document, json.loads((SCHEMAS / "sarif-2.1.0-rtm.5.json").read_text()))
    results = document["runs"][0]["results"]
    files = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results]
    assert files == ["compose.yaml", "compose.yaml"]
    assert results[0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 12
    assert [result["level"] for result in results] == ["error", "warning"]


def test_sarif_without_a_file_to_point_to_is_a_usage_error() -> None:
    with pytest.raises(InputError, match="--sarif-anchor"):
        rendered("sarif", examination(WARNED), view=View())


def test_a_fingerprint_survives_new_numbers_but_not_another_place() -> None:
    other_numbers = replace(FAILED, params={"need": "21 GiB", "have": "3"})
    assert other_numbers.fingerprint == FAILED.fingerprint
    assert replace(FAILED, where=Place(kind="file", name="other.yaml")).fingerprint != FAILED.fingerprint


def test_junit_is_valid_with_one_case_a_check() -> None:
    text = rendered("junit", examination(FAILED, FAILED, WARNED, SKIPPED))
    xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd").validate(text)
    assert text.count("<testcase") == 3
    assert 'failures="1"' in text
    assert 'skipped="1"' in text


def test_github_annotations_are_escaped_and_capped() -> None:
    many = [replace(FAILED, params={"need": f"a,b:{i}\n", "have": "%"}) for i in range(14)]
    lines = rendered("github", examination(*many)).splitlines()
    errors = [line for line in lines if line.startswith("::error ")]
    assert len(errors) == 10
    assert errors[0].startswith(
        "::error file=compose.yaml,line=12,title=MEM801 weights-do-not-fit::weights need a,b:0%0A"
    )
    assert "4 more" in errors[-1]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "i"):
            self.open.append(tag)
        assert not any(name in ("src", "href") for name, _ in attrs), "the page needs no network"

    def handle_endtag(self, tag: str) -> None:
        if tag != "i":
            assert self.open.pop() == tag


def test_html_is_one_balanced_page_without_scripts() -> None:
    page = Tags()
    page.feed(rendered("html", FULL))
    assert page.open == []
    assert "script" not in page.seen


def test_several_hosts_are_told_apart() -> None:
    hosts = [replace(FULL, name="node-1"), replace(examination(), name="node-2", exit_code=0)]
    document = json.loads(rendered("json", *hosts))
    assert [host["host"] for host in document["hosts"]] == ["node-1", "node-2"]
    assert document["exit_code"] == 1
    assert rendered("junit", *hosts).count("<testsuite ") == 2


def test_the_json_report_keeps_its_contract() -> None:
    document = json.loads(rendered("json", FULL))
    assert document.keys() >= {"format_version", "tool", "runtime", "summary", "exit_code", "findings", "forecast"}
    assert document["summary"] == {"pass": 0, "warn": 1, "fail": 1, "skip": 1, "error": 0, "suppressed": 0}
    assert document["findings"][0].keys() >= {
        "code", "name", "outcome", "message", "message_id", "params", "evidence", "where", "remedy", "suppressed",
    }  # fmt: skip
    assert document["findings"][0]["where"] == {"kind": "file", "name": "compose.yaml", "line": 12}


def test_outcomes_are_words_not_only_colours() -> None:
    text = rendered("terminal", FULL, view=View(verbosity=1))
    for outcome in (Outcome.FAIL, Outcome.WARN, Outcome.SKIP):
        assert f"{outcome.value.upper()} " in text
