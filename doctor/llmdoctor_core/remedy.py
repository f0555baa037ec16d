"""Remedies: a plan is data (what would be changed, how safe, at what cost); making one has no effect."""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from msgspec import Struct
from msgspec.structs import replace

from . import runtimes
from .case import Case
from .check import Check
from .deploy import ENGINES
from .derive import Facts
from .examine import Policy, examine
from .facts import Container, Forecast, LaunchRequest, Mount, Unavailable
from .finding import Finding, Outcome
from .units import gib, parse_size


class Safety(str, enum.Enum):
    """SAFE: ours to do and undo. UNSAFE: changes what others may rely on; asked for apart. MANUAL: said in words."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    MANUAL = "manual"


class Cost(str, enum.Enum):
    """What the server loses by a remedy; the order of the members is the order of preference."""

    NOTHING = "nothing"
    SPEED = "speed"
    CONTEXT = "context"
    ACCURACY = "accuracy"
    HARDWARE = "hardware"


class Action(Struct, frozen=True, kw_only=True, tag_field="action", tag=str.lower):
    """One step of a plan."""


class SetArgument(Action, frozen=True, kw_only=True):
    """Change an argument of the launch; None takes it out. ``before`` is what it was, for the reader."""

    name: str
    value: str | None
    before: str | None = None


class ReplaceArgument(Action, frozen=True, kw_only=True):
    """Take words out of the launch by their flag and put others in (a removed argument's new form)."""

    flag: str
    words: tuple[str, ...]


class SetVariable(Action, frozen=True, kw_only=True):
    """Set an environment variable of the launch; None unsets it."""

    name: str
    value: str | None


class SetContainerOption(Action, frozen=True, kw_only=True):
    """Change an option of the ``docker run`` in front of the launch."""

    flag: str
    value: str


class EditFile(Action, frozen=True, kw_only=True):
    """Replace a file's content. ``sha256`` is the content the plan was made from: another content stops the plan.

    ``verify`` is a command that must succeed afterwards, else the file is put back.
    """

    path: str
    sha256: str
    content: str
    verify: tuple[str, ...] = ()


class PostponeAnnotations(Action, frozen=True, kw_only=True):
    """Put ``from __future__ import annotations`` into a source file, checked by compiling with ``python``.

    Worked out against the file as it stands (and so into an ``EditFile``) only where the plan is shown or applied.
    """

    path: str
    python: str


class Install(Action, frozen=True, kw_only=True):
    """Install one pinned package into the target environment with its own pip. ``before`` is the installed version."""

    python: str
    package: str
    version: str
    before: str | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        return (self.python, "-m", "pip", "install", "--no-deps", f"{self.package}=={self.version}")


class MakeDirectory(Action, frozen=True, kw_only=True):
    """Create a directory that the server will write to."""

    path: str


class ByHand(Action, frozen=True, kw_only=True):
    """A step that only a person can take: a driver, a BIOS setting, a reboot, a setting of somebody else's file."""

    text: str


AnyAction = (
    SetArgument
    | ReplaceArgument
    | SetVariable
    | SetContainerOption
    | EditFile
    | PostponeAnnotations
    | Install
    | MakeDirectory
    | ByHand
)
ON_LAUNCH = (SetArgument, ReplaceArgument, SetVariable, SetContainerOption)
ON_HOST = (EditFile, Install, MakeDirectory)


def described(action: AnyAction) -> str:
    """An action in words, as the person would do it."""
    if isinstance(action, SetArgument):
        was = f" (was {action.before})" if action.before is not None else ""
        return (
            f"launch: set {action.name} to {action.value}{was}" if action.value else f"launch: drop {action.name}{was}"
        )
    if isinstance(action, ReplaceArgument):
        words = shlex.join(action.words)
        return f"launch: replace {action.flag} by {words}" if words else f"launch: drop {action.flag}"
    if isinstance(action, SetVariable):
        return f"launch: {action.name}={action.value}" if action.value is not None else f"launch: unset {action.name}"
    if isinstance(action, SetContainerOption):
        return f"container: {action.flag}={action.value}"
    if isinstance(action, EditFile):
        return f"change {action.path}"
    if isinstance(action, PostponeAnnotations):
        return f"{action.path}: put 'from __future__ import annotations' after the docstring"
    if isinstance(action, Install):
        return f"{shlex.join(action.argv)}  (was {action.before or 'not installed'})"
    if isinstance(action, MakeDirectory):
        return f"mkdir -p {shlex.quote(action.path)}"
    return f"by hand: {action.text}"


class Plan(Struct, frozen=True, kw_only=True):
    """What one remedy would do about one finding."""

    remedy: str
    title: str
    code: str
    """The condition it ends."""
    safety: Safety
    cost: Cost
    actions: tuple[AnyAction, ...]
    effect: str | None = None
    """The forecast after it, beside the one before."""


@dataclass(frozen=True)
class Remedy:
    """A remedy: from a finding and the facts, the actions that would end it; several alternatives or none."""

    name: str
    title: str
    ends: frozenset[str]
    cost: Cost
    safety: Safety
    function: Callable[[Finding, Facts], Iterator[tuple[AnyAction, ...]]]


def remedy(
    name: str, title: str, *, ends: Iterable[str], cost: Cost = Cost.NOTHING, safety: Safety = Safety.SAFE
) -> Callable[[Callable[[Finding, Facts], Iterator[tuple[AnyAction, ...]]]], Remedy]:
    """Make a generator of action tuples a remedy. It is pure: all it may use is the finding and the case's facts."""

    def wrap(function: Callable[[Finding, Facts], Iterator[tuple[AnyAction, ...]]]) -> Remedy:
        return Remedy(name, title, frozenset(ends), cost, safety, function)

    return wrap


def corrected(case: Case, actions: Iterable[AnyAction]) -> Case:
    """The case with the launch that the actions make of it. Actions on the host leave it as it is."""
    request = case.launch
    if isinstance(request, Unavailable):
        return case
    container = case.container
    for action in actions:
        request = _applied(request, action)
        if isinstance(action, SetContainerOption) and isinstance(container, Container):
            container = _granted(container, action)
    return replace(case, launch=request, container=container)


def _granted(container: Container, action: SetContainerOption) -> Container:
    if action.flag == "--shm-size":
        shm = Mount(path="/dev/shm", filesystem="tmpfs", size=parse_size(action.value, action.flag))
        return replace(container, shm=shm)
    if action.flag == "--gpus":
        return replace(container, unread={**container.unread, "devices": "the container is described, not looked into"})
    return container


def _applied(request: LaunchRequest, action: AnyAction) -> LaunchRequest:
    if isinstance(action, SetArgument):
        argv = runtimes.runtime(request.runtime).with_argument(request.argv, action.name, action.value)
        return replace(request, argv=argv)
    if isinstance(action, ReplaceArgument):
        return replace(request, argv=_exchanged(request.argv, action))
    if isinstance(action, SetVariable):
        environment = {name: value for name, value in request.environment.items() if name != action.name}
        if action.value is not None:
            environment[action.name] = action.value
        return replace(request, environment=environment, variables={**request.variables, action.name: action.value})
    if isinstance(action, SetContainerOption):
        return replace(request, wrapper=_with_option(request.wrapper, action))
    return request


def _exchanged(argv: tuple[str, ...], action: ReplaceArgument) -> tuple[str, ...]:
    kept: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word.partition("=")[0] != action.flag:
            kept.append(word)
            continue
        if "=" not in word and words and not words[0].startswith("-"):
            words.pop(0)
        kept += action.words
    return tuple(kept)


def _with_option(wrapper: tuple[str, ...], action: SetContainerOption) -> tuple[str, ...]:
    words = list(wrapper)
    for position, word in enumerate(words):
        if word == action.flag:
            return (*words[: position + 1], action.value, *words[position + 2 :])
        if word.startswith(f"{action.flag}="):
            return (*words[:position], f"{action.flag}={action.value}", *words[position + 1 :])
    run = words.index("run") + 1
    return (*words[:run], f"{action.flag}={action.value}", *words[run:])


def launch_command(request: LaunchRequest) -> str:
    """The launch as a command to paste: assignments, what stood in front, the server and its arguments."""
    from_file = bool(request.places)
    assigned = [(name, value) for name, value in request.variables.items() if value is not None]
    wrapper, server = request.wrapper, request.argv[request.implied :]
    if container_run(request) and assigned:
        run = wrapper.index("run") + 1
        options = [word for name, value in assigned for word in ("-e", f"{name}={value}")]
        wrapper, assigned = (*wrapper[:run], *options, *wrapper[run:]), []
    words = [f"{name}={_quoted(value, from_file)}" for name, value in assigned]
    words += [_quoted(word, from_file) for word in wrapper]
    launch = " ".join(_quoted(word, from_file) for word in server)
    return " ".join([*words, shlex.quote(launch) if shell_script(wrapper) else launch])


def container_run(request: LaunchRequest) -> bool:
    """Whether the launch is a ``docker run`` (podman, nerdctl), which takes options of a container."""
    engines = [position for position, word in enumerate(request.wrapper) if PurePath(word).name in ENGINES]
    return bool(engines) and "run" in request.wrapper[engines[0] :]


def shell_script(wrapper: tuple[str, ...]) -> bool:
    """Whether the launch is the script of a shell (``bash -c "..."``), one word to it."""
    return bool(wrapper) and re.fullmatch(r"-[a-z]*c", wrapper[-1]) is not None


def _quoted(word: str, from_file: bool) -> str:
    """A word as a shell takes it. In a file, variables and ~ were not expanded yet: they stay as they are."""
    if from_file and re.fullmatch(r"~?[\w./:@%+=,${}~-]*", word) and ("$" in word or word.startswith("~")):
        return f'"{word}"' if "$" in word else word
    return shlex.quote(word)


def plans(findings: Iterable[Finding], case: Case, remedies: Iterable[Remedy], checks: Iterable[Check]) -> list[Plan]:
    """Plans for the findings, cheapest first for each.

    A plan that changes the launch is tried: the corrected case is examined again, and a plan that leaves the condition
    as bad as it was is not offered.
    """
    facts = Facts(case)
    known = {check.code: check for check in checks}
    offered: list[Plan] = []
    tried: dict[tuple[Plan, Outcome], Plan | None] = {}
    for finding in findings:
        if finding.outcome not in (Outcome.FAIL, Outcome.WARN) or finding.suppressed:
            continue
        candidates = [
            Plan(remedy=r.name, title=r.title, code=finding.code, safety=r.safety, cost=r.cost, actions=actions)
            for r in remedies
            if finding.code in r.ends
            for actions in r.function(finding, facts)
        ]
        for plan in candidates:  # findings of one check often have the same plans
            if (plan, finding.outcome) not in tried:
                helps = _helps(plan, finding, case, known)
                tried[plan, finding.outcome] = _with_effect(plan, facts, case) if helps else None
        helping = [found for plan in candidates if (found := tried[plan, finding.outcome])]
        offered += sorted(helping, key=_preference)
    return list(dict.fromkeys(offered))


def _preference(plan: Plan) -> tuple[int, int]:
    return list(Cost).index(plan.cost), list(Safety).index(plan.safety)


def _helps(plan: Plan, finding: Finding, case: Case, checks: dict[str, Check]) -> bool:
    """Whether the condition is gone, or no longer a FAIL, in the corrected case; host actions cannot be tried here."""
    check = checks.get(finding.code)
    if check is None or not any(isinstance(action, ON_LAUNCH) for action in plan.actions):
        return True
    after = examine(corrected(case, plan.actions), [check], Policy(select=(check.code,)))
    left = [f for f in after.findings if f.outcome in (Outcome.FAIL, Outcome.WARN, Outcome.ERROR)]
    before = examine(case, [check], Policy(select=(check.code,)))
    count = sum(f.outcome is finding.outcome for f in before.findings)
    if finding.outcome is Outcome.FAIL:
        left = [f for f in left if f.outcome is not Outcome.WARN]
    return sum(f.outcome is finding.outcome for f in left) < count


def _with_effect(plan: Plan, facts: Facts, case: Case) -> Plan:
    if not any(isinstance(action, ON_LAUNCH) for action in plan.actions):
        return plan
    before, after = facts.get(Forecast), Facts(corrected(case, plan.actions)).get(Forecast)
    if isinstance(before, Unavailable) or isinstance(after, Unavailable):
        return plan
    return replace(plan, effect=effect(before, after))


def effect(before: Forecast, after: Forecast) -> str | None:
    """What changes between two forecasts, in one line: ``one request 2.62 GiB -> 1.21 GiB, concurrency ...``."""
    parts = []
    if before.refused and not after.refused:
        parts.append("starts")
    if before.cache and after.cache:
        old, new = before.cache, after.cache
        if old.bytes_per_request != new.bytes_per_request:
            parts.append(f"one request {gib(old.bytes_per_request)} -> {gib(new.bytes_per_request)}")
        if new.max_concurrency is not None and old.max_concurrency != new.max_concurrency:
            was = f"{old.max_concurrency:.2f}x" if old.max_concurrency is not None else "none"
            parts.append(f"concurrency {was} -> {new.max_concurrency:.2f}x")
        if old.slot_tokens != new.slot_tokens and new.slot_tokens is not None:
            parts.append(f"one slot {old.slot_tokens or 0:,} -> {new.slot_tokens:,} tokens")
        if old.bytes != new.bytes and new.bytes is not None and new.blocks is None:
            parts.append(f"cache {gib(old.bytes or 0)} -> {gib(new.bytes)}")
    return ", ".join(parts) or None


class Correction(Struct, frozen=True, kw_only=True):
    """A launch with every FAIL ended that a remedy of the launch ends, and every warning that costs nothing to end."""

    case: Case
    plans: tuple[Plan, ...]
    left: tuple[Finding, ...]
    further: tuple[Plan, ...]
    """Plans that were not taken: of the host, by hand, or at a cost that only a warning does not justify."""


MAX_ROUNDS = 16


def correct(case: Case, remedies: Iterable[Remedy], checks: Iterable[Check]) -> Correction:
    """Apply the cheapest plan on the launch, examine, and again, until nothing is left that such a plan ends."""
    remedies, checks = tuple(remedies), tuple(checks)
    taken: list[Plan] = []
    for _ in range(MAX_ROUNDS):
        findings = examine(case, checks).findings
        offered = [
            plan
            for plan in plans(findings, case, remedies, checks)
            if all(isinstance(action, ON_LAUNCH) for action in plan.actions) and plan not in taken
        ]
        failing = {finding.code for finding in findings if finding.outcome is Outcome.FAIL}
        wanted = [plan for plan in offered if plan.code in failing or plan.cost is Cost.NOTHING]
        if not wanted:
            break
        taken.append(wanted[0])
        case = corrected(case, wanted[0].actions)
    findings = examine(case, checks).findings
    left = tuple(finding for finding in findings if finding.outcome is Outcome.FAIL)
    return Correction(case=case, plans=tuple(taken), left=left, further=tuple(plans(findings, case, remedies, checks)))
