"""Reads a GGUF header (version 2 and 3) without reading its arrays or tensors, from a file or over byte ranges.

Format: ggml/src/gguf.cpp of llama.cpp b11434. A vocabulary of 262,144 tokens is stepped over, hashed but
not decoded, so that the header of any model is read in milliseconds and in memory bounded by ``MAX_HEADER``.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import ModelFile, ModelSource, TensorGroup, TokenizerFacts
from llmdoctor_core.facts.model import Origin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ByteRange = Callable[[int, int], bytes]
"""``read(offset, length)``: up to ``length`` bytes from there, fewer only at the end of the file."""

MAX_HEADER = 128 << 20
"""Bytes. The longest header of a real model is below 30 MiB (a vocabulary of 262,144 tokens with merges)."""
KEPT_NUMBERS = 1024
"""Longest array of numbers kept: one value a layer (llama.cpp's LLAMA_MAX_LAYERS is 512)."""
KEPT_STRINGS = 64
KEPT_CHARACTERS = 2048
MAX_KEY = 65535
MAX_DIMENSIONS = 4
MAX_SPLITS = 10_000
MAX_KEYS, MAX_TENSORS, MAX_STRINGS = 1 << 16, 1 << 17, 1 << 22
"""Real models stay below 200 keys, 20,000 tensors and 600,000 strings (merges) in one array; each costs memory."""
_FIRST_READ, _NEXT_READ = 256 << 10, 4 << 20

_SCALARS = {
    0: ("uint8", struct.Struct("<B")),
    1: ("int8", struct.Struct("<b")),
    2: ("uint16", struct.Struct("<H")),
    3: ("int16", struct.Struct("<h")),
    4: ("uint32", struct.Struct("<I")),
    5: ("int32", struct.Struct("<i")),
    6: ("float32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<?")),
    10: ("uint64", struct.Struct("<Q")),
    11: ("int64", struct.Struct("<q")),
    12: ("float64", struct.Struct("<d")),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")


class StorageType(Struct, frozen=True):
    """A ggml storage type: ``block`` elements take ``bytes`` bytes."""

    id: int
    name: str
    block: int
    bytes: int

    def row(self, elements: int) -> int:
        """Bytes of a row of that many elements (ggml_row_size)."""
        return elements // self.block * self.bytes


class Tensor(Struct, frozen=True):
    """One entry of the tensor table. ``offset`` counts from the start of the file, ``bytes`` is ggml_nbytes."""

    name: str
    shape: tuple[int, ...]
    type: StorageType
    offset: int
    bytes: int


class Header(Struct, frozen=True, kw_only=True):
    """What one GGUF file says of itself."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_offset: int
    expected_bytes: int
    """Where its last tensor ends."""
    tokens_fingerprint: str | None = None


@lru_cache(maxsize=1)
def storage_types() -> dict[int, StorageType]:
    """The storage types by their number in a file."""
    table = tomllib.loads((Path(__file__).parent / "data/ggml_types.toml").read_text())
    return {row["id"]: StorageType(row["id"], row["name"], row["block"], row["bytes"]) for row in table["types"]}


@lru_cache(maxsize=1)
def storage_type_by_name() -> dict[str, StorageType]:
    """The storage types by name, as ``--cache-type-k`` takes them."""
    return {kind.name: kind for kind in storage_types().values()}


def read_gguf(path: str | Path, origin: Origin = "file") -> ModelSource:
    """A model from a GGUF file and, where it is split, from its other parts in the same folder.

    A file that is no GGUF file, a missing part and a file shorter than its header says are noted on ``files``.
    Raises InputError for a path that cannot be read and for a header that is malformed, truncated or absurd.
    """
    path = Path(path)
    header, file = _open(path)
    if header is None:
        return ModelSource(name=path.stem, origin=origin, where=str(path), files=(file,), weight_format="gguf")
    headers: list[Header | None] = [header]
    files = [file]
    for part in other_parts(header, path.name, str(path)):
        if (path.parent / part).exists():
            found, file = _open(path.parent / part)
        else:
            found, file = None, ModelFile(name=part, bytes=0, problem="missing")
        headers.append(found)
        files.append(file)
    return source_from(headers, files, name=_stem(path.name), where=str(path), origin=origin)


def read_header(read: ByteRange, size: int, name: str) -> Header:
    """The header of one file of ``size`` bytes. ``name`` names it in errors.

    Raises InputError for anything that is not a well-formed, little-endian GGUF header of version 2 or 3.
    """
    return _read_header(_Cursor(read, size, name))


def not_gguf(start: bytes) -> str | None:
    """Why a file that starts with these bytes is no GGUF file, or None where it may be one."""
    if start[:4] == b"GGUF":
        return None
    if start.startswith(b"version https://git-lfs"):
        return "lfs pointer"
    if not start:
        return "not a gguf file: it is empty"
    known = {
        b"ggml": "a GGML file of 2023",
        b"lmgg": "a GGML file of 2023",
        b"tjgg": "a GGJT file of 2023, before GGUF",
        b"fmgg": "a GGMF file of 2023, before GGUF",
        b"PK\x03\x04": "a zip archive or PyTorch checkpoint",
        b"\x1f\x8b": "a gzip archive",
        b"<": "an HTML or XML page",
        b"{": "a JSON file",
    }
    kind = next((f", {what}" for magic, what in known.items() if start.lstrip().startswith(magic)), "")
    if start[8:10] == b'{"':
        kind = ", a safetensors file"
    shown = start[:4].decode("latin-1").encode("unicode_escape").decode()
    return f"not a gguf file: it starts with {shown!r}{kind}"


def other_parts(header: Header, name: str, shown: str) -> tuple[str, ...]:
    """Names of the other files of a split model, in order; empty where it is not split.

    Raises InputError for a part that is not the first: llama.cpp loads a split model by its first file.
    """
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or count < 2:
        return ()
    if count > MAX_SPLITS:
        raise InputError(f"{shown}: split.count is {count:,}, more than any real model has")
    match = _SPLIT_NAME.fullmatch(name)
    if not match:
        raise InputError(
            f"{shown}: the file is part of a model split in {count} and must keep its name "
            f"(NAME-00001-of-{count:05d}.gguf): llama.cpp finds the other parts by it"
        )
    if header.metadata.get("split.no", 0) != 0:
        first = f"{match['stem']}-00001-of-{count:05d}.gguf"
        raise InputError(f"{shown}: this is part {header.metadata['split.no'] + 1} of {count}; give the first, {first}")
    return tuple(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(2, count + 1))


def source_from(
    headers: Sequence[Header | None], files: Sequence[ModelFile], *, name: str, where: str, origin: Origin
) -> ModelSource:
    """The model these headers describe, one a file. The first must be there, a later one may be None (missing)."""
    first = headers[0]
    assert first is not None, "the first file's header names the model"
    tensors = [(number, tensor) for number, header in enumerate(headers) if header for tensor in header.tensors]
    complete = all(headers)
    return ModelSource(
        name=name,
        origin=origin,
        where=where,
        gguf=first.metadata,
        gguf_version=first.version,
        gguf_tensors=_groups(tensors, first.metadata),
        gguf_tensor_names=_telling_names(tensor.name for _, tensor in tensors),
        weight_bytes=sum(tensor.bytes for _, tensor in tensors) if complete else None,
        weight_format="gguf",
        files=tuple(files),
        tokenizer=_tokenizer(first),
        notes=() if complete else ("some parts of the split model are missing: weight bytes are not known",),
    )


def _open(path: Path) -> tuple[Header | None, ModelFile]:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size

            def read(offset: int, length: int) -> bytes:
                file.seek(offset)
                return file.read(length)

            problem = not_gguf(read(0, 64))
            if problem:
                return None, ModelFile(name=path.name, bytes=size, problem=problem)
            header = read_header(read, size, str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    return header, file_of(header, path.name, size)


def file_of(header: Header, name: str, size: int) -> ModelFile:
    """The file as a fact: truncated where it is shorter than its tensor table says."""
    problem = "truncated" if size < header.expected_bytes else None
    return ModelFile(name=name, bytes=size, expected_bytes=header.expected_bytes, problem=problem)


class _Cursor:
    """Walks the header from its start; what was read stays in ``buffer``, at most MAX_HEADER bytes."""

    def __init__(self, read: ByteRange, size: int, name: str) -> None:
        self.read, self.size, self.name = read, size, name
        self.buffer = bytearray()
        self.position = 0

    def need(self, end: int, what: str) -> None:
        """Have the buffer reach ``end``. Raises InputError where the file or the bound ends before it."""
        have = len(self.buffer)
        if end <= have:
            return
        if end > self.size:
            raise InputError(
                f"{self.name}: {_shown(what)} at byte {self.position:,} runs to byte {end:,}, past the end of the file "
                f"({self.size:,} bytes): it is cut short or not a GGUF file"
            )
        if end > MAX_HEADER:
            raise InputError(
                f"{self.name}: {_shown(what)} at byte {self.position:,} makes the header longer than {MAX_HEADER:,} "
                "bytes, which no real model has"
            )
        wanted = max(end - have, _NEXT_READ if have else _FIRST_READ)
        chunk = self.read(have, min(wanted, self.size - have))
        if len(chunk) < end - have:
            raise InputError(f"{self.name}: only {have + len(chunk):,} of {self.size:,} bytes could be read")
        self.buffer += chunk

    def number(self, kind: struct.Struct, what: str) -> Any:
        self.need(self.position + kind.size, what)
        (value,) = kind.unpack_from(self.buffer, self.position)
        self.position += kind.size
        return value

    def string(self, what: str, limit: int) -> str:
        """A string, cut to ``limit`` characters' worth of bytes in memory, stepped over whole."""
        length = self.number(_U64, what)
        self.need(self.position + length, what)
        raw = bytes(self.buffer[self.position : self.position + min(length, 4 * limit)])
        self.position += length
        return raw.decode("utf-8", errors="replace")[:limit]

    def strings(self, count: int, what: str) -> list[str]:
        return [self.string(what, KEPT_CHARACTERS) for _ in range(count)]

    def skip_strings(self, count: int, what: str) -> None:
        """Step over strings. The loop is the cost of reading a header: one bound check and one unpack a string."""
        self.need(self.position + 8 * count, what)
        if count > MAX_STRINGS:
            raise InputError(
                f"{self.name}: {_shown(what)} has {count:,} strings, more than any real model ({MAX_STRINGS:,})"
            )
        position, have, unpack, buffer = self.position, len(self.buffer), _U64.unpack_from, self.buffer
        for _ in range(count):
            if position + 8 > have:
                self.need(position + 8, what)
                have = len(self.buffer)
            position += 8 + unpack(buffer, position)[0]
        self.need(position, what)
        self.position = position


def _read_header(cursor: _Cursor) -> Header:
    cursor.need(8, "the magic and version")
    if problem := not_gguf(bytes(cursor.buffer[:64])):
        raise InputError(f"{cursor.name} is {problem}")
    cursor.position = 4
    version = cursor.number(_U32, "the version")
    if version & 0xFFFF == 0 and version:
        raise InputError(
            f"{cursor.name} is a big-endian GGUF file; llama.cpp reads only the byte order of its own machine: "
            "convert it with gguf-convert-endian (pip install gguf)"
        )
    if version not in (2, 3):
        older = "no longer supported by llama.cpp" if version < 2 else "newer than this llmdoctor and llama.cpp know"
        raise InputError(f"{cursor.name} is a GGUF file of version {version}, {older}")
    tensor_count = cursor.number(_U64, "the tensor count")
    key_count = cursor.number(_U64, "the key count")
    # A key takes at least 13 bytes (length, type, one byte of value), a tensor 24: a count that the file cannot hold.
    if tensor_count * 24 + key_count * 13 > cursor.size:
        raise InputError(
            f"{cursor.name}: its header at byte 8 promises {tensor_count:,} tensors and {key_count:,} keys, "
            f"more than its {cursor.size:,} bytes can hold"
        )
    if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
        raise InputError(
            f"{cursor.name}: {tensor_count:,} tensors and {key_count:,} keys are more than any real model has "
            f"({MAX_TENSORS:,} and {MAX_KEYS:,} are read)"
        )
    metadata: dict[str, Any] = {}
    fingerprint = None
    for _ in range(key_count):
        start = cursor.position
        key = cursor.string("a key", MAX_KEY)
        if not key or key in metadata:
            raise InputError(
                f"{cursor.name}: key {_shown(key)} at byte {start:,} is {'given twice' if key else 'empty'}"
            )
        kind = cursor.number(_U32, f"the type of {key}")
        value_start = cursor.position
        metadata[key] = _value(cursor, kind, key)
        if key == "tokenizer.ggml.tokens":
            fingerprint = hashlib.sha256(cursor.buffer[value_start : cursor.position]).hexdigest()
    tensors, data_offset = _tensors(cursor, tensor_count, metadata.get("general.alignment", 32))
    return Header(
        version=version,
        metadata=metadata,
        tensors=tensors,
        data_offset=data_offset,
        expected_bytes=max((tensor.offset + tensor.bytes for tensor in tensors), default=data_offset),
        tokens_fingerprint=fingerprint,
    )


def _value(cursor: _Cursor, kind: int, key: str) -> Any:
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind][1], key)
    if kind == _STRING:
        return cursor.string(key, KEPT_CHARACTERS)
    if kind != _ARRAY:
        raise InputError(
            f"{cursor.name}: {_shown(key)} at byte {cursor.position - 4:,} has type {kind}, which GGUF has not"
        )
    element = cursor.number(_U32, key)
    count = cursor.number(_U64, key)
    if element == _STRING:
        if count <= KEPT_STRINGS:
            return cursor.strings(count, key)
        cursor.skip_strings(count, key)
        return {"array": "string", "length": count}
    if element not in _SCALARS:
        what = (
            "an array of arrays, which llama.cpp does not read" if element == _ARRAY else f"an array of type {element}"
        )
        raise InputError(f"{cursor.name}: {_shown(key)} at byte {cursor.position - 12:,} is {what}")
    name, item = _SCALARS[element]
    cursor.need(cursor.position + count * item.size, key)
    start = cursor.position
    cursor.position += count * item.size
    if count > KEPT_NUMBERS or (count > KEPT_STRINGS and key.startswith("tokenizer.")):
        return {"array": name, "length": count}
    return [value for (value,) in item.iter_unpack(cursor.buffer[start : cursor.position])]


def _tensors(cursor: _Cursor, count: int, alignment: Any) -> tuple[tuple[Tensor, ...], int]:
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise InputError(f"{cursor.name}: general.alignment is {alignment!r}, which is no power of two")
    entries = []
    names = set()
    for _ in range(count):
        start = cursor.position
        name = cursor.string("a tensor name", MAX_KEY)
        if name in names:
            raise InputError(f"{cursor.name}: tensor {_shown(name)} at byte {start:,} is listed twice")
        names.add(name)
        dimensions = cursor.number(_U32, name)
        if dimensions > MAX_DIMENSIONS:
            raise InputError(f"{cursor.name}: tensor {_shown(name)} at byte {start:,} has {dimensions:,} dimensions")
        shape = tuple(cursor.number(_U64, name) for _ in range(dimensions))
        type_id = cursor.number(_U32, name)
        kind = storage_types().get(type_id)
        if kind is None:
            raise InputError(
                f"{cursor.name}: tensor {_shown(name)} at byte {start:,} has storage type {type_id}, "
                "which this llmdoctor does not know (removed from llama.cpp, or newer than b11434)"
            )
        elements = 1
        for extent in shape:
            elements *= extent
        if elements >= 1 << 63 or (shape and shape[0] % kind.block):
            raise InputError(
                f"{cursor.name}: tensor {_shown(name)} at byte {start:,} has the impossible shape {shape} "
                f"for {kind.name}"
            )
        entries.append((name, shape, kind, cursor.number(_U64, name), kind.row(elements)))
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = tuple(Tensor(name, shape, kind, data_offset + at, size) for name, shape, kind, at, size in entries)
    return tensors, data_offset


def _shown(name: str) -> str:
    """A key or tensor name in a message: as it is where it is a name, else quoted and cut, whatever bytes it has."""
    return name if re.fullmatch(r"[\w .%-]{1,80}", name) else repr(name[:60])


def _stem(name: str) -> str:
    match = _SPLIT_NAME.fullmatch(name)
    return match["stem"] if match else name.removesuffix(".gguf")


def _tokenizer(header: Header) -> TokenizerFacts:
    metadata = header.metadata
    template = metadata.get("tokenizer.chat_template")
    return TokenizerFacts(
        kind=_text(metadata.get("tokenizer.ggml.model")),
        vocabulary=_length(metadata.get("tokenizer.ggml.tokens")),
        chat_template=bool(template) if "tokenizer.ggml.model" in metadata else None,
        pre_tokenizer=_text(metadata.get("tokenizer.ggml.pre")),
        fingerprint=header.tokens_fingerprint,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _length(value: Any) -> int | None:
    if isinstance(value, dict):
        return int(value["length"])
    return len(value) if isinstance(value, list) else None


def _groups(tensors: Iterable[tuple[int, Tensor]], metadata: dict[str, Any]) -> tuple[TensorGroup, ...]:
    """Tensors summed by file, layer, kind and storage type, in the order of the file."""
    architecture = metadata.get("general.architecture")
    blocks, nextn = (metadata.get(f"{architecture}.{key}") for key in ("block_count", "nextn_predict_layers"))
    trunk = blocks - nextn if isinstance(blocks, int) and isinstance(nextn, int) else None
    sums: dict[tuple[int, int | None, str, str], list[int]] = {}
    for file, tensor in tensors:
        layer, kind = tensor_kind(tensor.name)
        if layer is not None and trunk is not None and layer >= trunk:
            kind = "mtp"
        elements = 1
        for extent in tensor.shape:
            elements *= extent
        end = tensor.offset + tensor.bytes
        total = sums.setdefault((file, layer, kind, tensor.type.name), [0, 0, tensor.offset, end])
        total[0] += tensor.bytes
        total[1] += elements
        total[2] = min(total[2], tensor.offset)
        total[3] = max(total[3], end)
    return tuple(
        TensorGroup(kind=kind, bytes=size, elements=elements, layer=layer, dtype=dtype, file=file, start=start, end=end)
        for (file, layer, kind, dtype), (size, elements, start, end) in sums.items()
    )


_BLOCK = re.compile(r"blk\.(\d{1,9})\.(.*)")
_INPUT = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
_STATE = ("ssm_", "shortconv", "time_mix", "channel_mix", "attn_gate", "kda_")


def tensor_kind(name: str) -> tuple[int | None, str]:
    """The layer a tensor belongs to, and what it is: the words of ``TensorGroup.kind``."""
    match = _BLOCK.fullmatch(name)
    if match:
        return int(match[1]), _kind_in_layer(match[2])
    if name.startswith(("v.", "mm.", "resampler.")):
        return None, "vision"
    if name.startswith(("a.", "mm_a.")):
        return None, "audio"
    base = name.rpartition(".")[0] or name
    if base in _INPUT:
        return None, "embedding"
    if base in ("output", "cls", "cls.output", "dense_2", "dense_3"):
        return None, "output"
    if base.endswith("norm"):
        return None, "norm"
    return None, "other"


def _kind_in_layer(name: str) -> str:
    if name.startswith("nextn"):
        return "mtp"
    if "_shexp" in name:
        return "shared experts"
    if "_exps" in name or "_chexps" in name:
        return "experts"
    if "ffn_gate_inp" in name or name.startswith("exp_probs"):
        return "router"
    if name.startswith("indexer"):
        return "indexer"
    if name.startswith(_STATE):
        return "state"
    if "norm" in name:
        return "norm"
    if name.startswith("attn"):
        return "attention"
    return "mlp" if name.startswith("ffn") else "other"


def _telling_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names of the first and the last layer, of every layer whose set of names is new, and of all that has no layer."""
    outside: list[str] = []
    layers: dict[int, list[str]] = {}
    for name in names:
        match = _BLOCK.fullmatch(name)
        if match:
            layers.setdefault(int(match[1]), []).append(name)
        else:
            outside.append(name)
    told: list[str] = []
    seen: set[frozenset[str]] = set()
    last = max(layers, default=None)
    for layer in sorted(layers):
        shape = frozenset(name.partition(f"blk.{layer}.")[2] for name in layers[layer])
        if shape not in seen or layer == last:
            seen.add(shape)
            told += layers[layer]
    return tuple(outside[:256] + told[:4096])
