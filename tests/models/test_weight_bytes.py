"""Bytes of weights counted from a configuration equal what vLLM's own modules hold and what servers printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmdoctor_core.facts import Model, ModelSource, Quantization
from llmdoctor_core.models import describe
from llmdoctor_core.models.catalogue import find
from llmdoctor_core.models.weights import bytes_per_rank, stage_layers, weight_groups
from models.model_files import TINY, llama_tensors, safetensors

CONFIGS = Path(__file__).parents[1] / "configs"
VLLM: list[dict[str, Any]] = json.loads(Path(__file__).with_name("vllm_parameter_bytes.json").read_text())["rows"]
GIB = 1 << 30


def described(name: str, config: dict[str, Any] | None = None, **extra: Any) -> Model:
    if config is None:
        config = json.loads((CONFIGS / f"{name}.json").read_text())
    return describe(ModelSource(name=name, origin="folder", where=name, config={**config, **extra}))


@pytest.mark.parametrize("row", VLLM, ids=lambda row: f"{row['config']}-tp{row['tensor_parallel']}")
def test_the_count_equals_the_modules_of_vllm(row: dict[str, Any]) -> None:
    extra = {"quantization_config": row["quantization_config"]} if "quantization_config" in row else {}
    if "catalogue" in row:
        source = find(row["catalogue"])
        assert source is not None
        model = describe(source)
    else:
        model = described(row["config"], row.get("inline"), **extra)
    found = bytes_per_rank(model, tensor_parallel=row["tensor_parallel"])
    assert found is not None
    assert found == pytest.approx(row["bytes"], rel=0.0013)


@pytest.mark.parametrize(
    ("name", "tensor", "pipeline", "printed"),
    [
        # vLLM 0.27 and 0.28 on L4 and A10G, "Model loading took"
        ("Qwen--Qwen2.5-7B", 1, 1, 14.29),
        ("Qwen--Qwen2.5-7B", 2, 1, 7.16),
        ("Qwen--Qwen2.5-7B", 4, 1, 3.63),
        ("Qwen--Qwen2.5-14B-Instruct", 2, 1, 13.93),
        ("Qwen--Qwen2.5-14B-Instruct", 1, 2, 13.79),
        ("Qwen--Qwen2.5-14B-Instruct", 4, 1, 6.95),
        # public logs of vLLM 0.11 to 0.19
        ("openai--gpt-oss-20b", 1, 1, 13.72),
        ("openai--gpt-oss-20b", 2, 1, 7.01),
        ("openai--gpt-oss-120b", 1, 1, 65.97),
        ("openai--gpt-oss-120b", 2, 1, 32.98),
        ("deepseek-ai--DeepSeek-V2-Lite", 1, 1, 29.43),
        ("google--gemma-3-4b-it", 1, 1, 8.58),
        ("mistralai--Mistral-Small-3.2-24B-Instruct-2506", 1, 1, 44.76),
        ("meta-llama--Meta-Llama-3.1-8B", 1, 4, 4.26),
        ("nvidia--Llama-3_3-Nemotron-Super-49B-v1", 4, 1, 23.26),
        ("MiniMaxAI--MiniMax-M2.5", 4, 1, 54.97),
    ],
)
def test_what_servers_printed_is_met_within_two_and_a_half_percent(
    name: str, tensor: int, pipeline: int, printed: float
) -> None:
    model = described(name)
    ranks = [
        bytes_per_rank(model, tensor_parallel=tensor, pipeline_parallel=pipeline, stage=stage)
        for stage in range(pipeline)
    ]
    assert max(rank or 0 for rank in ranks) / GIB == pytest.approx(printed, rel=0.025)


def test_a_quantisation_that_the_launch_asks_for_replaces_the_checkpoints() -> None:
    model = described("meta-llama--Meta-Llama-3.1-8B")
    found = bytes_per_rank(model, quantization=Quantization(method="fp8", bits=8))
    assert (found or 0) / GIB == pytest.approx(8.49, rel=0.01)  # vLLM 0.19, --quantization fp8


def test_float32_doubles_what_is_not_quantised() -> None:
    model = described("Qwen--Qwen3-8B")
    half, whole = bytes_per_rank(model), bytes_per_rank(model, dtype="float32")
    assert half is not None
    assert whole == 2 * half


def test_stages_hold_the_whole_model_once() -> None:
    model = described("Qwen--Qwen3-8B")
    tables = sum(group.bytes for group in weight_groups(model) if group.kind == "rotary")
    norm = sum(group.bytes for group in weight_groups(model) if group.kind == "norm" and group.layer is None)
    for stages in (2, 3, 5):
        parts = [bytes_per_rank(model, pipeline_parallel=stages, stage=stage) or 0 for stage in range(stages)]
        assert sum(parts) - (stages - 1) * (tables + norm) == bytes_per_rank(model)


def test_the_remainder_of_the_layers_goes_before_the_last_stage() -> None:
    assert stage_layers(31, 4) == (8, 8, 8, 7)
    assert stage_layers(30, 4) == (7, 8, 8, 7)
    assert stage_layers(32, 4) == (8, 8, 8, 8)
    assert stage_layers(5, 1) == (5,)


def test_kv_heads_are_copied_above_their_number() -> None:
    model = described("Qwen--Qwen3-8B")  # 8 KV heads
    key_value = sum(group.bytes for group in weight_groups(model) if group.parts == 8)
    eight, sixteen = (bytes_per_rank(model, tensor_parallel=ranks) or 0 for ranks in (8, 16))
    whole = sum(group.bytes for group in weight_groups(model) if group.parts == 1)
    split = sum(group.bytes for group in weight_groups(model) if group.parts is None)
    assert eight == pytest.approx(whole + key_value / 8 + split / 8, rel=1e-3)
    assert sixteen == pytest.approx(whole + key_value / 8 + split / 16, rel=1e-3)


def test_headers_win_over_the_count() -> None:
    from llmdoctor_core.models import safetensors as reader

    tensors = llama_tensors(range(2))
    data = safetensors(tensors)
    header = reader.read_header(lambda offset, length: data[offset : offset + length], len(data), "tiny")
    groups = reader.groups(header.tensors, 2, 2)
    counted = describe(ModelSource(name="tiny", origin="folder", where="", config=TINY))
    read = describe(
        ModelSource(
            name="tiny",
            origin="folder",
            where="",
            config=TINY,
            weights=groups,
            weight_bytes=sum(g.bytes for g in groups),
        )
    )
    for ranks in (1, 2, 4):
        assert bytes_per_rank(read, tensor_parallel=ranks) == bytes_per_rank(counted, tensor_parallel=ranks)
    wrong = {**tensors, "model.layers.0.mlp.extra.weight": ("BF16", [64, 64])}
    data = safetensors(wrong)
    header = reader.read_header(lambda offset, length: data[offset : offset + length], len(data), "tiny")
    groups = reader.groups(header.tensors, 2, 2)
    more = describe(ModelSource(name="tiny", origin="folder", where="", config=TINY, weights=groups))
    assert (bytes_per_rank(more) or 0) - (bytes_per_rank(read) or 0) == 2 * 64 * 64


def test_what_is_not_recorded_is_not_guessed() -> None:
    config = {key: value for key, value in TINY.items() if key != "intermediate_size"}
    source = ModelSource(name="tiny", origin="catalogue", where="", config=config, unrecorded=("intermediate_size",))
    assert bytes_per_rank(describe(source)) is None
