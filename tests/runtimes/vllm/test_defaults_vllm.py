"""What vLLM fills in, by release, device, entry point and model."""

from __future__ import annotations

import json
import shlex
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmdoctor_core import models
from llmdoctor_core.facts import (
    Full,
    Gpu,
    Gpus,
    Launch,
    LaunchRequest,
    Layer,
    Model,
    ModelSource,
    SlidingWindow,
    State,
    TokenizerFacts,
)
from llmdoctor_core.runtimes.vllm import releases, resolve

TESTS = Path(__file__).parents[2]
CONFIGS = TESTS / "configs"
GIB = 1 << 30
DEVICES: dict[str, tuple[str, float, tuple[int, int]]] = {
    "T4": ("Tesla T4", 14.56, (7, 5)),
    "L4": ("NVIDIA L4", 22.04, (8, 9)),
    "A10G": ("NVIDIA A10G", 22.06, (8, 6)),
    "L40S": ("NVIDIA L40S", 44.4, (8, 9)),
    "A100": ("NVIDIA A100-SXM4-80GB", 79.25, (8, 0)),
    "A100-40GB": ("NVIDIA A100-SXM4-40GB", 39.4, (8, 0)),
    "H100": ("NVIDIA H100 80GB HBM3", 79.18, (9, 0)),
    "H200": ("NVIDIA H200", 139.8, (9, 0)),
    "B200": ("NVIDIA B200", 178.35, (10, 0)),
    "B300": ("NVIDIA B300 SXM6 AC", 267.7, (10, 3)),
    "GB10": ("NVIDIA GB10", 119.7, (12, 1)),
    "RTX 5090": ("NVIDIA GeForce RTX 5090", 31.4, (12, 0)),
}


def gpus(device: str, count: int = 8) -> Gpus:
    name, gib, capability = DEVICES[device]
    return Gpus(
        devices=tuple(
            Gpu(index=i, visible_as=i, name=name, memory_total=int(gib * GIB), compute_capability=capability)
            for i in range(count)
        )
    )


@lru_cache(maxsize=128)
def model(name: str) -> Model:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    return models.describe(ModelSource(name=name, origin="folder", where=name, config=config))


def launch(
    line: str = "",
    *,
    version: str | None = "0.33.0",
    entrypoint: str = "serve",
    of: Model | str | None = None,
    on: Gpus | str | None = None,
    environment: dict[str, str] | None = None,
) -> Launch:
    request = LaunchRequest(
        runtime="vllm",
        argv=("vllm", "serve", "M", *shlex.split(line)),
        version=version,
        entrypoint="llm" if entrypoint == "llm" else "serve",
        environment=environment or {},
    )
    return resolve(request, model(of) if isinstance(of, str) else of, gpus(on) if isinstance(on, str) else on)


# ------------------------------------------------------------------ batch: published figures and every tier


PUBLISHED = json.loads((TESTS / "data/published.json").read_text())["defaults"]


@pytest.mark.parametrize("row", PUBLISHED["max_num_batched_tokens"], ids=lambda r: f"{r['gpu']}-{r['entry']}")
@pytest.mark.parametrize("version", ["0.9.0", "0.11.2", "0.20.0", "0.29.1rc1", "0.33.0"])
def test_published_batched_tokens(row: dict[str, Any], version: str) -> None:
    entrypoint = "llm" if row["entry"] == "LLM class" else "serve"
    assert launch(version=version, entrypoint=entrypoint, on=row["gpu"])["max_num_batched_tokens"] == row["value"]


def test_published_memory_utilization() -> None:
    row = PUBLISHED["gpu_memory_utilization"]
    assert launch(version=row["since_at_most"])["gpu_memory_utilization"] == row["value"]
    assert launch(version="0.20.0")["gpu_memory_utilization"] == row["value"]
    older = launch(version="0.19.1").arguments["gpu_memory_utilization"]
    assert (older.value, older.origin) == (row["before"], "default")


@pytest.mark.parametrize(
    ("device", "version", "llm", "serve", "sequences"),
    [
        ("A100", "0.8.0", 8192, 2048, 1024),
        ("H100", "0.8.0", 16384, 8192, 1024),
        ("A100", "0.8.4", 8192, 2048, 256),
        ("A100", "0.8.5", 16384, 8192, 1024),
        ("A100", "0.9.0", 8192, 2048, 256),
        ("H200", "0.9.0", 16384, 8192, 1024),
        ("B200", "0.27.1", 16384, 8192, 1024),
        ("B200", "0.28.0", 16384, 16384, 1024),
        ("B300", "0.33.0", 16384, 16384, 1024),
        ("GB10", "0.13.0", 8192, 2048, 256),  # NVML tells no memory of it: a log prints 2,048 and captures for 256
        ("GB10", "0.32.0", 8192, 2048, 256),
        ("GB10", "0.33.0", 8192, 2048, 256),
        ("L4", "0.33.0", 8192, 2048, 256),
        ("A10G", "0.20.0", 8192, 2048, 256),
        ("L40S", "0.12.0", 8192, 2048, 256),
        ("RTX 5090", "0.33.0", 8192, 2048, 256),
        ("A100-40GB", "0.33.0", 8192, 2048, 256),
    ],
)
def test_tiers_by_device_and_release(device: str, version: str, llm: int, serve: int, sequences: int) -> None:
    for entrypoint, expected in (("llm", llm), ("serve", serve)):
        found = launch(version=version, entrypoint=entrypoint, on=device)
        assert (found["max_num_batched_tokens"], found["max_num_seqs"]) == (expected, sequences)


def test_an_unknown_gpu_is_said_so() -> None:
    argument = launch(of="Qwen--Qwen3-8B").arguments["max_num_batched_tokens"]
    assert (argument.value, argument.origin) == (2048, "derived")
    assert argument.why == "GPU unknown: assuming tier below 70 GiB, since 0.33.0"


def test_the_batch_follows_the_other_arguments() -> None:
    def batch(line: str, version: str = "0.33.0") -> tuple[int, int]:
        found = launch(line, version=version, of="Qwen--Qwen3-8B", on="L4")
        return found["max_num_batched_tokens"], found["max_num_seqs"]

    assert batch("--max-num-batched-tokens 100") == (100, 100)
    assert batch("--max-num-seqs 4 --max-model-len 256") == (1024, 4)
    assert batch("--max-num-seqs 4 --max-model-len 256", "0.11.0") == (2048, 4)
    assert batch("--no-enable-chunked-prefill") == (40960, 256)
    assert batch("--performance-mode throughput") == (4096, 512)
    experts = "-dp 2 -ep --all2all-backend deepep_low_latency"
    assert batch(experts) == (256, 256)
    assert batch(experts, "0.19.1") == (2048, 256)


# ------------------------------------------------------------------ length


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("Qwen--Qwen3-8B", "0.33.0", 40_960),
        ("google--gemma-3-4b-it", "0.9.0", 131_072),
        ("deepseek-ai--DeepSeek-V3", "0.20.0", 163_840),
        ("deepseek-ai--DeepSeek-V3", "0.30.0", 163_840),
        ("microsoft--Phi-3.5-mini-instruct", "0.11.0", 131_072),
        ("microsoft--Phi-3.5-mini-instruct", "0.11.1", 4096),
        ("openai--gpt-oss-20b", "0.33.0", 131_072),
        ("openai--whisper-large-v3", "0.33.0", 448),
        ("meta-llama--Meta-Llama-3.1-8B", "0.33.0", 131_072),
        ("openai-community--gpt2", "0.33.0", 1024),
    ],
)
def test_length_where_none_is_given(name: str, version: str, expected: int) -> None:
    argument = launch(version=version, of=name).arguments["max_model_len"]
    assert (argument.value, argument.origin) == (expected, "derived")


def with_config(**changes: Any) -> Model:
    source = model("Qwen--Qwen3-8B").source
    config = {**(source.config or {}), **changes}
    tokenizer = TokenizerFacts(model_max_length=changes.pop("tokenizer", None))
    return models.describe(ModelSource(name="m", origin="folder", where="m", config=config, tokenizer=tokenizer))


def length(version: str, **changes: Any) -> int:
    return int(launch(version=version, of=with_config(**changes))["max_model_len"])


def test_yarn_by_release() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert length("0.29.0", rope_scaling=yarn) == 131_072
    assert length("0.30.0", rope_scaling=yarn) == 40_960
    assert length("0.30.0", rope_scaling=yarn, max_position_embeddings=131_072) == 131_072


def test_rope_types() -> None:
    assert length("0.33.0", rope_scaling={"type": "linear", "factor": 2.0}) == 81_920
    assert length("0.33.0", rope_scaling={"type": "dynamic", "factor": 2.0}) == 81_920
    assert length("0.33.0", rope_scaling={"rope_type": "llama3", "factor": 8.0}) == 40_960
    assert length("0.33.0", rope_scaling={"type": "mrope", "mrope_section": [1, 2, 3]}) == 40_960


def test_other_sources_of_the_length() -> None:
    assert length("0.33.0", max_position_embeddings=None) == 2048
    assert length("0.33.0", model_max_length=131_072) == 131_072
    assert length("0.8.2", model_max_length=131_072) == 40_960
    assert length("0.9.1", tokenizer=8192) == 8192
    assert length("0.9.2", tokenizer=8192) == 40_960


def test_the_longest_that_is_not_refused() -> None:
    limit = launch("--max-model-len 131072", of="Qwen--Qwen3-8B").arguments["derived_max_model_len"]
    assert (limit.value, limit.why) == (40_960, "max_position_embeddings=40960")
    allowed = launch(of="Qwen--Qwen3-8B", environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert allowed["derived_max_model_len"] is None


def test_automatic_length() -> None:
    found = launch("--max-model-len auto", of="Qwen--Qwen3-8B")
    assert (found["max_model_len"], found["max_model_len_is_automatic"]) == (40_960, True)
    assert launch("--max-model-len auto")["max_model_len"] is None


# ------------------------------------------------------------------ prefix caching and states


@pytest.mark.parametrize(
    ("name", "line", "version", "caching", "mode"),
    [
        ("Qwen--Qwen3.5-9B", "", "0.27.1", False, "none"),
        ("Qwen--Qwen3.5-9B", "", "0.28.0", True, "align"),
        ("Qwen--Qwen3.5-9B", "--enable-prefix-caching", "0.15.0", True, "align"),
        ("Qwen--Qwen3.5-9B", "--enable-prefix-caching", "0.14.1", False, "none"),
        ("ai21labs--Jamba-v0.1", "--enable-prefix-caching", "0.14.1", True, "all"),
        ("ai21labs--Jamba-v0.1", "--enable-prefix-caching", "0.19.1", True, "all"),
        ("ai21labs--Jamba-v0.1", "--enable-prefix-caching --speculative-config.method ngram", "0.19.1", True, "all"),
        ("ai21labs--Jamba-v0.1", "--enable-prefix-caching --speculative-config.method ngram", "0.20.0", True, "align"),
        ("ai21labs--Jamba-v0.1", "--enable-prefix-caching --mamba-cache-mode align", "0.26.0", True, "align"),
        ("ai21labs--Jamba-v0.1", "--enable-prefix-caching", "0.28.0", True, "align"),
        ("ai21labs--Jamba-v0.1", "--no-enable-prefix-caching", "0.33.0", False, "none"),
        ("Qwen--Qwen3-8B", "", "0.8.5", True, "none"),
        ("openai--whisper-large-v3", "", "0.33.0", False, "none"),
    ],
)
def test_prefix_caching_and_state_mode(name: str, line: str, version: str, caching: bool, mode: str) -> None:
    found = launch(line, version=version, of=name)
    assert (found["enable_prefix_caching"], found["mamba_cache_mode"]) == (caching, mode)


def test_prefix_caching_that_is_switched_off_is_said() -> None:
    problems = launch("--enable-prefix-caching", version="0.14.1", of="Qwen--Qwen3.5-9B").problems
    assert [(problem.kind, problem.flag) for problem in problems] == [("ignored", "--enable-prefix-caching")]


# ------------------------------------------------------------------ scheduling, runner, parallel


@pytest.mark.parametrize(
    ("line", "version", "expected"),
    [
        ("", "0.13.0", False),
        ("", "0.14.0", True),
        ("--async-scheduling", "0.12.0", True),
        ("--no-async-scheduling", "0.33.0", False),
        ("-pp 2", "0.14.1", False),
        ("-pp 2", "0.15.0", True),
        ("-pp 2", "0.31.0", True),
        ("-tp 2 --distributed-executor-backend ray", "0.33.0", False),
        ("--spec-method ngram --spec-tokens 3", "0.32.0", False),
        ("--spec-method ngram --spec-tokens 3", "0.33.0", True),
        ("--spec-method suffix", "0.33.0", False),
        ("--speculative-config.model org/draft --speculative-config.num_speculative_tokens 3", "0.27.1", False),
        ("--speculative-config.model org/draft --speculative-config.num_speculative_tokens 3", "0.28.0", True),
        ("--speculative-config.method eagle3 --speculative-config.model d", "0.14.0", True),
    ],
)
def test_asynchronous_scheduling(line: str, version: str, expected: bool) -> None:
    found = launch(line, version=version, of="Qwen--Qwen3-8B", on="L4")
    assert found.problems == ()
    assert found["async_scheduling"] is expected


@pytest.mark.parametrize(
    ("name", "line", "version", "expected"),
    [
        ("Qwen--Qwen3-8B", "", "0.21.0", "V1"),
        ("Qwen--Qwen3-8B", "", "0.22.0", "V2"),
        ("Qwen--Qwen3-32B-FP8", "", "0.23.0", "V1"),
        ("meta-llama--Meta-Llama-3.1-8B", "", "0.22.1", "V1"),
        ("meta-llama--Meta-Llama-3.1-8B", "", "0.23.0", "V2"),
        ("google--gemma-3-4b-it", "", "0.24.0", "V1"),
        ("google--gemma-3-4b-it", "", "0.25.0", "V2"),
        ("Qwen--Qwen3-30B-A3B", "", "0.28.0", "V1"),
        ("Qwen--Qwen3.5-9B", "", "0.28.0", "V1"),
        ("Qwen--Qwen3.5-9B", "", "0.29.0", "V2"),
        ("Qwen--Qwen3-8B", "--speculative-config.method ngram", "0.31.0", "V1"),
        ("Qwen--Qwen3-8B", "--speculative-config.method ngram", "0.32.0", "V2"),
        ("Qwen--Qwen3-8B", "--speculative-config.model d", "0.30.0", "V1"),
        ("Qwen--Qwen3-8B", "--kv-sharing-fast-prefill", "0.29.0", "V1"),
        ("Qwen--Qwen3-8B", "--kv-sharing-fast-prefill", "0.30.0", "V2"),
    ],
)
def test_model_runner(name: str, line: str, version: str, expected: str) -> None:
    assert launch(line, version=version, of=name)["model_runner"] == expected


def test_the_runner_can_be_forced() -> None:
    argument = launch(environment={"VLLM_USE_V2_MODEL_RUNNER": "0"}).arguments["model_runner"]
    assert (argument.value, argument.origin) == ("V1", "environment")


def test_executor() -> None:
    assert launch(on="L4")["distributed_executor_backend"] == "uni"
    assert launch("-tp 2", on="L4")["distributed_executor_backend"] == "mp"
    assert launch("-tp 2 -pp 8", on="L4", version="0.10.2")["distributed_executor_backend"] == "ray"
    assert launch("-dp 2", on="L4", version="0.33.0")["distributed_executor_backend"] == "mp"


def test_hybrid_manager() -> None:
    connector = """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
    name = "google--gemma-3-4b-it"
    assert launch(version="0.33.0", of=name)["disable_hybrid_kv_cache_manager"] is False
    assert launch(connector, version="0.21.0", of=name)["disable_hybrid_kv_cache_manager"] is True
    assert launch(connector, version="0.33.0", of=name)["disable_hybrid_kv_cache_manager"] is False
    pull = connector.replace("NixlConnector", "NixlPullConnector")
    assert launch(pull, version="0.33.0", of=name)["disable_hybrid_kv_cache_manager"] is False


@pytest.mark.parametrize(
    ("version", "held", "off"),
    [
        ("0.22.1", ["NixlConnector", "ExampleConnector"], False),
        ("0.23.0", ["NixlConnector", "ExampleConnector"], True),
        ("0.23.0", ["NixlConnector", "OffloadingConnector"], False),
        ("0.23.0", [], True),
    ],
)
def test_multi_connector_supports_the_hybrid_manager_if_its_children_do(
    version: str, held: list[str], off: bool
) -> None:
    """multi_connector.py, all_children_support_hma: since 0.23."""
    inner = [{"kv_connector": name, "kv_role": "kv_both"} for name in held]
    config = {"kv_connector": "MultiConnector", "kv_role": "kv_both"}
    text = json.dumps({**config, "kv_connector_extra_config": {"connectors": inner}})
    made = launch(f"--kv-transfer-config '{text}'", version=version, of="google--gemma-3-4b-it")
    assert made["disable_hybrid_kv_cache_manager"] is off


# ------------------------------------------------------------------ dtypes


def test_dtype() -> None:
    assert launch(of="Qwen--Qwen3-8B", on="L4")["dtype"] == "bfloat16"
    assert launch(of="Qwen--Qwen3-8B", on="T4")["dtype"] == "float16"
    assert launch(of="Qwen--Qwen3-8B", on="T4", version="0.8.5")["dtype"] == "bfloat16"  # refused by that release
    assert launch(of="google--gemma-3-4b-it", on="T4")["dtype"] == "float32"
    assert launch("--dtype half", of="Qwen--Qwen3-8B")["dtype"] == "float16"
    single = with_config(torch_dtype="float32")
    assert launch(of=single)["dtype"] == "bfloat16"
    assert launch(of=single, version="0.8.5")["dtype"] == "float16"


def test_kv_dtype_of_the_checkpoint() -> None:
    name = "nvidia--Gemma-4-31B-IT-NVFP4"
    assert launch(of=name, version="0.13.0")["kv_cache_dtype"] == "auto"
    resolved = launch(of=name, version="0.33.0").arguments["kv_cache_dtype"]
    assert resolved.value in ("fp8", "nvfp4")
    assert launch("--kv-cache-dtype auto", of=name)["kv_cache_dtype"] == resolved.value
    assert launch("--kv-cache-dtype bfloat16", of=name)["kv_cache_dtype"] == "bfloat16"
    assert launch(of="deepseek-ai--DeepSeek-V3.2", version="0.11.0")["kv_cache_dtype"] == "fp8_ds_mla"


# ------------------------------------------------------------------ graphs


def graph_sizes(line: str = "", version: str = "0.33.0", of: str = "Qwen--Qwen3-8B", on: str = "L4") -> list[int]:
    return list(launch(line, version=version, of=of, on=on)["cudagraph_capture_sizes"])


def test_graph_sizes() -> None:
    assert graph_sizes(version="0.10.2") == [1, 2, 4, *range(8, 513, 8)]
    assert graph_sizes(version="0.11.1") == [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    assert graph_sizes("--max-num-seqs 5", "0.20.0") == [1, 2, 4, 8]
    assert graph_sizes("--max-num-seqs 5", "0.33.0") == [1, 2, 4, 5, 8]
    assert graph_sizes("--max-num-seqs 9 --spec-method ngram --spec-tokens 2", "0.24.0")[-1] == 48
    assert 27 in graph_sizes("--max-num-seqs 9 --spec-method ngram --spec-tokens 2", "0.29.0")
    assert graph_sizes("--max-num-batched-tokens 300", "0.20.0")[-1] == 288
    assert graph_sizes("--max-num-batched-tokens 300", "0.20.1")[-1] == 300
    assert graph_sizes("--performance-mode interactivity --max-num-seqs 8", "0.20.0") == [*range(1, 17)]
    assert graph_sizes(on="B200", version="0.27.1")[-1] == 512
    assert graph_sizes(on="B200", version="0.28.0")[-1] == 1024
    assert graph_sizes(of="openai--gpt-oss-20b")[-1] == 1024
    assert graph_sizes("--cudagraph-capture-sizes 4 1 9000") == [1, 4]
    assert graph_sizes("--enforce-eager") == []


@pytest.mark.parametrize(
    ("line", "version", "of", "expected"),
    [
        ("", "0.10.2", "Qwen--Qwen3-8B", "PIECEWISE"),
        ("", "0.11.0", "Qwen--Qwen3-8B", "FULL_AND_PIECEWISE"),
        ("", "0.10.2", "ai21labs--Jamba-v0.1", "FULL_AND_PIECEWISE"),
        ("--enforce-eager", "0.33.0", "Qwen--Qwen3-8B", "NONE"),
        ("-O0", "0.33.0", "Qwen--Qwen3-8B", "NONE"),
        ("-O1", "0.33.0", "Qwen--Qwen3-8B", "PIECEWISE"),
        ("-cc.cudagraph_mode full_decode_only", "0.33.0", "Qwen--Qwen3-8B", "FULL_DECODE_ONLY"),
        ("", "0.12.0", "openai--whisper-large-v3", "PIECEWISE"),
        ("", "0.13.0", "openai--whisper-large-v3", "FULL_DECODE_ONLY"),
    ],
)
def test_graph_mode(line: str, version: str, of: str, expected: str) -> None:
    assert launch(line, version=version, of=of, on="L4")["cudagraph_mode"] == expected


# ------------------------------------------------------------------ speculation


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}, "eagle3"),
        ({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B", "num_speculative_tokens": 3}, "eagle"),
        ({"model": "Qwen/Qwen2.5-0.5B-Instruct", "num_speculative_tokens": 3}, "draft_model"),
        ({"model": "[ngram]", "num_speculative_tokens": 3}, "ngram"),
        ({"method": "deepseek_mtp", "num_speculative_tokens": 1}, "mtp"),
        ({"method": "suffix"}, "suffix"),
    ],
)
def test_speculative_method(config: dict[str, Any], method: str) -> None:
    found = launch(f"--speculative-config {shlex.quote(json.dumps(config))}").arguments["speculative_config"]
    assert found.value == {**config, "method": method}
    assert found.origin == "given"


def test_speculation_by_short_flags() -> None:
    found = launch("--spec-method mtp --spec-tokens 2").arguments["speculative_config"]
    assert (found.value, found.flag) == ({"method": "mtp", "num_speculative_tokens": 2}, "--spec-method")


# ------------------------------------------------------------------ the launch as a whole


def test_every_option_of_the_release_has_a_value() -> None:
    found = launch(version="0.20.0").arguments
    assert set(releases.release("0.20.0").options) <= set(found)
    assert all(argument.name == name for name, argument in found.items())


def test_a_build_between_releases_may_have_what_the_next_one_adds() -> None:
    line = "--kv-cache-dtype turboquant_k8v4"
    assert launch(line, version="0.19.2rc1.dev134+gfe9c3d6c5").problems == ()
    assert [problem.since for problem in launch(line, version="0.19.1").problems] == ["0.20.0"]


def test_versions() -> None:
    assert launch(version="0.1.dev1+g9759e3b06").version_assumed  # a checkout without tags tells no release
    assert launch(version=None).version_assumed
    assert launch(version=None).version == releases.newest()
    assert launch(version="not a version").version_assumed
    assert launch(version="0.29.1rc1.dev3+gabc").version == "0.29.1rc1.dev3+gabc"


def test_variables_that_act_as_arguments() -> None:
    environment = {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}
    argument = launch(version="0.14.1", environment=environment).arguments["attention_backend"]
    assert (argument.value, argument.origin) == ("FLASHINFER", "environment")
    newer = launch(version="0.15.0", environment=environment)
    assert newer["attention_backend"] is None
    assert [(p.kind, p.since, p.replacement) for p in newer.problems] == [
        ("ignored", "0.15.0", "--attention-backend NAME")
    ]


def test_variables_nobody_reads() -> None:
    def problem(name: str, value: str = "1", version: str = "0.33.0") -> Any:
        (only,) = launch(version=version, environment={name: value}).problems
        return only

    assert problem("VLLM_ALLOW_LONG_MAX_MODEL_LENGTH").nearest == "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    assert problem("VLLM_USE_V1", "0").since == "0.11.1"
    assert problem("VLLM_USE_V2_MODEL_RUNNER", version="0.11.2").since == "0.12.0"
    assert problem("VLLM_PORT", "tcp://10.0.0.1:8000").kind == "invalid"
    assert launch(environment={"VLLM_ASCEND_ENABLE_NZ": "1"}).problems == ()  # a platform plug-in's own


FIELD_LOGS = json.loads((TESTS / "data/vllm/launch-settings.json").read_text())


@pytest.mark.parametrize("row", FIELD_LOGS, ids=lambda row: row["id"])
def test_launches_of_public_logs_resolve(row: dict[str, Any]) -> None:
    """The settings of public start-up logs, typed as arguments, are all taken by the release that printed them."""
    found = launch(row["line"], version=row["version"])
    unread = [problem for problem in found.problems if problem.kind != "ignored"]
    assert unread == []
    for name, value in row["settings"].items():
        assert found[name] == value, name


FULL = Full(kv_heads=1, key_dim=8, value_dim=8)
WINDOW = SlidingWindow(window=8, kv_heads=1, key_dim=8, value_dim=8)
STATE = State(kind="gdn", shapes=((8, 4), (2, 8, 8)), parameters={})
LAYERS = st.lists(st.sampled_from([FULL, WINDOW, STATE]), min_size=1, max_size=4)
ABSURD = st.one_of(st.none(), st.integers(-(2**63), 2**63), st.floats(), st.text(max_size=5), st.lists(st.integers()))
KEYS = st.sampled_from(["max_position_embeddings", "sliding_window", "rope_scaling", "model_max_length"])


@settings(max_examples=60, deadline=None)
@given(
    LAYERS,
    st.dictionaries(KEYS, ABSURD),
    st.lists(st.sampled_from(sorted(releases.release("0.33.0").flags)), max_size=6),
    st.sampled_from(releases.tables().releases),
    st.sampled_from(sorted(DEVICES)),
)
def test_resolving_never_raises(
    caches: list[Any], config: dict[str, Any], flags: list[str], version: str, device: str
) -> None:
    base = model("Qwen--Qwen3-8B")
    source = ModelSource(
        name="m", origin="folder", where="m", config={"num_hidden_layers": 1, "model_type": "x", **config}
    )
    strange = replace(base, layers=tuple(Layer(caches=(cache,)) for cache in caches), source=source)
    request = LaunchRequest(runtime="vllm", argv=("vllm", "serve", "M", *flags), version=version)
    resolve(request, strange, gpus(device))


def test_engine() -> None:
    assert launch(version="0.10.2")["engine"] == "V1"
    assert launch(version="0.10.2", environment={"VLLM_USE_V1": "0"})["engine"] == "V0"
    assert launch(version="0.12.0", environment={"VLLM_USE_V1": "0"})["engine"] == "V1"


# ------------------------------------------------------------------ what vLLM itself answered


ORACLE = json.loads((TESTS / "data/vllm/defaults-oracle.json").read_text())
ORACLE_VERSIONS = sorted({row[0] for row in ORACLE["rows"]})


def words_of(settings_given: dict[str, Any]) -> str:
    """Engine arguments as a person would type them."""
    words = []
    for name, value in settings_given.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag[2:])
        else:
            words += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return shlex.join(words)


@pytest.mark.parametrize("version", ORACLE_VERSIONS)
def test_defaults_equal_what_vllm_itself_resolved(version: str) -> None:
    """Seventeen settings of every launch: models x GPUs x arguments, answered by that release's own VllmConfig."""
    differ = []
    for _, device, entrypoint, name, given_settings, answer in (row for row in ORACLE["rows"] if row[0] == version):
        found = launch(words_of(given_settings), version=version, entrypoint=entrypoint, of=name, on=device)
        for field, value in zip(ORACLE["fields"], answer, strict=True):
            ours: Any = found.get(field)
            if field == "graphs":
                ours = [len(found["cudagraph_capture_sizes"]), sum(found["cudagraph_capture_sizes"])]
            elif field == "speculative":
                config = found["speculative_config"]
                ours = config and [config["method"], config["num_speculative_tokens"]]
            if field == "kv_cache_dtype" and (value, ours) == ("auto", "fp8_ds_mla"):
                continue  # DeepSeek V4: the configuration keeps auto, its attention layers take fp8_ds_mla
            if ours != value:
                differ.append((device, entrypoint, name, given_settings, field, value, ours))
    assert differ == []
