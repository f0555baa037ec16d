"""Reads models: Hugging Face configurations, safetensors and GGUF headers, the hub, the built-in catalogue."""

from __future__ import annotations

from ..errors import InputError
from ..facts import Model, ModelSource

__all__ = ["describe"]


def describe(source: ModelSource) -> Model:
    """What a model's files mean for a cache. Pure. Raises InputError naming the key that is missing or absurd."""
    try:
        if source.gguf is not None or source.weight_format == "gguf":
            from .gguf_describe import describe_gguf

            return describe_gguf(source)
        if source.config is None:
            raise InputError(f"{source.name}: neither a config.json nor a GGUF header was read")
        from .config import describe_config

        return describe_config(source)
    except RecursionError:
        raise InputError(f"{source.name}: its configuration is nested too deeply") from None
