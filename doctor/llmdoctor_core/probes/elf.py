"""What the dynamic loader would read of a shared library: what it needs, which symbol versions it asks for or offers.

Format: System V ABI, "Dynamic Linking"; symbol versioning as in the Linux Standard Base, "Symbol Versioning".
"""

from __future__ import annotations

import mmap
import struct
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, TypeVar

LOAD, DYNAMIC = 1, 2
NEEDED, STRTAB, STRSZ, SONAME, RPATH, RUNPATH = 1, 5, 10, 14, 15, 29
VERDEF, VERDEFNUM, VERNEED, VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
MANY = 100000
"""No real table has as many entries: a larger one is a damaged file."""


Result = TypeVar("Result")


class ElfError(Exception):
    """Not an ELF shared library, or a damaged one."""


class Library(NamedTuple):
    """A shared library's dynamic section. ``asks`` and ``offers`` hold the highest version of each symbol set."""

    machine: int
    soname: Optional[str]
    needed: Tuple[str, ...]
    search: Tuple[str, ...]
    """RPATH and RUNPATH folders, ``$ORIGIN`` not yet replaced."""
    asks: Dict[str, str]
    offers: Dict[str, str]


def read(path: str) -> Library:
    """Read one file. Raises ElfError where it is no ELF shared library and OSError where it cannot be opened."""
    return _mapped(path, _library)


def sections(path: str, names: Tuple[bytes, ...], use: "Callable[[mmap.mmap, int, int], Result]") -> "List[Result]":
    """``use(data, start, end)`` for every section of one of the names. Raises as ``read`` does."""

    def walk(data: mmap.mmap) -> "List[Result]":
        image = Image(data)
        return [use(data, start, end) for name, start, end in image.sections() if name in names]

    return _mapped(path, walk)


def _mapped(path: str, use: "Callable[[mmap.mmap], Result]") -> "Result":
    with open(path, "rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ElfError("empty file") from None
    with data:
        try:
            return use(data)
        except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
            raise ElfError("damaged ELF file: {}".format(error)) from None


class Image:
    """The file with its program headers: addresses to offsets, strings by offset."""

    def __init__(self, data: mmap.mmap) -> None:
        if data[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        if data[4] != 2:
            raise ElfError("not a 64-bit ELF file")
        self.data = data
        self.order = "<" if data[5] == 1 else ">"
        self.machine = self.unpack("H", 18)[0]
        table, size, count = self.unpack("Q", 32)[0], self.unpack("H", 54)[0], self.unpack("H", 56)[0]
        self.segments = [self.unpack("IIQQQQQQ", table + number * size) for number in range(count)]

    def unpack(self, layout: str, offset: int) -> Tuple[int, ...]:
        return struct.unpack_from(self.order + layout, self.data, offset)

    def offset(self, address: int) -> int:
        for kind, _, offset, virtual, _, in_file, _, _ in self.segments:
            if kind == LOAD and virtual <= address < virtual + in_file:
                return offset + address - virtual
        raise ElfError("address {:#x} lies in no segment".format(address))

    def sections(self) -> Iterator[Tuple[bytes, int, int]]:
        """(name, start, end) of each section, in bytes of the file."""
        table = self.unpack("Q", 40)[0]
        size, count, names = self.unpack("HHH", 58)
        headers = [self.unpack("IIQQQQ", table + number * size) for number in range(count)]
        for name, _, _, _, offset, length in headers:
            start = headers[names][4] + name
            yield self.data[start : self.data.find(b"\0", start)], offset, offset + length

    def dynamic(self) -> Iterator[Tuple[int, int]]:
        for kind, _, offset, _, _, in_file, _, _ in self.segments:
            if kind == DYNAMIC:
                for position in range(offset, offset + min(in_file, 16 * MANY), 16):
                    tag, value = self.unpack("QQ", position)
                    if tag == 0:
                        return
                    yield tag, value
                return
        raise ElfError("no dynamic section (a static program?)")


def _library(data: mmap.mmap) -> Library:
    image = Image(data)
    entries = list(image.dynamic())
    values = dict(entries)
    strings, size = image.offset(values[STRTAB]) if STRTAB in values else 0, values.get(STRSZ, 0)

    def text(at: int) -> str:
        if not 0 <= at < size:
            raise ElfError("string {} lies outside its table".format(at))
        end = data.find(b"\0", strings + at, strings + size)
        return data[strings + at : end].decode("utf-8", "replace")

    needed, search = [], []  # type: List[str], List[str]
    for tag, value in entries:
        if tag == NEEDED:
            needed.append(text(value))
        elif tag in (RPATH, RUNPATH):
            search += [folder for folder in text(value).split(":") if folder]
    soname = text(values[SONAME]) if SONAME in values else None
    asks = [text(name) for name in _asked(image, values)]
    offers = [text(name) for name in _offered(image, values)]
    return Library(image.machine, soname, tuple(needed), tuple(search), highest(asks), highest(offers))


def _asked(image: Image, values: Dict[int, int]) -> Iterator[int]:
    """String offsets of the symbol versions in the "needed" table."""
    if VERNEED not in values:
        return
    at = image.offset(values[VERNEED])
    for _ in range(min(values.get(VERNEEDNUM, 0), MANY)):
        _, count, _, aux, following = image.unpack("HHIII", at)
        place = at + aux
        for _ in range(min(count, MANY)):
            name, step = image.unpack("II", place + 8)
            yield name
            place += step
        if not following:
            return
        at += following


def _offered(image: Image, values: Dict[int, int]) -> Iterator[int]:
    """String offsets of the symbol versions that the library defines itself."""
    if VERDEF not in values:
        return
    at = image.offset(values[VERDEF])
    for _ in range(min(values.get(VERDEFNUM, 0), MANY)):
        aux, following = image.unpack("II", at + 12)
        yield image.unpack("I", at + aux)[0]
        if not following:
            return
        at += following


def highest(names: List[str]) -> Dict[str, str]:
    """``["GLIBC_2.4", "GLIBC_2.34", "GLIBC_PRIVATE"]`` -> ``{"GLIBC": "2.34"}``: names left out."""
    best: Dict[str, str] = {}
    for name in names:
        family, _, version = name.rpartition("_")
        if family and version.replace(".", "").isdigit():
            if family not in best or _key(version) > _key(best[family]):
                best[family] = version
    return best


def _key(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)
