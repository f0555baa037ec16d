"""Launches of vLLM for tests: a configuration, the words of a command line, a release and a device."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from llmdoctor_core.facts import Forecast, Gpu, Gpus, Launch, LaunchRequest, Model, ModelSource
from llmdoctor_core.models import describe
from llmdoctor_core.runtimes import vllm

TESTS = Path(__file__).parents[0]
GIB = 1 << 30
CARDS: dict[str, tuple[str, tuple[int, int], float]] = {
    "A100": ("NVIDIA A100-SXM4-80GB", (8, 0), 79.25),
    "H100": ("NVIDIA H100 80GB HBM3", (9, 0), 79.19),
    "L4": ("NVIDIA L4", (8, 9), 22.04),
    "A10G": ("NVIDIA A10G", (8, 6), 22.06),
    "B200": ("NVIDIA B200", (10, 0), 178.35),
    "RTX 5090": ("NVIDIA GeForce RTX 5090", (12, 0), 31.36),
    "GB10": ("NVIDIA GB10", (12, 1), 121.69),
}
"""Name, compute capability and GiB as CUDA counts them."""


def gpus(card: str, count: int = 8) -> Gpus:
    name, capability, size = CARDS[card]
    return Gpus(
        devices=tuple(
            Gpu(
                index=number,
                visible_as=number,
                name=name,
                compute_capability=capability,
                memory_total=int(size * GIB),
                memory_free=int(size * GIB),
            )
            for number in range(count)
        )
    )


@lru_cache(maxsize=4)
def model(name: str) -> Model:
    """The model of a file in tests/configs."""
    config = json.loads((TESTS / "configs" / f"{name}.json").read_text())
    return described(name, config)


def described(name: str, config: dict[str, Any]) -> Model:
    return describe(ModelSource(name=name, origin="folder", where=name, config=config))


def resolve(
    made: Model,
    *words: str,
    version: str,
    card: str | None = "A100",
    entrypoint: Literal["serve", "llm"] = "serve",
    environment: dict[str, str] | None = None,
) -> Launch:
    request = LaunchRequest(
        runtime="vllm",
        argv=words,
        version=version,
        entrypoint=entrypoint,
        model=made.name,
        environment=environment or {},
    )
    return vllm.resolve(request, made, gpus(card) if card else None)


def forecast(
    made: Model,
    *words: str,
    version: str,
    card: str | None = "A100",
    entrypoint: Literal["serve", "llm"] = "serve",
    kv_memory: int | None = None,
    draft: Model | None = None,
    environment: dict[str, str] | None = None,
) -> Forecast:
    launch = resolve(made, *words, version=version, card=card, entrypoint=entrypoint, environment=environment)
    return vllm.forecast(launch, made, gpus(card) if card else None, draft, kv_memory)
