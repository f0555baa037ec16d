"""How often triage's first answer is right: over public failure reports with the conditions judged to be behind them.

    python tools/evaluate_triage.py tests/data/failure-reports.jsonl

Each line of the file is a report: ``id``, ``log_lines`` and ``expected``, the codes of which the first answer must be
one. Prints the rates and every miss. Reports without a log line are left out: there is nothing to read.
"""

from __future__ import annotations

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


def main(path: str) -> int:
    counts, misses = evaluate(Path(path))
    total = counts["reports"]
    print(f"{total} reports with a log line ({counts['without a log line']} without one left out)")
    print(f"first answer right: {counts['first']} ({counts['first'] / total:.1%})")
    print(f"right among the first three: {counts['third']} ({counts['third'] / total:.1%})")
    print(f"\n{len(misses) // 2} misses of the first answer:")
    print("\n".join(misses))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "tests/data/failure-reports.jsonl"))
