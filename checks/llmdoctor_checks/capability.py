"""Compute capability: whether this GPU can do what the build, the data type, the quantization and the attention ask."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from llmdoctor_core.check import check
from llmdoctor_core.facts import (
    Full,
    Gpu,
    Gpus,
    Latent,
    Launch,
    LaunchRequest,
    Model,
    Place,
    SlidingWindow,
    TargetEnvironment,
)
from llmdoctor_core.finding import Finding, fail, seen, skip, warn

from .launches import argument, listed, release, taken, variable
from .tables import Row, row, table

Capability = tuple[int, int]
FALLS_BACK_SINCE = Version("0.9")
"""With --dtype auto, vLLM takes a data type the GPU has since 0.9.0 (config.py _resolve_auto_dtype)."""


def _text(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _pair(text: str) -> Capability:
    major, minor = text.split(".")
    return int(major), int(minor)


def _kinds(gpus: tuple[Gpu, ...]) -> dict[str, Capability | None]:
    """Compute capability of each model of GPU, once each."""
    return {gpu.name: gpu.compute_capability for gpu in gpus}


def _least(number_format: str) -> Capability:
    known = row("tensor-core-formats", format=number_format)
    assert known is not None
    return _pair(known["compute_capability"])


def runs_on(architecture: str, capability: Capability) -> bool:
    """Whether machine code for ``80``, ``90a``, ``120f`` runs on a GPU.

    Code runs on later minor versions of the same major one; an ``a`` target on its own compute capability only, an
    ``f`` target on its family (NVIDIA CUDA programming guide, compute capabilities and feature sets). What is no
    architecture of NVIDIA's runs nowhere.
    """
    named = re.fullmatch(r"([0-9]{1,2})([0-9])([af]?)", architecture)
    if named is None:
        return False
    target = int(named[1]), int(named[2])
    if named[3] == "a":
        return target == capability
    return target[0] == capability[0] and target[1] <= capability[1]


@check("GPU011", "no-kernels-for-gpu", runtimes={"vllm", "sglang"})
def no_kernels_for_gpu(gpus: Gpus, target: TargetEnvironment, launch: Launch | None) -> Iterator[Finding]:
    """The installed torch or engine holds no machine code that this GPU can run."""
    torch = target.has("torch")
    if torch is None or target.torch_cuda == "none":
        return
    built = {f"torch {torch.version}": target.torch_architectures}
    built |= {
        library.path.rpartition("/")[2]: library.architectures for library in target.native if library.architectures
    }
    if not target.torch_architectures:
        yield skip(
            "which GPUs torch {version} was built for was not read: {reason}",
            version=torch.version,
            reason=target.unread.get("torch_architectures", "no list of architectures in its libraries"),
        )
    for name, capability in _kinds(taken(gpus, launch)).items():
        if capability is None:
            yield skip("the compute capability of {gpu} was not read", gpu=name)
            continue
        for library, architectures in built.items():
            if architectures and not any(runs_on(architecture, capability) for architecture in architectures):
                yield fail(
                    "{library} has no machine code for {gpu} (compute capability {capability}; it was built for "
                    "{architectures}): 'no kernel image is available for execution on the device'. Install a build "
                    "whose list has sm_{number}, or use another GPU",
                    evidence=(
                        seen("architectures", listed(f"sm_{one}" for one in architectures), library),
                        seen("compute capability", _text(capability), gpus.assumed or "NVML"),
                    ),
                    where=Place(kind="package", name=library),
                    library=library,
                    gpu=name,
                    capability=_text(capability),
                    architectures=listed(architectures),
                    number=f"{capability[0]}{capability[1]}",
                )


@check("GPU012", "dtype-unsupported-by-gpu", runtimes={"vllm"}, remedy="set-dtype-half")
def dtype_unsupported_by_gpu(gpus: Gpus, launch: Launch, model: Model | None) -> Iterator[Finding]:
    """The model would run in bfloat16, which GPUs before compute capability 8.0 cannot."""
    asked = str(launch["dtype"]) if launch.given("dtype") else "auto"
    if model is None:
        yield skip("the model was not read, so its data type is not known")
        return
    unstable = any(
        row("float16-unsupported", model_type=kind) for kind in (model.model_type, model.config.get("model_type"))
    )
    evidence = (seen("dtype", asked, "arguments"), seen("dtype of the checkpoint", model.dtype, model.source.where))
    where = argument(launch, "dtype") or Place(kind="argument", name="--dtype")
    if asked in ("half", "float16") and unstable:
        yield fail(
            "vLLM does not run model type {kind} in float16 (numerical instability): 'does not support float16'. "
            "Use --dtype bfloat16, or float32 on GPUs without it",
            evidence=evidence,
            where=where,
            kind=model.model_type,
        )
    wanted = model.dtype if asked == "auto" else asked
    if wanted not in ("bfloat16", "bf16"):
        return
    version = release(launch.version)
    falls_back = asked == "auto" and version is not None and version >= FALLS_BACK_SINCE
    for name, capability in _kinds(taken(gpus, launch)).items():
        if capability is None:
            yield skip("the compute capability of {gpu} was not read", gpu=name)
        elif capability >= _least("bf16"):
            continue
        elif falls_back:
            yield warn(
                "{gpu} (compute capability {capability}) has no bfloat16, the checkpoint's data type: vLLM since "
                "0.9 falls back to {instead} with a line in the log. float16 can overflow where bfloat16 does not "
                "(look at the first answers), float32 takes twice the memory",
                evidence=(*evidence, seen("compute capability", _text(capability), gpus.assumed or "NVML")),
                where=where,
                gpu=name,
                capability=_text(capability),
                instead="float32" if unstable else "float16",
            )
        else:
            yield fail(
                "{gpu} has compute capability {capability} and bfloat16 needs 8.0: vLLM refuses to start ('Bfloat16 "
                "is only supported on GPUs with compute capability of at least 8.0'). Start with --dtype half",
                evidence=(*evidence, seen("compute capability", _text(capability), gpus.assumed or "NVML")),
                where=where,
                gpu=name,
                capability=_text(capability),
            )


def _method(launch: Launch, model: Model | None) -> str | None:
    """The quantization method as vLLM's table of methods calls it."""
    asked = launch.get("quantization")
    if isinstance(asked, str):
        return asked
    method = model.quantization.method if model and model.quantization else None
    if method and method.startswith("modelopt"):
        kinds = {"nvfp4": "modelopt_fp4", "mxfp8": "modelopt_mxfp8", "mixed": "modelopt_mixed"}
        return next((name for word, name in kinds.items() if word in method), "modelopt")
    return method


@check("GPU013", "quantization-unsupported-by-gpu", runtimes={"vllm"})
def quantization_unsupported_by_gpu(gpus: Gpus, launch: Launch, model: Model | None) -> Iterator[Finding]:
    """The checkpoint's quantization needs a newer GPU, or gives up its speed on this one."""
    method = _method(launch, model)
    version = release(launch.version)
    if method is None:
        if model is None:
            yield skip("the model was not read, so its quantization is not known")
        return
    stored = model.quantization.format if model and model.quantization and not model.experts else None
    known = [
        entry
        for entry in table("quantization-capabilities").rows
        if entry["method"] == method and entry.get("format") in (None, stored)
    ]
    rule = next(
        (entry for entry in known if version and SpecifierSet(entry["versions"]).contains(version, prereleases=True)),
        None,
    )
    bits = model.quantization.bits if model and model.quantization else None
    floating = (
        "fp8" in method
        or method == "modelopt"
        or (method == "compressed-tensors" and bits == 8 and model is not None and _is_float(model))
    )
    number_format = "fp4" if "fp4" in method else "fp8" if floating else None
    if not known and number_format is None:
        yield skip("quantization method {method} is in no release the table knows", method=method)
        return
    for name, capability in _kinds(taken(gpus, launch)).items():
        if capability is None:
            yield skip("the compute capability of {gpu} was not read", gpu=name)
        elif rule and capability < _pair(rule["compute_capability"]):
            yield fail(
                "vLLM {version} runs {method} checkpoints from compute capability {need}, and {gpu} has {capability}: "
                "'is not supported for the current GPU'. Take a 16-bit checkpoint of this model, one quantized in "
                "another way, or a newer GPU",
                evidence=(
                    seen("quantization", method, "config.json"),
                    seen("compute capability", _text(capability), gpus.assumed or "NVML"),
                ),
                where=argument(launch, "quantization"),
                version=launch.version,
                method=f"{method} ({rule['format']})" if "format" in rule else method,
                need=rule["compute_capability"],
                gpu=name,
                capability=_text(capability),
            )
        elif number_format and capability < _least(number_format):
            yield warn(
                "{gpu} (compute capability {capability}) has no {format} tensor cores (they start at {need}): vLLM "
                "unpacks the {method} weights to 16 bit in every step (Marlin). Memory is saved, speed is not; "
                "mixture-of-experts models can fail in some releases. An INT4 AWQ or GPTQ checkpoint suits this GPU "
                "better",
                evidence=(
                    seen("quantization", method, "config.json"),
                    seen("compute capability", _text(capability), gpus.assumed or "NVML"),
                ),
                gpu=name,
                capability=_text(capability),
                format=number_format.upper(),
                need=_text(_least(number_format)),
                method=method,
            )


def _is_float(model: Model) -> bool:
    """Whether a compressed-tensors checkpoint stores floating-point, not integer, weights."""
    stored = model.config.get("quantization_config")
    groups = stored.get("config_groups") if isinstance(stored, dict) else None
    schemes = (
        [one.get("weights") for one in groups.values() if isinstance(one, dict)] if isinstance(groups, dict) else []
    )
    return any(isinstance(weights, dict) and weights.get("type") == "float" for weights in schemes)


def _heads(model: Model) -> set[int]:
    """Head sizes of the layers that keep keys and values."""
    return {
        cache.key_dim for layer in model.layers for cache in layer.caches if isinstance(cache, Full | SlidingWindow)
    }


def _latent(model: Model) -> list[Latent]:
    return [cache for layer in model.layers for cache in layer.caches if isinstance(cache, Latent)]


def _misses(backend: Row, model: Model) -> str | None:
    """What the model's attention needs and the backend has not, in words; None where it has all that is known."""
    heads, latent = _heads(model), _latent(model)
    sizes, most = backend.get("head_sizes"), backend.get("head_size_most")
    if heads and latent:  # both kinds of layers: which of them the choice is for is not known
        return None
    if latent and not backend.get("mla"):
        return "latent attention (MLA)"
    if heads and backend.get("mla"):
        return "attention other than latent (MLA)"
    if latent and latent[0].sparse != bool(backend.get("sparse")):
        return "sparse latent attention" if latent[0].sparse else "latent attention that is not sparse"
    unfit = sorted(size for size in heads if (sizes and size not in sizes) or (most and size > most))
    return f"heads of {listed(unfit)} elements" if unfit else None


def _latent_off(launch: Launch, request: LaunchRequest | None) -> bool:
    return (variable("VLLM_MLA_DISABLE", request, None) or launch.environment.get("VLLM_MLA_DISABLE")) == "1"


@check("GPU014", "kv-dtype-or-attention-unsupported-by-gpu", runtimes={"vllm"})
def kv_dtype_or_attention_unsupported_by_gpu(
    gpus: Gpus, launch: Launch, model: Model | None, request: LaunchRequest | None
) -> Iterator[Finding]:
    """The KV cache type or the attention backend asked for does not work on this GPU."""
    backend = launch.get("attention_backend") or variable("VLLM_ATTENTION_BACKEND", request, None)
    cache = str(launch.get("kv_cache_dtype") or "auto")
    if cache == "auto" and model and model.quantization and model.quantization.kv_cache:
        cache = model.quantization.kv_cache
    version = release(launch.version)
    backends = [
        entry
        for entry in table("attention-backends").rows
        if version and SpecifierSet(entry["versions"]).contains(version, prereleases=True)
    ]
    forced = [entry for entry in backends if isinstance(backend, str) and entry["backend"] == backend.upper()]
    for known in forced:
        platform, misses = known.get("platform") if launch.platform == "cuda" else None, None
        if model and not _latent_off(launch, request):
            misses = _misses(known, model)
        if platform or misses:
            yield fail(
                "attention backend {backend} has not what this needs ({needs}): vLLM {version} answers 'Selected "
                "backend is not valid for this configuration' or 'Invalid attention backend'. Leave the choice to "
                "vLLM: drop --attention-backend and VLLM_ATTENTION_BACKEND",
                evidence=(
                    seen("attention backend", backend, "arguments"),
                    seen("attention", misses or "on a GPU", model.source.where if model else "NVML"),
                ),
                where=argument(launch, "attention_backend"),
                backend=known["backend"],
                needs=f"a GPU of NVIDIA; it is for {platform}" if platform else misses,
                version=launch.version,
            )
    for name, capability in _kinds(taken(gpus, launch)).items():
        if capability is None:
            yield skip("the compute capability of {gpu} was not read", gpu=name)
            continue
        sparse = [entry for entry in backends if entry.get("sparse")]
        if (
            sparse
            and model
            and any(cache.sparse for cache in _latent(model))
            and not _heads(model)
            and not any(_pair(entry["least"]) <= capability <= _pair(entry["most"]) for entry in sparse)
        ):
            yield fail(
                "{model} attends sparsely over a latent cache, and vLLM {version} has kernels for that on compute "
                "capability {capabilities} only; {gpu} has {capability}: 'No valid attention backend found'. Serve it "
                "on such a GPU, or look for a fork or another engine that brings kernels for this one",
                evidence=(
                    seen("attention", "sparse latent (DSA)", model.source.where),
                    seen("compute capability", _text(capability), gpus.assumed or "NVML"),
                ),
                model=model.name,
                version=launch.version,
                capabilities=listed(
                    f"{least} to {most}" for least, most in sorted({(one["least"], one["most"]) for one in sparse})
                ),
                gpu=name,
                capability=_text(capability),
            )
        for known in forced:
            if not _pair(known["least"]) <= capability <= _pair(known["most"]):
                yield fail(
                    "attention backend {backend} works on compute capability {least} to {most}, and {gpu} has "
                    "{capability}: vLLM answers 'Selected backend is not valid for this configuration'. Leave the "
                    "choice to vLLM: drop --attention-backend and VLLM_ATTENTION_BACKEND",
                    evidence=(
                        seen("attention backend", backend, "arguments"),
                        seen("compute capability", _text(capability), gpus.assumed or "NVML"),
                    ),
                    where=argument(launch, "attention_backend"),
                    backend=backend,
                    least=known["least"],
                    most="any" if known["most"] == "99.9" else known["most"],
                    gpu=name,
                    capability=_text(capability),
                )
        if cache.startswith("nvfp4") and capability < _least("fp4"):
            yield fail(
                "--kv-cache-dtype {cache} needs compute capability 10.0, and {gpu} has {capability}. Use "
                "--kv-cache-dtype fp8 (from 8.9) or leave it out",
                evidence=(
                    seen("KV cache dtype", cache, "arguments"),
                    seen("compute capability", _text(capability), gpus.assumed or "NVML"),
                ),
                where=argument(launch, "kv_cache_dtype"),
                cache=cache,
                gpu=name,
                capability=_text(capability),
            )
        elif cache in ("fp8", "fp8_e4m3") and capability < _least("fp8"):
            yield warn(
                "--kv-cache-dtype {cache} on {gpu} (compute capability {capability}): FP8 e4m3 is native from 8.9, "
                "below it only some attention backends convert it and the Triton one refuses ('fp8e4nv not "
                "supported'). Use fp8_e5m2, or leave the KV cache at 16 bit",
                evidence=(
                    seen("KV cache dtype", cache, "arguments"),
                    seen("compute capability", _text(capability), gpus.assumed or "NVML"),
                ),
                where=argument(launch, "kv_cache_dtype"),
                cache=cache,
                gpu=name,
                capability=_text(capability),
            )
