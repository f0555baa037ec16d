"""The forecast of a llama-server launch: caches as allocated and printed, memory by device, host memory nobody sees."""

from __future__ import annotations

import json
from functools import lru_cache

from llmdoctor_core.facts import (
    CacheForecast,
    CachePart,
    Certainty,
    DeviceMemory,
    Estimate,
    Forecast,
    Gpus,
    HostSurprise,
    Launch,
    Model,
    ModelId,
    Refusal,
    RuntimeId,
)

from . import cache as caches
from .arguments import Span, alive
from .builds import DATA, NEWEST_BUILD, build_of, has
from .cache import Attention, States, Types
from .compute import compute_buffers
from .context import MAX_SEQUENCES, Context, context
from .devices import HOST, ModelBuffers, Split, model_buffers, split
from .fit import Fit, fitted
from .geometry import Cache, Geometry, architecture_of, geometry, without_rows_of

MIB = 1 << 20


def forecast(launch: Launch, model: Model, gpus: Gpus | None, draft: Model | None, kv_memory: int | None) -> Forecast:
    """Memory and cache of the launch. llama-server has no pool to give a size: ``kv_memory`` changes nothing here."""
    build = build_of(launch.version) or NEWEST_BUILD
    kept = geometry(model, build)
    setting = context(launch, kept, build)
    types = _types(launch, kept)
    refused = _refused(launch, model, kept, setting, types, build)
    runtime = RuntimeId(name="llama.cpp", version=launch.version, assumed=launch.version_assumed)
    identity = ModelId(name=model.name, layers=kept.layers, origin=model.origin)
    notes = _notes(launch, model, kept, kv_memory)
    if refused is not None and refused.code in ("GGUF508", "MODEL513", "GGUF503"):
        return Forecast(runtime=runtime, model=identity, cache=None, refused=refused, notes=notes)
    spread = split(launch, kept.all_layers, gpus)
    place = Placement(launch, model, kept, types, gpus, build)
    change = fitted(launch, kept, setting, spread, place.usage, build)
    if change.context is not None:
        setting = context(launch, kept, build, change.context[0])
    if change.gpu_layers is not None:
        spread = split(launch, kept.all_layers, gpus, change.gpu_layers[0])
    memory = place.memory(setting, spread)
    parts = place.attention(setting)
    return Forecast(
        runtime=runtime,
        model=identity,
        cache=_cache(kept, setting, types, parts, caches.states(kept, setting), build, change),
        memory=memory,
        refused=refused or _out_of_memory(memory),
        host=_surprises(launch, kept, setting, types),
        notes=notes + spread.notes + change.notes,
    )


class Placement:
    """The launch laid out: what its caches and buffers take at a context and a split over the devices."""

    def __init__(
        self, launch: Launch, model: Model, kept: Geometry, types: Types, gpus: Gpus | None, build: int
    ) -> None:
        self.launch, self.model, self.kept, self.types, self.gpus, self.build = launch, model, kept, types, gpus, build

    def attention(self, setting: Context, layers: frozenset[int] | None = None) -> list[Attention]:
        """All attention caches, the prediction context's last; with ``layers`` the share of one device."""
        chosen: list[Cache] = [*self.kept.caches, *self.kept.late]
        if "draft-mtp" in str(self.launch.get("spec_type") or ""):
            chosen += self.kept.prediction
        if layers is not None:
            chosen = [without_rows_of(cache, layers) for cache in chosen]
        return [
            caches.attention(
                cache,
                setting,
                self.types,
                widest_value=self.kept.widest_value,
                full_window=bool(self.launch.get("swa_full")),
                build=self.build,
            )
            for cache in chosen
        ]

    def held(self, setting: Context, layers: frozenset[int]) -> int:
        """Bytes of all caches and states of these layers."""
        rows = setting.slots * (1 + setting.rollback)
        states = sum(
            (state.convolution + state.recurrent) * caches.F32 for state in self.kept.states if state.layer in layers
        )
        states += sum(part.row_bytes * len(layers & set(part.layers)) for part in self.kept.compressors)
        return sum(part.bytes for part in self.attention(setting, layers)) + states * rows

    def memory(self, setting: Context, spread: Split) -> tuple[DeviceMemory, ...]:
        """Memory of every device and, last, of the host."""
        buffers = model_buffers(self.launch, self.model, spread, self.kept.layers)
        compute = compute_buffers(self.launch, self.model, self.kept, setting, self.types, spread, self.build)
        return tuple(
            self._device(number, setting, spread, buffers, compute[number])
            for number in (*range(len(spread.devices)), HOST)
        )

    def usage(self, total: int | None, gpu_layers: int | None) -> list[tuple[int, int]]:
        """What --fit measures: bytes that each device is asked for, least and most."""
        setting = context(self.launch, self.kept, self.build, total)
        spread = split(self.launch, self.kept.all_layers, self.gpus, gpu_layers)
        return [_range(row) for row in self.memory(setting, spread) if row.device != HOST]

    def _device(
        self, number: int, setting: Context, spread: Split, buffers: ModelBuffers | None, compute: Estimate
    ) -> DeviceMemory:
        gpu = spread.devices[number] if number != HOST else None
        certainty: dict[str, Certainty] = {"cache": "exact", "activations": compute}
        weights = None
        if buffers is not None:
            weights = buffers.on_host if number == HOST else buffers.on_device[number]
            most = buffers.on_host + sum(buffers.on_device)
            certainty["weights"] = "exact" if buffers.exact else Estimate(low=0, high=most, why=buffers.why)
        total = gpu.memory_total if gpu else None
        budget = gpu.memory_free if gpu and gpu.memory_free is not None else total
        return DeviceMemory(
            device=number,
            name="CPU" if gpu is None else f"CUDA{number}",
            total=total,
            budget=budget,
            weights=weights,
            activations=int((compute.low + compute.high) / 2),
            graphs=None,
            other=self.model.vocabulary * setting.slots * caches.F32 if number == HOST else 0,
            cache=self.held(setting, spread.layers_on(number)),
            headroom=None if total is None or budget is None else total - budget,
            certainty=certainty,
        )


def _range(row: DeviceMemory) -> tuple[int, int]:
    known = (row.weights or 0) + (row.cache or 0)
    compute = row.certainty["activations"]
    assert isinstance(compute, Estimate), "the compute buffer is never exact"
    return known + int(compute.low), known + int(compute.high)


def _out_of_memory(memory: tuple[DeviceMemory, ...]) -> Refusal | None:
    """The first device that cannot hold even the least of what it is asked for."""
    for row in memory:
        if row.device == HOST or row.budget is None or row.weights is None:
            continue
        least, _ = _range(row)
        if least > row.budget:
            weights = row.weights > row.budget
            return Refusal(
                code="MEM801" if weights else "MEM803",
                message=f"{row.name}: cudaMalloc failed: out of memory",
                detail={"device": row.name, "needed": least, "free": row.budget, "weights": row.weights},
            )
    return None


def _types(launch: Launch, kept: Geometry) -> Types:
    value = str(launch.get("cache_type_v", "f16"))
    off = launch.get("flash_attn") == "off" or kept.architecture == "grok"
    return Types(key=str(launch.get("cache_type_k", "f16")), value=value, transposed=off)


def _cache(
    kept: Geometry,
    setting: Context,
    types: Types,
    parts: list[Attention],
    states: States,
    build: int,
    change: Fit,
) -> CacheForecast:
    total = sum(part.bytes for part in parts)
    reserved = sum(part.bytes // part.streams for part in parts) + states.bytes // max(setting.slots, 1)
    shown = [
        CachePart(
            kind=part.cache.kind,
            layers=len(part.cache.rows),
            bytes=part.bytes,
            grows_with="tokens" if part.cache.window is None else "sequences",
            window=part.cache.window,
            cells=part.cells,
        )
        for part in parts
        if part.cache.rows
    ]
    if states.bytes:
        shown.append(
            CachePart(
                kind="state",
                layers=len(kept.states) or sum(len(part.layers) for part in kept.compressors),
                bytes=states.bytes,
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
        state_bytes=states.bytes,
        certainty=_fit_certainty(change),
        lines=_lines(kept, setting, types, parts, states, build),
    )


def _fit_certainty(change: Fit) -> Certainty:
    if change.context is None or change.context[0] == change.context[1]:
        return "exact"
    low, high = change.context
    return Estimate(low=low, high=high, why="--fit lowers the context to what a measured compute buffer leaves")


def _lines(
    kept: Geometry, setting: Context, types: Types, parts: list[Attention], states: States, build: int
) -> tuple[str, ...]:
    """What the server prints of all this, in its order: overflow, caches, states, late caches, slots."""
    overflow = [line for line in setting.warnings if line.startswith("llama_context")]
    capping = [line for line in setting.warnings if not line.startswith("llama_context")]
    early, late = parts[: len(kept.caches)], parts[len(kept.caches) :]
    lines = overflow + [caches.attention_line(part, setting, types, build) for part in early]
    if kept.recurrent:
        lines.append(caches.state_line(states, kept, setting, build))
    lines += caches.compressor_lines(kept, setting)
    lines += [caches.attention_line(part, setting, types, build) for part in late]
    lines += capping
    if has(build, "slots line"):
        unified = "true" if setting.unified else "false"
        lines.append(
            f"srv    load_model: initializing, n_slots = {setting.slots}, n_ctx_slot = {setting.slot}, "
            f"kv_unified = '{unified}'"
        )
    return tuple(lines)


def _surprises(launch: Launch, kept: Geometry, setting: Context, types: Types) -> tuple[HostSurprise, ...]:
    """Host memory that no line at the start mentions (tools/server/server-context.cpp, server-task.cpp)."""
    found = []
    limit = int(launch.get("cache_ram") or 0)
    if limit > 0:
        found.append(
            HostSurprise(
                name="prompt cache",
                bytes=limit * MIB,
                why="the server keeps the states of finished conversations in host memory up to this limit "
                "(--cache-ram, 0 switches it off)",
            )
        )
    elif limit < 0:
        found.append(
            HostSurprise(name="prompt cache", bytes=0, why="--cache-ram -1: host memory without a limit is filled")
        )
    count = int(launch.get("ctx_checkpoints") or 0)
    each = checkpoint_bytes(launch, kept, setting, types)
    if count > 0 and each:
        found.append(
            HostSurprise(
                name="context checkpoints",
                bytes=count * setting.slots * each,
                why=f"up to {count} checkpoints a slot (--ctx-checkpoints) of {each / MIB:.2f} MiB each in host memory",
            )
        )
    return tuple(found)


def checkpoint_bytes(launch: Launch, kept: Geometry, setting: Context, types: Types) -> int:
    """One context checkpoint: the window of the sliding layers, or one sequence's recurrent state; 0 without either."""
    size = caches.row_bytes(types, kept.widest_value)
    window = 0
    if not launch.get("swa_full"):
        window = sum(
            size(row) * min(cache.window or 0, setting.slot)
            for cache in kept.caches
            if cache.window is not None
            for row in cache.rows
        )
    return window + sum(state.convolution + state.recurrent for state in kept.states) * caches.F32


def _refused(
    launch: Launch, model: Model, kept: Geometry, setting: Context, types: Types, build: int
) -> Refusal | None:
    """The first reason why the server will not start, in the order in which it would say so."""
    for problem in launch.problems:
        if problem.kind in ("unknown", "invalid", "incomplete"):
            return Refusal(code="ARG901", message=f"{problem.flag}: {problem.detail}", detail={"flag": problem.flag})
        if problem.kind in ("removed", "renamed"):
            return Refusal(code="ARG902", message=f"{problem.flag}: {problem.detail}", detail={"flag": problem.flag})
    for file in model.source.files:
        if file.problem == "missing":
            return Refusal(
                code="GGUF505", message=f"failed to load GGUF split from {file.name}", detail={"file": file.name}
            )
        if file.problem == "truncated":
            return Refusal(
                code="GGUF506",
                message="tensor data is not within the file bounds, model is corrupted or incomplete",
                detail={"file": file.name, "bytes": file.bytes, "expected": file.expected_bytes},
            )
    name = architecture_of(model)
    if name is None:
        return Refusal(
            code="MODEL513",
            message=f"llama.cpp's converter knows no {model.architecture}",
            detail={"architecture": model.architecture},
        )
    if knows_architecture(name, build) is False:
        return Refusal(
            code="GGUF503",
            message=f"unknown model architecture: '{name}'",
            detail={"architecture": name, "build": f"b{build}"},
        )
    if setting.slots > MAX_SEQUENCES:
        return Refusal(
            code="ARG903",
            message=f"n_seq_max must be <= {MAX_SEQUENCES}",
            detail={"parallel": setting.slots},
        )
    return _unusable_type(launch, kept, types)


def _unusable_type(launch: Launch, kept: Geometry, types: Types) -> Refusal | None:
    """What llama_init_from_model says of the cache types."""
    detail: dict[str, str | int | float | None] = {"cache_type_k": types.key, "cache_type_v": types.value}
    if kept.latent and types.key != types.value:
        message = f"model does not support different K ({types.key}) and V ({types.value}) cache types"
        return Refusal(code="GGUF508", message=message, detail=detail | {"why": "latent"})
    if types.value_type.block > 1 and types.transposed:
        message = "quantized V cache requires flash_attn to be enabled"
        return Refusal(code="GGUF508", message=message, detail=detail | {"why": "flash attention"})
    problem = caches.divisor_problem(kept, types, flash=not types.transposed)
    if problem:
        return Refusal(code="GGUF508", message=problem, detail=detail | {"why": "head size"})
    return None


@lru_cache(maxsize=2)
def _known(table: str) -> dict[str, Span]:
    rows = json.loads((DATA / f"{table}.json").read_text())["rows"]
    return {name: (span[0], span[1]) for name, span in rows.items()}


def knows_architecture(name: str, build: int) -> bool | None:
    """Whether the build loads general.architecture ``name``; None where the build is newer than every tree read."""
    return _knows("architectures", name, build)


def knows_pre_tokenizer(name: str, build: int) -> bool | None:
    """Whether the build knows tokenizer.ggml.pre ``name``; None where the build is newer than every tree read."""
    return _knows("pre_tokenizers", name, build)


def _knows(table: str, name: str, build: int) -> bool | None:
    span = _known(table).get(name)
    if span is None:
        return None if build > NEWEST_BUILD else False
    return alive(span, build)


def _notes(launch: Launch, model: Model, kept: Geometry, kv_memory: int | None) -> tuple[str, ...]:
    notes = list(kept.notes)
    if launch.version_assumed:
        notes.append(f"the build of llama.cpp is not known: {launch.version} is assumed, the newest this doctor knows")
    if kept.converted:
        notes.append("no GGUF file was read: the caches are those of a file that llama.cpp's converter writes today")
    if kv_memory is not None:
        notes.append("--kv-memory does not apply: llama-server allocates what -c asks for")
    return tuple(notes)
