"""The forecast of a llama-server launch: caches as allocated and printed, memory by device, host memory nobody sees."""

from __future__ import annotations

from llmdoctor_core.facts import (
    CacheForecast,
    CachePart,
    Certainty,
    Estimate,
    Forecast,
    Gpus,
    Launch,
    Model,
    ModelId,
    RuntimeId,
)

from . import cache as caches
from .builds import NEWEST_BUILD, build_of, has, unsettled
from .cache import Types
from .context import Context, context
from .devices import Split, model_buffers, split
from .fit import Fit, fitted
from .geometry import Geometry, geometry
from .host import surprises
from .placement import Drawn, Placement, second_contexts, together
from .refusals import out_of_memory, refused

LIBRARY_LINES = 4
"""The verbosity (-lv) from which newer builds print the library's lines."""
UNDRAWABLE = ("GGUF508", "MODEL513", "GGUF503")
"""Refusals after which there is no cache to forecast."""


def forecast(launch: Launch, model: Model, gpus: Gpus | None, draft: Model | None, kv_memory: int | None) -> Forecast:
    """Memory and cache of the launch. llama-server has no pool to give a size: ``kv_memory`` changes nothing here."""
    build = build_of(launch.version) or NEWEST_BUILD
    kept = geometry(model, build)
    setting = context(launch, kept, build)
    types = _types(launch, kept)
    refusal = refused(launch, model, kept, setting, types, build)
    runtime = RuntimeId(name="llama.cpp", version=launch.version, assumed=launch.version_assumed)
    identity = ModelId(name=model.name, layers=kept.layers, origin=model.origin)
    notes = _notes(launch, kept, setting, kv_memory, build)
    if refusal is not None and refusal.code in UNDRAWABLE:
        return Forecast(runtime=runtime, model=identity, cache=None, refused=refusal, notes=notes)
    spread = split(launch, kept.all_layers, gpus)
    place = Placement(launch, model, kept, types, gpus, build)
    change = _fit(launch, model, kept, setting, place, spread)
    if change.context is not None:
        setting = context(launch, kept, build, change.context[0])
    if change.gpu_layers is not None:
        spread = split(launch, kept.all_layers, gpus, change.gpu_layers[0])
    seconds = second_contexts(place, setting, draft, spread)
    memory = place.memory(setting, spread)
    for second in seconds:
        memory = together(memory, second.place.memory(second.setting, second.spread))
    own = Drawn(place=place, setting=setting, spread=spread, why="")
    return Forecast(
        runtime=runtime,
        model=identity,
        cache=_cache(own, seconds, change),
        memory=memory,
        refused=refusal or (None if change.open else out_of_memory(memory)),
        host=surprises(launch, model, kept, setting, types, spread),
        notes=notes + spread.notes + change.notes + tuple(second.why for second in seconds if second.why),
    )


def _fit(launch: Launch, model: Model, kept: Geometry, setting: Context, place: Placement, spread: Split) -> Fit:
    if not spread.devices or launch.get("fit") != "on":
        return Fit()
    if model_buffers(launch, model, spread, kept.layers) is None:
        unknown = "whether --fit changes the context or -ngl is not known without the tensors of a GGUF file"
        return Fit(notes=(unknown,), open=True)
    return fitted(launch, kept, setting, spread, place.usage, place.build)


def _types(launch: Launch, kept: Geometry) -> Types:
    value = str(launch.get("cache_type_v", "f16"))
    off = launch.get("flash_attn") == "off" or kept.architecture == "grok"
    return Types(key=str(launch.get("cache_type_k", "f16")), value=value, transposed=off)


def _cache(own: Drawn, seconds: tuple[Drawn, ...], change: Fit) -> CacheForecast:
    setting, kept = own.setting, own.place.kept
    states = caches.states(kept, setting)
    drawn = [(each, part) for each in (own, *seconds) for part in each.place.attention(each.setting)]
    total = sum(part.bytes for _, part in drawn)
    more_states = sum(caches.states(second.place.kept, second.setting).bytes for second in seconds)
    reserved = sum(part.bytes // part.streams for _, part in drawn) + states.bytes // max(setting.slots, 1)
    shown = [
        CachePart(
            kind=part.cache.kind,
            layers=len(part.cache.rows),
            bytes=part.bytes,
            grows_with="tokens" if part.cache.window is None else "sequences",
            window=part.cache.window,
            cells=part.cells,
        )
        for _, part in drawn
        if part.cache.rows
    ]
    if states.bytes + more_states:
        shown.append(
            CachePart(
                kind="state",
                layers=len(kept.states) or sum(len(part.layers) for part in kept.compressors),
                bytes=states.bytes + more_states,
                grows_with="sequences",
                cells=states.rows,
            )
        )
    return CacheForecast(
        request_tokens=setting.slot,
        bytes_per_request=reserved,
        bytes_per_token=total / setting.total,
        parts=tuple(shown),
        block_tokens=None,
        blocks=None,
        bytes=total,
        tokens=setting.total,
        max_concurrency=None,
        slot_tokens=setting.slot,
        state_bytes=states.bytes + more_states,
        certainty=_fit_certainty(change),
        lines=_lines(own, seconds),
    )


def _fit_certainty(change: Fit) -> Certainty:
    if change.context is None or change.context[0] == change.context[1]:
        return "exact"
    low, high = change.context
    return Estimate(low=low, high=high, why="--fit lowers the context to what a measured compute buffer leaves")


def _lines(own: Drawn, seconds: tuple[Drawn, ...]) -> tuple[str, ...]:
    """What the server prints of all this, in its order: overflow, caches, states, second contexts, slots."""
    setting, build = own.setting, own.place.build
    lines = [line for each in (own, *seconds) for line in _context_lines(each)]
    lines += [line for line in setting.warnings if not line.startswith("llama_context")]
    if has(build, "slots line"):
        unified = "true" if setting.unified else "false"
        lines.append(
            f"srv    load_model: initializing, n_slots = {setting.slots}, n_ctx_slot = {setting.slot}, "
            f"kv_unified = '{unified}'"
        )
    return tuple(lines)


def _context_lines(drawn: Drawn) -> list[str]:
    place, setting = drawn.place, drawn.setting
    parts = place.attention(setting)
    early, late = parts[: len(place.kept.caches)], parts[len(place.kept.caches) :]
    lines = [line for line in setting.warnings if line.startswith("llama_context")]
    lines += [caches.attention_line(part, setting, place.types, place.build) for part in early]
    if place.kept.recurrent:
        lines.append(caches.state_line(caches.states(place.kept, setting), place.kept, setting, place.build))
    lines += caches.compressor_lines(place.kept, setting)
    return lines + [caches.attention_line(part, setting, place.types, place.build) for part in late]


def _notes(launch: Launch, kept: Geometry, setting: Context, kv_memory: int | None, build: int) -> tuple[str, ...]:
    notes = list(kept.notes)
    if launch.version_assumed:
        notes.append(f"the build of llama.cpp is not known: {launch.version} is assumed, the newest this doctor knows")
    for change in unsettled(build, _that_matter(launch, kept, setting)):
        before, after = change.between
        notes.append(
            f"no source between b{before} and b{after} was read, and one of them changed this: {change.what} "
            f"(taken to hold since b{change.since})"
        )
    if kept.converted:
        notes.append("no GGUF file was read: the caches are those of a file that llama.cpp's converter writes today")
    if has(build, "quiet") and not int(launch.get("verbosity") or 0) >= LIBRARY_LINES:
        notes.append(
            "the lines of caches and buffers are hidden at the default verbosity: start with -lv 4 to see them"
        )
    if kv_memory is not None:
        notes.append("--kv-memory does not apply: llama-server allocates what -c asks for")
    if launch.get("mmproj"):
        notes.append("the multimodal projector (--mmproj) adds its weights and a compute buffer: not forecast")
    return tuple(notes)


def _that_matter(launch: Launch, kept: Geometry, setting: Context) -> tuple[str, ...]:
    """Names of the changes on which the figures of this launch depend."""
    names = ["padding 256", "streams"]
    if any(cache.window is not None for cache in kept.caches):
        names.append("window cache")
    if kept.latent:
        names.append("keys only for latent")
    if not launch.given("parallel"):
        names.append("slots automatic")
    if setting.chosen:
        names += ["context from model", "context per sequence"]
    if launch.given("spec_type"):
        names += ["rollback rows", "draft follows target"]
    return tuple(names)
