"""One short real load from start to stop: phases as they come, figures, one request, and nothing left behind."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Ending, Figure, Measured, Stage
from llmdoctor_core.redact import without_secrets
from llmdoctor_core.triage import Diagnosis, triage_lines

from . import hollow as hollow_model
from .ask import Client
from .command import LLAMA_MODEL, Command, api_key, prepare, secured, value_of
from .figures import figures_of_log
from .output import Line
from .phases import STAGES, Progress
from .process import GRACE, Process, free_port, port_is_free, terminable

POLL = 0.2
MEMORY_WAIT = 30.0
"""Seconds for a driver to return the memory of a process that is gone; healthy ones need under two."""
MEMORY_SLACK = 64 << 20
"""Bytes. A GPU's used memory moves by as much without anybody's doing (driver bookkeeping)."""
TAIL = 12
OLD_BUILD_KNOWS_NOT = ("error: invalid argument: ", "error: unknown argument: ")
PORT_TAKEN = ("Address already in use", "address already in use", "couldn't bind HTTP server socket")

GpuMemory = Callable[[], dict[str, int]]
"""Bytes in use by GPU; empty where there is none or none answers."""


class Plan(Struct, frozen=True, kw_only=True):
    """What is asked of a load. Times in seconds."""

    until: Stage = "ready"
    timeout: float = 900.0
    weightless: bool = False
    grace: float = GRACE


class Event(Struct, frozen=True, kw_only=True):
    """What a person watching is told, as it happens. ``at`` is in seconds since the start."""

    kind: Literal["command", "phase", "stall", "stop", "note"]
    at: float
    text: str


class Loaded(Struct, frozen=True, kw_only=True):
    """What came of a load: the fact, and the log it stands on, diagnosed."""

    measured: Measured
    diagnosis: Diagnosis
    log: str


class _Run(Struct, kw_only=True):
    """What is learnt while one server runs."""

    ending: Ending = "reached"
    figures: list[Figure] = []
    notes: list[str] = []


def load(
    runtime: str,
    argv: tuple[str, ...],
    environment: Mapping[str, str],
    plan: Plan = Plan(),  # noqa: B008 - frozen
    *,
    tell: Callable[[Event], None] = lambda _event: None,
    gpu_memory: GpuMemory = dict,
    remote_model: Callable[[], list[hollow_model.Part]] | None = None,
) -> Loaded:
    """Start the command, wait for the stage, measure, stop.

    ``environment`` is the server's own, whole. ``remote_model`` opens the headers of a model that is not on disk, for a
    weightless load of llama.cpp. However it ends (SIGTERM and Ctrl-C included: ``measured.ending`` is then
    ``interrupted``), the server is gone when this returns. Raises InputError where the command cannot be started.
    """
    with terminable():
        without: tuple[str, ...] = ()
        for _ in range(4):
            loaded, refused = _once(runtime, argv, environment, plan, tell, gpu_memory, remote_model, without)
            if refused is None:
                break
            tell(Event(kind="note", at=0.0, text=refused.reason))
            without += refused.flags
    return loaded


class _Refused(Struct, frozen=True, kw_only=True):
    """A start that failed on what we added: it is made again without it."""

    reason: str
    flags: tuple[str, ...] = ()


def _once(
    runtime: str,
    argv: tuple[str, ...],
    environment: Mapping[str, str],
    plan: Plan,
    tell: Callable[[Event], None],
    gpu_memory: GpuMemory,
    remote_model: Callable[[], list[hollow_model.Part]] | None,
    without: tuple[str, ...],
) -> tuple[Loaded, _Refused | None]:
    port = free_port()
    progress = Progress(runtime)
    run = _Run()
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    before = gpu_memory()

    def on_line(line: Line) -> None:
        before = progress.stage
        progress.feed(line)
        if progress.stage != before:
            process.nudge()

    process = Process(environment, grace=plan.grace, on_line=on_line, keep=progress.is_mark)
    command = Command(argv=argv)
    try:
        with process:
            stand_in = None
            if runtime == "llamacpp" and plan.weightless:
                stand_in = _hollow(argv, environment, process.scratch, remote_model)
            command = prepare(
                runtime, argv, environment, port=port, until=plan.until,
                weightless=plan.weightless, hollow=stand_in, without=without,
            )  # fmt: skip
            tell(Event(kind="command", at=0.0, text=shlex.join(without_secrets(command.argv))))
            process.start(command.argv)
            client = _client(argv, environment, port)
            _watch(runtime, process, progress, client, plan, run, tell)
            at, silent = process.seconds(), process.silent()
            tell(Event(kind="stop", at=at, text=run.ending))
    except KeyboardInterrupt as interrupt:
        run.ending = "interrupted"
        at, silent = process.seconds(), process.silent()
        if str(interrupt):
            run.notes.append(f"llmdoctor was sent {interrupt}")
    kept = _memory_kept(before, gpu_memory) if process.pid else {}
    left = process.left + (() if port_is_free(port) else (f"port {port}",))
    text = process.output.text()
    lines = text.splitlines()
    diagnosis = triage_lines(lines, name="load")
    measured = Measured(
        runtime=runtime,
        version=diagnosis.reading.version,
        command=without_secrets(command.argv),
        changed=command.changed,
        weightless=plan.weightless,
        started_at=started_at,
        until=plan.until,
        reached=progress.stage,
        ending=run.ending,
        end=process.end,
        phases=progress.times(at, run.ending == "reached") if process.pid else (),
        figures=(*figures_of_log(runtime, lines, plan.until, diagnosis.reading), *run.figures),
        silent_seconds=round(silent, 1),
        timeout=plan.timeout,
        tail=process.output.last(TAIL),
        memory_kept=kept,
        left=left,
        notes=tuple(run.notes) + (hollow_model.CANNOT_CONFIRM if plan.weightless else ()),
    )
    return Loaded(measured=measured, diagnosis=diagnosis, log=text), _refused(measured, text, without)


def _hollow(
    argv: tuple[str, ...],
    environment: Mapping[str, str],
    folder: Path,
    remote_model: Callable[[], list[hollow_model.Part]] | None,
) -> Path:
    local = value_of(argv, LLAMA_MODEL) or environment.get("LLAMA_ARG_MODEL")
    if local and Path(local).exists():
        return hollow_model.write_hollow(hollow_model.local_parts(Path(local)), folder)
    if remote_model is None:
        raise InputError("--weightless: the command names no GGUF file on disk, and none behind a URL or on the hub")
    return hollow_model.write_hollow(remote_model(), folder)


def _client(argv: tuple[str, ...], environment: Mapping[str, str], port: int) -> Client:
    scheme = "https" if secured(argv) else "http"
    return Client(f"{scheme}://127.0.0.1:{port}", key=api_key(argv, environment), trust=True)


def _watch(
    runtime: str,
    process: Process,
    progress: Progress,
    client: Client,
    plan: Plan,
    run: _Run,
    tell: Callable[[Event], None],
) -> None:
    """Until the stage is reached, the server dies or the time is up."""
    wanted = STAGES.index(plan.until)
    teller = _Teller(process, progress, tell)
    while True:
        process.wait(POLL)
        teller.tell()
        if STAGES.index(progress.stage) >= wanted:
            return
        if not process.running():
            run.ending = "died"
            return
        if process.seconds() > plan.timeout:
            run.ending = "timed out"
            return
        if plan.until in ("ready", "first-token") and client.get("/health", timeout=2.0).ok:
            progress.prove("ready")
            run.figures.append(
                Figure(name="ready_seconds", value=round(process.seconds(), 2), step=POLL, source="GET /health")
            )
            teller.tell()
            _inquire(client, run)
            if plan.until == "ready":
                return
            progress.begin("first token", process.seconds())
            teller.tell()
            _first_token(runtime, process, progress, client, plan, run)
            return


class _Teller:
    """Tells of each new phase once, and of each silence that exceeds a phase's patience once."""

    def __init__(self, process: Process, progress: Progress, tell: Callable[[Event], None]) -> None:
        self._process, self._progress, self._tell = process, progress, tell
        self._told = 0
        self._stalled = ""

    def tell(self) -> None:
        now = self._process.seconds()
        times = self._progress.times(now, complete=False)
        for time_ in times[self._told :]:
            self._tell(Event(kind="phase", at=time_.began, text=time_.name))
        self._told = len(times)
        phase, silent = self._progress.current, self._process.silent()
        if silent > phase.patience and self._stalled != phase.name:
            self._stalled = phase.name
            behind = "; ".join(phase.behind)
            self._tell(Event(kind="stall", at=now, text=f"{phase.name}: silent for {silent:.0f} s; usually {behind}"))


def _inquire(client: Client, run: _Run) -> None:
    """What the server itself says of its cache."""
    from .server import figures_of

    run.figures += figures_of(client)


def _first_token(runtime: str, process: Process, progress: Progress, client: Client, plan: Plan, run: _Run) -> None:
    listed = client.get("/v1/models").json()
    data: Any = listed.get("data") if isinstance(listed, dict) else None
    model = data[0].get("id") if isinstance(data, list) and data and isinstance(data[0], dict) else None
    body: dict[str, Any]
    remaining = max(plan.timeout - process.seconds(), 1.0)
    # token ids, so that a server without a tokenizer answers too; 1 is a token of every vocabulary
    if runtime == "llamacpp":
        # its own endpoint, and a letter: a token without text is refused by the parser of what models say
        path, body = "/completion", {"prompt": [1, 1, 1], "n_predict": 1, "grammar": "root ::= [a-zA-Z]"}
    else:
        path = "/v1/completions"
        body = {"model": model, "prompt": [1, 1, 1], "max_tokens": 1, "temperature": 0, "detokenize": False}
    answer = client.post(path, body, timeout=remaining)
    process.wait(POLL)
    if answer.ok:
        progress.prove("first-token")
        seconds = round(answer.seconds, 3)
        run.figures.append(Figure(name="first_token_seconds", value=seconds, step=0.001, source=f"POST {path}"))
    elif not process.running():
        run.ending = "died"
    elif answer.status == 0 and answer.seconds >= remaining - 1:
        run.ending = "timed out"
    else:
        run.ending = "refused"
        run.notes.append(f"POST {path} was answered HTTP {answer.status}: {answer.body[:300]}")


def _memory_kept(before: dict[str, int], gpu_memory: GpuMemory) -> dict[str, int]:
    """Bytes by GPU beyond what was in use before, once the wait is over; empty as soon as all is back."""
    deadline = time.monotonic() + MEMORY_WAIT
    while before:
        with contextlib.suppress(KeyboardInterrupt):
            kept = {
                gpu: used - before[gpu]
                for gpu, used in gpu_memory().items()
                if gpu in before and used > before[gpu] + MEMORY_SLACK
            }
            if not kept or time.monotonic() > deadline:
                return kept
            time.sleep(0.5)
    return {}


def _refused(measured: Measured, text: str, without: tuple[str, ...]) -> _Refused | None:
    if measured.ending != "died" or measured.reached != "nothing":
        return None
    for words in OLD_BUILD_KNOWS_NOT:
        flag = text.partition(words)[2].split("\n", 1)[0].strip()
        if flag in ("-nr", "-lv", "-fit") and flag not in without:
            return _Refused(reason=f"this build does not know {flag}; starting again without it", flags=(flag,))
    if any(words in text for words in PORT_TAKEN) and "port" not in without:
        return _Refused(reason="the port was taken in between; starting again on another", flags=("port",))
    return None
