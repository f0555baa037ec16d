"""Remedies of the host, of names that moved, and the promise that a check's remedy exists and ends it."""

from __future__ import annotations

import json

import pytest

from llmdoctor_core.case import Case
from llmdoctor_core.deploy import deployment_from, split
from llmdoctor_core.derive import Facts
from llmdoctor_core.examine import examine
from llmdoctor_core.facts import (
    CacheDirectory,
    Container,
    CudaToolkits,
    Distribution,
    Environment,
    ImportAnnotations,
    JitCompiler,
    LaunchRequest,
    Mount,
    Requirement,
    TargetEnvironment,
    Toolkit,
)
from llmdoctor_core.facts.host import AnnotationUse
from llmdoctor_core.finding import fail
from llmdoctor_core.intake import Intake, build_cases
from llmdoctor_core.plugins import catalogue, remedies
from llmdoctor_core.remedy import (
    AnyAction,
    ByHand,
    Install,
    MakeDirectory,
    PostponeAnnotations,
    SetVariable,
    corrected,
    launch_command,
    plans,
)

REMEDIES = {remedy.name: remedy for remedy in remedies()}
SERVE = LaunchRequest(runtime="vllm", version="0.29.0", argv=("vllm", "serve", "m"), model="m")


def actions(remedy: str, case: Case, code: str, **params: object) -> list[tuple[AnyAction, ...]]:
    finding = fail("x", **params).of(code, "name", None)
    return list(REMEDIES[remedy].function(finding, Facts(case)))


@pytest.mark.parametrize("check", [c for c in catalogue().checks if c.remedy], ids=lambda check: check.code)
def test_a_checks_remedy_exists_and_ends_it(check: object) -> None:
    assert check.code in REMEDIES[check.remedy].ends  # type: ignore[attr-defined]


def test_the_newest_nvcc_at_hand_is_chosen() -> None:
    old = Toolkit(path="/usr/local/cuda", origin="/usr/local", nvcc="/usr/local/cuda/bin/nvcc", nvcc_version="12.1")
    new = Toolkit(
        path="/opt/venv/nvidia/cu13", origin="environment", nvcc="/opt/venv/nvidia/cu13/bin/nvcc", nvcc_version="13.0"
    )
    jit = JitCompiler(nvcc=old.nvcc, cuda_home=old.path, chosen_by="/usr/local/cuda", version="12.1")
    case = Case(launch=SERVE, toolkits=CudaToolkits(toolkits=(old, new)), jit=jit)
    assert actions("use-newer-nvcc", case, "CUDA210") == [(SetVariable(name="CUDA_HOME", value=new.path),)]
    assert (
        actions("use-newer-nvcc", Case(launch=SERVE, toolkits=CudaToolkits(toolkits=(old,)), jit=jit), "CUDA210") == []
    )


def test_an_exact_pin_is_installed_and_a_range_is_not() -> None:
    flashinfer = Distribution(name="flashinfer-python", version="0.6.1")
    vllm = Distribution(
        name="vllm", version="0.29.0", requires=(Requirement(name="flashinfer-python", specifier="==0.6.4"),)
    )
    target = TargetEnvironment(python="/opt/venv/bin/python", version=(3, 12, 1),
                               distributions={"vllm": vllm, "flashinfer-python": flashinfer})  # fmt: skip
    case = Case(launch=SERVE, target=target)
    install = Install(python=target.python, package="flashinfer-python", version="0.6.4", before="0.6.1")
    assert actions("install-pinned-version", case, "PY303", package="flashinfer-python") == [(install,)]


def test_every_faulty_file_is_mended_once() -> None:
    found = [("a.py", 3), ("a.py", 9), ("b.py", 1), ("c.py", 1)]
    uses = tuple(
        AnnotationUse(
            path=path,
            line=line,
            expression="array.array[int]",
            reason="not subscriptable",
            evaluated_by="function annotation",
            postponable=path != "c.py",
        )
        for path, line in found
    )
    case = Case(
        annotations=ImportAnnotations(uses=uses, scanned=(), python="CPython 3.10.13"),
        target=TargetEnvironment(python="/p", version=(3, 10, 13)),
    )
    assert actions("postpone-annotations", case, "PY301") == [
        (PostponeAnnotations(path="a.py", python="/p"), PostponeAnnotations(path="b.py", python="/p"))
    ]


def test_a_cache_goes_where_this_user_may_write() -> None:
    caches = (
        CacheDirectory(
            name="HF_HOME", path="/root/.cache", set_by="default", mount=Mount(path="/root", writable=False)
        ),
        CacheDirectory(
            name="TMPDIR", path="/tmp", set_by="default", mount=Mount(path="/tmp", writable=True, free=1 << 40)
        ),
    )
    case = Case(launch=SERVE, environment=Environment(variables={}, caches=caches))
    assert actions("move-cache-directory", case, "HOST104", name="HF_HOME") == [
        (SetVariable(name="HF_HOME", value="/tmp/hf_home"), MakeDirectory(path="/tmp/hf_home"))
    ]
    assert actions("make-cache-directory", case, "HOST104", name="HF_HOME") == []


@pytest.mark.parametrize(("kind", "says"), [("docker", "shm_size"), ("kubernetes", "emptyDir"), ("none", "/dev/shm")])
def test_shared_memory_is_said_in_the_words_of_what_deploys(kind: str, says: str) -> None:
    ((action,),) = actions("enlarge-shared-memory", Case(launch=SERVE, container=Container(kind=kind)), "HOST101")
    assert isinstance(action, ByHand)
    assert says in action.text


def offered(argv: tuple[str, ...], code: str, version: str, **environment: str) -> list[str]:
    """The corrected launches that plans for the code offer, cheapest first."""
    request = LaunchRequest(runtime="vllm", version=version, argv=argv, environment=environment)
    case = Case(launch=request)
    findings = [finding for finding in examine(case, catalogue().checks).findings if finding.code == code]
    assert findings, code
    launches = []
    for plan in plans(findings, case, remedies(), catalogue().checks):
        changed = corrected(case, plan.actions).launch
        assert isinstance(changed, LaunchRequest)
        launches.append(launch_command(changed))
    return launches


def test_an_equals_sign_that_llama_server_does_not_take_becomes_a_space() -> None:
    request = LaunchRequest(runtime="llamacpp", version="b11434", argv=("llama-server", "-m", "m.gguf", "-c=4096"))
    (action,) = actions("replace-removed-argument", Case(launch=request), "ARG901", flag="-c=4096")
    launch = corrected(Case(launch=request), action).launch
    assert isinstance(launch, LaunchRequest)
    assert launch.argv == ("llama-server", "-m", "m.gguf", "-c", "4096")


def test_an_lmcache_variable_gets_the_name_that_is_read() -> None:
    launches = offered(("vllm", "serve", "m"), "ARG904", "0.29.0", LM_CACHE_CHUNK_SIZE="256")
    assert launches == ["LMCACHE_CHUNK_SIZE=256 vllm serve m"]


def test_a_connector_gets_the_name_of_its_successor() -> None:
    config = json.dumps({"kv_connector": "NixlConnectr", "kv_role": "kv_both"})
    (launch, *_) = offered(("vllm", "serve", "m", "--kv-transfer-config", config), "KVT401", "0.29.0")
    assert '"kv_connector": "NixlConnector"' in launch


@pytest.mark.parametrize(
    ("typed", "pasted"),
    [
        ("FOO='a b' vllm serve m", "FOO='a b' vllm serve m"),
        ("env FOO=1 uv run --with vllm vllm serve m", "FOO=1 uv run --with vllm vllm serve m"),
        ("bash -lc 'vllm serve m -tp 2'", "bash -lc 'vllm serve m -tp 2'"),
        ("docker run -it img sh -c 'vllm serve m'", "docker run -it img sh -c 'vllm serve m'"),
        (
            "torchrun --nproc-per-node 2 -m vllm.entrypoints.openai.api_server --model m",
            "torchrun --nproc-per-node 2 -m vllm.entrypoints.openai.api_server --model m",
        ),
        (
            "docker run -e 'A=$x' vllm/vllm-openai:v0.12.0 --model m",
            "docker run -e 'A=$x' vllm/vllm-openai:v0.12.0 --model m",
        ),
    ],
)
def test_a_launch_is_printed_as_it_can_be_pasted(typed: str, pasted: str) -> None:
    found = deployment_from(split(typed))
    assert found is not None
    request = LaunchRequest(
        runtime="vllm", argv=found.argv, wrapper=found.wrapper, implied=found.implied, variables=found.variables
    )
    assert launch_command(request) == pasted


def test_variables_of_a_file_stay_variables() -> None:
    text = "docker run -v ~/.cache:/c -e HF_TOKEN=$HF_TOKEN vllm/vllm-openai:v0.12.0 Qwen/Qwen3-8B --api-key $KEY\n"
    (case,) = build_cases(Intake(file="run.sh", gpu="A100-80GB", offline=True), text)
    assert isinstance(case.launch, LaunchRequest)
    assert launch_command(case.launch) == text.strip().replace("HF_TOKEN=$HF_TOKEN", '"HF_TOKEN=$HF_TOKEN"').replace(
        "$KEY", '"$KEY"'
    )
    typed = Intake(command=("vllm", "serve", "Qwen/Qwen3-8B", "--api-key", "s3cret"), gpu="A100-80GB", offline=True)
    (case,) = build_cases(typed)
    assert isinstance(case.launch, LaunchRequest)
    assert "s3cret" not in launch_command(case.launch)
