"""Driver, GPUs and links through NVML, asked in a child process that is killed at its limit."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from typing import Any, Dict, List, Optional

from . import visible
from .host import Answer, Fact, Host, unavailable

CHILD = "import sys; sys.path[len(sys.path):] = sys.argv[1:]; from {package}.nvml_child import main; main()"

WHY = {
    12: (
        "libnvidia-ml.so.1 was not found: there is no NVIDIA driver here, or the container was started without GPUs "
        "(docker run --gpus all, NVIDIA_DRIVER_CAPABILITIES with utility)"
    ),
    9: (
        "the NVIDIA kernel module is not loaded (modprobe nvidia, or reboot after the driver's installation), or the "
        "container lacks /dev/nvidiactl"
    ),
    18: "the driver's library and the loaded kernel module are of different versions (reboot after a driver upgrade)",
    4: "no permission to use the NVIDIA device nodes (/dev/nvidia*: mode, group or the container's device rules)",
    999: "NVML failed with an unknown error; the kernel log may tell (dmesg | grep -i nvrm)",
}


def probe(host: Host, limit: float) -> Dict[str, Fact]:
    """The facts ``driver``, ``gpus`` and ``links``. Never takes much longer than ``limit`` seconds."""
    module = module_version(host)
    folder = _wrapper()
    if folder is None:
        reason = "pynvml (distribution nvidia-ml-py) is not installed in {}".format(sys.executable)
        return _failed(host, reason, module, None)
    package = __name__.rpartition(".")[0].rpartition(".")[2]
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    argv = [sys.executable, "-I", "-S", "-B", "-c", CHILD.format(package=package), ours, folder]
    return _assemble(host, host.run(argv, limit), module, limit)


def _wrapper() -> Optional[str]:
    spec = importlib.util.find_spec("pynvml")
    if spec is None or not spec.origin:
        return None
    folder = os.path.dirname(os.path.abspath(spec.origin))
    return os.path.dirname(folder) if spec.submodule_search_locations else folder


def _assemble(host: Host, answer: Answer, module: Fact, limit: float) -> Dict[str, Fact]:
    lines = [json.loads(line) for line in answer.out.splitlines() if line.endswith("}")]
    said: Dict[str, Any] = {}
    for line in lines:
        said.update(line)
    if "failed" in said:
        reason = WHY.get(said["code"]) or said["failed"]
        return _failed(host, reason + _on_the_bus(host), module, said.get("nvml_version"))
    missing = None
    if answer.problem:
        missing = "NVML did not answer within {:g} s ({})".format(limit, said.get("at", "starting"))
    elif "end" not in said:
        last = (answer.err.strip().splitlines() or ["exit status {}".format(answer.code)])[-1]
        missing = "asking NVML failed while {}: {}".format(said.get("at", "starting"), last)
    if "driver" not in said:
        return _failed(host, missing or "NVML said nothing", module, None)
    found = {"driver": _driver(said["driver"], module)}
    devices = [line["gpu"] for line in lines if "gpu" in line]
    whole = [device for device in devices if not device.get("mig_parent")]
    if "uncounted" in said:
        missing = "NVML does not count the GPUs: {}".format(said["uncounted"])
    complete = "count" in said and len(whole) == said["count"]
    found["gpus"] = _gpus(host, devices) if complete else unavailable(missing or "NVML stopped early")
    found["links"] = unavailable(missing or "NVML stopped early")
    if "links" in said:
        pairs = [line["link"] for line in lines if "link" in line]
        found["links"] = dict(said["links"], fact="links", pairs=pairs)
    return found


def _on_the_bus(host: Host) -> str:
    """What the PCI bus says, where NVML says nothing."""
    gpus = 0
    for address in host.list("/sys/bus/pci/devices"):
        folder = "/sys/bus/pci/devices/" + address
        if (host.text(folder + "/vendor") or "").strip() == "0x10de":
            gpus += (host.text(folder + "/class") or "").startswith("0x03")
    return "; the PCI bus shows {} NVIDIA GPU{}".format(gpus, "" if gpus == 1 else "s") if gpus else ""


def _failed(host: Host, reason: str, module: Fact, nvml_version: Optional[str]) -> Dict[str, Fact]:
    """NVML does not work: the kernel module and the library may still tell their versions."""
    # NVML's version is "<CUDA major>.<driver version>", and it answers even where the kernel module refuses.
    library = nvml_version.partition(".")[2] if nvml_version else None
    version = library or module.get("kernel_module_version")
    driver = unavailable(reason)
    if version:
        driver = {"fact": "nvidiadriver", "version": version, "nvml_version": nvml_version, "unread": {"nvml": reason}}
        driver.update(module)
    return {"driver": driver, "gpus": unavailable(reason), "links": unavailable(reason)}


def _driver(said: Dict[str, Any], module: Fact) -> Fact:
    version = said["version"] or module.get("kernel_module_version")
    if not version:
        return unavailable("NVML does not tell the driver's version: {}".format(said["unread"].get("version")))
    return dict(said, fact="nvidiadriver", version=version, **module)


def module_version(host: Host) -> Fact:
    """Version and kind of the loaded kernel module, from /proc; empty where there is none."""
    text = host.text("/proc/driver/nvidia/version") or ""
    match = re.search(r"NVRM version:.*?\b(\d+\.\d+(?:\.\d+)?)\b", text)
    if not match:
        return {}
    return {"kernel_module_version": match.group(1), "open_kernel_module": "Open Kernel Module" in text}


def _gpus(host: Host, devices: List[Dict[str, Any]]) -> Fact:
    problem, order = visible.number(devices, host.environ)
    xids, unread = _xids(host) if devices else ({}, None)
    for device in devices:
        device.pop("gpu_instance", None)
        device.pop("compute_instance", None)
        if device.get("lost"):
            _identify(host, device)
        notes = device.setdefault("unread", {})
        if unread:
            notes["xid"] = unread
        else:
            device["xid"] = xids.get(_address(device.get("bus_id")), [])
        device["numa_node"] = _numa_node(host, device.get("bus_id"))
        if device.get("unified_memory"):
            _share(host, device)
    return {
        "fact": "gpus",
        "devices": devices,
        "visible_devices": host.environ.get("CUDA_VISIBLE_DEVICES"),
        "visible_problem": problem,
        "order_uncertain": order,
    }


def _address(bus_id: Optional[str]) -> str:
    """NVML's bus id (``00000000:3B:00.0``) as the kernel writes it (``0000:3b:00.0``)."""
    return (bus_id or "")[-12:].lower()


def _numa_node(host: Host, bus_id: Optional[str]) -> Optional[int]:
    text = host.text("/sys/bus/pci/devices/{}/numa_node".format(_address(bus_id))) if bus_id else None
    node = int(text) if text and text.strip().lstrip("-").isdigit() else -1
    return node if node >= 0 else None


def _identify(host: Host, device: Dict[str, Any]) -> None:
    """Name and address of a GPU that NVML has lost: the kernel module still lists it, in bus order like NVML."""
    folders = host.list("/proc/driver/nvidia/gpus")
    if device["index"] >= len(folders):
        return
    text = host.text("/proc/driver/nvidia/gpus/{}/information".format(folders[device["index"]])) or ""
    facts = dict(re.findall(r"^([^:\n]+):[ \t]*(\S.*?)[ \t]*$", text, re.MULTILINE))
    device["name"] = facts.get("Model", device["name"])
    device["uuid"] = facts.get("GPU UUID")
    device["bus_id"] = folders[device["index"]]


def _share(host: Host, device: Dict[str, Any]) -> None:
    """Memory of a GPU that has none of its own: the host's."""
    sizes = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", host.text("/proc/meminfo") or "", re.MULTILINE))
    if "MemTotal" in sizes:
        device["memory_total"] = int(sizes["MemTotal"]) * 1024
        device["memory_free"] = int(sizes.get("MemAvailable", 0)) * 1024 or None
        device["unread"].pop("memory_total", None)


def _xids(host: Host) -> Any:
    """Xid numbers of each bus address in the kernel log since boot, or why it cannot be read."""
    found: Dict[str, List[int]] = {}
    try:
        descriptor = os.open(host.path("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return found, "the kernel log cannot be read ({})".format(error.strerror)
    try:
        while True:
            try:
                record = os.read(descriptor, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the ring buffer overtook us
                continue
            except OSError as error:
                return found, "the kernel log cannot be read ({})".format(error.strerror)
            if not record:
                break
            for match in re.finditer(rb"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)", record):
                _note(found, match.group(1).decode().lower(), int(match.group(2)))
    finally:
        os.close(descriptor)
    return found, None


def _note(found: Dict[str, List[int]], address: str, xid: int) -> None:
    full = address if "." in address else address + ".0"
    numbers = found.setdefault(full[-12:], [])
    if xid not in numbers:
        numbers.append(xid)
