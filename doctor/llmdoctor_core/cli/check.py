"""``llmdoctor check``: facts, forecast, checks, verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options

if TYPE_CHECKING:
    from llmdoctor_core.case import Case
    from llmdoctor_core.examine import Policy


@click.command("check", short_help="Examine a launch before it starts.")
@options.launch_options
@click.option(
    "--case", "case_file", metavar="FILE", help="Replay a case file or bundle instead of observing this host."
)
@click.option("--format", "format_name", default="terminal", metavar="NAME", help="Format of the report.")
@click.option("--report", "reports", multiple=True, metavar="FORMAT=FILE", help="A further report; repeatable.")
@options.OUTPUT
@click.option("--select", multiple=True, metavar="CODE", help="Run only these: codes, names or prefixes.")
@click.option("--ignore", multiple=True, metavar="CODE[=REASON]", help="Show but do not count these.")
@click.option("--require", multiple=True, metavar="CODE", help="Exit 3 when one of these had to be skipped.")
@click.option("--fail-on", type=click.Choice(["fail", "warn"]), default="fail", help="What exits with 1.")
@click.option("--sarif-anchor", metavar="FILE", help="File that findings without a file point to in SARIF.")
@options.LANGUAGE
@click.option("-v", "--verbose", count=True, help="Show skipped checks too.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto")
def command(**given: Any) -> int:
    """Examine a launch before it starts: facts, forecast, checks, verdict.

    \b
    llmdoctor check --gpu A100-80GB -- vllm serve Qwen/Qwen3-8B --max-model-len 32768
    llmdoctor check --format json -- llama-server -m model.gguf -c 32768
    llmdoctor check --case case.json
    """
    from llmdoctor_core.examine import examine
    from llmdoctor_core.plugins import catalogue
    from llmdoctor_core.report import renderer

    targets = [(given["format_name"], given["output"]), *map(_target, given["reports"])]
    renderers = [(renderer(name), path) for name, path in targets]
    loaded = catalogue()
    policy = _policy(given, loaded)
    examination = examine(_case(given), loaded.checks, policy, loaded.broken)
    for render, path in renderers:
        options.write(path, render(examination, _view(given, path, loaded.packages)))
    return examination.exit_code


def _case(given: dict[str, Any]) -> Case:
    if not given["case_file"]:
        from llmdoctor_core.intake import build_case

        return build_case(options.intake_from(given))
    from llmdoctor_core.case import MAX_CASE_BYTES, decode

    return decode(options.read_file(given["case_file"], MAX_CASE_BYTES), given["case_file"])


def _policy(given: dict[str, Any], loaded: Any) -> Policy:
    from llmdoctor_core.examine import Policy, known_selectors
    from llmdoctor_core.finding import Outcome

    ignored = dict(entry.partition("=")[::2] for entry in given["ignore"])
    known_selectors((*given["select"], *ignored, *given["require"]), loaded.checks)
    return Policy(select=given["select"], ignore=ignored, require=given["require"], fail_on=Outcome(given["fail_on"]))


def _target(report: str) -> tuple[str, str]:
    name, equals, path = report.partition("=")
    if not equals or not path:
        raise click.UsageError(f"--report {report!r}: write it like sarif=out.sarif")
    return name, path


def _view(given: dict[str, Any], path: str, packages: tuple[str, ...]) -> Any:
    from llmdoctor_core.report import View

    from .terminal import colour, columns

    return View(
        language=options.language(given["lang"]),
        verbosity=given["verbose"],
        colour=colour(given["color"], path),
        width=columns(path),
        packages=packages,
        anchor=given["sarif_anchor"],
    )
