"""``llmdoctor check``: facts, forecast, checks, verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from . import options

if TYPE_CHECKING:
    from llmdoctor_core.case import Case
    from llmdoctor_core.examine import Examination, Policy
    from llmdoctor_core.finding import Finding
    from llmdoctor_core.report import Renderer, View


@click.command("check", short_help="Examine a launch before it starts.")
@options.launch_options
@click.option("--case", "case_files", multiple=True, metavar="FILE", help="Replay case files (a glob for a fleet).")
@click.option("--load", is_flag=True, help="Start the server briefly too and hold what it prints against the forecast.")
@click.option("--server", metavar="URL", help="Read a server that already runs and hold it against the launch.")
@click.option("--interval", type=click.FloatRange(0), default=5.0, help="Seconds to watch that server's metrics.")
@click.option(
    "--format",
    "format_name",
    default="terminal",
    metavar="NAME",
    help="terminal, json, junit, sarif, github, markdown or html.",
)
@click.option("--report", "reports", multiple=True, metavar="FORMAT=FILE", help="A further report; repeatable.")
@options.OUTPUT
@click.option("--select", multiple=True, metavar="CODE", help="Run only these: codes, names or prefixes.")
@click.option("--ignore", multiple=True, metavar="CODE[=REASON]", help="Show but do not count these.")
@click.option("--require", multiple=True, metavar="CODE", help="Exit 3 when one of these had to be skipped.")
@click.option("--fail-on", type=click.Choice(["fail", "warn"]), help="What exits with 1; fail is the default.")
@click.option("--profile", metavar="NAME", help="Set of checks; preflight is the default.")
@click.option("--baseline", metavar="FILE", help="A JSON report: only findings that are not in it count.")
@click.option(
    "--config", "config_file", metavar="FILE", help="llmdoctor.toml or a pyproject.toml with [tool.llmdoctor]."
)
@click.option("--sarif-anchor", metavar="FILE", help="File that findings without a file point to in SARIF.")
@options.LANGUAGE
@click.option("-v", "--verbose", count=True, help="Show skipped checks too.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto")
def command(**given: Any) -> int:
    """Examine a launch before it starts: facts, forecast, checks, verdict.

    \b
    llmdoctor check --gpu A100-80GB -- vllm serve Qwen/Qwen3-8B --max-model-len 32768
    llmdoctor check --format json -- llama-server -m model.gguf -c 32768
    llmdoctor check -f compose.yaml --gpu L4 --report sarif=out.sarif
    llmdoctor check --case 'nodes/*.json'
    llmdoctor check --server http://localhost:8000 -- vllm serve Qwen/Qwen3-8B
    """
    from msgspec.structs import replace

    from llmdoctor_core.examine import examine
    from llmdoctor_core.plugins import catalogue
    from llmdoctor_core.report import renderer

    targets = [(given["format_name"], given["output"]), *map(_target, given["reports"])]
    renderers = [(renderer(name), path) for name, path in targets]
    loaded = catalogue()
    policy = _policy(given, loaded)
    if given["load"] or given["server"]:
        seen = _loaded(given) if given["load"] else _running(given)
        examination = examine(seen.case, loaded.checks, policy, (*loaded.broken, *seen.findings))
        code = _reported([replace(examination, told=seen.told)], renderers, given, loaded.packages)
        return 130 if seen.interrupted else code
    cases = _cases(given)
    several = len(cases) > 1
    examinations = [
        examine(case, loaded.checks, policy, loaded.broken, name if several else "") for name, case in cases.items()
    ]
    if several and given["case_files"]:
        from llmdoctor_core.fleet import joined

        examinations.append(joined(cases, policy))
    if not several and any(name == "json" for name, _ in targets):
        examinations = [_with_remedies(examination) for examination in examinations]
    if any(name == "html" for name, _ in targets):
        examinations = [_with_sweep(examination) for examination in examinations]
    return _reported(examinations, renderers, given, loaded.packages)


def _reported(
    examinations: list[Examination],
    renderers: list[tuple[Renderer, str]],
    given: dict[str, Any],
    packages: tuple[str, ...],
) -> int:
    from llmdoctor_core.examine import worst

    for render, path in renderers:
        options.write(path, render(examinations, _view(given, path, packages)))
    return worst(examination.exit_code for examination in examinations)


class Seen(NamedTuple):
    """What a load or a running server showed: the case, findings of its own, and lines for a reader."""

    case: Case
    findings: tuple[Finding, ...]
    told: tuple[str, ...]
    interrupted: bool = False


def _loaded(given: dict[str, Any]) -> Seen:
    from llmdoctor_core.load.run import Plan

    from .load import confirmed, told

    if given["file"] or given["case_files"] or given["facts_file"]:
        raise click.UsageError("--load starts a command on this host: give it after --")
    case = options.case_from(given)
    confirmation = confirmed(case, given, Plan(until="ready"))
    interrupted = confirmation.measured.ending == "interrupted"
    return Seen(confirmation.case, confirmation.findings, tuple(told(confirmation)), interrupted)


def _running(given: dict[str, Any]) -> Seen:
    import os

    from msgspec.structs import replace

    from llmdoctor_core.derive import Facts
    from llmdoctor_core.facts import Forecast, Launch
    from llmdoctor_core.intake import build_cases
    from llmdoctor_core.load.confirm import rows_text
    from llmdoctor_core.load.server import findings, read_server, reading_text, rows

    reading = read_server(given["server"], key=os.environ.get("LLMDOCTOR_API_KEY"), interval=given["interval"])
    if given["command"] or given["file"]:
        case = options.case_from(given)
    else:
        intake = replace(options.intake_from(given), runtime=reading.runtime)
        known = {"model": intake.model or reading.model, "runtime_version": intake.runtime_version or reading.version}
        (case,) = build_cases(replace(intake, **known))
    facts = Facts(case)
    forecast, launch = facts.get(Forecast), facts.get(Launch)
    lines = (*reading_text(reading), "", *rows_text(rows(reading, forecast)))
    return Seen(case, findings(reading, forecast, launch), lines)


def _cases(given: dict[str, Any]) -> dict[str, Case]:
    """The cases by the name of their host or file."""
    if not given["case_files"]:
        return _named(options.cases_from(given))
    options.only_the_case(given)
    from llmdoctor_core.errors import InputError

    cases: dict[str, Case] = {}
    for pattern in given["case_files"]:
        files = options.files_matching(pattern)
        if not files:
            raise InputError(f"--case {pattern}: no such file")
        cases |= {file: options.read_case(file) for file in files}
    return cases


def _named(cases: list[Case]) -> dict[str, Case]:
    """The cases by the name of their service or unit; launches of one name are told apart by their number."""
    named: dict[str, Case] = {}
    for number, case in enumerate(cases, 1):
        name = case.host or f"launch {number}"
        named[f"{name}, launch {number}" if name in named else name] = case
    return named


def _with_remedies(examination: Examination) -> Examination:
    from msgspec.structs import replace

    from llmdoctor_core.examine import RemedyShown
    from llmdoctor_core.plugins import catalogue, remedies
    from llmdoctor_core.remedy import described, plans

    shown: dict[str, RemedyShown] = {}
    for plan in plans(examination.findings, examination.case, remedies(), catalogue().checks):
        steps = tuple(described(action) for action in plan.actions)
        shown.setdefault(
            plan.code, RemedyShown(id=plan.remedy, title=plan.title, safety=plan.safety.value, steps=steps)
        )
    return replace(examination, remedies=shown)


def _with_sweep(examination: Examination) -> Examination:
    from msgspec.structs import replace

    from llmdoctor_core.sweep import over_length

    return replace(examination, sweep=over_length(examination.case))


def _policy(given: dict[str, Any], loaded: Any) -> Policy:
    from llmdoctor_core.policy import policy_from
    from llmdoctor_core.text import conditions

    return policy_from(given, loaded.checks, conditions(loaded.packages))


def _target(report: str) -> tuple[str, str]:
    name, equals, path = report.partition("=")
    if not equals or not path:
        raise click.UsageError(f"--report {report!r}: write it like sarif=out.sarif")
    return name, path


def _view(given: dict[str, Any], path: str, packages: tuple[str, ...]) -> View:
    from llmdoctor_core.report import View

    from .terminal import colour, columns

    return View(
        language=options.language(given["lang"]),
        verbosity=given["verbose"],
        colour=colour(given["color"], path),
        width=columns(path),
        packages=packages,
        anchor=given["sarif_anchor"] or given["file"],
    )
