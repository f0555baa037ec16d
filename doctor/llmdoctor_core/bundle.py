"""The bundle for support: case, report, log lines and versions in one redacted zip file, with a manifest of it all."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from . import __version__
from .case import Case, decode, encode
from .errors import InputError
from .redact import Redaction, Redactor

FORMAT_VERSION = "1.0"
MANIFEST, CASE, REPORT, VERSIONS, LOGS = "manifest.json", "case.json", "report.json", "versions.json", "logs/"
MAX_MEMBER = 64 << 20
"""Bytes of one unpacked file."""
MAX_MEMBERS = 64
_EPOCH = (1980, 1, 1, 0, 0, 0)
HEAD, AROUND, TAIL = 120, 25, 400
"""Lines of a log that are taken: the first, those around each evidence line, the last."""


class Member(Struct, frozen=True, kw_only=True):
    """One file of the bundle."""

    name: str
    bytes: int
    sha256: str
    holds: str


class Manifest(Struct, frozen=True, kw_only=True):
    """What the bundle holds and what was taken out: what is shown before it is written."""

    format_version: str = FORMAT_VERSION
    doctor: str = __version__
    created_at: str | None = None
    members: tuple[Member, ...]
    redactions: tuple[Redaction, ...]


class Bundle(Struct, frozen=True, kw_only=True):
    """A bundle in memory, redacted."""

    manifest: Manifest
    files: dict[str, bytes]

    @property
    def case(self) -> Case | None:
        """The case. Raises InputError where the file in the bundle is none."""
        data = self.files.get(CASE)
        return None if data is None else decode(data, f"{CASE} of the bundle")

    @property
    def report(self) -> Any | None:
        """The JSON report, None where there is none."""
        data = self.files.get(REPORT)
        return None if data is None else msgspec.json.decode(data)

    @property
    def logs(self) -> dict[str, bytes]:
        """The logs by name."""
        return {name.removeprefix(LOGS): data for name, data in self.files.items() if name.startswith(LOGS)}


def pack(
    *,
    case: Case | None = None,
    report: Any | None = None,
    logs: dict[str, str] | None = None,
    versions: dict[str, str] | None = None,
    created_at: str | None = None,
    redactor: Redactor | None = None,
) -> Bundle:
    """A bundle of what is given, all of it redacted with one set of pseudonyms. Nothing is written.

    ``report`` is the JSON report, ``logs`` text by name (see ``extract``), ``versions`` of whatever matters to support.
    """
    redactor = redactor or Redactor()
    files: dict[str, bytes] = {}
    holds: dict[str, str] = {}
    redactor.learn((logs or {}).values(), case, [msgspec.to_builtins(report), versions])

    def put(name: str, data: bytes, what: str) -> None:
        files[name], holds[name] = data, what

    if case is not None:
        put(CASE, encode(redactor.case(case)), "all facts about the launch")
    if report is not None:
        clean = redactor.value(msgspec.to_builtins(report), "report")
        put(REPORT, msgspec.json.format(msgspec.json.encode(clean), indent=1), "the report as JSON")
    if versions:
        put(
            VERSIONS,
            msgspec.json.format(msgspec.json.encode(redactor.value(versions, "versions")), indent=1),
            "versions",
        )
    for name, text in (logs or {}).items():
        safe = redactor.text(Path(name).name or "log", f"name of {name}")
        if f"{LOGS}{safe}" in files:  # logs of several nodes often have one name
            safe = f"{len(files)}-{safe}"
        put(f"{LOGS}{safe}", redactor.text(text, name).encode("utf-8", "replace"), "lines of the log")
    members = tuple(
        Member(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), holds=holds[name])
        for name, data in files.items()
    )
    return Bundle(manifest=Manifest(members=members, redactions=redactor.report(), created_at=created_at), files=files)


def write_bundle(path: Path, bundle: Bundle) -> None:
    """Write the bundle as a zip file; the same content gives the same bytes. Raises InputError where it cannot."""
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            manifest = msgspec.json.format(msgspec.json.encode(bundle.manifest), indent=1)
            for name, data in {MANIFEST: manifest, **bundle.files}.items():
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
                archive.writestr(entry, data)
    except OSError as error:
        raise InputError(f"{path}: cannot write the bundle: {error.strerror or error}") from None


def is_bundle(path: Path) -> bool:
    """Whether the file is a bundle: a zip file with a manifest."""
    try:
        with zipfile.ZipFile(path) as archive:
            return MANIFEST in archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def read_bundle(path: Path) -> Bundle:
    """Read a bundle. Raises InputError naming the file where it is none, is damaged, or holds too much."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_MEMBERS or any(entry.file_size > MAX_MEMBER for entry in entries):
                raise InputError(f"{path} holds more than a bundle may")
            if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
                raise InputError(f"{path} is packed in a way that no bundle is")
            contents = {entry.filename: _limited(archive, entry, path) for entry in entries}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{path} is no bundle: {error}") from None
    if MANIFEST not in contents:
        raise InputError(f"{path} is no bundle: it has no {MANIFEST}")
    try:
        manifest = msgspec.json.decode(contents.pop(MANIFEST), type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path}: the manifest is damaged: {error}") from None
    if manifest.format_version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise InputError(f"{path} has bundle format {manifest.format_version}; this llmdoctor reads 1.x")
    files = {}
    for member in manifest.members:
        data = contents.get(member.name)
        if data is None or hashlib.sha256(data).hexdigest() != member.sha256:
            raise InputError(f"{path}: {member.name} is missing or not what the manifest says")
        files[member.name] = data
    return Bundle(manifest=manifest, files=files)


def _limited(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> bytes:
    with archive.open(entry) as stream:
        data = stream.read(MAX_MEMBER + 1)
    if len(data) > MAX_MEMBER:  # the directory may lie about the size
        raise InputError(f"{path}: {entry.filename} holds more than a bundle may")
    return data


def extract(lines: Iterable[str], evidence: Iterable[int] = ()) -> str:
    """The lines of a log that support needs: its beginning, what stands around the evidence, its end.

    ``evidence`` gives line numbers, from 1. What is left out is counted in its place. Memory stays bounded.
    """
    wanted = sorted(set(evidence))
    kept: list[str] = []
    tail: deque[str] = deque(maxlen=TAIL)
    left_out, next_wanted = 0, 0
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")[:4096]
        while next_wanted < len(wanted) and wanted[next_wanted] + AROUND < number:
            next_wanted += 1
        near = next_wanted < len(wanted) and wanted[next_wanted] - AROUND <= number
        if number <= HEAD or near:
            left_out += len(tail)
            tail.clear()
            if left_out:
                kept.append(f"[{left_out:,} lines left out]")
                left_out = 0
            kept.append(text)
        else:
            if len(tail) == TAIL:
                left_out += 1
            tail.append(text)
    if left_out:
        kept.append(f"[{left_out:,} lines left out]")
    return "\n".join([*kept, *tail]) + "\n"


def open_log(bundle: Bundle, name: str) -> io.BytesIO:
    """A log of the bundle as a binary stream, for ``triage``."""
    stream = io.BytesIO(bundle.logs[name])
    stream.name = name
    return stream
