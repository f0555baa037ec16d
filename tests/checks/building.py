"""Small facts to build cases from: an A100 host, a vLLM launch of an 8B model, its forecast."""

from __future__ import annotations

from typing import Any

from llmdoctor_core.facts import (
    Argument,
    CacheForecast,
    CachePart,
    Container,
    DeviceMemory,
    Distribution,
    Environment,
    Estimate,
    Forecast,
    Full,
    Gpu,
    Gpus,
    Launch,
    LaunchRequest,
    Layer,
    Link,
    Links,
    Model,
    ModelId,
    ModelSource,
    Mount,
    Requirement,
    RuntimeId,
    System,
    TargetEnvironment,
)

GIB = 1 << 30
VOCABULARY = 151936


def gpu(index: int = 0, **fields: Any) -> Gpu:
    """An idle, healthy A100-80GB."""
    healthy: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "NVIDIA A100-SXM4-80GB",
        "visible_as": index,
        "compute_capability": (8, 0),
        "memory_total": 80 * GIB,
        "memory_used": 0,
        "memory_free": 80 * GIB,
        "ecc_uncorrected": 0,
        "remapped_failed": False,
        "remapped_pending": False,
        "retired_pending": False,
        "throttling": ("idle",),
        "pcie_generation_max": 4,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "fabric_state": "not supported",
    }
    return Gpu(**(healthy | fields))


def gpus(count: int = 1, *, host: dict[str, Any] | None = None, **fields: Any) -> Gpus:
    return Gpus(devices=tuple(gpu(index, **fields) for index in range(count)), **(host or {}))


def t4() -> Gpus:
    return gpus(name="Tesla T4", compute_capability=(7, 5), memory_total=15 * GIB, memory_free=15 * GIB)


def links(*pairs: tuple[int, int, str, int], **fields: Any) -> Links:
    """Links from (a, b, path, NVLinks)."""
    return Links(
        pairs=tuple(Link(a=a, b=b, path=path, nvlinks=count, p2p="ok") for a, b, path, count in pairs), **fields
    )


def launch(
    runtime: Any = "vllm", version: str = "0.32.0", *, default: tuple[str, ...] = (), **arguments: Any
) -> Launch:
    """A resolved launch; the arguments count as given on the command line but those named in ``default``."""
    extra = {name: arguments.pop(name) for name in ("environment", "problems", "entrypoint") if name in arguments}
    defaults: dict[str, Any] = {}
    if runtime == "vllm":
        defaults = {
            "gpu_memory_utilization": 0.92,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "max_model_len": 32768,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "dtype": "auto",
            "kv_cache_dtype": "auto",
            "enforce_eager": False,
        }
    merged = defaults | arguments
    return Launch(
        runtime=runtime,
        version=version,
        version_assumed=False,
        entrypoint=extra.get("entrypoint", "serve"),
        model="org/model",
        arguments={
            name: Argument(
                name=name, value=value, origin="given" if name in arguments and name not in default else "default"
            )
            for name, value in merged.items()
        },
        environment=extra.get("environment", {}),
        problems=extra.get("problems", ()),
    )


def llama(version: str = "b11434", **arguments: Any) -> Launch:
    return launch("llamacpp", version, **arguments)


def request(runtime: Any = "vllm", **fields: Any) -> LaunchRequest:
    return LaunchRequest(runtime=runtime, **fields)


def source(**fields: Any) -> ModelSource:
    plain: dict[str, Any] = {
        "name": "org/model",
        "origin": "folder",
        "where": "/models/org--model/config.json",
        "config": {},
    }
    return ModelSource(**(plain | fields))


def gguf(architecture: str = "qwen3", **fields: Any) -> ModelSource:
    """A GGUF file; ``metadata`` holds keys without the architecture's prefix, ``general`` those without one."""
    metadata = {f"{architecture}.{key}": value for key, value in fields.pop("metadata", {}).items()}
    general = {"general.architecture": architecture, **fields.pop("general", {})}
    return source(config=None, origin="file", where="/models/model.gguf", gguf=general | metadata, **fields)


FULL = Layer(caches=(Full(kv_heads=8, key_dim=128, value_dim=128),))


def model(**fields: Any) -> Model:
    """Qwen3-8B in the main: 36 full layers of 8 KV heads, 32 heads."""
    plain: dict[str, Any] = {
        "name": "org/model",
        "origin": "folder",
        "architecture": "Qwen3ForCausalLM",
        "model_type": "qwen3",
        "layers": (FULL,) * 36,
        "hidden_size": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocabulary": VOCABULARY,
        "training_length": 40960,
        "dtype": "bfloat16",
        "weight_bytes": 16 * GIB,
        "source": source(),
    }
    return Model(**(plain | fields))


def device(**fields: Any) -> DeviceMemory:
    """An A100-80GB at 0.92 with the 8B model on it."""
    plain: dict[str, Any] = {
        "device": 0,
        "name": "NVIDIA A100-SXM4-80GB",
        "total": 80 * GIB,
        "budget": int(73.6 * GIB),
        "weights": int(15.3 * GIB),
        "activations": 2 * GIB,
        "graphs": 1 * GIB,
        "other": GIB // 2,
        "cache": int(54.8 * GIB),
        "headroom": int(6.4 * GIB),
        "certainty": {},
    }
    return DeviceMemory(**(plain | fields))


def cache(**fields: Any) -> CacheForecast:
    """One request of 32,768 tokens takes 4.5 GiB; the pool holds twelve."""
    plain: dict[str, Any] = {
        "request_tokens": 32768,
        "bytes_per_request": 4608 << 20,
        "bytes_per_token": 147456.0,
        "parts": (CachePart(kind="full", layers=36, bytes=4608 << 20, grows_with="tokens"),),
        "block_tokens": 16,
        "blocks": 24935,
        "blocks_per_request": 2048,
        "bytes": int(54.8 * GIB),
        "tokens": 398960,
        "max_concurrency": 12.18,
    }
    return CacheForecast(**(plain | fields))


def forecast(**fields: Any) -> Forecast:
    plain: dict[str, Any] = {
        "runtime": RuntimeId(name="vllm", version="0.32.0"),
        "model": ModelId(name="org/model", layers=36, origin="folder"),
        "cache": cache(),
        "memory": (device(),),
    }
    return Forecast(**(plain | fields))


def estimate(low: float, high: float) -> Estimate:
    return Estimate(low=low, high=high, why="the runtime measures it")


def distribution(name: str, version: str, *requires: str, **fields: Any) -> Distribution:
    """A distribution; requirements as ``name==1.0``."""
    needs = []
    for need in requires:
        cut = next((position for position, letter in enumerate(need) if letter in "=<>!~"), len(need))
        needs.append(Requirement(name=need[:cut], specifier=need[cut:]))
    return Distribution(name=name, version=version, requires=tuple(needs), **fields)


def target(*distributions: Distribution, **fields: Any) -> TargetEnvironment:
    """A Python 3.12 environment for CUDA 13 with these distributions."""
    plain: dict[str, Any] = {
        "python": "/opt/venv/bin/python",
        "version": (3, 12, 1),
        "machine": "x86_64",
        "torch_cuda": "13.0",
        "torch_architectures": ("75", "80", "86", "90", "100", "120"),
    }
    return TargetEnvironment(distributions={one.name: one for one in distributions}, **(plain | fields))


def system(**fields: Any) -> System:
    plain: dict[str, Any] = {
        "kernel": "6.8.0",
        "glibc": "2.39",
        "libstdcxx": "3.4.33",
        "cpu_flags": ("avx", "avx2", "fma", "f16c", "avx512f"),
        "memory_total": 256 * GIB,
        "memory_available": 200 * GIB,
        "hugepages_free": 0,
        "hugepage_size": 2 << 20,
        "memlock": -1,
        "open_files": 65536,
        "uid": 1000,
        "user": "serve",
        "has_passwd_entry": True,
        "iommu": "off",
        "acs": False,
    }
    return System(**(plain | fields))


def container(**fields: Any) -> Container:
    plain: dict[str, Any] = {
        "kind": "docker",
        "shm": Mount(path="/dev/shm", size=8 * GIB, free=8 * GIB),
        "devices": ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"),
        "libcuda": ("/usr/lib/x86_64-linux-gnu/libcuda.so.1",),
    }
    return Container(**(plain | fields))


def variables(**named: str) -> Environment:
    return Environment(variables=named)
