"""One occurrence of a condition: what is wrong, on what evidence, where, and which remedy ends it."""

from __future__ import annotations

import enum
import hashlib
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .facts import Place


class Outcome(str, enum.Enum):
    """What a check came to. SKIP is "could not tell", ERROR is "our bug"; neither is ever a pass."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    ERROR = "error"


class Evidence(Struct, frozen=True, kw_only=True):
    """A fact that the finding stands on, its value as shown, and where it was read."""

    fact: str
    value: str
    source: str


class Finding(Struct, frozen=True, kw_only=True):
    """One finding. ``message_id`` is the English template, ``params`` its values; ``message`` the two together."""

    outcome: Outcome
    message_id: str
    params: dict[str, Any] = {}
    code: str = ""
    name: str = ""
    evidence: tuple[Evidence, ...] = ()
    where: Place | None = None
    remedy: str | None = None
    suppressed: str | None = None

    @property
    def message(self) -> str:
        return self.message_id.format_map(self.params) if self.params else self.message_id

    @property
    def fingerprint(self) -> str:
        """Stable over versions and numbers: code, place and names of the parameters, never their values."""
        place = f"{self.where.kind}:{self.where.name}" if self.where else ""
        text = "\0".join((self.code, place, *sorted(self.params)))
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]  # a place may be no UTF-8

    def of(self, code: str, name: str, remedy: str | None) -> Finding:
        """The same finding under a check's code; a remedy that the finding names itself stays."""
        return replace(self, code=code, name=name, remedy=self.remedy or remedy)


def fail(
    message: str,
    /,
    *,
    evidence: tuple[Evidence, ...] = (),
    where: Place | None = None,
    remedy: str | None = None,
    **params: Any,
) -> Finding:
    """The launch will fail, or will not be what was asked for."""
    return Finding(
        outcome=Outcome.FAIL, message_id=message, params=params, evidence=evidence, where=where, remedy=remedy
    )


def warn(
    message: str,
    /,
    *,
    evidence: tuple[Evidence, ...] = (),
    where: Place | None = None,
    remedy: str | None = None,
    **params: Any,
) -> Finding:
    """The launch works, at a cost the person may not know."""
    return Finding(
        outcome=Outcome.WARN, message_id=message, params=params, evidence=evidence, where=where, remedy=remedy
    )


def skip(reason: str, /, **params: Any) -> Finding:
    """The check cannot tell from the facts at hand, and why."""
    return Finding(outcome=Outcome.SKIP, message_id=reason, params=params)


def seen(fact: str, value: object, source: str) -> Evidence:
    """Evidence: ``seen("gpu 0 memory free", "1.2 GiB", "NVML")``."""
    return Evidence(fact=fact, value=str(value), source=source)
