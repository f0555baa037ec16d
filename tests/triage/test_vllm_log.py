"""vLLM's log lines of all releases: each row reads its example, arguments come back as a command."""

from __future__ import annotations

import pytest

from llmdoctor_core.facts.measured import Figure
from llmdoctor_core.runtimes.log import LogRow, rows
from llmdoctor_core.runtimes.vllm.log import log_rows, read

ROWS = [*log_rows(), *rows("llmdoctor_core.triage", "readings.toml")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.runtime}-{row.name}")
def test_each_row_reads_its_example(row: LogRow) -> None:
    value = row.read(row.match)
    if row.unit == "text":
        assert value == row.gives
    else:
        assert isinstance(value, Figure)
        scale = {"MiB": 2**20, "GiB": 2**30, "GB": 2**30, "KiB": 2**10}.get(row.unit, 1)
        assert value.value == float(row.gives.replace(",", "")) * scale
    assert row.source
    assert row.read("INFO something else entirely") is None


@pytest.mark.parametrize(("line", "tokens", "concurrency"), [
    ("GPU KV cache size: 729,735 tokens, Maximum concurrency for 32,768 tokens per request: 22.27x", 729735, 22.27),
    ("CPU KV cache size: 2,048 tokens, Maximum concurrency for 1,024 tokens per request: 2.00x", 2048, 2.0),
    ("GPU KV cache size: 12,928 tokens", 12928, None),
])  # fmt: skip
def test_cache_lines_of_old_and_new_releases(line: str, tokens: int, concurrency: float | None) -> None:
    log = read([line])
    assert log.figure("cache_tokens").value == tokens  # type: ignore[union-attr]
    found = log.figure("max_concurrency")
    assert (found.value if found else None) == concurrency


def test_the_rank_with_the_least_memory_counts() -> None:
    log = read(["Available KV cache memory: 66.54 GiB", "Available KV cache memory: 65.63 GiB"])
    assert log.figure("available_cache").value == 65.63 * 2**30  # type: ignore[union-attr]


def test_memory_may_be_negative() -> None:
    assert read(["Available KV cache memory: -2.14 GiB"]).figure("available_cache").value < 0  # type: ignore[union-attr]


def test_arguments_become_the_command_that_gives_them() -> None:
    log = read([
        "non-default args: {'model_tag': 'org/m', 'model': 'org/m', 'max_model_len': 4096, "
        "'enable_prefix_caching': False, 'enforce_eager': True, 'limit_mm_per_prompt': {'image': 2}, "
        "'kv_cache_dtype': 'fp8', 'lora_modules': ['a=b', 'c=d']}"
    ])  # fmt: skip
    assert log.argv() == (
        "vllm", "serve", "org/m", "--max-model-len", "4096", "--no-enable-prefix-caching", "--enforce-eager",
        "--limit-mm-per-prompt", '{"image": 2}', "--kv-cache-dtype", "fp8", "--lora-modules", "a=b", "c=d",
    )  # fmt: skip


def test_arguments_with_objects_that_are_no_literals() -> None:
    log = read(
        ["non-default args: {'model': 'org/m', 'kv_transfer_config': KVTransferConfig(a=1, b='x, y'), 'seed': 3}"]
    )
    assert log.given["model"] == "org/m"
    assert log.given["seed"] == 3
    assert log.given["kv_transfer_config"] == "KVTransferConfig(a=1, b='x, y')"


def test_the_namespace_of_old_releases() -> None:
    log = read([
        "args: Namespace(subparser='serve', model_tag='org/m', host=None, port=8000, max_model_len=8192, "
        "tensor_parallel_size=2, dtype='auto', gpu_memory_utilization=0.9, dispatch_function=<function serve at 0x7f>)"
    ])  # fmt: skip
    assert log.argv() == (
        "vllm", "serve", "org/m", "--max-model-len", "8192", "--tensor-parallel-size", "2",
        "--gpu-memory-utilization", "0.9",
    )  # fmt: skip


def test_the_engines_line_where_no_arguments_were_printed() -> None:
    log = read([
        "Initializing an LLM engine (v0.6.6.post1) with config: model='org/m', speculative_config=None, tokenizer='m', "
        "dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=2, kv_cache_dtype=auto, "
        "decoding_config=DecodingConfig(guided_decoding_backend='xgrammar', x=1), seed=0"
    ])  # fmt: skip
    assert (log.version, log.model) == ("0.6.6.post1", "org/m")
    assert log.resolved["max_model_len"] == 4096
    assert log.argv()[:5] == ("vllm", "serve", "org/m", "--max-model-len", "4096")


@pytest.mark.parametrize("line", [
    "+ vllm serve org/m --max-model-len 4096",
    "$ /opt/venv/bin/vllm serve org/m --max-model-len 4096",
    "exec vllm serve org/m --max-model-len 4096",
])  # fmt: skip
def test_a_command_that_a_shell_shows(line: str) -> None:
    assert read([line]).argv()[-4:] == ("serve", "org/m", "--max-model-len", "4096")


@pytest.mark.parametrize("line", [
    "Endpoints are off. Run vllm serve with --enable-scale-out to enable them.",
    "see `vllm serve --help`",
])  # fmt: skip
def test_prose_is_no_command(line: str) -> None:
    assert read([line]).command == ()


@pytest.mark.parametrize("text", ["{'a': ", "{" * 5000, "{'a': {'b': [1, 2}", "Namespace(", "non-default args: }{"])
def test_damaged_dictionaries_do_no_harm(text: str) -> None:
    read([f"non-default args: {text}", f"args: Namespace({text})", f"LLM engine (v1.0) with config: {text}"])
