"""vLLM's command line as a release parses it. What each release takes is held in test_arguments_tables_vllm.py."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmdoctor_core.facts import ArgumentProblem
from llmdoctor_core.runtimes.vllm import arguments, releases


def values(line: str, version: str = "0.33.0", **files: str) -> dict[str, Any]:
    reading = arguments.read(shlex.split(line), version, files)
    assert reading.problems == []
    return {name: argument.value for name, argument in reading.settings.items()}


def only_problem(line: str, version: str = "0.33.0") -> ArgumentProblem:
    problems = arguments.read(shlex.split(line), version).problems
    assert len(problems) == 1
    return problems[0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm serve M --max-model-len 32k", {"model": "M", "max_model_len": 32_000}),
        ("vllm serve M --max-model-len 32K", {"model": "M", "max_model_len": 32_768}),
        ("vllm serve M --max-model-len=auto", {"model": "M", "max_model_len": -1}),
        ("vllm serve M --max-model-len -1", {"model": "M", "max_model_len": -1}),
        ("vllm serve M --max_num_batched_tokens 25.6k", {"model": "M", "max_num_batched_tokens": 25_600}),
        (
            "vllm serve M -tp 2 -pp=4 -dp 2",
            {"model": "M", "tensor_parallel_size": 2, "pipeline_parallel_size": 4, "data_parallel_size": 2},
        ),
        ("vllm serve -tp 2 M --port 80", {"model": "M", "tensor_parallel_size": 2, "port": 80}),
        ("vllm serve M -qfp8", {"model": "M", "quantization": "fp8"}),
        ("vllm serve M --no-enable-prefix-caching", {"model": "M", "enable_prefix_caching": False}),
        ("vllm serve M --disable-prefix-caching", {"model": "M", "enable_prefix_caching": False}),
        ("vllm serve M --kv-cache-memory 4G", {"model": "M", "kv_cache_memory_bytes": 4 << 30}),
        ("vllm serve M --device-memory-utilization 0.8", {"model": "M", "gpu_memory_utilization": 0.8}),
        ("vllm serve M --moe-backend Flashinfer-Cutlass", {"model": "M", "moe_backend": "flashinfer_cutlass"}),
        ("vllm serve M --served-model-name a b --seed 1", {"model": "M", "served_model_name": ["a", "b"], "seed": 1}),
        ("vllm serve M --middleware a --middleware b", {"model": "M", "middleware": ["a", "b"]}),
        ("vllm serve M -O3", {"model": "M", "optimization_level": "3"}),
        ("vllm serve M -O 2", {"model": "M", "optimization_level": "2"}),
        ("vllm serve M --hf-token", {"model": "M", "hf_token": True}),
        (
            "vllm serve M --dtype bfloat16 --quantization None",
            {"model": "M", "dtype": "bfloat16", "quantization": None},
        ),
        ("M -tp 2", {"model": "M", "tensor_parallel_size": 2}),
        ("--model M -tp 2", {"model": "M", "tensor_parallel_size": 2}),
        ("python3 -m vllm.entrypoints.openai.api_server --model M", {"model": "M"}),
        ("/opt/venv/bin/vllm serve M", {"model": "M"}),
        ("python -m vllm.entrypoints.cli.main serve M", {"model": "M"}),
    ],
)
def test_what_a_line_sets(line: str, expected: dict[str, Any]) -> None:
    assert values(line) == expected


def test_dotted_keys_make_one_json() -> None:
    line = "vllm serve M --speculative-config.method ngram --speculative-config.num_speculative_tokens=3"
    assert values(line)["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 3}
    line = "vllm serve M -cc.pass_config.fuse_norm_quant true -cc.cudagraph_capture_sizes+ 1,2"
    assert values(line)["compilation_config"] == {
        "pass_config": {"fuse_norm_quant": True},
        "cudagraph_capture_sizes": ["1", "2"],
    }


def test_json_takes_sizes_outside_of_strings() -> None:
    line = (
        """vllm serve M --kv-transfer-config '{"kv_connector": "80m", "kv_connector_extra_config": {"bytes": 80m}}'"""
    )
    assert values(line)["kv_transfer_config"] == {
        "kv_connector": "80m",
        "kv_connector_extra_config": {"bytes": 80_000_000},
    }


def test_json_given_whole_and_by_keys_loses_the_whole() -> None:
    line = """vllm serve M --speculative-config '{"method": "mtp"}' --speculative-config.num_speculative_tokens 2"""
    problem = only_problem(line)
    assert (problem.kind, problem.flag) == ("ignored", "--speculative-config")
    reading = arguments.read(shlex.split(line), "0.33.0")
    assert reading.value("speculative_config") == {"num_speculative_tokens": 2}


def test_optimization_levels_by_release() -> None:
    assert values("vllm serve M -O3", "0.10.0")["compilation_config"] == {"level": 3}
    assert values("vllm serve M -O3", "0.11.2")["compilation_config"] == {"mode": 3}
    assert values("vllm serve M -O.backend eager", "0.11.2")["compilation_config"] == {"backend": "eager"}
    assert values("vllm serve M -O.backend=eager", "0.12.0")["compilation_config"] == {"backend": "eager"}
    assert only_problem("vllm serve M -O.backend=eager", "0.13.0").replacement == "-cc.backend=eager"


def test_booleans_with_a_value() -> None:
    assert values("vllm serve M --enable-chunked-prefill False", "0.8.4")["enable_chunked_prefill"] is False
    assert values("vllm serve M --enable-chunked-prefill", "0.8.4")["enable_chunked_prefill"] is True
    problem = only_problem("vllm serve M --enable-chunked-prefill False", "0.8.5")
    assert (problem.kind, problem.replacement) == ("invalid", "--no-enable-chunked-prefill")
    assert only_problem("vllm serve M --enforce-eager=true").replacement == "--enforce-eager"
    assert only_problem("vllm serve M --no-disable-log-stats").kind == "invalid"


@pytest.mark.parametrize(
    ("line", "version", "kind", "since", "replacement"),
    [
        ("--speculative-model D", "0.9.0", "removed", "0.8.3", "--speculative-config"),
        ("--num-speculative-tokens 5", "0.30.0", "removed", "0.8.3", "num_speculative_tokens"),
        ("--swap-space 4", "0.18.0", "removed", "0.18.0", None),
        ("--use-v2-block-manager", "0.10.0", "removed", "0.10.0", None),
        ("--task embed", "0.13.0", "removed", "0.13.0", "--runner pooling"),
        ("--guided-decoding-backend xgrammar", "0.11.0", "removed", "0.11.0", "--structured-outputs-config"),
        ("--disable-log-requests", "0.17.0", "removed", "0.17.0", "--enable-log-requests"),
        ("--preemption-mode swap", "0.11.0", "removed", "0.11.0", None),
        ("--rope-scaling {}", "0.12.0", "removed", "0.11.1", "--hf-overrides"),
        ("--override-pooler-config {}", "0.12.0", "renamed", "0.12.0", "--pooler-config"),
        ("--cuda-graph-sizes 8", "0.13.0", "removed", "0.13.0", "--cudagraph-capture-sizes"),
        ("--spec-method mtp", "0.20.0", "unknown", "0.22.0", None),
        ("--kv-cache-memory-bytes 1G", "0.10.1", "unknown", "0.10.2", None),
    ],
)
def test_gone_and_not_yet(line: str, version: str, kind: str, since: str, replacement: str | None) -> None:
    problem = only_problem(f"vllm serve M {line}", version)
    assert (problem.kind, problem.since) == (kind, since)
    assert replacement is None or replacement in (problem.replacement or "")


def test_gone_options_are_taken_by_the_release_before() -> None:
    assert values("vllm serve M --swap-space 4", "0.17.1")["swap_space"] == 4.0
    assert values("vllm serve M --task embed", "0.12.0")["task"] == "embed"
    assert values("vllm serve M --speculative-model D --num-speculative-tokens 5", "0.8.2")["speculative_model"] == "D"


def test_enable_and_disable_pair_since_0_33() -> None:
    assert values("vllm serve M --disable-log-requests", "0.33.0")["enable_log_requests"] is False
    assert only_problem("vllm serve M --disable-log-requests", "0.32.0").kind == "removed"


def test_unknown_options_name_the_nearest() -> None:
    assert only_problem("vllm serve M --tensor-paralel-size 2").nearest == "--tensor-parallel-size"
    assert only_problem("vllm serve M --max-model-length 4096").nearest == "--max-model-len"
    problem = only_problem("vllm serve M --max-num 4")
    assert problem.kind == "invalid"
    assert "--max-num-seqs" in problem.detail
    assert "newest release this doctor knows" in only_problem("vllm serve M --brand-new-thing 1", "9.0").detail


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("--gpu-memory-utilization 90", "at most 1"),
        ("--gpu-memory-utilization nan", "finite"),
        ("--tensor-parallel-size two", "not an integer"),
        ("--tensor-parallel-size 0", "at least 1"),
        ("--max-model-len 1.5K", "no fraction"),
        ("--max-model-len 4096x", "not a number like"),
        ("--dtype fp8", "none of auto"),
        ("--speculative-config {method:mtp}", "not JSON"),
        ("--speculative-config [1]", "not a JSON object"),
        ("--limit-mm-per-prompt image=3", "not JSON"),
    ],
)
def test_values_the_release_refuses(line: str, part: str) -> None:
    problem = only_problem(f"vllm serve M {line}")
    assert problem.kind == "invalid"
    assert part in problem.detail


def test_a_choice_of_another_release_says_since_when() -> None:
    assert only_problem("vllm serve M --kv-cache-dtype nvfp4", "0.19.1").since == "0.20.0"
    assert only_problem("vllm serve M --mamba-cache-mode all", "0.32.0").since == "0.32.0"


def test_json_keys_by_release() -> None:
    line = (
        """vllm serve M --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_rank": 0}'"""
    )
    assert "kv_rank" in values(line, "0.31.0")["kv_transfer_config"]
    problem = only_problem(line, "0.32.0")
    assert (problem.kind, problem.flag, problem.since) == ("removed", "--kv-transfer-config.kv_rank", "0.32.0")
    wrong = """vllm serve M --speculative-config '{"methd": "mtp"}'"""
    assert (only_problem(wrong).kind, only_problem(wrong).nearest) == ("unknown", "method")
    assert only_problem(wrong, "0.12.0").kind == "ignored"  # pydantic dropped unknown keys from 0.9.1 to 0.15
    role = """vllm serve M --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "both"}'"""
    assert "kv_both" in only_problem(role).detail


def test_incomplete_lines() -> None:
    assert only_problem("vllm serve M --max-model-len").kind == "incomplete"
    assert only_problem("vllm serve M --max-model-len --enforce-eager").flag == "--max-model-len"
    assert only_problem("vllm serve M --config").kind == "incomplete"
    assert only_problem("vllm serve M -cc.mode").kind == "incomplete"


CONFIG = """
model: from-file
port: 9000
tensor-parallel-size: 2
enforce-eager: true
enable_prefix_caching: false
speculative-config:
  method: mtp
  num_speculative_tokens: 2
served-model-name: [a, b]
"""


def test_config_file_under_the_command_line() -> None:
    reading = arguments.read(shlex.split("vllm serve --config c.yaml -tp 4"), "0.33.0", {"c.yaml": CONFIG})
    assert reading.problems == []
    found = {name: (argument.value, argument.origin) for name, argument in reading.settings.items()}
    assert found == {
        "model": ("from-file", "config file"),
        "port": (9000, "config file"),
        "tensor_parallel_size": (4, "given"),
        "enforce_eager": (True, "config file"),
        "enable_prefix_caching": (False, "config file"),
        "speculative_config": ({"method": "mtp", "num_speculative_tokens": 2}, "config file"),
        "served_model_name": (["a", "b"], "config file"),
    }
    positional = arguments.read(shlex.split("vllm serve mine --config c.yaml"), "0.33.0", {"c.yaml": CONFIG})
    assert positional.value("model") == "mine"


def test_config_file_false_is_dropped_before_0_28() -> None:
    text = "disable-cascade-attn: false\n"
    reading = arguments.read(shlex.split("vllm serve M --config c.yaml"), "0.20.0", {"c.yaml": text})
    assert [problem.kind for problem in reading.problems] == ["ignored"]  # on by default there
    reading = arguments.read(shlex.split("vllm serve M --config c.yaml"), "0.28.0", {"c.yaml": text})
    assert reading.value("disable_cascade_attn") is False


@pytest.mark.parametrize(
    ("line", "files", "kind"),
    [
        ("vllm serve M --config=c.yaml", {"c.yaml": CONFIG}, "ignored"),
        ("vllm serve M --config c.json", {"c.json": "{}"}, "invalid"),
        ("vllm serve M --config c.yaml", {}, "incomplete"),
        ("vllm serve M --config c.yaml", {"c.yaml": "a: [1"}, "invalid"),
        ("vllm serve M --config c.yaml", {"c.yaml": "just text"}, "invalid"),
        ("vllm serve M --config c.yaml", {"c.yaml": "a: &a [*a]\n" + "[" * 5000}, "invalid"),
    ],
)
def test_config_files_that_do_not_do(line: str, files: dict[str, str], kind: str) -> None:
    problems = arguments.read(shlex.split(line), "0.33.0", files).problems
    assert kind in [problem.kind for problem in problems]


def test_where_the_model_stands() -> None:
    assert only_problem("vllm serve --model M", "0.10.2").replacement == "vllm serve M"
    assert values("vllm serve --model M", "0.11.1") == {"model": "M"}
    ignored = only_problem("python -m vllm.entrypoints.openai.api_server M")
    assert (ignored.kind, ignored.replacement) == ("ignored", "--model M")
    assert only_problem("vllm serve M second").kind == "unknown"


def test_references() -> None:
    assert arguments.model_reference(("vllm", "serve", "-tp", "2", "org/model")) == "org/model"
    assert arguments.model_reference(("vllm", "serve", "--port", "80")) is None
    line = ("vllm", "serve", "M", "--speculative-config", '{"model": "org/draft", "num_speculative_tokens": 3}')
    assert arguments.draft_reference(line) == "org/draft"
    assert arguments.draft_reference(("vllm", "serve", "M", "--spec-model", "d")) == "d"
    assert arguments.draft_reference(("vllm", "serve", "M", "-sc.method", "ngram")) is None
    assert arguments.config_references(("vllm", "serve", "--config", "c.yaml")) == ("c.yaml",)


def test_what_stands_in_front_of_the_command() -> None:
    reading = arguments.read(("VLLM_USE_V1=0", "HF_HUB_OFFLINE=1", "vllm", "serve", "M"), "0.9.0")
    assert reading.environment == {"VLLM_USE_V1": "0", "HF_HUB_OFFLINE": "1"}
    assert reading.command == ("vllm", "serve")


FLAGS = sorted({flag for name in releases.tables().releases for flag in releases.release(name).flags})
WORD = st.one_of(
    st.sampled_from(FLAGS),
    st.sampled_from(
        ["-O3", "-O", "-O=", "--", "-", "-tp2", "-cc.a.b", "--x.", "--=", "-1", "None", "{}", "[[", "--config"]
    ),
    st.builds(lambda flag, tail: flag + tail, st.sampled_from(FLAGS), st.text(max_size=8)),
    st.text(max_size=12),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(WORD, max_size=8), st.sampled_from(releases.tables().releases), st.text(max_size=40))
def test_reading_never_raises(words: list[str], version: str, text: str) -> None:
    arguments.read(words, version, {"c.yaml": text, "": text})
    arguments.config_references(tuple(words))


def test_deep_json_is_a_problem_not_a_crash() -> None:
    for option in ("--hf-overrides", "--kv-transfer-config", "--speculative-config.a"):
        reading = arguments.read(["vllm", "serve", "M", option, '{"a":' * 20_000 + "1" + "}" * 20_000], "0.33.0")
        assert [problem.kind for problem in reading.problems] == ["invalid"]


def test_names_before_the_model() -> None:
    line = "vllm serve --served-model-name name --port 80 M"
    assert values(line, "0.16.0")["model"] == "M"
    assert only_problem(line, "0.17.0").replacement == "vllm serve M ..."
