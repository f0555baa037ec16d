"""Where the dynamic loader and the linker look for a library: LD_LIBRARY_PATH, the loader's cache, default folders."""

from __future__ import annotations

import os
import struct
from typing import Dict, List, Tuple

from .host import Host

CACHE = "/etc/ld.so.cache"
MAGIC = b"glibc-ld.so.cache1.1"
TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "ppc64le": "powerpc64le-linux-gnu"}


def default_folders(machine: str) -> List[str]:
    """Folders of the system's libraries, in the loader's order, on Debian-like and Fedora-like systems."""
    triplet = TRIPLETS.get(machine)
    multiarch = ["/lib/" + triplet, "/usr/lib/" + triplet] if triplet else []
    return multiarch + ["/lib64", "/usr/lib64", "/lib", "/usr/lib"]


def linker_folders(machine: str) -> List[str]:
    """Folders that ``ld`` searches for ``-lNAME`` without any ``-L`` (``ld --verbose``, SEARCH_DIR)."""
    triplet = TRIPLETS.get(machine)
    multiarch = ["/usr/local/lib/" + triplet, "/lib/" + triplet, "/usr/lib/" + triplet] if triplet else []
    return multiarch + ["/usr/local/lib64", "/lib64", "/usr/lib64", "/usr/local/lib", "/lib", "/usr/lib"]


def cache(host: Host) -> Dict[str, List[str]]:
    """The loader's cache: paths by library name, in its order. Empty where there is none (musl) or it cannot be read.

    Layout: glibc, sysdeps/generic/dl-cache.h, ``struct cache_file_new``.
    """
    try:
        with open(host.path(CACHE), "rb") as file:
            data = file.read(64 << 20)
    except OSError:
        return {}
    start = data.find(MAGIC)
    found: Dict[str, List[str]] = {}
    try:
        count = struct.unpack_from("=I", data, start + len(MAGIC))[0] if start >= 0 else 0
        for number in range(min(count, 100000)):
            name, path = struct.unpack_from("=II", data, start + 48 + number * 24 + 4)
            found.setdefault(_text(data, start + name), []).append(_text(data, start + path))
    except (struct.error, ValueError):
        return {}
    return found


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("utf-8", "replace")


def candidates(host: Host, soname: str, machine: str, cached: Dict[str, List[str]]) -> Tuple[str, ...]:
    """Existing paths of a library in the order the loader tries them for a program without a run path."""
    folders = [folder for folder in host.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":") if folder]
    paths = [os.path.join(folder, soname) for folder in folders]
    paths += cached.get(soname, [])
    paths += [os.path.join(folder, soname) for folder in default_folders(machine)]
    found: List[str] = []
    real = set()
    for path in paths:
        target = os.path.realpath(host.path(path))
        if host.exists(path) and target not in real:
            real.add(target)
            found.append(path)
    return tuple(found)
