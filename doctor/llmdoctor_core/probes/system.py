"""Kernel, C library, CPU, memory and limits of the machine this runs in."""

from __future__ import annotations

import os
import re
import resource
from typing import Dict, List, Optional

from . import cgroup, elf, loader
from .host import Fact, Host

ACS_REDIRECT = 0x4 | 0x8
"""Bits of the ACS control register: P2P request redirect, P2P completion redirect (PCI Express Base Specification)."""
ACS_CAPABILITY = 0x000D


def probe(host: Host) -> Fact:
    """All that the kernel and the C library tell without a privilege."""
    unread: Dict[str, str] = {}
    kernel, machine = _kernel(host)
    memory = _memory(host)
    cpu = host.text("/proc/cpuinfo") or ""
    cached = loader.cache(host)
    return {
        "fact": "system",
        "kernel": kernel,
        "distribution": _distribution(host),
        "glibc": _offered(host, "libc.so.6", "GLIBC", machine, cached, unread),
        "libstdcxx": _offered(host, "libstdc++.so.6", "GLIBCXX", machine, cached, unread),
        "machine": machine,
        "cpu_model": _field(cpu, "model name") or _field(cpu, "CPU part"),
        "cpu_flags": (_field(cpu, "flags") or _field(cpu, "Features") or "").split(),
        "cpus": _cpus(host),
        "numa_nodes": len([name for name in host.list("/sys/devices/system/node") if re.fullmatch(r"node\d+", name)])
        or None,
        "memory_total": memory.get("MemTotal"),
        "memory_available": memory.get("MemAvailable"),
        "swap_total": memory.get("SwapTotal"),
        "hugepages_free": _number(host.text("/proc/meminfo") or "", r"HugePages_Free:\s+(\d+)"),
        "hugepage_size": memory.get("Hugepagesize"),
        "memlock": _limit(resource.RLIMIT_MEMLOCK),
        "open_files": _limit(resource.RLIMIT_NOFILE),
        "stack": _limit(resource.RLIMIT_STACK),
        "uid": os.getuid(),
        "user": _user(host),
        "has_passwd_entry": _user(host) is not None,
        "iommu": _iommu(host),
        "acs": _acs(host, unread),
        "wsl": "microsoft" in kernel.lower(),
        "unread": unread,
    }


def _kernel(host: Host) -> "tuple[str, str]":
    release = (host.text("/proc/sys/kernel/osrelease") or os.uname().release).strip()
    return release, os.uname().machine


def _field(text: str, name: str) -> Optional[str]:
    match = re.search(r"^{}\s*:[ \t]*(.*\S)".format(name), text, re.MULTILINE)
    return match.group(1) if match else None


def _number(text: str, pattern: str) -> Optional[int]:
    match = re.search(pattern, text)
    return int(match.group(1)) if match else None


def _memory(host: Host) -> Dict[str, int]:
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", host.text("/proc/meminfo") or "", re.MULTILINE)
    return {name: int(size) * 1024 for name, size in lines}


def _distribution(host: Host) -> Optional[str]:
    text = host.text("/etc/os-release") or host.text("/usr/lib/os-release") or ""
    match = re.search(r"^PRETTY_NAME=\"?([^\"\n]*)", text, re.MULTILINE)
    return match.group(1) if match else None


def _offered(
    host: Host, soname: str, family: str, machine: str, cached: Dict[str, List[str]], unread: Dict[str, str]
) -> Optional[str]:
    """The highest symbol version that the system's copy of a library offers: extension modules are held against it."""
    field = {"GLIBC": "glibc", "GLIBCXX": "libstdcxx"}[family]
    paths = loader.candidates(host, soname, machine, cached)
    if not paths:
        unread[field] = "{} was not found".format(soname)
        return None
    try:
        return elf.read(host.path(paths[0])).offers.get(family)
    except (elf.ElfError, OSError) as error:
        unread[field] = "{}: {}".format(paths[0], error)
        return None


def _cpus(host: Host) -> Optional[int]:
    """CPUs by affinity, less where a cgroup quota grants less; a quota of 1.5 CPUs counts as 2."""
    try:
        granted = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        granted = os.cpu_count() or 0
    quota = cgroup.cpu_limit(host)
    if quota is not None:
        granted = min(granted, max(1, -int(-quota // 1)))
    return granted or None


def _limit(which: int) -> int:
    soft = resource.getrlimit(which)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def _user(host: Host) -> Optional[str]:
    """The name of this user in /etc/passwd; None where the uid has no entry (torch and getpass then fail)."""
    for line in (host.text("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(os.getuid()):
            return fields[0]
    return None


def _iommu(host: Host) -> Optional[str]:
    words = (host.text("/proc/cmdline") or "").split()
    if "iommu=pt" in words or "iommu.passthrough=1" in words:
        return "passthrough"
    if "intel_iommu=off" in words or "amd_iommu=off" in words or "iommu=off" in words:
        return "off"
    if any(word.startswith(("intel_iommu=on", "amd_iommu=on")) or word == "iommu=force" for word in words):
        return "on"
    return None


def _acs(host: Host, unread: Dict[str, str]) -> Optional[bool]:
    """Whether any PCI bridge redirects peer traffic through the root: its extended configuration needs root to read."""
    bridges, read = 0, 0
    for address in host.list("/sys/bus/pci/devices"):
        folder = "/sys/bus/pci/devices/" + address
        if not (host.text(folder + "/class") or "").startswith("0x0604"):
            continue
        bridges += 1
        try:
            with open(host.path(folder + "/config"), "rb") as file:
                config = file.read(4096)
        except OSError:
            continue
        control = _acs_control(config)
        read += len(config) > 256
        if control is not None and control & ACS_REDIRECT:
            return True
    if bridges and read < bridges:
        unread["acs"] = "the configuration of PCI bridges is readable by root only"
        return None
    return False if bridges else None


def _acs_control(config: bytes) -> Optional[int]:
    """The ACS control register from a bridge's 4096 bytes of configuration, by the chain of extended capabilities."""
    at = 0x100
    for _ in range(64):
        if at < 0x100 or at + 8 > len(config):
            return None
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == ACS_CAPABILITY:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20
    return None
