"""Runs one short load in a process of its own, so that a test can interrupt or kill it: ``python drive.py SPEC``.

Prints ``phase NAME`` lines as they come and the measured fact as JSON in the end.
"""

from __future__ import annotations

import json
import os
import sys

import msgspec

from llmdoctor_core.load.run import Event, Plan, load


def tell(event: Event) -> None:
    print(event.kind, event.text, flush=True)


def main() -> None:
    spec = json.loads(sys.argv[1])
    plan = Plan(until=spec["until"], timeout=spec["timeout"], grace=spec["grace"])
    loaded = load(spec["runtime"], tuple(spec["argv"]), dict(os.environ), plan, tell=tell)
    print(msgspec.json.encode(loaded.measured).decode(), flush=True)


if __name__ == "__main__":
    main()
