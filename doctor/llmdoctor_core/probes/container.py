"""What a container, or the bare host, grants: memory, CPU, shared memory, GPU device nodes, the driver's libcuda."""

from __future__ import annotations

import os
import re
from typing import Optional, Tuple

from . import cgroup, loader, mounts
from .host import Fact, Host


def probe(host: Host) -> Fact:
    """Limits and device nodes, from /proc, /sys and /dev."""
    kind, image = _kind(host)
    limit, used = cgroup.memory(host)
    table = mounts.table(host)
    shm = mounts.observe(host, "/dev/shm", table) if host.exists("/dev/shm") else None
    nodes = ["/dev/" + name for name in host.list("/dev") if name.startswith("nvidia") and name != "nvidia-caps"]
    wsl = ["/dev/dxg"] if host.exists("/dev/dxg") else []
    return {
        "fact": "container",
        "kind": kind,
        "image": image,
        "memory_limit": limit,
        "memory_used": used,
        "cpu_limit": cgroup.cpu_limit(host),
        "shm": shm,
        "devices": nodes + wsl,
        "libcuda": list(loader.candidates(host, "libcuda.so.1", os.uname().machine, loader.cache(host))),
        "infiniband": bool(host.list("/dev/infiniband") or host.list("/sys/class/infiniband")),
        "ipc_host": _ipc_host(kind, mounts.of(table, "/dev/shm")),
        "unread": {} if shm else {"shm": "/dev/shm does not exist"},
    }


def _kind(host: Host) -> Tuple[str, Optional[str]]:
    environ = host.environ
    if environ.get("KUBERNETES_SERVICE_HOST") or host.exists("/var/run/secrets/kubernetes.io"):
        return "kubernetes", None
    text = host.text("/run/.containerenv")
    if text is not None:
        match = re.search(r'^image="?([^"\n]+)', text, re.MULTILINE)
        return "podman", match.group(1) if match else None
    if host.exists("/.dockerenv"):
        return "docker", None
    named = (host.text("/run/systemd/container") or environ.get("container") or "").strip()
    if named:
        return (named if named in ("docker", "podman", "lxc") else "container"), None
    groups = host.text("/proc/1/cgroup") or ""
    for word, kind in (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc")):
        if word in groups:
            return kind, None
    return "none", None


def _ipc_host(kind: str, mount: "Optional[Tuple[str, str, str, str]]") -> Optional[bool]:
    """Whether the host's shared memory is mounted. A container's own is called "shm" (Docker, containerd, CRI-O)."""
    if kind == "none" or mount is None or mount[0] != "/dev/shm":
        return None
    return mount[2] != "shm" and "size=" not in mount[3]
