"""Bytes of the weights: summed from file headers where they were read, else counted from the configuration.

Counts follow vLLM 0.32's modules (model_executor/models), which fuse matrices but keep their sizes.
"""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from ..errors import InputError
from ..facts import Model, Quantization, TensorGroup
from .layouts import Weight, padded_experts, parameters
from .tables import table

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4, "float8_e4m3fn": 1, "float64": 8}
HEADER_FLOATS = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8}
VOCABULARY_PADDING = 64
"""Rows that vLLM pads a vocabulary to (DEFAULT_VOCAB_PADDING_SIZE, vocab_parallel_embedding.py)."""


def weight_groups(
    model: Model, dtype: str | None = None, quantization: Quantization | None = None
) -> tuple[TensorGroup, ...]:
    """The weights by kind and layer, from headers where these were read, else counted from the configuration.

    ``dtype`` and ``quantization`` are what the launch asks for where it is not what the checkpoint says. Empty where
    the configuration does not tell enough. Bytes are those in the runtime's memory, one copy of each, unsplit; kind
    ``rotary`` is vLLM's tables of sines and cosines.
    """
    if model.source.gguf_tensors:
        return model.source.gguf_tensors
    counted = _counted(model, dtype, quantization or model.quantization)
    if quantization is not None and quantization != model.quantization:
        return counted
    if model.weights:
        read = (_in_dtype(group, dtype or model.dtype) for group in model.weights)
        tables = (group for group in counted if group.kind == "rotary")
        return (*(_padded(group, model) for group in read), *tables)
    return _scaled(counted, model.weight_bytes)


def _counted(model: Model, dtype: str | None, scheme: Quantization | None) -> tuple[TensorGroup, ...]:
    element = ELEMENT_BYTES.get(dtype or model.dtype, 2)
    sums: dict[tuple[str, int | None, int | None], list[int]] = {}
    try:
        for weight in parameters(model):
            entry = sums.setdefault((weight.kind, weight.layer, weight.parts), [0, 0])
            entry[0] += _bytes(weight, element, scheme)
            entry[1] += weight.elements
    except InputError:
        return ()
    return tuple(
        TensorGroup(kind=kind, layer=layer, parts=parts, bytes=size, elements=elements)
        for (kind, layer, parts), (size, elements) in sums.items()
    )


def _scaled(counted: tuple[TensorGroup, ...], known: int | None) -> tuple[TensorGroup, ...]:
    """Counted groups brought to a total that an index tells, where the two are near enough to mean the same tensors."""
    total = sum(group.bytes for group in counted if group.kind != "rotary")
    if known is None or not total or not 0.9 < known / total < 1.1:
        return counted
    return tuple(
        group if group.kind == "rotary" else replace(group, bytes=group.bytes * known // total) for group in counted
    )


def _padded(group: TensorGroup, model: Model) -> TensorGroup:
    size = model.expert_intermediate_size or model.intermediate_size
    if group.kind != "experts" or not size:
        return group
    hidden, padded = padded_experts(model, model.hidden_size, size)
    return replace(group, bytes=group.bytes * hidden * padded // (model.hidden_size * size))


def bytes_per_rank(
    model: Model,
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    stage: int = 0,
    partition: tuple[int, ...] | None = None,
    expert_ranks: int | None = None,
    dtype: str | None = None,
    quantization: Quantization | None = None,
    towers: bool = True,
    prediction: bool = False,
    output: bool = True,
    groups: tuple[TensorGroup, ...] | None = None,
) -> int | None:
    """Bytes of the weights that one rank of pipeline stage ``stage`` holds, None where they cannot be known.

    ``partition``: layers of each stage (VLLM_PP_LAYER_PARTITION). ``expert_ranks``: among how many ranks whole experts
    are dealt out (expert parallel). ``towers``: vision and audio encoders too; ``prediction``: multi-token-prediction
    layers too; ``output``: the output matrix, which a pooling runner leaves out. ``groups``: what ``weight_groups``
    gave, where it is at hand.

    Follows vLLM: the vocabulary padded to 64 rows, KV heads copied above their number, norms, routers and MLA's down
    projections whole on every rank, the embedding on the first stage and the output on the last.
    """
    if groups is None:
        groups = weight_groups(model, dtype, quantization)
    if not groups:
        return None if model.weight_bytes is None else -(-model.weight_bytes // (tensor_parallel * pipeline_parallel))
    layers = partition or stage_layers(len(model.layers), pipeline_parallel)
    first, last = stage == 0, stage == len(layers) - 1
    begin = sum(layers[:stage])
    own = range(begin, begin + layers[stage])
    total = 0
    for group in groups:
        if group.kind in ("vision", "audio") and not towers:
            continue
        if group.kind == "mtp" and not (prediction and last):
            continue
        if group.layer is not None and group.layer not in own:
            continue
        if group.kind == "embedding" and not (first or (last and model.tied_embeddings)):
            continue
        if group.kind == "output" and not (last and output and not model.pooling):
            continue
        total += _share(group, model, tensor_parallel, expert_ranks)
    return total


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage: the remainder goes to the stages before the last (vLLM distributed/utils.py)."""
    counts = [layers // stages] * stages
    for i in range(layers % stages):
        counts[-(i + 2) if stages > 1 else -1] += 1
    return tuple(counts)


def exact_layout(model: Model) -> bool:
    """Whether the count from the configuration follows a layout that was held against vLLM's modules."""
    row = table("weights")["layouts"].get(model.model_type)
    return row is not None and not row.get("unverified")


def _share(group: TensorGroup, model: Model, ranks: int, expert_ranks: int | None) -> int:
    size = group.bytes
    if group.kind in ("embedding", "output") and model.vocabulary:
        rows = -(-model.vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
        size = size * rows // model.vocabulary
    if group.kind == "experts" and expert_ranks:
        return -(-size // expert_ranks)
    parts = ranks if group.parts is None else min(ranks, group.parts)
    return -(-size // parts)


def _in_dtype(group: TensorGroup, dtype: str) -> TensorGroup:
    """Floating-point weights take the dtype that the launch loads them in; quantised ones stay as they are."""
    wanted = ELEMENT_BYTES.get(dtype)
    stored = HEADER_FLOATS.get(group.dtype or "")
    # Scales of quantised matrices, states and routers stay in float32: only what is stored in one dtype changes.
    if wanted is None or stored is None or stored == wanted or group.kind in ("router", "state"):
        return group
    return replace(group, bytes=group.elements * wanted, dtype=dtype)


# --- quantisation ------------------------------------------------------------------------------------------------


class _Way(NamedTuple):
    """How one matrix is stored."""

    bits: float
    group_size: int | None
    block: tuple[int, int] | None
    format: str


def _bytes(weight: Weight, element: int, scheme: Quantization | None) -> int:
    element = weight.element or element
    way = None if scheme is None or weight.plain or not weight.into else _way(weight, scheme)
    if way is None or way.bits >= 16:
        return weight.elements * element
    packed = -(-weight.elements * int(way.bits * 2) // 16)
    return packed + weight.copies * _scales(weight, way)


def _way(weight: Weight, scheme: Quantization) -> _Way | None:
    """How the scheme stores that module, None where it leaves it alone."""
    if weight.kind in ("vision", "audio", "mtp") or _names(scheme.excluded).cover(weight.name):
        return None
    for part in scheme.parts:
        if _names(part.modules).cover(weight.name) or ("Linear" in part.modules and weight.kind != "output"):
            return _Way(part.bits, part.group_size, part.block, part.format or scheme.method)
    if scheme.parts or weight.kind == "output" or (scheme.method == "mxfp4" and weight.kind != "experts"):
        return None
    if scheme.bits is None:
        return None
    return _Way(scheme.bits, scheme.group_size, scheme.block, f"{scheme.method} {scheme.format or ''}")


ALIASES = (
    (re.compile(r"^(backbone|language_model\.model|model\.language_model|transformer)\.layers"), "model.layers"),
    (
        re.compile(r"\b(block_sparse_moe|feed_forward|mixer(?=\.(experts|shared_experts|gate|up_proj|down_proj)))\b"),
        "mlp",
    ),
    (re.compile(r"\bmixer(?=\.[qkvo]_proj)"), "self_attn"),
    (re.compile(r"\bmixer\b"), "mamba"),
    (re.compile(r"\bshared_expert\b(?!_gate)"), "shared_experts"),
    (re.compile(r"\bexperts\.\d+\b"), "experts"),
    (re.compile(r"\bw1\b"), "gate_proj"),
    (re.compile(r"\bw2\b"), "down_proj"),
    (re.compile(r"\bw3\b"), "up_proj"),
)
"""Names that checkpoints of different architectures give the same module, brought to one."""


class _Names:
    """A list of module names with wildcards and regular expressions, ready to be asked many times."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self.plain: set[str] = set()
        patterns = []
        for entry in entries:
            if entry.startswith("re:"):
                patterns.append(entry[3:])
            elif "*" in entry:
                patterns.append(
                    fnmatch.translate(_canonical(entry)) + "|" + fnmatch.translate(_canonical(entry) + ".*")
                )
            else:
                self.plain.add(_canonical(entry))
        self.patterns = [pattern for pattern in map(_compiled, dict.fromkeys(patterns)) if pattern is not None]

    def cover(self, name: str) -> bool:
        """Whether an entry is the name, an ancestor, or a part of its path between two dots."""
        name = _canonical(name)
        if self.plain:
            words = name.split(".")
            ends = range(len(words) + 1)
            if any(".".join(words[i:j]) in self.plain for i in ends for j in ends[i + 1 :]):
                return True
        return any(pattern.match(name) for pattern in self.patterns)


@lru_cache(maxsize=64)
def _names(entries: tuple[str, ...]) -> _Names:
    return _Names(entries)


@lru_cache(maxsize=8192)
def _canonical(name: str) -> str:
    for pattern, word in ALIASES:
        name = pattern.sub(word, name)
    return name


def _compiled(pattern: str) -> re.Pattern[str] | None:
    # A pattern from a file must not be able to run for minutes: real ones are short and without nested repeats.
    if len(pattern) > 400 or re.search(r"[*+}]\)?[*+{]", pattern):
        return None
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def _scales(weight: Weight, way: _Way) -> int:
    """Bytes of scales and zero points beside one matrix, as vLLM's quantisation methods register them."""
    if way.block is not None:
        rows, columns = way.block
        return -(-weight.out // max(rows, 1)) * -(-weight.into // max(columns, 1)) * 4
    if "nvfp4" in way.format or (way.bits == 4 and way.group_size == 16):
        return weight.out * -(-weight.into // 16) + 8
    if "mxfp" in way.format:
        return weight.out * -(-weight.into // 32)
    if "bitsandbytes" in way.format:
        return weight.out * weight.into // 64 * 4 if way.bits == 4 else weight.out * 4
    if "modelopt" in way.format and way.bits == 8:
        return 8
    if way.bits == 8 and way.group_size is None:
        return weight.out * 4
    steps = -(-weight.into // way.group_size) if way.group_size else 1
    zeros = 0 if "compressed-tensors" in way.format else int(steps * weight.out * way.bits) // 8
    return steps * weight.out * 2 + zeros
