"""``llmdoctor fix``: show, save or apply what ends the findings of a check."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from . import options

if TYPE_CHECKING:
    from llmdoctor_core.case import Case
    from llmdoctor_core.remedy import AnyAction, Plan


@click.command("fix", short_help="Show, save or apply what ends the findings.")
@options.launch_options
@click.option("--case", "case_file", metavar="FILE", help="Plan for a case file instead of this host.")
@click.option("--select", multiple=True, metavar="CODE", help="Only the findings of these codes, names or prefixes.")
@click.option("--print-launch", is_flag=True, help="Print the corrected launch command, ready to paste.")
@click.option("--out", metavar="FILE", help="Save the plans.")
@click.option("--plan", "plan_file", metavar="FILE", help="Work from saved plans; refuses when facts have changed.")
@click.option("--number", type=int, multiple=True, metavar="N", help="Only these plans, by their number in the list.")
@click.option("--apply", "apply_it", is_flag=True, help="Carry out the plans of the host, after a question.")
@click.option("--unsafe", is_flag=True, help="Also carry out plans that change what others may rely on.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(**given: Any) -> int:
    """Show the plans that end the findings of a check, and stop. Only --apply changes anything.

    \b
    llmdoctor fix --gpu L4 -- vllm serve Qwen/Qwen3-8B --max-model-len 131072
    llmdoctor fix --print-launch -- vllm serve Qwen/Qwen3-8B --max-model-len 131072
    llmdoctor fix --out plan.json -- vllm serve ...   then   llmdoctor fix --plan plan.json --apply
    """
    if given["print_launch"]:
        return _print_launch(_case(given))
    plans = _plans(given)
    if given["number"]:
        if beyond := [number for number in given["number"] if not 1 <= number <= len(plans)]:
            raise click.UsageError(f"--number {beyond[0]}: there are {len(plans)} plans")
        plans = [plan for number, plan in enumerate(plans, 1) if number in given["number"]]
    if given["out"]:
        from llmdoctor_core.apply import encode_plans

        options.write(given["out"], encode_plans(plans).decode())
    if not given["apply_it"]:
        _show(plans)
        return 0
    return _apply(plans, given)


def _case(given: dict[str, Any]) -> Case:
    if given["case_file"]:
        options.only_the_case(given)
        return options.read_case(given["case_file"])
    return options.case_from(given)


def _plans(given: dict[str, Any]) -> list[Plan]:
    from llmdoctor_core.apply import decode_plans, prepared

    if given["plan_file"]:
        return decode_plans(options.read_file(given["plan_file"], 16 << 20), given["plan_file"])
    from llmdoctor_core.examine import Policy, examine, known_selectors
    from llmdoctor_core.plugins import catalogue, remedies
    from llmdoctor_core.policy import selectors
    from llmdoctor_core.remedy import plans

    checks = catalogue().checks
    select = selectors(given["select"], "--select")
    known_selectors(select, {check.code: check.name for check in checks})
    case = _case(given)
    findings = examine(case, checks, Policy(select=select)).findings
    return [prepared(plan) for plan in plans(findings, case, remedies(), checks)]


def _print_launch(case: Case) -> int:
    from llmdoctor_core.facts import LaunchRequest
    from llmdoctor_core.plugins import catalogue, remedies
    from llmdoctor_core.remedy import correct, described, launch_command

    correction = correct(case, remedies(), catalogue().checks)
    for plan in correction.plans:
        effect = f" ({plan.effect})" if plan.effect else ""
        click.echo(f"{plan.code}: {plan.title}{effect}", err=True)
    for plan in correction.further:
        effect = f" ({plan.effect})" if plan.effect else ""
        steps = "; ".join(described(action) for action in plan.actions)
        click.echo(f"could also: {plan.code} {plan.title}, costs {plan.cost.value}: {steps}{effect}", err=True)
    for finding in correction.left:
        click.echo(f"left: {finding.code} {finding.message}", err=True)
    assert isinstance(correction.case.launch, LaunchRequest)
    click.echo(launch_command(correction.case.launch))
    return 1 if correction.left else 0


def _show(plans: list[Plan]) -> None:
    if not plans:
        click.echo("nothing to mend: no finding has a remedy")
    for number, plan in enumerate(plans, 1):
        click.echo(f"{number}. {plan.code} {plan.title}  [{plan.safety.value}; costs {plan.cost.value}]")
        for action in plan.actions:
            click.echo("   " + _shown(action).replace("\n", "\n   "))
        if plan.effect:
            click.echo(f"   then: {plan.effect}")


def _shown(action: AnyAction) -> str:
    """An action as the person would do it; a change of a file as a diff."""
    from llmdoctor_core.apply import diff
    from llmdoctor_core.remedy import EditFile, described

    return diff(action).rstrip() if isinstance(action, EditFile) else described(action)


def _apply(plans: list[Plan], given: dict[str, Any]) -> int:
    from llmdoctor_core.apply import FixIncompleteError, apply
    from llmdoctor_core.examine import Exit
    from llmdoctor_core.remedy import ON_LAUNCH, ByHand, Safety

    chosen = [
        plan
        for plan in plans
        if not any(isinstance(action, (*ON_LAUNCH, ByHand)) for action in plan.actions)
        and (plan.safety is Safety.SAFE or (plan.safety is Safety.UNSAFE and given["unsafe"]))
    ]
    _show(chosen)
    left = len(plans) - len(chosen)
    if left:
        click.echo(f"{left} plans are not for --apply: changes of the launch, steps by hand, or unsafe ones", err=True)
    if not chosen:
        return int(Exit.OK)
    if not given["yes"]:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise click.UsageError("--apply asks, and there is no terminal to ask on: add --yes")
        if not click.confirm(f"carry out {len(chosen)} plans?", default=False, err=True):
            return int(Exit.OK)
    for plan in chosen:
        try:
            fix = apply(plan)
        except FixIncompleteError as error:
            click.echo(f"llmdoctor: {error}", err=True)
            return int(Exit.FIX_INCOMPLETE)
        click.echo(f"done: {plan.title}; undo it with llmdoctor undo {fix}", err=True)
    return int(Exit.OK)
