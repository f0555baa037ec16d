"""Asks NVML for driver, GPUs and links, in a process of its own, and prints one JSON line for each thing learnt.

What it was doing last stands in the ``at`` lines, so that a driver call that never returns can be named.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any, Callable, Dict, List, Optional

LOST = {15: "GPU is lost", 16: "GPU requires a reset"}
REASONS = {
    1: "NVML is not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    9: "driver not loaded",
    10: "timeout inside NVML",
    11: "interrupt problem",
    12: "library not found",
    13: "this driver's NVML has no such function",
    17: "the operating system blocks it",
    18: "driver and library versions differ",
    25: "argument version mismatch",
}
WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"

# Numbers below are NVML's own constants (nvml.h 13.5); they are written out because older wrappers lack the names.
THROTTLE = {
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
NVLINK_GENERATION = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by a driver setting",
    5: "not supported",
}
FABRIC = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
MAX_LINKS = 36
READ, NVLINK = 0, 2
UNIFIED = ([12, 1], [8, 7], [11, 0])
"""Compute capabilities of GPUs that share the host's memory: GB10, Orin, Thor."""


class GoneError(Exception):
    """The GPU stopped answering."""


class Reader:
    """Asks one thing at a time and keeps why an answer is missing."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.unread: Dict[str, str] = {}

    def ask(self, field: str, function: str, *arguments: Any) -> Any:
        """What an NVML function answers, or None with the reason under ``field``. Raises GoneError for a lost GPU."""
        return self.call(field, lambda: getattr(self.nvml, function)(*arguments))

    def call(self, field: str, call: Callable[[], Any]) -> Any:
        """The same for a call of several steps."""
        try:
            return call()
        except self.nvml.NVMLError as error:
            if error.value in LOST:
                raise GoneError(LOST[error.value]) from None
            self.unread[field] = why(error)
        except (AttributeError, TypeError, ValueError, OSError, ctypes.ArgumentError) as error:
            self.unread[field] = "{}: {}".format(type(error).__name__, error)
        except Exception as error:  # NVMLLibraryMismatchError is no NVMLError
            self.unread[field] = str(error)
        return None

    def quiet(self, function: str, *arguments: Any) -> Any:
        """The answer, or None without noting why: for what has another way of being asked."""
        found = self.ask("", function, *arguments)
        self.unread.pop("", None)
        return found


def why(error: Any) -> str:
    return REASONS.get(error.value) or str(error)


def emit(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def main() -> None:
    """Print all that NVML tells. Ends normally whatever NVML does, but for a call that never returns."""
    try:
        import pynvml as nvml
    except ImportError as error:
        emit(failed="pynvml (distribution nvidia-ml-py) cannot be imported: {}".format(error), code=-1)
        return
    emit(at="starting NVML")
    try:
        initialise(nvml)
    except nvml.NVMLError as error:
        version = Reader(nvml).quiet("nvmlSystemGetNVMLVersion") if error.value != 12 else None
        emit(failed=why(error), code=error.value, nvml_version=text(version))
        return
    except (AttributeError, OSError) as error:
        emit(failed="NVML cannot be loaded: {}".format(error), code=-1)
        return
    emit(driver=driver(nvml))
    handles = gpus(nvml)
    links(nvml, handles)
    emit(end=True)


def initialise(nvml: Any) -> None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value != 12:
            raise
        try:
            ctypes.CDLL(WSL_LIBRARY)  # the loader then finds it under its soname
        except OSError:
            raise error from None
        nvml.nvmlInit()


def driver(nvml: Any) -> Dict[str, Any]:
    reader = Reader(nvml)
    number = reader.ask("cuda_version", "nvmlSystemGetCudaDriverVersion_v2")
    return {
        "version": text(reader.ask("version", "nvmlSystemGetDriverVersion")),
        "cuda_version": "{}.{}".format(number // 1000, number % 1000 // 10) if number else None,
        "nvml_version": text(reader.ask("nvml_version", "nvmlSystemGetNVMLVersion")),
        "unread": reader.unread,
    }


def gpus(nvml: Any) -> Dict[int, Any]:
    """Print every GPU and MIG slice; return the handles of whole GPUs that answer, by index."""
    handles: Dict[int, Any] = {}
    emit(at="counting GPUs")
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        emit(uncounted=why(error))
        return handles
    emit(count=count)
    for index in range(count):
        emit(at="reading GPU {}".format(index))
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found = gpu(nvml, handle, index)
        except nvml.NVMLError as error:
            emit(gpu={"index": index, "name": "unknown", "lost": LOST.get(error.value) or why(error)})
            continue
        except GoneError as error:
            emit(gpu={"index": index, "name": "unknown", "lost": str(error)})
            continue
        emit(gpu=found)
        handles[index] = handle
        if found["mig_enabled"]:
            for slice_ in mig_slices(nvml, handle, index, found):
                emit(gpu=slice_)
    return handles


def gpu(nvml: Any, handle: Any, index: int) -> Dict[str, Any]:
    reader = Reader(nvml)
    ask = reader.ask
    found: Dict[str, Any] = {"index": index}
    found["name"] = text(ask("name", "nvmlDeviceGetName", handle)) or "unknown"
    found["uuid"] = text(ask("uuid", "nvmlDeviceGetUUID", handle))
    capability = ask("compute_capability", "nvmlDeviceGetCudaComputeCapability", handle)
    found["compute_capability"] = list(capability) if capability else None
    pci = ask("bus_id", "nvmlDeviceGetPciInfo", handle)
    found["bus_id"] = text(pci.busId) if pci else None
    found.update(memory(reader, handle, found["compute_capability"]))
    found["processes"] = processes(reader, handle)
    ecc = ask("ecc_enabled", "nvmlDeviceGetEccMode", handle)
    found["ecc_enabled"] = bool(ecc[0]) if ecc else None
    if found["ecc_enabled"]:
        found["ecc_uncorrected"] = ask("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    rows = ask("remapped_pending", "nvmlDeviceGetRemappedRows", handle)
    found["remapped_pending"] = bool(rows[2]) if rows else None
    found["remapped_failed"] = bool(rows[3]) if rows else None
    found["retired_pending"] = truth(ask("retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus", handle))
    bits = reader.quiet("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:
        bits = ask("throttling", "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    found["throttling"] = None if bits is None else [word for bit, word in sorted(THROTTLE.items()) if bits & bit]
    found["persistence"] = truth(ask("persistence", "nvmlDeviceGetPersistenceMode", handle))
    mode = ask("mig_enabled", "nvmlDeviceGetMigMode", handle)
    found["mig_enabled"] = bool(mode[0]) if mode else None
    found["pcie_generation"] = ask("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", handle)
    found["pcie_generation_max"] = ask("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    found["pcie_width"] = ask("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", handle)
    found["pcie_width_max"] = ask("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", handle)
    found.update(fabric(reader, handle))
    found["unread"] = reader.unread
    return found


def truth(value: Any) -> Optional[bool]:
    return None if value is None else bool(value)


def memory(reader: Reader, handle: Any, capability: Any) -> Dict[str, Any]:
    """Memory as CUDA can use it: NVML's total less what the driver keeps (version 2 of the call tells them apart)."""
    found = reader.quiet("nvmlDeviceGetMemoryInfo", handle, 0x02000028)
    if found is not None:
        return {
            "memory_total": found.total - found.reserved,
            "memory_reserved": found.reserved,
            "memory_used": found.used,
            "memory_free": found.free,
        }
    found = reader.ask("memory_total", "nvmlDeviceGetMemoryInfo", handle)
    if found is not None:
        reader.unread["memory_reserved"] = "this driver's NVML does not tell it apart: total and used still contain it"
        return {"memory_total": found.total, "memory_used": found.used, "memory_free": found.free}
    shared = capability in UNIFIED or reader.quiet("nvmlDeviceGetAddressingMode", handle) == 2
    return {"unified_memory": bool(shared)}


def processes(reader: Reader, handle: Any) -> List[Dict[str, Any]]:
    found = reader.quiet("nvmlDeviceGetComputeRunningProcesses", handle)
    if found is None:
        found = reader.ask("processes", "nvmlDeviceGetComputeRunningProcesses_v2", handle)
    answer = []
    for process in found or ():
        name = text(reader.quiet("nvmlSystemGetProcessName", process.pid))
        answer.append({"pid": process.pid, "name": name or None, "memory": process.usedGpuMemory})
    return answer


def fabric(reader: Reader, handle: Any) -> Dict[str, Any]:
    nvml = reader.nvml

    def newer() -> Any:
        info = nvml.c_nvmlGpuFabricInfoV_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return info

    def older() -> Any:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        return info

    info = reader.call("fabric_state", newer)
    if info is None:
        reader.unread.pop("fabric_state")
        info = reader.call("fabric_state", older)
    if info is None:
        return {}
    found = {"fabric_state": FABRIC.get(info.state, "state {}".format(info.state))}
    mask = getattr(info, "healthMask", None)
    if info.state == 3 and info.status:
        found["fabric_health"] = "the fabric manager reported error {}".format(info.status)
    elif info.state == 3 and mask is not None:
        found["fabric_health"] = health(mask)
    return found


def health(mask: int) -> str:
    """Bits 0-1 degraded bandwidth, 4-5 unhealthy routes (1 is yes), 8-11 what is wrong with the configuration."""
    faults = []
    if mask & 0x3 == 1:
        faults.append("degraded bandwidth")
    if mask >> 4 & 0x3 == 1:
        faults.append("unhealthy routes")
    if mask >> 8 & 0xF > 1:
        faults.append("incorrect configuration {}".format(mask >> 8 & 0xF))
    return ", ".join(faults) or "healthy"


def mig_slices(nvml: Any, parent: Any, index: int, owner: Dict[str, Any]) -> List[Dict[str, Any]]:
    reader = Reader(nvml)
    count = reader.quiet("nvmlDeviceGetMaxMigDeviceCount", parent) or 0
    found = []
    for number in range(count):
        handle = reader.quiet("nvmlDeviceGetMigDeviceHandleByIndex", parent, number)
        if handle is not None:
            found.append(mig_slice(nvml, handle, index, owner))
    return found


def mig_slice(nvml: Any, handle: Any, index: int, owner: Dict[str, Any]) -> Dict[str, Any]:
    reader = Reader(nvml)
    name = text(reader.ask("name", "nvmlDeviceGetName", handle)) or owner["name"]
    capability = reader.quiet("nvmlDeviceGetCudaComputeCapability", handle)
    found = {
        "index": index,
        "name": name,
        "uuid": text(reader.ask("uuid", "nvmlDeviceGetUUID", handle)),
        "compute_capability": list(capability) if capability else owner["compute_capability"],
        "bus_id": owner["bus_id"],
        "mig_enabled": True,
        "mig_parent": owner["uuid"],
        "mig_profile": name.partition(" MIG ")[2] or None,
        "gpu_instance": reader.quiet("nvmlDeviceGetGpuInstanceId", handle),
        "compute_instance": reader.quiet("nvmlDeviceGetComputeInstanceId", handle),
        "processes": processes(reader, handle),
    }
    found.update(memory(reader, handle, found["compute_capability"]))
    found["unread"] = reader.unread
    return found


class Wire:
    """The NVLinks of one GPU: how many are up, to which bus address, of which generation, how many end at a switch."""

    def __init__(self) -> None:
        self.active = 0
        self.peers: Dict[str, int] = {}
        self.switched = 0
        self.version: Optional[int] = None


def wires(nvml: Any, handle: Any) -> Wire:
    reader = Reader(nvml)
    wire = Wire()
    for link in range(MAX_LINKS):
        state = reader.quiet("nvmlDeviceGetNvLinkState", handle, link)
        if state is None:  # past the last link, or none at all
            break
        if not state:
            continue
        wire.active += 1
        if wire.version is None:
            wire.version = reader.quiet("nvmlDeviceGetNvLinkVersion", handle, link)
        kind = reader.quiet("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        if kind == 2:
            wire.switched += 1
            continue
        pci = reader.quiet("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if pci is not None:
            bus = text(pci.busId).upper()
            wire.peers[bus] = wire.peers.get(bus, 0) + 1
    return wire


def links(nvml: Any, handles: Dict[int, Any]) -> None:
    """Print the way between every two GPUs that answer."""
    emit(at="reading links")
    reader = Reader(nvml)
    by_gpu: Dict[int, Wire] = {}
    bus: Dict[int, str] = {}
    for index, handle in handles.items():
        try:
            pci = reader.quiet("nvmlDeviceGetPciInfo", handle)
            bus[index] = text(pci.busId).upper() if pci else ""
            by_gpu[index] = wires(nvml, handle)
        except GoneError as error:
            reader.unread["GPU {}".format(index)] = str(error)
    for a in by_gpu:
        for b in by_gpu:
            if a < b:
                emit(at="reading the link of GPU {} and GPU {}".format(a, b))
                emit(link=link(reader, handles, a, b, by_gpu, bus))
    emit(links={"nvswitch": any(wire.switched for wire in by_gpu.values()), "unread": reader.unread})


def link(
    reader: Reader, handles: Dict[int, Any], a: int, b: int, by_gpu: Dict[int, Wire], bus: Dict[int, str]
) -> Dict[str, Any]:
    one, other = by_gpu[a], by_gpu[b]
    switched = bool(one.switched and other.switched)
    direct = one.peers.get(bus[b], 0)
    field = "{}-{} ".format(a, b)

    def ask(name: str, function: str, *arguments: Any) -> Any:
        try:
            return reader.ask(field + name, function, *arguments)
        except GoneError as error:
            reader.unread[field + name] = str(error)
            return None

    level = ask("path", "nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
    read = ask("p2p", "nvmlDeviceGetP2PStatus", handles[a], handles[b], READ)
    over_nvlink = ask("p2p_nvlink", "nvmlDeviceGetP2PStatus", handles[a], handles[b], NVLINK)
    count = min(one.active, other.active) if switched else direct
    return {
        "a": a,
        "b": b,
        "path": PATHS.get(level, "unknown"),
        "nvlinks": count,
        "nvlink_generation": NVLINK_GENERATION.get(one.version or 0) if count else None,
        "through_switch": switched,
        "p2p": None if read is None else P2P.get(read, "status {}".format(read)),
        "p2p_nvlink": None if over_nvlink is None else P2P.get(over_nvlink, "status {}".format(over_nvlink)),
    }
