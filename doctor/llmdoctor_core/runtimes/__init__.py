"""One folder a runtime: its arguments, its defaults by version, its cache arithmetic, its log lines."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Forecast, Gpus, Launch, LaunchRequest, Model

NAMES = ("vllm", "llamacpp")
"""Runtimes whose launches are resolved and forecast; each is a package beside this file."""


class Runtime(Protocol):
    """What each runtime's package offers, as module-level functions; all pure."""

    DISTRIBUTIONS: tuple[str, ...]
    """Names its Python distribution goes by, normalised; empty where it is no Python package."""
    NEWEST: str
    """Newest release this doctor knows: assumed where no version was observed."""

    def resolve(self, request: LaunchRequest, model: Model | None, gpus: Gpus | None) -> Launch:
        """The launch as this version and GPU complete it; what cannot be taken as typed becomes a problem."""

    def model_reference(
        self,
        argv: tuple[str, ...],
        config_files: dict[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str | None:
        """The model that the arguments, the config files they name, or variables name: an id, a folder, a file."""

    def draft_reference(self, argv: tuple[str, ...]) -> str | None:
        """The draft model the arguments name, or None."""

    def with_argument(self, argv: tuple[str, ...], name: str, value: str | None) -> tuple[str, ...]:
        """The command with one argument set to ``value``, or taken out (None), every spelling of it replaced."""

    def forecast(
        self, launch: Launch, model: Model, gpus: Gpus | None, draft: Model | None, kv_memory: int | None
    ) -> Forecast:
        """Memory and cache of the launch. ``kv_memory`` (bytes on each device) replaces the predicted pool."""


def runtime(name: str) -> Runtime:
    """The runtime of that name. Raises InputError naming the known ones."""
    if name not in NAMES:
        raise InputError(f"unknown runtime {name!r}; known are {', '.join(NAMES)}")
    return cast("Runtime", importlib.import_module(f"{__name__}.{name}"))
