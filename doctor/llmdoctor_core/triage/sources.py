"""Opens what a log comes in: a file, standard input, gzip, or a bundle; each as bytes read in blocks."""

from __future__ import annotations

import codecs
import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from llmdoctor_core.errors import InputError

from .scan import Read

GZIP = b"\x1f\x8b"
PACKED = {
    b"\xfd7zXZ\x00": "xz -dc",
    b"BZh": "bzip2 -dc",
    b"\x28\xb5\x2f\xfd": "zstd -dc",
    b"PK\x03\x04": "unzip -p",
}
"""How other packed files begin, and the command that unpacks them to standard output."""
HEAD = 6


@contextmanager
def opened(source: str | Path | IO[bytes]) -> Iterator[Read]:
    """A reader of the source's bytes, unpacked where they are gzip. ``-`` is standard input.

    Raises InputError naming the source where it cannot be read.
    """
    name = name_of(source)
    if isinstance(source, (str, Path)) and str(source) != "-":
        try:
            raw: IO[bytes] = Path(source).open("rb", buffering=0)  # noqa: SIM115 - closed below, errors told apart
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}") from None
        with raw:
            yield _guarded(_unpacked(raw, name), name)
    else:
        raw = sys.stdin.buffer if isinstance(source, (str, Path)) else source
        yield _guarded(_unpacked(raw, name), name)


def name_of(source: str | Path | IO[bytes]) -> str:
    """How the source is called in evidence."""
    if isinstance(source, (str, Path)):
        return "standard input" if str(source) == "-" else str(source)
    return str(getattr(source, "name", "log"))


def _unpacked(raw: IO[bytes], name: str) -> Read:
    head = b""
    while len(head) < HEAD and (data := raw.read(HEAD - len(head))):
        head += data
    whole = _Joined(head, raw)
    if head.startswith(GZIP):
        return gzip.GzipFile(fileobj=io.BufferedReader(whole), mode="rb").read
    for magic, command in PACKED.items():
        if head.startswith(magic):
            raise InputError(f"{name} is packed: {command} {name} | llmdoctor triage -")
    if encoding := _wide(head):
        return _recoded(whole.read, encoding)
    return whole.read


def _wide(head: bytes) -> str | None:
    """UTF-16 where a log begins in it, as PowerShell's ``>`` writes it, with its mark or without."""
    zeros = [byte == 0 for byte in head[:4]]
    if (head.startswith(codecs.BOM_UTF16_LE) and zeros[3:] == [True]) or (
        head.startswith(codecs.BOM_UTF16_BE) and zeros[2:3] == [True]
    ):
        return "utf-16"
    if zeros == [False, True, False, True]:
        return "utf-16-le"
    return "utf-16-be" if zeros == [True, False, True, False] else None


def _recoded(read: Read, encoding: str) -> Read:
    decoder = codecs.getincrementaldecoder(encoding)("replace")

    def recoded(size: int) -> bytes:
        while data := read(size):
            if text := decoder.decode(data):
                return text.encode("utf-8", "replace")
        return decoder.decode(b"", True).encode("utf-8", "replace")

    return recoded


def _guarded(read: Read, name: str) -> Read:
    def guarded(size: int) -> bytes:
        try:
            return read(size) or b""
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{name}: {error}") from None

    return guarded


class _Joined(io.RawIOBase):
    """Bytes already read, then the rest of the stream."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head:
            head, self._head = self._head[:size], self._head[size:] if size >= 0 else b""
            return head + (self._rest.read(size - len(head)) or b"")
        return self._rest.read(size) or b""

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any writable buffer
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def of_lines(lines: Iterable[str]) -> Read:
    """A reader over text lines, with or without their line breaks."""
    pending = iter(lines)
    buffer = bytearray()

    def read(size: int) -> bytes:
        while len(buffer) < size:
            line = next(pending, None)
            if line is None:
                break
            buffer.extend(line.rstrip("\n").encode("utf-8", "surrogatepass"))
            buffer.extend(b"\n")
        data = bytes(buffer[:size])
        del buffer[:size]
        return data

    return read
