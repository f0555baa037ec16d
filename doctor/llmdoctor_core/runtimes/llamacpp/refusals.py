"""Why llama-server will not start: arguments, files, architectures, cache types and devices that are too small."""

from __future__ import annotations

import json
from functools import lru_cache

from llmdoctor_core.facts import DeviceMemory, Launch, Model, Refusal

from . import cache as caches
from .arguments import Span, alive
from .builds import DATA, NEWEST_BUILD
from .cache import Types
from .context import MAX_SEQUENCES, Context
from .devices import HOST
from .geometry import Geometry, architecture_of
from .placement import range_of, weights_range


def refused(launch: Launch, model: Model, kept: Geometry, setting: Context, types: Types, build: int) -> Refusal | None:
    """The first reason why the server will not start, in the order in which it would say so."""
    for problem in launch.problems:
        if problem.kind in ("invalid", "incomplete"):
            return Refusal(code="ARG903", message=f"{problem.flag}: {problem.detail}", detail={"flag": problem.flag})
        if problem.kind == "unknown":
            return Refusal(code="ARG901", message=f"{problem.flag}: {problem.detail}", detail={"flag": problem.flag})
        if problem.kind in ("removed", "renamed"):
            return Refusal(code="ARG902", message=f"{problem.flag}: {problem.detail}", detail={"flag": problem.flag})
    for file in model.source.files:
        if file.problem == "missing":
            return Refusal(
                code="GGUF505", message=f"failed to load GGUF split from {file.name}", detail={"file": file.name}
            )
        if file.problem == "truncated":
            return Refusal(
                code="GGUF506",
                message="tensor data is not within the file bounds, model is corrupted or incomplete",
                detail={"file": file.name, "bytes": file.bytes, "expected": file.expected_bytes},
            )
    name = architecture_of(model)
    if name is None:
        return Refusal(
            code="MODEL513",
            message=f"llama.cpp's converter knows no {model.architecture}",
            detail={"architecture": model.architecture},
        )
    if knows_architecture(name, build) is False:
        return Refusal(
            code="GGUF503",
            message=f"unknown model architecture: '{name}'",
            detail={"architecture": name, "build": f"b{build}"},
        )
    pre = model.source.tokenizer.pre_tokenizer
    if pre and model.source.tokenizer.kind == "gpt2" and knows_pre_tokenizer(pre, build) is False:
        return Refusal(
            code="GGUF504",
            message=f"unknown pre-tokenizer type: '{pre}'",
            detail={"pre_tokenizer": pre, "build": f"b{build}"},
        )
    if setting.slots > MAX_SEQUENCES:
        return Refusal(
            code="ARG903",
            message=f"n_seq_max must be <= {MAX_SEQUENCES}",
            detail={"parallel": setting.slots},
        )
    return _unusable_type(launch, kept, types)


def _unusable_type(launch: Launch, kept: Geometry, types: Types) -> Refusal | None:
    """What llama_init_from_model says of the cache types."""
    detail: dict[str, str | int | float | None] = {"cache_type_k": types.key, "cache_type_v": types.value}
    if kept.latent and types.key != types.value:
        message = f"model does not support different K ({types.key}) and V ({types.value}) cache types"
        return Refusal(code="GGUF508", message=message, detail=detail | {"why": "latent"})
    if types.value_type.block > 1 and types.transposed:
        message = "quantized V cache requires flash_attn to be enabled"
        return Refusal(code="GGUF508", message=message, detail=detail | {"why": "flash attention"})
    problem = caches.divisor_problem(kept, types, flash=not types.transposed)
    if problem:
        return Refusal(code="GGUF508", message=problem, detail=detail | {"why": "head size"})
    return None


@lru_cache(maxsize=2)
def _known(table: str) -> dict[str, Span]:
    rows = json.loads((DATA / f"{table}.json").read_text())["rows"]
    return {name: (span[0], span[1]) for name, span in rows.items()}


def knows_architecture(name: str, build: int) -> bool | None:
    """Whether the build loads general.architecture ``name``; None where the build is newer than every tree read."""
    return _knows("architectures", name, build)


def knows_pre_tokenizer(name: str, build: int) -> bool | None:
    """Whether the build knows tokenizer.ggml.pre ``name``; None where the build is newer than every tree read."""
    return _knows("pre_tokenizers", name, build)


def _knows(table: str, name: str, build: int) -> bool | None:
    span = _known(table).get(name)
    if span is None:
        return None if build > NEWEST_BUILD else False
    return alive(span, build)


def out_of_memory(memory: tuple[DeviceMemory, ...]) -> Refusal | None:
    """The first device that cannot hold even the least of what it is asked for."""
    for row in memory:
        if row.device == HOST or row.budget is None or row.weights is None:
            continue
        least, _ = range_of(row)
        if least > row.budget:
            weights = weights_range(row)[0] > row.budget
            return Refusal(
                code="MEM801" if weights else "MEM803",
                message=f"{row.name}: cudaMalloc failed: out of memory",
                detail={"device": row.name, "needed": least, "free": row.budget, "weights": row.weights},
            )
    return None
