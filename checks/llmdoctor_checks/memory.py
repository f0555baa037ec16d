"""Memory: whether weights, cache, graphs and start-up peaks fit, on the GPUs and on the host."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace
from packaging.version import Version

from llmdoctor_core.check import check
from llmdoctor_core.facts import (
    ChunkedLocal,
    Container,
    DeviceMemory,
    Environment,
    Estimate,
    Forecast,
    Launch,
    LaunchRequest,
    Model,
    Place,
    SlidingWindow,
    State,
    System,
    TargetEnvironment,
    Unavailable,
)
from llmdoctor_core.finding import Finding, Outcome, fail, seen, skip, warn
from llmdoctor_core.units import GIB, gib

from .context import length_that_fits, pool_needed_for_one
from .launches import argument, flag, ranks, refusal, release, size, variable
from .tables import row

UTILIZATION = "gpu_memory_utilization"
HOST = -1
"""The forecast's number for the host's own memory (llama.cpp)."""


def _low(memory: DeviceMemory, name: str) -> int | None:
    """A figure of the forecast at its lowest: the least that this part will take."""
    figure = getattr(memory, name)
    certainty = memory.certainty.get(name)
    if figure is None:
        return None
    return int(certainty.low) if isinstance(certainty, Estimate) else int(figure)


def _gpus(forecast: Forecast) -> list[DeviceMemory]:
    return [memory for memory in forecast.memory if memory.device != HOST]


def _left(memory: DeviceMemory, *parts: str) -> int | None:
    """The budget less the parts, each at its lowest; None where one is not known."""
    taken = [_low(memory, part) for part in parts]
    if memory.budget is None or any(part is None for part in taken):
        return None
    return memory.budget - sum(part for part in taken if part is not None)


MATCHES_BELOW_A_BLOCK_SINCE = Version("0.26")
"""--prefix-match-unit came with it (vllm config/cache.py)."""


@check("MEM801", "weights-do-not-fit", runtimes={"vllm", "llamacpp"}, remedy="raise-tensor-parallel-size")
def weights_do_not_fit(launch: Launch, model: Model, forecast: Forecast) -> Iterator[Finding]:
    """The model's weights alone are larger than the memory they may take."""
    devices = _gpus(forecast)
    if launch.runtime == "llamacpp":
        if not devices or not launch.given("gpu_layers") or launch.get("gpu_layers") in ("auto", -1):
            return
        for memory in devices:
            parts = [_low(memory, name) or 0 for name in ("weights", "cache", "activations")]
            held, certainty = memory.weights or 0, memory.certainty.get("weights")
            if memory.total is None:
                continue
            if sum(parts) > memory.total:
                yield fail(
                    "GPU {device} would hold {weights} of weights and {cache} of cache, and has {total}; with "
                    "{flag} given nothing is moved to the CPU: 'cudaMalloc failed: out of memory'. Leave {flag} out "
                    "so that --fit decides, lower it, or take a smaller quantization",
                    evidence=(
                        seen(
                            "weights",
                            gib(parts[0]),
                            f"at least: {certainty.why}" if isinstance(certainty, Estimate) else "GGUF header",
                        ),
                        seen("GPU memory", gib(memory.total), memory.name),
                    ),
                    where=argument(launch, "gpu_layers"),
                    device=memory.device,
                    weights=gib(parts[0]),
                    cache=gib(parts[1]),
                    total=gib(memory.total),
                    flag=flag(launch, "gpu_layers"),
                )
            elif isinstance(certainty, Estimate) and certainty.low > 0 and held + sum(parts[1:]) > memory.total:
                yield warn(
                    "GPU {device} would hold about {weights} of weights ({low} to {high}) and {cache} of cache, and "
                    "has {total}; with {flag} given nothing is moved to the CPU: it may end in 'cudaMalloc failed: "
                    "out of memory'. Leave {flag} out so that --fit decides, lower it, or name the file that will be "
                    "loaded",
                    evidence=(
                        seen("weights", gib(held), certainty.why),
                        seen("GPU memory", gib(memory.total), memory.name),
                    ),
                    where=argument(launch, "gpu_layers"),
                    device=memory.device,
                    weights=gib(held),
                    low=gib(int(certainty.low)),
                    high=gib(int(certainty.high)),
                    cache=gib(parts[1]),
                    total=gib(memory.total),
                    flag=flag(launch, "gpu_layers"),
                )
        return
    if not any(memory.budget is not None for memory in devices):
        yield skip("the memory of the GPUs is not known")
        return
    for memory in devices:
        weights = _low(memory, "weights")
        if weights is None or memory.budget is None:
            yield skip("the weights of GPU {device} were not forecast", device=memory.device)
        elif memory.total is not None and weights > memory.total:
            tensor = size(launch, "tensor_parallel_size")
            enough = next(
                (
                    more
                    for more in range(tensor + 1, 65)
                    if (not model.heads or model.heads % more == 0) and weights * tensor / more < 0.9 * memory.budget
                ),
                None,
            )
            yield fail(
                "the weights take {weights} on GPU {device}, which has {total} (budget {budget}, {share} of it): "
                "'CUDA out of memory' while loading. About {gpus} GPUs of this kind hold them ({flag} {gpus}); "
                "otherwise a checkpoint of fewer bits, or a larger GPU",
                evidence=(
                    seen("weights on a GPU", gib(weights), model.source.where),
                    seen("budget", gib(memory.budget), "gpu_memory_utilization x total"),
                ),
                where=argument(launch, "tensor_parallel_size")
                or Place(kind="device", name=memory.name or str(memory.device)),
                weights=gib(weights),
                device=memory.device,
                budget=gib(memory.budget),
                share=launch.get(UTILIZATION),
                total=gib(memory.total) if memory.total is not None else "-",
                gpus=enough or "more than 64",
                flag=flag(launch, "tensor_parallel_size"),
            )
            return


@check("MEM803", "no-memory-left-for-cache", runtimes={"vllm"}, remedy="raise-gpu-memory-utilization")
def no_memory_left_for_cache(launch: Launch, forecast: Forecast) -> Iterator[Finding]:
    """The weights fit, and after them and the working memory nothing is left for the KV cache."""
    for memory in _gpus(forecast):
        weights, left = _low(memory, "weights"), _left(memory, "weights", "activations", "graphs", "other")
        if left is None or weights is None or memory.budget is None:
            if memory.budget is None:
                yield skip("the memory of GPU {device} is not known", device=memory.device)
            continue
        fits = memory.total is None or weights <= memory.total
        if fits and (left <= 0 or refusal(forecast, "MEM803")):
            yield fail(
                "GPU {device}: {weights} of weights and {working} of activations and graphs leave nothing of the "
                "budget of {budget} for the KV cache: 'No available memory for the cache blocks'. Raise {flag} (now "
                "{share}), add --enforce-eager, lower --max-num-seqs and --max-num-batched-tokens, or spread over "
                "more GPUs",
                evidence=(
                    seen("budget", gib(memory.budget), "gpu_memory_utilization x total"),
                    seen("weights", gib(weights), "forecast"),
                ),
                where=argument(launch, UTILIZATION),
                device=memory.device,
                weights=gib(weights),
                working=gib(memory.budget - weights - left),
                budget=gib(memory.budget),
                flag=flag(launch, UTILIZATION),
                share=launch.get(UTILIZATION),
            )
            return


@check("MEM802", "fits-only-without-graphs", runtimes={"vllm"}, remedy="enforce-eager")
def fits_only_without_graphs(launch: Launch, forecast: Forecast) -> Iterator[Finding]:
    """CUDA graphs take the memory that one request of the maximum length would need."""
    cache = forecast.cache
    if cache is None or launch.get("enforce_eager"):
        return
    devices = [memory for memory in _gpus(forecast) if memory.cache is not None and memory.graphs]
    pool = pool_needed_for_one(cache)
    if pool is None:
        yield skip("the memory of the GPUs is not known")
        return
    for memory in devices[:1]:
        graphs, have = memory.graphs or 0, memory.cache or 0
        if have < cache.bytes_per_request <= have + graphs:
            yield fail(
                "CUDA graphs take about {graphs}, and without them one request of {tokens} tokens ({need}) would "
                "fit: {have} are left for the cache. Add --enforce-eager (slower at small batches), capture fewer "
                "sizes with --cudagraph-capture-sizes 1 2 4 8, or --max-model-len {fits}",
                evidence=(seen("graphs", gib(graphs), "forecast"), seen("left for the cache", gib(have), "forecast")),
                where=Place(kind="argument", name="--enforce-eager"),
                graphs=gib(graphs),
                tokens=cache.request_tokens,
                need=gib(cache.bytes_per_request),
                have=gib(have),
                fits=length_that_fits(cache) or "-",
            )


@check("MEM804", "start-up-peak-outside-budget", runtimes={"vllm"}, remedy="lower-max-num-seqs")
def start_up_peak_outside_budget(launch: Launch, model: Model, forecast: Forecast) -> Iterator[Finding]:
    """The sampler's warm-up, after the cache has taken its budget, needs more than what lies outside the budget."""
    sequences = launch.get("max_num_seqs")
    if not isinstance(sequences, int) or model.pooling:
        return
    devices = [memory for memory in _gpus(forecast) if memory.headroom is not None]
    if not devices:
        yield skip("the memory of the GPUs is not known")
        return
    peak = 3 * sequences * model.vocabulary * 4
    headroom = min(memory.headroom or 0 for memory in devices)
    least = row("limits", name="gpu_headroom")
    if least and headroom < least["value"] and not launch.get("enforce_eager"):
        yield warn(
            "--gpu-memory-utilization {share} leaves {headroom} of the GPU outside the budget: CUDA graphs take a "
            "little more than is estimated for them, and capturing them then ends in 'CUDA out of memory'. Leave "
            "{least} or more: at most {fitting:.2f}",
            evidence=(seen("outside the budget", gib(headroom), "total x (1 - gpu_memory_utilization)"),),
            where=argument(launch, UTILIZATION),
            share=launch.get(UTILIZATION),
            headroom=gib(headroom),
            least=gib(least["value"]),
            fitting=int(100 * (1 - least["value"] / max(memory.total or 1 for memory in devices))) / 100,
        )
    if peak > headroom:
        fitting = max(headroom // (3 * model.vocabulary * 4), 1)
        yield warn(
            "the sampler's warm-up takes about {peak} ({sequences} sequences x {vocabulary} vocabulary entries x 4 "
            "bytes, three times) and {headroom} lie outside the budget: 'CUDA out of memory occurred when warming "
            "up sampler'. Set {flag} {fitting}, or lower --gpu-memory-utilization",
            evidence=(
                seen("max_num_seqs", sequences, launch.arguments["max_num_seqs"].origin),
                seen("outside the budget", gib(headroom), "total x (1 - gpu_memory_utilization)"),
            ),
            where=argument(launch, "max_num_seqs") or Place(kind="argument", name=flag(launch, "max_num_seqs")),
            peak=gib(peak),
            sequences=sequences,
            vocabulary=model.vocabulary,
            headroom=gib(headroom),
            flag=flag(launch, "max_num_seqs"),
            fitting=fitting,
        )
    video = model.multimodal and any("video_token" in key for key in model.config)
    if video and launch.get("limit_mm_per_prompt") is None and not launch.get("language_model_only"):
        yield warn(
            "{model} takes videos, and while profiling vLLM reserves for the largest video and image a prompt may "
            "hold: the cache becomes smaller by many GiB (a public report: 5 instead of 25 GiB). If the service "
            "sends none: --limit-mm-per-prompt '{example}'",
            evidence=(seen("limit_mm_per_prompt", "not given", "arguments"),),
            where=Place(kind="argument", name="--limit-mm-per-prompt"),
            model=model.name,
            example='{"video": 0}',
        )


@check("MEM805", "state-blocks-below-max-num-seqs", runtimes={"vllm"}, remedy="lower-max-num-seqs")
def state_blocks_below_max_num_seqs(launch: Launch, model: Model, forecast: Forecast) -> Iterator[Finding]:
    """A hybrid model gets fewer state blocks than sequences that may run at once."""
    sequences, cache = launch.get("max_num_seqs"), forecast.cache
    hybrid = any(isinstance(kept, State) for layer in model.layers for kept in layer.caches)
    version = release(launch.version)
    if (
        not hybrid
        or not isinstance(sequences, int)
        or "FULL" not in str(launch.get("cudagraph_mode", "FULL"))
        or launch.get("enforce_eager")
        or (version and version < Version("0.18"))
    ):
        return
    if cache is None or cache.blocks is None:
        yield skip("the number of cache blocks was not forecast: the memory of the GPUs is not known")
        return
    low, high = (
        (cache.certainty.low, cache.certainty.high) if isinstance(cache.certainty, Estimate) else (cache.blocks,) * 2
    )
    evidence = (
        seen("max_num_seqs", sequences, launch.arguments["max_num_seqs"].origin),
        seen("cache blocks", cache.blocks, "forecast"),
    )
    where = argument(launch, "max_num_seqs") or Place(kind="argument", name=flag(launch, "max_num_seqs"))
    if refusal(forecast, "MEM805") or high < sequences:
        found = fail(
            "every running sequence takes one state block, {flag} is {sequences} and there will be about {blocks} "
            "blocks: vLLM since 0.20 refuses ('max_num_seqs exceeds available Mamba cache blocks') after loading "
            "the weights, 0.18 and 0.19 capture fewer graphs. Set {flag} {fitting}",
            evidence=evidence,
            where=where,
            flag=flag(launch, "max_num_seqs"),
            sequences=sequences,
            blocks=cache.blocks,
            fitting=max(int(low), 1),
        )
        # A build that names no release (0.1.dev1+g...) may be older than the refusal.
        refuses = not launch.untagged and (version is None or version >= Version("0.20"))
        yield found if refuses else replace(found, outcome=Outcome.WARN)
    elif low < sequences:
        yield warn(
            "every running sequence takes one state block, {flag} is {sequences} and there will be {low:.0f} to "
            "{high:.0f} blocks: vLLM since 0.20 may refuse after loading the weights. {flag} {low:.0f} is sure to "
            "start",
            evidence=evidence,
            where=where,
            flag=flag(launch, "max_num_seqs"),
            sequences=sequences,
            low=low,
            high=high,
        )


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0


def _room(system: System, container: Container | None) -> int | None:
    """Host memory still to be had: what is available, or less where the cgroup's limit is nearer."""
    rooms = [system.memory_available]
    if container and container.memory_limit is not None:
        rooms.append(container.memory_limit - (container.memory_used or 0))
    known = [room for room in rooms if room is not None]
    return min(known) if known else None


@check("MEM806", "host-memory-below-need", runtimes={"vllm", "sglang", "llamacpp"})
def host_memory_below_need(
    request: LaunchRequest,
    launch: Launch | None,
    model: Model | None,
    forecast: Forecast | None,
    system: System | Unavailable,
    container: Container | None,
    environment: Environment | None,
) -> Iterator[Finding]:
    """Pools in host memory are larger than what the host or its cgroup has left; some are counted per rank."""
    workers = ranks(launch) if launch else 1
    pools: list[tuple[str, float, str]] = []
    if launch and launch.runtime == "vllm":
        for name, many in (("cpu_offload_gb", workers), ("swap_space", workers), ("kv_offloading_size", 1)):
            each = _number(launch.get(name)) if launch.given(name) else 0
            pools += [(flag(launch, name), each * many * GIB, f"{each:g} GiB x {many}")] * bool(each)
    lmcache = _number(variable("LMCACHE_MAX_LOCAL_CPU_SIZE", request, environment))
    if lmcache and str(variable("LMCACHE_LOCAL_CPU", request, environment) or "true").lower() in ("true", "1"):
        pools.append(("LMCACHE_MAX_LOCAL_CPU_SIZE", lmcache * workers * GIB, f"{lmcache:g} GiB x {workers} ranks"))
    if launch and launch.runtime == "llamacpp" and forecast:
        for memory in forecast.memory:
            if memory.device == HOST:
                needed = sum(_low(memory, name) or 0 for name in ("weights", "cache", "activations"))
                pools.append(("model, cache and buffers on the CPU", needed, "forecast"))
    if model and model.source.weight_format in ("pytorch", "bin", "pickle") and model.weight_bytes and workers > 1:
        pools.append(("weights as pickles, read whole by each rank", model.weight_bytes * workers, "pytorch_model.bin"))
    need = sum(amount for _, amount, _ in pools)
    if not need:
        return
    if isinstance(system, Unavailable):
        yield skip("the host's memory was not observed: {reason}", reason=system.reason)
        return
    room = _room(system, container)
    if room is None:
        yield skip(
            "the host's available memory was not read: {reason}",
            reason=system.unread.get("memory_available", "the kernel does not tell"),
        )
    elif need > room:
        yield fail(
            "host memory: this launch takes {need} ({pools}) and {room} are to be had; the kernel will kill it "
            "('Killed', exit 137). Pools of LMCache, --cpu-offload-gb and --swap-space are per rank. Lower them, or "
            "give the container more memory",
            evidence=(
                *(seen(name, how, "arguments and environment") for name, _, how in pools),
                seen("available", gib(room), "/proc/meminfo, cgroup"),
            ),
            need=gib(need),
            pools=", ".join(f"{name} {gib(amount)}" for name, amount, _ in pools),
            room=gib(room),
        )


@check("MEM807", "host-caches-uncounted", runtimes={"llamacpp"})
def host_caches_uncounted(
    forecast: Forecast, system: System | Unavailable, container: Container | None
) -> Iterator[Finding]:
    """Caches in host memory that no start-up line mentions can grow past what the host has."""
    total = sum(surprise.bytes for surprise in forecast.host)
    if not total:
        return
    if isinstance(system, Unavailable):
        yield skip("the host's memory was not observed: {reason}", reason=system.reason)
        return
    room = _room(system, container)
    if room is None:
        yield skip(
            "the host's available memory was not read: {reason}",
            reason=system.unread.get("memory_available", "the kernel does not tell"),
        )
        return
    held = sum(
        _low(memory, name) or 0
        for memory in forecast.memory
        if memory.device == HOST
        for name in ("weights", "cache", "activations")
    )
    if total + held > room:
        yield warn(
            "beside what it prints at the start the server may fill {total} of host memory ({names}), and {room} "
            "are to be had: it grows for hours and is then killed. Set --cache-ram {cap} (MiB; 0 switches the "
            "prompt cache off) and --ctx-checkpoints 4",
            evidence=(
                *(seen(surprise.name, gib(surprise.bytes), surprise.why) for surprise in forecast.host),
                seen("available", gib(room), "/proc/meminfo, cgroup"),
            ),
            where=Place(kind="argument", name="--cache-ram"),
            total=gib(total),
            names=", ".join(f"{surprise.name} {gib(surprise.bytes)}" for surprise in forecast.host),
            room=gib(room),
            cap=max(int((room - held) / 4) >> 20, 0),
        )


@check("MEM808", "cache-promise-lost", runtimes={"vllm", "llamacpp"}, remedy="lower-max-num-batched-tokens")
def cache_promise_lost(launch: Launch, model: Model, forecast: Forecast | None) -> Iterator[Finding]:
    """A setting gives up what the model's sliding windows would save."""
    cache = forecast.cache if forecast else None
    block, length = cache.block_tokens if cache else None, launch.get("max_model_len")
    version = release(launch.version)
    states = any(isinstance(kept, State) for layer in model.layers for kept in layer.caches)
    if (
        launch.runtime == "vllm"
        and states
        and launch.given("enable_prefix_caching")
        and launch.get("enable_prefix_caching")
        and version
        and version < MATCHES_BELOW_A_BLOCK_SINCE
        and block
        and isinstance(length, int)
        and 2 * block > length
    ):
        yield warn(
            "--enable-prefix-caching keeps whole blocks only, and beside recurrent layers a block has {block} tokens: "
            "of a request of at most {length} tokens {blocks} block can ever be found again, of a shorter prompt than "
            "a block nothing, and vLLM says so nowhere. Raise --max-model-len, or leave prefix caching out",
            evidence=(seen("block", f"{block} tokens", "forecast"), seen("max_model_len", length, "arguments")),
            where=argument(launch, "enable_prefix_caching"),
            block=block,
            length=length,
            blocks="one" if block <= length else "no",
        )
    windows = [
        kept for layer in model.layers for kept in layer.caches if isinstance(kept, SlidingWindow | ChunkedLocal)
    ]
    if not windows:
        return
    have = gib(cache.bytes_per_request) if cache else "-"
    window = max(kept.window if isinstance(kept, SlidingWindow) else kept.chunk for kept in windows)
    if launch.runtime == "llamacpp" and launch.get("swa_full"):
        yield warn(
            "--swa-full keeps every token in all {layers} sliding layers instead of {window}: the cache takes "
            "{have}. Leave it out unless you need the prompt cache to reuse prefixes inside the window",
            evidence=(seen("swa_full", True, "arguments"), seen("sliding layers", len(windows), model.source.where)),
            where=argument(launch, "swa_full"),
            layers=len(windows),
            window=window,
            have=have,
        )
    elif launch.runtime == "vllm" and launch.get("disable_hybrid_kv_cache_manager"):
        yield warn(
            "with the hybrid KV cache manager off, all {layers} sliding layers keep every token instead of "
            "{window}: one request of the maximum length takes {have}. It is switched off by {flag}, or by a KV "
            "connector that does not support it; --no-disable-hybrid-kv-cache-manager keeps it on",
            evidence=(
                seen(
                    "disable_hybrid_kv_cache_manager", True, launch.arguments["disable_hybrid_kv_cache_manager"].origin
                ),
                seen("sliding layers", len(windows), model.source.where),
            ),
            where=argument(launch, "disable_hybrid_kv_cache_manager"),
            layers=len(windows),
            window=window,
            have=have,
            flag=flag(launch, "disable_hybrid_kv_cache_manager"),
        )
    elif launch.runtime == "vllm" and cache is not None:
        sliding = sum(part.bytes for part in cache.parts if part.window)
        whole = sum(part.bytes for part in cache.parts if not part.window)
        batched = launch.get("max_num_batched_tokens")
        if sliding > whole and isinstance(batched, int) and batched >= 2 * window and cache.request_tokens > window:
            yield warn(
                "{layers} layers need a window of {window} tokens, and vLLM {version} reserves room for the batched "
                "tokens in flight too: {sliding} of the {have} of one request. --max-num-batched-tokens {batched} sets "
                "that; a smaller one gives it back at the price of slower prefill",
                evidence=(
                    seen("max_num_batched_tokens", batched, launch.arguments["max_num_batched_tokens"].origin),
                    seen("sliding layers", len(windows), model.source.where),
                ),
                where=argument(launch, "max_num_batched_tokens"),
                layers=len(windows),
                window=window,
                version=launch.version,
                sliding=gib(sliding),
                have=have,
                batched=batched,
            )


@check("MEM811", "jit-build-exceeds-memory", runtimes={"vllm", "sglang"})
def jit_build_exceeds_memory(
    model: Model,
    target: TargetEnvironment,
    system: System | Unavailable,
    container: Container | None,
    request: LaunchRequest,
    environment: Environment | None,
) -> Iterator[Finding]:
    """FlashInfer compiles many files at once, one nvcc a CPU, and the host has no memory for that."""
    flashinfer = target.has("flashinfer-python")
    if (
        flashinfer is None
        or not model.experts
        or target.has("flashinfer-jit-cache")
        or variable("MAX_JOBS", request, environment)
    ):
        return
    if isinstance(system, Unavailable):
        yield skip("the host's memory was not observed: {reason}", reason=system.reason)
        return
    room, each = _room(system, container), row("limits", name="compile_job_memory")
    if room is None or system.cpus is None or each is None:
        yield skip("the host's available memory or its CPUs were not read")
        return
    jobs = max(room // each["value"], 1)
    if jobs < system.cpus:
        yield warn(
            "should FlashInfer {flashinfer} compile its mixture-of-experts kernels, it starts {cpus} nvcc at once, "
            "each of 3 to 8 GiB, and {room} are to be had: jobs are killed (exit 137) and all that shows is 'ninja: "
            "build stopped'. Set MAX_JOBS={jobs} in the service's environment",
            evidence=(
                seen("CPUs", system.cpus, "this process"),
                seen("available", gib(room), "/proc/meminfo, cgroup"),
                seen("experts", model.experts, model.source.where),
            ),
            where=Place(kind="environment", name="MAX_JOBS"),
            flashinfer=flashinfer.version,
            cpus=system.cpus,
            room=gib(room),
            jobs=jobs,
        )
