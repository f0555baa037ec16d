"""The examples are what they claim: valid for their reader, and launches that this doctor reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmdoctor_core import deploy

EXAMPLES = Path(__file__).parents[2] / "examples"
SCHEMAS = {
    "github/action.yml": "vendor.github-actions",
    "github/workflow.yml": "vendor.github-workflows",
    "gitlab/gitlab-ci.yml": "vendor.gitlab-ci",
    "docker/compose.yaml": "vendor.compose-spec",
}


@pytest.mark.slow
@pytest.mark.parametrize("file", SCHEMAS)
def test_valid_by_the_published_schema(file: str) -> None:
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[file], str(EXAMPLES / file)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted((EXAMPLES / "kubernetes").glob("*.yaml")), ids=lambda path: path.name)
def test_valid_kubernetes(file: Path) -> None:
    argv = [sys.executable, "-m", "kubernetes_validate", "--strict", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_valid_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "vllm.service"
    text = (EXAMPLES / "systemd/vllm.service").read_text()
    for binary in ("/opt/vllm/bin/vllm", "/opt/llmdoctor/bin/llmdoctor"):
        text = text.replace(binary + " ", "/bin/true ")
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert "vllm.service" not in done.stderr, done.stderr


@pytest.mark.parametrize("file", ["kubernetes/init-container.yaml", "systemd/vllm.service", "docker/compose.yaml"])
def test_the_doctor_reads_the_server_and_not_itself(file: str) -> None:
    (found,) = deploy.read((EXAMPLES / file).read_text(), file)
    position = found.argv.index("Qwen/Qwen3-8B")
    assert found.argv[position : position + 3] == ("Qwen/Qwen3-8B", "--max-model-len", "32768")
    assert found.runtime == "vllm"


def test_shell_of_the_examples() -> None:
    done = subprocess.run(["bash", "-n", str(EXAMPLES.parent / ".ci/run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
