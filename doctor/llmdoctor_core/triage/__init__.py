"""A log to findings: the first cause under the noise, and the facts that the log itself tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from llmdoctor_core.bundle import is_bundle, open_log, read_bundle
from llmdoctor_core.errors import InputError

from .case import case_from
from .diagnosis import Condition, Diagnosis, LogLine, findings
from .judge import Judge, Watch
from .reading import Reading
from .scan import Read, Scan
from .signatures import Symptoms, symptoms
from .sources import name_of, of_lines, opened

__all__ = [
    "Condition",
    "Diagnosis",
    "LogLine",
    "Reading",
    "Symptoms",
    "case_from",
    "findings",
    "symptoms",
    "triage",
    "triage_lines",
]


LONGEST_SHOWN = 600
"""Bytes of a last line that are kept."""


@lru_cache(maxsize=2)
def _watch(known: Symptoms | None) -> Watch:
    return Watch(known or symptoms())


def triage(*sources: str | Path | IO[bytes]) -> Diagnosis:
    """Diagnose logs: paths, ``-`` for standard input, or open binary files; gzip and bundles are unpacked.

    Several sources are read as one story in the order given. Raises InputError for a source that cannot be read.
    """
    judge = Judge(_watch(None))
    scans, names = [], []
    for source in _unbundled(sources):
        with opened(source) as read:
            scans.append(_read(judge, read, name_of(source)))
            names.append(name_of(source))
    return _diagnosis(judge, tuple(names), scans)


def triage_lines(lines: Iterable[str], name: str = "log") -> Diagnosis:
    """Diagnose a log given as lines of text."""
    judge = Judge(_watch(None))
    return _diagnosis(judge, (name,), [_read(judge, of_lines(lines), name)])


def _unbundled(sources: tuple[str | Path | IO[bytes], ...]) -> Iterator[str | Path | IO[bytes]]:
    for source in sources:
        if isinstance(source, (str, Path)) and str(source) != "-" and is_bundle(Path(source)):
            bundle = read_bundle(Path(source))
            if not bundle.logs:
                raise InputError(f"{source} is a bundle without a log")
            yield from (open_log(bundle, name) for name in bundle.logs)
        else:
            yield source


def _read(judge: Judge, read: Read, name: str) -> Scan:
    scan = Scan(read, judge.indexes)
    for number, raw in scan:
        judge.take(name, number, raw.decode("utf-8", "replace"))
    judge.source_ends(scan.lines)
    return scan


def _without_secrets(reading: Reading) -> Reading:
    """The reading as it may be shown and pasted: keys that the server printed with its arguments are ``<set>``."""
    from llmdoctor_core.probes.environment import unless_secret
    from llmdoctor_core.redact import without_secrets

    resolved = {
        name: "<set>" if value and unless_secret(name, "value") != "value" else value
        for name, value in reading.resolved.items()
    }
    return replace(reading, argv=without_secrets(reading.argv), resolved=resolved)


def _diagnosis(judge: Judge, names: tuple[str, ...], scans: list[Scan]) -> Diagnosis:
    return Diagnosis(
        sources=names,
        lines=sum(scan.lines for scan in scans),
        bytes=sum(scan.bytes for scan in scans),
        conditions=judge.conditions(),
        unexplained=judge.unexplained(),
        reached=judge.reached(),
        reading=_without_secrets(judge.reading.reading()),
        tail=tuple(line[:LONGEST_SHOWN].decode("utf-8", "replace") for line in scans[-1].tail) if scans else (),
        broken=symptoms().broken,
    )
