"""What llama.cpp keeps of a model, as the caches it creates: of a GGUF header, or of what its converter would write.

Source: ``llama_model::create_memory`` (src/llama-model.cpp) and the cache constructors of src/llama-kv-cache*.cpp and
src/llama-memory-*.cpp, llama.cpp b11434.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from llmdoctor_core.facts import (
    ChunkedLocal,
    Compressed,
    Full,
    Indexer,
    Latent,
    Layer,
    Model,
    Nothing,
    SharedWith,
    SlidingWindow,
    State,
)
from llmdoctor_core.models.gguf_describe import architectures

from .builds import DATA, has

LATENT = frozenset(
    {"deepseek2", "deepseek32", "glm-dsa", "mistral4", "kimi-linear", "kimi-k3", "bailingmoe3", "dots3note", "hy_v4",
     "glm5-next"}
)  # fmt: skip
"""Architectures whose converter stores MLA compressed (attention.key_length_mla); minicpm3 and plm expand it."""
TOKENS_OF_CONTEXT = (
    "max_position_embeddings", "n_ctx", "n_positions", "max_length", "max_sequence_length", "model_max_length",
)  # fmt: skip
"""Keys of config.json that become context_length, the first one present (conversion/base.py, b11434)."""


class Row(Struct, frozen=True, kw_only=True):
    """Elements that one layer keeps in one cell of a cache."""

    layer: int
    key: int
    value: int


Kind = Literal["full", "sliding", "chunked", "latent", "indexer", "compressed"]


class Cache(Struct, frozen=True, kw_only=True):
    """One ``llama_kv_cache``: its layers, and how many cells it gets.

    ``window`` None: as many cells as a sequence has context, divided by ``ratio``; else window and batch.
    ``per_sequence``: one stream a sequence even with a unified cache (DeepSeek V4).
    """

    kind: Kind
    rows: tuple[Row, ...]
    window: int | None = None
    ratio: int = 1
    per_sequence: bool = False


class StateRow(Struct, frozen=True, kw_only=True):
    """Elements (f32) of the recurrent state that one layer keeps for one sequence: convolution and recurrent part."""

    layer: int
    convolution: int
    recurrent: int


class Compressor(Struct, frozen=True, kw_only=True):
    """DeepSeek V4's compressor state: ``layers`` keep two blocks of ``size`` x ``width`` f32 for each sequence."""

    name: str
    ratio: int
    size: int
    width: int
    layers: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes that one layer keeps for one sequence."""
        return 2 * self.size * self.width * 4


class Rope(Struct, frozen=True, kw_only=True):
    """How the file scales positions: ``yarn`` or ``linear``, by ``factor``, from ``original`` tokens."""

    kind: str = "linear"
    factor: float = 1.0
    original: int | None = None


class Geometry(Struct, frozen=True, kw_only=True):
    """All caches of one model in the order llama.cpp creates and prints them."""

    architecture: str
    layers: int
    """Layers without those of multi-token prediction: what the RS line prints."""
    all_layers: int
    caches: tuple[Cache, ...]
    late: tuple[Cache, ...] = ()
    """Created after the recurrent states (indexers of hybrid models)."""
    states: tuple[StateRow, ...] = ()
    compressors: tuple[Compressor, ...] = ()
    prediction: tuple[Cache, ...] = ()
    """What a multi-token-prediction context keeps: the extra layers alone."""
    recurrent: bool = False
    """The model has a recurrent memory and prints its line."""
    latent: bool = False
    """Keys only: K and V types must be equal."""
    key_heads: frozenset[int] = frozenset()
    value_heads: frozenset[int] = frozenset()
    """Head sizes of all layers, which a quantised cache type's block must divide."""
    widest_value: int = 0
    rollback: bool = False
    experts: bool = False
    training_length: int | None = None
    rope: Rope = Rope()
    converted: bool = False
    """True where the file is not known and these are the caches of a file that today's converter writes."""
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def converter_names() -> dict[str, str]:
    """llama.cpp's architecture by Hugging Face class name, as its converter registers them."""
    table: dict[str, str] = json.loads((DATA / "converters.json").read_text())["rows"]
    return table


def architecture_of(model: Model) -> str | None:
    """llama.cpp's name of the model's architecture, or None where its converter does not know the class."""
    if model.source.gguf is not None:
        return model.architecture
    return converter_names().get(model.architecture)


def geometry(model: Model, build: int) -> Geometry:
    """The caches that the build creates for the model."""
    architecture = architecture_of(model) or ""
    table = architectures()
    slides = architecture in table["sliding"]
    hybrid = architecture in table["recurrent"]
    rule: dict[str, Any] = table["recurrent"].get(architecture, {})
    builder = _Builder(
        architecture,
        slides,
        keys_only=has(build, "keys only for latent"),
        hybrid=hybrid,
        training=training_length(model),
    )
    main = [builder.rows(number, layer) for number, layer in enumerate(model.layers)]
    trunk = len(model.layers)
    extra = [builder.rows(trunk + number, layer) for number, layer in enumerate(model.mtp_layers)]
    uncached = all(isinstance(cache, Nothing) for layer in model.layers for cache in layer.caches)
    # DeepSeek V4's window cache spans the prediction layers too (filter_raw of src/llama-kv-cache-dsv4.cpp).
    kept = main + extra if architecture == "deepseek4" else main
    caches, late = ((), ()) if uncached else builder.caches(kept, always_full=rule.get("rule") != "all")
    prediction = builder.caches(extra, always_full=True)[0] if extra and kept is main else ()
    rows = [row for kept in (*main, *extra) for row in kept.attention]
    return Geometry(
        architecture=architecture,
        layers=trunk,
        all_layers=trunk + len(model.mtp_layers),
        caches=caches,
        late=late,
        states=tuple(state for kept in main for state in kept.states),
        compressors=_compressors(model),
        prediction=tuple(cache for cache in prediction if cache.rows),
        recurrent=hybrid and architecture != "deepseek4",
        latent=any(isinstance(cache, Latent | Compressed) for layer in model.layers for cache in layer.caches)
        and (architecture in LATENT or architecture == "deepseek4"),
        key_heads=frozenset(builder.key_heads),
        value_heads=frozenset(builder.value_heads),
        widest_value=max((row.value for row in rows), default=0),
        rollback=rule.get("rollback", architecture == "deepseek4"),
        experts=model.experts > 0,
        training_length=training_length(model),
        rope=_rope(model),
        converted=model.source.gguf is None,
        notes=tuple(dict.fromkeys(builder.notes)),
    )


def training_length(model: Model) -> int | None:
    """n_ctx_train: context_length of the file, or what the converter would write there."""
    if model.source.gguf is not None:
        return model.training_length
    config = model.config
    for place in (config, *(config.get(name) for name in ("text_config", "llm_config", "language_config"))):
        if isinstance(place, dict):
            for key in TOKENS_OF_CONTEXT:
                value = place.get(key)
                if isinstance(value, int) and value > 0:
                    return value
    return model.training_length


def _rope(model: Model) -> Rope:
    """The rope scaling keys of a GGUF file (``load_hparams``); a config.json is taken as unscaled."""
    keys, prefix = model.source.gguf or {}, f"{model.architecture}.rope.scaling."
    kind, factor = keys.get(prefix + "type"), keys.get(prefix + "factor")
    original = keys.get(prefix + "original_context_length")
    return Rope(
        kind=kind if isinstance(kind, str) else "linear",
        factor=float(factor) if isinstance(factor, int | float) and factor > 0 else 1.0,
        original=original if isinstance(original, int) and original > 0 else None,
    )


class _Kept(Struct):
    """What one layer keeps, by cache kind."""

    full: list[Row] = []
    sliding: list[Row] = []
    indexer: list[Row] = []
    mild: list[Row] = []
    strong: list[Row] = []
    states: list[StateRow] = []
    window: int | None = None
    kind: str = "full"

    @property
    def attention(self) -> list[Row]:
        return self.full + self.sliding


class _Builder:
    def __init__(self, architecture: str, slides: bool, *, keys_only: bool, hybrid: bool, training: int | None) -> None:
        self.architecture, self.slides, self.keys_only, self.hybrid = architecture, slides, keys_only, hybrid
        self.training = training
        self.key_heads: set[int] = set()
        self.value_heads: set[int] = set()
        self.notes: list[str] = []

    def rows(self, number: int, layer: Layer) -> _Kept:
        kept = _Kept(full=[], sliding=[], indexer=[], mild=[], strong=[], states=[])
        for cache in layer.caches:
            self._keep(kept, number, cache)
        return kept

    def _keep(self, kept: _Kept, number: int, cache: Any) -> None:
        if isinstance(cache, Full):
            kept.full.append(self._row(number, cache.kv_heads, cache.key_dim, cache.value_dim))
        elif isinstance(cache, SlidingWindow | ChunkedLocal):
            self._slide(kept, number, cache)
        elif isinstance(cache, Latent):
            self._latent(kept, number, cache)
        elif isinstance(cache, State):
            kept.states.append(_state_row(number, cache))
        elif isinstance(cache, Indexer):
            # minimax-m3 keeps a V of the main head size beside the index key (src/llama-kv-cache-msa.cpp).
            value = max(self.value_heads, default=0) if self.architecture == "minimax-m3" else 0
            kept.indexer.append(Row(layer=number, key=cache.key_dim * cache.heads, value=value))
        elif isinstance(cache, Compressed):
            self._compress(kept, number, cache)
        elif isinstance(cache, Nothing) and not self.hybrid:
            # A layer without attention still counts as one of the cache's layers (deci), with rows of no width.
            kept.full.append(Row(layer=number, key=0, value=0))
        elif not isinstance(cache, Nothing | SharedWith):
            self.notes.append(f"the {type(cache).__name__.lower()} cache of the model is not forecast")

    def _row(self, number: int, kv_heads: int, key_dim: int, value_dim: int) -> Row:
        self.key_heads.add(key_dim)
        self.value_heads.add(value_dim)
        return Row(layer=number, key=kv_heads * key_dim, value=kv_heads * value_dim)

    def _slide(self, kept: _Kept, number: int, cache: SlidingWindow | ChunkedLocal) -> None:
        row = self._row(number, cache.kv_heads, cache.key_dim, cache.value_dim)
        window = cache.window if isinstance(cache, SlidingWindow) else cache.chunk
        if not self.slides:
            kept.full.append(row)
            if self.training is None or window < self.training:
                self.notes.append(
                    f"the sliding window of {window} is lost: llama.cpp's {self.architecture} does not read it and "
                    "keeps every token"
                )
            return
        kept.sliding.append(row)
        kept.window = architectures()["sliding"][self.architecture].get("forced") or window
        kept.kind = "chunked" if architectures()["sliding"][self.architecture].get("chunked") else "sliding"

    def _latent(self, kept: _Kept, number: int, cache: Latent) -> None:
        if self.architecture not in LATENT:
            kept.full.append(self._row(number, cache.heads, cache.key_dim, cache.value_dim))
            self.notes.append(f"llama.cpp's {self.architecture} keeps the heads of its latent attention expanded")
            return
        key = cache.rank + cache.rope_dim
        self.key_heads.add(key)
        self.value_heads.add(cache.rank)
        kept.kind = "latent"
        kept.full.append(Row(layer=number, key=key, value=0 if self.keys_only else cache.rank))

    def _compress(self, kept: _Kept, number: int, cache: Compressed) -> None:
        self.key_heads.add(cache.dim)
        kept.sliding.append(Row(layer=number, key=cache.dim, value=0))
        kept.window = cache.window
        if cache.ratio:
            (kept.mild if cache.ratio <= 4 else kept.strong).append(Row(layer=number, key=cache.dim, value=0))
        if cache.index_dim:
            kept.indexer.append(Row(layer=number, key=cache.index_dim, value=0))

    def caches(self, kept: list[_Kept], *, always_full: bool) -> tuple[tuple[Cache, ...], tuple[Cache, ...]]:
        """The caches before and after the recurrent states."""
        full = tuple(row for layer in kept for row in layer.full)
        sliding = tuple(row for layer in kept for row in layer.sliding)
        indexer = tuple(row for layer in kept for row in layer.indexer)
        if self.architecture == "deepseek4":
            return _compressed_caches(kept, sliding, indexer), ()
        found = []
        if full or sliding or always_full:
            latent = any(layer.kind == "latent" for layer in kept)
            found.append(Cache(kind="latent" if latent else "full", rows=full))
        index = (Cache(kind="indexer", rows=indexer),) if indexer else ()
        if not self.hybrid:
            found += index
        if sliding:
            window = max(layer.window or 0 for layer in kept)
            kind: Kind = "chunked" if any(layer.kind == "chunked" for layer in kept) else "sliding"
            found.append(Cache(kind=kind, rows=sliding, window=window))
        return tuple(found), index if self.hybrid else ()


def _state_row(number: int, state: State) -> StateRow:
    """Elements of n_embd_r and n_embd_s (src/llama-hparams.cpp); linear attention alone has no convolution."""
    sizes = [math.prod(shape) for shape in state.shapes]
    if state.kind == "linear":
        return StateRow(layer=number, convolution=0, recurrent=sum(sizes))
    return StateRow(layer=number, convolution=sizes[0], recurrent=sum(sizes[1:]))


def _compressed_caches(kept: list[_Kept], sliding: tuple[Row, ...], indexer: tuple[Row, ...]) -> tuple[Cache, ...]:
    """DeepSeek V4: window, compressed by 4 and by 128, indexer; always per sequence (src/llama-kv-cache-dsv4.cpp)."""
    mild = tuple(row for layer in kept for row in layer.mild)
    strong = tuple(row for layer in kept for row in layer.strong)
    window = max((layer.window or 0 for layer in kept), default=0)
    return (
        Cache(kind="full", rows=(), per_sequence=True),
        Cache(kind="sliding", rows=sliding, window=window, per_sequence=True),
        Cache(kind="compressed", rows=mild, ratio=4, per_sequence=True),
        Cache(kind="compressed", rows=strong, ratio=128, per_sequence=True),
        Cache(kind="indexer", rows=indexer, ratio=4, per_sequence=True),
    )


def _compressors(model: Model) -> tuple[Compressor, ...]:
    """llama_dsv4_comp_state, by its constructor calls in src/llama-kv-cache-dsv4.cpp."""
    compressed = [
        (number, cache)
        for number, layer in enumerate(model.layers)
        for cache in layer.caches
        if isinstance(cache, Compressed) and cache.ratio
    ]
    if not compressed:
        return ()
    dim = compressed[0][1].dim
    index = max(cache.index_dim for _, cache in compressed)
    mild = tuple(number for number, cache in compressed if cache.ratio == 4)
    strong = tuple(number for number, cache in compressed if cache.ratio == 128)
    return (
        Compressor(name="csa", ratio=4, size=8, width=2 * dim, layers=mild),
        Compressor(name="hca", ratio=128, size=128, width=dim, layers=strong),
        Compressor(name="lid", ratio=4, size=8, width=2 * index, layers=mild),
    )


def without_rows_of(cache: Cache, layers: frozenset[int]) -> Cache:
    """The cache with the rows of these layers alone: what one device holds of it."""
    return replace(cache, rows=tuple(row for row in cache.rows if row.layer in layers))
