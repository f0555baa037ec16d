"""Context length: what the model was trained for, what the cache holds, and what one conversation really gets."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from llmdoctor_core.check import check
from llmdoctor_core.facts import CacheForecast, Estimate, Forecast, Gpus, Launch, LaunchRequest, Model, Place
from llmdoctor_core.finding import Finding, fail, seen, skip, warn
from llmdoctor_core.units import GIB, gib

from .launches import argument, flag, release, variable
from .tables import table

LENGTH = "max_model_len"


def pool_needed_for_one(cache: CacheForecast) -> tuple[int, int] | None:
    """What the pool has and what one request of the maximum length takes, both in blocks; None where unknown."""
    if cache.blocks is not None and cache.blocks_per_request is not None:
        return cache.blocks, cache.blocks_per_request
    return None


def length_that_fits(cache: CacheForecast) -> int | None:
    """The longest request the pool holds, in tokens, rounded down to whole blocks.

    What grows with the tokens is divided among them; windows and states are reserved whatever the length.
    """
    if cache.bytes is None or not cache.request_tokens:
        return None
    growing = sum(part.bytes for part in cache.parts if part.grows_with == "tokens")
    fixed = sum(part.bytes for part in cache.parts if part.grows_with != "tokens")
    if not growing or cache.bytes <= fixed:
        return None
    tokens = int((cache.bytes - fixed) * cache.request_tokens / growing)
    block = cache.block_tokens or 1
    return min(tokens, cache.request_tokens) // block * block or None


@check("CTX601", "context-above-training-length", runtimes={"vllm"}, remedy="lower-max-model-len")
def context_above_training_length(launch: Launch, model: Model, forecast: Forecast | None) -> Iterator[Finding]:
    """The context asked for is longer than the model was trained for."""
    asked, trained = launch.get(LENGTH), model.training_length
    refusal = forecast.refused if forecast else None
    evidence = (seen("length asked for", asked, "arguments"), seen("length of the model", trained, model.source.where))
    if refusal and refusal.code == "CTX601":
        yield fail(
            "{flag} {asked} is above the {trained} tokens the model was trained for, and vLLM refuses: '{message}'. "
            "Set {flag} to {trained} or less; rope scaling for longer texts belongs in --hf-overrides, as the model's "
            "page says",
            evidence=evidence,
            where=argument(launch, LENGTH),
            flag=flag(launch, LENGTH),
            asked=asked,
            trained=refusal.detail.get("derived") or trained,
            message=refusal.message,
        )
        return
    if not launch.given(LENGTH) or not isinstance(asked, int):
        return
    if trained is None:
        yield skip("the length the model was trained for is not in its configuration")
    elif asked > trained:
        if str(launch.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0")) in ("1", "true", "True"):
            yield warn(
                "{flag} {asked} is above the {trained} tokens the model was trained for, and "
                "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 lets it pass: beyond that length answers degrade or become NaN. Set "
                "{flag} {trained}",
                evidence=evidence,
                where=argument(launch, LENGTH),
                flag=flag(launch, LENGTH),
                asked=asked,
                trained=trained,
            )
        elif forecast is None:
            yield fail(
                "{flag} {asked} is above the {trained} tokens the model was trained for: vLLM refuses ('is greater "
                "than the derived max_model_len'). Set {flag} {trained} or less",
                evidence=evidence,
                where=argument(launch, LENGTH),
                flag=flag(launch, LENGTH),
                asked=asked,
                trained=trained,
            )


@check("CTX602", "context-shared-among-slots", runtimes={"llamacpp"}, remedy="serve-one-slot")
def context_shared_among_slots(launch: Launch, forecast: Forecast) -> Iterator[Finding]:
    """Several conversations share the context that was asked for."""
    cache, slots = forecast.cache, launch.get("parallel")
    total = launch.get("ctx_size")
    if cache is None or not isinstance(total, int) or total <= 0:
        return
    automatic = not isinstance(slots, int) or slots < 1
    count = slots if isinstance(slots, int) and slots > 0 else 4
    if cache.slot_tokens is None:
        yield skip("what one slot gets is not known")
    elif automatic and cache.tokens is not None and cache.slot_tokens * count > cache.tokens:
        yield warn(
            "without --parallel llama-server opens {count} slots on one pool: each reports {slot} tokens, all together "
            "have {pool}. {count} long conversations at once get about {each} each before 'Context size has been "
            "exceeded'. Say which you want: --parallel 1, or -c {wanted} for {count}",
            evidence=(seen("context asked for", total, "arguments"), seen("slots", count, "default")),
            where=argument(launch, "ctx_size"),
            count=count,
            slot=cache.slot_tokens,
            pool=cache.tokens,
            each=cache.tokens // count,
            wanted=cache.slot_tokens * count,
        )
    elif not automatic and count > 1 and cache.slot_tokens < total and not launch.get("kv_unified"):
        yield warn(
            "-c {total} is divided among --parallel {count}: one conversation gets {slot} tokens. For {total} each: -c "
            "{wanted} (cache {bytes} instead of {have})",
            evidence=(seen("context asked for", total, "arguments"), seen("slots", count, "arguments")),
            where=argument(launch, "parallel"),
            total=total,
            count=count,
            slot=cache.slot_tokens,
            wanted=total * count,
            bytes=gib((cache.bytes or 0) * count),
            have=gib(cache.bytes or 0),
        )


@check("CTX603", "cache-below-one-request", runtimes={"vllm"}, remedy="lower-max-model-len")
def cache_below_one_request(launch: Launch, forecast: Forecast) -> Iterator[Finding]:
    """The memory left for the KV cache does not hold one request of the maximum length."""
    cache, refusal = forecast.cache, forecast.refused
    if cache is None:
        yield skip("the cache of this launch was not forecast")
        return
    if refusal and refusal.code in ("MEM801", "MEM803"):
        return  # weights or working memory are the cause, and their own checks say so
    pool = pool_needed_for_one(cache)
    evidence = (
        seen("one request of the maximum length", gib(cache.bytes_per_request), "forecast"),
        seen("memory left for the cache", gib(cache.bytes) if cache.bytes is not None else "not known", "forecast"),
    )
    if (refusal and refusal.code == "CTX603") or (pool and pool[0] < pool[1] and cache.certainty == "exact"):
        fits = (refusal.detail.get("estimated_max_model_len") if refusal else None) or length_that_fits(cache)
        yield fail(
            "one request of {tokens} tokens takes {need} of cache and {have} are left for it: vLLM refuses ('To serve "
            "at least one request with the model's max seq len'). Set {flag} {fits} at most, or raise "
            "--gpu-memory-utilization, or spread over more GPUs, or --kv-cache-dtype fp8 (half the cache)",
            evidence=evidence,
            where=argument(launch, LENGTH) or Place(kind="argument", name=flag(launch, LENGTH)),
            tokens=cache.request_tokens,
            need=gib(cache.bytes_per_request),
            have=gib(cache.bytes) if cache.bytes is not None else "-",
            flag=flag(launch, LENGTH),
            fits=fits or "-",
        )
    elif pool is None:
        yield skip("the memory of the GPUs is not known, so neither is the size of the cache")
    elif isinstance(cache.certainty, Estimate) and cache.certainty.low < pool[1]:
        report = fail if cache.certainty.high < pool[1] else warn
        sure = int(cache.request_tokens * cache.certainty.low / pool[1])
        sure -= sure % (cache.block_tokens or 1)
        place = argument(launch, LENGTH) or Place(kind="argument", name=flag(launch, LENGTH))
        if sure:
            yield report(
                "one request of {tokens} tokens takes {need} blocks and the cache will have {low:.0f} to "
                "{high:.0f}: vLLM may refuse it ('To serve at least one request with the model's max seq len'). "
                "{flag} {fits} is sure to fit",
                evidence=evidence,
                where=place,
                tokens=cache.request_tokens,
                need=pool[1],
                low=cache.certainty.low,
                high=cache.certainty.high,
                flag=flag(launch, LENGTH),
                fits=sure,
            )
        else:
            yield report(
                "one request of {tokens} tokens takes {need} blocks and the cache will have none to {high:.0f}, by "
                "what CUDA graphs and profiling take: vLLM may refuse it ('To serve at least one request with the "
                "model's max seq len'). A shorter {flag}, --enforce-eager or a higher --gpu-memory-utilization "
                "makes room",
                evidence=evidence,
                where=place,
                tokens=cache.request_tokens,
                need=pool[1],
                high=cache.certainty.high,
                flag=flag(launch, LENGTH),
            )


@check("CTX604", "slot-capped-at-training-length", runtimes={"llamacpp"}, remedy="lower-context")
def slot_capped_at_training_length(launch: Launch, model: Model, forecast: Forecast) -> Iterator[Finding]:
    """More context is allocated than the model was trained for; the slot cannot use it."""
    cache, trained = forecast.cache, model.training_length
    asked = launch.get("ctx_size")
    if cache is None or not isinstance(asked, int) or asked <= 0:
        return
    if trained is None or cache.slot_tokens is None:
        yield skip("the length the model was trained for is not in its metadata")
        return
    slots = launch.get("parallel")
    divided = slots if isinstance(slots, int) and slots > 1 and not launch.get("kv_unified") else 1
    if asked // divided > trained and cache.slot_tokens <= trained:
        unused = int((cache.bytes or 0) * (1 - trained * divided / asked))
        yield warn(
            "{flag} {asked} is above the {trained} tokens the model was trained for: the cache is allocated in full "
            "({bytes}), and a slot is capped at {slot}. About {unused} are never used; set {flag} {enough}, or extend "
            "the model with --rope-scaling yarn as its page says",
            evidence=(
                seen("context asked for", asked, "arguments"),
                seen("context_length", trained, model.source.where),
            ),
            where=argument(launch, "ctx_size"),
            flag=flag(launch, "ctx_size"),
            asked=asked,
            trained=trained,
            bytes=gib(cache.bytes or 0),
            slot=cache.slot_tokens,
            unused=gib(unused),
            enough=trained * divided,
        )


@check("CTX605", "context-lowered-silently", runtimes={"llamacpp", "ollama"})
def context_lowered_silently(
    request: LaunchRequest, launch: Launch | None, model: Model | None, forecast: Forecast | None, gpus: Gpus | None
) -> Iterator[Finding]:
    """Without a context length of your own the server picks a shorter one than the model's, and says so nowhere."""
    if request.runtime == "ollama":
        if variable("OLLAMA_CONTEXT_LENGTH", request, None):
            return
        memory = [gpu.memory_total for gpu in gpus.visible] if gpus else []
        if gpus is None or None in memory:
            yield skip("Ollama's default context follows the GPU memory, which is not known")
            return
        total = sum(size for size in memory if size)
        tier = next(entry for entry in table("ollama-contexts").rows if total < entry["below_gib"] * GIB)
        version = release(request.version)
        if version and version < Version(tier["since"]):
            yield skip(
                "Ollama {version} is older than {since}: its default context does not follow the GPU memory",
                version=request.version,
                since=tier["since"],
            )
            return
        yield warn(
            "without OLLAMA_CONTEXT_LENGTH Ollama {since} and later give a context of {tokens} tokens on {memory} of "
            "GPU memory: more than fits moves layers to the CPU, less cuts long prompts. Set OLLAMA_CONTEXT_LENGTH to "
            "what you need",
            evidence=(seen("GPU memory", gib(total), "NVML"),),
            where=Place(kind="environment", name="OLLAMA_CONTEXT_LENGTH"),
            since=tier["since"],
            tokens=tier["tokens"],
            memory=gib(total),
        )
        return
    cache = forecast.cache if forecast else None
    if launch is None or launch.given("ctx_size"):
        return
    if cache is None or model is None or model.training_length is None or cache.slot_tokens is None:
        yield skip("the context this launch gets was not forecast")
    elif cache.slot_tokens < model.training_length:
        yield warn(
            "without -c llama-server fits the context into the memory it finds: {slot} tokens instead of the model's "
            "{trained}, and at the default verbosity only the slot line says so. Set -c to what you need; if it then "
            "does not fit, it says so",
            evidence=(
                seen("context of a slot", cache.slot_tokens, "forecast"),
                seen("context_length", model.training_length, model.source.where),
            ),
            where=Place(kind="argument", name="-c"),
            slot=cache.slot_tokens,
            trained=model.training_length,
        )
