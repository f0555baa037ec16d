"""The messages of vLLM's sources, and of the packages under it, that a user meets at a start: each has its code.

``tests/data/vllm/messages.jsonl`` holds what a release prints, placeholders filled, with the file that raises it and
the first and last of the releases read (0.11.2, 0.19.1, 0.33.0). A line without a file is of another package: torch,
NCCL, transformers, huggingface_hub, pydantic, argparse.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmdoctor_core.triage import triage_lines

DATA = Path(__file__).parents[1] / "data" / "vllm" / "messages.jsonl"
MESSAGES = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
CARRIERS = ("{}", "(EngineCore_DP0 pid=4711) ERROR 07-15 10:00:00 [core.py:708] {}")


@pytest.mark.parametrize("carrier", CARRIERS)
def test_each_message_is_answered_with_its_code(carrier: str) -> None:
    misses = {}
    for entry in MESSAGES:
        answers = triage_lines([carrier.format(entry["message"])]).candidates
        if not set(entry["expected"]).intersection(answers[:1]):
            misses[entry["message"]] = (entry["expected"], answers[:3])
    assert not misses


# What no user meets, or what says nothing of a cause: an answer would be made up.
INNER = (
    "AssertionError: block_size has not been initialized.",
    "AssertionError: enable_prefix_caching must be set by this point",
    "AssertionError: tensor model parallel group is already initialized",
    "NotImplementedError: Subclasses should implement this method",
    "RuntimeError: Invalid block found in popleft() which doesn't have a valid next_free_block",
    "ValueError: EC source size mismatch for mm_hash=5f2a",
    "ValueError: Pinning failed. LoRA 3 is not registered.",
    "MemoryError: Not enough space in the data buffer, try calling free_buf() to free up space",
    "TypeError: The given class is not a dataclass.",
    "ValueError: Shard id for QKVParallelLinear should be 'q', 'k', or 'v', got shard id 4.",
    "WARNING 11-20 10:00:00 [pynccl.py:1] ncclCommSuspend is not available in the loaded NCCL/RCCL library (requires "
    "NCCL >= 2.29.7); skipping communicator memory suspension",
    "WARNING 11-20 10:00:00 [vllm.py:1] Async scheduling is disabled because the V1 model runner does not support it",
    "WARNING 11-20 10:00:00 [model.py:1] CUDA graph is not supported for mllama on ROCm yet, fallback to eager mode.",
)


@pytest.mark.parametrize("message", INNER)
def test_what_says_nothing_of_a_cause_is_not_answered(message: str) -> None:
    assert not triage_lines([message]).candidates


def test_the_last_resort_gives_way_to_what_knows_more() -> None:
    """A refusal that names an option is ARG903 only where no other line tells why."""
    refusal = "ValueError: Elastic EP is only supported with enable_eplb=True."
    memory = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
    assert triage_lines([refusal]).candidates[0] == "ARG903"
    assert triage_lines([refusal]).conditions[0].confidence == "low"
    assert triage_lines([refusal, memory]).candidates[0] == "MEM803"
