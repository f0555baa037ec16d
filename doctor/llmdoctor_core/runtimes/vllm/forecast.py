"""The forecast of a vLLM launch: what one request reserves, what the pool holds, what the server will print."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import (
    CacheForecast,
    CachePart,
    DeviceMemory,
    Estimate,
    Forecast,
    Gpus,
    HostSurprise,
    Latent,
    Launch,
    Model,
    ModelId,
    Refusal,
    RuntimeId,
    State,
)

from . import memory, planner, refusals, specs
from .memory import Pool
from .planner import GIB, Outline, Plan, RefusedError, Spec
from .since import release

V1_ALONE_SINCE = (0, 9)
"""Releases before may run what the V1 planner refuses on the V0 engine."""
GROWS = {"full": "tokens", "latent": "tokens", "indexer": "tokens"}
STATE_BLOCKS = (
    "max_num_seqs ({sequences}) exceeds available Mamba cache blocks ({blocks}). Each decode sequence requires one "
    "Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most {blocks} or "
    "increase gpu_memory_utilization."
)
"""v1/worker/gpu_model_runner.py, since 0.20."""


def forecast(launch: Launch, model: Model, gpus: Gpus | None, draft: Model | None, kv_memory: int | None) -> Forecast:
    """Memory and cache of the launch. ``kv_memory`` (bytes on each device) replaces the predicted pool.

    Where vLLM refuses, the cache still tells what one request would take. Raises InputError for what this llmdoctor
    cannot forecast at all.
    """
    length = launch.get("max_model_len")
    if isinstance(length, int) and length < 1:
        raise InputError(f"{model.name}: the context length comes out as {length} tokens (see its rope scaling)")
    if launch.platform == "cpu":
        gpus = None  # this build sees none
    refused = _refusal(launch, model, draft)
    devices = memory.devices(launch, model, draft, gpus)
    found = Forecast(
        runtime=RuntimeId(name="vllm", version=launch.version, assumed=launch.version_assumed),
        model=ModelId(name=model.name, layers=len(model.layers), origin=model.origin),
        cache=None,
        memory=devices,
        refused=refused,
        host=_host(launch),
        notes=(),
    )
    if refused is not None and refused.code == "TP701":
        return found  # nothing can be split so
    layout = specs.layout(launch, model, draft, gpus)
    notes = (*layout.notes, *_notes(launch, model, gpus))
    pools = _given(launch, kv_memory, len(layout.stages)) or memory.pools(devices, len(layout.stages))
    if pools is None and any(device.total and device.weights is None for device in devices):
        notes = (*notes, "the weights cannot be counted from this configuration, so the pool is not known")
    if not any(layout.stages):
        return replace(found, notes=(*notes, "the model keeps no KV cache"))
    try:
        sized = _cache(launch, layout, pools)
    except RefusedError as error:
        if error.code == "ARG903" and release(launch.version) < V1_ALONE_SINCE:
            return replace(found, notes=(*notes, "this release runs such a model on its V0 engine, not planned here"))
        return replace(found, refused=refused or _as_refusal(error), notes=notes)
    refused = refused or _weights_refusal(launch, devices, kv_memory) or sized.refused
    return replace(found, cache=sized.cache, refused=refused, notes=notes)


# ------------------------------------------------------------------ the cache


class _Sized(Struct, frozen=True):
    cache: CacheForecast
    refused: Refusal | None


def _cache(launch: Launch, layout: specs.Layout, pools: list[Pool] | None) -> _Sized:
    rules = planner.rules_for(launch.version)
    known = planner.outline(layout.stages, layout.need, rules)
    request = known.strides[0] * known.blocks_per_request
    length = layout.need.max_model_len
    cache = CacheForecast(
        request_tokens=length,
        bytes_per_request=request,
        bytes_per_token=request / length,
        parts=_parts(known, rules),
        block_tokens=_block_tokens(known, layout),
        blocks=None,
        bytes=None,
        tokens=None,
        max_concurrency=None,
        bytes_per_block=known.strides[0],
        blocks_per_request=known.blocks_per_request,
    )
    if pools is None:
        return _Sized(cache, None)
    cache = replace(cache, bytes=pools[0].value)
    exact = all(pool.low == pool.high for pool in pools)
    try:
        plan = planner.fill(layout.stages, known, [pool.value for pool in pools], rules)
    except RefusedError as error:
        return _refused(cache, error, exact, layout, known, pools, rules)
    cache = _filled(cache, plan, rules, exact, pools, launch)
    if not exact:
        cache = _bounded(cache, layout, known, pools, rules)
    return _Sized(cache, _state_refusal(launch, layout, plan, exact))


def _filled(
    cache: CacheForecast, plan: Plan, rules: planner.Rules, exact: bool, pools: list[Pool], launch: Launch
) -> CacheForecast:
    request = plan.bytes_per_block * plan.blocks_per_request
    available = rules.available_line.format(available=planner.gib(pools[0].value, rules))
    given = launch.get("kv_cache_memory_bytes") or launch.get("num_gpu_blocks_override") or launch.platform == "cpu"
    return replace(
        cache,
        request_tokens=plan.max_model_len,
        bytes_per_request=request,
        bytes_per_token=request / plan.max_model_len,
        blocks=plan.blocks,
        bytes=plan.blocks * plan.bytes_per_block if launch.get("num_gpu_blocks_override") else pools[0].value,
        tokens=plan.tokens,
        max_concurrency=round(plan.concurrency, 2),
        blocks_per_request=plan.blocks_per_request,
        lines=plan.lines if given else (available, *plan.lines),
    )


def _bounded(
    cache: CacheForecast, layout: specs.Layout, known: Outline, pools: list[Pool], rules: planner.Rules
) -> CacheForecast:
    low, high = (_blocks(known, [getattr(pool, bound) for pool in pools]) for bound in ("low", "high"))
    per_request = cache.blocks_per_request or 1
    why = "the pool is what weights, activations and graphs leave of the budget; they are estimated"
    printed = [
        planner.printed_tokens(known.projected[0], blocks, blocks / per_request, layout.need, rules)
        for blocks in (low, high)
    ]
    return replace(
        cache,
        certainty=Estimate(low=low, high=high, why=why),
        tokens_certainty=Estimate(low=printed[0], high=printed[1], why=why),
    )


def _blocks(known: Outline, pools: list[int]) -> int:
    return max(0, min(pool // stride for pool, stride in zip(pools, known.strides, strict=True)))


def _refused(
    cache: CacheForecast,
    error: RefusedError,
    exact: bool,
    layout: specs.Layout,
    known: Outline,
    pools: list[Pool],
    rules: planner.Rules,
) -> _Sized:
    """The pool does not do. Where it is an estimate whose upper bound does, it is not yet a refusal."""
    blocks = _blocks(known, [pool.value for pool in pools])
    per_request = known.blocks_per_request
    cache = replace(
        cache,
        blocks=blocks,
        tokens=planner.printed_tokens(known.projected[0], blocks, blocks / per_request, layout.need, rules),
        max_concurrency=round(blocks / per_request, 2),
    )
    if exact:
        return _Sized(cache, _as_refusal(error))
    cache = _bounded(cache, layout, known, pools, rules)
    try:
        planner.fill(layout.stages, known, [pool.high for pool in pools], rules)
    except RefusedError:
        return _Sized(cache, _as_refusal(error))
    return _Sized(cache, None)


def _block_tokens(known: Outline, layout: specs.Layout) -> int:
    """Tokens of a block as printed: the attention's; a window's own where there is nothing else."""
    kinds = {group.spec.kind for group in known.groups}
    return layout.block_size if kinds & {"full", "latent", "state"} else known.groups[0].spec.block_size


def _parts(known: Outline, rules: planner.Rules) -> tuple[CachePart, ...]:
    """What each kind of layer takes of one request, padding included: the parts sum up to the request."""
    kinds: dict[tuple[str, int | None, int], list[float]] = {}
    for group, everywhere in zip(known.projected[0], known.groups, strict=True):
        whole = known.strides[0] * planner.request_blocks(group, known.need, rules)
        pages = sum(spec.page for spec in group.specs) or 1
        for spec in everywhere.specs:
            kinds.setdefault(_kind(spec), [0, 0.0])[0] += 1
        for spec in group.specs:
            kinds.setdefault(_kind(spec), [0, 0.0])[1] += whole * spec.page / pages
    return tuple(
        CachePart(
            kind=kind,
            layers=int(layers),
            bytes=round(size),
            grows_with="tokens" if kind in GROWS else "sequences",
            window=window,
            block_tokens=block,
        )
        for (kind, window, block), (layers, size) in kinds.items()
    )


def _kind(spec: Spec) -> tuple[str, int | None, int]:
    if spec.content[:1] == ("indexer",):
        return "indexer", None, spec.block_size
    kind = "sliding" if spec.kind == "sliding latent" else spec.kind
    return kind, spec.window if kind in ("sliding", "chunked") else None, spec.block_size


def _given(launch: Launch, kv_memory: int | None, stages: int) -> list[Pool] | None:
    size = kv_memory or launch.get("kv_cache_memory_bytes") or launch.get("kv_cache_memory")
    if not isinstance(size, int) or size <= 0:
        return None
    return [Pool(value=size, low=size, high=size)] * stages


# ------------------------------------------------------------------ refusals


def _as_refusal(error: RefusedError) -> Refusal:
    return Refusal(code=error.code, message=error.message, detail=error.detail)


def _refusal(launch: Launch, model: Model, draft: Model | None) -> Refusal | None:
    try:
        refusals.check(launch, model, draft)
    except RefusedError as error:
        return _as_refusal(error)
    return None


def _weights_refusal(launch: Launch, devices: tuple[DeviceMemory, ...], kv_memory: int | None) -> Refusal | None:
    """The weights of a rank do not fit the card at all: loading ends in torch.OutOfMemoryError."""
    if kv_memory:
        return None
    for device in devices:
        if device.weights is not None and device.total is not None and device.weights > device.total:
            message = (
                f"CUDA out of memory. GPU {device.device} has a total capacity of {device.total / GIB:.2f} GiB and the "
                f"weights of its rank take {device.weights / GIB:.2f} GiB"
            )
            detail = {"device": device.device, "weights_bytes": device.weights, "total_bytes": device.total}
            return Refusal(code="MEM801", message=message, detail={**detail})
    return None


def _state_refusal(launch: Launch, layout: specs.Layout, plan: Plan, exact: bool) -> Refusal | None:
    """MEM805: capturing full graphs needs a state block for every sequence (since 0.20; config/compilation.py)."""
    states = any(spec.kind == "state" for stage in layout.stages for spec in stage)
    sequences = launch.get("max_num_seqs")
    full = "FULL" in str(launch.get("cudagraph_mode"))
    if not states or not exact or not full or launch.untagged or release(launch.version) < (0, 20):
        return None
    if not isinstance(sequences, int) or plan.blocks >= sequences:
        return None
    message = STATE_BLOCKS.format(sequences=sequences, blocks=plan.blocks)
    return Refusal(code="MEM805", message=message, detail={"max_num_seqs": sequences, "blocks": plan.blocks})


# ------------------------------------------------------------------ beside the cache


def _notes(launch: Launch, model: Model, gpus: Gpus | None) -> tuple[str, ...]:
    notes: list[str] = []
    if launch.platform == "cpu":
        notes += _cpu_notes(launch, model)
    elif gpus is None or not gpus.visible:
        notes.append("no GPU is known: compute capability 8.0 is assumed where the block size depends on it")
    if gpus is not None and gpus.assumed:
        notes.append(f"the GPUs are {gpus.assumed} of the built-in table, not this host's")
    if launch.get("cudagraph_capture_sizes") and not memory.graphs_inside(launch):
        size = memory.captured(launch, model).value / GIB
        notes.append(f"CUDA graphs take about {size:.1f} GiB outside the budget in this release")
    if model.model_type.startswith("qwen3_5") and "mamba_ssm_dtype" not in str(model.config):
        notes.append("config.json names no mamba_ssm_dtype: float32 is taken, as every published Qwen3.5 says")
    return tuple(notes)


def _cpu_notes(launch: Launch, model: Model) -> Iterator[str]:
    """What of the host decides on the CPU's platform and is not known to a launch (platforms/cpu.py)."""
    if not launch.get("kv_cache_memory_bytes"):
        why = launch.arguments["kv_cache_memory_bytes"].why
        yield f"the pool is not known: {why}; VLLM_CPU_KVCACHE_SPACE=GIB makes it what you want"
    version = release(launch.version)
    kinds = {type(cache) for layer in model.layers for cache in layer.caches}
    if Latent in kinds and version < (0, 28):
        yield "vLLM runs no MLA on the CPU before 0.28: it stops with 'MLA is not supported on CPU.'"
    elif Latent in kinds and version >= (0, 29):
        yield "a CPU without AMX is assumed: with AMX, MLA takes blocks of 128 and prefills in chunks"
    if State in kinds and version >= (0, 29):
        yield "a CPU without AVX512-BF16 is assumed: with it, states are kept in float32"
    if State in kinds and version < (0, 21):
        yield "models with states are sized as on a GPU: before 0.21 the CPU aligns their pages otherwise"


def _host(launch: Launch) -> tuple[HostSurprise, ...]:
    """Host memory that the launch reserves beside the GPU's."""
    ranks = int(launch.get("tensor_parallel_size") or 1) * int(launch.get("pipeline_parallel_size") or 1)
    found = []
    swap = launch.get("swap_space")
    if swap and release(launch.version) < (0, 18):
        found.append(
            HostSurprise(name="swap space", bytes=int(float(swap) * GIB) * ranks, why="--swap-space, each GPU")
        )
    if offloaded := launch.get("cpu_offload_gb"):
        size = int(float(offloaded) * GIB) * ranks
        found.append(HostSurprise(name="offloaded weights", bytes=size, why="--cpu-offload-gb, each GPU"))
    if cache := launch.get("kv_offloading_size"):
        size = int(float(cache) * GIB)
        found.append(
            HostSurprise(name="offloaded KV cache", bytes=size, why="--kv-offloading-size, all ranks together")
        )
    return tuple(found)
