"""The command line: fast to answer, clear about bad input, exit codes as designed."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from command import run, started
from llmdoctor_core.cli import COMMANDS, app
from llmdoctor_core.state import state_folder

HEAVY = ("rich", "msgspec", "numpy", "huggingface_hub", "yaml", "packaging", "pynvml", "psutil", "prometheus_client")
QWEN = ("--offline", "--gpu", "A100-80GB", "--", "vllm", "serve", "Qwen/Qwen3-8B")


def cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_takes_a_tenth_of_a_second_of_cpu() -> None:
    started("--help")
    assert min(cpu_seconds("--help") for _ in range(5)) < 0.12


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_nothing_heavy(command: str) -> None:
    code = (
        "import sys\nfrom llmdoctor_core.cli import app\n"
        f"try: app.main([{f'{command!r}, ' if command else ''}'--help'])\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
    assert "Usage:" in done.stdout


def test_a_check_without_a_gpu_takes_under_a_second() -> None:
    started("check", *QWEN)
    assert min(cpu_seconds("check", *QWEN) for _ in range(3)) < 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("chekc",), "did you mean 'check'"),
        (("check", "--no-such-option"), "no-such-option"),
        (("check",), "no launch given"),
        (("check", "--", "cat", "file"), "cannot tell the runtime"),
        (("check", "--gpu", "H1000", "--", "vllm", "serve", "m"), "H1000"),
        (("check", "--runtime", "vlm", "--", "--model", "m"), "'vlm'"),
        (("check", "--case", "/no/such/file"), "/no/such/file"),
        (("check", "--format", "pdf", *QWEN), "'pdf'"),
        (("check", "--select", "GPV001", *QWEN), "GPU001"),
        (("check", "--kv-memory", "lots", *QWEN), "'lots' is not a size"),
        (("check", "--offline", "--gpu", "L4", "--", "vllm", "serve", "no/such-model"), "no/such-model"),
        (("predict", "--sweep", "max_model_len", *QWEN), "max_model_len"),
        (("explain", "GPU999"), "'GPU999'"),
        (("fix", "--plan", "/no/such/plan"), "/no/such/plan"),
        (("undo", "nothing"), "'nothing'"),
    ],
)
def test_bad_input_is_one_clear_sentence_and_exit_2(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = run(*arguments, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2, done.stderr.decode()
    assert says in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
    assert done.stdout == b""


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1]", b"null", b'{"format_version": "9.0"}', b'{"launch": {"fact": "gpus"}}', b"\xff\xfe",
             b"[" * 100_000, b'{"gpus": {"fact": "gpus", "devices": [{"index": NaN}]}}']
)  # fmt: skip
def test_a_case_file_that_is_none_is_refused(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_bytes(text)
    done = run("check", "--case", str(file))
    assert done.returncode == 2, done.stderr.decode()
    assert "case.json" in done.stderr.decode()


def test_the_main_job_reports_cache_and_verdict() -> None:
    done = started("check", *QWEN)
    text = done.stdout.decode()
    assert done.returncode == 0, text
    for part in ("READY", "cache.tokens", "max_concurrency", "GPU KV cache size:", "exit code 0"):
        assert part in text


def test_a_replayed_case_gives_identical_findings(tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    server = ("vllm", "serve", "Qwen/Qwen2.5-14B-Instruct", "--tensor-parallel-size", "3", "--no-such-flag")
    launch = ("--offline", "--gpu", "L4x2", "--", *server)
    assert run("snapshot", "-o", str(case), *launch).returncode == 0
    direct, replayed = run("check", "--format", "json", *launch), run("check", "--format", "json", "--case", str(case))
    assert direct.returncode == replayed.returncode == 1
    assert json.loads(direct.stdout) == json.loads(replayed.stdout)


def test_several_reports_from_one_run_and_nothing_but_the_report_on_stdout(tmp_path: Path) -> None:
    sarif, junit = tmp_path / "out.sarif", tmp_path / "out.xml"
    done = run("check", "--format", "json", "--report", f"sarif={sarif}", "--report", f"junit={junit}",
               "--sarif-anchor", "README.md", *QWEN)  # fmt: skip
    json.loads(done.stdout)
    assert json.loads(sarif.read_text())["version"] == "2.1.0"
    assert junit.read_text().startswith("<?xml")


def test_ignored_findings_are_shown_and_do_not_count(tmp_path: Path) -> None:
    launch = ("--offline", "--gpu", "L4", "--", "vllm", "serve", "Qwen/Qwen3-8B", "--no-such-flag")
    failing = run("check", "--format", "json", *launch)
    codes = {f["code"] for f in json.loads(failing.stdout)["findings"] if f["outcome"] == "fail"}
    assert failing.returncode == 1
    ignoring = [argument for code in codes for argument in ("--ignore", f"{code}=known")]
    done = run("check", "--format", "json", *ignoring, *launch)
    assert done.returncode == 0
    assert {f["code"] for f in json.loads(done.stdout)["findings"] if f["suppressed"] == "known"} == codes
    baseline = tmp_path / "baseline.json"
    baseline.write_bytes(failing.stdout)
    assert run("check", "--baseline", str(baseline), *launch).returncode == 0


@pytest.mark.parametrize("option", ["--ignore", "--select", "--require"])
@pytest.mark.parametrize("given", ["", " ", "MEM801,", "=why"])
def test_an_empty_selector_does_not_mean_every_check(option: str, given: str) -> None:
    done = run("check", option, given, *QWEN)
    assert done.returncode == 2
    assert f"{option} names an empty condition".encode() in done.stderr or b"no condition '=why'" in done.stderr


def test_selectors_may_be_joined_by_commas() -> None:
    too_long = (*QWEN, "--max-model-len", "999999")
    assert run("check", "--ignore", "CTX601,ctx603=measured, and fine", *too_long).returncode == 0
    assert run("check", "--select", "GPU,CTX601", *too_long).returncode == 1
    assert run("check", "--require", "MEM801,GPU011", *QWEN).returncode == 3


@pytest.mark.parametrize(("option", "given"), [("--select", "NOPE"), ("--select", ""), ("--number", "99")])
def test_a_fix_of_nothing_that_there_is_says_so(option: str, given: str) -> None:
    assert run("fix", option, given, *QWEN).returncode == 2


@pytest.mark.parametrize(("version", "code"), [("O.ll", 2), ("nightly", 0), ("v0.11.0", 0), ("", 0)])
def test_a_version_that_is_none_is_refused(version: str, code: int) -> None:
    assert run("check", "--runtime-version", version, *QWEN).returncode == code


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user: no HOME, and a uid that /etc/passwd does not know."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "HF_HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", *QWEN),
        ("fix", *QWEN),
        ("snapshot", *QWEN),
        ("bundle", "--show", *QWEN),
        ("history",),
        ("calibration", "list"),
    ],
)
def test_a_user_without_a_home_is_served(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, arguments, standalone_mode=False)
    assert done.exception is None
    assert not done.return_value


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_has_a_place_for_state() -> None:
    assert state_folder() == Path("/.local/state/llmdoctor")


def test_a_case_or_a_file_and_a_launch_beside_it_are_refused(tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    assert run("snapshot", "-o", str(case), *QWEN).returncode == 0
    for command in ("check", "fix", "bundle"):
        assert b"does not go with --case" in run(command, "--case", str(case), *QWEN).stderr
        assert run(command, "--case", str(case), "--gpu", "L4").returncode == 2
    script = tmp_path / "run.sh"
    script.write_text("vllm serve Qwen/Qwen3-8B\n")
    assert b"given twice" in run("check", "-f", str(script), *QWEN).stderr


def test_launches_of_one_name_are_each_examined(tmp_path: Path) -> None:
    unit = tmp_path / "x.service"
    unit.write_text("[Service]\nExecStart=vllm serve Qwen/Qwen3-32B\nExecStart=vllm serve Qwen/Qwen3-0.6B\n")
    done = run("check", "--offline", "--gpu", "L4", "--format", "json", "-f", str(unit))
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["hosts"]) == 2


def test_a_required_check_that_is_skipped_is_exit_3() -> None:
    assert run("check", "--require", "GPU003", *QWEN).returncode == 3


def test_a_config_file_counts_and_an_unknown_key_is_named(tmp_path: Path) -> None:
    config = tmp_path / "llmdoctor.toml"
    config.write_text('require = ["GPU003"]\n')
    assert run("check", "--config", str(config), *QWEN).returncode == 3
    config.write_text('requier = ["GPU003"]\n')
    done = run("check", "--config", str(config), *QWEN)
    assert done.returncode == 2
    assert "did you mean 'require'" in done.stderr.decode()


def test_explain_speaks_korean() -> None:
    assert "GPU001 no-gpu-visible" in run("explain", "no-gpu-visible", "--lang", "ko").stdout.decode()


@pytest.mark.parametrize("arguments", [("check", "-v", *QWEN), ("explain", "--lang", "ko", "CTX603"), ("list",)])
def test_a_terminal_of_another_encoding_is_no_crash(arguments: tuple[str, ...]) -> None:
    done = started(*arguments, PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_broken_pipe_is_no_crash() -> None:
    done = subprocess.run(
        f"{sys.executable} -m llmdoctor_core list | head -1", shell=True, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("arguments", "code"), [(QWEN, 0), ((*QWEN, "--max-model-len", "999999"), 1)])
@pytest.mark.parametrize("end", ["| true", ">&-", ">&- 2>&- <&-"])
def test_the_verdict_does_not_depend_on_a_reader(arguments: tuple[str, ...], code: int, end: str) -> None:
    command = shlex.join((sys.executable, "-m", "llmdoctor_core", "check", *arguments))
    done = subprocess.run(["bash", "-o", "pipefail", "-c", f"{command} {end}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_full_disk_behind_standard_output_is_a_sentence() -> None:
    command = shlex.join((sys.executable, "-m", "llmdoctor_core", "check", *QWEN))
    done = subprocess.run(f"{command} > /dev/full", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "llmdoctor: cannot write standard output: No space left on device\n")
