"""SARIF 2.1.0 by GitHub's rules: every result has a file, a stable rule and a fingerprint without numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from llmdoctor_core import __version__
from llmdoctor_core.errors import InputError
from llmdoctor_core.examine import Examination, worst
from llmdoctor_core.finding import Finding, Outcome
from llmdoctor_core.text import clean, page

from . import View

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVEL = {Outcome.FAIL: "error", Outcome.WARN: "warning"}


def render(examinations: Sequence[Examination], view: View) -> str:
    """One run. Raises InputError when a finding has no file of the repository to point to and none was given."""
    findings = [finding for examination in examinations for finding in examination.findings]
    shown = [finding for finding in findings if finding.outcome in LEVEL]
    rules = {finding.code: finding.name for finding in shown}
    errors = [finding for finding in findings if finding.outcome is Outcome.ERROR]
    skips = [finding for finding in findings if finding.outcome is Outcome.SKIP]
    run = {
        "tool": {
            "driver": {
                "name": "llmdoctor",
                "version": __version__,
                "informationUri": "https://pypi.org/project/llm-serving-doctor/",
                "rules": [_rule(code, name, view) for code, name in rules.items()],
            }
        },
        "invocations": [
            {
                "executionSuccessful": not errors,
                "exitCode": worst(examination.exit_code for examination in examinations),
                "toolExecutionNotifications": [
                    *(_notification(finding, "error") for finding in errors),
                    *(_notification(finding, "note") for finding in skips),
                ],
            }
        ],
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the repository."}}},
        "results": [_result(finding, list(rules), view) for finding in shown],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False, indent=1) + "\n"


def _rule(code: str, name: str, view: View) -> dict[str, Any]:
    text = page(code, view.language, view.packages) or f"# {code} {name}\n"
    title = next((line for line in text.splitlines()[1:] if line.strip()), name)
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in name.split("-")),
        "shortDescription": {"text": name.replace("-", " ")},
        "fullDescription": {"text": title},
        "help": {"text": text, "markdown": text},
        "properties": {"tags": ["llm-serving", code.rstrip("0123456789").lower()]},
    }


def _result(finding: Finding, rules: list[str], view: View) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rules.index(finding.code),
        "level": LEVEL[finding.outcome],
        "message": {"text": clean(finding.message)},
        "locations": [_location(finding, view)],
        "partialFingerprints": {"llmdoctor/v1": finding.fingerprint},
    }
    if finding.suppressed:
        result["suppressions"] = [{"kind": "external", "justification": finding.suppressed}]
    return result


def _location(finding: Finding, view: View) -> dict[str, Any]:
    where = finding.where
    in_repository = where is not None and where.kind == "file" and not PurePath(where.name).is_absolute()
    if in_repository and where is not None:
        file, line = where.name, where.line or 1
    elif view.anchor:
        file, line = view.anchor, 1
    else:
        raise InputError(
            f"sarif: {finding.code} concerns no file of the repository, and GitHub refuses a result without one; "
            "give one with --sarif-anchor, e.g. the file that holds the launch"
        )
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": PurePath(file).as_posix(), "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": line},
        }
    }
    if where is not None and not in_repository:
        location["logicalLocations"] = [{"name": clean(where.name), "kind": where.kind}]
    return location


def _notification(finding: Finding, level: str) -> dict[str, Any]:
    return {
        "level": level,
        "descriptor": {"id": finding.code},
        "message": {"text": clean(f"{finding.code} {finding.name}: {finding.message}")},
    }
