"""Rows that read figures and facts from the lines a runtime prints: data, one pattern a row, with unit and source."""

from __future__ import annotations

import re
import sys
from functools import cached_property, lru_cache
from importlib import resources
from typing import Literal

import msgspec
from msgspec import Struct

from llmdoctor_core.facts.measured import Figure

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Unit = Literal["text", "count", "ratio", "seconds", "bytes", "KiB", "MiB", "GiB", "GB"]
_BYTES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "GB": 1 << 30}
"""``GB`` is what older vLLM and SGLang print for GiB."""
ABSURD = re.compile(r"\d{19}")
"""No figure of a server has so many digits."""


class LogRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One kind of line. The group ``value`` is what it tells, ``device`` for which device, ``runtime`` whose it is."""

    name: str
    pattern: str
    match: str
    """A line that it reads."""
    gives: str
    """What ``value`` is in that line."""
    unit: Unit = "text"
    decimals: int = 0
    """Decimals it was rounded to where fewer are printed: ``round(x, 2)`` shows 1.20 as 1.2."""
    runtime: str = ""
    source: str = ""

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def read(self, text: str) -> str | Figure | None:
        """The text that the line tells, or the figure in bytes, tokens, ratio or seconds; None where it is another."""
        match = self.compiled.search(text)
        if match is None or match["value"] is None:
            return None
        if self.unit == "text":
            return match["value"]
        digits = match["value"].replace(",", "")
        if ABSURD.search(digits):
            return None
        scale = _BYTES.get(self.unit, 1)
        decimals = max(len(digits.partition(".")[2]), self.decimals)
        step = 10.0**-decimals * scale if decimals or scale > 1 else 0.0
        device = match.groupdict().get("device")
        return Figure(name=self.name, value=float(digits) * scale, step=step, device=device, source=text[:300])


@lru_cache(maxsize=8)
def rows(package: str, name: str) -> tuple[LogRow, ...]:
    """The rows of a data file inside a package."""
    text = (resources.files(package) / "data" / name).read_text(encoding="utf-8")
    return tuple(msgspec.convert(row, LogRow) for row in tomllib.loads(text)["row"])
