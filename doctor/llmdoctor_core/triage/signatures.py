"""Log signatures: which line means which condition. Data of the catalogue packages, read through the plug-in door."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib import resources
from typing import Literal

import msgspec
from msgspec import Struct

from llmdoctor_core import plugins
from llmdoctor_core.finding import Finding, Outcome
from llmdoctor_core.text import conditions

from .anchors import needles

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Rank = Literal["cause", "symptom", "warning", "wrapper"]
RANKS: tuple[Rank, ...] = ("wrapper", "warning", "symptom", "cause")
"""In rising order: a wrapper says that something failed elsewhere; a warning costs and does not stop; a symptom has
several causes; a cause states the condition itself."""
Confidence = Literal["low", "medium", "high"]
CONFIDENCES: tuple[Confidence, ...] = ("low", "medium", "high")


class Signature(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of line that means a condition. Named groups of the pattern become parameters of the finding."""

    code: str
    pattern: str
    match: tuple[str, ...]
    """Lines that must match."""
    silent: tuple[str, ...] = ()
    """Lines that must not."""
    rank: Rank = "cause"
    confidence: Confidence = "high"
    says: str = ""
    """What it means, where the condition's own sentence is too wide. ``{name}`` stands for a parameter."""
    do: str = ""
    also: tuple[str, ...] = ()
    next: str = ""
    after: str = ""
    """A milestone that the log must have passed before the line."""
    before: str = ""
    """A milestone that it must not have passed."""
    unless: tuple[str, ...] = ()
    """Codes that explain the same line better: with one of them found, this one is dropped."""
    needs: tuple[str, ...] = ()
    """Codes without which it says nothing."""
    at_end: bool = False
    """Means something only as one of the last lines of a log that tells nothing else."""
    runtimes: tuple[str, ...] = ()
    source: str = ""


class About(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of a condition whichever line showed it."""

    says: str
    do: str = ""
    """The flag, command or file to change."""
    also: tuple[str, ...] = ()
    """Conditions that look the same in a log."""
    next: str = ""
    """What to look at where the log does not tell the cause."""


class Milestone(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of a healthy start that tells how far it came."""

    name: str
    pattern: str
    match: tuple[str, ...]
    begins: bool = False
    """A new start begins here: what an earlier one passed counts no more."""
    outlives: bool = False
    """What failed before did not stop the start: it is a warning at most."""


class SymptomFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One family's file."""

    condition: dict[str, About] = {}
    signature: tuple[Signature, ...] = ()
    milestone: tuple[Milestone, ...] = ()


class Symptoms(Struct, frozen=True, kw_only=True):
    """All signatures that could be loaded, and one ERROR finding for each file that could not."""

    signatures: tuple[Signature, ...]
    milestones: tuple[Milestone, ...]
    about: dict[str, About]
    names: dict[str, str]
    broken: tuple[Finding, ...] = ()


def parse(text: str) -> SymptomFile:
    """A symptom file. Raises ValueError where it is malformed or a pattern has no word that announces it."""
    file = msgspec.convert(tomllib.loads(text), SymptomFile)
    for signature in file.signature:
        re.compile(signature.pattern)
        needles(signature.pattern)
    for milestone in file.milestone:
        needles(milestone.pattern)
    return file


@lru_cache(maxsize=1)
def symptoms() -> Symptoms:
    """The signatures of every catalogue package, ours first."""
    files: list[SymptomFile] = []
    broken: list[Finding] = []
    packages = plugins.packages()
    for package in packages:
        try:
            folder = resources.files(package) / "symptoms"
        except Exception as error:  # whatever a stranger's package raises on import must not take the doctor down
            broken.append(_broken(package, error))
            continue
        if not folder.is_dir():
            continue
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".toml"):
                try:
                    files.append(parse(entry.read_text(encoding="utf-8")))
                except (ValueError, re.error, IndexError, OSError) as error:
                    broken.append(_broken(f"{package}: symptoms/{entry.name}", error))
    about: dict[str, About] = {}
    for file in files:
        about |= {code: text for code, text in file.condition.items() if code not in about}
    return Symptoms(
        signatures=tuple(signature for file in files for signature in file.signature),
        milestones=tuple(milestone for file in files for milestone in file.milestone),
        about=about,
        names=conditions(packages),
        broken=tuple(broken),
    )


def _broken(name: str, error: Exception) -> Finding:
    return Finding(
        outcome=Outcome.ERROR,
        code="PLUG001",
        name="plugin-does-not-load",
        message_id="the plug-in {plugin} does not load: {error}",
        params={"plugin": name, "error": f"{type(error).__name__}: {error}"},
    )
