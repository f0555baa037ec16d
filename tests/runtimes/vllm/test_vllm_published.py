"""Figures that people measured and published with vLLM come out of a config.json, a command line and a device."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmdoctor_core.facts import CacheForecast, Estimate, Forecast
from vllm_launches import GIB, TESTS, forecast, model

PUBLISHED = json.loads((TESTS / "data" / "published.json").read_text())
CONFIGS = {
    "Qwen3-8B": "Qwen--Qwen3-8B",
    "Mistral-7B-v0.3": "mistralai--Mistral-7B-Instruct-v0.3",
    "gemma-3-4b": "google--gemma-3-4b-it",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "DeepSeek-V2-Lite": "deepseek-ai--DeepSeek-V2-Lite",
    "Qwen3.5-9B": "Qwen--Qwen3.5-9B",
    "Qwen2.5-7B-Instruct": "Qwen--Qwen2.5-7B",
    "Qwen2.5-14B-Instruct": "Qwen--Qwen2.5-14B-Instruct",
}
TOLERANCE = PUBLISHED["vllm"]["tolerance"]
POOL = 60 * GIB


def name_of(row: dict[str, Any]) -> str:
    return "-".join(str(value) for key, value in row.items() if key != "note")[:70]


def of_row(row: dict[str, Any], kv_memory: int) -> Forecast:
    words = ["--max-model-len", str(row["max_model_len"])]
    if "max_num_batched_tokens" in row:
        words += ["--max-num-batched-tokens", str(row["max_num_batched_tokens"])]
    if row.get("prefix_caching") is False:
        words += ["--no-enable-prefix-caching"]
    return forecast(model(CONFIGS[row["model"]]), *words, version="0.29.1", entrypoint="llm", kv_memory=kv_memory)


def cache_of(made: Forecast) -> CacheForecast:
    assert made.refused is None
    assert made.cache is not None
    return made.cache


@pytest.mark.parametrize("row", PUBLISHED["vllm"]["rows"], ids=name_of)
def test_published_figure(row: dict[str, Any]) -> None:
    made = of_row(row, POOL)
    if row.get("refused"):
        assert made.refused is not None
        assert made.refused.code == "CTX601"
        return
    cache = cache_of(made)
    if "bytes_per_token" in row:
        # Published as printed memory / printed tokens: up to a block is lost in the division.
        slack = TOLERANCE + (3e-4 if row["model"] == "Qwen3.5-9B" else 0)
        assert cache.bytes_per_token == pytest.approx(row["bytes_per_token"], rel=slack)
    if "request_mib" in row:
        assert cache.bytes_per_request / 2**20 == pytest.approx(row["request_mib"], abs=0.5)
    if "block_size" in row:
        assert cache.block_tokens == row["block_size"]
        assert cache.bytes_per_block == row["block_mib"] * 2**20
        assert cache.blocks_per_request == pytest.approx(row["request_blocks"], rel=5e-4)
    if "state_blocks" in row:
        state = next(part for part in cache.parts if part.kind == "state")
        assert cache.bytes_per_block is not None
        assert state.bytes / cache.bytes_per_block == pytest.approx(row["state_blocks"], abs=0.09)


def test_gemmas_printed_line_is_reached_inside_the_printed_gib() -> None:
    row = next(row for row in PUBLISHED["vllm"]["rows"] if "kv_tokens" in row)
    low, high = (row["kv_memory_gib"] - 0.005) * GIB, (row["kv_memory_gib"] + 0.005) * GIB
    block = cache_of(of_row(row, POOL)).bytes_per_block
    assert block is not None
    printed = [cache_of(of_row(row, blocks * block)) for blocks in range(int(low) // block, int(high) // block + 1)]
    assert (row["kv_tokens"], row["max_concurrency"]) in {(cache.tokens, cache.max_concurrency) for cache in printed}


@pytest.mark.parametrize("row", PUBLISHED["vllm_hybrid"]["rows"], ids=name_of)
def test_published_hybrid(row: dict[str, Any]) -> None:
    words = ["--kv-cache-dtype", "fp8", "--tensor-parallel-size", str(row["tp"])]
    words += ["--max-model-len", str(row["max_model_len"]), "--max-num-seqs", str(row["max_num_seqs"])]
    if row["mtp"]:
        words += ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}']
    version = "0.28.0" if row["mtp"] else "0.27.1"
    pool = round(9.95 * GIB) if row["mtp"] else 40 * GIB
    cache = cache_of(forecast(model("Qwen--Qwen3.8-27B"), *words, version=version, kv_memory=pool, card="A100"))
    if "kib_per_token" in row:
        low, high = row["kib_per_token"] if isinstance(row["kib_per_token"], list) else [row["kib_per_token"]] * 2
        assert low - 0.05 <= cache.bytes_per_token / 1024 <= high + 0.05
        return
    assert (cache.tokens, cache.max_concurrency) == (row["kv_tokens"], row["max_concurrency"])
    assert cache.bytes_per_request / GIB == pytest.approx(row["request_gib"], rel=2e-3)


@pytest.mark.parametrize("row", PUBLISHED["vllm_pools"]["rows"], ids=name_of)
def test_published_pool(row: dict[str, Any]) -> None:
    """Everything predicted from model, device and arguments: weights within 2.5 %, KV tokens within 10 %."""
    words = ["--max-model-len", "4096", "--gpu-memory-utilization", "0.9", "--max-num-seqs", "128"]
    words += ["--tensor-parallel-size", str(row.get("tp", 1)), "--pipeline-parallel-size", str(row.get("pp", 1))]
    draft = None
    speculative = row.get("speculative", "")
    if speculative:
        tokens = int(speculative.rpartition("=")[2])
        if speculative.startswith("ngram"):
            config: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": tokens}
        else:
            draft = model("Qwen--Qwen2.5-0.5B-Instruct")
            config = {"model": draft.name, "num_speculative_tokens": tokens, "use_heterogeneous_vocab": True}
        words += ["--speculative-config", json.dumps(config)]
    made = forecast(
        model(CONFIGS[row["model"]]), *words, version=row["version"] or "0.27.1", card=row["gpu"], draft=draft
    )
    if row.get("out_of_memory"):
        assert made.refused is not None
        assert made.refused.code == "MEM801"
        return
    cache = cache_of(made)
    assert made.memory[0].weights == pytest.approx(row["weights_gib"] * GIB, rel=0.025)
    weights = made.memory[0].certainty["weights"]
    assert isinstance(weights, Estimate)
    half_a_digit = 0.005 * GIB
    assert weights.low - half_a_digit <= row["weights_gib"] * GIB <= weights.high + half_a_digit
    assert cache.tokens == pytest.approx(row["kv_tokens"], rel=0.10)
    assert cache.tokens_certainty is not None
    assert cache.tokens_certainty.low <= row["kv_tokens"] <= cache.tokens_certainty.high


@pytest.mark.parametrize("row", PUBLISHED["plain_formula"]["rows"], ids=name_of)
def test_plain_formula(row: dict[str, Any]) -> None:
    name = {"Qwen2.5-7B": "Qwen--Qwen2.5-7B", "Llama-3-8B": "meta-llama--Meta-Llama-3.1-8B"}.get(
        row["model"], "meta-llama--Meta-Llama-3.1-70B"
    )
    cache = cache_of(forecast(model(name), "--max-model-len", "4096", version="0.29.0", kv_memory=POOL))
    assert cache.bytes_per_token == row["kib_per_token"] * 1024
