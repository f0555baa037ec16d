"""The forecast of a vLLM launch: what one request reserves, what the pool holds, what the server will print."""

from __future__ import annotations

from llmdoctor_core.facts import CacheForecast, CachePart, Forecast, Gpus, Launch, Model, ModelId, Refusal, RuntimeId

from . import planner, refusals, specs
from .planner import Group, Need, Plan, RefusedError

PART = {
    "full": ("full", "tokens"),
    "latent": ("latent", "tokens"),
    "sliding": ("sliding", "sequences"),
    "sliding latent": ("sliding", "sequences"),
    "chunked": ("chunked", "sequences"),
    "state": ("state", "sequences"),
    "cross": ("cross", "sequences"),
}


def forecast(launch: Launch, model: Model, gpus: Gpus | None, draft: Model | None, kv_memory: int | None) -> Forecast:
    """Memory and cache of the launch. ``kv_memory`` (bytes on each device) replaces the predicted pool.

    Raises InputError for what this llmdoctor cannot forecast at all.
    """
    rules = planner.rules_for(launch.version)
    refused = None
    cache = None
    notes: tuple[str, ...] = ()
    try:
        refusals.check(launch, model, draft)
        layout = specs.layout(launch, model, draft, gpus)
        notes = layout.notes
        cache = cache_forecast(layout, kv_memory, rules)
    except RefusedError as error:
        refused = Refusal(code=error.code, message=error.message, detail=error.detail)
    return Forecast(
        runtime=RuntimeId(name="vllm", version=launch.version, assumed=launch.version_assumed),
        model=ModelId(name=model.name, layers=len(model.layers), origin=model.origin),
        cache=cache,
        refused=refused,
        notes=notes,
    )


def cache_forecast(layout: specs.Layout, pool: int | None, rules: planner.Rules) -> CacheForecast:
    """The cache of one engine. Raises RefusedError where vLLM refuses."""
    assert pool is not None
    plan = planner.plan(layout.stages, [pool] * len(layout.stages), layout.need, rules)
    request = plan.bytes_per_block * plan.blocks_per_request
    return CacheForecast(
        request_tokens=plan.max_model_len,
        bytes_per_request=request,
        bytes_per_token=request / plan.max_model_len,
        parts=parts(plan, layout.need, rules),
        block_tokens=layout.block_size,
        blocks=plan.blocks,
        bytes=pool,
        tokens=plan.tokens,
        max_concurrency=round(plan.concurrency, 2),
        bytes_per_block=plan.bytes_per_block,
        blocks_per_request=plan.blocks_per_request,
        lines=plan.lines,
    )


def parts(plan: Plan, need: Need, rules: planner.Rules) -> tuple[CachePart, ...]:
    return ()
