"""GPU code inside a shared library: for which architectures nvcc put machine code and PTX into it.

Layout of a fat binary: measured on the libraries of bitsandbytes 0.50.2 built by nvcc 11.8 to 13.2, whose architecture
lists are known; the same in ZLUDA, cuda_types/src/dark_api.rs (FatbinHeader, FatbinFileHeader).
"""

from __future__ import annotations

import mmap
import struct
from typing import List, NamedTuple, Set, Tuple

from . import elf

SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
MAGIC = 0xBA55ED50
PTX, MACHINE = 1, 2
MOST_ENTRIES = 50000


class Code(NamedTuple):
    """Architectures as numbers in text, sorted: ``["80", "90"]``."""

    machine: List[str]
    ptx: List[str]


NO_CODE = Code([], [])


def read(path: str) -> Code:
    """The architectures of every kernel image in the library together. Only headers are read, not the code between.

    Raises ElfError and OSError as ``elf.read`` does.
    """
    found: Set[Tuple[int, int]] = set()
    for part in elf.sections(path, SECTIONS, _entries):
        found |= part
    return Code(_sorted(found, MACHINE), _sorted(found, PTX))


def _sorted(found: Set[Tuple[int, int]], kind: int) -> List[str]:
    return [str(architecture) for one, architecture in sorted(found) if one == kind]


def _entries(data: mmap.mmap, start: int, end: int) -> Set[Tuple[int, int]]:
    """(kind, architecture) of the images in one section: containers, each with its header and then its images."""
    found: Set[Tuple[int, int]] = set()
    at = start
    for _ in range(MOST_ENTRIES):
        if at + 16 > end:
            break
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != MAGIC:
            at += 8  # containers are aligned to eight bytes
            continue
        inner, after = at + header, min(at + header + size, end)
        while inner + 32 <= after:
            kind, _, head, payload = struct.unpack_from("<HHIQ", data, inner)
            found.add((kind, struct.unpack_from("<I", data, inner + 28)[0]))
            if head + payload == 0:
                break
            inner += head + payload
        at = after
    return found
