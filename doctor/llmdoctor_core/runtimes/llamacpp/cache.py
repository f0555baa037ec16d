"""Bytes of llama.cpp's caches and the lines that it prints of them, string for string.

Source: the constructors in src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp, src/llama-memory-recurrent.cpp and
src/llama-kv-cache-dsv4.cpp, llama.cpp b11434; held against real servers of b10434, b11434 and b11549.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from msgspec import Struct

from llmdoctor_core.models.gguf import StorageType, storage_type_by_name

from .builds import has
from .context import Context
from .geometry import Cache, Geometry, Row

F32 = 4


class Types(Struct, frozen=True, kw_only=True):
    """The element types of a cache, and whether V is transposed (without flash attention), which pads it."""

    key: str
    value: str
    transposed: bool = False

    @property
    def key_type(self) -> StorageType:
        return storage_type_by_name()[self.key]

    @property
    def value_type(self) -> StorageType:
        return storage_type_by_name()[self.value]


class Attention(Struct, frozen=True, kw_only=True):
    """One attention cache as allocated; bytes over all its layers and streams."""

    cache: Cache
    cells: int
    streams: int
    key_bytes: int
    value_bytes: int

    @property
    def bytes(self) -> int:
        return self.key_bytes + self.value_bytes


class States(Struct, frozen=True, kw_only=True):
    """The recurrent states as allocated."""

    rows: int
    """Rows a layer: sequences times 1 + rollback."""
    convolution_bytes: int
    recurrent_bytes: int
    compressor_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.convolution_bytes + self.recurrent_bytes + self.compressor_bytes


def cells(cache: Cache, context: Context, *, full_window: bool, build: int) -> int:
    """Cells of one stream of the cache."""
    if cache.window is not None and not full_window and has(build, "window cache"):
        held = cache.window * _sequences_in(cache, context, build) + context.ubatch
        if has(build, "padding 256"):
            return _pad(min(context.sequence, held), 256)
        return min(context.sequence, _pad(held, context.padding))
    if cache.ratio > 1:
        return _pad(max(1, -(-context.sequence // cache.ratio)), 256)
    return context.sequence


def _sequences_in(cache: Cache, context: Context, build: int) -> int:
    """Sequences that share one stream, each with a window of its own in it."""
    if not has(build, "streams"):
        return context.slots
    return context.slots if context.unified and not cache.per_sequence else 1


def _pad(count: int, to: int) -> int:
    return -(-count // to) * to


def attention(
    cache: Cache, context: Context, types: Types, *, widest_value: int, full_window: bool, build: int
) -> Attention:
    """The cache as the server allocates it. ``widest_value``: elements that a transposed V is padded to."""
    count = cells(cache, context, full_window=full_window, build=build)
    streams = context.slots if cache.per_sequence else context.streams
    key = sum(types.key_type.row(row.key) for row in cache.rows)
    value = sum(types.value_type.row(_value_width(row, types, widest_value)) for row in cache.rows)
    return Attention(
        cache=cache,
        cells=count,
        streams=streams,
        key_bytes=key * count * streams,
        value_bytes=value * count * streams,
    )


def _value_width(row: Row, types: Types, widest_value: int) -> int:
    return widest_value if types.transposed and row.value else row.value


def states(geometry: Geometry, context: Context) -> States:
    """The recurrent states of all layers: f32, one row a sequence and one more for every token to roll back."""
    rows = context.slots * (1 + context.rollback)
    return States(
        rows=rows,
        convolution_bytes=sum(state.convolution for state in geometry.states) * F32 * rows,
        recurrent_bytes=sum(state.recurrent for state in geometry.states) * F32 * rows,
        compressor_bytes=sum(part.row_bytes * len(part.layers) for part in geometry.compressors) * rows,
    )


def attention_line(part: Attention, context: Context, types: Types, build: int) -> str:
    """``llama_kv_cache: size = ...`` as that build prints it."""
    name = "llama_kv_cache" if build >= 6400 else "llama_kv_cache_unified"
    sequences = f"{context.slots:2d}/{part.streams} seqs" if has(build, "streams") else f"{context.slots:2d} seqs"
    return (
        f"{name}: size = {mib(part.bytes)} MiB ({part.cells:6d} cells, {len(part.cache.rows):3d} layers, {sequences}), "
        f"K ({types.key}): {mib(part.key_bytes)} MiB, V ({types.value}): {mib(part.value_bytes)} MiB"
    )


def state_line(part: States, geometry: Geometry, context: Context, build: int) -> str:
    """``llama_memory_recurrent: size = ...`` as that build prints it; its layers are those of the whole model."""
    rollback = f" {context.rollback:2d} rs_seq" if has(build, "rollback rows") else ""
    embedding = f", P (f32): {mib(0)} MiB" if has(build, "per-layer embedding row") else ""
    layers = geometry.layers if build >= 9553 else geometry.all_layers
    size = part.convolution_bytes + part.recurrent_bytes
    return (
        f"llama_memory_recurrent: size = {mib(size)} MiB ({context.slots:6d} cells, {layers:3d} layers, "
        f"{context.slots:2d} seqs{rollback}), R (f32): {mib(part.convolution_bytes)} MiB, "
        f"S (f32): {mib(part.recurrent_bytes)} MiB{embedding}"
    )


def compressor_lines(geometry: Geometry, context: Context) -> list[str]:
    """The lines of DeepSeek V4's compressor states."""
    rows = context.slots * (1 + context.rollback)
    return [
        f"llama_dsv4_comp_state: {part.name} ratio = {part.ratio}, state = {part.size} x {part.width}, "
        f"streams = {context.slots}, rs_seq = {context.rollback}, layers = {len(part.layers)}, "
        f"size = {part.row_bytes * len(part.layers) * rows / 2**20:7.2f} MiB"
        for part in geometry.compressors
    ]


def mib(size: int) -> str:
    """Bytes as C prints them here: as float, over 1024 x 1024, ``%7.2f``."""
    (single,) = struct.unpack("f", struct.pack("f", size))
    return f"{single / 2**20:7.2f}"


def divisor_problem(geometry: Geometry, types: Types, *, flash: bool) -> str | None:
    """llama_init_from_model's error for a quantised cache type whose block does not divide the head size, or None."""
    checks: tuple[tuple[str, StorageType, frozenset[int]], ...] = (
        ("K", types.key_type, geometry.key_heads),
        ("V", types.value_type, geometry.value_heads),
    )
    for name, kind, heads in checks:
        wrong = next((head for head in sorted(heads) if head % kind.block), None)
        if flash and wrong is not None:
            return (
                f"{name} cache type {kind.name} with block size {kind.block} does not divide "
                f"n_embd_head_{name.lower()}={wrong}"
            )
    return None


def row_bytes(types: Types, widest_value: int) -> Callable[[Row], int]:
    """Bytes of one cell of a layer."""

    def size(row: Row) -> int:
        return types.key_type.row(row.key) + types.value_type.row(_value_width(row, types, widest_value))

    return size
