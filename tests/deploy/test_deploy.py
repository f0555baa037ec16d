"""The same launch, whatever it is written in, becomes the same words, and each word knows its line."""

from __future__ import annotations

import contextlib
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmdoctor_core import deploy
from llmdoctor_core.errors import InputError

ARGUMENTS = ("Qwen/Qwen3-8B", "--max-model-len", "32768", "--tensor-parallel-size", "2")
LAUNCH = ("vllm", "serve", *ARGUMENTS)


def typed(text: str) -> deploy.Deployment:
    found = deploy.deployment_from(deploy.split(text))
    assert found is not None
    return found


def read(text: str, name: str) -> deploy.Deployment:
    (found,) = deploy.read(textwrap.dedent(text), name)
    return found


@pytest.mark.parametrize(
    "front",
    ["", "uv run --with vllm ", "sudo -E ", "numactl --cpunodebind=0 ", "env HF_HOME=/x ", "CUDA_VISIBLE_DEVICES=0,1 "],
)
def test_wrappers_come_off(front: str) -> None:
    assert typed(f"{front}vllm serve {' '.join(ARGUMENTS)}").argv == LAUNCH


def test_assignments_in_front_become_the_environment() -> None:
    found = typed("HF_HOME=/x env VLLM_LOGGING_LEVEL=DEBUG vllm serve m")
    assert found.environment == {"HF_HOME": "/x", "VLLM_LOGGING_LEVEL": "DEBUG"}
    assert found.wrapper == ()


def test_python_module_and_torchrun() -> None:
    module = ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m")
    assert typed("torchrun --nproc-per-node 2 -m vllm.entrypoints.openai.api_server --model m").argv == module
    assert typed("python -m vllm.entrypoints.openai.api_server --model m").runtime == "vllm"


def test_docker_run_gives_image_version_and_surroundings() -> None:
    found = typed(
        "docker run --gpus '\"device=0,1\"' -it --rm -e HF_TOKEN=secret --shm-size=2g --ulimit memlock=-1 "
        "-v /data/hf:/root/.cache/huggingface vllm/vllm-openai:v0.11.0 --model m"
    )
    assert found.argv == ("vllm", "serve", "--model", "m")
    assert (found.version, found.gpus, found.shm_bytes, found.memlock_unlimited) == ("0.11.0", 2, 2 << 30, True)
    assert found.mounts == {"/root/.cache/huggingface": "/data/hf"}
    assert found.implied == 2


def test_llama_cpp_image_tag_names_the_build() -> None:
    found = typed("podman run --device nvidia.com/gpu=all ghcr.io/ggml-org/llama.cpp:server-cuda-b11434 -m /m.gguf")
    assert (found.runtime, found.version, found.argv) == ("llamacpp", "b11434", ("llama-server", "-m", "/m.gguf"))


COMPOSE = """\
    services:
      other:
        image: redis:7
      llm:
        image: vllm/vllm-openai:v0.12.0
        command:
          - Qwen/Qwen3-8B
          - --max-model-len
          - "32768"
          - --tensor-parallel-size
          - "2"
        shm_size: 1gb
        environment: {HF_TOKEN: "${HF_TOKEN}"}
        deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
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
              command: ["vllm", "serve"]
              args:
                - Qwen/Qwen3-8B
                - --max-model-len
                - "32768"
                - --tensor-parallel-size
                - "2"
              env:
                - name: HF_TOKEN
                  valueFrom: {secretKeyRef: {name: hf, key: token}}
              resources: {limits: {nvidia.com/gpu: 2, memory: 64Gi}}
              startupProbe: {periodSeconds: 10, failureThreshold: 60}
              volumeMounts: [{name: dshm, mountPath: /dev/shm}]
          volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]
    """
UNIT = """\
    [Service]
    Environment=HF_HOME=/data/hf
    LimitMEMLOCK=infinity
    ExecStart=/opt/venv/bin/vllm serve Qwen/Qwen3-8B \\
      --max-model-len 32768 \\
      --tensor-parallel-size 2
    """
SCRIPT = """\
    #!/bin/bash
    set -euo pipefail
    export HF_HOME=/data/hf
    MODEL=Qwen/Qwen3-8B
    vllm serve "$MODEL" \\
      --max-model-len 32768 \\
      --tensor-parallel-size ${TP:-2}
    """


@pytest.mark.parametrize(
    ("text", "name", "line"), [(COMPOSE, "compose.yaml", 8), (POD, "pod.yaml", 13), (UNIT, "vllm.service", 5),
                               (SCRIPT, "run.sh", 6)]
)  # fmt: skip
def test_every_kind_of_file_gives_the_same_words_with_their_lines(text: str, name: str, line: int) -> None:
    found = read(text, name)
    assert found.argv[-len(ARGUMENTS) :] == ARGUMENTS
    assert found.places["--max-model-len"].line == line
    assert str(found.places["--max-model-len"]) == f"{name}:{line}"


def test_compose_surroundings() -> None:
    found = read(COMPOSE, "compose.yaml")
    assert (found.name, found.gpus, found.shm_bytes, found.version) == ("llm", 2, 1 << 30, "0.12.0")
    assert found.places["/dev/shm"].line == 12


def test_pod_surroundings_and_secrets_by_reference() -> None:
    found = read(POD, "pod.yaml")
    assert (found.gpus, found.memory_limit, found.shm_bytes, found.start_seconds) == (2, 64 << 30, 8 << 30, 600)
    assert found.environment["HF_TOKEN"] == "<set>"


def test_a_pod_without_a_shm_volume_has_the_container_runtimes_64_mib() -> None:
    text = POD.replace("volumeMounts: [{name: dshm, mountPath: /dev/shm}]", "stdin: false")
    assert read(text, "pod.yaml").shm_bytes == 64 << 20


def test_kserve_and_leader_worker_set_and_helm_output() -> None:
    isvc = """\
        apiVersion: serving.kserve.io/v1beta1
        kind: InferenceService
        metadata: {name: a}
        spec: {predictor: {containers: [{name: k, image: "vllm/vllm-openai:v0.10.2", args: [--model, m]}]}}
        ---
        apiVersion: leaderworkerset.x-k8s.io/v1
        kind: LeaderWorkerSet
        metadata: {name: b}
        spec:
          leaderWorkerTemplate:
            leaderTemplate:
              spec:
                containers:
                  - name: leader
                    image: vllm/vllm-openai:v0.10.2
                    command: [sh, -c, "ray start --head; vllm serve m -tp 8 -pp 2"]
        """
    found = deploy.read(textwrap.dedent(isvc), "-")
    assert [launch.argv for launch in found] == [
        ("vllm", "serve", "--model", "m"),
        ("vllm", "serve", "m", "-tp", "8", "-pp", "2"),
    ]


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("services:\n  a: {image: 'redis'", "compose.yaml", "compose.yaml is no YAML"),
        ("services: {a: {image: redis}}", "compose.yaml", "no launch of a known runtime"),
        ("[Service]\nExecStart=vllm serve 'open", "x.service", "no closing quotation"),
        ("echo hello", "x.sh", "no launch"),
    ],
)
def test_bad_files_are_named(text: str, name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        deploy.read(text, name)


def test_an_alias_bomb_is_refused_or_harmless() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
    )
    with pytest.raises(InputError):
        deploy.read("services: {a: {image: redis}}\n" + bomb, "compose.yaml")


def test_a_services_own_keys_win_over_merged_ones() -> None:
    text = """\
        x-llm: &llm
          image: vllm/vllm-openai:v0.11.0
          environment: {HF_HOME: /shared, VLLM_LOGGING_LEVEL: INFO}
        services:
          llm:
            image: vllm/vllm-openai:v0.12.0
            command: [--model, Qwen/Qwen3-8B]
            <<: *llm
        """
    found = read(text, "compose.yaml")
    assert (found.version, found.environment["HF_HOME"]) == ("0.12.0", "/shared")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_no_text_breaks_the_readers(text: str) -> None:
    for name in ("a.yaml", "a.service", "a.sh"):
        with contextlib.suppress(InputError):
            deploy.read(text, name)
