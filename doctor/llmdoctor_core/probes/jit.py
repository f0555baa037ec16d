"""The compiler FlashInfer's just-in-time build will pick, by its own order, in the environment of the service.

Order of FlashInfer 0.4.0 to 0.7.4 (flashinfer/jit/cpp_ext.py, get_cuda_path): CUDA_HOME, CUDA_PATH, two folders
above the ``nvcc`` that ``which`` finds (links not resolved), /usr/local/cuda if it exists, else an error. The compiler
is FLASHINFER_NVCC or bin/nvcc under that folder. An empty variable counts as unset.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Tuple

from . import loader
from .host import Fact, Host, table
from .target import Target
from .toolkits import lacks, nvcc_version

DEFAULT_HOME = "/usr/local/cuda"
COMPILER_LIMIT = 2.0


def probe(host: Host, target: Target) -> Fact:
    """What would run and what it would miss. Nothing is compiled."""
    unread: Dict[str, str] = {}
    home, chosen_by = cuda_home(host)
    own = host.environ.get("FLASHINFER_NVCC") or None
    nvcc = own or (os.path.join(home, "bin", "nvcc") if home else None)
    exists = bool(nvcc and host.program(nvcc))
    flags_version = nvcc_version(host, os.path.join(home, "bin", "nvcc")) if home else None
    version = flags_version
    if own:
        version = nvcc_version(host, host.program(own) or own)
    if exists and version is None:
        unread["version"] = "{} --version does not name a release".format(nvcc)
    missing, off_path = _missing(host, home, own, target, unread)
    compiler, compiler_version = host_compiler(host)
    return {
        "fact": "jitcompiler",
        "nvcc": nvcc,
        "cuda_home": home,
        "chosen_by": "FLASHINFER_NVCC" if own else chosen_by,
        "version": version,
        "exists": exists,
        "lacks": missing,
        "flags_version": flags_version,
        "off_path": off_path,
        "host_compiler": compiler,
        "host_compiler_version": compiler_version,
        "unread": unread,
    }


def cuda_home(host: Host) -> Tuple[Optional[str], str]:
    """FlashInfer's CUDA_HOME and the step of its order that gave it."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if host.environ.get(name):
            return host.environ[name], name
    found = host.program("nvcc")
    if found:
        return os.path.dirname(os.path.dirname(found)), "which nvcc"
    if host.exists(DEFAULT_HOME):
        return DEFAULT_HOME, DEFAULT_HOME
    return None, "nothing found"


def _missing(
    host: Host, home: Optional[str], own: Optional[str], target: Target, unread: Dict[str, str]
) -> Tuple[List[str], Dict[str, str]]:
    """What the build misses, and which of it lies in the environment's scripts folder, outside the service's PATH."""
    missing = ["nvcc"]
    if home:
        parts = [part for part in table("toolkit.json")["parts"] if not (own and part["name"] == "nvcc")]
        missing = lacks(host, home, parts)
        if not _links_libcuda(host, home):
            missing.append("libcuda.so")
    off_path = {}
    for program in ("ninja", "which"):
        if not host.program(program):
            missing.append(program)
            aside = os.path.join(target.scripts, program) if target.scripts else ""
            if aside and host.exists(aside):
                off_path[program] = aside
    words = host.environ.get("CXX", "").split() or ["c++"]
    if not host.program(words[-1] if os.path.basename(words[0]) in ("ccache", "sccache") else words[0]):
        missing.append("c++")
    if target.include is None:
        unread["Python.h"] = "the target environment is not known"
    elif not host.exists(os.path.join(target.include, "Python.h")):
        missing.append("Python.h")
    return missing, off_path


def _links_libcuda(host: Host, home: str) -> bool:
    """Whether ``-lcuda`` finds the unversioned library: FlashInfer's -L folders, its extra flags, the linker's own."""
    extra = re.findall(r"-L\s*(\S+)", host.environ.get("FLASHINFER_EXTRA_LDFLAGS", ""))
    named = [folder for folder in host.environ.get("LIBRARY_PATH", "").split(":") if folder]
    own = [os.path.join(home, "lib64"), os.path.join(home, "lib64", "stubs")]
    folders = own + extra + named + loader.linker_folders(os.uname()[4])
    return any(host.exists(os.path.join(folder, "libcuda.so")) for folder in folders)


def host_compiler(host: Host) -> Tuple[Optional[str], Optional[str]]:
    """The C++ compiler nvcc will call and its version: ``CC`` (FlashInfer passes it as -ccbin), else gcc on PATH."""
    words = host.environ.get("CC", "").split()
    found = host.program(words[0]) if words else host.program("gcc")
    if not found:
        return None, None
    said = host.run([host.path(found), "-dumpfullversion", "-dumpversion"], COMPILER_LIMIT)
    match = re.match(r"\d+(\.\d+)*", said.out.strip())
    return found, match.group() if match else None
