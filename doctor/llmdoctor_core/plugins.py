"""The catalogue's door: checks, symptoms and remedies come in through entry points, ours like anybody else's."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from msgspec import Struct

from .check import Check
from .finding import Finding, Outcome

if TYPE_CHECKING:
    from .remedy import Remedy

CHECKS = "llmdoctor.checks"
REMEDIES = "llmdoctor.remedies"


class Catalogue(Struct, frozen=True):
    """Every check that could be loaded, and one ERROR finding for each plug-in that could not."""

    checks: tuple[Check, ...]
    broken: tuple[Finding, ...]
    packages: tuple[str, ...]
    """Packages that hold ``explain`` pages and ``symptoms``, in the order of the checks."""


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """Load all catalogues. A plug-in module offers ``CHECKS``, a tuple of checks; ours comes first."""
    points = sorted(entry_points(group=CHECKS), key=lambda point: (point.name != "builtin", point.name))
    checks: dict[str, Check] = {}
    broken: list[Finding] = []
    packages: list[str] = []
    for point in points:
        try:
            module = point.load()
            loaded = {check.code: check for check in module.CHECKS}
            if clash := loaded.keys() & checks.keys():
                raise ValueError(f"check code {', '.join(sorted(clash))} is taken")
        except Exception as error:  # whatever a stranger's import raises must not take the doctor down
            broken.append(_broken(point, error))
            continue
        checks |= loaded
        packages.append(module.__name__.rpartition(".")[0] or module.__name__)
    return Catalogue(tuple(checks.values()), tuple(broken), tuple(packages))


@lru_cache(maxsize=1)
def packages() -> tuple[str, ...]:
    """Packages of all catalogues, ours first, without importing a single check."""
    points = sorted(entry_points(group=CHECKS), key=lambda point: (point.name != "builtin", point.name))
    return tuple(dict.fromkeys(point.module.rpartition(".")[0] or point.module for point in points))


@lru_cache(maxsize=1)
def remedies() -> tuple[Remedy, ...]:
    """Remedies of all catalogues that load, ours first. A plug-in module offers ``REMEDIES``."""
    found: list[Remedy] = []
    for point in sorted(entry_points(group=REMEDIES), key=lambda point: (point.name != "builtin", point.name)):
        try:
            found += point.load().REMEDIES
        except Exception as error:  # as above: a stranger's import; without it the others still mend
            print(f"llmdoctor: {_broken(point, error).message}", file=sys.stderr)
    return tuple(found)


def _broken(point: EntryPoint, error: Exception) -> Finding:
    name = point.dist.name if point.dist else point.value
    return Finding(
        outcome=Outcome.ERROR,
        code="PLUG001",
        name="plugin-does-not-load",
        message_id="the plug-in {plugin} does not load: {error}",
        params={"plugin": f"{name} ({point.name} = {point.value})", "error": f"{type(error).__name__}: {error}"},
    )
