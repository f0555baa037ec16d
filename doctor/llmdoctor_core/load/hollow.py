"""A hollow GGUF file: the real header in a sparse file of the real size, so that a server loads it without weights."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from llmdoctor_core.errors import InputError
from llmdoctor_core.models.gguf import ByteRange, Header, other_parts, read_header
from llmdoctor_core.models.web import RefusedError, UnreachableError, Web
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
    """The files of a model behind a URL, by range requests. Raises InputError where they cannot be had so."""
    first = _remote(url, dict(headers or {}))
    address, question, query = url.partition("?")
    folder, _, _ = address.rpartition("/")
    others = other_parts(first.header, first.name, url)
    return [first, *(_remote(f"{folder}/{name}{question}{query}", dict(headers or {})) for name in others)]


def _remote(url: str, headers: dict[str, str]) -> Part:
    web = Web(headers)
    start = bytearray()
    """What was read without a gap: the header is asked for once to be read and once to be copied."""

    def read(offset: int, length: int) -> bytes:
        if offset + length <= len(start):
            return bytes(start[offset : offset + length])
        chunk = web.get(url, offset, length)
        if offset == len(start):
            start.extend(chunk)
        return chunk

    try:
        size = web.size(url)
        if size is None:
            raise InputError(f"{url}: the server does not say how long the file is")
        header = read_header(read, size, url)
    except RefusedError as error:
        raise InputError(f"{url}: the server answers with status {error.status}") from None
    except UnreachableError as error:
        raise InputError(f"{url} could not be reached: {error}") from None
    return Part(name=url.partition("?")[0].rpartition("/")[2], size=size, read=read, header=header)


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
