"""A hollow GGUF file: the real header in a sparse file of the real size, so that a server loads it without weights."""

from __future__ import annotations

import errno
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from llmdoctor_core.errors import InputError
from llmdoctor_core.models.gguf import ByteRange, Header, other_parts, read_header
from llmdoctor_core.units import gib

CANNOT_CONFIRM = (
    "the weights themselves: that the download is whole and that the tensors hold what their names say",
    "the words the model gives, and the speed at which it gives them",
    "memory that weights pin only once they are read (with mmap, pages of the file)",
)
"""What a load of hollow weights says nothing about."""
_COPY = 1 << 20


class Part(Struct, frozen=True, kw_only=True):
    """One file of a model, to be read in ranges."""

    name: str
    size: int
    read: ByteRange
    header: Header


def local_parts(path: Path) -> list[Part]:
    """The files of a local model. Raises InputError where one cannot be read."""
    first = _local(path)
    return [first, *(_local(path.parent / name) for name in other_parts(first.header, path.name, str(path)))]


def _local(path: Path) -> Part:
    def read(offset: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    try:
        size = path.stat().st_size
        header = read_header(read, size, str(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return Part(name=path.name, size=size, read=read, header=header)


def remote_parts(url: str, headers: Mapping[str, str] | None = None) -> list[Part]:
    """The files of a model behind a URL, by range requests. Raises InputError where the server does not give ranges."""
    first = _remote(url, headers or {})
    folder, _, _ = url.partition("?")[0].rpartition("/")
    others = other_parts(first.header, first.name, url)
    return [first, *(_remote(f"{folder}/{name}", headers or {}) for name in others)]


def _remote(url: str, headers: Mapping[str, str]) -> Part:
    size = 0
    start = bytearray()
    """What was read without a gap: the header is asked for once to be read and once to be copied."""

    def read(offset: int, length: int) -> bytes:
        if offset + length > len(start):
            chunk = fetch(offset, length)
            if offset == len(start):
                start.extend(chunk)
            return chunk
        return bytes(start[offset : offset + length])

    def fetch(offset: int, length: int) -> bytes:
        nonlocal size
        wanted = {"Range": f"bytes={offset}-{offset + length - 1}", "User-Agent": "llmdoctor", **headers}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=wanted), timeout=30) as answer:
                total = answer.headers.get("Content-Range", "").rpartition("/")[2]
                if answer.status != 206 or not total.isdigit():
                    raise InputError(f"{url}: the server does not give parts of a file (no Content-Range)")
                size = int(total)
                data: bytes = answer.read(length)
                return data
        except urllib.error.HTTPError as error:
            if error.code == 416:
                return b""
            raise InputError(f"{url}: HTTP {error.code} {error.reason}") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{url}: {getattr(error, 'reason', error)}") from None

    read(0, 4)
    name = url.partition("?")[0].rpartition("/")[2]
    return Part(name=name, size=size, read=read, header=read_header(read, size, url))


def write_hollow(parts: Sequence[Part], folder: Path) -> Path:
    """Write the hollow files into ``folder``; gives the first. What is written is the headers alone.

    Raises InputError where the disk is too small for a header or the file system cannot hold a sparse file; nothing is
    left then.
    """
    written: list[Path] = []
    try:
        for part in parts:
            path = folder / part.name
            written.append(path)
            _write(part, path)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise InputError(_why(error, folder, parts)) from None
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return written[0]


def _write(part: Part, path: Path) -> None:
    size = max(part.size, part.header.expected_bytes)
    with path.open("wb") as file:
        position = 0
        while position < part.header.data_offset:
            chunk = part.read(position, min(_COPY, part.header.data_offset - position))
            if not chunk:
                raise InputError(f"{part.name}: ends within its header")
            file.write(chunk)
            position += len(chunk)
        file.flush()
        os.truncate(file.fileno(), size)


def _why(error: OSError, folder: Path, parts: Sequence[Part]) -> str:
    headers = sum(part.header.data_offset for part in parts)
    total = sum(part.size for part in parts)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{folder}: no space left for the hollow model's headers ({gib(headers)}); set TMPDIR to another disk"
    if error.errno in (errno.EFBIG, errno.EINVAL):
        return (
            f"{folder}: a file of {gib(total)} is not allowed here, even a sparse one ({error.strerror}): a file size "
            "limit (ulimit -f), or a file system without sparse files; set TMPDIR to another disk"
        )
    return f"{folder}: the hollow model cannot be written: {error.strerror}"
