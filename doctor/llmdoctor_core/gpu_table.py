"""The built-in table of GPUs: what ``--gpu A100-80GB`` or ``--gpu L4x4`` stands for where no such host is at hand."""

from __future__ import annotations

import difflib
import re
import sys
from functools import lru_cache
from importlib import resources
from typing import Literal

import msgspec
from msgspec import Struct

from .errors import InputError
from .facts import Gpu, Gpus, Link, Links, Unavailable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST = 64
"""GPUs of one host that a spec can ask for: no single host has more."""
UNSEEN = {"path": "the host was not looked at", "nvlinks": "as on a board with NVSwitch, where the GPU is made for one"}
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}


class GpuRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of GPU."""

    name: str
    aliases: tuple[str, ...]
    cuda_name: str
    """The name CUDA and NVML give it; vLLM looks for ``a100`` in it."""
    compute_capability: str
    memory: str
    nvlink: Literal["switch", "pairs", "bridge", "none"]
    nvlinks: int = 0
    nvlink_generation: str | None = None
    unified_memory: bool = False
    source: str

    @property
    def total_bytes(self) -> int:
        """Memory as cudaMemGetInfo reports it, in bytes."""
        size, unit = self.memory.split()
        return round(float(size) * UNITS[unit])


@lru_cache(maxsize=1)
def rows() -> tuple[GpuRow, ...]:
    """The table, in its own order."""
    text = (resources.files(__package__) / "data" / "gpus.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["gpu"], type=tuple[GpuRow, ...])


def gpus_from(spec: str) -> Gpus:
    """The GPUs of ``NAME`` or ``NAMExCOUNT`` (``L4x4``). Raises InputError naming the nearest where it knows none."""
    row, count = _parsed(spec)
    major, _, minor = row.compute_capability.partition(".")
    devices = tuple(
        Gpu(
            index=index,
            name=row.cuda_name,
            visible_as=index,
            compute_capability=(int(major), int(minor)),
            memory_total=row.total_bytes,
            mig_enabled=False,
            unified_memory=row.unified_memory,
        )
        for index in range(count)
    )
    return Gpus(devices=devices, assumed=f"{count} x {row.name} with {row.memory} each ({row.source})")


def times(spec: str, count: int | None) -> str:
    """The spec with a count, where it names none and ``count`` is known (a deployment grants so many)."""
    row, named = _parsed(spec)
    return f"{row.name}x{count}" if named == 1 and count is not None and count > 1 else spec


def links_from(spec: str) -> Links | Unavailable:
    """How such GPUs are joined where the model alone decides it. Raises InputError as ``gpus_from`` does."""
    row, count = _parsed(spec)
    if row.nvlink in ("bridge", "pairs"):
        what = "whether NVLink bridges are fitted" if row.nvlink == "bridge" else "which pairs NVLink joins"
        return Unavailable(reason=f"{what} depends on the host, which was not looked at", permanent=True)
    switched = row.nvlink == "switch"
    pairs = tuple(
        Link(
            a=a,
            b=b,
            path="unknown",
            nvlinks=row.nvlinks,
            nvlink_generation=row.nvlink_generation,
            through_switch=switched,
        )
        for a in range(count)
        for b in range(a + 1, count)
    )
    return Links(pairs=pairs, nvswitch=switched, unread=UNSEEN)


def _parsed(spec: str) -> tuple[GpuRow, int]:
    whole = _named(spec)
    if whole:
        return _only(spec, whole), 1
    match = re.fullmatch(r"(.+?)\s*[x*:]\s*(\d{1,6})|(\d{1,6})\s*[x*]\s*(.+)", spec.strip())
    name, number = (match[1] or match[4], match[2] or match[3]) if match else (spec, "1")
    found = _named(name)
    if not found:
        raise InputError(f"unknown GPU {name!r}: {_nearest(name)}")
    count = int(number)
    if not 1 <= count <= MOST:
        raise InputError(f"--gpu {spec}: {count} GPUs; a host has 1 to {MOST}")
    return _only(name, found), count


def _only(name: str, found: tuple[GpuRow, ...]) -> GpuRow:
    if len(found) > 1:
        raise InputError(f"GPU {name!r} can be {' or '.join(row.name for row in found)}: say which")
    return found[0]


def _named(name: str) -> tuple[GpuRow, ...]:
    key = _key(name)
    return tuple(row for row in rows() if key in {_key(one) for one in (row.name, row.cuda_name, *row.aliases)})


def _key(name: str) -> str:
    words = re.sub(r"\b(nvidia|geforce|tesla|quadro)\b", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", words)


def _nearest(name: str) -> str:
    names = {_key(one): row.name for row in rows() for one in (*row.aliases, row.name)}
    close = dict.fromkeys(names[key] for key in difflib.get_close_matches(_key(name), names, n=4, cutoff=0.5))
    if close:
        return f"the nearest known are {', '.join(close)}"
    return f"known are {', '.join(row.name for row in rows())}"
