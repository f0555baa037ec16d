"""The rim: builds a case from what the person gave and what the host shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from . import runtimes
from .case import Case
from .errors import InputError
from .facts import (
    DraftSource,
    LaunchRequest,
    ModelSource,
    TargetEnvironment,
    Unavailable,
)

ASSUMED = Unavailable(reason="the GPU was given with --gpu: this host was not looked at", permanent=True)
RELEVANT = (
    "VLLM_", "LLAMA_", "GGML_", "CUDA_", "NVIDIA_", "NCCL_", "HF_", "HUGGING_FACE_", "TRANSFORMERS_", "FLASHINFER_",
    "TRITON_", "TORCH", "PYTORCH_", "LMCACHE_", "LM_CACHE_", "UCX_", "RAY_", "OMP_", "SGLANG_", "OLLAMA_",
    "LD_LIBRARY_PATH", "GLOO_", "MAX_JOBS", "CC", "CXX", "XDG_CACHE_HOME", "HOME",
)  # fmt: skip
"""Prefixes of environment variables that a server or its libraries read."""
SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")


class Intake(Struct, frozen=True, kw_only=True):
    """What the person gave on the command line."""

    command: tuple[str, ...] = ()
    runtime: str | None = None
    model: str | None = None
    draft: str | None = None
    python: str | None = None
    gpu: str | None = None
    runtime_version: str | None = None
    entrypoint: str = "serve"
    kv_memory: int | None = None
    revision: str | None = None
    offline: bool = False
    observe_host: bool = True
    """False for ``predict``: only the GPUs are asked, no other probe runs."""


def build_case(intake: Intake, environment: Mapping[str, str] = os.environ) -> Case:
    """Observe and read everything the launch needs. Raises InputError for what the person must correct."""
    assigned, argv = split_environment(intake.command)
    environ = {**environment, **assigned}
    runtime_name = intake.runtime or runtime_of(argv)
    runtime = runtimes.runtime(runtime_name)
    observed = _observe(intake, environ)
    version, version_source = _version(intake, runtime, observed, argv)
    reference = intake.model or runtime.model_reference(argv)
    request = LaunchRequest(
        runtime=runtime_name,  # type: ignore[arg-type]  # checked by runtimes.runtime
        argv=argv,
        environment=relevant(environ),
        version=version,
        version_source=version_source,
        entrypoint="llm" if intake.entrypoint == "llm" else "serve",
        model=reference,
        config_files=_config_files(argv),
        kv_memory=intake.kv_memory,
    )
    draft = intake.draft or runtime.draft_reference(argv)
    return Case(
        observed_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        launch=request,
        model=_model(reference, intake, environ),
        draft=_draft(draft, intake, environ),
        **observed,
    )


def split_environment(command: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """``FOO=1 env BAR=2 vllm serve`` -> assignments and the command proper."""
    assigned: dict[str, str] = {}
    rest = list(command)
    while rest:
        name, equals, value = rest[0].partition("=")
        if equals and name.isidentifier():
            assigned[name] = value
        elif rest[0] != "env":
            break
        rest.pop(0)
    return assigned, tuple(rest)


def runtime_of(argv: tuple[str, ...]) -> str:
    """The runtime whose command this is. Raises InputError when it is none that is known."""
    words = " ".join(Path(word).name for word in argv[:4])
    if "vllm" in words:
        return "vllm"
    if "llama-server" in words or "llama-cli" in words or words.startswith("llama serve"):
        return "llamacpp"
    raise InputError(
        f"cannot tell the runtime from {' '.join(argv[:3])!r}: give --runtime ({', '.join(runtimes.NAMES)})"
        if argv
        else "no launch given: put the server's command after --, e.g. -- vllm serve Qwen/Qwen3-8B"
    )


def relevant(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to serving; values of secrets are not read out."""
    chosen = {name: value for name, value in sorted(environment.items()) if name.startswith(RELEVANT)}
    return {name: "<set>" if any(word in name for word in SECRET) else value for name, value in chosen.items()}


def _observe(intake: Intake, environ: dict[str, str]) -> dict[str, Any]:
    if intake.gpu:
        from .gpu_table import gpus_from

        facts: dict[str, Any] = {"gpus": gpus_from(intake.gpu)}
        if intake.python is None:
            return facts | dict.fromkeys(
                ("driver", "links", "toolkits", "jit", "target", "annotations", "system", "container", "environment",
                 "network"),
                ASSUMED,
            )  # fmt: skip
        from .observe import ObserveOptions, observe

        seen = observe(ObserveOptions(python=intake.python, environment=environ))
        return {name: seen.get(name, ASSUMED) for name in ("target", "annotations", "toolkits", "jit")} | facts
    from .observe import ObserveOptions, observe

    return dict(observe(ObserveOptions(python=intake.python, environment=environ, host=intake.observe_host)))


def _version(
    intake: Intake, runtime: runtimes.Runtime, observed: Mapping[str, Any], argv: tuple[str, ...]
) -> tuple[str | None, str]:
    if intake.runtime_version:
        return intake.runtime_version, "--runtime-version"
    target = observed.get("target")
    if isinstance(target, TargetEnvironment):
        for name in runtime.DISTRIBUTIONS:
            if found := target.has(name):
                return found.version, f"{found.name} {found.version} in {target.prefix or target.python}"
    if argv and Path(argv[0]).name.startswith("llama") and not intake.gpu:
        return _binary_version(argv[0])
    return None, "no installed version was found"


def _binary_version(binary: str) -> tuple[str | None, str]:
    """The build that ``llama-server --version`` names."""
    path = shutil.which(binary)
    if path is None:
        return None, f"{binary} is not on PATH"
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{path} --version: {error}"
    for line in (done.stdout + done.stderr).splitlines():
        if line.startswith("version:"):
            return "b" + line.split()[1].lstrip("b"), f"{path} --version"
    return None, f"{path} --version names no build"


def _config_files(argv: tuple[str, ...]) -> dict[str, str]:
    files = {}
    for position, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag != "--config":
            continue
        path = value if equals else (argv[position + 1] if position + 1 < len(argv) else "")
        try:
            files[path] = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--config {path}: {error}") from None
    return files


def _model(reference: str | None, intake: Intake, environ: Mapping[str, str]) -> ModelSource | Unavailable:
    if reference is None:
        return Unavailable(reason="the launch names no model")
    from .models.open import open_model

    offline = intake.offline or environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return open_model(reference, revision=intake.revision, offline=offline)


def _draft(reference: str | None, intake: Intake, environ: Mapping[str, str]) -> DraftSource | Unavailable:
    if reference is None:
        return Unavailable(reason="the launch names no draft model", permanent=True)
    source = _model(reference, intake, environ)
    return source if isinstance(source, Unavailable) else DraftSource(source=source)
