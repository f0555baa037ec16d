"""Weights of a GGUF file that nobody read: counted from config.json, in the type that the file's name tells."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from llmdoctor_core.facts import Launch, Model, TensorGroup
from llmdoctor_core.models.layouts import padded_experts
from llmdoctor_core.models.weights import exact_layout, weight_groups

from .builds import DATA

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TYPE = re.compile(
    r"(?:^|[-._:/])(UD-)?(I?Q\d(?:_K(?:_(?:XL|L|M|S))?|_[01]|_(?:XXS|XS|S|M|NL))|BF16|F16|F32|MXFP4_MOE)(?=$|[-._/])",
    re.IGNORECASE,
)
_BLOCK = 256
"""Elements of a block of the K and IQ types; rows that it does not divide are stored in Q5_0 or Q8_0."""
_FLOAT_KINDS = ("norm", "router")
"""Tensors that every file keeps in float32."""
_ELSEWHERE = ("rotary", "vision", "audio")
"""What the file does not hold: encoders come in a second one (--mmproj), tables of angles are computed."""
_DEFAULT_TAG = "Q4_K_M"
"""The file that ``-hf owner/name`` without a tag takes where there is one (common/download.cpp)."""
_MXFP4 = 4.25


class Counted(Struct, frozen=True, kw_only=True):
    """Tensors as counted, and the bounds of their bytes as shares of what is counted."""

    groups: tuple[TensorGroup, ...]
    least: float
    most: float
    why: str


class _Stored(Struct, frozen=True):
    """Bits a weight: as expected, at least, at most."""

    bits: float
    least: float
    most: float
    why: str


def counted(launch: Launch, model: Model) -> Counted | None:
    """The tensors of the file, None where the configuration does not tell enough to count them."""
    if not model.config:
        return None
    stored = _stored(launch, model)
    experts_packed = model.quantization is not None and model.quantization.method == "mxfp4"
    plain = replace(model, weights=(), weight_bytes=None) if experts_packed else _dequantised(model)
    sums = [0.0, 0.0, 0.0]
    groups = []
    for group in weight_groups(plain):
        if group.kind in _ELSEWHERE:
            continue
        packed = experts_packed and group.kind == "experts"
        elements = _unpadded(group, plain) if packed else group.elements
        sizes = [
            _bytes(group, elements, _MXFP4 if packed else bits) for bits in (stored.bits, stored.least, stored.most)
        ]
        sums = [whole + size for whole, size in zip(sums, sizes, strict=True)]
        groups.append(replace(group, bytes=round(sizes[0]), elements=elements))
    if not groups or not sums[0]:
        return None
    slack = 0.02 if exact_layout(model) else 0.1
    least, most = sums[1] / sums[0] * (1 - slack), sums[2] / sums[0] * (1 + slack)
    return Counted(groups=tuple(groups), least=least, most=most, why=stored.why)


def _dequantised(model: Model) -> Model:
    """The converter writes FP8, AWQ, GPTQ and the like as 16 bits."""
    return replace(model, weights=(), weight_bytes=None, quantization=None)


def _bytes(group: TensorGroup, elements: int, bits: float) -> float:
    return elements * (32 if group.kind in _FLOAT_KINDS else bits) / 8


def _unpadded(group: TensorGroup, model: Model) -> int:
    size = model.expert_intermediate_size or model.intermediate_size or 0
    hidden, padded = padded_experts(model, model.hidden_size, size)
    return group.elements * model.hidden_size * size // max(hidden * padded, 1)


def _stored(launch: Launch, model: Model) -> _Stored:
    """How the file stores a weight, by its name; where nothing names a file, as the converter writes the model."""
    names = [str(launch.get(name) or "") for name in ("hf_file", "model", "hf_repo", "model_url")]
    files = [name for name in names if "gguf" in name.lower() or ":" in name.rpartition("/")[2]]
    for name in files:
        found = list(_TYPE.finditer(name))
        row = _types().get(found[-1][2].upper()) if found else None
        if row is not None:
            return _of_type(row, found[-1], model, name)
    converted = _types()["BF16"]["bits"]
    if not files:
        why = f"no GGUF file was named: as convert_hf_to_gguf.py writes {model.name}, in 16 bits"
        return _Stored(converted, converted, converted, why)
    smallest = min(row["least"] for row in _types().values())
    tagless = files[0] in names[2:3]
    bits = _types()[_DEFAULT_TAG]["bits"] if tagless else converted
    said = f"{_DEFAULT_TAG} is taken, as llama-server does" if tagless else "16 bits are taken"
    return _Stored(bits, smallest, converted, f"{files[0]} was not read and its name tells no type: {said}")


def _of_type(row: dict[str, Any], found: re.Match[str], model: Model, name: str) -> _Stored:
    """Files of one type differ by their vocabulary and their mixture; a dynamic one (UD) mixes more freely."""
    bits, least = float(row["bits"]), float(row["least"])
    kind = str(row["name"])
    most = bits if bits >= 16 else bits * 1.2
    if ("_K" in kind or kind.startswith("IQ")) and model.hidden_size % _BLOCK:
        most = max(most, float(_types()["Q8_0"]["bits"]))
    if found[1]:
        least, most = least * 0.85, most * 1.15
    return _Stored(bits, least, most, f"{name} was not read: bits a weight as {kind} files have them ({row['source']})")


@lru_cache(maxsize=1)
def _types() -> dict[str, dict[str, Any]]:
    rows = tomllib.loads((DATA / "file_types.toml").read_text(encoding="utf-8"))["type"]
    return {row["name"]: row for row in rows}
