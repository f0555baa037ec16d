"""Many hosts' cases side by side: what differs between hosts that must agree when they form one server."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from .case import Case
from .examine import Examination, Policy, exit_code, suppressed
from .facts import Gpus, LaunchRequest, Links, ModelSource, NvidiaDriver, TargetEnvironment, Unavailable
from .finding import Finding, fail, seen

CODE, NAME = "FLEET001", "hosts-disagree"
SHOWN = 6


def _driver(case: Case) -> str | None:
    return case.driver.version if isinstance(case.driver, NvidiaDriver) else None


def _package(name: str) -> Callable[[Case], str | None]:
    def version(case: Case) -> str | None:
        found = case.target.has(name) if isinstance(case.target, TargetEnvironment) else None
        return found.version if found else None

    return version


def _runtime(case: Case) -> str | None:
    if not isinstance(case.launch, LaunchRequest):
        return None
    return f"{case.launch.runtime} {case.launch.version}" if case.launch.version else None


def _model(case: Case) -> str | None:
    if not isinstance(case.model, ModelSource):
        return None
    return f"{case.model.name} at {case.model.revision}" if case.model.revision else case.model.name


def _gpus(case: Case) -> str | None:
    return ", ".join(gpu.name for gpu in case.gpus.visible) if isinstance(case.gpus, Gpus) else None


def _links(case: Case) -> str | None:
    if not isinstance(case.links, Links):
        return None
    return " ".join(f"{pair.a}-{pair.b}:{pair.label}" for pair in case.links.pairs)


MUST_AGREE: dict[str, Callable[[Case], str | None]] = {
    "runtime": _runtime,
    "driver": _driver,
    "torch": _package("torch"),
    "NCCL": lambda case: _package("nvidia-nccl-cu12")(case) or _package("nvidia-nccl-cu13")(case),
    "FlashInfer": _package("flashinfer-python"),
    "transformers": _package("transformers"),
    "model": _model,
    "GPUs": _gpus,
    "link layout": _links,
}
"""What the ranks of one server (tensor parallel x pipeline parallel over nodes) must have alike."""


def joined(cases: dict[str, Case], policy: Policy) -> Examination:
    """The hosts as one server: an examination of what must be alike."""
    findings = tuple(suppressed(finding, policy) for finding in disagreements(cases))
    together = Unavailable(reason="the hosts are examined one by one above", permanent=True)
    examination = Examination(
        case=Case(),
        name=f"{len(cases)} hosts as one server",
        findings=findings,
        forecast=together,
        launch=together,
        checks=((CODE, NAME),),
    )
    return replace(examination, exit_code=int(exit_code(examination, policy)))


def disagreements(cases: dict[str, Case]) -> list[Finding]:
    """One finding for each fact that hosts have differently; a host where it was not observed is left out."""
    findings = []
    for what, read in MUST_AGREE.items():
        hosts: dict[str, list[str]] = {}
        for name, case in cases.items():
            if (value := read(case)) is not None:
                hosts.setdefault(value, []).append(name)
        if len(hosts) > 1:
            findings.append(_differs(what, hosts))
    return findings


def _differs(what: str, hosts: dict[str, list[str]]) -> Finding:
    usual = max(hosts, key=lambda value: len(hosts[value]))
    others = [name for value, names in hosts.items() if value != usual for name in names]
    shown = ", ".join(others[:SHOWN]) + (f" and {len(others) - SHOWN} more" if len(others) > SHOWN else "")
    return fail(
        "{what} differs between hosts that form one server: {count} of {total} have {usual}, not so {others}; "
        "bring them to one version before the start, or ranks fail or hang when they first talk",
        evidence=tuple(seen(what, value, f"{len(names)} hosts, e.g. {names[0]}") for value, names in hosts.items()),
        what=what,
        count=len(hosts[usual]),
        total=sum(map(len, hosts.values())),
        usual=usual,
        others=shown,
    ).of(CODE, NAME, None)
