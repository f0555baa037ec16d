"""Replays public start-up logs: what vLLM printed beside what we forecast, row by row and release by release.

    python tools/replay_logs.py LOGS.jsonl [--json OUT] [--worst 10]

A row takes part where its model is in the built-in catalogue and its length is known. Two questions are asked of it:
with the pool that was printed, are bytes per token right (0.1 %)? And with everything predicted from model, GPU and
arguments, how far are the KV tokens off, and do the stated bounds hold the printed number?
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import statistics
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from llmdoctor_core import models
from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Forecast, Gpu, Gpus, LaunchRequest, Model, ModelSource
from llmdoctor_core.gpu_table import gpus_from
from llmdoctor_core.models import catalogue
from llmdoctor_core.runtimes import vllm

GIB = 1 << 30
SUFFIXES = re.compile(r"-(fp8-dynamic|quantized\.w\w+|instruct|chat|it|fp8|awq|base|hf)$", re.I)


ALIASES = {
    "llama-3.3-70b-instruct-fp8-dynamic": "meta-llama/Meta-Llama-3.1-70B",
    "mistral-small-3.1-24b-instruct-2503": "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
    "typhoon-s-thaillm-8b-instruct-research-preview": "Qwen/Qwen3-8B",
    "qwen2.5-math-1.5b-instruct": "Qwen/Qwen2.5-1.5B",
    "deepseek-r1-14b": "Qwen/Qwen2.5-14B-Instruct",
    "huihui-gpt-oss-20b-mxfp4-abliterated-v2": "openai/gpt-oss-20b",
    "qwen36_27b": "Qwen/Qwen3.5-27B",
    "qwen3.8-27b-uncensored-fp8": "Qwen/Qwen3.8-27B",
    "qwen3.6-35b-a3b": "Qwen/Qwen3.5-35B-A3B",
    "qwen3.6-35b-a3b-fp8": "Qwen/Qwen3.5-35B-A3B",
    "qwen3.6-35b-a3b-nvfp4": "Qwen/Qwen3.5-35B-A3B",
    "gemma-4-26b-a4b-it-nvfp4": "google/gemma-4-26B-A4B",
    "qwen3-embedding-8b": "Qwen/Qwen3-8B",
    "qwen3-reranker-8b": "Qwen/Qwen3-8B",
    "qwen2-7b-instruct": "Qwen/Qwen2.5-7B-Instruct",
    "qwen3-30b-a3b-instruct-2507": "Qwen/Qwen3-30B-A3B",
    "qwen3-30b-a3b-instruct-2507-int4-w4a16": "Qwen/Qwen3-30B-A3B",
    "qwen3-30b-a3b-thinking-2507-awq-4bit": "Qwen/Qwen3-30B-A3B",
    "qwen3-coder-30b-a3b-instruct": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b-instruct-2507-fp8": "Qwen/Qwen3-235B-A22B-FP8",
    "qwen3.6-27b-fp8": "Qwen/Qwen3.5-27B",
    "qwen3.8-27b-int4": "Qwen/Qwen3.8-27B",
    "qwen3.8-27b-nvfp4": "Qwen/Qwen3.8-27B",
    "gemma-4-26b-a4b-it-qat-awq-int4": "google/gemma-4-26B-A4B",
}
"""Fine-tunes and successors of the same shape, by their own name."""


VALUES = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "dtype", "block_size",
    "mamba_cache_mode", "mamba_ssm_cache_dtype", "num_gpu_blocks_override", "swap_space",
    "decode_context_parallel_size",
)  # fmt: skip
REAL = ("gpu_memory_utilization", "swap_space")


class Replay(Struct, frozen=True, kw_only=True):
    """One row: printed beside forecast."""

    id: str
    version: str
    model: str
    printed: int
    with_pool: int | None = None
    """Tokens with the pool that was printed."""
    slack: float = 0.0
    """Share by which the printed pool's rounding alone can be off."""
    predicted: int | None = None
    low: float = 0.0
    high: float = 0.0
    pool: tuple[float, float] | None = None
    """Printed and predicted pool in GiB."""
    why: str = ""

    @property
    def pool_error(self) -> float | None:
        return None if self.with_pool is None else self.with_pool / self.printed - 1

    @property
    def error(self) -> float | None:
        return None if self.predicted is None else self.predicted / self.printed - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", type=Path)
    parser.add_argument("--json", type=Path, help="every replayed row as JSON")
    parser.add_argument("--worst", type=int, default=10)
    parser.add_argument("--all", action="store_true", help="print every row")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.logs.read_text().splitlines() if line.strip()]
    replays, left_out = [], collections.Counter()
    for row in rows:
        if row.get("runtime") != "vllm":
            continue
        found = replay(row)
        if isinstance(found, Replay):
            replays.append(found)
        else:
            left_out[found] += 1
    report(replays, left_out, options.worst, everything=options.all)
    if options.json:
        from msgspec import json as encoder

        options.json.write_bytes(encoder.encode(replays))


def replay(row: dict[str, Any]) -> Replay | str:
    """The row replayed, or why it cannot be."""
    printed, settings = row["printed"], row["settings"]
    version = str(row.get("version") or "")
    if "patched" in row.get("note", ""):
        return "a patched engine"
    if not re.match(r"0\.([89]|[1-9]\d)", version):
        return "release not shown, a nightly, or before 0.8"
    tokens, length = printed.get("kv_tokens"), settings.get("max_model_len")
    if not tokens or not length:
        return "no tokens or no length shown"
    made = model_of(row)
    if made is None:
        return "model not in the catalogue"
    gpus = gpus_of(row)
    available = printed.get("kv_in_use_gib") or printed.get("available_kv_gib")
    found = Replay(id=row["id"], version=version, model=row["model"], printed=tokens)
    try:
        if available:
            pooled = forecast(row, made, gpus, int(available * GIB))
            found = replace(
                found, with_pool=pooled.cache.tokens if pooled.cache else None, slack=0.0051 / available + 1e-4
            )
        if gpus is not None and row.get("tp") and settings.get("gpu_memory_utilization_shown", True):
            whole = forecast(row, made, gpus, None)
            found = with_prediction(found, whole, available)
    except InputError as error:
        return f"not forecast: {error}"
    return found


def with_prediction(found: Replay, made: Forecast, available: float | None) -> Replay:
    cache = made.cache
    if cache is None or cache.tokens is None or cache.tokens_certainty is None:
        return replace(found, why=made.refused.message[:80] if made.refused else "")
    bounds = cache.tokens_certainty
    pool = (available, (cache.bytes or 0) / GIB) if available else None
    return replace(found, predicted=cache.tokens, low=bounds.low, high=bounds.high, pool=pool)


def model_of(row: dict[str, Any]) -> Model | None:
    source = source_of(row)
    try:
        return None if source is None else models.describe(source)
    except InputError:
        return None


def source_of(row: dict[str, Any]) -> ModelSource | None:
    """The row's model from the catalogue, quantised as its name tells; None where the catalogue has nothing like it."""
    source = None
    name = str(row.get("model") or "").lower()
    for start in (name, name.rpartition("/")[2]):
        for spelling in (start, ALIASES.get(start.rpartition("/")[2], "")):
            while spelling and source is None:
                source = catalogue.find(spelling)
                shorter = SUFFIXES.sub("", spelling)
                spelling = "" if shorter == spelling else shorter
    if source is None:
        return None
    quantization = quantization_of(row)
    if quantization is not None and source.config is not None and "quantization_config" not in source.config:
        source = replace(source, config={**source.config, "quantization_config": quantization}, weight_bytes=None)
    return source


def compressed(weights: dict[str, Any]) -> dict[str, Any]:
    group = {"weights": weights, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def quantization_of(row: dict[str, Any]) -> dict[str, Any] | None:
    """The quantisation that a fine-tune's name tells, as a checkpoint would."""
    name = str(row["model"]).lower()
    if row["settings"].get("quantization") == "fp8" and "fp8" in name:
        return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    if "fp8-dynamic" in name or name.endswith("-fp8") or "w8a8" in name:
        weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
        return compressed(weights)
    if "nvfp4" in name:
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        return compressed(weights)
    if "w4a16" in name or "awq" in name or "int4" in name:
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
        return compressed(weights)
    return None


def gpus_of(row: dict[str, Any]) -> Gpus | None:
    """The row's GPUs: from the table by name, with the total that was printed where one was."""
    name, total = str(row.get("gpu") or ""), row["printed"].get("total_gpu_gib")
    count = (row.get("tp") or 1) * (row.get("pp") or 1) * (row.get("dp") or 1)
    known = named(name, count)
    if known is None and total is None:
        return None
    devices = known.devices if known else tuple(_unknown(number, name, total) for number in range(count))
    if total is not None:
        devices = tuple(replace(gpu, memory_total=round(total * GIB), memory_free=None) for gpu in devices)
    return Gpus(devices=devices)


def named(name: str, count: int) -> Gpus | None:
    cleaned = re.sub(r"\(.*\)|NVIDIA|GeForce", "", name).strip()
    for spelling in (cleaned, cleaned.replace(" ", "-"), cleaned.replace(" ", "")):
        try:
            return gpus_from(f"{spelling}x{count}")
        except InputError:
            continue
    return None


def _unknown(number: int, name: str, total: float) -> Gpu:
    hopper = 79 < total < 79.22  # H100 and A100 of 80 GB differ by their driver's reserve
    return Gpu(
        index=number,
        visible_as=number,
        name=name or ("NVIDIA H100 80GB HBM3" if hopper else "NVIDIA A100-SXM4-80GB" if total > 79 else "unknown"),
        compute_capability=(9, 0) if hopper else (8, 0),
        memory_total=round(total * GIB),
    )


def forecast(row: dict[str, Any], made: Model, gpus: Gpus | None, pool: int | None) -> Forecast:
    request = LaunchRequest(
        runtime="vllm", argv=tuple(words(row)), version=row["version"], entrypoint="serve", model=made.name
    )
    launch = vllm.resolve(request, made, gpus)
    return vllm.forecast(launch, made, gpus, None, pool)


def words(row: dict[str, Any]) -> list[str]:
    """The row's settings as they are typed."""
    settings = row["settings"]
    found = []
    for name in VALUES:
        if settings.get(name) is not None:
            found += [f"--{name.replace('_', '-')}", f"{settings[name]:g}" if name in REAL else str(settings[name])]
    if settings.get("quantization") == "fp8":
        found += ["--quantization", "fp8"]
    kv = settings.get("kv_cache_dtype")
    if kv and kv != "auto":
        found += ["--kv-cache-dtype", kv]
    for name in ("enforce_eager", "language_model_only", "enable_expert_parallel"):
        if settings.get(name):
            found.append(f"--{name.replace('_', '-')}")
    for name in ("enable_prefix_caching", "async_scheduling"):
        if settings.get(name) is not None:
            found.append(f"--{'' if settings[name] else 'no-'}{name.replace('_', '-')}")
    for size, name in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data")):
        if (row.get(size) or 1) > 1:
            found += [f"--{name}-parallel-size", str(row[size])]
    if settings.get("limit_mm_per_prompt"):
        found += ["--limit-mm-per-prompt", json.dumps(settings["limit_mm_per_prompt"])]
    speculative = speculation_of(row)
    if speculative is not None:
        found += ["--speculative-config", json.dumps(speculative)]
    return found


def speculation_of(row: dict[str, Any]) -> dict[str, Any] | None:
    """The row's speculation as the JSON that is typed for it; None where there is none or the log does not tell it."""
    speculative = row["settings"].get("speculative_config")
    if isinstance(speculative, str):  # as vLLM prints it
        printed = re.search(r"method='(\w+)', model='([^']*)', num_spec_tokens=(\d+)", speculative)
        if printed is None:
            return None
        speculative = {"method": printed[1], "num_speculative_tokens": int(printed[3])}
        if printed[2] != row["model"]:
            speculative["model"] = printed[2]
    return speculative if isinstance(speculative, dict) else None


def report(replays: list[Replay], left_out: collections.Counter[str], worst: int, *, everything: bool) -> None:
    for reason, count in left_out.most_common():
        print(f"left out, {reason}: {count}")
    pooled = [row for row in replays if row.pool_error is not None]
    good = [row for row in pooled if abs(row.pool_error or 0) <= 0.001 + row.slack]
    print(f"\nwith the printed pool: {len(good)} of {len(pooled)} within 0.1 % (and the rounding of the printed pool)")
    for row in pooled:
        if row not in good:
            print(
                f"   {row.id} {row.version} {row.model}: printed {row.printed:,}, "
                f"ours {row.with_pool:,} ({row.pool_error:+.2%})"
            )
    predicted = [row for row in replays if row.error is not None]
    by_version = collections.defaultdict(list)
    for row in predicted:
        by_version[".".join(row.version.split(".")[:2])].append(row)
    print("\neverything predicted:     rows  within 5 %  inside bounds  median error")
    for version, rows in [*sorted(by_version.items()), ("all", predicted)]:
        if not rows:
            continue
        close = sum(abs(row.error or 0) <= 0.05 for row in rows)
        held = sum(row.low <= row.printed <= row.high for row in rows)
        median = statistics.median(abs(row.error or 0) for row in rows)
        print(f"   {version:20} {len(rows):6} {close / len(rows):10.0%} {held / len(rows):13.0%} {median:12.1%}")
    ranked = sorted(predicted, key=lambda row: -abs(row.error or 0))
    print("\nthe worst:" if not everything else "\nall, the worst first:")
    for row in ranked if everything else ranked[:worst]:
        held = "inside" if row.low <= row.printed <= row.high else "OUTSIDE"
        pool = f"pool {row.pool[0]} GiB printed, {row.pool[1]:.2f} predicted" if row.pool else ""
        print(
            f"   {row.id} {row.version} {row.model}: {row.error:+.1%}, {held} {row.low:,.0f} to {row.high:,.0f}; {pool}"
        )


if __name__ == "__main__":
    main()
