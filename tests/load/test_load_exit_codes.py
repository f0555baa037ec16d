"""The command's exit codes: what a gate learns from a load, whatever became of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from load.real_servers import write_config

pytestmark = pytest.mark.slow


PATIENTS = str(Path(__file__).with_name("patients.py"))
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def start(tmp_path: Path) -> list[str]:
    """The words of a load of a tiny model, up to the server's own."""
    model = write_config(tmp_path / "model", CONFIG)
    words = [sys.executable, "-m", "llmdoctor_core", "load", "--offline", "--runtime", "vllm", "--model", str(model)]
    return [*words, "--runtime-version", "0.32.0", "--format", "json", "--no-learn"]


def finish(words: list[str], *command: str) -> tuple[int, list[str], str]:
    """Exit code, codes of the findings, and what was said on standard error."""
    done = subprocess.run([*words, "--", *command], capture_output=True, text=True, timeout=60)
    codes = [finding["code"] for finding in json.loads(done.stdout)["findings"]] if done.stdout else []
    return done.returncode, codes, done.stderr


def test_a_server_that_dies_exits_1_with_why(start: list[str]) -> None:
    code, findings, _ = finish(start, sys.executable, PATIENTS, "dies")
    assert code == 1
    assert findings[-1] == "LOAD003"


def test_a_stall_exits_1(start: list[str]) -> None:
    code, findings, said = finish([*start, "--timeout", "2"], sys.executable, PATIENTS, "silent")
    assert (code, findings) == (1, ["LOAD002"])
    assert "stopping: timed out" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("no-such-server", "serve"), "no such executable"),
        (("docker", "run", "vllm/vllm-openai:v0.32.0", "--model", "x"), "inside the docker"),
    ],
)
def test_what_cannot_be_started_exits_2_with_one_sentence(start: list[str], words: tuple[str, ...], says: str) -> None:
    code, _, said = finish(start, *words)
    assert code == 2
    assert says in said
    assert "Traceback" not in said


def test_a_deployment_file_is_nothing_to_start(start: list[str]) -> None:
    code, _, said = finish([*start, "-f", "compose.yaml"], sys.executable, PATIENTS, "dies")
    assert code == 2
    assert "after --" in said


def interrupted(words: list[str]) -> tuple[int, dict[str, object]]:
    """Exit code and report of a command that Ctrl-C meets while weights are loaded."""
    words = [*words, "--", sys.executable, PATIENTS, "hangs-in-weights"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.rstrip().endswith("weights"):
                break
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    return process.returncode, json.loads(out)


def test_ctrl_c_exits_130_and_still_reports(start: list[str]) -> None:
    code, report = interrupted(start)
    assert code == 130
    assert report["load"]["measured"]["ending"] == "interrupted"  # type: ignore[index]


def test_ctrl_c_in_the_load_of_a_check_exits_130_and_still_reports(start: list[str]) -> None:
    words = [{"load": "check"}.get(word, word) for word in start if word != "--no-learn"]
    code, report = interrupted([*words, "--load"])
    assert code == 130
    assert report["findings"]
