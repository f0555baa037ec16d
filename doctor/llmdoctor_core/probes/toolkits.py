"""CUDA toolkits of the host and of the target environment, and what each lacks for a just-in-time build."""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .host import Fact, Host, table

NVCC_LIMIT = 3.0


def probe(host: Host, target: Fact) -> Fact:
    """Every toolkit found, by folder, in the order of the variables that choose among them."""
    parts = table("toolkit.json")
    found: List[Fact] = []
    seen = set()
    for origin, home in _homes(host, target):
        real = os.path.realpath(host.path(home))
        if real in seen or not os.path.isdir(real):
            continue
        seen.add(real)
        toolkit = _toolkit(host, home, origin, parts)
        if toolkit:
            found.append(toolkit)
    return {
        "fact": "cudatoolkits",
        "toolkits": found,
        "variables": {name: host.environ[name] for name in parts["variables"] if name in host.environ},
        "nvcc_on_path": host.program("nvcc"),
    }


def _homes(host: Host, target: Fact) -> Iterator[Tuple[str, str]]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if host.environ.get(name):
            yield name, host.environ[name]
    nvcc = host.program("nvcc")
    if nvcc:
        yield "PATH", os.path.dirname(os.path.dirname(nvcc))
        yield "PATH", os.path.dirname(os.path.dirname(os.path.realpath(host.path(nvcc))))
    yield "/usr/local", "/usr/local/cuda"
    for name in host.list("/usr/local"):
        if name.startswith("cuda-"):
            yield "/usr/local", "/usr/local/" + name
    yield "Debian package", "/usr/lib/nvidia-cuda-toolkit"
    if host.environ.get("CONDA_PREFIX"):
        yield "CONDA_PREFIX", host.environ["CONDA_PREFIX"]
    for folder in target.get("site_packages", ()):
        for home in sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia", "cu[0-9]*"))):
            yield "environment", home
        yield "environment", os.path.join(folder, "nvidia", "cuda_nvcc")


def _toolkit(host: Host, home: str, origin: str, parts: Any) -> Optional[Fact]:
    """The toolkit in a folder; None where the folder holds neither a compiler nor CUDA's headers."""
    nvcc = os.path.join(home, "bin", "nvcc")
    version = nvcc_version(host, nvcc) if host.exists(nvcc) else None
    header = header_version(host, home)
    if version is None and header is None and origin not in ("CUDA_HOME", "CUDA_PATH"):
        return None
    return {
        "path": home,
        "origin": origin,
        "nvcc": nvcc if host.exists(nvcc) else None,
        "nvcc_version": version,
        "header_version": header,
        "lacks": lacks(host, home, parts["parts"]),
    }


def lacks(host: Host, home: str, parts: List[Dict[str, Any]]) -> List[str]:
    """The parts of the table that the folder has under none of their paths."""
    return [part["name"] for part in parts if not any(host.exists(os.path.join(home, path)) for path in part["paths"])]


def nvcc_version(host: Host, nvcc: str) -> Optional[str]:
    """``12.4`` as ``nvcc --version`` says it; None where it does not run."""
    said = host.run([host.path(nvcc), "--version"], NVCC_LIMIT)
    match = re.search(r"release (\d+\.\d+)", said.out)
    return match.group(1) if match else None


def header_version(host: Host, home: str) -> Optional[str]:
    """``12.8`` from the headers a build would include: CUDA_VERSION of cuda.h, or CUDART_VERSION where only the runtime
    is installed."""
    rows = table("toolkit.json")
    for macro, paths in (("CUDA_VERSION", rows["version_headers"]), ("CUDART_VERSION", rows["runtime_headers"])):
        for path in paths:
            match = re.search(r"#define\s+" + macro + r"\s+(\d+)", host.text(os.path.join(home, path)) or "")
            if match:
                return "{}.{}".format(int(match.group(1)) // 1000, int(match.group(1)) % 1000 // 10)
    return None
