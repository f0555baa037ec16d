"""KV-transfer connectors: whether this release knows the connector, and whether what it needs is installed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from packaging.version import Version

from llmdoctor_core.check import check
from llmdoctor_core.facts import Environment, Launch, LaunchRequest, Place, TargetEnvironment
from llmdoctor_core.finding import Finding, fail, seen, skip, warn
from llmdoctor_core.runtimes.vllm import releases

from .launches import listed, release, variable
from .tables import row, table

CONFIG = Place(kind="argument", name="--kv-transfer-config")


@check("KVT401", "kv-connector-unknown-or-moved", runtimes={"vllm"})
def kv_connector_unknown_or_moved(launch: Launch) -> Iterator[Finding]:
    """This release of vLLM has no connector of that name, or its configuration no longer takes a key."""
    version = release(launch.version)
    for config in releases.connectors(launch.get("kv_transfer_config")):
        name = config.get("kv_connector")
        if not isinstance(name, str) or config.get("kv_connector_module_path"):
            continue
        history = releases.tables().connectors
        eras = history[name].eras if name in history else ()
        evidence = (seen("kv_connector", name, "--kv-transfer-config"), seen("vLLM", launch.version, "the launch"))
        instead = row("kv-connectors", name=name) or {}
        if not eras:
            near = difflib.get_close_matches(name, history, n=1)
            yield fail(
                "no release of vLLM has a KV connector {name} ('Unsupported connector type'): the nearest is "
                "{near}. A connector of your own needs kv_connector_module_path beside it",
                evidence=evidence,
                where=CONFIG,
                name=name,
                near=near[0] if near else "-",
            )
        elif version and not releases.release(launch.version).connector(name):
            later = next((era.since for era in eras if version < Version(era.since)), None)
            if later is None:
                yield fail(
                    "KV connector {name} is gone after vLLM {last} (this is {version}): 'Unsupported connector type'. "
                    "Its successor is {instead}",
                    evidence=evidence,
                    where=CONFIG,
                    name=name,
                    last=eras[-1].until,
                    version=launch.version,
                    instead=instead.get("instead", "-"),
                )
            else:
                yield fail(
                    "KV connector {name} came with vLLM {since} (this is {version}): 'Unsupported connector type'. "
                    "Upgrade vLLM, or use what went before it: {before}",
                    evidence=evidence,
                    where=CONFIG,
                    name=name,
                    since=later,
                    version=launch.version,
                    before=instead.get("before", "-"),
                )
        gone = [entry for entry in table("kv-transfer-keys").rows if entry["key"] in config]
        for entry in gone:
            if version and version > (release(entry["last"]) or version):
                yield fail(
                    "--kv-transfer-config has {key}, which vLLM no longer takes after {last} (this is {version}): "
                    "it stops with 'Unexpected keyword argument'. Take it out",
                    evidence=(seen("key", entry["key"], "--kv-transfer-config"),),
                    where=CONFIG,
                    key=entry["key"],
                    last=entry["last"],
                    version=launch.version,
                )
        if config.get("kv_role") not in ("kv_producer", "kv_consumer", "kv_both"):
            yield fail(
                "--kv-transfer-config with kv_connector {name} has kv_role {role}: vLLM wants kv_producer, "
                "kv_consumer or kv_both beside it",
                evidence=evidence,
                where=CONFIG,
                name=name,
                role=config.get("kv_role") or "-",
            )


@check("KVT402", "kv-connector-needs-package", runtimes={"vllm"})
def kv_connector_needs_package(
    launch: Launch, target: TargetEnvironment, request: LaunchRequest | None, environment: Environment | None
) -> Iterator[Finding]:
    """The connector needs a package that is not installed, or one built for another CUDA."""
    for config in releases.connectors(launch.get("kv_transfer_config")):
        known = row("kv-connectors", name=str(config.get("kv_connector")))
        packages = known.get("packages", []) if known else []
        if not packages:
            continue
        found = [distribution for distribution in map(target.has, packages) if distribution]
        if not found:
            yield fail(
                "KV connector {name} imports {package}, which the environment does not have: '{symptom}'. {python} "
                "-m pip install {install}",
                evidence=(seen("installed", "none of " + listed(packages), target.python),),
                where=Place(kind="package", name=packages[0]),
                name=config.get("kv_connector"),
                package=packages[0],
                symptom=known["symptom"] if known else "",
                python=target.python,
                install=packages[0],
            )
            continue
        major = (target.torch_cuda or "").partition(".")[0]
        if target.torch_cuda is None:
            yield skip("which CUDA torch was built for was not read, so {name} cannot be compared", name=found[0].name)
        for distribution in found:
            family = next((part for part in ("cu12", "cu13") if distribution.name.endswith(part)), None)
            if family and major.isdigit() and family != f"cu{major}":
                yield warn(
                    "{package} {version} is built for CUDA {family}, and torch brings CUDA {cuda}: its UCX then "
                    "finds no GPU transports ('NIXL_ERR_BACKEND', only shm and tcp). Install the cu{major} build",
                    evidence=(
                        seen(distribution.name, distribution.version, target.python),
                        seen("torch CUDA", target.torch_cuda, "torch/version.py"),
                    ),
                    where=Place(kind="package", name=distribution.name),
                    package=distribution.name,
                    version=distribution.version,
                    family=family.removeprefix("cu"),
                    cuda=target.torch_cuda,
                    major=major,
                )
        path = variable("LD_LIBRARY_PATH", request, environment) or ""
        foreign = next(
            (folder for folder in path.split(":") if "hpcx" in folder.lower() or "/ucx" in folder.lower()), None
        )
        if foreign and any(distribution.name.startswith("nixl") for distribution in found):
            yield warn(
                "LD_LIBRARY_PATH holds {folder}, another UCX than the one inside the NIXL wheel: two UCX in one "
                "process end in NIXL_ERR_BACKEND or a segmentation fault. Take that folder out of the service's "
                "LD_LIBRARY_PATH",
                evidence=(seen("LD_LIBRARY_PATH", path, "environment"),),
                where=Place(kind="environment", name="LD_LIBRARY_PATH"),
                folder=foreign,
            )
