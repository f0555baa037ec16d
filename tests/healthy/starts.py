"""Public logs of starts told as cases: the command as a person types it, the model, the GPUs; nothing is made up."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from llmdoctor_core.case import Case
from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Gpu, Gpus, LaunchRequest, ModelSource, Unavailable
from llmdoctor_core.runtimes.llamacpp import replay as llamacpp

TESTS = Path(__file__).parents[1]
GIB = 1 << 30
FILES = ("vllm/startup-logs.jsonl", "llamacpp-field-logs.jsonl", "other-starts.jsonl")
REFUSED = ("refused to start", "did not start")
FOREIGN = re.compile(r"AMD|Radeon|gfx\d|\bMI\d{3}|Ascend|Apple|Neuron|\bCPU\b")
"""Names of devices that are not NVIDIA's: they have no compute capability."""


@lru_cache(maxsize=1)
def replay_tool() -> ModuleType:
    """tools/replay_logs.py, which knows how vLLM's log lines are typed and which model a name means."""
    spec = importlib.util.spec_from_file_location("replay_logs", TESTS.parent / "tools" / "replay_logs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["replay_logs"] = module
    spec.loader.exec_module(module)
    return module


@lru_cache(maxsize=1)
def rows() -> tuple[dict[str, Any], ...]:
    """Every row of the logs kept here."""
    lines = [line for name in FILES for line in (TESTS / "data" / name).read_text().splitlines()]
    return tuple(json.loads(line) for line in lines)


def unfit(row: dict[str, Any]) -> str | None:
    """Why a row is no healthy start that a case can be made of; None where it is one."""
    if any(said in row["note"] for said in REFUSED):
        return "the server refused to start"
    if row["model"] is None:
        return "the log does not name the model"
    if row["runtime"] == "llama.cpp" and row["settings"].get("n_ctx") is None:
        return "the log does not print the context"
    return None


def cases_of(row: dict[str, Any]) -> dict[str, Case]:
    """The row as cases by what is taken as known: its GPUs alone, and where it printed one, its pool."""
    case = case_of(row)
    printed = row["printed"]
    pool = printed.get("kv_in_use_gib") or printed.get("available_kv_gib")
    found = {"memory predicted": case}
    if row["runtime"] == "vllm" and isinstance(pool, float):
        found["pool as printed"] = case_of(row, kv_memory=int(pool * GIB))
    return found


def case_of(row: dict[str, Any], kv_memory: int | None = None) -> Case:
    """The row as one case."""
    runtime, argv = _typed(row)
    version = row["version"]
    request = LaunchRequest(
        runtime=runtime,  # type: ignore[arg-type]
        argv=argv,
        version=version,
        version_source="the log" if version else "the log does not print it",
        model=row["model"],
        kv_memory=kv_memory,
    )
    return Case(launch=request, model=_source(row), gpus=_gpus(row))


def _source(row: dict[str, Any]) -> ModelSource | Unavailable:
    if row["runtime"] in ("llama.cpp", "ik_llama.cpp"):
        try:
            return llamacpp.source_of(row)
        except InputError as error:
            return Unavailable(reason=str(error), permanent=True)
    found = replay_tool().source_of(row)
    return found or Unavailable(reason="the log tells no more of the model than its name", permanent=True)


def _gpus(row: dict[str, Any]) -> Gpus | Unavailable:
    name, total = str(row["gpu"] or ""), row["printed"].get("total_gpu_gib")
    if FOREIGN.search(name):
        size = round(total * GIB) if total else None
        count = row["n_gpus"] or row["tp"] or 1
        return Gpus(
            devices=tuple(Gpu(index=index, visible_as=index, name=name, memory_total=size) for index in range(count))
        )
    asked = 1
    for size in ("tp", "pp", "dp"):
        asked *= row[size] or 1
    count = max(asked, row["n_gpus"] or 1)
    if count > 64:
        return Unavailable(reason=f"{count} devices over several hosts", permanent=True)
    found = replay_tool().gpus_of({**row, "tp": count, "pp": 1, "dp": 1})
    return found or Unavailable(reason="the log does not tell the GPU", permanent=True)


def _typed(row: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The runtime and the command."""
    kind, settings, model = row["runtime"], row["settings"], str(row["model"])
    if kind == "vllm":
        return "vllm", ("vllm", "serve", model, *replay_tool().words(row))
    if kind == "llama.cpp":
        layers = str(settings.get("offloaded_layers") or "").partition("/")[0]
        moved = ("-ngl", layers) if layers.isdigit() else ()
        return "llamacpp", ("llama-server", "-m", model, *moved, *llamacpp.words(row))
    if kind == "ik_llama.cpp":
        words = ("-c", str(settings["n_ctx"]), "-ctk", settings["cache_type_k"])
        return "llamacpp", ("llama-server", "-m", f"{model}.gguf", *words)
    if kind == "sglang":
        return "sglang", ("python3", "-m", "sglang.launch_server", "--model-path", model, *_sglang(row))
    if kind == "tensorrt-llm":
        return "trtllm", ("trtllm-serve", model, *_trtllm(row))
    return "ollama", ("ollama", "serve")


SGLANG = (
    "mem_fraction_static", "dtype", "quantization", "kv_cache_dtype", "context_length", "max_running_requests",
    "chunked_prefill_size", "max_prefill_tokens", "page_size", "attention_backend", "cuda_graph_max_bs", "device",
    "speculative_algorithm", "speculative_num_draft_tokens", "speculative_num_steps",
)  # fmt: skip
SGLANG_SWITCHES = ("disable_radix_cache", "disable_cuda_graph", "enable_dp_attention")


def _sglang(row: dict[str, Any]) -> list[str]:
    settings = row["settings"]
    found = []
    for name in SGLANG:
        if settings.get(name) is not None:
            found += [f"--{name.replace('_', '-')}", str(settings[name])]
    found += [f"--{name.replace('_', '-')}" for name in SGLANG_SWITCHES if str(settings.get(name)) == "True"]
    for size in ("tp", "dp", "ep"):
        count = row.get(size) or settings.get(f"{size}_size") or 1
        found += [f"--{size}-size", str(count)] if count > 1 else []
    return found


def _trtllm(row: dict[str, Any]) -> list[str]:
    settings = row["settings"]
    found = []
    for name in ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width"):
        if settings.get(name) is not None:
            found += [f"--{name}", str(settings[name])]
    if settings.get("free_gpu_memory_fraction") is not None:
        found += ["--kv_cache_free_gpu_memory_fraction", f"{settings['free_gpu_memory_fraction']:g}"]
    for size in ("tp", "pp"):
        found += [f"--{size}_size", str(row[size])] if (row[size] or 1) > 1 else []
    return found
