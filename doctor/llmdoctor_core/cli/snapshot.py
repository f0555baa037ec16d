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
    from llmdoctor_core.errors import InputError

    cases = options.cases_from(given)
    if len(cases) > 1:
        raise InputError(f"{given['file']} holds {len(cases)} launches; a case is one: give its command after --")
    options.write(given["output"], encode(cases[0]).decode())
    return 0
