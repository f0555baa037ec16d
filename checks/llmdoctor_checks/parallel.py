"""Tensor parallel arithmetic: whether heads, groups, experts and GPUs divide by the ranks that were asked for."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from llmdoctor_core.check import check
from llmdoctor_core.facts import Forecast, Full, Gpus, Latent, Launch, Model, Place, SlidingWindow
from llmdoctor_core.finding import Finding, Outcome, fail, seen, skip, warn
from llmdoctor_core.runtimes.vllm.refusals import MOST_RANKS, expert_ranks, refines_expert_blocks

from .launches import argument, flag, listed, ranks, refusal, release, releases_of, size, within
from .tables import table

TENSOR = "tensor_parallel_size"


def sizes_that_divide(number: int, most: int) -> list[int]:
    """Tensor parallel sizes up to ``most`` by which a number of heads divides."""
    return [one for one in range(1, min(most, number, MOST_RANKS) + 1) if number % one == 0]


@check("TP701", "heads-not-divisible", runtimes={"vllm", "sglang"}, remedy="fit-tensor-parallel-size")
def heads_not_divisible(launch: Launch, model: Model, forecast: Forecast | None) -> Iterator[Finding]:
    """The attention heads cannot be dealt out evenly to the tensor parallel ranks."""
    tensor = size(launch, TENSOR)
    if tensor == 1:
        return
    if model.heads % tensor:
        fitting = sizes_that_divide(model.heads, 2 * tensor)
        yield fail(
            "{heads} attention heads do not divide by {flag} {tensor}: vLLM refuses ('Total number of attention heads "
            "({heads}) must be divisible by tensor parallel size ({tensor})'). Sizes that do: {fitting}; or keep all "
            "{tensor} GPUs with --pipeline-parallel-size {tensor}",
            evidence=(seen("num_attention_heads", model.heads, model.source.where),),
            where=argument(launch, TENSOR),
            heads=model.heads,
            flag=flag(launch, TENSOR),
            tensor=tensor,
            fitting=listed(fitting),
        )
        return
    heads = {
        cache.kv_heads for layer in model.layers for cache in layer.caches if isinstance(cache, Full | SlidingWindow)
    }
    unfit = [count for count in sorted(heads) if (count % tensor if count >= tensor else tensor % count)]
    for kv_heads in unfit:
        yield fail(
            "{heads} KV heads and {flag} {tensor}: neither divides the other, so no rank can hold whole heads or whole "
            "copies; the start ends with 'is not divisible by'. Sizes that work: {fitting}",
            evidence=(seen("num_key_value_heads", kv_heads, model.source.where),),
            where=argument(launch, TENSOR),
            heads=kv_heads,
            flag=flag(launch, TENSOR),
            tensor=tensor,
            fitting=listed(
                one
                for one in sizes_that_divide(model.heads, 2 * tensor)
                if (kv_heads % one if kv_heads >= one else one % kv_heads) == 0
            ),
        )
    refused = refusal(forecast, "TP701")
    if refused and not unfit:
        yield fail(
            "{flag} {tensor} does not divide a part of the model that is split among the ranks: vLLM stops with "
            "'{message}'. Choose a smaller size, or --pipeline-parallel-size {tensor}",
            evidence=(seen("refusal", refused.message, "forecast"),),
            where=argument(launch, TENSOR),
            flag=flag(launch, TENSOR),
            tensor=tensor,
            message=refused.message,
        )


@check("TP702", "kv-heads-replicated", runtimes={"vllm", "sglang"})
def kv_heads_replicated(launch: Launch, model: Model, forecast: Forecast | None) -> Iterator[Finding]:
    """More ranks than KV heads: the cache does not shrink any further, every rank keeps a copy."""
    tensor = size(launch, TENSOR)
    contexts = size(launch, "decode_context_parallel_size")
    if tensor == 1 or tensor // contexts <= 1:
        return
    caches = [cache for layer in model.layers for cache in layer.caches]
    per_token = f"{forecast.cache.bytes_per_token / 1024:.1f} KiB" if forecast and forecast.cache else "-"
    if any(isinstance(cache, Latent) for cache in caches):
        yield warn(
            "the latent (MLA) cache is not divided by {flag} {tensor}: every rank keeps all of it ({bytes} a token on "
            "each GPU). It works; for more room --decode-context-parallel-size splits it by tokens, or "
            "--data-parallel-size gives each GPU its own conversations",
            evidence=(seen("KV cache", "latent, one vector a token", model.source.where),),
            where=argument(launch, TENSOR),
            flag=flag(launch, TENSOR),
            tensor=tensor,
            bytes=per_token,
        )
        return
    heads = [cache.kv_heads for cache in caches if isinstance(cache, Full | SlidingWindow)]
    if heads and tensor > contexts * max(heads):
        yield warn(
            "{heads} KV heads over {tensor} ranks: each head is kept {copies} times, so the cache of one GPU is as "
            "large as with {flag} {heads} ({bytes} a token on each GPU). It works; --decode-context-parallel-size "
            "{copies} splits the copies by tokens where the model supports it",
            evidence=(seen("num_key_value_heads", max(heads), model.source.where),),
            where=argument(launch, TENSOR),
            heads=max(heads),
            tensor=tensor,
            copies=tensor // max(heads),
            flag=flag(launch, TENSOR),
            bytes=per_token,
        )


@check("TP703", "quantization-group-split", runtimes={"vllm", "sglang"}, remedy="fit-tensor-parallel-size")
def quantization_group_split(launch: Launch, model: Model) -> Iterator[Finding]:
    """Splitting a layer over the ranks would cut a quantization group in two."""
    quantization = model.quantization
    if quantization is None:
        return
    if quantization.block:
        unit, what = max(quantization.block), "block"
    elif quantization.group_size:
        unit, what = quantization.group_size, "group"
    else:
        return
    for name, width, tensor in _split_widths(launch, model):
        whole_in_file = width % unit == 0
        if tensor == 1 or width % (tensor * unit) == 0 or not (whole_in_file or quantization.block):
            continue
        fitting = [one for one in sizes_that_divide(model.heads or tensor, 2 * tensor) if width % (one * unit) == 0]
        yield fail(
            "{name} {width} over {tensor} ranks gives {part}, no whole number of quantization {what}s of {unit} "
            "({count} {what}s in all): the weights do not load ('is not divisible by') or the first request fails. "
            "Sizes that work: {fitting}; or a checkpoint with smaller {what}s",
            evidence=(
                seen(name, width, model.source.where),
                seen(f"quantization {what} size", unit, f"{quantization.method} configuration"),
            ),
            where=argument(launch, TENSOR),
            name=name,
            width=width,
            tensor=tensor,
            part=f"{width / tensor:g}",
            what=what,
            unit=unit,
            count=width // unit,
            fitting=listed(fitting or [1]),
        )


def _split_widths(launch: Launch, model: Model) -> Iterator[tuple[str, int, int]]:
    """Widths that are cut, under their key in config.json, and over how many ranks; experts that this release of vLLM
    loads in finer blocks are left out."""
    own = model.expert_intermediate_size
    if model.intermediate_size and not (model.experts and own is None):
        yield "intermediate_size", model.intermediate_size, size(launch, TENSOR)
    width = own or model.intermediate_size
    if not (model.experts and width) or (launch.runtime == "vllm" and refines_expert_blocks(launch, model)):
        return
    experts_over = expert_ranks(launch) if launch.runtime == "vllm" else size(launch, TENSOR)
    yield "moe_intermediate_size" if own else "intermediate_size", width, experts_over


@check("TP704", "more-ranks-than-gpus", runtimes={"vllm"}, remedy="fit-tensor-parallel-size")
def more_ranks_than_gpus(launch: Launch, gpus: Gpus) -> Iterator[Finding]:
    """The launch asks for more GPUs than are visible."""
    asked, engines = ranks(launch), _engines_here(launch)
    nodes = launch.get("nnodes")
    ray = launch.get("distributed_executor_backend") == "ray"
    several = (isinstance(nodes, int) and nodes > 1) or (ray and launch.given("distributed_executor_backend"))
    if asked * engines <= len(gpus.visible) or several or not gpus.visible:
        return
    if asked <= len(gpus.visible):
        yield fail(
            "{engines} data parallel engines of {ranks} ranks need {asked} GPUs on this node and {count} are visible: "
            "an engine core dies ('Error setting CUDA_VISIBLE_DEVICES: local range'). Make more GPUs visible, lower "
            "--data-parallel-size, or say with --data-parallel-size-local how many engines run here",
            evidence=(
                seen("visible GPUs", len(gpus.visible), gpus.assumed or "NVML, CUDA_VISIBLE_DEVICES"),
                seen("data parallel engines", engines, "arguments"),
            ),
            where=argument(launch, "data_parallel_size") or Place(kind="argument", name="--data-parallel-size"),
            engines=engines,
            ranks=asked,
            asked=asked * engines,
            count=len(gpus.visible),
        )
        return
    found = fail(
        "tensor times pipeline parallel size is {asked} and {count} GPUs are visible: vLLM refuses ('World size "
        "({asked}) is larger than the number of available GPUs ({count}) in this node', or it waits for Ray in older "
        "releases). Make more GPUs visible, lower {flag}, or start over several nodes with --nnodes",
        evidence=(
            seen("visible GPUs", len(gpus.visible), gpus.assumed or "NVML, CUDA_VISIBLE_DEVICES"),
            seen("ranks", asked, "arguments"),
        ),
        where=argument(launch, TENSOR) or Place(kind="argument", name="--tensor-parallel-size"),
        asked=asked,
        count=len(gpus.visible),
        flag=flag(launch, TENSOR),
    )
    # an older release takes to Ray by itself: it starts where a cluster of several nodes is up, and waits where none is
    yield replace(found, outcome=Outcome.WARN) if ray else found


def _engines_here(launch: Launch) -> int:
    """Data parallel engines that this command starts on its node (vLLM engine/arg_utils.py)."""
    if launch.get("data_parallel_size_local"):
        return size(launch, "data_parallel_size_local")
    one = launch.get("data_parallel_rank") is not None or launch.get("data_parallel_external_lb")
    return 1 if one or launch.get("data_parallel_backend") == "ray" else size(launch, "data_parallel_size")


@check("TP705", "experts-or-dimension-not-divisible", runtimes={"vllm", "sglang"}, remedy="fit-tensor-parallel-size")
def experts_or_dimension_not_divisible(launch: Launch, model: Model) -> Iterator[Finding]:
    """Experts or a layer's width cannot be dealt out evenly."""
    tensor = size(launch, TENSOR)
    expert_ranks = tensor * size(launch, "data_parallel_size")
    experts_whole = bool(launch.get("enable_expert_parallel"))
    if experts_whole and model.experts and model.experts % expert_ranks:
        yield warn(
            "{experts} experts over {ranks} expert parallel ranks leave some ranks with one more: several models and "
            "the expert load balancer refuse that. Choose tensor times data parallel size among {fitting}",
            evidence=(
                seen("experts", model.experts, model.source.where),
                seen("expert parallel ranks", expert_ranks, "arguments"),
            ),
            where=argument(launch, "enable_expert_parallel"),
            experts=model.experts,
            ranks=expert_ranks,
            fitting=listed(sizes_that_divide(model.experts, 2 * expert_ranks)),
        )
    widths = {
        "intermediate_size": model.intermediate_size,
        "moe_intermediate_size": None if experts_whole or not model.experts else model.expert_intermediate_size,
    }
    for name, width in widths.items():
        if tensor > 1 and width and width % tensor:
            yield fail(
                "{name} {width} does not divide by {flag} {tensor}: loading stops with '{width} is not divisible by "
                "{tensor}'. Sizes that work: {fitting}",
                evidence=(seen(name, width, model.source.where),),
                where=argument(launch, TENSOR),
                name=name,
                width=width,
                flag=flag(launch, TENSOR),
                tensor=tensor,
                fitting=listed(
                    one for one in sizes_that_divide(width, 2 * tensor) if not model.heads or model.heads % one == 0
                ),
            )


@check("TP706", "pipeline-parallel-unsupported", runtimes={"vllm"})
def pipeline_parallel_unsupported(launch: Launch, model: Model) -> Iterator[Finding]:
    """The model's layers cannot be dealt out to pipeline stages: its class in vLLM does not take part in that."""
    stages, version = size(launch, "pipeline_parallel_size"), release(launch.version)
    if stages == 1 or model.source.gguf is not None:
        return
    rows = [row for row in table("vllm-pipeline").rows if model.architecture in row["architectures"]]
    looked_up = version is not None and version >= releases_of("vllm-pipeline")[0]
    answers = [within(row, version) if version and looked_up else None for row in rows]
    refused = next((row for row, answer in zip(rows, answers, strict=True) if answer), None)
    if refused is None:
        if None in answers or not looked_up:
            yield skip("whether vLLM {version} gives {architecture} pipeline stages was not looked up",
                       version=launch.version, architecture=model.architecture)  # fmt: skip
        return
    gone = refused.get("gone_in")
    yield fail(
        "{architecture} has no pipeline parallelism in vLLM {version}: 'Pipeline parallelism is not supported for this "
        "model'. Use --tensor-parallel-size {stages} without {flag}{instead}",
        evidence=(
            seen("architectures", model.architecture, model.source.where),
            seen("vLLM", launch.version, "assumed" if launch.version_assumed else "observed"),
        ),
        where=argument(launch, "pipeline_parallel_size"),
        architecture=model.architecture,
        version=launch.version,
        stages=stages * size(launch, TENSOR),
        flag=flag(launch, "pipeline_parallel_size"),
        instead=f", or vLLM {gone}" if gone else "",
    )
