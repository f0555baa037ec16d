"""What a load found wrong: figures outside of the forecast, a server that died or stalled, memory not returned."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources

import msgspec
from msgspec import Struct

from llmdoctor_core.facts import Measured, ServerEnd, System, Unavailable
from llmdoctor_core.finding import Finding, fail, seen, warn
from llmdoctor_core.units import gib

from .compare import Row, shown
from .phases import phases

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHOWN = 5
"""Last lines of the output that a finding shows as evidence."""
SEND_US = (
    "either the launch is not what was asked for, or the forecast is wrong: please open an issue with the file that "
    "llmdoctor bundle writes"
)


def differs(row: Row, source: str) -> Finding:
    """LOAD001: the figure is outside of what was said of it. FAIL for an exact one, WARN for an estimate."""
    say = fail if row.exact else warn
    why = "; ".join(row.reasons) or "no known reason holds"
    where = f" of {row.device}" if row.device is not None else ""
    evidence = (
        seen(f"{row.name}{where}, predicted", shown(row, row.predicted), "forecast"),
        seen(f"{row.name}{where}, measured", shown(row, row.measured), row.source or source),
    )
    if row.exact:
        return say(
            "{figure}: {measured} measured, {predicted} predicted exactly; {why}; {report}",
            evidence=evidence, figure=row.name + where, measured=shown(row, row.measured),
            predicted=shown(row, row.predicted), why=why, report=SEND_US,
        ).of("LOAD001", "measured-differs-from-forecast", None)  # fmt: skip
    return say(
        "{figure}: {measured} measured, outside of the estimate {low} to {high}; {why}",
        evidence=evidence, figure=row.name + where, measured=shown(row, row.measured), low=shown(row, row.low),
        high=shown(row, row.high), why=why,
    ).of("LOAD001", "measured-differs-from-forecast", None)  # fmt: skip


def findings(
    measured: Measured, rows: Sequence[Row], system: System | Unavailable, log: str = ""
) -> tuple[Finding, ...]:
    """LOAD001 to LOAD004 and HOST109 of one load, the gravest first. ``log`` gives the evidence of a wrong CPU."""
    found: list[Finding] = []
    found += _illegal_instruction(measured, system, log)
    found += _died(measured)
    found += _stalled(measured)
    found += _refused(measured)
    found += [_softened(row, measured) for row in rows if row.verdict == "outside"]
    found += _kept(measured)
    return tuple(found)


def _softened(row: Row, measured: Measured) -> Finding:
    """With dummy or hollow weights the figure of the weights is no promise."""
    if measured.weightless and row.name == "weights":
        row = msgspec.structs.replace(row, exact=False)
    return differs(row, "the server's log")


def _last(measured: Measured) -> str:
    return measured.tail[-1][:300] if measured.tail else "nothing was printed"


def _phase(measured: Measured) -> str:
    return measured.phases[-1].name if measured.phases else "start"


def _died(measured: Measured) -> list[Finding]:
    if measured.ending != "died" or measured.end is None:
        return []
    how = f"killed by {measured.end.signal}" if measured.end.signal else f"exit status {measured.end.exit_status}"
    seconds = sum(phase.seconds for phase in measured.phases[-1:])
    return [
        fail(
            "the server ended by itself ({how}) in the phase {phase}, after {seconds} s of it; last line: {last}",
            evidence=tuple(seen("output", line, "the server's log") for line in measured.tail[-SHOWN:]),
            how=how, phase=_phase(measured), seconds=f"{seconds:.0f}", last=_last(measured),
        ).of("LOAD003", "server-died", None)
    ]  # fmt: skip


def _stalled(measured: Measured) -> list[Finding]:
    if measured.ending != "timed out":
        return []
    name = _phase(measured)
    known = next((phase for phase in phases(measured.runtime) if phase.name == name), None)
    silent = measured.silent_seconds
    still = (
        f"silent for {silent:.0f} s" if known is None or silent > min(known.patience, (measured.timeout or 0) / 2)
        else f"still printing ({silent:.0f} s since the last line): it may only be slow, give it a longer --timeout"
    )  # fmt: skip
    behind = "; ".join(known.behind) if known else "nothing is known of this phase"
    seconds = measured.phases[-1].seconds if measured.phases else 0.0
    return [
        fail(
            "not {until} within {timeout} s: in the phase {phase} since {seconds} s, {still}. Usually behind it: "
            "{behind}. Last line: {last}",
            evidence=tuple(seen("output", line, "the server's log") for line in measured.tail[-SHOWN:]),
            until=measured.until, timeout=f"{measured.timeout or 0:g}", phase=name, seconds=f"{seconds:.0f}",
            still=still,
            behind=behind, last=_last(measured),
        ).of("LOAD002", "start-phase-stalled", None)
    ]  # fmt: skip


def _refused(measured: Measured) -> list[Finding]:
    if measured.ending != "refused":
        return []
    return [
        fail(
            "the server is ready and refuses a request for one token: {answer}",
            evidence=tuple(seen("output", line, "the server's log") for line in measured.tail[-SHOWN:]),
            answer=measured.notes[-1] if measured.notes else "no answer",
        ).of("LOAD007", "first-request-refused", None)
    ]  # fmt: skip


def _kept(measured: Measured) -> list[Finding]:
    found = [
        warn(
            "{memory} of GPU {gpu} are still in use after the server is gone: another process took them meanwhile, or "
            "a process was left (nvidia-smi, fuser -v /dev/nvidia*)",
            evidence=(seen(f"memory kept on GPU {gpu}", gib(kept), "NVML"),), memory=gib(kept), gpu=gpu,
        )
        for gpu, kept in measured.memory_kept.items()
    ]  # fmt: skip
    found += [warn("{what} was left behind and could not be removed", what=what) for what in measured.left]
    return [finding.of("LOAD004", "memory-not-returned", None) for finding in found]


class _CpuFeature(Struct, frozen=True, kw_only=True):
    build: str
    cpu: str


@lru_cache(maxsize=1)
def _features() -> tuple[_CpuFeature, ...]:
    text = resources.files(__package__).joinpath("data/cpu_features.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["feature"], tuple[_CpuFeature, ...])


def ended_by_illegal_instruction(end: ServerEnd | None) -> bool:
    """Whether the server died of an instruction that its CPU has not (directly, or below a shell)."""
    return end is not None and (end.signal == "SIGILL" or end.exit_status == 128 + 4)


def _illegal_instruction(measured: Measured, system: System | Unavailable, log: str) -> list[Finding]:
    """HOST109: killed by SIGILL, with the instructions that the build says it uses and the CPU does not have."""
    if not ended_by_illegal_instruction(measured.end):
        return []
    line = next((line for line in log.splitlines() if "system_info:" in line), "")
    flags = () if isinstance(system, Unavailable) else system.cpu_flags
    lacks = [feature.cpu for feature in _features() if f"{feature.build} = 1" in line and feature.cpu not in flags]
    model = None if isinstance(system, Unavailable) else system.cpu_model
    evidence = [seen("signal", "SIGILL", "the server's end")]
    if lacks and flags:
        evidence.append(seen("instructions of the build", line[-200:], "the server's log"))
        evidence.append(seen("CPU", f"{model or 'this CPU'} without {', '.join(lacks)}", "/proc/cpuinfo"))
    why = f"it uses {', '.join(lacks)}, which this CPU or its hypervisor does not offer" if lacks and flags else (
        "it was built for another CPU, or the hypervisor masks instructions (AMX) that the CPU announces"
    )  # fmt: skip
    return [
        fail(
            "the build executes an instruction that this CPU does not have (SIGILL): {why}; use a build for this CPU "
            "(GGML_NATIVE=OFF, or one with GGML_CPU_ALL_VARIANTS), or another host; -nr helps where only AMX is masked",
            evidence=tuple(evidence), why=why,
        ).of("HOST109", "cpu-lacks-instructions-of-build", None)
    ]  # fmt: skip
