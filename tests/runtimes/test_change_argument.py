"""Changing one argument of a command leaves all others as typed, whatever spelling it had."""

from __future__ import annotations

import pytest

from llmdoctor_core import runtimes


@pytest.mark.parametrize(
    ("runtime", "argv", "name", "value", "expected"),
    [
        ("vllm", "vllm serve m -tp 4 -q a", "tensor_parallel_size", "2", "vllm serve m --tensor-parallel-size 2 -q a"),
        ("vllm", "vllm serve m --max_model_len=9", "max_model_len", "40", "vllm serve m --max-model-len 40"),
        ("vllm", "vllm serve m", "max_model_len", "4096", "vllm serve m --max-model-len 4096"),
        ("vllm", "vllm serve m --enforce-eager -tp 2", "enforce_eager", None, "vllm serve m -tp 2"),
        ("vllm", "vllm serve m --async-scheduling", "async_scheduling", "false", "vllm serve m --no-async-scheduling"),
        ("llamacpp", "llama-server -m f -c 4096 -np 2", "ctx_size", "8192", "llama-server -m f --ctx-size 8192 -np 2"),
        ("llamacpp", "llama-server -m f -ngl -1 -c 1", "ctx_size", "0", "llama-server -m f -ngl -1 --ctx-size 0"),
    ],
)  # fmt: skip
def test_one_argument(runtime: str, argv: str, name: str, value: str | None, expected: str) -> None:
    changed = runtimes.runtime(runtime).with_argument(tuple(argv.split()), name, value)
    assert " ".join(changed) == expected
