"""GGUF files: whether they are whole, whether this build of llama.cpp knows them, and what their layout costs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from llmdoctor_core.check import check
from llmdoctor_core.facts import (
    ChunkedLocal,
    Compressed,
    Forecast,
    Gpus,
    Launch,
    LaunchRequest,
    Model,
    ModelSource,
    Place,
    SlidingWindow,
)
from llmdoctor_core.finding import Finding, fail, seen, skip, warn
from llmdoctor_core.runtimes.llamacpp.refusals import knows_architecture, knows_pre_tokenizer
from llmdoctor_core.units import gib

from .launches import argument, flag, listed
from .tables import row

RUNTIMES = ("llamacpp",)


def _build(launch: Launch) -> int | None:
    match = re.fullmatch(r"b?(\d+)", launch.version)
    return int(match[1]) if match else None


def _key(source: ModelSource, name: str) -> Any:
    metadata = source.gguf or {}
    return metadata.get(f"{metadata.get('general.architecture')}.{name}")


def _number(value: Any) -> int:
    """A count that may be given once or by layer, in which case the largest decides."""
    if isinstance(value, list):
        return max((item for item in value if isinstance(item, int)), default=0)
    return value if isinstance(value, int) else 0


@check("GGUF507", "not-a-gguf-file", runtimes=("llamacpp", "ollama"))
def not_a_gguf_file(source: ModelSource, request: LaunchRequest | None) -> Iterator[Finding]:
    """The model file is something else than a GGUF file."""
    if source.origin == "folder" and request and request.runtime == "llamacpp" and request.model in request.argv:
        yield fail(
            "{folder} is a folder, and llama-server loads a GGUF file: 'failed to load model'. Name the file in it, or "
            "make one of the checkpoint (python convert_hf_to_gguf.py {folder})",
            evidence=(seen("model", "a folder", source.where),),
            where=Place(kind="argument", name="--model"),
            folder=request.model,
        )
    for file in source.files:
        if (
            file.problem
            and file.problem not in ("missing", "truncated")
            and source.gguf is None
            and source.config is None
        ):
            yield fail(
                "{file} cannot be loaded: it is {problem}. Download the file itself (hf download REPO FILE; git lfs "
                "pull after a git clone) and check its size",
                evidence=(seen("first bytes", file.problem, file.name),),
                where=Place(kind="file", name=file.name),
                file=file.name,
                problem=file.problem,
            )


@check("GGUF505", "split-file-missing", runtimes=("llamacpp", "ollama"))
def split_file_missing(source: ModelSource) -> Iterator[Finding]:
    """A part of a split GGUF file is not there."""
    if source.gguf is None:
        return
    missing = [file.name for file in source.files if file.problem == "missing"]
    parts = source.gguf.get("split.count")
    if isinstance(parts, int) and parts > 1 and len(source.files) == 1 and not missing:
        yield fail(
            "{file} is the first of {parts} parts by its header and stands alone under a name without -00001-of-: "
            "parts were joined with cat, or renamed. llama.cpp reads only the first header. Download the parts anew "
            "under their own names, or join them with llama-gguf-split --merge",
            evidence=(seen("split.count", parts, source.files[0].name),),
            where=Place(kind="file", name=source.files[0].name),
            file=source.files[0].name,
            parts=parts,
        )
    if missing:
        yield fail(
            "{count} of {all} parts of the split file are missing: {missing}. llama.cpp opens the first and stops with "
            "'failed to load GGUF split'. Download them into the same folder under their own names; parts cannot be "
            "joined with cat (llama-gguf-split --merge does it)",
            evidence=tuple(seen("part", "missing", name) for name in missing),
            where=Place(kind="file", name=missing[0]),
            count=len(missing),
            all=len(source.files),
            missing=listed(missing[:4]) + (", ..." if len(missing) > 4 else ""),
        )


@check("GGUF506", "file-shorter-than-header", runtimes=("llamacpp", "ollama"))
def file_shorter_than_header(source: ModelSource) -> Iterator[Finding]:
    """The file ends before the tensors its header announces."""
    if source.gguf is None:
        return
    for file in source.files:
        if file.problem == "truncated" and file.expected_bytes:
            yield fail(
                "{file} has {have:,} bytes and its header announces {need:,}: {missing} are missing, the download was "
                "cut off. llama.cpp says 'tensor data is not within the file bounds'. Download it again and compare "
                "the size",
                evidence=(
                    seen("size", f"{file.bytes:,} bytes", file.name),
                    seen("size by its header", f"{file.expected_bytes:,} bytes", file.name),
                ),
                where=Place(kind="file", name=file.name),
                file=file.name,
                have=file.bytes,
                need=file.expected_bytes,
                missing=gib(file.expected_bytes - file.bytes),
            )


@check("GGUF503", "architecture-unknown-to-build", runtimes=RUNTIMES)
def architecture_unknown_to_build(launch: Launch, source: ModelSource) -> Iterator[Finding]:
    """This build of llama.cpp does not know the file's architecture."""
    if source.gguf is None:
        return
    architecture, build = source.gguf.get("general.architecture"), _build(launch)
    if build is None or not isinstance(architecture, str):
        yield skip("the build of llama.cpp or the file's architecture is not known")
        return
    known = knows_architecture(architecture, build)
    if known is None:
        yield skip(
            "build b{build} is newer than the tables; whether it knows {architecture} is not known",
            build=build,
            architecture=architecture,
        )
    elif not known:
        yield fail(
            "build b{build} does not know architecture '{architecture}': 'unknown model architecture'. Update "
            "llama.cpp (compare `llama-server --version` of the binary that really starts), or take a file converted "
            "for an older architecture",
            evidence=(
                seen("general.architecture", architecture, source.where),
                seen("build", f"b{build}", "assumed" if launch.version_assumed else "llama-server"),
            ),
            where=Place(kind="file", name=source.where),
            build=build,
            architecture=architecture,
        )


@check("GGUF504", "pre-tokenizer-unknown-to-build", runtimes=RUNTIMES)
def pre_tokenizer_unknown_to_build(launch: Launch, source: ModelSource) -> Iterator[Finding]:
    """This build of llama.cpp does not know the file's pre-tokenizer."""
    if source.gguf is None:
        return
    name, build = source.gguf.get("tokenizer.ggml.pre"), _build(launch)
    if not isinstance(name, str) or source.gguf.get("tokenizer.ggml.model", "gpt2") != "gpt2":
        return
    if build is None:
        yield skip("the build of llama.cpp is not known")
        return
    known = knows_pre_tokenizer(name, build)
    if known is None:
        yield skip(
            "build b{build} is newer than the tables; whether it knows pre-tokenizer {name} is not known",
            build=build,
            name=name,
        )
    elif not known:
        yield fail(
            "build b{build} does not know pre-tokenizer '{name}': 'error loading model vocabulary: unknown "
            "pre-tokenizer type'. Update llama.cpp; do not override tokenizer.ggml.pre, the text would be cut into "
            "wrong tokens",
            evidence=(
                seen("tokenizer.ggml.pre", name, source.where),
                seen("build", f"b{build}", "assumed" if launch.version_assumed else "llama-server"),
            ),
            where=Place(kind="file", name=source.where),
            build=build,
            name=name,
        )


@check("GGUF501", "mla-stored-expanded", runtimes=(*RUNTIMES, "ollama"))
def mla_stored_expanded(source: ModelSource, forecast: Forecast | None) -> Iterator[Finding]:
    """The file stores latent attention (MLA) as whole heads: the cache is several times as large as it need be."""
    if source.gguf is None:
        return
    rank, rope = _number(_key(source, "attention.kv_lora_rank")), _number(_key(source, "rope.dimension_count"))
    if not rank or _number(_key(source, "attention.key_length_mla")):
        return
    heads, key, value = (
        _number(_key(source, name))
        for name in ("attention.head_count", "attention.key_length", "attention.value_length")
    )
    if not (heads and key and value):
        yield skip("the file has kv_lora_rank and no head sizes, so its layout cannot be told")
        return
    factor = heads * (key + value) / (rank + rope)
    have = forecast.cache.bytes if forecast and forecast.cache else None
    evidence = (
        seen("attention.kv_lora_rank", rank, source.where),
        seen("attention.key_length_mla", "absent", source.where),
        seen(
            "cache a layer and token",
            f"{heads} x ({key} + {value}) elements instead of {rank} + {rope}",
            "GGUF metadata",
        ),
    )
    if have:
        yield warn(
            "this file stores MLA expanded (attn_kv_b, no key_length_mla): its cache takes {have} where a file "
            "converted since April 2025 takes {instead}, {factor:.1f} times less. It loads without a warning; download "
            "a new conversion, or convert it anew",
            evidence=evidence,
            where=Place(kind="file", name=source.where),
            have=gib(have),
            instead=gib(have / factor),
            factor=factor,
        )
    else:
        yield warn(
            "this file stores MLA expanded (attn_kv_b, no key_length_mla): its cache is {factor:.1f} times as large as "
            "that of a file converted since April 2025. It loads without a warning; download a new conversion, or "
            "convert it anew",
            evidence=evidence,
            where=Place(kind="file", name=source.where),
            factor=factor,
        )


@check("GGUF502", "sliding-window-lost", runtimes=(*RUNTIMES, "ollama"))
def sliding_window_lost(model: Model, forecast: Forecast | None) -> Iterator[Finding]:
    """A model with sliding-window layers keeps every token in all of them, by its file or by its build."""
    if model.source.gguf is None:
        return
    slide = any(
        isinstance(cache, SlidingWindow | ChunkedLocal | Compressed) for layer in model.layers for cache in layer.caches
    )
    if slide:
        return
    window = _number(_key(model.source, "attention.sliding_window"))
    known = row("gguf-windows", architecture=model.architecture)
    have = forecast.cache.bytes if forecast and forecast.cache else None
    if known and not window:
        sliding = len(model.layers) * known["sliding"] // known["of"]
        yield warn(
            "{architecture} models slide in {sliding} of {layers} layers, and this file has no "
            "{architecture}.attention.sliding_window: all layers keep every token (cache {have}). It loads without a "
            "warning; download a new conversion, or convert it anew",
            evidence=(seen(f"{model.architecture}.attention.sliding_window", "absent", model.source.where),),
            where=Place(kind="file", name=model.source.where),
            architecture=model.architecture,
            sliding=sliding,
            layers=len(model.layers),
            have=gib(have) if have else "-",
        )
    elif window and not (known and known.get("small_models_without")):
        yield warn(
            "the file says that attention slides over {window} tokens, and llama.cpp does not use that for "
            "{architecture}: all {layers} layers keep every token (cache {have}). A smaller -c is the only way to a "
            "smaller cache here",
            evidence=(seen(f"{model.architecture}.attention.sliding_window", window, model.source.where),),
            where=Place(kind="file", name=model.source.where),
            window=window,
            architecture=model.architecture,
            layers=len(model.layers),
            have=gib(have) if have else "-",
        )


@check("GGUF508", "cache-type-unusable", runtimes=("llamacpp", "ollama"), remedy="flash-attention-on")
def cache_type_unusable(
    request: LaunchRequest, launch: Launch | None, forecast: Forecast | None, gpus: Gpus | None
) -> Iterator[Finding]:
    """The types asked for the KV cache do not work with this model, with each other or without flash attention."""
    if request.runtime == "ollama":
        kind = request.environment.get("OLLAMA_KV_CACHE_TYPE", "f16")
        if kind not in ("", "f16") and request.environment.get("OLLAMA_FLASH_ATTENTION", "0") in ("", "0", "false"):
            yield warn(
                "OLLAMA_KV_CACHE_TYPE={kind} holds for every model and needs flash attention: architectures without "
                "it stop with 'unable to create llama context'. Set OLLAMA_FLASH_ATTENTION=1 beside it, or leave "
                "the variable out",
                evidence=(seen("OLLAMA_KV_CACHE_TYPE", kind, "environment"),),
                where=Place(kind="environment", name="OLLAMA_KV_CACHE_TYPE"),
                kind=kind,
            )
        return
    if launch is None or forecast is None:
        yield skip("the launch of llama-server was not resolved or forecast")
        return
    key, value = str(launch.get("cache_type_k") or "f16"), str(launch.get("cache_type_v") or "f16")
    refusal = forecast.refused
    if refusal and refusal.code == "GGUF508":
        yield fail(
            "cache types K {key} and V {value}: llama.cpp stops with '{message}'. Quantised V needs --flash-attn on; "
            "MLA models need equal types; the head size must be a multiple of the type's block. The default, f16, "
            "always works",
            evidence=(seen("cache types", f"K {key}, V {value}", "arguments"),),
            where=argument(launch, "cache_type_v") or argument(launch, "cache_type_k"),
            key=key,
            value=value,
            message=refusal.message,
        )
    elif key != value and gpus and gpus.visible:
        yield warn(
            "cache types differ (K {key}, V {value}): CUDA builds without GGML_CUDA_FA_ALL_QUANTS have flash attention "
            "kernels for equal types only, and then either run the attention on the CPU or stop with 'quantized V "
            "cache was requested'. Use {key} for both",
            evidence=(seen("cache types", f"K {key}, V {value}", "arguments"),),
            where=argument(launch, "cache_type_v") or argument(launch, "cache_type_k"),
            key=key,
            value=value,
        )


@check("GGUF509", "cpu-only-build-or-layers-on-cpu", runtimes=RUNTIMES)
def layers_on_cpu(launch: Launch, model: Model, gpus: Gpus, request: LaunchRequest | None) -> Iterator[Finding]:
    """There is a GPU, and layers of the model are left to the CPU."""
    layers = launch.get("gpu_layers")
    whole = len(model.layers) + 1
    if not gpus.visible:
        return
    if isinstance(layers, int) and 0 <= layers < whole:
        yield warn(
            "{flag} {layers} leaves {left} of {whole} layers (the output counts as one) on the CPU although {gpu} is "
            "there: generation runs at the speed of the host's memory. Leave {flag} out (the default fits as many as "
            "there is room for), or set it to 99",
            evidence=(seen("gpu layers", layers, "arguments"), seen("layers", whole, model.source.where)),
            where=argument(launch, "gpu_layers"),
            flag=flag(launch, "gpu_layers"),
            layers=layers,
            left=whole - layers,
            whole=whole,
            gpu=gpus.visible[0].name,
        )
    if request and any(word in request.version_source.lower() for word in ("cpu build", "without gpu")):
        yield fail(
            "this llama-server was built without a GPU backend ({source}) and will run on the CPU although {gpu} is "
            "there. Install a CUDA build, or build with -DGGML_CUDA=ON; `llama-server --list-devices` must list the "
            "GPU",
            evidence=(seen("build", request.version_source, "llama-server"),),
            source=request.version_source,
            gpu=gpus.visible[0].name,
        )
