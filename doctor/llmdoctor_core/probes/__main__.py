"""The collector: prints what every probe observes on this host as one JSON document."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from .collect import Order, collect
from .host import Host

FORMAT = "1.0"


def main() -> int:
    """Command of the one-file probe. Prints the facts to standard output."""
    parser = argparse.ArgumentParser(prog="llmdoctor-probe", description=__doc__)
    parser.add_argument("--python", help="interpreter of the environment the server runs in")
    parser.add_argument("--command", help="first word of the launch, e.g. /opt/venv/bin/vllm")
    parser.add_argument("--limit", type=float, default=Order().limit, help="seconds each probe may take")
    parser.add_argument("--no-annotations", action="store_true", help="do not read the sources of the environment")
    given = parser.parse_args()
    order = Order(python=given.python, command=given.command, limit=given.limit, annotations=not given.no_annotations)
    facts = collect(Host(), order)
    document = {
        "llmdoctor_probe": FORMAT,
        "observed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "facts": facts,
    }
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a probe stuck in the driver must not keep us
