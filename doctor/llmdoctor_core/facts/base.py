"""What every fact has in common: it is plain JSON, immutable, and either observed or unavailable with a reason."""

from __future__ import annotations

from msgspec import Struct


class Fact(Struct, frozen=True, kw_only=True, tag_field="fact", tag=str.lower):
    """Base of all facts. Unknown keys are ignored, so that an older doctor reads a newer case."""


class Unavailable(Fact, frozen=True, kw_only=True):
    """A fact that could not be read. ``reason`` completes the sentence "not observed: ..."."""

    reason: str
    permanent: bool = False
    """True where the fact cannot exist here (no GPU asked for), False where reading it failed."""
