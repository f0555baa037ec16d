"""Which GPUs a CUDA process sees: CUDA_VISIBLE_DEVICES read as the CUDA driver reads it.

Rules: CUDA C++ Programming Guide, "CUDA Environment Variables"; for MIG the MIG User Guide, "CUDA Device Enumeration".
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

Device = Dict[str, Any]

ONE_SLICE = "a CUDA process uses one MIG slice only, the first one it is given"


def number(devices: List[Device], environ: Mapping[str, str]) -> Tuple[Optional[str], Optional[str]]:
    """Set ``visible_as`` of each device. Returns why the variable selects fewer than it names, and why the order of the
    GPUs is not certain; None for each where all is plain."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        seen, problem = _all(devices)
    else:
        seen, problem = _listed(devices, value)
    for device in devices:
        device["visible_as"] = seen.index(device) if any(device is one for one in seen) else None
    return problem, _order(devices, value, environ.get("CUDA_DEVICE_ORDER"))


def _is_slice(device: Device) -> bool:
    return device.get("mig_parent") is not None


def _usable(device: Device) -> bool:
    return not (device.get("mig_enabled") and not _is_slice(device))


def _all(devices: List[Device]) -> Tuple[List[Device], Optional[str]]:
    slices = [device for device in devices if _is_slice(device)]
    if not slices:
        whole = [device for device in devices if _usable(device)]
        return whole, None if whole or not devices else "MIG is enabled and no slice exists"
    problem = None
    if len(devices) > 2 or len(slices) > 1:
        problem = ONE_SLICE + ", and no whole GPU beside it; name the slice in CUDA_VISIBLE_DEVICES"
    return slices[:1], problem


def _listed(devices: List[Device], value: str) -> Tuple[List[Device], Optional[str]]:
    seen: List[Device] = []
    problem = None
    for entry in value.split(",") if value.strip() else ():
        found = _entry(devices, entry.strip())
        if isinstance(found, str):
            problem = "{!r} {}; it ends the list".format(entry.strip(), found)
            break
        if any(found is one for one in seen):
            return [], "{!r} names a GPU for the second time, which leaves no GPU at all".format(entry.strip())
        seen.append(found)
    slices = [device for device in seen if _is_slice(device)]
    if slices and len(seen) > 1:
        return slices[:1], ONE_SLICE
    return seen, problem


def _entry(devices: List[Device], entry: str) -> Any:
    """The device an entry of the list means, or what is wrong with the entry."""
    ordinal = re.match(r"[+-]?\d+", entry)
    if ordinal:
        return _by_index(devices, int(ordinal.group()))
    if entry.startswith("MIG-GPU-"):
        return _by_instances(devices, entry)
    if entry.startswith(("GPU-", "MIG-")):
        matches = [device for device in devices if (device.get("uuid") or "").lower().startswith(entry.lower())]
        if not matches:
            return "is no UUID of this host"
        if len(matches) > 1:
            return "fits {} GPUs".format(len(matches))
        return matches[0] if _usable(matches[0]) else _first_slice(devices, matches[0])
    return "is neither an index nor a UUID"


def _by_index(devices: List[Device], index: int) -> Any:
    whole = [device for device in devices if not _is_slice(device)]
    if not 0 <= index < len(whole):
        return "is no index of this host, which has {} GPU{}".format(len(whole), "" if len(whole) == 1 else "s")
    device = whole[index]
    return device if _usable(device) else _first_slice(devices, device)


def _first_slice(devices: List[Device], parent: Device) -> Any:
    for device in devices:
        if _is_slice(device) and device["mig_parent"] == parent["uuid"]:
            return device
    return "is a GPU in MIG mode without a slice"


def _by_instances(devices: List[Device], entry: str) -> Any:
    """``MIG-GPU-<uuid>/<GPU instance>/<compute instance>``, the form of drivers before R470."""
    parent, _, rest = entry[len("MIG-") :].partition("/")
    for device in devices:
        instances = "{}/{}".format(device.get("gpu_instance"), device.get("compute_instance"))
        if device.get("mig_parent") == parent and instances == rest:
            return device
    return "is no MIG slice of this host"


def _order(devices: List[Device], value: Optional[str], order: Optional[str]) -> Optional[str]:
    """CUDA numbers the fastest GPU first unless told to follow the bus; NVML follows the bus."""
    names = sorted({device["name"] for device in devices if not _is_slice(device) and not device.get("lost")})
    by_uuid = value is not None and value.startswith(("GPU-", "MIG-"))
    if len(names) < 2 or order == "PCI_BUS_ID" or by_uuid:
        return None
    return (
        "CUDA numbers the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID, and the GPUs differ ({}): "
        "the numbers here follow the PCI bus".format(", ".join(names))
    )
