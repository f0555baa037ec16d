"""What vLLM refuses from the arguments and the configuration alone, before it touches a GPU."""

from __future__ import annotations

import math

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Full, Launch, Model, SlidingWindow, State
from llmdoctor_core.models.weights import VOCABULARY_PADDING

from .length import check_length
from .planner import RefusedError
from .since import release
from .specs import speculation

HEADS = (
    "Total number of attention heads ({heads}) must be divisible by tensor parallel size ({ranks})."  # config/model.py
)
DIVIDE = "{whole} is not divisible by {ranks}"
"""AssertionError of distributed/utils.py: divide."""
VOCABULARY = (
    "Target and draft model should have the same vocabulary size. Target model vocab_size={target}. Draft model "
    "vocab_size={draft}. Using models with different tokenizers can cause out-of-bounds errors during speculative "
    "decoding."
)
"""config/speculative.py: verify_equal_vocab_size_if_draft_model, since 0.15; use_heterogeneous_vocab since 0.25."""

BLOCKS = (
    "The output_size of gate's and up's weight = {part} is not divisible by weight quantization block_n = {block}.",
    "The input_size of down's weight = {part} is not divisible by weight quantization block_k = {block}.",
)
"""layers/quantization/fp8.py: create_weights of a fused MoE; since 0.29 scales are refined where that can be done."""
MOST_RANKS = 1 << 12
"""Tensor times pipeline parallel size; a larger number is a slip of the keyboard."""
FINEST_BLOCK = 32
"""layers/fused_moe/oracle/fp8.py: refine_fp8_moe_block_shape."""


def check(launch: Launch, model: Model, draft: Model | None) -> None:
    """Raise RefusedError for the first thing that vLLM refuses without a GPU, InputError for what is not known."""
    _check_ranks(launch, model)
    check_length(launch, model)
    _check_heads(launch, model)
    _check_vocabulary(launch, model, draft)
    _check_expert_blocks(launch, model)


def _check_ranks(launch: Launch, model: Model) -> None:
    stages, layers = int(launch.get("pipeline_parallel_size") or 1), len(model.layers)
    ranks = stages * int(launch.get("tensor_parallel_size") or 1)
    if ranks > MOST_RANKS:
        raise InputError(f"{ranks} ranks are asked for; no engine has more than {MOST_RANKS:,}")
    if stages > max(layers, 1):
        raise InputError(f"{stages} pipeline stages are asked for, and {model.name} has {layers} layers")


def _check_heads(launch: Launch, model: Model) -> None:
    ranks = int(launch.get("tensor_parallel_size") or 1)
    if ranks <= 1:
        return
    if model.heads and model.heads % ranks:
        message = HEADS.format(heads=model.heads, ranks=ranks)
        raise RefusedError("TP701", message, heads=model.heads, tensor_parallel_size=ranks)
    vocabulary = -(-model.vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
    for whole in (*_state_parts(model), vocabulary, *_kv_heads(model, ranks)):
        if whole % ranks:
            message = DIVIDE.format(whole=whole, ranks=ranks)
            raise RefusedError("TP701", message, heads=whole, tensor_parallel_size=ranks)


def _state_parts(model: Model) -> list[int]:
    """What of the recurrent states is split among the ranks; vLLM sizes them before it builds a layer."""
    states = [cache for layer in model.layers for cache in layer.caches if isinstance(cache, State)]
    names = ("key_heads", "value_heads", "heads", "inner", "channels")
    return [states[0].parameters[name] for name in names if states and name in states[0].parameters]


def _kv_heads(model: Model, ranks: int) -> list[int]:
    """KV heads that the ranks cannot share: fewer than the ranks are repeated, if they divide them."""
    caches = [cache for layer in model.layers for cache in layer.caches if isinstance(cache, Full | SlidingWindow)]
    heads = {cache.kv_heads for cache in caches}
    return [kv for kv in sorted(heads) if max(kv, ranks) % min(kv, ranks)]


def _check_vocabulary(launch: Launch, model: Model, draft: Model | None) -> None:
    speculates = speculation(launch, model, draft)
    if draft is None or speculates is None or speculates.method != "draft_model":
        return
    version, given = release(launch.version), launch.get("speculative_config") or {}
    if version < (0, 15) or draft.vocabulary == model.vocabulary:
        return
    if version >= (0, 25) and given.get("use_heterogeneous_vocab"):
        return
    message = VOCABULARY.format(target=model.vocabulary, draft=draft.vocabulary)
    raise RefusedError("DRAFT401", message, target=model.vocabulary, draft=draft.vocabulary)


def _check_expert_blocks(launch: Launch, model: Model) -> None:
    """Experts quantised in blocks are cut between blocks only: FP8 with 192 columns a rank, say, does not load."""
    ranks, width, quantization = expert_ranks(launch), _expert_width(model), model.quantization
    if quantization is None or quantization.method != "fp8" or quantization.block is None:
        return
    if ranks == 1 or not width or refines_expert_blocks(launch, model):
        return
    part = width // ranks
    for text, block in zip(BLOCKS, quantization.block, strict=True):
        if part % block:
            message = text.format(part=part, block=block)
            raise RefusedError("TP703", message, part=part, block=block, expert_ranks=ranks)


def _expert_width(model: Model) -> int:
    return (model.expert_intermediate_size or model.intermediate_size or 0) if model.experts else 0


def expert_ranks(launch: Launch) -> int:
    """Ranks over which the columns of each expert are cut: data parallel ranks too, 1 where experts stay whole
    (layers/fused_moe/config.py: FusedMoEParallelConfig)."""
    if launch.get("enable_expert_parallel"):
        return 1
    return int(launch.get("tensor_parallel_size") or 1) * int(launch.get("data_parallel_size") or 1)


def refines_expert_blocks(launch: Launch, model: Model) -> bool:
    """Whether experts in FP8 blocks that the ranks cut are loaded in finer blocks that fit."""
    quantization = model.quantization
    if release(launch.version) < (0, 29) or quantization is None or quantization.method != "fp8":
        return False
    part = _expert_width(model) // expert_ranks(launch)
    return quantization.block is not None and math.gcd(*quantization.block, part, model.hidden_size) >= FINEST_BLOCK
