"""How a checkpoint's weights are stored and which KV-cache dtype it asks for, from its quantization configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..facts import Quantization, QuantizedPart
from .keys import MOST, Keys

FIXED_BITS = {
    "fp8": 8,
    "fbgemm_fp8": 8,
    "mxfp4": 4,
    "mxfp8": 8,
    "nvfp4": 4,
    "bitnet": 2,
    "eetq": 8,
    "aqlm": 2,
    "gpt_oss_mxfp4": 4,
}
"""Bits of a weight where the method alone says it (configuration classes of transformers 5.19 and vLLM 0.32)."""
ALGORITHM_BITS = {"NVFP4": 4, "MXFP4": 4, "MXFP8": 8, "W4A16": 4, "W4A8": 4, "W8A": 8, "INT4": 4, "INT8": 8, "FP8": 8}
"""ModelOpt's quant_algo, by what its name holds; the narrower first."""


_EXPERT = re.compile(r"\.experts\.\d+\.")
_LAYER = re.compile(r"^.*\.layers\.\d+\.")


def quantization(root: Keys, text: Keys, separate: Mapping[str, Any] | None) -> Quantization | None:
    """What the root, the text part or the separate hf_quant_config.json says; None for an unquantised checkpoint."""
    for keys, name in (
        (root, "quantization_config"),
        (text, "quantization_config"),
        (root, "compression_config"),
        (text, "compression_config"),
    ):
        found = keys.below(name)
        if found is not None and found.values:
            return _from_config(found)
    if separate is None:
        return None
    whole = Keys(separate, "hf_quant_config.json")
    part = whole.below("quantization")
    return _modelopt(part) if part is not None and part.values else None


def _from_config(keys: Keys) -> Quantization | None:
    algorithm = keys.text("quant_algo")
    nested = keys.below("quantization")
    if nested is not None and nested.text("quant_algo"):
        return _modelopt(nested)
    method = keys.text("quant_method")
    if method is None and algorithm is None:
        if keys.flag("load_in_4bit") or keys.flag("load_in_8bit"):
            method = "bitsandbytes"
        else:
            return None
    if method == "modelopt" or (algorithm is not None and method in (None, "modelopt_fp4", "modelopt_mixed")):
        return _modelopt(keys)
    if method == "compressed-tensors":
        return _compressed_tensors(keys)
    if method == "bitsandbytes":
        return Quantization(
            method="bitsandbytes",
            bits=8 if keys.flag("load_in_8bit") else 4,
            group_size=None if keys.flag("load_in_8bit") else 64,
            excluded=_excluded(keys),
        )
    assert method is not None
    return Quantization(
        method=method,
        bits=keys.number("bits", "w_bit", "nbits") or FIXED_BITS.get(method),
        group_size=_group(keys),
        block=_block(keys),
        kv_cache=_kv_scheme(keys),
        excluded=_excluded(keys),
    )


def _modelopt(keys: Keys) -> Quantization:
    algorithm = (keys.text("quant_algo") or "").upper()
    bits = next((bits for name, bits in ALGORITHM_BITS.items() if name in algorithm), None)
    group = _group(keys)
    if group is None and algorithm.startswith("NVFP4"):
        group = 16
    kv = keys.text("kv_cache_quant_algo")
    parts = (_parts(keys) or _named_parts(keys)) if algorithm.startswith("MIXED") else ()
    return Quantization(
        method="modelopt" + (f" {algorithm.lower()}" if algorithm else ""),
        bits=parts[0].bits if parts else bits,
        group_size=group,
        parts=parts,
        kv_cache=_kv_algorithm(kv) if kv else _kv_scheme(keys),
        excluded=_excluded(keys),
    )


def _kv_algorithm(name: str) -> str | None:
    upper = name.upper()
    return "nvfp4" if "NVFP4" in upper else "fp8" if "FP8" in upper else "int8" if "INT8" in upper else None


def _compressed_tensors(keys: Keys) -> Quantization:
    parts = _parts(keys)
    first = parts[0] if parts else None
    return Quantization(
        method="compressed-tensors",
        bits=first.bits if first else None,
        group_size=first.group_size if first else None,
        block=first.block if first else None,
        kv_cache=_kv_scheme(keys),
        excluded=_excluded(keys),
        format=(first.format if first else None) or keys.text("format"),
        parts=parts if len(parts) > 1 else (),
    )


def _parts(keys: Keys) -> tuple[QuantizedPart, ...]:
    """The config_groups, one a way of storing; names of modules lose their layer, for layers are alike."""
    groups = keys.below("config_groups")
    out = []
    for name in groups.values if groups is not None else ():
        assert groups is not None
        scheme = groups.below(name) if isinstance(name, str) else None
        weights = scheme.below("weights") if scheme is not None else None
        bits = weights.number("num_bits") if weights is not None else None
        if scheme is None or weights is None or not bits:
            continue
        targets = [target for target in scheme.sequence("targets", most=1 << 20) or () if isinstance(target, str)]
        out.append(
            QuantizedPart(
                modules=tuple(dict.fromkeys(_LAYER.sub("", target) for target in targets)),
                bits=bits,
                group_size=_group(weights),
                block=_block(weights),
                format=scheme.text("format"),
            )
        )
    return tuple(out)


def _named_parts(keys: Keys) -> tuple[QuantizedPart, ...]:
    """ModelOpt's quantized_layers: every module with its algorithm, gathered by what is alike."""
    named = keys.below("quantized_layers")
    gathered: dict[tuple[float, int | None, str], dict[str, None]] = {}
    # Thousands of entries of a handful of kinds: each kind is read with care once.
    kinds: dict[tuple[str, Any], tuple[float, int | None, str] | None] = {}
    for name, entry in named.values.items() if named is not None else ():
        algorithm = entry.get("quant_algo") if isinstance(entry, Mapping) else None
        group = entry.get("group_size") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not isinstance(algorithm, str) or not isinstance(group, int | None):
            continue
        if (algorithm, group) not in kinds:
            bits = next((bits for known, bits in ALGORITHM_BITS.items() if known in algorithm.upper()), None)
            size = group if group and 0 < group <= MOST else None
            kinds[algorithm, group] = None if bits is None else (bits, size, algorithm.lower())
        kind = kinds[algorithm, group]
        if kind is not None:
            gathered.setdefault(kind, {})[_EXPERT.sub(".experts.", _LAYER.sub("", name))] = None
    return tuple(
        QuantizedPart(modules=tuple(modules), bits=bits, group_size=group, format=f"modelopt {algorithm}")
        for (bits, group, algorithm), modules in gathered.items()
    )


def _kv_scheme(keys: Keys) -> str | None:
    """The KV dtype a kv_cache_scheme asks for; some files write its name, most an object."""
    if isinstance(keys.values.get("kv_cache_scheme"), str):
        return _kv_algorithm(keys.values["kv_cache_scheme"])
    scheme = keys.below("kv_cache_scheme")
    if scheme is None:
        return None
    bits, kind = scheme.number("num_bits"), scheme.text("type")
    if bits == 8:
        return "fp8" if kind == "float" else "int8"
    return "nvfp4" if bits == 4 and kind == "float" else None


def _group(keys: Keys) -> int | None:
    size = keys.count("group_size", "q_group_size", least=-1)
    return size if size is not None and size > 0 else None


def _block(keys: Keys) -> tuple[int, int] | None:
    for name in ("weight_block_size", "block_structure"):
        value, sizes = keys.values.get(name), None
        if isinstance(value, str) and re.fullmatch(r"\d{1,6}x\d{1,6}", value):
            sizes = [int(size) for size in value.split("x")]
        elif value is not None and not isinstance(value, str):
            sizes = keys.counts(name)
        if sizes is None or len(sizes) != 2:
            continue
        if 0 in sizes:
            raise keys.wrong(name, value, "two sizes above 0")
        return sizes[0], sizes[1]
    return None


def _excluded(keys: Keys) -> tuple[str, ...]:
    for name in ("modules_to_not_convert", "exclude_modules", "ignore", "ignored_layers", "llm_int8_skip_modules"):
        listed = keys.sequence(name, most=1 << 20)
        if listed is not None:
            return tuple(entry for entry in listed if isinstance(entry, str))
    return ()
