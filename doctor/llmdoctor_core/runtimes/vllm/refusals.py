"""What vLLM refuses from the arguments and the configuration alone, before it touches a GPU."""

from __future__ import annotations

from llmdoctor_core.facts import Full, Latent, Launch, Model, SlidingWindow, State

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


def check(launch: Launch, model: Model, draft: Model | None) -> None:
    """Raise RefusedError for the first thing that vLLM refuses without a GPU."""
    check_length(launch, model)
    _check_heads(launch, model)
    _check_vocabulary(launch, model, draft)


def _check_heads(launch: Launch, model: Model) -> None:
    ranks = int(launch.get("tensor_parallel_size") or 1)
    if ranks <= 1:
        return
    if model.heads and model.heads % ranks:
        message = HEADS.format(heads=model.heads, ranks=ranks)
        raise RefusedError("TP701", message, heads=model.heads, tensor_parallel_size=ranks)
    for layer in model.layers:
        for cache in layer.caches:
            whole = _indivisible(cache, ranks)
            if whole is not None:
                message = DIVIDE.format(whole=whole, ranks=ranks)
                raise RefusedError("TP701", message, heads=whole, tensor_parallel_size=ranks)


def _indivisible(cache: object, ranks: int) -> int | None:
    """Heads or channels of a layer that cannot be split, None where all can; fewer KV heads than ranks are repeated."""
    if isinstance(cache, Full | SlidingWindow):
        few, many = sorted((cache.kv_heads, ranks))
        return cache.kv_heads if many % few else None
    if isinstance(cache, State):
        names = ("key_heads", "value_heads", "heads", "inner", "channels")
        return next((cache.parameters[n] for n in names if n in cache.parameters and cache.parameters[n] % ranks), None)
    if isinstance(cache, Latent):
        return cache.heads if cache.heads % ranks else None
    return None


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
