"""The forecast: memory per device and the cache it leaves, each figure exact or an estimate with bounds."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .base import Fact


class Estimate(Struct, frozen=True, kw_only=True):
    """Bounds of a figure that is measured by the runtime, not computed. Same unit as the figure (bytes, tokens)."""

    low: float
    high: float
    why: str


Certainty = Literal["exact"] | Estimate


class CachePart(Struct, frozen=True, kw_only=True):
    """Layers that keep the same kind of cache. ``bytes`` is what one request of ``request_tokens`` reserves (vLLM) or
    what the server allocates (llama.cpp); sums over parts give the total."""

    kind: str
    """``full``, ``sliding``, ``chunked``, ``latent``, ``state``, ``indexer``, ``cross``."""
    layers: int
    bytes: int
    grows_with: Literal["tokens", "sequences", "nothing"]
    window: int | None = None
    cells: int | None = None
    block_tokens: int | None = None


class CacheForecast(Struct, frozen=True, kw_only=True):
    """The cache of one engine. Sizes in bytes on one device, counts in tokens and blocks."""

    request_tokens: int
    bytes_per_request: int
    bytes_per_token: float
    parts: tuple[CachePart, ...]
    block_tokens: int | None
    """Tokens of one block as the runtime prints or sets it; None where there are no blocks."""
    blocks: int | None
    bytes: int | None
    """Bytes of the pool (vLLM) or of the attention cache (llama.cpp); None where the memory is unknown."""
    tokens: int | None
    """What this version prints as its cache size in tokens."""
    max_concurrency: float | None
    """What this version prints, rounded as it prints it."""
    slot_tokens: int | None = None
    """Tokens one conversation can use (llama.cpp)."""
    state_bytes: int = 0
    """Recurrent state, printed apart by llama.cpp."""
    bytes_per_block: int | None = None
    blocks_per_request: int | None = None
    certainty: Certainty = "exact"
    """Of ``blocks``, ``tokens`` and ``max_concurrency``; the bytes of a request are exact whenever they are given."""
    tokens_certainty: Estimate | None = None
    lines: tuple[str, ...] = ()
    """The lines the server will print, in its own words."""


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """Memory of one device, in bytes. ``headroom`` is what stays outside the budget."""

    device: int
    name: str = ""
    total: int | None
    budget: int | None
    weights: int | None
    activations: int | None
    graphs: int | None
    other: int | None
    cache: int | None
    headroom: int | None
    certainty: dict[str, Certainty]


class Refusal(Struct, frozen=True, kw_only=True):
    """Why the runtime will not start with these arguments, by the code of the condition, in its own words."""

    code: str
    message: str
    detail: dict[str, str | int | float | None] = {}


class HostSurprise(Struct, frozen=True, kw_only=True):
    """Host memory that no start-up line mentions (llama.cpp's prompt cache and context checkpoints)."""

    name: str
    bytes: int
    why: str


class RuntimeId(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    assumed: bool = False


class ModelId(Struct, frozen=True, kw_only=True):
    name: str
    layers: int
    origin: str


class Forecast(Fact, frozen=True, kw_only=True):
    """What this very launch will get. The JSON of ``llmdoctor predict``."""

    format_version: str = "1.0"
    runtime: RuntimeId
    model: ModelId
    cache: CacheForecast | None
    memory: tuple[DeviceMemory, ...] = ()
    refused: Refusal | None = None
    host: tuple[HostSurprise, ...] = ()
    notes: tuple[str, ...] = ()
    """What the reader must know to trust the figures: assumed version, unknown GPU, layer kinds left out."""
