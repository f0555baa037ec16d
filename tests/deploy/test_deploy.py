"""The same launch, whatever it is written in, becomes the same words, and each word knows its line."""

from __future__ import annotations

import contextlib
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmdoctor_core import deploy
from llmdoctor_core.errors import InputError
from llmdoctor_core.examine import examine
from llmdoctor_core.facts import LaunchRequest, ModelSource, Unavailable
from llmdoctor_core.finding import Outcome
from llmdoctor_core.intake import Intake, build_cases
from llmdoctor_core.plugins import catalogue
from llmdoctor_core.redact import without_secrets
from llmdoctor_core.remedy import launch_command
from llmdoctor_core.runtimes.vllm import resolve

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
        spec: {predictor: {containers: [{name: k, image: "vllm/vllm-openai:v0.11.0", args: [--model, m]}]}}
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
                    image: vllm/vllm-openai:v0.11.0
                    command: [sh, -c, "ray start --head; vllm serve m -tp 8 -pp 2"]
        """
    found = deploy.read(textwrap.dedent(isvc), "-")
    assert [launch.argv for launch in found] == [
        ("vllm", "serve", "--model", "m"),
        ("vllm", "serve", "m", "-tp", "8", "-pp", "2"),
    ]


COMPOUND = """\
    set -a; source .env; set +a
    : "${MODEL:=Qwen/Qwen3-8B}"
    ARGS=(
      --max-model-len 32768  # the model's own
    )
    [ -n "$TP" ] || ARGS+=(--tensor-parallel-size 2)
    if true; then
      cd /srv && exec /opt/venv/bin/python /opt/venv/bin/vllm serve "$MODEL" "${ARGS[@]}" "$@" 2>&1 | tee "a b.log" &
    fi
    """


def test_a_script_is_cut_at_the_shells_operators_and_redirections_are_no_arguments() -> None:
    found = read(COMPOUND, "run.sh")
    assert found.argv == ("/opt/venv/bin/python", "/opt/venv/bin/vllm", "serve", *ARGUMENTS)
    assert found.places["launch"].line == 8


def test_a_quoted_argument_may_look_like_an_operator() -> None:
    found = read("llama-server -m m.gguf -r '<|im_end|>' --grammar 'a && b > c'  > log 2>&1", "run.sh")
    assert found.argv == ("llama-server", "-m", "m.gguf", "-r", "<|im_end|>", "--grammar", "a && b > c")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_comment_among_continued_lines_ends_the_command(end: str) -> None:
    lines = (
        "docker run --gpus all \\",
        "  vllm/vllm-openai:v0.12.0 \\",
        "  --model m \\",
        "  # --port 80 \\",
        "  --dtype auto",
        "",
    )
    assert read(end.join(lines), "run.sh").argv == ("vllm", "serve", "--model", "m")


def test_a_here_document_is_read_as_a_script() -> None:
    found = read("ssh node <<'END'\nit's\nvllm serve m -tp 2\nEND\necho done\n", "run.sh")
    assert (found.argv, found.places["-tp"].line) == (("vllm", "serve", "m", "-tp", "2"), 3)


INTERPOLATED = """\
    x-common: &common
      image: vllm/vllm-openai:${TAG:-v0.12.0}
      environment: {PRICE: "$$5"}
    services:
      base:
        <<: *common
        shm_size: 1gb
        command: --model ${MODEL} --max-model-len ${LENGTH:-4096}
      more:
        extends: {service: base}
        environment: {HF_HOME: /x}
    """


def test_compose_variables_defaults_and_extends() -> None:
    base, more = deploy.read(textwrap.dedent(INTERPOLATED), "compose.yaml", {"MODEL": "Qwen/Qwen3-8B"})
    assert base.argv[-4:] == more.argv[-4:] == ("--model", "Qwen/Qwen3-8B", "--max-model-len", "4096")
    assert (more.version, more.shm_bytes) == ("0.12.0", 1 << 30)
    assert more.environment == {"HF_HOME": "/x", "PRICE": "$5"}


def test_a_compose_service_that_extends_another_file_is_not_passed_over() -> None:
    text = "services:\n  a: {extends: {file: base.yaml, service: llm}}\n"
    with pytest.raises(InputError, match="docker compose config"):
        deploy.read(text, "compose.yaml")


def test_kubernetes_variables_in_arguments_and_in_a_shells_script() -> None:
    pod = """\
        apiVersion: v1
        kind: Pod
        metadata: {name: p}
        spec:
          containers:
            - name: a
              image: vllm/vllm-openai:v0.12.0
              args: ["--model=$(MODEL)"]
              env: &env [{name: MODEL, value: Qwen/Qwen3-8B}]
            - name: b
              image: vllm/vllm-openai:v0.12.0
              env: *env
              command: [sh, -c]
              args:
                - |
                  export HF_HOME=/x
                  vllm serve $MODEL \\
                    --max-model-len 4096
            - name: worker
              image: vllm/vllm-openai:v0.12.0
              command: [sh, -c, "ray start --address=$(LEADER) --block"]
        """
    one, two = deploy.read(textwrap.dedent(pod), "pod.yaml")
    assert one.argv == ("vllm", "serve", "--model=Qwen/Qwen3-8B")
    assert two.argv == ("vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "4096")
    assert two.environment["HF_HOME"] == "/x"
    assert two.places["--max-model-len"].line == 18


def test_a_units_variables_and_a_quadlets_container() -> None:
    unit = "[Service]\nEnvironment=M=a/b 'MORE=-tp 2'\nExecStart=-/usr/bin/vllm serve ${M} $MORE $OTHER\n"
    assert read(unit, "x.service").argv == ("/usr/bin/vllm", "serve", "a/b", "-tp", "2", "$OTHER")
    quadlet = "[Container]\nImage=vllm/vllm-openai:v0.12.0\nAddDevice=nvidia.com/gpu=all\nShmSize=2g\nExec=--model m\n"
    found = read(quadlet, "x.container")
    assert found.argv == ("vllm", "serve", "--model", "m")
    assert (found.gpu_access, found.shm_bytes) == (True, 2 << 30)


@pytest.mark.parametrize(("tag", "command"), [("v0.8.5", "api_server"), ("v0.11.0", "serve"), ("latest", "serve")])
def test_the_image_of_a_release_runs_what_it_ran(tag: str, command: str) -> None:
    words = ("docker", "run", "--gpus", "all", f"vllm/vllm-openai:{tag}", "--model", "Qwen/Qwen3-0.6B")
    found = typed(" ".join(words))
    assert found.argv[found.implied - 1].endswith(command)
    (case,) = build_cases(Intake(command=words, gpu="A100-80GB", offline=True))
    assert isinstance(case.launch, LaunchRequest)
    assert resolve(case.launch, None, None).problems == ()
    assert launch_command(case.launch) == " ".join(words)


def test_an_image_of_ones_own_runs_what_the_person_says() -> None:
    words = ("docker", "run", "--gpus", "all", "my/vllm", "--model", "Qwen/Qwen3-0.6B")
    (case,) = build_cases(Intake(command=words, runtime="vllm", gpu="A100-80GB", offline=True))
    assert isinstance(case.launch, LaunchRequest)
    assert (case.launch.argv, case.launch.implied) == (("vllm", "serve", *words[-2:]), 2)
    assert typed("docker run nvcr.io/nvidia/vllm vllm serve m").version is None


@pytest.mark.parametrize(("options", "code"), [("", 1), ("--gpus all", 0), ("--runtime nvidia", 0)])
def test_a_container_without_gpus_is_no_pass_where_the_gpu_is_assumed(options: str, code: int) -> None:
    words = tuple(f"docker run {options} vllm/vllm-openai:v0.12.0 --model Qwen/Qwen3-0.6B".split())
    (case,) = build_cases(Intake(command=words, gpu="A100-80GB", offline=True))
    examination = examine(case, catalogue().checks)
    assert examination.exit_code == code
    assert ("HOST106" in {f.code for f in examination.findings if f.outcome is Outcome.FAIL}) == bool(code)


def container(model: str, *options: str) -> ModelSource:
    words = ("docker", "run", *options, "ghcr.io/ggml-org/llama.cpp:server-cuda", "-m", model)
    (case,) = build_cases(Intake(command=words, gpu="L4", offline=True))
    assert isinstance(case.model, ModelSource)
    return case.model


def test_a_model_in_a_volume_leaves_the_other_checks() -> None:
    words = ("docker", "run", "-v", "models:/models", "vllm/vllm-openai:v0.11.0", "--model", "/models/x", "--no-such")
    (case,) = build_cases(Intake(command=words, gpu="L4", offline=True))
    assert isinstance(case.model, Unavailable)
    assert "give the model with --model" in case.model.reason
    told = {finding.code: finding.outcome for finding in examine(case, catalogue().checks).findings}
    assert told["ARG901"] is Outcome.FAIL
    assert told["MODEL514"] is Outcome.SKIP


def test_a_path_in_the_container_is_looked_for_where_it_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "q.gguf").write_bytes(b"<html>")
    read_here = container("/models/q.gguf", "-v", f"{tmp_path}:/models:ro")
    assert read_here.where == str(tmp_path / "q.gguf")
    with pytest.raises(InputError, match="it is not there"):
        container("/models/other.gguf", "-v", f"{tmp_path}:/models", "-v", "volume:/data")
    compose = """\
        services:
          llama:
            image: ghcr.io/ggml-org/llama.cpp:server-cuda
            environment: [LLAMA_ARG_MODEL=/models/q.gguf, LLAMA_ARG_CTX_SIZE=4096]
            volumes: ["./:/models"]
        """
    intake = Intake(file=str(tmp_path / "compose.yaml"), gpu="L4", offline=True)
    (case,) = build_cases(intake, textwrap.dedent(compose))
    assert isinstance(case.model, ModelSource)
    assert Path(case.model.where) == tmp_path / "q.gguf"


@pytest.mark.parametrize("file", ["x.service", None])
def test_no_verdict_rests_on_a_variable_without_value(file: str | None) -> None:
    words = ("vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "${LENGTH}")
    intake = Intake(command=() if file else words, file=file, gpu="L4", offline=True)
    text = f"[Service]\nExecStart={' '.join(words)}\n" if file else None
    with pytest.raises(InputError, match=r"--max-model-len of the launch.*\$\{LENGTH\}"):
        build_cases(intake, text)
    with pytest.raises(InputError, match=r"the model is '\$MODEL'"):
        build_cases(replace(intake, command=("vllm", "serve", "$MODEL"), file=None))


def test_the_file_beside_a_compose_file_gives_its_variables(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# comment\nMODEL='Qwen/Qwen3-8B'\nLENGTH=2048\n")
    intake = Intake(file=str(tmp_path / "compose.yaml"), gpu="L4", offline=True)
    (_, more) = build_cases(intake, textwrap.dedent(INTERPOLATED), {"LENGTH": "1024"})
    assert more.launch is not None
    assert more.launch.argv[-4:] == ("--model", "Qwen/Qwen3-8B", "--max-model-len", "1024")


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


def test_each_of_several_keys_of_a_launch_is_left_out() -> None:
    typed = ("vllm", "serve", "m", "--api-key", "k1", "k2", "--port", "80", "--api_key=k3")
    assert without_secrets(typed) == (*typed[:4], "<set>", "<set>", "--port", "80", "--api_key=<set>")
