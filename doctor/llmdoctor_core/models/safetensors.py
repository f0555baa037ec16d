"""Reads safetensors headers, local or over byte ranges, and sums the tensors they list by kind and layer.

Format (safetensors 0.4 and later): 8 bytes little-endian length, a JSON header of that length, then the data.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..errors import InputError
from ..facts import ModelFile, TensorGroup
from .json_text import json_object
from .keys import shown
from .names import place

ByteRange = Callable[[int, int], bytes]
"""``read(offset, length)``: up to ``length`` bytes from there, fewer only at the end of the file."""

MOST_HEADER = 32 << 20
"""Bytes. The library itself refuses headers above 100 MB; a real one of 60,000 tensors has 8."""
FIRST_READ = 64 << 10
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of an element (safetensors 0.6, tensor.rs)."""


class Tensor(Struct, frozen=True):
    """One tensor of a header. ``begin`` and ``end`` count from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.begin


class Header(Struct, frozen=True):
    """What one safetensors file says of itself."""

    tensors: tuple[Tensor, ...]
    expected_bytes: int
    """Where its last tensor ends: what the file must have."""


def read_header(read: ByteRange, size: int | None, name: str) -> Header:
    """The header of a file of ``size`` bytes (None: not known). ``name`` names it in errors.

    Raises InputError for a length that no header has and for a header that is malformed or contradicts itself.
    """
    start = read(0, FIRST_READ)
    if len(start) < 8:
        raise InputError(f"{name} has {len(start)} bytes: no safetensors file is that short")
    (length,) = struct.unpack_from("<Q", start)
    if not 2 <= length <= MOST_HEADER:
        raise InputError(
            f"{name}: its header is {length:,} bytes long by its own word; none has more than {MOST_HEADER:,}"
        )
    if size is not None and 8 + length > size:
        raise InputError(f"{name} is truncated: its header alone has {length:,} bytes, the file {size:,}")
    text = start[8 : 8 + length]
    if len(text) < length:
        text += read(8 + len(text), length - len(text))
    if len(text) < length:
        raise InputError(f"{name} is truncated inside its header")
    tensors = _tensors(json_object(text, f"the header of {name}"), name)
    return Header(tensors, 8 + length + max((tensor.end for tensor in tensors), default=0))


def _tensors(header: Mapping[str, Any], name: str) -> tuple[Tensor, ...]:
    out = []
    for key, value in header.items():
        if key == "__metadata__":
            continue
        if not isinstance(value, Mapping):
            raise InputError(f"{name}: tensor {shown(key)} is {shown(value)}, not a JSON object")
        dtype, shape, offsets = value.get("dtype"), _whole(value.get("shape")), _whole(value.get("data_offsets"))
        if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
            raise InputError(f"{name}: tensor {shown(key)} lacks a dtype, a shape or its data_offsets")
        begin, end = offsets
        bits = BITS.get(dtype)
        if end < begin or (bits is not None and prod(shape) * bits != (end - begin) * 8):
            raise InputError(
                f"{name}: tensor {shown(key)} of shape {shown(shape)} does not fill its {end - begin:,} bytes"
            )
        out.append(Tensor(key, dtype, tuple(shape), begin, end))
    return tuple(out)


def _whole(value: Any) -> list[int] | None:
    if not isinstance(value, list) or len(value) > 16:
        return None
    return value if all(type(n) is int and 0 <= n < 1 << 48 for n in value) else None


def groups(tensors: Iterable[Tensor], layers: int | None, kv_heads: int | None) -> tuple[TensorGroup, ...]:
    """The tensors summed by kind, layer, dtype and how tensor parallel splits them.

    ``layers`` is the number of decoder layers: what lies behind them belongs to multi-token prediction.
    """
    sums: dict[tuple[int, str, str, int], list[int]] = {}
    for tensor in tensors:
        layer, kind, parts = place(tensor.name, layers, kv_heads)
        entry = sums.setdefault((-1 if layer is None else layer, kind, tensor.dtype, parts or 0), [0, 0])
        entry[0] += tensor.bytes
        entry[1] += prod(tensor.shape)
    return tuple(
        TensorGroup(
            kind=kind,
            bytes=size,
            elements=elements,
            layer=None if layer < 0 else layer,
            dtype=dtype,
            parts=parts or None,
        )
        for (layer, kind, dtype, parts), (size, elements) in sorted(sums.items())
    )


def problem_of(start: bytes) -> str | None:
    """Why a file that starts with these bytes holds no weights, or None where it may."""
    if start.startswith(b"version https://git-lfs"):
        return "lfs pointer"
    return "unreadable: it is empty" if not start else None


def file_facts(read: ByteRange, size: int, name: str) -> tuple[Header | None, ModelFile]:
    """The header of one file and how the file stands, whatever is wrong with it."""
    problem = problem_of(read(0, 64))
    if problem:
        return None, ModelFile(name=name, bytes=size, problem=problem)
    try:
        header = read_header(read, size, name)
    except InputError as error:
        why = "truncated" if "is truncated" in str(error) else f"unreadable: {error}"
        return None, ModelFile(name=name, bytes=size, problem=why)
    short = size < header.expected_bytes
    return header, ModelFile(
        name=name, bytes=size, expected_bytes=header.expected_bytes, problem="truncated" if short else None
    )


def local_file(path: Path) -> tuple[Header | None, ModelFile]:
    """Like ``file_facts``, for a file on disk."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size

            def read(offset: int, length: int) -> bytes:
                file.seek(offset)
                return file.read(length)

            return file_facts(read, size, path.name)
    except OSError as error:
        return None, ModelFile(name=path.name, bytes=0, problem=f"unreadable: {error.strerror or error}")


def shards(index: Mapping[str, Any], name: str) -> tuple[tuple[str, ...], int | None]:
    """File names an index lists, in order, and the total size it claims. Raises InputError for a malformed index."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise InputError(f"{name} has no weight_map")
    listed = set()
    for value in weight_map.values():
        if not isinstance(value, str) or not re.fullmatch(r"[\w.+-]{1,200}", value):
            raise InputError(f"{name}: weight_map names {shown(value)}, which is no file of this folder")
        listed.add(value)
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    return tuple(sorted(listed)), total if type(total) is int and 0 < total < 1 << 50 else None
