"""The planner against vLLM's own: 26 releases over 25 layer layouts, and published start-up logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmdoctor_core.runtimes.vllm.planner import Need, RefusedError, Spec, plan, rules_for

DATA = Path(__file__).parents[2] / "data" / "vllm"
CASES = {case["id"]: case for case in json.loads((DATA / "vllm-planner-cases.json").read_text())}
VECTORS = json.loads((DATA / "vllm-planner-vectors.json").read_text())
FIELD_LOGS = json.loads((DATA / "vllm-field-logs.json").read_text())
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1}


def specs_of(layers: list[dict[str, Any]], version: str) -> list[Spec]:
    """The layers of a vector as specs; they are given as vLLM's own constructors take them."""
    found: list[Spec] = []
    for layer in layers:
        found += [_spec(layer, rules_for(version).state_dtype)] * layer.get("n", 1)
    return found


def _spec(layer: dict[str, Any], state_dtype: str) -> Spec:
    kind, block = layer["kind"], layer["block_size"]
    if kind == "mamba":
        dtypes = layer["dtypes"] if state_dtype == "each" else [layer["dtypes"][0]] * len(layer["shapes"])
        size = sum(BYTES[dtype] * _product(shape) for shape, dtype in zip(layer["shapes"], dtypes, strict=True))
        return Spec(
            kind="state",
            block_size=block,
            page=layer["page_size_padded"] or size,
            speculative_blocks=layer["num_speculative_blocks"],
        )
    dtype = layer.get("dtype", "bfloat16")
    values = 1 if kind == "mla" else 2
    heads = layer.get("num_kv_heads", 1)
    token = layer.get("bytes_per_token") or heads * layer["head_size"] * values * BYTES[dtype]
    return Spec(
        kind="latent" if kind == "mla" else kind,
        block_size=block,
        page=block * token,
        content=(heads, layer["head_size"], dtype),
        window=layer.get("window") or layer.get("chunk"),
    )


def _product(shape: list[int]) -> int:
    size = 1
    for dimension in shape:
        size *= dimension
    return size


def need_of(case: dict[str, Any], version: str) -> Need:
    batches = 1
    if tuple(map(int, version.split(".")[:2])) >= (0, 26):
        stages = case.get("pp", 1)
        batches = max(2, stages) if case.get("async_scheduling", True) else stages
    batched = case["max_num_batched_tokens"]
    return Need(
        max_model_len=case["max_model_len"],
        in_flight_tokens=batched * batches,
        encoder_tokens=batched,
        state_mode=case.get("mamba_cache_mode", "none"),
        one_manager=case.get("disable_hybrid", False),
    )


def known(version: str, case: str) -> bool:
    """Whether that release has the kinds of layer that the case needs at all."""
    return "has no attribute" not in VECTORS[version][case].get("error", "")


@pytest.mark.parametrize("version", VECTORS)
def test_blocks_and_printed_lines_are_vllms_own(version: str) -> None:
    assert set(VECTORS[version]) == set(CASES)
    for name, answer in VECTORS[version].items():
        if not known(version, name):
            continue
        case = CASES[name]
        specs, need = specs_of(case["layers"], version), need_of(case, version)
        try:
            got = plan([specs], [case["available_memory_bytes"]], need, rules_for(version))
        except RefusedError as refused:
            kind, _, text = answer["error"].partition(": ")
            assert kind in ("ValueError", "NotImplementedError"), f"{version} {name}"
            same = refused.message in text if "not divisible" in text else refused.message.startswith(text)
            assert same, f"{version} {name}: {refused.message}"  # noqa: PT017 - either way of ending is right somewhere
            continue
        assert "error" not in answer, f"{version} {name}: vLLM refuses: {answer['error']}"
        assert got.blocks == answer["num_blocks"], f"{version} {name}"
        assert [len(group.layers) for group in got.groups] == answer["groups"], f"{version} {name}"
        assert list(got.lines) == answer["log"], f"{version} {name}"


@pytest.mark.parametrize("row", FIELD_LOGS, ids=lambda row: row["source"][:40])
def test_published_logs_come_out(row: dict[str, Any]) -> None:
    """Where only rounded GiB are printed, some number of blocks inside that rounding must give what was printed."""
    case, version = row["case"], row["version"]
    rules = rules_for(version)
    specs, need = specs_of(case["layers"], version), need_of(case, version)
    exact = case.get("available_memory_bytes")
    half = 0.005 * (1 << 30)
    low, high = (
        (exact, exact) if exact else (row["available_gib"] * (1 << 30) - half, row["available_gib"] * (1 << 30) + half)
    )
    stride = plan([specs], [int(high)], need, rules).bytes_per_block
    printed = {
        (got.tokens, f"{got.concurrency:.2f}x")
        for blocks in range(int(low) // stride, int(high) // stride + 1)
        for got in [plan([specs], [blocks * stride], need, rules)]
    }
    assert (row["tokens"], row["concurrency"]) in printed


DEEPSEEK_V4 = json.loads((DATA / "vllm-planner-deepseek-v4.json").read_text())


@pytest.mark.parametrize("version", sorted({row["version"] for row in DEEPSEEK_V4["answers"]}))
def test_layers_cut_into_repeats_are_packed_as_each_release_does(version: str) -> None:
    """DeepSeek-V4 before 0.29: bytes of a block, the check and the printed concurrency each changed on their own."""
    layers = [
        Spec(kind=kind, block_size=block, page=page, window=window)
        for count, kind, block, page, window in DEEPSEEK_V4["layers"]
        for _ in range(count)
    ]
    for row in DEEPSEEK_V4["answers"]:
        if row["version"] != version:
            continue
        need = Need(max_model_len=row["length"], in_flight_tokens=row["in_flight"])
        if "refused" in row:
            with pytest.raises(RefusedError) as refusal:
                plan([layers], [row["pool"]], need, rules_for(version))
            assert str(refusal.value) == row["refused"]
        else:
            made = plan([layers], [row["pool"]], need, rules_for(version))
            assert (made.blocks, made.tokens) == (row["blocks"], row["tokens"])
            assert made.concurrency == pytest.approx(row["concurrency"], rel=1e-9)


def test_blocks_given_pass_the_check_that_the_release_makes() -> None:
    """--num-gpu-blocks-override stands in for the pool since 0.20.1; before, the pool itself has to hold a request."""
    layers = [Spec(kind="full", block_size=16, page=65536)] * 4
    need = Need(max_model_len=4096, in_flight_tokens=2048, blocks_override=1000)
    assert plan([layers], [1 << 20], need, rules_for("0.20.1")).blocks == 1000
    with pytest.raises(RefusedError):
        plan([layers], [1 << 20], need, rules_for("0.20.0"))
    assert plan([layers], [1 << 30], need, rules_for("0.20.0")).blocks == 1000
