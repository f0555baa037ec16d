"""Remedies of memory and context: the right one of a pair of opposite settings, by the number that fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from llmdoctor_core.derive import Facts
from llmdoctor_core.facts import Forecast, Gpus, Model
from llmdoctor_core.finding import Finding
from llmdoctor_core.remedy import AnyAction, Cost, Safety, SetArgument, remedy

from .search import forecast_with, largest, launch_of, starts, text_of, visible_gpus
from .tables import table

Alternatives = Iterator[tuple[AnyAction, ...]]
TOO_SMALL = ("CTX603", "MEM803")
"""Conditions of a pool that does not hold one request of the maximum length."""
SHORTEST = 256


@remedy("lower-max-model-len", "Serve the longest context that fits", ends=("CTX601", *TOO_SMALL), cost=Cost.CONTEXT)
def lower_max_model_len(finding: Finding, facts: Facts) -> Alternatives:
    launch, forecast = launch_of(facts), facts.optional(Forecast)
    if launch is None or launch.runtime != "vllm" or forecast is None or forecast.refused is None:
        return
    length = launch.get("max_model_len")
    fits = largest(SHORTEST, int(length) - 1, 16, lambda value: starts(facts, "max_model_len", value))
    if fits is not None:
        yield (SetArgument(name="max_model_len", value=str(fits), before=text_of(launch, "max_model_len")),)


@remedy("raise-gpu-memory-utilization", "Give the server more of the GPU", ends=TOO_SMALL)
def raise_gpu_memory_utilization(finding: Finding, facts: Facts) -> Alternatives:
    launch, gpus = launch_of(facts), facts.optional(Gpus)
    if launch is None or launch.runtime != "vllm" or gpus is None or launch.given("kv_cache_memory_bytes"):
        return
    now = float(launch.get("gpu_memory_utilization"))
    free = [gpu.memory_free / gpu.memory_total for gpu in gpus.visible if gpu.memory_free and gpu.memory_total]
    ceiling = min([table("values")["utilization"]["ceiling"], *(math.floor(100 * share) / 100 for share in free)])
    for hundredths in range(math.floor(100 * now) + 1, round(100 * ceiling) + 1):
        value = f"{hundredths / 100:.2f}"
        if starts(facts, "gpu_memory_utilization", value):
            before = text_of(launch, "gpu_memory_utilization")
            yield (SetArgument(name="gpu_memory_utilization", value=value, before=before),)
            return


@remedy("lower-gpu-memory-utilization", "Ask for no more of the GPU than is free", ends=("GPU003",), cost=Cost.CONTEXT)
def lower_gpu_memory_utilization(finding: Finding, facts: Facts) -> Alternatives:
    launch, gpus = launch_of(facts), facts.optional(Gpus)
    if launch is None or gpus is None:
        return
    shares = [gpu.memory_free / gpu.memory_total for gpu in gpus.visible if gpu.memory_free and gpu.memory_total]
    if shares and (share := math.floor(100 * min(shares)) / 100) > 0:
        before = text_of(launch, "gpu_memory_utilization")
        yield (SetArgument(name="gpu_memory_utilization", value=f"{share:.2f}", before=before),)


@remedy(
    "lower-max-num-batched-tokens",
    "Reserve less for tokens in flight on window layers",
    ends=(*TOO_SMALL, "MEM808"),
    cost=Cost.SPEED,
)
def lower_max_num_batched_tokens(finding: Finding, facts: Facts) -> Alternatives:
    """Each halving down to 512 shrinks what a sliding or chunked layer reserves; below that prefill crawls."""
    launch, forecast, model = launch_of(facts), facts.optional(Forecast), facts.optional(Model)
    if launch is None or launch.runtime != "vllm" or forecast is None or forecast.cache is None or model is None:
        return
    batched = int(launch.get("max_num_batched_tokens"))
    before = text_of(launch, "max_num_batched_tokens")
    reserved = forecast.cache.bytes_per_request
    for value in itertools.takewhile(lambda value: value >= 512, (batched >> shift for shift in itertools.count(1))):
        after = forecast_with(facts, max_num_batched_tokens=str(value))
        if after is None or after.cache is None or after.cache.bytes_per_request >= reserved:
            continue
        if finding.code in TOO_SMALL and after.refused is not None:
            continue
        if value == batched >> 2 or finding.code in TOO_SMALL:
            yield (SetArgument(name="max_num_batched_tokens", value=str(value), before=before),)
            return


@remedy(
    "lower-max-num-seqs", "Run no more requests at once than there is room for", ends=("MEM804", "MEM805"),
    cost=Cost.SPEED,
)  # fmt: skip
def lower_max_num_seqs(finding: Finding, facts: Facts) -> Alternatives:
    launch = launch_of(facts)
    if launch is None or launch.runtime != "vllm":
        return
    now = int(launch.get("max_num_seqs"))
    for value in itertools.takewhile(lambda value: value >= 1, (now >> shift for shift in itertools.count(1))):
        if starts(facts, "max_num_seqs", value):
            yield (SetArgument(name="max_num_seqs", value=str(value), before=str(now)),)
            return


@remedy("enforce-eager", "Give up CUDA graphs for their memory", ends=("MEM802", *TOO_SMALL), cost=Cost.SPEED)
def enforce_eager(finding: Finding, facts: Facts) -> Alternatives:
    launch = launch_of(facts)
    if launch is None or launch.runtime != "vllm" or launch.get("enforce_eager"):
        return
    if starts(facts, "enforce_eager", "true"):
        yield (SetArgument(name="enforce_eager", value="true", before="false"),)


@remedy("quantise-kv-cache", "Keep the KV cache in 8 bits: half the bytes a token", ends=TOO_SMALL, cost=Cost.ACCURACY)
def quantise_kv_cache(finding: Finding, facts: Facts) -> Alternatives:
    launch, gpus = launch_of(facts), facts.optional(Gpus)
    if launch is None or launch.runtime != "vllm" or gpus is None or str(launch.get("kv_cache_dtype")) != "auto":
        return
    capabilities = [gpu.compute_capability for gpu in gpus.visible]
    capable = all(capability is not None and capability >= (8, 9) for capability in capabilities)
    if capable and starts(facts, "kv_cache_dtype", "fp8"):
        yield (SetArgument(name="kv_cache_dtype", value="fp8", before="auto"),)


@remedy(
    "raise-tensor-parallel-size", "Split the model over more GPUs", ends=("MEM801", "MEM802", *TOO_SMALL),
    cost=Cost.HARDWARE,
)  # fmt: skip
def raise_tensor_parallel_size(finding: Finding, facts: Facts) -> Alternatives:
    launch, model, visible = launch_of(facts), facts.optional(Model), visible_gpus(facts)
    if launch is None or launch.runtime != "vllm" or model is None or visible is None:
        return
    now = int(launch.get("tensor_parallel_size"))
    for value in (now << shift for shift in range(1, 7)):
        if value > visible or model.heads % value:
            return
        if starts(facts, "tensor_parallel_size", value):
            yield (SetArgument(name="tensor_parallel_size", value=str(value), before=str(now)),)
            return


@remedy(
    "fit-tensor-parallel-size",
    "Split over as many GPUs as there are and the model's heads allow",
    ends=("TP701", "TP703", "TP704", "TP705"),
    cost=Cost.SPEED,
)
def fit_tensor_parallel_size(finding: Finding, facts: Facts) -> Alternatives:
    launch, model, visible = launch_of(facts), facts.optional(Model), visible_gpus(facts)
    if launch is None or launch.runtime != "vllm" or model is None:
        return
    now = int(launch.get("tensor_parallel_size"))
    pipeline = int(launch.get("pipeline_parallel_size") or 1)
    most = min(now, visible // pipeline) if visible else now
    for value in range(most, 0, -1):
        if value != now and model.heads % value == 0 and starts(facts, "tensor_parallel_size", value):
            yield (SetArgument(name="tensor_parallel_size", value=str(value), before=str(now)),)
            return


@remedy(
    "drop-prefix-caching", "Keep one recurrent state a request, not two", ends=("MEM805", "MEM808"), cost=Cost.SPEED
)
def drop_prefix_caching(finding: Finding, facts: Facts) -> Alternatives:
    launch, forecast = launch_of(facts), facts.optional(Forecast)
    if launch is None or launch.runtime != "vllm" or not launch.get("enable_prefix_caching") or forecast is None:
        return
    after = forecast_with(facts, enable_prefix_caching="false")
    if after and after.cache and forecast.cache and after.cache.bytes_per_request < forecast.cache.bytes_per_request:
        yield (SetArgument(name="enable_prefix_caching", value="false", before="true"),)


@remedy("lower-context", "Ask for the context that a slot can use", ends=("CTX601", "CTX604"), safety=Safety.SAFE)
def lower_context(finding: Finding, facts: Facts) -> Alternatives:
    """llama.cpp allocates what is asked and caps the slot: memory above the training length is for nothing."""
    launch, model = launch_of(facts), facts.optional(Model)
    if launch is None or launch.runtime != "llamacpp" or model is None or model.training_length is None:
        return
    parallel = int(launch.get("parallel") or 1)
    shared = launch.get("kv_unified") or parallel < 0  # automatic slots share one cache
    slots = 1 if shared else parallel
    yield (SetArgument(name="ctx_size", value=str(model.training_length * slots), before=text_of(launch, "ctx_size")),)


@remedy("serve-one-slot", "Give one conversation the whole context", ends=("CTX602",), cost=Cost.SPEED)
def serve_one_slot(finding: Finding, facts: Facts) -> Alternatives:
    launch = launch_of(facts)
    if launch is not None and launch.runtime == "llamacpp":
        yield (SetArgument(name="parallel", value="1", before=text_of(launch, "parallel")),)


@remedy("flash-attention-on", "Switch flash attention on for a quantised V cache", ends=("GGUF508",))
def flash_attention_on(finding: Finding, facts: Facts) -> Alternatives:
    launch = launch_of(facts)
    if launch is not None and launch.runtime == "llamacpp" and str(launch.get("flash_attn")) == "off":
        yield (SetArgument(name="flash_attn", value="on", before="off"),)


@remedy("plain-cache-types", "Keep the cache in f16", ends=("GGUF508",), cost=Cost.HARDWARE)
def plain_cache_types(finding: Finding, facts: Facts) -> Alternatives:
    launch = launch_of(facts)
    if launch is not None and launch.runtime == "llamacpp":
        yield tuple(
            SetArgument(name=name, value="f16", before=text_of(launch, name))
            for name in ("cache_type_k", "cache_type_v")
            if str(launch.get(name)) != "f16"
        )
