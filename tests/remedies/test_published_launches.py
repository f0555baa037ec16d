"""Launches that people published: corrected, they have no FAIL that a remedy claims to end."""

from __future__ import annotations

import shlex

import pytest

from llmdoctor_core.case import Case
from llmdoctor_core.examine import examine
from llmdoctor_core.facts import LaunchRequest
from llmdoctor_core.finding import Outcome
from llmdoctor_core.intake import Intake, build_cases
from llmdoctor_core.plugins import catalogue, remedies
from llmdoctor_core.remedy import ON_LAUNCH, Correction, Cost, correct, corrected, launch_command, plans

DRAFT = '{"model": "Qwen/Qwen2.5-0.5B-Instruct", "method": "draft_model", "num_speculative_tokens": 3}'


def case_of(gpu: str, command: str, kv_memory: int | None = None) -> Case:
    intake = Intake(command=tuple(shlex.split(command)), gpu=gpu, offline=True, kv_memory=kv_memory)
    (case,) = build_cases(intake)
    return case


def corrected_launch(gpu: str, command: str) -> tuple[str, Correction]:
    correction = correct(case_of(gpu, command), remedies(), catalogue().checks)
    assert isinstance(correction.case.launch, LaunchRequest)
    return launch_command(correction.case.launch), correction


@pytest.mark.parametrize(
    ("gpu", "command", "expected"),
    [
        (
            "A100-80GB",
            "vllm serve Qwen/Qwen3-8B --max-model-len 131072",
            "vllm serve Qwen/Qwen3-8B --max-model-len 40960",
        ),
        (
            "A100-80GB",
            "llama-server --model Qwen/Qwen3-8B -c 131072 -ngl 99",
            "llama-server --model Qwen/Qwen3-8B --ctx-size 40960 -ngl 99",
        ),
        (
            "L4x2",
            "docker run --gpus all vllm/vllm-openai:v0.29.0 google/gemma-3-4b-it -tp 2",
            "docker run --shm-size=16g --gpus all vllm/vllm-openai:v0.29.0 google/gemma-3-4b-it -tp 2",
        ),
        (
            "A100-80GB",
            "vllm serve Qwen/Qwen2.5-14B-Instruct --speculative-model Qwen/Qwen2.5-0.5B-Instruct "
            "--num-speculative-tokens 5",
            None,
        ),
        ("A100-80GB", f"vllm serve Qwen/Qwen2.5-14B-Instruct --speculative-config {shlex.quote(DRAFT)}", None),
    ],
)
def test_green_afterwards(gpu: str, command: str, expected: str | None) -> None:
    launch, correction = corrected_launch(gpu, command)
    assert correction.left == ()
    assert correction.plans
    if expected is not None:
        assert launch == expected
    findings = examine(case_of(gpu, launch), catalogue().checks).findings
    assert [finding.code for finding in findings if finding.outcome is Outcome.FAIL] == []


def test_removed_speculative_flags_become_the_json_form() -> None:
    launch, correction = corrected_launch(
        "A100-80GB", "vllm serve Qwen/Qwen3-8B --speculative-model Qwen/Qwen3-0.6B --num-speculative-tokens 5"
    )
    assert correction.left == ()
    config = '{"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5}'
    assert shlex.split(launch) == ["vllm", "serve", "Qwen/Qwen3-8B", "--speculative-config", config]


def test_14b_on_one_l4_is_said_by_hand_and_on_two_it_is_split() -> None:
    command = "vllm serve Qwen/Qwen2.5-14B-Instruct --max-model-len 4096"
    _, alone = corrected_launch("L4", command)
    assert "MEM801" in {finding.code for finding in alone.left}
    launch, two = corrected_launch("L4x2", command)
    assert two.left == ()
    assert launch == f"{command} --tensor-parallel-size 2"


def test_fewer_batched_tokens_are_offered_with_what_they_give_back() -> None:
    case = case_of("A100-80GB", "vllm serve google/gemma-3-4b-it --max-model-len 32768 --max-num-batched-tokens 8192")
    checks = catalogue().checks
    offered = [p for p in plans(examine(case, checks).findings, case, remedies(), checks) if p.code == "MEM808"]
    (plan,) = offered
    assert plan.cost is Cost.SPEED
    assert plan.effect is not None
    assert plan.effect.startswith("one request 2.62 GiB -> 1.21 GiB, concurrency ")


def test_alternatives_are_ranked_by_what_they_cost() -> None:
    case = case_of("L4x2", "vllm serve Qwen/Qwen3-8B --max-model-len 16384", kv_memory=3 << 29)
    checks = catalogue().checks
    offered = [p for p in plans(examine(case, checks).findings, case, remedies(), checks) if p.code == "CTX603"]
    costs = [list(Cost).index(plan.cost) for plan in offered]
    assert len(offered) >= 3
    assert costs == sorted(costs)


def test_every_offered_change_of_a_launch_ends_what_it_claims() -> None:
    commands = [
        ("L4", "vllm serve Qwen/Qwen3-8B --max-model-len 40960"),
        ("L4x4", "vllm serve Qwen/Qwen2.5-14B-Instruct --tensor-parallel-size 3"),
        ("L4", "vllm serve Qwen/Qwen3-8B -tp 2"),
        ("T4", "vllm serve Qwen/Qwen3-0.6B --dtype bfloat16"),
        ("A100-80GB", "vllm serve Qwen/Qwen3-8B --max-modle-len 4096"),
        ("A100-80GB", "llama-server --model Qwen/Qwen3-8B -c 8192 -np 1 -ctv q8_0 -ctk q8_0 -fa off"),
    ]
    checks = catalogue().checks
    tried = 0
    for gpu, command in commands:
        case = case_of(gpu, command)
        before = examine(case, checks).findings
        for plan in plans(before, case, remedies(), checks):
            if not all(isinstance(action, ON_LAUNCH) for action in plan.actions):
                continue
            after = examine(corrected(case, plan.actions), checks).findings
            failing = [
                sum(f.code == plan.code and f.outcome is Outcome.FAIL for f in found) for found in (before, after)
            ]
            warned = [sum(f.code == plan.code for f in found) for found in (before, after)]
            assert failing[1] < failing[0] or warned[1] < warned[0], (command, plan)
            tried += 1
    assert tried >= len(commands)
