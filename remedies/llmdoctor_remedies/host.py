"""Remedies of the host: toolchain, packages, container, directories, and what only a person can do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from packaging.version import Version

from llmdoctor_core.derive import Facts
from llmdoctor_core.facts import (
    CacheDirectory,
    Container,
    CudaToolkits,
    Environment,
    ImportAnnotations,
    JitCompiler,
    LaunchRequest,
    TargetEnvironment,
)
from llmdoctor_core.finding import Finding
from llmdoctor_core.remedy import (
    AnyAction,
    ByHand,
    Cost,
    Install,
    MakeDirectory,
    PostponeAnnotations,
    Safety,
    SetContainerOption,
    SetVariable,
    container_run,
    remedy,
)

from .tables import table

Alternatives = Iterator[tuple[AnyAction, ...]]
JIT = ("CUDA210", "CUDA211", "CUDA212", "CUDA213", "CUDA215")


@remedy("postpone-annotations", "Put off evaluating the annotations of the faulty files", ends=("PY301",))
def postpone_annotations(finding: Finding, facts: Facts) -> Alternatives:
    annotations, target = facts.optional(ImportAnnotations), facts.optional(TargetEnvironment)
    if annotations is None or target is None:
        return
    paths = dict.fromkeys(use.path for use in annotations.uses if use.postponable)
    if paths:
        yield tuple(PostponeAnnotations(path=path, python=target.python) for path in paths)


def _version(text: str | None) -> Version:
    try:
        return Version(text or "0")
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads
        return Version("0")


@remedy("use-newer-nvcc", "Compile with the newest nvcc at hand", ends=("CUDA210", "CUDA211", "CUDA212", "CUDA215"))
def use_newer_nvcc(finding: Finding, facts: Facts) -> Alternatives:
    toolkits, jit = facts.optional(CudaToolkits), facts.optional(JitCompiler)
    if toolkits is None:
        return
    usable = [toolkit for toolkit in toolkits.toolkits if toolkit.nvcc and "nvcc" not in toolkit.lacks]
    newest = max(usable, key=lambda toolkit: _version(toolkit.nvcc_version), default=None)
    if newest is not None and _version(newest.nvcc_version) > _version(jit.version if jit else None):
        yield (SetVariable(name="CUDA_HOME", value=newest.path),)


@remedy(
    "disable-flashinfer-sampler", "Sample without FlashInfer, which then compiles nothing at start", ends=JIT,
    cost=Cost.SPEED,
)  # fmt: skip
def disable_flashinfer_sampler(finding: Finding, facts: Facts) -> Alternatives:
    request = facts.optional(LaunchRequest)
    if request and request.runtime == "vllm" and request.environment.get("VLLM_USE_FLASHINFER_SAMPLER") != "0":
        yield (SetVariable(name="VLLM_USE_FLASHINFER_SAMPLER", value="0"),)


@remedy(
    "install-pinned-version", "Install the version that its companion is pinned to", ends=("PY303", "CUDA219"),
    safety=Safety.UNSAFE,
)  # fmt: skip
def install_pinned_version(finding: Finding, facts: Facts) -> Alternatives:
    """Exact pins only: of a range no version is better than another to us."""
    target = facts.optional(TargetEnvironment)
    if target is None:
        return
    for distribution in target.distributions.values():
        for requirement in distribution.requires:
            installed = target.has(requirement.name)
            pin = requirement.specifier.removeprefix("==")
            exact = requirement.specifier.startswith("==") and "," not in pin and "*" not in pin
            concerned = requirement.name in {str(value) for value in finding.params.values()}
            if installed and exact and concerned and installed.version.partition("+")[0] != pin:
                yield (Install(python=target.python, package=requirement.name, version=pin, before=installed.version),)


@remedy("make-cache-directory", "Make the cache directory that is missing", ends=("HOST104",))
def make_cache_directory(finding: Finding, facts: Facts) -> Alternatives:
    """Where the folder does not exist yet and its nearest parent can be written by this user."""
    for cache in _unwritable(finding, facts):
        if not cache.mount.exists and cache.mount.free:
            yield (MakeDirectory(path=cache.path),)


@remedy("move-cache-directory", "Put the cache where this user may write", ends=("HOST104",))
def move_cache_directory(finding: Finding, facts: Facts) -> Alternatives:
    environment = facts.optional(Environment)
    writable = [c for c in environment.caches if c.mount.writable and c.mount.free] if environment else []
    roomiest = max(writable, key=lambda cache: cache.mount.free or 0, default=None)
    for cache in _unwritable(finding, facts):
        if roomiest is not None:
            path = f"{roomiest.path.rstrip('/')}/{cache.name.lower()}"
            yield (SetVariable(name=cache.name, value=path), MakeDirectory(path=path))


def _unwritable(finding: Finding, facts: Facts) -> list[CacheDirectory]:
    environment = facts.optional(Environment)
    caches = environment.caches if environment else ()
    return [c for c in caches if c.name == finding.params.get("name") and c.mount.writable is False]


@remedy("enlarge-shared-memory", "Give the ranks room in /dev/shm", ends=("HOST101",))
def enlarge_shared_memory(finding: Finding, facts: Facts) -> Alternatives:
    request, container = facts.optional(LaunchRequest), facts.optional(Container)
    if request and container_run(request):
        yield (SetContainerOption(flag="--shm-size", value=table("values")["shared_memory"]["value"]),)
    else:
        yield (ByHand(text=_by_hand("HOST101", container.kind if container else "none")),)


@remedy("grant-gpus", "Give the container the GPUs", ends=("HOST106",))
def grant_gpus(finding: Finding, facts: Facts) -> Alternatives:
    request = facts.optional(LaunchRequest)
    if request and container_run(request):
        yield (SetContainerOption(flag="--gpus", value="all"),)


@remedy("raise-memlock", "Let the server pin memory", ends=("HOST102",))
def raise_memlock(finding: Finding, facts: Facts) -> Alternatives:
    request, container = facts.optional(LaunchRequest), facts.optional(Container)
    if request and container_run(request):
        yield (SetContainerOption(flag="--ulimit", value="memlock=-1"),)
    else:
        yield (ByHand(text=_by_hand("HOST102", container.kind if container else "none")),)


@lru_cache(maxsize=1)
def _steps() -> dict[tuple[str, str], str]:
    return {(row["code"], row.get("where", "any")): row["text"] for row in table("by_hand")["steps"]}


def _by_hand(code: str, where: str) -> str:
    steps = _steps()
    return steps.get((code, where)) or steps[code, "any"]


@remedy(
    "by-hand",
    "A step that only a person can take",
    ends=sorted({code for code, where in _steps() if where == "any"} - {"HOST101", "HOST102"}),
    cost=Cost.NOTHING,
    safety=Safety.MANUAL,
)
def by_hand(finding: Finding, facts: Facts) -> Alternatives:
    yield (ByHand(text=_by_hand(finding.code, "any")),)
