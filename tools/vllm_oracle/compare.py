"""Holds vLLM's answers (of ``ask.py``) against our forecast and prints where they differ.

    python compare.py CASES.jsonl ANSWERS.jsonl [--resolved] [--only TEXT]

Compared for each pool: blocks, bytes of a block, blocks of a request, tokens and concurrency as printed, and the words
of a refusal. With --resolved the settings that vLLM resolved stand in for our own defaults: what differs then lies in
the cache arithmetic alone.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from llmdoctor_core import models
from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Argument, Forecast, Gpu, Gpus, Launch, LaunchRequest, Model, ModelSource
from llmdoctor_core.runtimes import vllm

RESOLVED = {
    "max_model_len": "max_model_len",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "async_scheduling": "async_scheduling",
    "prefix_caching": "enable_prefix_caching",
    "mamba_cache_mode": "mamba_cache_mode",
}


@lru_cache(maxsize=4)
def model_of(folder: str) -> Model:
    path = Path(folder) / "config.json"
    source = ModelSource(name=path.parent.name, origin="folder", where=folder, config=json.loads(path.read_text()))
    return models.describe(source)


def gpus_of(gpu: dict[str, Any]) -> Gpus:
    devices = tuple(
        Gpu(
            index=number,
            visible_as=number,
            name=gpu["name"],
            compute_capability=(gpu["capability"][0], gpu["capability"][1]),
            memory_total=gpu["total_memory"],
            memory_free=gpu["total_memory"],
        )
        for number in range(gpu.get("count", 8))
    )
    return Gpus(devices=devices)


def words(args: dict[str, Any]) -> tuple[str, ...]:
    """Engine arguments as a person types them."""
    found: list[str] = []
    for name, value in args.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            found += [f"--{flag}", *map(str, value)]
        else:
            found += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return tuple(found)


def launch_of(case: dict[str, Any], version: str, answer: dict[str, Any] | None) -> Launch:
    """The case resolved by us; by vLLM where ``answer`` is given."""
    request = LaunchRequest(
        runtime="vllm",
        argv=words(case["args"]),
        version=version,
        entrypoint="serve" if case["usage"] == "serve" else "llm",
        model=case["model"],
        platform="cpu" if case["gpu"]["name"] == "CPU" else "cuda",
    )
    launch = vllm.resolve(request, model_of(case["model"]), gpus_of(case["gpu"]))
    if answer is None:
        return launch
    arguments = dict(launch.arguments)
    for theirs, ours in RESOLVED.items():
        if theirs in answer and case["args"].get(ours) != -1:
            arguments[ours] = Argument(name=ours, value=answer[theirs], origin="derived")
    if answer.get("v2_runner") is not None:
        runner = "V2" if answer["v2_runner"] else "V1"
        arguments["model_runner"] = Argument(name="model_runner", value=runner, origin="derived")
    return replace(launch, arguments=arguments)


def print_settings(case: dict[str, Any], answer: dict[str, Any]) -> None:
    """Where our defaults are not those that vLLM resolved."""
    if "plans" not in answer:
        return
    launch = launch_of(case, answer["version"], None)
    theirs = {ours: answer[name] for name, ours in RESOLVED.items() if name in answer}
    theirs["model_runner"] = None if answer["v2_runner"] is None else "V2" if answer["v2_runner"] else "V1"
    theirs["gpu_memory_utilization"] = answer["gpu_memory_utilization"]
    theirs["disable_hybrid_kv_cache_manager"] = answer["hybrid_off"]
    theirs["max_cudagraph_capture_size"] = answer["largest_capture"]
    mine = {name: launch.get(name) for name in theirs}
    other = {name: (mine[name], value) for name, value in theirs.items() if mine[name] != value}
    if other:
        print(case["id"], answer["version"], other)


def draft_of(case: dict[str, Any]) -> Model | None:
    folder = case["args"].get("speculative_config", {}).get("model")
    return model_of(folder) if folder else None


def differences(case: dict[str, Any], answer: dict[str, Any], resolved: bool) -> list[str]:
    """What our forecast says otherwise than vLLM, one line each."""
    launch = launch_of(case, answer["version"], answer if resolved else None)
    found = []
    for pool, plan in zip(case["pools"], answer.get("plans") or [{}], strict=False):
        try:
            ours = vllm.forecast(launch, model_of(case["model"]), gpus_of(case["gpu"]), draft_of(case), pool)
        except InputError as error:
            return [f"not forecast: {error}"]
        found += [f"pool {pool}: {line}" for line in _differences(ours, plan, answer)]
    return found


def left_out(answer: dict[str, Any]) -> bool:
    """Whether vLLM failed for a reason of this set-up (a key the fact files lack, transformers too old)."""
    error = answer.get("error", "")
    if "assert self.page_size_padded >= page_size" in answer.get("where", ""):
        return True  # Mamba-2 with drafted tokens in 0.27: vLLM's own padding is too small and it does not start
    return error.startswith(("AttributeError", "KeyError", "TypeError", "ImportError", "no answer")) or any(
        text in error
        for text in (
            "does not recognize this architecture",
            "are not supported for now",
            "ModuleNotFoundError",
            "Input should be",
            "No valid attention backend",
            "FP8 KV cache is not supported",
            "WorkspaceManager not initialized",
            "Unsupported model when in features",
            "TimmWrapperModel requires",
            "Pipeline parallelism is not supported for this model",
            "Cannot access accelerator device",
            "Input device meta does not match",
            "DCP for FlashMLA sparse requires",
            "does not support context parallelism",
            "failed to be inspected",
            "is a per-layer attribute and may vary",
            "No model architectures are specified",
            "layout only supports fp8 kv-cache",
            "only supports fp8 kv-cache format",
            "TurboQuant KV cache is not supported for hybrid",
            "Sinks are only supported in FlashAttention 3",
            "Too large swap space",
            "integer division or modulo by zero",
            "No module named",
            "cannot import name",
        )
    )


def _differences(ours: Forecast, plan: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    error = answer.get("error") or plan.get("refused")
    if error:
        if ours.refused is None:
            return [f"vLLM refuses: {plain(error)[:300]}"]
        divisible = ours.refused.code == "TP701" and ("divisible" in error or error.strip() == "AssertionError:")
        return (
            []
            if divisible or ours.refused.message in plain(error)
            else [f"refusal {ours.refused.message!r} / {plain(error)[:600]!r}"]
        )
    if ours.refused is not None and ours.refused.code != "MEM805":  # found while capturing graphs, after planning
        return [f"we refuse: {ours.refused.code} {ours.refused.message}"]
    cache = ours.cache
    assert cache is not None
    pairs = {
        "blocks": (cache.blocks, plan["blocks"]),
        "bytes per block": (cache.bytes_per_block, stride(plan)),
        "blocks per request": (
            cache.blocks_per_request,
            plan["blocks_per_request"] and round(plan["blocks_per_request"]),
        ),
        "tokens": (cache.tokens, plan["tokens"]),
        "concurrency": (f"{cache.max_concurrency:.2f}", f"{plan['concurrency']:.2f}"),
        "length": (cache.request_tokens, plan["max_model_len"]),
    }
    return [f"{name} {mine} / {theirs}" for name, (mine, theirs) in pairs.items() if mine != theirs]


def stride(plan: dict[str, Any]) -> int:
    """Bytes of one block of the pool: the pages of the widest group. A group of layers that differ gives their sum."""
    groups = plan["groups"]
    return max(group["page"] * (1 if group["kind"].startswith("Uniform") else group["layers"]) for group in groups)


def plain(error: str) -> str:
    """vLLM's words without pydantic's frame around them."""
    text = re.sub(r"^\w+: ", "", error)
    text = re.sub(r"^\d+ validation errors? for \w+\s+(?:Value error|Assertion failed), ", "", text)
    return re.sub(r" \[type=(?:value|assertion)_error.*", "", text, flags=re.S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--resolved", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--settings", action="store_true", help="compare the settings that the launch resolves to")
    parser.add_argument("--verbose", action="store_true", help="vLLM's specs beside each difference")
    options = parser.parse_args()
    cases = {case["id"]: case for case in map(json.loads, options.cases.read_text().splitlines())}
    counts: collections.Counter[str] = collections.Counter()
    for line in options.answers.read_text().splitlines():
        answer = json.loads(line)
        if answer["id"] not in cases or options.only not in answer["id"]:
            continue
        if left_out(answer):
            counts["left out"] += 1
            print(answer["id"], "left out:", plain(answer["error"])[:150])
            continue
        if options.settings:
            print_settings(cases[answer["id"]], answer)
            continue
        lines = differences(cases[answer["id"]], answer, options.resolved)
        counts["equal" if not lines else "different"] += 1
        if lines:
            print(answer["id"], answer["version"])
            for text in lines:
                print("    ", text)
            if options.verbose:
                print("     vLLM:", answer.get("backends"), answer.get("block_size"), answer.get("cache_dtype"))
                for stage in answer.get("specs", []):
                    print("          ", stage[:6])
    print(dict(counts), file=sys.stderr)


if __name__ == "__main__":
    main()
