"""Folders and the file systems they lie on: kind, size, free space, and whether this user may write."""

from __future__ import annotations

import os
from typing import List, Optional, Tuple

from .host import Fact, Host


def table(host: Host) -> List[Tuple[str, str, str, str]]:
    """(mount point, file system, source, options) of this process, longest mount point first."""
    found = []
    for line in (host.text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) >= 6 and len(kind) >= 2:
            point = fields[4].encode().decode("unicode_escape", "replace")
            found.append((point, kind[0], kind[1], fields[5] + "," + (kind[2] if len(kind) > 2 else "")))
    return sorted(found, key=lambda mount: -len(mount[0]))


def of(mounts: List[Tuple[str, str, str, str]], path: str) -> Optional[Tuple[str, str, str, str]]:
    """The mount a path lies on."""
    for mount in mounts:
        if path == mount[0] or path.startswith(mount[0].rstrip("/") + "/"):
            return mount
    return None


def observe(host: Host, path: str, mounts: List[Tuple[str, str, str, str]]) -> Fact:
    """A folder as it stands, or as it would be made: space and permission of its nearest existing parent."""
    existing = path
    while not host.exists(existing) and existing != os.path.dirname(existing):
        existing = os.path.dirname(existing)
    mount = of(mounts, existing)
    found: Fact = {"path": path, "filesystem": mount[1] if mount else None, "exists": existing == path}
    try:
        size = os.statvfs(host.path(existing))
    except OSError:
        return found
    found["size"] = size.f_frsize * size.f_blocks
    found["free"] = size.f_frsize * size.f_bavail
    found["writable"] = os.access(host.path(existing), os.W_OK | os.X_OK)
    return found
