"""The longest context vLLM derives from a model's configuration, and its refusal of a longer one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Launch, Model
from llmdoctor_core.models.config import text_keys
from llmdoctor_core.models.keys import Keys

from .planner import RefusedError
from .since import at, table

LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
"""Keys in vLLM's order; the smallest of those present is the length (derive_max_model_len_and_key)."""
WITHOUT_KEY = 2048
"""What vLLM assumes where no key tells a length."""


class Derived(Struct, frozen=True, kw_only=True):
    """``length`` is a float where vLLM multiplied it by a rope factor, be it 1.0: so it prints it."""

    length: float
    key: str | None
    """The configuration's key it comes from, None where none tells a length and any value given is taken."""
    default: int
    """What --max-model-len is where it is not given: for longrope the length before extension."""
    model_max_length: int | None = None
    """A longer length the configuration allows when asked for."""
    factor: float = 1.0
    """Rope factor that is part of ``length``."""


def derived_length(model: Model, version: str, *, disable_sliding_window: bool = False) -> Derived:
    """The length of config/model.py: _get_and_verify_max_len, as this release reads the configuration."""
    rules = at(table("length.toml")["rule"], version)
    text = _text(model)
    if text is None:
        length = float(model.training_length or WITHOUT_KEY)
        key = "max_position_embeddings" if model.training_length else None
        return Derived(length=length, key=key, default=int(length))
    key, smallest = _smallest(text)
    longest = _tokens(text.values.get("model_max_length"))
    if longest and rules["model_max_length_wins"]:
        key, smallest = "model_max_length", longest
    window = _tokens(text.values.get("sliding_window"))
    if disable_sliding_window and window is not None and window < smallest:
        key, smallest = "sliding_window", window
    smallest = min(smallest, _tokenizer_limit(model, text, rules["tokenizer_length"]))
    if math.isinf(smallest):
        return Derived(length=float(WITHOUT_KEY), key=None, default=WITHOUT_KEY)
    if rules["length_is_float"]:
        smallest = float(smallest)
    ropes = _ropes(text)
    length, factor = smallest, 1.0
    if "gemma3" not in str(text.values.get("model_type", "")) and (ropes or rules["always_scaled"]):
        length, factor = _scaled(smallest, ropes, rules["unscaled"])
    default = int(length)
    original = _tokens(text.values.get("original_max_position_embeddings"))
    if original and rules["longrope_starts_short"] and any(_type(rope) == "longrope" for rope in ropes):
        default = int(original)
    own = int(longest) if longest else None
    return Derived(length=length, key=key, default=default, model_max_length=own, factor=factor)


def check_length(launch: Launch, model: Model) -> None:
    """Raise RefusedError (CTX601) with vLLM's words where the length asked for is above the derived one."""
    asked = launch.get("max_model_len")
    if not launch.given("max_model_len") or not isinstance(asked, int) or asked < 0:
        return
    without_window = bool(launch.get("disable_sliding_window"))
    derived = derived_length(model, launch.version, disable_sliding_window=without_window)
    if asked <= derived.length or derived.key is None:
        return
    if derived.model_max_length is not None and asked <= derived.model_max_length:
        return
    if long_lengths_allowed(launch.environment):
        return
    text = at(table("length.toml")["rule"], launch.version)["too_long"]
    message = text.format(
        asked=asked, key=derived.key, derived=derived.length, model_max_length=derived.model_max_length
    )
    raise RefusedError("CTX601", message, asked=asked, derived=int(derived.length))


def long_lengths_allowed(environment: Mapping[str, str]) -> bool:
    """Whether VLLM_ALLOW_LONG_MAX_MODEL_LEN turns the refusal into a warning."""
    return environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").strip().lower() in ("1", "true")


def _text(model: Model) -> Keys | None:
    if not model.config:
        return None
    try:
        return text_keys(Keys(model.config, "config.json"), model.source.unrecorded)
    except InputError:
        return None


def _smallest(text: Keys) -> tuple[str | None, float]:
    key, length = None, math.inf
    for name in LENGTH_KEYS:
        filled = text.absent.get(name) if name not in text.unknown else None
        value = _tokens(text.values.get(name, filled))
        if value is not None and value < length:
            key, length = name, value
    if key in _renamed(text):
        key = "max_position_embeddings"
    return key, length


def _renamed(text: Keys) -> list[str]:
    """Keys that transformers also answers as ``max_position_embeddings``, vLLM's first."""
    kind = str(text.values.get("model_type", ""))
    return [row["key"] for row in table("length.toml")["renamed"] if kind in row["model_types"]]


def _tokenizer_limit(model: Model, text: Keys, models: str) -> float:
    """The tokenizer's own limit, for the ``models`` whose release looks at it; infinite for the others."""
    looked_at = {
        "none": False,
        "all": True,
        "pooling": model.pooling,
        "pooling with absolute positions": model.pooling and text.values.get("position_embedding_type") == "absolute",
    }
    limit = model.source.tokenizer.model_max_length
    return limit if looked_at[models] and limit is not None and limit > 0 else math.inf


def _ropes(text: Keys) -> list[Mapping[str, Any]]:
    for name in ("rope_parameters", "rope_scaling"):
        value = text.values.get(name)
        if isinstance(value, Mapping) and value:
            nested = [part for part in value.values() if isinstance(part, Mapping)]
            return nested or [value]
    return []


def _type(rope: Mapping[str, Any]) -> str:
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    return "longrope" if kind == "su" else kind


def _scaled(length: float, ropes: list[Mapping[str, Any]], unscaled: list[str]) -> tuple[float, float]:
    """The length times its rope factor, and the factor. YaRN counts from the length before extension."""
    factor = 1.0
    for rope in ropes:
        kind = _type(rope)
        if kind in unscaled:
            continue
        factor = _tokens(rope.get("factor")) or factor
        if kind == "yarn":
            length = _tokens(rope.get("original_max_position_embeddings")) or length
    return length * factor, factor


def _tokens(value: Any) -> float | None:
    """A length or factor as the configuration gives it, None for what is no sensible number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 < value < 1 << 40 else None
