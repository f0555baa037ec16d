"""One launch, written four ways: the same findings, each pointing at its own lines."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from llmdoctor_core.examine import examine
from llmdoctor_core.finding import Finding, Outcome
from llmdoctor_core.intake import Intake, build_cases
from llmdoctor_core.plugins import catalogue

ARGUMENTS = ["Qwen/Qwen3-8B", "--max-model-len", "131072", "--tensor-parallel-size", "2", "--no-such-flag"]
VERSION = "0.12.0"
COMPOSE = """\
    services:
      llm:
        image: vllm/vllm-openai:v0.12.0
        shm_size: 16gb
        gpus: [{driver: nvidia, count: 2}]
        command:
          - Qwen/Qwen3-8B
          - --max-model-len
          - "131072"
          - --tensor-parallel-size
          - "2"
          - --no-such-flag
    """
POD = """\
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: llm}
    spec:
      template:
        spec:
          containers:
            - name: server
              image: vllm/vllm-openai:v0.12.0
              args:
                - Qwen/Qwen3-8B
                - --max-model-len
                - "131072"
                - --tensor-parallel-size
                - "2"
                - --no-such-flag
              resources: {limits: {nvidia.com/gpu: 2}}
              volumeMounts: [{name: dshm, mountPath: /dev/shm}]
          volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}]
    """
DOCKER = "docker run --gpus all --shm-size 16g vllm/vllm-openai:v0.12.0"


def findings(intake: Intake, text: str | None = None) -> list[Finding]:
    (case,) = build_cases(intake, text and textwrap.dedent(text))
    found = examine(case, catalogue().checks).findings
    return [finding for finding in found if finding.outcome in (Outcome.FAIL, Outcome.WARN, Outcome.ERROR)]


def plain(found: list[Finding]) -> set[tuple[str, str, str]]:
    return {(finding.code, finding.outcome.value, finding.message) for finding in found}


@pytest.fixture(scope="module")
def bare() -> list[Finding]:
    return findings(Intake(command=("vllm", "serve", *ARGUMENTS), gpu="L4x2", runtime_version=VERSION, offline=True))


@pytest.mark.parametrize(("text", "name", "lines"), [(COMPOSE, "compose.yaml", (8, 12)), (POD, "pod.yaml", (12, 16))])
def test_files(bare: list[Finding], text: str, name: str, lines: tuple[int, int]) -> None:
    found = findings(Intake(file=name, gpu="L4", offline=True), text)
    assert plain(found) == plain(bare)
    where = {finding.code: finding.where for finding in found}
    for code, line in zip(("CTX601", "ARG901"), lines, strict=True):
        place = where[code]
        assert place is not None
        assert (place.name, place.line) == (name, line), code
    assert all(finding.where is not None and finding.where.name == name for finding in found)


def test_docker_run(bare: list[Finding]) -> None:
    command = (*DOCKER.split(), *ARGUMENTS)
    assert plain(findings(Intake(command=command, gpu="L4x2", offline=True))) == plain(bare)


def test_the_bare_launch_has_what_the_others_are_held_against(bare: list[Finding]) -> None:
    assert {"CTX601", "ARG901"} <= {finding.code for finding in bare}


def test_a_config_file_of_vllm_counts_as_arguments(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("model: Qwen/Qwen3-8B\nmax-model-len: 131072\n")
    found = findings(Intake(command=("vllm", "serve", "--config", str(config)), gpu="A100-80GB", offline=True))
    assert "CTX601" in {finding.code for finding in found}
