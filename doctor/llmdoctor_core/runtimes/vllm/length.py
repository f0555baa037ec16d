"""The longest context vLLM derives from a model's configuration, and its refusal of a longer one."""

from __future__ import annotations

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
    default: int
    """What --max-model-len is where it is not given: for longrope the length before extension."""
    model_max_length: int | None = None


def derived_length(model: Model, version: str) -> Derived:
    """The length of config/model.py: _get_and_verify_max_len, as this release reads the configuration."""
    rules = at(table("length.toml")["rule"], version)
    text = _text(model)
    if text is None:
        length = float(model.training_length or WITHOUT_KEY)
        return Derived(length=length, key="max_position_embeddings", default=int(length))
    key, length = _smallest(text)
    longest = text.values.get("model_max_length")
    if isinstance(longest, int) and longest:
        key, length = "model_max_length", longest
    tokenizer = model.source.tokenizer.model_max_length
    if tokenizer is not None and length is not None:
        length = min(length, int(tokenizer))
    if length is None:
        return Derived(length=float(WITHOUT_KEY), key=None, default=WITHOUT_KEY)
    scaled: float = length
    ropes = _ropes(text)
    if "gemma3" not in str(model.config.get("model_type", "")) and (ropes or rules["always_scaled"]):
        factor = 1.0
        for rope in ropes:
            kind = str(rope.get("rope_type", rope.get("type", "default")))
            if kind in rules["unscaled"]:
                continue
            factor = float(rope.get("factor") or factor)
            if kind == "yarn":
                scaled = int(rope.get("original_max_position_embeddings") or length)
        scaled = scaled * factor
    default = int(scaled)
    if any(str(rope.get("rope_type", rope.get("type"))) in ("longrope", "su") for rope in ropes):
        original = text.values.get("original_max_position_embeddings")
        default = int(original) if isinstance(original, int) else default
    own = longest if isinstance(longest, int) else None
    return Derived(length=scaled, key=key, default=default, model_max_length=own)


def check_length(launch: Launch, model: Model) -> None:
    """Raise RefusedError (CTX601) with vLLM's words where the length asked for is above the derived one."""
    asked = launch.get("max_model_len")
    if not launch.given("max_model_len") or not isinstance(asked, int) or asked < 0:
        return
    derived = derived_length(model, launch.version)
    if asked <= derived.length or derived.key is None:
        return
    if derived.model_max_length is not None and asked <= derived.model_max_length:
        return
    if str(launch.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0")).strip().lower() in ("1", "true"):
        return
    text = at(table("length.toml")["rule"], launch.version)["too_long"]
    message = text.format(
        asked=asked, key=derived.key, derived=derived.length, model_max_length=derived.model_max_length
    )
    raise RefusedError("CTX601", message, asked=asked, derived=int(derived.length))


def _text(model: Model) -> Keys | None:
    if not model.config:
        return None
    try:
        return text_keys(Keys(model.config, "config.json"), model.source.unrecorded)
    except InputError:
        return None


def _smallest(text: Keys) -> tuple[str | None, int | None]:
    key, length = None, None
    for name in LENGTH_KEYS:
        value = text.count(name, most=1 << 40)
        if value is not None and (length is None or value < length):
            key, length = name, value
    return key, length


def _ropes(text: Keys) -> list[Mapping[str, Any]]:
    for name in ("rope_parameters", "rope_scaling"):
        value = text.values.get(name)
        if isinstance(value, Mapping) and value:
            nested = [part for part in value.values() if isinstance(part, Mapping)]
            return nested or [value]
    return []
