"""How often triage's first answer is right, and how many failures a check names before the start, over public reports.

    python tools/evaluate_reports.py tests/data/failure-reports.jsonl

Each line of the file is a report: ``id``, ``log_lines`` and ``expected``, the codes of which the first answer must be
one. Prints the rates and every miss. Reports without a log line are left out of triage: there is nothing to read. The
facts of a report, as far as they can be told, stand in tests/checks/reports.py.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from pathlib import Path

from llmdoctor_core.triage import triage_lines


def evaluate(path: Path) -> tuple[Counter[str], list[str]]:
    """Counts of ``first``, ``third`` (one of the first three) and ``reports``, and a line for every miss."""
    counts: Counter[str] = Counter()
    misses = []
    for line in path.read_text(encoding="utf-8").splitlines():
        report = json.loads(line)
        if not report["log_lines"]:
            counts["without a log line"] += 1
            continue
        answers = triage_lines(report["log_lines"]).candidates
        expected = set(report["expected"])
        counts["reports"] += 1
        counts["first"] += bool(expected.intersection(answers[:1]))
        counts["third"] += bool(expected.intersection(answers[:3]))
        if not expected.intersection(answers[:1]):
            answered = ", ".join(answers[:3]) or "nothing"
            misses.append(f"{report['id']}: expected {' or '.join(report['expected'])}, answered {answered}")
            misses.append(f"    {report['log_lines'][0][:140]}")
    return counts, misses


def checked(path: Path) -> tuple[int, int, list[str]]:
    """How many reports have a condition that some check sees, on how many of them one fires, and the others."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    facts = importlib.import_module("checks.reports").REPORTS
    tests = importlib.import_module("checks.test_reports")
    reports = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    seen = [report for report in reports if set(report["expected"]) & tests.OURS]
    misses = []
    for report in seen:
        codes = " or ".join(report["expected"])
        if report["id"] not in facts:
            misses.append(f"{report['id']}: {codes}: its facts could not be told")
        elif not tests.named(facts[report["id"]], set(report["expected"])):
            misses.append(f"{report['id']}: {codes}: no check fires")
    return len(seen), len(seen) - len(misses), misses


def main(path: str) -> int:
    counts, misses = evaluate(Path(path))
    total = counts["reports"]
    print(f"{total} reports with a log line ({counts['without a log line']} without one left out)")
    print(f"first answer right: {counts['first']} ({counts['first'] / total:.1%})")
    print(f"right among the first three: {counts['third']} ({counts['third'] / total:.1%})")
    print(f"\n{len(misses) // 2} misses of the first answer:")
    print("\n".join(misses))
    seen, fired, silent = checked(Path(path))
    print(f"\n{seen} reports have a condition that a check can see: one fires on {fired} ({fired / seen:.1%})")
    print("\n".join(silent))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "tests/data/failure-reports.jsonl"))
