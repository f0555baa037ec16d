"""Limits that control groups set for this process, in version 2 and version 1: the tightest of it and its parents."""

from __future__ import annotations

import os
from typing import Iterator, Optional, Tuple

from .host import Host

NO_LIMIT = 1 << 60
"""Version 1 says "no limit" with a number near 2^63."""


def _folders(host: Host, controller: str) -> Tuple[int, Iterator[str]]:
    """Version and folders of the process's group, from its own up to the root."""
    for line in (host.text("/proc/self/cgroup") or "").splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0" and not controllers and host.exists("/sys/fs/cgroup/cgroup.controllers"):
            return 2, _upwards(host, "/sys/fs/cgroup", path)
        if controller in controllers.split(","):
            for root in ("/sys/fs/cgroup/" + controller, "/sys/fs/cgroup/" + controllers):
                if host.exists(root):
                    return 1, _upwards(host, root, path)
    return 0, iter(())


def _upwards(host: Host, root: str, path: str) -> Iterator[str]:
    # Without a cgroup namespace a container sees the host's path, which does not exist under its own mount.
    while path.strip("/"):
        folder = os.path.join(root, path.strip("/"))
        if host.exists(folder):
            yield folder
        path = os.path.dirname(path.rstrip("/"))
    yield root


def _integer(text: Optional[str]) -> Optional[int]:
    text = (text or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def memory(host: Host) -> Tuple[Optional[int], Optional[int]]:
    """(limit, used) in bytes of the group with the tightest limit; limit None where there is none."""
    version, folders = _folders(host, "memory")
    limit_name, used_name = ("memory.max", "memory.current")
    if version == 1:
        limit_name, used_name = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    best: Tuple[Optional[int], Optional[int]] = (None, None)
    for folder in folders:
        limit = _integer(host.text(folder + "/" + limit_name))
        if limit is not None and limit < NO_LIMIT and (best[0] is None or limit < best[0]):
            best = (limit, _integer(host.text(folder + "/" + used_name)))
    return best


def cpu_limit(host: Host) -> Optional[float]:
    """CPUs' worth of time the quota grants; None where there is no quota."""
    version, folders = _folders(host, "cpu")
    best: Optional[float] = None
    for folder in folders:
        if version == 2:
            words = (host.text(folder + "/cpu.max") or "max").split()
            quota, period = _integer(words[0]), _integer(words[1]) if len(words) > 1 else 100000
        else:
            quota = _integer(host.text(folder + "/cpu.cfs_quota_us"))
            period = _integer(host.text(folder + "/cpu.cfs_period_us"))
        if quota and quota > 0 and period:
            share = quota / period
            best = share if best is None else min(best, share)
    return best
