"""What a release of vLLM fills in for a launch on a device. First cut: the settings that the cache depends on."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from llmdoctor_core.facts import Argument, Gpus, Launch, LaunchRequest, Model

from . import arguments

NEWEST = "0.33.0"


def resolve(request: LaunchRequest, model: Model | None, gpus: Gpus | None) -> Launch:
    """The launch as this version and GPU complete it."""
    version = Version(request.version or NEWEST)
    reading = arguments.read(request.argv, str(version), request.config_files)
    found = dict(reading.settings)

    def fill(name: str, value: Any, why: str) -> None:
        found.setdefault(name, Argument(name=name, value=value, origin="default", why=why))

    device = gpus.visible[0] if gpus and gpus.visible else None
    memory = device.memory_total or 0 if device else 0
    large = memory >= 70 << 30 and not (device and "a100" in device.name.lower())
    serve = request.entrypoint == "serve"
    fill("max_num_batched_tokens", (8192 if large else 2048) if serve else (16384 if large else 8192), "device tier")
    fill("max_num_seqs", 1024 if large else 256, "device tier")
    fill("gpu_memory_utilization", 0.92 if version >= Version("0.20") else 0.9, "0.92 since 0.20.0")
    fill("max_model_len", model.training_length if model else None, "the model's own length")
    fill("enable_prefix_caching", True, "on")
    hybrid_align = version >= Version("0.28")
    fill("mamba_cache_mode", "align" if hybrid_align else "none", "align since 0.28.0")
    fill("block_size", None, "chosen by the attention backend")
    fill("kv_cache_dtype", "auto", "")
    fill("async_scheduling", version >= Version("0.14"), "on since 0.14")
    fill("enforce_eager", False, "")
    for size in ("tensor", "pipeline", "data"):
        fill(f"{size}_parallel_size", 1, "")
    fill("decode_context_parallel_size", 1, "")
    fill("disable_hybrid_kv_cache_manager", False, "")
    fill("speculative_config", None, "")
    fill("kv_transfer_config", None, "")
    fill("kv_cache_memory_bytes", None, "")
    fill("num_gpu_blocks_override", None, "")
    return Launch(
        runtime="vllm",
        version=str(version),
        version_assumed=request.version is None,
        entrypoint=request.entrypoint,
        model=request.model or reading.value("model"),
        arguments=found,
        environment=request.environment | reading.environment,
        problems=tuple(reading.problems),
        command=reading.command,
    )
