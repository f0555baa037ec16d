"""``llmdoctor load``: a short real load, held against the forecast."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from . import options

if TYPE_CHECKING:
    from llmdoctor_core.case import Case
    from llmdoctor_core.load.confirm import Confirmation
    from llmdoctor_core.load.run import Event, Plan


@click.command("load", short_help="Start the server briefly and hold what it prints against the forecast.")
@options.launch_options
@click.option(
    "--until",
    type=click.Choice(["plan", "cache", "ready", "first-token"]),
    default="ready",
    help="Stage that ends the load; plan is llama.cpp's projection without allocating.",
)
@click.option(
    "--timeout", type=click.FloatRange(1), default=900.0, metavar="SECONDS", help="Longest the start may take."
)
@click.option(
    "--weightless", is_flag=True, help="Dummy weights (vLLM) or a hollow GGUF (llama.cpp): nothing to download."
)
@click.option("--no-learn", is_flag=True, help="Do not keep the overheads measured here for the next forecast.")
@click.option("--log", "log_file", metavar="FILE", help="Keep the server's output there.")
@click.option("--format", "format_name", type=click.Choice(["terminal", "json"]), default="terminal")
@click.option("--fail-on", type=click.Choice(["fail", "warn"]), default="fail", help="What exits with 1.")
@options.OUTPUT
@options.LANGUAGE
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto")
def command(**given: Any) -> int:
    """Start the server briefly, on a port of its own, and hold what it prints against the forecast.

    \b
    llmdoctor load -- vllm serve Qwen/Qwen3-8B --max-model-len 32768
    llmdoctor load --until plan -- llama-server -m model.gguf -c 32768
    llmdoctor load --weightless --until cache -- vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4

    Everything it starts is gone when it ends, however it ends.
    """
    from llmdoctor_core.examine import Policy, examine
    from llmdoctor_core.finding import Outcome
    from llmdoctor_core.load.run import Plan

    if given["file"]:
        raise click.UsageError("a load starts a command: give it after --, not as a deployment file")
    case = options.case_from(given)
    plan = Plan(until=given["until"], timeout=given["timeout"], weightless=given["weightless"])
    confirmation = confirmed(case, given, plan, learn=not given["no_learn"])
    if given["log_file"]:
        options.write(given["log_file"], confirmation.log + "\n")
    policy = Policy(fail_on=Outcome(given["fail_on"]))
    examination = examine(confirmation.case, (), policy, confirmation.findings)
    options.write(given["output"], _text(confirmation, examination, given))
    return 130 if confirmation.measured.ending == "interrupted" else examination.exit_code


def confirmed(case: Case, given: dict[str, Any], plan: Plan, *, learn: bool = True) -> Confirmation:
    """Carry out the load of a typed command, telling on standard error how it goes."""
    from llmdoctor_core.load.command import typed, whole_environment
    from llmdoctor_core.load.confirm import confirm

    argv, assigned = typed(tuple(given["command"]))
    environment = whole_environment(assigned, given["python"])
    return confirm(case, argv, environment, plan, tell=Teller().tell, learn=learn)


def _text(confirmation: Confirmation, examination: Any, given: dict[str, Any]) -> str:
    from llmdoctor_core.load.confirm import document
    from llmdoctor_core.plugins import catalogue
    from llmdoctor_core.report import View

    from .terminal import colour, columns

    view = View(
        language=options.language(given["lang"]),
        colour=colour(given["color"], given["output"]),
        width=columns(given["output"]),
        packages=catalogue().packages,
    )
    if given["format_name"] == "json":
        import json

        from llmdoctor_core.report.document import host_document

        whole = {**host_document(examination, view), "load": document(confirmation)}
        return json.dumps(whole, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    from llmdoctor_core.report.terminal import render

    lines = told(confirmation)
    if confirmation.learnt:
        lines.append("the measured overheads stand in for estimates from now on (llmdoctor calibration list)")
    return "\n".join(lines) + "\n\n" + render([examination], view)


def told(confirmation: Confirmation) -> list[str]:
    """How a load went, predicted beside measured, line by line."""
    from llmdoctor_core.load.confirm import phases_text, rows_text

    measured = confirmation.measured
    lines = [f"load: {measured.ending}, as far as {measured.reached}", *map("  {}".format, phases_text(measured))]
    lines += ["", *rows_text(confirmation.rows)]
    lines += [f"changed: {change}" for change in measured.changed]
    if measured.weightless:
        return [*lines, "not confirmed by a load without weights:", *map("  {}".format, measured.notes)]
    return [*lines, *map("note: {}".format, measured.notes)]


class Teller:
    """Shows a load as it goes, on standard error: one moving line on a terminal, one line an event elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
        self._open = False

    def tell(self, event: Event) -> None:
        if event.kind == "phase" and self._live:
            click.echo(f"\r\x1b[2K{event.at:7.1f} s  {event.text} ...", nl=False, err=True)
            self._open = True
            return
        if self._open:
            click.echo("", err=True)
            self._open = False
        words = {"command": "starting: ", "phase": "", "stall": "stalled: ", "stop": "stopping: ", "note": ""}
        click.echo(f"{event.at:7.1f} s  {words[event.kind]}{event.text}", err=True)
