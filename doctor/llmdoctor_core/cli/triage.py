"""``llmdoctor triage``: a log read back to its first cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options

if TYPE_CHECKING:
    from llmdoctor_core.triage import Diagnosis


@click.command("triage", short_help="Read a failed start's log back to its first cause.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--format", "format_name", type=click.Choice(["terminal", "json"]), default="terminal")
@click.option("--model", metavar="MODEL", help="The model, where the log names one that is not in the catalogue.")
@click.option("--no-checks", is_flag=True, help="Do not run forecast and checks over what the log tells.")
@options.OUTPUT
@options.LANGUAGE
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto")
def command(**given: Any) -> int:
    """Read the log of a failed or surprising start back to its first cause.

    \b
    llmdoctor triage server.log
    kubectl logs vllm-0 --previous | llmdoctor triage -
    llmdoctor triage bundle.zip

    LOG is a file, several files read as one story, - for standard input, gzip, or a bundle. Exits 1 when a cause was
    found, 0 when the log shows none, 3 when it ends in an exception that no signature knows or is no server's log.
    """
    from llmdoctor_core.plugins import catalogue
    from llmdoctor_core.report import View
    from llmdoctor_core.report.diagnosis import document, render
    from llmdoctor_core.triage import triage

    from .terminal import colour, columns

    loaded = catalogue()
    view = View(
        language=options.language(given["lang"]),
        colour=colour(given["color"], given["output"]),
        width=columns(given["output"]),
        packages=loaded.packages,
    )
    diagnosis = triage(*given["logs"])
    examination = None if given["no_checks"] else _examined(diagnosis, given["model"])
    make = document if given["format_name"] == "json" else render
    options.write(given["output"], make(diagnosis, examination, view))
    return _exit_code(diagnosis)


def _examined(diagnosis: Diagnosis, model: str | None) -> Any:
    from llmdoctor_core.examine import examine
    from llmdoctor_core.plugins import catalogue
    from llmdoctor_core.triage import case_from

    find = None
    if model is not None:
        from llmdoctor_core.models.open import open_model

        source = open_model(model)

        def find(_name: str) -> Any:
            return source

    return examine(case_from(diagnosis, find), catalogue().checks)


def _exit_code(diagnosis: Diagnosis) -> int:
    from llmdoctor_core.examine import Exit

    if diagnosis.broken:
        return int(Exit.UNKNOWN)
    if any(condition.rank != "warning" for condition in diagnosis.conditions):
        return int(Exit.FINDINGS)
    return int(Exit.UNKNOWN if diagnosis.unexplained or diagnosis.silent else Exit.OK)
