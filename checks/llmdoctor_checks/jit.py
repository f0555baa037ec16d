"""FlashInfer's JIT: whether the compiler it picks in the service's environment can build what it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from llmdoctor_core.check import check
from llmdoctor_core.facts import (
    CudaToolkits,
    Distribution,
    Environment,
    Gpus,
    JitCompiler,
    LaunchRequest,
    Model,
    Network,
    Place,
    TargetEnvironment,
    Toolkit,
)
from llmdoctor_core.finding import Finding, fail, seen, skip, warn

from .launches import listed, release, variable
from .tables import Row, row, table

ENGINES = ("vllm", "sglang")
Compiles = Literal["start", "perhaps", "never"]


def _compiles(target: TargetEnvironment, request: LaunchRequest | None, environment: Environment | None) -> Compiles:
    """Whether FlashInfer will compile: at the start, for some models and GPUs only, or never (absent, or prebuilt).

    vLLM's sampler uses FlashInfer by default since 0.21.0, on request from 0.11 to 0.20, always before (vllm
    v1/sample/ops/topk_topp_sampler.py of these releases). A flashinfer-jit-cache of the same version holds it prebuilt.
    """
    flashinfer = target.has("flashinfer-python")
    if (
        flashinfer is None
        or target.torch_cuda == "none"
        or _same_release(target.has("flashinfer-jit-cache"), flashinfer)
    ):
        return "never"
    if request is None or request.runtime != "vllm":
        return "start" if request else "perhaps"
    sampler = variable("VLLM_USE_FLASHINFER_SAMPLER", request, environment)
    engine = release(request.version) or release(getattr(target.has("vllm"), "version", None))
    if sampler is None:
        by_default = engine is None or not Version("0.11") <= engine < Version("0.21")
        return "start" if by_default else "perhaps"
    return "start" if sampler.strip().lower() not in ("0", "false", "") else "perhaps"


def _same_release(extra: Distribution | None, flashinfer: Distribution) -> bool:
    return extra is not None and extra.version.partition("+")[0] == flashinfer.version.partition("+")[0]


def _minor(text: str | None) -> Version | None:
    """``12.8`` of ``12.8.93``."""
    version = release(text)
    return version and Version(f"{version.major}.{version.minor}")


def _able(toolkits: CudaToolkits | None, needed: Version) -> Toolkit | None:
    """A complete toolkit on the machine whose nvcc is new enough: a CUDA_HOME to point at."""
    for toolkit in toolkits.toolkits if toolkits else ():
        version = _minor(toolkit.nvcc_version)
        if version and version >= needed and not toolkit.lacks and toolkit.origin != "environment":
            return toolkit
    return None


def flags_unknown_to(nvcc: Version, flashinfer: Version) -> list[Row]:
    """The options this FlashInfer passes to every build that this nvcc does not know."""
    return [
        flag
        for flag in table("flashinfer-flags").rows
        if flashinfer >= Version(flag["since"]) and nvcc < Version(flag["nvcc"])
    ]


def nvcc_for(compute_capability: tuple[int, int], flashinfer: Version) -> tuple[str, Version] | None:
    """The architecture FlashInfer compiles for on that GPU, and the oldest nvcc that will do; None where not known."""
    text = f"{compute_capability[0]}.{compute_capability[1]}"
    for known in table("flashinfer-targets").rows:
        if known["compute_capability"] == text and SpecifierSet(known.get("versions", "")).contains(
            flashinfer, prereleases=True
        ):
            first = row("nvcc-targets", target=known["target"])
            needed = known.get("nvcc") or (first and first["first"])
            return (known["target"], Version(needed)) if needed else None
    return None


@check("CUDA210", "nvcc-too-old-for-flashinfer", runtimes=ENGINES, remedy="use-newer-nvcc")
def nvcc_too_old_for_flashinfer(
    compiler: JitCompiler,
    target: TargetEnvironment,
    toolkits: CudaToolkits | None,
    request: LaunchRequest | None,
    environment: Environment | None,
    model: Model | None,
) -> Iterator[Finding]:
    """The nvcc that FlashInfer's JIT will run does not know an option it is given."""
    flashinfer = target.has("flashinfer-python")
    compiles = _compiles(target, request, environment)
    if flashinfer is None or compiles == "never" or compiler.nvcc is None or not compiler.exists:
        return
    have, by = _minor(compiler.version), release(flashinfer.version)
    if have is None or by is None:
        yield skip(
            "the version of {nvcc} was not read: {reason}",
            nvcc=compiler.nvcc,
            reason=compiler.unread.get("version", "it did not say"),
        )
        return
    for flag in flags_unknown_to(have, by):
        better = _able(toolkits, Version(flag["nvcc"]))
        evidence = (
            seen("nvcc", f"{compiler.nvcc}, release {have}", f"FlashInfer's own order: {compiler.chosen_by}"),
            seen("flashinfer-python", flashinfer.version, target.python),
        )
        report = fail if compiles == "start" else warn
        if better:
            yield report(
                "nvcc {have} at {path} does not know {flag}, which FlashInfer {flashinfer} passes to every build (nvcc "
                "knows it since {need}): the start ends with 'nvcc fatal : Unknown option' after the weights are "
                "loaded. {better} has nvcc {newer}: export CUDA_HOME={better} in the service's environment",
                evidence=(
                    *evidence,
                    seen("newer toolkit", f"{better.path}, nvcc {better.nvcc_version}", better.origin),
                ),
                where=Place(kind="file", name=compiler.nvcc),
                have=str(have),
                path=compiler.nvcc,
                flag=flag["flag"],
                flashinfer=flashinfer.version,
                need=flag["nvcc"],
                better=better.path,
                newer=better.nvcc_version,
            )
        else:
            yield report(
                "nvcc {have} at {path} does not know {flag}, which FlashInfer {flashinfer} passes to every build (nvcc "
                "knows it since {need}): the start ends with 'nvcc fatal : Unknown option' after the weights are "
                "loaded. Install a CUDA toolkit {need} or newer and set CUDA_HOME to it, or start with "
                "VLLM_USE_FLASHINFER_SAMPLER=0, which keeps the sampler off FlashInfer",
                evidence=evidence,
                where=Place(kind="file", name=compiler.nvcc),
                have=str(have),
                path=compiler.nvcc,
                flag=flag["flag"],
                flashinfer=flashinfer.version,
                need=flag["nvcc"],
            )
    stored = model.quantization if model else None
    if stored and have < Version("12.8") and ("fp4" in stored.method or (stored.method == "fp8" and stored.block)):
        yield warn(
            "nvcc {have} at {path} is older than 12.8: FlashInfer {flashinfer} then leaves its {method} kernels out "
            "without a word, the build succeeds and the first call fails with a misleading message about data "
            "types. Install a CUDA toolkit 12.8 or newer and set CUDA_HOME to it",
            evidence=(
                seen("nvcc", f"{compiler.nvcc}, release {have}", f"FlashInfer's own order: {compiler.chosen_by}"),
                seen("quantization", stored.method, "config.json"),
            ),
            where=Place(kind="file", name=compiler.nvcc),
            have=str(have),
            path=compiler.nvcc,
            flashinfer=flashinfer.version,
            method=stored.method,
        )


@check("CUDA211", "nvcc-too-old-for-gpu", runtimes=ENGINES, remedy="use-newer-nvcc")
def nvcc_too_old_for_gpu(
    compiler: JitCompiler,
    target: TargetEnvironment,
    gpus: Gpus,
    request: LaunchRequest | None,
    environment: Environment | None,
) -> Iterator[Finding]:
    """The nvcc that FlashInfer's JIT will run cannot compile for this GPU."""
    flashinfer = target.has("flashinfer-python")
    compiles = _compiles(target, request, environment)
    if flashinfer is None or compiles == "never" or compiler.nvcc is None or not compiler.exists:
        return
    have, by = _minor(compiler.version), release(flashinfer.version)
    if have is None or by is None:
        yield skip(
            "the version of {nvcc} was not read: {reason}",
            nvcc=compiler.nvcc,
            reason=compiler.unread.get("version", "it did not say"),
        )
        return
    for name, capability in dict.fromkeys((gpu.name, gpu.compute_capability) for gpu in gpus.visible):
        if capability is None:
            yield skip("the compute capability of {gpu} was not read", gpu=name)
            continue
        needed = nvcc_for(capability, by)
        if needed is None:
            yield skip(
                "which architecture FlashInfer {flashinfer} compiles for on compute capability {capability} is not in "
                "the table",
                flashinfer=flashinfer.version,
                capability=f"{capability[0]}.{capability[1]}",
            )
        elif have < needed[1]:
            report = fail if compiles == "start" else warn
            yield report(
                "nvcc {have} at {path} cannot compile for {gpu} (sm_{architecture} needs nvcc {need}): the start ends "
                "with 'Unsupported gpu architecture' or, where FlashInfer drops the GPU from its list, with the "
                "misleading 'FlashInfer requires GPUs with sm75 or higher'. Install a CUDA toolkit {need} or newer and "
                "set CUDA_HOME to it in the service's environment",
                evidence=(
                    seen("nvcc", f"{compiler.nvcc}, release {have}", f"FlashInfer's own order: {compiler.chosen_by}"),
                    seen("compute capability", f"{capability[0]}.{capability[1]}", "NVML"),
                    seen("flashinfer-python", flashinfer.version, target.python),
                ),
                where=Place(kind="file", name=compiler.nvcc),
                have=str(have),
                path=compiler.nvcc,
                gpu=name,
                architecture=needed[0],
                need=str(needed[1]),
            )


@check("CUDA212", "no-nvcc-for-jit", runtimes=ENGINES, remedy="use-newer-nvcc")
def no_nvcc_for_jit(
    compiler: JitCompiler, target: TargetEnvironment, request: LaunchRequest | None, environment: Environment | None
) -> Iterator[Finding]:
    """FlashInfer will want to compile and finds no nvcc."""
    flashinfer = target.has("flashinfer-python")
    compiles = _compiles(target, request, environment)
    if flashinfer is None or compiles == "never" or (compiler.nvcc and compiler.exists):
        return
    engine = release(request.version) if request and request.runtime == "vllm" else None
    falls_back = engine is not None and engine >= Version("0.32")
    report = fail if compiles == "start" and not falls_back else warn
    evidence = (
        seen("nvcc", compiler.nvcc or "none", f"FlashInfer's own order: {compiler.chosen_by}"),
        seen("flashinfer-python", flashinfer.version, target.python),
    )
    if compiler.nvcc:
        yield report(
            "FlashInfer {flashinfer} compiles its kernels at the start with {nvcc} (decided by {decided}), which "
            "does not exist: 'nvcc: not found'. Point CUDA_HOME at an installed CUDA toolkit, or fetch prebuilt "
            "kernels (python -m flashinfer download-kernels, or the flashinfer-jit-cache wheel), or start with "
            "VLLM_USE_FLASHINFER_SAMPLER=0",
            evidence=evidence,
            flashinfer=flashinfer.version,
            nvcc=compiler.nvcc,
            decided=compiler.chosen_by,
        )
    else:
        yield report(
            "FlashInfer {flashinfer} compiles its kernels at the start and finds no nvcc: not by CUDA_HOME, not on "
            "PATH, not in /usr/local/cuda ('Could not find nvcc'). Install a CUDA toolkit (torch here is built for "
            "CUDA {cuda}) and set CUDA_HOME, or fetch prebuilt kernels (python -m flashinfer download-kernels, or "
            "the flashinfer-jit-cache wheel), or start with VLLM_USE_FLASHINFER_SAMPLER=0",
            evidence=evidence,
            flashinfer=flashinfer.version,
            cuda=target.torch_cuda or "-",
        )


@check("CUDA213", "jit-toolchain-incomplete", runtimes=ENGINES, remedy="disable-flashinfer-sampler")
def jit_toolchain_incomplete(
    compiler: JitCompiler, target: TargetEnvironment, request: LaunchRequest | None, environment: Environment | None
) -> Iterator[Finding]:
    """A tool, header or library that a JIT build needs is not there in the service's environment."""
    compiles = _compiles(target, request, environment)
    triton = target.has("triton") is not None and target.torch_cuda != "none"
    of_toolkit = [part for part in compiler.lacks if (row("jit-parts", part=part) or {}).get("toolkit")]
    if compiles != "never" and len(of_toolkit) > 2:
        report = fail if compiles == "start" else warn
        yield report(
            "{home}, which FlashInfer takes for the CUDA toolkit (decided by {decided}), is no complete one: it "
            'lacks {parts}. Builds end with "No such file or directory" or "cannot find -lcudart". Install a full '
            "CUDA toolkit and set CUDA_HOME to it in the service's environment",
            evidence=(seen("missing", listed(of_toolkit), compiler.cuda_home or "-"),),
            where=Place(kind="environment", name="CUDA_HOME"),
            home=compiler.cuda_home,
            decided=compiler.chosen_by,
            parts=listed(of_toolkit),
        )
    for part in compiler.lacks:
        known = row("jit-parts", part=part) or {}
        by_triton = known.get("triton", False)
        if (
            part == "nvcc"
            or (len(of_toolkit) > 2 and part in of_toolkit)
            or (compiles == "never" and not (by_triton and triton))
        ):
            continue
        report = fail if compiles == "start" or by_triton else warn
        if part in compiler.off_path:
            yield report(
                "the JIT build that serving needs finds no {part} on PATH, and the environment has one at {path}: "
                'it ends with "{symptom}". Put that folder first on the service\'s PATH (activate the environment, '
                "or PATH={folder}:$PATH)",
                evidence=(seen(part, compiler.off_path[part], "the environment's scripts, not on PATH"),),
                part=part,
                path=compiler.off_path[part],
                symptom=known.get("symptom", "ninja: build stopped"),
                folder=compiler.off_path[part].rpartition("/")[0],
            )
            continue
        yield report(
            'the JIT build that serving needs finds no {part}: it ends with "{symptom}". To mend it: {action}',
            evidence=(seen("missing", part, f"the service's environment, CUDA_HOME {compiler.cuda_home}"),),
            part=part,
            symptom=known.get("symptom", "ninja: build stopped"),
            action=known.get("action", f"install {part} where the server runs"),
        )


@check("CUDA214", "cuda-homes-disagree", runtimes=ENGINES)
def cuda_homes_disagree(compiler: JitCompiler, toolkits: CudaToolkits, target: TargetEnvironment) -> Iterator[Finding]:
    """The variables and packages that choose the CUDA toolkit point at different ones, or at none."""
    if target.has("flashinfer-python") is None:
        return
    home = toolkits.variables.get("CUDA_HOME") or toolkits.variables.get("CUDA_PATH")
    variable_name = "CUDA_HOME" if toolkits.variables.get("CUDA_HOME") else "CUDA_PATH"
    place = Place(kind="environment", name=variable_name)
    if home and (":" in home or "'" in home or '"' in home or not home.startswith("/")):
        yield fail(
            "{variable}={home} is not one absolute folder: FlashInfer runs {home}/bin/nvcc as it stands and the shell "
            "answers 'not found'. Set it to one toolkit, for example {variable}={single}",
            evidence=(seen(variable_name, home, "environment"),),
            where=place,
            variable=variable_name,
            home=home,
            single=next((part for part in home.strip("'\"").split(":") if part.startswith("/")), "/usr/local/cuda"),
        )
        return
    chosen = next((kit for kit in toolkits.toolkits if kit.path == compiler.cuda_home), None)
    nvcc, headers = _minor(compiler.version), _minor(chosen.header_version if chosen else None)
    if nvcc and headers and nvcc != headers:
        yield fail(
            "{home} has nvcc {nvcc} and headers of CUDA {headers}: FlashInfer's build stops with 'CUDA compiler and "
            "CUDA toolkit headers are incompatible'. Give both one version (pip: nvidia-cuda-nvcc, nvidia-nvvm and "
            "nvidia-cuda-crt of {headers}), or set CUDA_HOME to a complete toolkit",
            evidence=(seen("nvcc", nvcc, compiler.nvcc or ""), seen("cuda.h", headers, compiler.cuda_home or "")),
            home=compiler.cuda_home,
            nvcc=str(nvcc),
            headers=str(headers),
        )
    assembler, frontend = target.has("nvidia-cuda-nvcc"), target.has("nvidia-nvvm")
    if (
        chosen
        and chosen.origin == "environment"
        and assembler
        and frontend
        and _minor(assembler.version) != _minor(frontend.version)
    ):
        yield fail(
            "nvidia-nvvm {nvvm} compiles to a newer PTX than ptxas of nvidia-cuda-nvcc {nvcc} reads: 'ptxas fatal : "
            "Unsupported .version'. pip install nvidia-nvvm=={nvcc}",
            evidence=(
                seen("nvidia-nvvm", frontend.version, target.python),
                seen("nvidia-cuda-nvcc", assembler.version, target.python),
            ),
            nvvm=frontend.version,
            nvcc=assembler.version,
        )
    torch_major = (target.torch_cuda or "").partition(".")[0]
    if nvcc and torch_major.isdecimal() and nvcc.major != int(torch_major):
        yield warn(
            "nvcc {nvcc} ({home}, chosen by {decided}) is of another CUDA major version than torch ({cuda}): "
            "kernels it builds bring their own CUDA {major} runtime into the process. It often works; a module or "
            "host toolkit that leaks into the container is the usual cause. Set CUDA_HOME to a toolkit of CUDA "
            "{cuda}",
            evidence=(
                seen("nvcc", nvcc, compiler.nvcc or ""),
                seen("torch CUDA", target.torch_cuda, "torch/version.py"),
            ),
            nvcc=str(nvcc),
            home=compiler.cuda_home,
            decided=compiler.chosen_by,
            cuda=target.torch_cuda,
            major=nvcc.major,
        )
    override = toolkits.variables.get("FLASHINFER_NVCC")
    if override and compiler.cuda_home and not override.startswith(compiler.cuda_home.rstrip("/") + "/"):
        yield warn(
            "FLASHINFER_NVCC={override} runs, but flags, headers and libraries are still chosen for {home}: FlashInfer "
            "asks {home}/bin/nvcc for the version. Set CUDA_HOME to the toolkit of {override} instead",
            evidence=(
                seen("FLASHINFER_NVCC", override, "environment"),
                seen("CUDA home", compiler.cuda_home, compiler.chosen_by),
            ),
            where=Place(kind="environment", name="FLASHINFER_NVCC"),
            override=override,
            home=compiler.cuda_home,
        )
    on_path = toolkits.nvcc_on_path
    if home and on_path and not on_path.startswith(home.rstrip("/") + "/"):
        versions = {kit.path: kit.nvcc_version for kit in toolkits.toolkits if kit.nvcc_version}
        of_home, of_path = (
            versions.get(home.rstrip("/")),
            next((kit.nvcc_version for kit in toolkits.toolkits if kit.nvcc == on_path), None),
        )
        if of_home and of_path and of_home != of_path:
            yield warn(
                "{variable}={home} (nvcc {first}) and the nvcc on PATH, {on_path} (nvcc {second}), differ: FlashInfer "
                "takes the first, other builds the second. Let both mean one toolkit",
                evidence=(seen(variable_name, home, "environment"), seen("nvcc on PATH", on_path, "PATH")),
                where=place,
                variable=variable_name,
                home=home,
                first=of_home,
                on_path=on_path,
                second=of_path,
            )


@check("CUDA215", "newer-nvcc-unused", runtimes=ENGINES, remedy="use-newer-nvcc")
def newer_nvcc_unused(compiler: JitCompiler, toolkits: CudaToolkits, target: TargetEnvironment) -> Iterator[Finding]:
    """A newer nvcc lies inside the Python environment, and the JIT runs an older one from outside."""
    if target.has("flashinfer-python") is None:
        return
    have = _minor(compiler.version)
    if have is None:
        if compiler.nvcc and compiler.exists:
            yield skip(
                "the version of {nvcc} was not read: {reason}",
                nvcc=compiler.nvcc,
                reason=compiler.unread.get("version", "it did not say"),
            )
        return
    for toolkit in toolkits.toolkits:
        newer = _minor(toolkit.nvcc_version)
        if toolkit.origin != "environment" or newer is None or newer <= have or toolkit.path == compiler.cuda_home:
            continue
        evidence = (
            seen("nvcc in use", f"{compiler.nvcc}, {compiler.version}", compiler.chosen_by),
            seen("nvcc in the environment", f"{toolkit.nvcc}, {toolkit.nvcc_version}", "pip"),
        )
        if toolkit.lacks:
            yield warn(
                "nvcc {newer} lies unused at {path} while FlashInfer runs nvcc {have} ({used}). It is no CUDA_HOME as "
                "it stands (it lacks {lacks}): llmdoctor fix CUDA215 plans a folder that completes it, or install a "
                "full toolkit of that version",
                evidence=evidence,
                newer=str(newer),
                path=toolkit.nvcc or toolkit.path,
                have=str(have),
                used=compiler.nvcc,
                lacks=listed(toolkit.lacks),
            )
        else:
            yield warn(
                "nvcc {newer} lies unused at {path} while FlashInfer runs nvcc {have} ({used}). To use it: export "
                "CUDA_HOME={home}",
                evidence=evidence,
                newer=str(newer),
                path=toolkit.nvcc or toolkit.path,
                have=str(have),
                used=compiler.nvcc,
                home=toolkit.path,
            )


@check("CUDA216", "host-compiler-too-new", runtimes=ENGINES)
def host_compiler_too_new(compiler: JitCompiler, target: TargetEnvironment) -> Iterator[Finding]:
    """The C++ compiler is newer than the chosen nvcc accepts."""
    if target.has("flashinfer-python") is None or compiler.nvcc is None:
        return
    nvcc, gcc = _minor(compiler.version), release(compiler.host_compiler_version)
    if nvcc is None or gcc is None:
        yield skip("the versions of nvcc and of the C++ compiler were not both read")
        return
    limit = row("host-compilers", nvcc=str(nvcc))
    if compiler.host_compiler and "clang" in compiler.host_compiler:
        yield skip("{compiler} is no GCC; nvcc's limits for it are not in the table", compiler=compiler.host_compiler)
    elif limit is None:
        yield skip("the newest GCC that nvcc {nvcc} accepts is not in the table", nvcc=str(nvcc))
    elif gcc.major > limit["gcc"]:
        yield fail(
            "nvcc {nvcc} accepts GCC up to {limit}, and {compiler} is GCC {gcc}: every JIT build stops with "
            "'unsupported GNU version'. Install g++-{limit} and set CC=gcc-{limit} CXX=g++-{limit} in the service's "
            "environment, or take a newer CUDA toolkit",
            evidence=(
                seen(
                    "C++ compiler",
                    f"{compiler.host_compiler} {compiler.host_compiler_version}",
                    "the service's environment",
                ),
                seen("nvcc", f"{compiler.nvcc} {compiler.version}", compiler.chosen_by),
            ),
            nvcc=str(nvcc),
            limit=limit["gcc"],
            compiler=compiler.host_compiler,
            gcc=str(gcc),
        )


@check("CUDA217", "jit-cache-from-other-cuda", runtimes=ENGINES)
def jit_cache_from_other_cuda(target: TargetEnvironment) -> Iterator[Finding]:
    """The prebuilt FlashInfer kernels were built for another CUDA major version than torch brings."""
    cache = target.has("flashinfer-jit-cache")
    if cache is None:
        return
    built_for = cache.version.partition("+cu")[2]
    if not built_for or not target.torch_cuda or target.torch_cuda == "none":
        yield skip(
            "which CUDA flashinfer-jit-cache {version} and torch were built for is not known", version=cache.version
        )
    elif built_for[:2] != target.torch_cuda.partition(".")[0]:
        yield fail(
            "flashinfer-jit-cache {version} holds kernels for CUDA {built}, and torch brings CUDA {torch}: loading "
            "them fails on libcudart, or two CUDA runtimes meet in one process. Install the +cu{wanted} build of the "
            "same version",
            evidence=(
                seen("flashinfer-jit-cache", cache.version, target.python),
                seen("torch CUDA", target.torch_cuda, "torch/version.py"),
            ),
            where=Place(kind="package", name="flashinfer-jit-cache"),
            version=cache.version,
            built=f"{built_for[:2]}.{built_for[2:]}",
            torch=target.torch_cuda,
            wanted=target.torch_cuda.replace(".", ""),
        )


@check("CUDA218", "triton-ptxas-too-old", runtimes=ENGINES)
def triton_ptxas_too_old(
    target: TargetEnvironment, gpus: Gpus, request: LaunchRequest | None, environment: Environment | None
) -> Iterator[Finding]:
    """Triton's own ptxas does not know this GPU."""
    triton = target.has("triton") or target.has("pytorch-triton")
    if triton is None or variable("TRITON_PTXAS_PATH", request, environment):
        return
    for name, capability in dict.fromkeys((gpu.name, gpu.compute_capability) for gpu in gpus.visible):
        if capability is None:
            yield skip("the compute capability of {gpu} was not read", gpu=name)
            continue
        text, version = f"{capability[0]}.{capability[1]}", release(triton.version)
        for known in table("triton-ptxas").rows:
            if (
                known["compute_capability"] == text
                and version
                and SpecifierSet(known["versions"]).contains(version, prereleases=True)
            ):
                yield fail(
                    'Triton {triton} brings a ptxas that does not know {gpu}: kernels stop with "ptxas fatal : Value '
                    "'{value}' is not defined for option 'gpu-name'\". Set TRITON_PTXAS_PATH to the ptxas of a CUDA "
                    "{cuda} toolkit (/usr/local/cuda/bin/ptxas)",
                    evidence=(seen("triton", triton.version, target.python), seen("compute capability", text, "NVML")),
                    where=Place(kind="package", name="triton"),
                    triton=triton.version,
                    gpu=name,
                    value=known["value"],
                    cuda=known["cuda"],
                )


@check("CUDA219", "flashinfer-packages-disagree", runtimes=ENGINES, remedy="install-pinned-version")
def flashinfer_packages_disagree(
    target: TargetEnvironment, request: LaunchRequest | None, environment: Environment | None
) -> Iterator[Finding]:
    """FlashInfer's prebuilt packages have another version than FlashInfer itself."""
    flashinfer = target.has("flashinfer-python")
    if flashinfer is None or variable("FLASHINFER_DISABLE_VERSION_CHECK", request, environment):
        return
    version = release(flashinfer.version)
    for extra in filter(None, (target.has("flashinfer-cubin"), target.has("flashinfer-jit-cache"))):
        if _same_release(extra, flashinfer):
            continue
        evidence = (
            seen("flashinfer-python", flashinfer.version, target.python),
            seen(extra.name, extra.version, target.python),
        )
        wanted = flashinfer.version.partition("+")[0]
        if version is not None and version < Version("0.7.2"):
            yield fail(
                "{extra} {have} stands beside flashinfer-python {version}: importing FlashInfer raises RuntimeError. "
                "Install {extra}=={wanted} (from FlashInfer's own wheel index where PyPI has none) or remove {extra}",
                evidence=evidence,
                where=Place(kind="package", name=extra.name),
                extra=extra.name,
                have=extra.version,
                version=flashinfer.version,
                wanted=wanted,
            )
        else:
            yield warn(
                "{extra} {have} stands beside flashinfer-python {version} and is ignored: kernels are downloaded or "
                "compiled at the start after all, which an offline host cannot. Install {extra}=={wanted}",
                evidence=evidence,
                where=Place(kind="package", name=extra.name),
                extra=extra.name,
                have=extra.version,
                version=flashinfer.version,
                wanted=wanted,
            )


@check("CUDA220", "flashinfer-artifacts-unreachable", runtimes=ENGINES)
def flashinfer_artifacts_unreachable(
    target: TargetEnvironment,
    gpus: Gpus,
    network: Network | None,
    request: LaunchRequest | None,
    environment: Environment | None,
) -> Iterator[Finding]:
    """An offline host has a Blackwell GPU, and FlashInfer's kernels for it are not installed."""
    flashinfer = target.has("flashinfer-python")
    blackwell = next(
        (gpu.name for gpu in gpus.visible if gpu.compute_capability and gpu.compute_capability[0] == 10), None
    )
    if flashinfer is None or blackwell is None or variable("FLASHINFER_CUBIN_DIR", request, environment):
        return
    switch = (variable("HF_HUB_OFFLINE", request, environment) or "0").lower()
    if _same_release(target.has("flashinfer-cubin"), flashinfer) or not (
        switch in ("1", "true") or (network and network.hub_offline)
    ):
        return
    yield warn(
        "{gpu} runs kernels that FlashInfer {version} downloads at the start, this host is offline, and "
        "flashinfer-cubin {version} is not installed: the start stops after the weights are loaded. Install "
        "flashinfer-cubin=={version}, or run `python -m flashinfer download-kernels` elsewhere and set "
        "FLASHINFER_CUBIN_DIR",
        evidence=(
            seen(
                "flashinfer-cubin", getattr(target.has("flashinfer-cubin"), "version", "not installed"), target.python
            ),
            seen("GPU", blackwell, "NVML"),
            seen("offline", "yes", "HF_HUB_OFFLINE"),
        ),
        where=Place(kind="package", name="flashinfer-cubin"),
        gpu=blackwell,
        version=flashinfer.version,
    )
