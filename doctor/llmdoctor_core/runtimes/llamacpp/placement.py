"""A context of the server laid out over devices: its caches, buffers and the second contexts of speculation."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from llmdoctor_core.facts import Certainty, DeviceMemory, Estimate, Gpus, Launch, Model

from . import cache as caches
from .builds import has
from .cache import Attention, Types
from .compute import compute_buffers
from .context import Context, context
from .devices import HOST, ModelBuffers, Split, model_buffers, split
from .geometry import Cache, Geometry, geometry, without_rows_of


class Placement:
    """The launch laid out: what its caches and buffers take at a context and a split over the devices."""

    def __init__(
        self,
        launch: Launch,
        model: Model,
        kept: Geometry,
        types: Types,
        gpus: Gpus | None,
        build: int,
        *,
        loads: bool = True,
    ) -> None:
        self.launch, self.model, self.kept, self.types, self.gpus, self.build = launch, model, kept, types, gpus, build
        self.loads = loads
        """False for a second context over weights that are loaded already."""

    def attention(self, setting: Context, layers: frozenset[int] | None = None) -> list[Attention]:
        """All attention caches; with ``layers`` the share of one device."""
        chosen: list[Cache] = [*self.kept.caches, *self.kept.late]
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
        buffers = model_buffers(self.launch, self.model, spread, self.kept.layers) if self.loads else None
        compute = compute_buffers(self.launch, self.model, self.kept, setting, self.types, spread, self.build)
        return tuple(
            self._device(number, setting, spread, buffers, compute[number])
            for number in (*range(len(spread.devices)), HOST)
        )

    def usage(self, total: int | None, gpu_layers: int | None) -> list[tuple[int, int]]:
        """What --fit measures: bytes that each device is asked for, least and most."""
        setting = context(self.launch, self.kept, self.build, total)
        spread = split(self.launch, self.kept.all_layers, self.gpus, gpu_layers)
        return [range_of(row) for row in self.memory(setting, spread) if row.device != HOST]

    def _device(
        self, number: int, setting: Context, spread: Split, buffers: ModelBuffers | None, compute: Estimate
    ) -> DeviceMemory:
        gpu = spread.devices[number] if number != HOST else None
        certainty: dict[str, Certainty] = {"cache": "exact", "activations": compute}
        weights = None if self.loads else 0
        if buffers is not None:
            weights = buffers.on_host if number == HOST else buffers.on_device[number]
            certainty["weights"] = buffers.certainty(weights)
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


class Drawn(Struct, frozen=True, kw_only=True):
    """One context of the server, laid out. ``why`` is what the reader must know of a second one."""

    place: Placement
    setting: Context
    spread: Split
    why: str


def range_of(row: DeviceMemory) -> tuple[int, int]:
    """Bytes that a device is asked for, least and most."""
    compute = row.certainty["activations"]
    assert isinstance(compute, Estimate), "the compute buffer is never exact"
    low, high = weights_range(row)
    cache = row.cache or 0
    return low + cache + int(compute.low), high + cache + int(compute.high)


def weights_range(row: DeviceMemory) -> tuple[int, int]:
    """Bytes of the weights on a device, least and most; equal where they are exact."""
    weights, certainty = row.weights or 0, row.certainty.get("weights")
    return (int(certainty.low), int(certainty.high)) if isinstance(certainty, Estimate) else (weights, weights)


def second_contexts(place: Placement, setting: Context, draft: Model | None, spread: Split) -> tuple[Drawn, ...]:
    """Contexts that speculative decoding opens beside the model's own: of a draft model, or of prediction layers."""
    launch, build = place.launch, place.build
    kinds = str(launch.get("spec_type") or "")
    types = Types(
        key=str(launch.get("spec_draft_type_k", "f16")),
        value=str(launch.get("spec_draft_type_v", "f16")),
        transposed=place.types.transposed,
    )
    found = []
    if draft is not None:
        given = dict(launch.arguments)
        given.pop("spec_type", None)
        for name in ("cpu_moe", "n_cpu_moe", "override_tensor", "rope_scaling"):
            given.pop(name, None)
        given["gpu_layers"] = replace(given["spec_draft_ngl"], name="gpu_layers")
        alone = replace(launch, arguments=given)
        kept = geometry(draft, build)
        total = setting.total if has(build, "draft follows target") else None
        why = f"the draft model {draft.name} gets a context and a cache of its own"
        if has(build, "draft needs type") and "draft" not in kinds:
            why = (
                f"the draft model {draft.name} is loaded and given a cache, then not used: --spec-type names no method"
            )
        found.append(
            Drawn(
                place=Placement(alone, draft, kept, types, place.gpus, build),
                setting=context(alone, kept, build, total),
                spread=split(alone, kept.all_layers, place.gpus),
                why=why,
            )
        )
    elif "draft-mtp" in kinds and place.kept.prediction:
        extra = replace(
            place.kept, caches=place.kept.prediction, late=(), states=(), compressors=(), recurrent=False, prediction=()
        )
        within = Placement(launch, place.model, extra, types, place.gpus, build, loads=False)
        found.append(Drawn(place=within, setting=replace(setting, rollback=0), spread=spread, why=""))
    return tuple(found)


def together(one: tuple[DeviceMemory, ...], other: tuple[DeviceMemory, ...]) -> tuple[DeviceMemory, ...]:
    """Memory of two contexts, device by device."""
    return tuple(_both(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def _both(mine: DeviceMemory, theirs: DeviceMemory) -> DeviceMemory:
    compute, more = mine.certainty["activations"], theirs.certainty["activations"]
    assert isinstance(compute, Estimate), "the compute buffer is never exact"
    assert isinstance(more, Estimate), "the compute buffer is never exact"
    both = Estimate(low=compute.low + more.low, high=compute.high + more.high, why=compute.why)
    certainty: dict[str, Certainty] = mine.certainty | {"activations": both}
    weights = None if mine.weights is None or theirs.weights is None else mine.weights + theirs.weights
    if weights is None:
        certainty.pop("weights", None)
    else:
        (low, high), (more_low, more_high) = weights_range(mine), weights_range(theirs)
        parts = (row.certainty.get("weights") for row in (mine, theirs))
        if why := "; ".join(dict.fromkeys(part.why for part in parts if isinstance(part, Estimate))):
            certainty["weights"] = Estimate(low=low + more_low, high=high + more_high, why=why)
    return replace(
        mine,
        weights=weights,
        activations=int((both.low + both.high) / 2),
        other=(mine.other or 0) + (theirs.other or 0),
        cache=(mine.cache or 0) + (theirs.cache or 0),
        certainty=certainty,
    )
