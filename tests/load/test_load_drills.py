"""Fault drills: whatever a server or a person does, the load ends in time, says what happened, and leaves nothing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Unavailable
from llmdoctor_core.load.findings import findings
from llmdoctor_core.load.run import Event, Loaded, Plan, load
from load.patients import LINES

pytestmark = pytest.mark.slow


PATIENTS = str(Path(__file__).with_name("patients.py"))
DRIVE = str(Path(__file__).with_name("drive.py"))
NOT_SEEN = Unavailable(reason="not looked for")


@pytest.fixture
def place() -> Iterator[dict[str, str]]:
    """An environment with a temporary directory and a tag of its own; nothing of either may be left afterwards."""
    scratch = Path(tempfile.mkdtemp(prefix="drill-"))  # short, as a socket's path must be
    tag = f"drill-{os.getpid()}-{time.monotonic_ns()}"
    yield {**os.environ, "TMPDIR": str(scratch), "DRILL": tag}
    assert tagged(tag) == []
    assert list(scratch.iterdir()) == []
    scratch.rmdir()


def tagged(tag: str) -> list[str]:
    """Living processes that were started with the tag in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DRILL") == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def run(place: dict[str, str], illness: str, *, until: str = "ready", timeout: float = 20, grace: float = 1) -> Loaded:
    plan = Plan(until=until, timeout=timeout, grace=grace)  # type: ignore[arg-type]
    return load("vllm", (sys.executable, PATIENTS, illness), place, plan)


def codes(loaded: Loaded) -> list[str]:
    return [finding.code for finding in findings(loaded.measured, (), NOT_SEEN, loaded.log)]


def test_a_server_that_is_well_is_measured_and_gone(place: dict[str, str]) -> None:
    loaded = run(place, "well", until="first-token")
    measured = loaded.measured
    assert (measured.reached, measured.ending, measured.left) == ("first-token", "reached", ())
    assert [phase.name for phase in measured.phases] == [*LINES, "ready", "first token"]
    tokens, graphs = measured.figure("cache_tokens"), measured.figure("graphs")
    assert tokens is not None
    assert tokens.value == 524_288
    assert graphs is not None
    assert graphs.value == 0.25 * 2**30
    assert measured.figure("first_token_seconds") is not None
    assert codes(loaded) == []


def test_the_stage_asked_for_ends_the_load(place: dict[str, str]) -> None:
    assert run(place, "hangs-in-graphs", until="cache").measured.reached == "cache"


def test_dies_at_once(place: dict[str, str]) -> None:
    loaded = run(place, "dies")
    assert loaded.measured.ending == "died"
    assert loaded.measured.end is not None
    assert loaded.measured.end.exit_status == 1
    assert "LOAD003" in codes(loaded)
    assert "Engine core initialization failed" in loaded.measured.tail[-1]


def test_killed_by_a_signal_is_said_so(place: dict[str, str]) -> None:
    loaded = run(place, "segfaults")
    assert loaded.measured.end is not None
    assert loaded.measured.end.signal == "SIGSEGV"
    assert "killed by SIGSEGV" in findings(loaded.measured, (), NOT_SEEN)[0].message


def test_hangs_without_a_word(place: dict[str, str]) -> None:
    loaded = run(place, "silent", timeout=1)
    (stalled,) = findings(loaded.measured, (), NOT_SEEN)
    assert stalled.code == "LOAD002"
    assert "in the phase configuration" in stalled.message
    assert "silent for" in stalled.message


def test_a_stall_names_its_phase_and_what_is_usually_behind_it(place: dict[str, str]) -> None:
    loaded = run(place, "hangs-in-communication", timeout=4)
    (stalled,) = findings(loaded.measured, (), NOT_SEEN)
    assert "in the phase communication" in stalled.message
    assert "NCCL_DEBUG=INFO" in stalled.message
    assert "distributed_init_method" in stalled.message


@pytest.mark.slow
def test_a_first_request_without_answer_is_a_stall_of_the_first_token(place: dict[str, str]) -> None:
    loaded = run(place, "mute", until="first-token", timeout=6)
    assert loaded.measured.ending == "timed out"
    assert loaded.measured.phases[-1].name == "first token"
    assert codes(loaded) == ["LOAD002"]


@pytest.mark.slow
def test_floods_a_hundred_megabytes_in_bounded_memory(place: dict[str, str]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded = run(place, "floods", timeout=120)
    assert loaded.measured.reached == "ready"
    assert loaded.measured.figure("cache_tokens") is not None
    assert len(loaded.log) < 20 << 20
    assert "lines left out" in loaded.log
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


def test_a_line_without_end_does_not_fill_the_memory(place: dict[str, str]) -> None:
    loaded = run(place, "endless line", timeout=60)
    assert loaded.measured.reached == "ready"
    assert len(loaded.log) < 20 << 20


def test_ignores_sigterm_and_is_killed_after_its_grace(place: dict[str, str]) -> None:
    began = time.monotonic()
    loaded = run(place, "deaf", grace=1)
    assert loaded.measured.reached == "ready"
    assert time.monotonic() - began < 15


def test_children_that_left_the_group_and_ignore_sigterm_go_too(place: dict[str, str]) -> None:
    assert run(place, "family", grace=0.5).measured.left == ()


def test_children_of_a_server_that_died_go_too(place: dict[str, str]) -> None:
    loaded = run(place, "orphans")
    assert loaded.measured.end is not None
    assert loaded.measured.end.exit_status == 3


def test_broken_utf8_and_escape_sequences_come_out_clean(place: dict[str, str]) -> None:
    log = run(place, "garbage").log
    assert "red" in log
    assert "progress 2%" in log
    assert not any(character in log for character in "\x1b\x00\x08\x9b\r")
    log.encode("utf-8")


def test_shared_memory_of_a_killed_server_is_removed(place: dict[str, str]) -> None:
    before = set(Path("/dev/shm").iterdir())
    loaded = run(place, "shared memory", grace=0.2)
    assert "shared memory psm_" in loaded.log
    assert set(Path("/dev/shm").iterdir()) <= before


def test_a_port_taken_in_between_is_tried_again_then_reported(place: dict[str, str]) -> None:
    told: list[Event] = []
    loaded = load("vllm", (sys.executable, PATIENTS, "taken"), place, Plan(timeout=20), tell=told.append)
    assert [event.text for event in told if event.kind == "note"] == [
        "the port was taken in between; starting again on another"
    ]
    assert loaded.measured.ending == "died"
    assert "Address already in use" in loaded.measured.tail[-1]


def test_a_command_that_is_not_there(place: dict[str, str]) -> None:
    with pytest.raises(InputError, match="no-such-server: no such executable"):
        load("vllm", ("no-such-server", "serve", "x"), place, Plan())


def test_a_temporary_directory_that_is_not_there(place: dict[str, str]) -> None:
    with pytest.raises(InputError, match="TMPDIR /nowhere"):
        load("vllm", (sys.executable, PATIENTS, "well"), {**place, "TMPDIR": "/nowhere"}, Plan())


def test_gpu_memory_that_comes_back_a_little_later_is_waited_for(place: dict[str, str]) -> None:
    used = iter([{"GPU-a": 1 << 30}, {"GPU-a": 9 << 30}, {"GPU-a": 5 << 30}, {"GPU-a": (1 << 30) + 1000}])
    loaded = load("vllm", (sys.executable, PATIENTS, "dies"), place, Plan(), gpu_memory=lambda: next(used))
    assert loaded.measured.memory_kept == {}
    assert next(used, None) is None


def test_gpu_memory_that_does_not_come_back_is_told(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmdoctor_core.load.run.MEMORY_WAIT", 0.6)
    used = iter([{"GPU-a": 1 << 30, "GPU-b": 0}])
    after = {"GPU-a": 4 << 30, "GPU-b": 0}
    loaded = load("vllm", (sys.executable, PATIENTS, "dies"), place, Plan(), gpu_memory=lambda: next(used, after))
    assert loaded.measured.memory_kept == {"GPU-a": 3 << 30}
    assert "LOAD004" in codes(loaded)


def test_a_key_is_shown_nowhere(place: dict[str, str]) -> None:
    told: list[Event] = []
    argv = (sys.executable, PATIENTS, "dies", "--api-key", "very-secret")
    loaded = load("vllm", argv, place, Plan(), tell=told.append)
    assert "very-secret" not in repr(loaded.measured) + repr(told)


def test_a_temporary_directory_too_long_for_sockets_is_not_used(place: dict[str, str], tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    loaded = load(
        "vllm", (sys.executable, PATIENTS, "child"), {**place, "TMPDIR": str(long)}, Plan(timeout=1, grace=0.1)
    )
    assert loaded.measured.left == ()
    assert list(long.iterdir()) == []


def drive(place: dict[str, str], illness: str, until: str = "first-token") -> subprocess.Popen[str]:
    spec = {"runtime": "vllm", "argv": [sys.executable, PATIENTS, illness], "until": until, "timeout": 60, "grace": 1}
    return subprocess.Popen([sys.executable, DRIVE, json.dumps(spec)], stdout=subprocess.PIPE, env=place, text=True)


def until_phase(process: subprocess.Popen[str], phase: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == f"phase {phase}":
            return
    raise AssertionError(f"the load never came to {phase}")


@pytest.mark.parametrize("phase", [*LINES, "first token"])
def test_ctrl_c_in_each_phase(place: dict[str, str], phase: str) -> None:
    illness = "mute" if phase == "first token" else f"hangs-in-{phase}"
    with drive(place, illness) as process:
        until_phase(process, phase)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    measured = json.loads(out.splitlines()[-1])
    assert measured["ending"] == "interrupted"
    assert measured["phases"][-1]["name"] == phase


def test_ctrl_c_twice_does_not_wait_for_the_grace(place: dict[str, str]) -> None:
    spec = {"runtime": "vllm", "argv": [sys.executable, PATIENTS, "deaf", "mute"], "until": "first-token"}
    argv = [sys.executable, DRIVE, json.dumps({**spec, "timeout": 60, "grace": 60})]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=place, text=True) as process:
        until_phase(process, "first token")
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def test_sigterm_to_the_doctor_takes_the_server_with_it(place: dict[str, str]) -> None:
    with drive(place, "family") as process:
        until_phase(process, "ready")
        process.terminate()
        out, _ = process.communicate(timeout=30)
    measured = json.loads(out.splitlines()[-1])
    assert measured["ending"] in ("interrupted", "reached")


@pytest.mark.parametrize("illness", ["hangs-in-weights", "family"])
def test_sigkill_of_the_doctor_takes_the_server_with_it(place: dict[str, str], illness: str) -> None:
    with drive(place, illness) as process:
        until_phase(process, "weights")
        time.sleep(0.5)
        process.kill()
        process.wait()
    deadline = time.monotonic() + 20
    while (tagged(place["DRILL"]) or any(Path(place["TMPDIR"]).iterdir())) and time.monotonic() < deadline:
        time.sleep(0.1)


def test_sigkill_of_the_supervisor_leaves_nothing_either(place: dict[str, str]) -> None:
    with drive(place, "hangs-in-weights") as process:
        until_phase(process, "weights")
        (supervisor,) = [
            child for child in psutil.Process(process.pid).children() if "supervisor.py" in " ".join(child.cmdline())
        ]
        supervisor.kill()
        out, _ = process.communicate(timeout=30)
    assert json.loads(out.splitlines()[-1])["ending"] == "died"
