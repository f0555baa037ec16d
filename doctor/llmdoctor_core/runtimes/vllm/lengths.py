"""The longest sequence a release of vLLM derives from a model's configuration.

Follows config/model.py: _get_and_verify_max_len.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Model
from llmdoctor_core.models.config import text_keys
from llmdoctor_core.models.keys import Keys

LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
NOT_MULTIPLIED = ("su", "longrope", "llama3", "default", "mrope", "proportional")
"""Rope types whose factor does not lengthen the model."""
YARN = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
NO_LENGTH = 2048
"""What vLLM assumes where the configuration tells no length."""


@dataclass(frozen=True)
class Length:
    """What a release takes as the model's longest sequence, and why."""

    derived: int
    key: str
    """The configuration's key it comes from, as vLLM names it in its refusal."""
    default: int
    """max_model_len where none is given: shorter than ``derived`` for LongRoPE."""
    model_max_length: int | None
    """A longer length the configuration allows when asked for by ``--max-model-len``."""
    why: str
    certain: bool = True
    """False where the configuration tells no length, so that any value given is taken."""


def length_of(model: Model, rules: Mapping[str, Any], *, disable_sliding_window: bool) -> Length:
    """The length this release derives. ``rules`` are the release's rows of ``data/defaults.toml``."""
    if not model.config:
        return _from_training(model)
    try:
        text = text_keys(Keys(model.config, "config.json"))
    except InputError:
        return _from_training(model)
    derived, key = _smallest(text, rules)
    window = _number(text.values.get("sliding_window"))
    if disable_sliding_window and window is not None and window < derived:
        derived, key = window, "sliding_window"
    limit = _tokenizer_limit(model, text, rules)
    if limit is not None and limit < derived:
        derived, key = limit, "model_max_length of the tokenizer"
    certain = math.isfinite(derived)
    if not certain:
        derived, key = NO_LENGTH, "no key"
    ropes = rope_scalings(text)
    derived, scaled = _scaled(derived, ropes, str(text.values.get("model_type") or ""), rules)
    default, short = derived, ""
    original = _number(text.values.get("original_max_position_embeddings"))
    if rules["longrope_starts_short"] and original and any(_type(rope) == "longrope" for rope in ropes):
        default, short = original, "; LongRoPE starts at original_max_position_embeddings since 0.11.1"
    asked = _number(text.values.get("model_max_length"))
    why = (
        f"{key} of the configuration{scaled}{short}"
        if certain
        else "the configuration tells no length: vLLM assumes it"
    )
    return Length(int(derived), key, int(default), int(asked) if asked else None, why, certain)


def _from_training(model: Model) -> Length:
    if model.training_length is None:
        return Length(NO_LENGTH, "no key", NO_LENGTH, None, "the model tells no length: vLLM assumes it", certain=False)
    length = model.training_length
    return Length(length, "training length", length, None, "the model file's training length")


def _smallest(text: Keys, rules: Mapping[str, Any]) -> tuple[float, str]:
    derived, key = math.inf, ""
    for name in LENGTH_KEYS:
        length = _number(text.values.get(name, text.absent.get(name) if name not in text.unknown else None))
        if length is not None and length < derived:
            derived, key = length, name
    longest = _number(text.values.get("model_max_length"))
    if rules["model_max_length_wins"] and longest:
        return longest, "model_max_length"
    return derived, key


def _tokenizer_limit(model: Model, text: Keys, rules: Mapping[str, Any]) -> float | None:
    """The tokenizer's own limit, for the models whose release looks at it."""
    looks = {
        "never": False,
        "always": True,
        "pooling": model.pooling,
        "pooling with absolute positions": model.pooling and text.values.get("position_embedding_type") == "absolute",
    }
    limit = model.source.tokenizer.model_max_length
    return limit if looks[rules["tokenizer_length"]] and limit is not None and limit > 0 else None


def rope_scalings(text: Keys) -> list[Mapping[str, Any]]:
    """Rope parameters of the model, one mapping for each layer type that has its own."""
    for name in ("rope_parameters", "rope_scaling"):
        value = text.values.get(name)
        if isinstance(value, Mapping) and value:
            nested = [part for part in value.values() if isinstance(part, Mapping)]
            return nested if nested and len(nested) == len([p for p in value.values() if p is not None]) else [value]
    return []


def _type(rope: Mapping[str, Any]) -> str:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return "longrope" if kind == "su" else str(kind)


def _scaled(
    derived: float, ropes: list[Mapping[str, Any]], model_type: str, rules: Mapping[str, Any]
) -> tuple[float, str]:
    """The length times its rope factor; Gemma 3's length has it included."""
    if "gemma3" in model_type:
        return derived, ""
    factor, kind = 1.0, ""
    for rope in ropes:
        name = _type(rope)
        if name in NOT_MULTIPLIED or (name in YARN and not rules["yarn_multiplies"]):
            continue
        number = rope.get("factor", factor)
        factor, kind = (float(number) if _number(number) is not None else 1.0), name
        original = _number(rope.get("original_max_position_embeddings"))
        if name == "yarn" and original is not None:
            derived = original
    if factor == 1.0:
        return derived, ""
    return derived * factor, f" times the {kind} factor {factor:g}"


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 < value < 1 << 40 else None
