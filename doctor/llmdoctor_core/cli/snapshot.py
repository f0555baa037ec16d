"""``llmdoctor snapshot``: all facts of a launch as a case file."""

from __future__ import annotations

from typing import Any

import click

from . import options


@click.command("snapshot", short_help="Write the case of a launch.")
@options.launch_options
@options.OUTPUT
def command(**given: Any) -> int:
    """Write all facts of a launch as a case file, to be checked elsewhere, later.

    \b
    llmdoctor snapshot -o case.json -- vllm serve Qwen/Qwen3-8B
    llmdoctor check --case case.json
    """
    from llmdoctor_core.case import encode

    options.write(given["output"], encode(options.case_from(given)).decode())
    return 0
