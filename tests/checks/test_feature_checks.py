"""What a release of the server has by name: attention of a backend, parsers, quantization methods, pipeline stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmdoctor_checks import adapters, arguments, capability, context, cuda, draft, environment, memory, parallel
from llmdoctor_checks import model as models
from llmdoctor_core.facts import Draft, Full, Latent, Layer, NvidiaDriver, Quantization
from llmdoctor_core.finding import Outcome
from llmdoctor_core.intake import _adapter_files

from .building import (
    GIB,
    cache,
    container,
    distribution,
    forecast,
    gguf,
    gpus,
    launch,
    model,
    request,
    source,
    target,
)
from .cases import HYBRID


def latent(*, sparse: bool) -> Layer:
    return Layer(caches=(Latent(rank=512, rope_dim=64, heads=128, key_dim=192, value_dim=128, sparse=sparse),))


SPARSE = model(layers=(latent(sparse=True),) * 2)
DENSE = model(layers=(latent(sparse=False),) * 2)
WIDE = model(layers=(Layer(caches=(Full(kv_heads=2, key_dim=512, value_dim=512),)),) * 2)
HOPPER = gpus(name="NVIDIA H100 80GB HBM3", compute_capability=(9, 0))
BLACKWELL = gpus(name="NVIDIA B200", compute_capability=(10, 0))
STORED_BNB = model(
    quantization=Quantization(method="bitsandbytes", bits=4),
    source=source(config={"quantization_config": {"quant_method": "bitsandbytes"}}),
)


def attention(*facts: object) -> list[Outcome]:
    return [found.outcome for found in capability.kv_dtype_or_attention_unsupported_by_gpu(*facts, None)]


def test_sparse_latent_attention_has_no_kernels_on_ampere() -> None:
    assert attention(gpus(), launch(version="0.33.0"), SPARSE) == [Outcome.FAIL]
    assert attention(HOPPER, launch(version="0.13.0"), SPARSE) == []
    assert attention(gpus(), launch(version="0.33.0"), DENSE) == []


def test_sm120_runs_sparse_latent_attention_since_0_24() -> None:
    workstation = gpus(compute_capability=(12, 0))
    assert attention(workstation, launch(version="0.23.0"), SPARSE) == [Outcome.FAIL]
    assert attention(workstation, launch(version="0.24.0"), SPARSE) == []


@pytest.mark.parametrize(
    ("backend", "version", "of"),
    [("CUTLASS_MLA", "0.12.0", SPARSE), ("FLASHMLA_SPARSE", "0.12.0", DENSE), ("FLASHINFER", "0.12.0", DENSE)],
)
def test_a_forced_backend_must_have_the_models_kind_of_attention(backend: str, version: str, of: object) -> None:
    assert attention(BLACKWELL, launch(version=version, attention_backend=backend), of) == [Outcome.FAIL]


def test_a_forced_backend_must_have_the_head_size() -> None:
    assert attention(HOPPER, launch(version="0.19.1", attention_backend="FLASHINFER"), WIDE) == [Outcome.FAIL]
    assert attention(HOPPER, launch(version="0.22.1", attention_backend="FLASHINFER"), WIDE) == []
    assert attention(HOPPER, launch(version="0.19.1", attention_backend="TRITON_ATTN"), WIDE) == []


def test_a_backend_of_cpus_is_none_of_a_gpu() -> None:
    assert attention(HOPPER, launch(version="0.20.2", attention_backend="TORCH_SDPA"), model()) == [Outcome.FAIL]


@pytest.mark.parametrize(("version", "count"), [("0.11.2", 1), ("0.12.0", 0)])
def test_packed_int4_runs_on_turing_since_0_12(version: str, count: int) -> None:
    packed = model(quantization=Quantization(method="compressed-tensors", bits=4, format="pack-quantized"))
    turing = gpus(name="NVIDIA GeForce RTX 2080 Ti", compute_capability=(7, 5))
    assert len(capability.quantization_unsupported_by_gpu(turing, launch(version=version), packed)) == count


@pytest.mark.parametrize(
    ("version", "parser", "count"),
    [("0.10.1", "openai", 1), ("0.10.2", "openai", 0), ("0.10.2", "no_such", 1), ("0.34.0", "no_such", 0)],
)
def test_a_parser_is_known_since_some_release(version: str, parser: str, count: int) -> None:
    found = arguments.arguments_contradict(launch(version=version, tool_call_parser=parser), None, None, None)
    assert len(found) == count


def test_a_parser_of_a_plug_in_is_not_ours() -> None:
    own = launch(tool_call_parser="mine", tool_parser_plugin="mine.py")
    assert arguments.arguments_contradict(own, None, None, None) == []


def test_bitsandbytes_is_a_package_then_a_plug_in() -> None:
    old = target(distribution("vllm", "0.27.1"))
    (missing,) = environment.package_missing(old, request(), launch(version="0.27.1"), STORED_BNB)
    assert missing.params["package"] == "bitsandbytes"
    assert models.quantization_unknown_to_version(launch(version="0.27.1"), STORED_BNB, old) == []
    new = target(distribution("vllm", "0.28.0"), distribution("bitsandbytes", "0.48.0"))
    assert environment.package_missing(new, request(), launch(version="0.28.0"), STORED_BNB) == []
    (moved,) = models.quantization_unknown_to_version(launch(version="0.28.0"), STORED_BNB, new)
    assert moved.params["plugin"] == "vllm-bnb-plugin"
    plugged = target(distribution("vllm", "0.28.0"), distribution("vllm-bnb-plugin", "0.1.0"))
    assert models.quantization_unknown_to_version(launch(version="0.28.0"), STORED_BNB, plugged) == []


def test_a_gguf_file_needs_the_plug_in_since_0_24() -> None:
    packed = model(source=gguf("qwen3"))
    assert models.quantization_unknown_to_version(launch(version="0.23.0"), packed, None) == []
    (moved,) = models.quantization_unknown_to_version(launch(version="0.24.0"), packed, None)
    assert (moved.outcome, moved.params["plugin"]) == (Outcome.FAIL, "vllm-gguf-plugin")


def test_pipeline_stages_are_refused_until_the_class_takes_part() -> None:
    staged = model(architecture="DeepseekV4ForCausalLM")
    (refused,) = parallel.pipeline_parallel_unsupported(launch(version="0.20.2", pipeline_parallel_size=2), staged)
    assert refused.params["instead"] == ", or vLLM 0.21.0"
    assert parallel.pipeline_parallel_unsupported(launch(version="0.21.0", pipeline_parallel_size=2), staged) == []
    assert parallel.pipeline_parallel_unsupported(launch(version="0.20.2"), staged) == []


def test_transformers_5_beside_an_old_vllm_is_known_to_fail() -> None:
    pair = target(distribution("vllm", "0.11.0"), distribution("transformers", "5.0.0"))
    assert environment.known_bad_release(pair, None, None, None, None)
    fine = target(distribution("vllm", "0.11.0"), distribution("transformers", "4.57.1"))
    assert environment.known_bad_release(fine, None, None, None, None) == []


def test_an_engine_built_on_the_other_shares_its_environment() -> None:
    built_on = target(distribution("sglang", "0.4.1", "vllm>=0.6.3"), distribution("vllm", "0.6.4.post1"))
    assert environment.two_engines_in_one_environment(built_on) == []


def test_a_libcuda_of_a_newer_driver_is_named() -> None:
    mixed = NvidiaDriver(version="545.23.08", kernel_module_version="545.23.08", cuda_version="12.5")
    assert [found.outcome for found in cuda.driver_library_mismatch(mixed, container())] == [Outcome.WARN, Outcome.SKIP]
    whole = NvidiaDriver(version="565.57.01", kernel_module_version="565.57.01", cuda_version="12.7")
    assert [found.outcome for found in cuda.driver_library_mismatch(whole, container())] == [Outcome.SKIP]


def test_ollama_before_the_tiers_is_not_told_of_them() -> None:
    old = request("ollama", version="0.4.0")
    (skipped,) = context.context_lowered_silently(old, None, None, None, gpus(memory_total=24 * GIB))
    assert skipped.outcome is Outcome.SKIP


@pytest.mark.parametrize(("length", "blocks"), [(512, "no"), (1024, "one"), (32768, None)])
def test_prefixes_shorter_than_a_block_are_never_found(length: int, blocks: str | None) -> None:
    asked = launch(version="0.19.1", enable_prefix_caching=True, max_model_len=length)
    found = memory.cache_promise_lost(asked, HYBRID, forecast(cache=cache(block_tokens=528)))
    assert [one.params["blocks"] for one in found] == ([blocks] if blocks else [])


def test_an_asymmetric_checkpoint_is_none_of_marlins() -> None:
    config = {"quantization_config": {"quant_method": "gptq", "bits": 4, "sym": False}}
    stored = model(quantization=Quantization(method="gptq", bits=4), source=source(config=config))
    assert arguments.arguments_contradict(launch(quantization="gptq_marlin"), stored, None, None)


def test_older_releases_draft_beyond_the_drafts_context() -> None:
    short = Draft(model=model(training_length=2048))
    (old,) = draft.draft_context_below_target(launch(version="0.9.2"), short)
    assert "wrong memory accesses" in old.message


@pytest.mark.parametrize(
    ("text", "count"),
    [('{"r": 8, "rank_pattern": {"q": 64}}', 1), ('{"r": 8, "use_dora": true}', 1), ('{"r": 8}', 0), ("{", 0)],
)
def test_an_adapter_is_held_against_the_launch(text: str, count: int) -> None:
    named = launch(lora_modules=['{"name": "a", "path": "/ad"}'], max_lora_rank=16)
    found = adapters.lora_adapter_unusable(named, request(config_files={"/ad/adapter_config.json": text}))
    assert len([one for one in found if one.outcome is Outcome.FAIL]) == count


def test_the_rim_reads_the_configuration_of_a_local_adapter(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 64}', encoding="utf-8")
    argv = ("vllm", "serve", "m", "--enable-lora", "--lora-modules", f"a={tmp_path}", "b=/nowhere")
    assert _adapter_files(argv, {}) == {f"{tmp_path}/adapter_config.json": '{"r": 64}'}
