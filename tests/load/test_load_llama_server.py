"""The real llama-server: what was predicted is what it prints, to the last digit, and nothing of it is left."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gguf_models import tiny_file
from llmdoctor_core.case import Case
from llmdoctor_core.derive import Facts
from llmdoctor_core.facts import Forecast, Gpus, LaunchRequest, System, Unavailable
from llmdoctor_core.load.ask import Client
from llmdoctor_core.load.compare import printed
from llmdoctor_core.load.confirm import Confirmation, confirm
from llmdoctor_core.load.hollow import local_parts, write_hollow
from llmdoctor_core.load.process import Process, free_port
from llmdoctor_core.load.run import Plan
from llmdoctor_core.load.server import findings, read_server
from llmdoctor_core.models.gguf import read_gguf
from load.real_servers import gemma3_270m, llama_server, second_llama_server, smollm2

SERVER = llama_server()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        SERVER is None,
        reason="no llama-server in LLMDOCTOR_SLOW/llama (tests/slow_requirements) or on PATH",
    ),
]
KINDS = {
    "full": ("qwen3-8b", "-c 4096"),
    "sliding window": ("gemma3-4b", "-c 8192 -np 1"),
    "sliding window, unified": ("gpt-oss-20b", "-c 16384"),
    "latent": ("dsv2-lite-mla", "-c 8192 -np 2"),
    "indexer": ("dsv32-dsa", "-c 4096 -np 1"),
    "gated delta net": ("qwen35-9b", "-c 8192 -np 3"),
    "mamba and attention": ("jamba", "-c 4096"),
    "mamba alone": ("mamba2", "-c 4096"),
    "short convolution": ("lfm2", "-c 4096"),
    "shared layers": ("gemma4", "-c 8192 -np 2"),
    "differing widths": ("mimo2", "-c 8192"),
    "quantised": ("gemma3-4b", "-c 8192 -np 1 -ctk q8_0 -ctv q8_0"),
    "slot capped at the training length": ("small-ctx", "-c 8192 -np 2"),
}
"""One tiny model of each kind of cache."""


@pytest.fixture
def place() -> Iterator[dict[str, str]]:
    """An environment that marks what is started in it; nothing of it, nor a file, may be left."""
    scratch = Path(tempfile.mkdtemp(prefix="drill-"))  # short, as a socket's path must be
    tag = f"llama-{os.getpid()}-{time.monotonic_ns()}"
    yield {**os.environ, "TMPDIR": str(scratch), "DRILL": tag}
    assert [process.pid for process in psutil.process_iter() if _tag(process) == tag] == []
    assert list(scratch.iterdir()) == []
    scratch.rmdir()


def _tag(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("DRILL")
    except psutil.Error:
        return None


def run(
    place: dict[str, str],
    model: Path,
    words: str,
    tmp_path: Path,
    *,
    until: str = "ready",
    weightless: bool = False,
    server: tuple[str, ...] | None = None,
    build: str = "b10434",
) -> Confirmation:
    assert SERVER is not None
    arguments = ("-m", str(model), "-t", "1", *words.split())
    argv = (*(server or (SERVER,)), *arguments)
    case = Case(
        launch=LaunchRequest(
            runtime="llamacpp", argv=("llama-server", *arguments), version=build, version_source="test"
        ),
        model=read_gguf(model),
        gpus=Gpus(devices=()),
        system=System(kernel="", cpu_flags=_cpu_flags()),
    )
    plan = Plan(until=until, timeout=60, weightless=weightless)  # type: ignore[arg-type]
    return confirm(case, argv, place, plan, store=tmp_path / "calibration.json")


def cpu_seconds() -> float:
    """Of this process and all it has waited for, the servers among them: what a load costs on an idle host."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _cpu_flags() -> tuple[str, ...]:
    line = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    return tuple(line.partition(":")[2].split())


def assert_as_predicted(confirmation: Confirmation, *, slot: bool = True) -> None:
    """Every exact figure equal, no estimate outside, and the predicted lines printed word for word."""
    verdicts = {(row.name, row.device): row.verdict for row in confirmation.rows}
    assert verdicts.get(("cache", None), "equal") == "equal", verdicts
    assert verdicts.get(("state", None), "equal") == "equal", verdicts
    assert verdicts["weights", "CPU"] == "equal", verdicts
    if slot:
        assert verdicts["slot_tokens", None] == "equal", verdicts
    assert "outside" not in verdicts.values(), verdicts
    forecast = Facts(confirmation.case).get(Forecast)
    assert isinstance(forecast, Forecast)
    lines = printed(forecast, confirmation.log)
    assert lines
    assert [line for line, found in lines if not found and (slot or "load_model:" not in line)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_cache_is_printed_as_predicted(kind: str, place: dict[str, str], tmp_path: Path) -> None:
    name, words = KINDS[kind]
    began = cpu_seconds()
    confirmation = run(place, tiny_file(name), words, tmp_path, until="first-token")
    assert cpu_seconds() - began < 10
    if kind == "quantised" and confirmation.measured.reached == "cache":  # as with quantised weights, below
        assert confirmation.findings[0].code == "HOST109"
        assert_as_predicted(confirmation, slot=False)
        return
    assert confirmation.measured.reached == "first-token", confirmation.measured
    assert confirmation.findings == ()
    assert_as_predicted(confirmation)


@pytest.mark.parametrize("kind", KINDS)
def test_the_hollow_variant_of_each_gives_the_same_cache(kind: str, place: dict[str, str], tmp_path: Path) -> None:
    name, words = KINDS[kind]
    confirmation = run(place, tiny_file(name), words, tmp_path, until="cache", weightless=True)
    assert confirmation.measured.reached == "cache"
    assert_as_predicted(confirmation, slot=False)
    assert any("weights themselves" in note for note in confirmation.measured.notes)
    assert confirmation.learnt is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_sizes_each_without_allocating(kind: str, place: dict[str, str], tmp_path: Path) -> None:
    name, words = KINDS[kind]
    confirmation = run(place, tiny_file(name), words, tmp_path, until="plan")
    assert confirmation.measured.reached in ("plan", "cache")  # a busy host stops it a little later
    verdicts = {row.name: row.verdict for row in confirmation.rows}
    assert {verdicts.get("cache", "equal"), verdicts.get("state", "equal")} == {"equal"}, confirmation.rows
    assert verdicts["compute"] in ("equal", "within")


REAL = ("smollm2", "gemma3-270m")


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | None]:
    return {"smollm2": smollm2(), "gemma3-270m": gemma3_270m(tmp_path_factory.mktemp("gemma"))}


def model_of(real: dict[str, Path | None], name: str) -> Path:
    path = real[name]
    if path is None:
        pytest.skip(f"{name}: its PyPI package is not installed (tests/slow_requirements)")
    return path


@pytest.mark.parametrize("weightless", [False, True], ids=["real", "hollow"])
@pytest.mark.parametrize("name", REAL)
def test_real_files_are_printed_as_predicted(
    name: str, weightless: bool, real: dict[str, Path | None], place: dict[str, str], tmp_path: Path
) -> None:
    began = cpu_seconds()
    # Without the warm-up: a build for a newer CPU dies in it, and takes the lines it has not yet written along.
    confirmation = run(
        place, model_of(real, name), "-c 8192 --no-warmup", tmp_path, until="cache", weightless=weightless
    )
    assert confirmation.measured.reached == "cache"
    assert_as_predicted(confirmation, slot=False)
    assert cpu_seconds() - began < 10


@pytest.mark.parametrize("name", REAL)
def test_real_files_answer_or_the_cpu_is_named(
    name: str, real: dict[str, Path | None], place: dict[str, str], tmp_path: Path
) -> None:
    """A wheel built for a newer CPU dies of SIGILL on quantised weights: then that is the finding."""
    confirmation = run(place, model_of(real, name), "-c 4096 -np 1", tmp_path, until="first-token")
    if confirmation.measured.reached == "first-token":
        assert confirmation.findings == ()
        assert_as_predicted(confirmation)
        return
    assert confirmation.findings[0].code == "HOST109"
    assert any(item.fact == "CPU" and "without" in item.value for item in confirmation.findings[0].evidence)


@pytest.mark.parametrize("weightless", [False, True], ids=["real", "hollow"])
@pytest.mark.parametrize("name", [*REAL, "qwen3-8b", "gemma3-4b", "qwen35-9b", "dsv2-lite-mla"])
def test_a_second_build_prints_as_predicted_and_answers(
    name: str, weightless: bool, real: dict[str, Path | None], place: dict[str, str], tmp_path: Path
) -> None:
    server = second_llama_server()
    if server is None:
        pytest.skip("no xllamacpp in LLMDOCTOR_SLOW/llama (tests/slow_requirements)")
    model = model_of(real, name) if name in REAL else tiny_file(name)
    until = "ready" if weightless else "first-token"
    confirmation = run(
        place, model, "-c 4096 -np 2", tmp_path, until=until, weightless=weightless, server=server, build="b11549"
    )
    assert confirmation.measured.reached == until, confirmation.measured.tail
    assert confirmation.findings == ()
    assert_as_predicted(confirmation)


def test_a_hollow_file_takes_its_header_on_disk(real: dict[str, Path | None], tmp_path: Path) -> None:
    path = model_of(real, "smollm2")
    hollow = write_hollow(local_parts(path), tmp_path)
    assert hollow.stat().st_size == path.stat().st_size > 90 << 20
    assert hollow.stat().st_blocks * 512 < 3 << 20


def test_a_broken_file_is_the_condition_it_is(place: dict[str, str], tmp_path: Path) -> None:
    whole = tiny_file("qwen3-8b")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size - 100_000])
    confirmation = run(place, cut, "-c 512", tmp_path)
    assert confirmation.measured.ending == "died"
    codes = [finding.code for finding in confirmation.findings]
    assert "GGUF506" in codes
    assert codes[-1] == "LOAD003"


def test_a_server_that_runs_is_read_and_compared(place: dict[str, str], tmp_path: Path) -> None:
    assert SERVER is not None
    model, port = tiny_file("gemma3-4b"), free_port()
    argv = (SERVER, "-m", str(model), "-c", "4096", "-np", "2", "-t", "1", "--metrics", "--port", str(port))
    with Process(place) as process:
        process.start(argv)
        client = Client(f"http://127.0.0.1:{port}")
        while not client.get("/health").ok:
            process.wait(0.2)
            assert process.running()
        reading = read_server(client.url, interval=0.5)
    assert reading.runtime == "llamacpp"
    assert reading.model == str(model)
    assert reading.cache_config["total_slots"] == "2"
    assert reading.unread == {}
    assert {shown.sign.name for shown in reading.signs} >= {"requests deferred", "generated tokens"}
    launch = LaunchRequest(runtime="llamacpp", argv=argv, version="b10434", version_source="test")
    facts = Facts(Case(launch=launch, model=read_gguf(model), gpus=Gpus(devices=())))
    assert findings(reading, facts.get(Forecast), Unavailable(reason="-")) == ()
    smaller = LaunchRequest(runtime="llamacpp", argv=(*argv, "-c", "2048"), version="b10434", version_source="test")
    facts = Facts(Case(launch=smaller, model=read_gguf(model), gpus=Gpus(devices=())))
    (found,) = findings(reading, facts.get(Forecast), Unavailable(reason="-"))
    assert found.code == "LOAD001"
    assert "slot_tokens" in found.message


def test_the_command_line_does_it_all(place: dict[str, str], tmp_path: Path) -> None:
    assert SERVER is not None
    argv = [sys.executable, "-m", "llmdoctor_core", "load", "--until", "first-token", "--format", "json", "--"]
    argv += [SERVER, "-m", str(tiny_file("gemma3-4b")), "-c", "4096", "-np", "1", "-t", "1"]
    environment = {**place, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["load"]["measured"]["reached"] == "first-token"
    assert {row["verdict"] for row in report["load"]["rows"] if row["name"] == "cache"} == {"equal"}
    assert "first token" in done.stderr
    listed = subprocess.run(
        [sys.executable, "-m", "llmdoctor_core", "calibration", "list"], capture_output=True, text=True, env=environment
    )
    assert "gemma3" in listed.stdout
    predicted = subprocess.run(
        [sys.executable, "-m", "llmdoctor_core", "predict", "--", *argv[argv.index("--") + 1 :]],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert "measured on this host" in predicted.stdout
