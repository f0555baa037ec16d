"""Sizes and counts as people of the field write them."""

from __future__ import annotations

import re

from .errors import InputError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(|b|[kmgt]i?b?)\s*", re.IGNORECASE)
_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?)([kKmMgG]?)\s*")
MOST_DIGITS = 24
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def gib(size: float) -> str:
    """``58.33 GiB``; MiB below one GiB."""
    return f"{size / GIB:,.2f} GiB" if abs(size) >= GIB else f"{size / MIB:,.1f} MiB"


def whole(text: str) -> int | None:
    """The whole number a text is, in plain digits; None for anything else, such as ² or a number of 5,000 digits."""
    return int(text) if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) else None


def parse_size(text: str, option: str) -> int:
    """Bytes of ``58.33GiB``, ``900MB``, ``1024``. Raises InputError naming the option."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise InputError(f"{option}: {text!r} is not a size; write it like 58.33GiB or 900MiB")
    if len(match[1]) > MOST_DIGITS:
        raise InputError(f"{option}: a number of {len(match[1]):,} digits is no size")
    number, unit = float(match[1]), match[2].lower()
    power = _POWER[unit[:1] if unit != "b" else ""]
    return int(number * (1024 if "i" in unit or len(unit) == 1 else 1000) ** power)


def parse_count(text: str, option: str) -> int:
    """A count as vLLM reads it: ``32k`` is 32,000 and ``32K`` 32,768. Raises InputError naming the option."""
    match = _COUNT.fullmatch(text)
    if not match:
        raise InputError(f"{option}: {text!r} is not a count; write it like 32768, 32k (32,000) or 32K (32,768)")
    if len(match[1]) > MOST_DIGITS:
        raise InputError(f"{option}: a number of {len(match[1]):,} digits is no count")
    base = 1024 if match[2].isupper() else 1000
    return int(float(match[1]) * base ** _POWER[match[2].lower()])
