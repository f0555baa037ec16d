"""JSON as model files hold it, made safe to keep as a fact: bounded, and equal after a case is written and read."""

from __future__ import annotations

import json
import math
from typing import Any

from ..errors import InputError
from .keys import shown

MOST_BYTES = 32 << 20
"""The longest config.json seen has 0.5 MB, the longest safetensors index 15 MB."""
MOST_DEPTH = 64
MOST_VALUES = 1_000_000
"""The header of the largest real checkpoint, 60,000 tensors in one file, has half of it."""
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1


def json_object(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object that ``data`` holds. ``name`` names it in errors.

    ``NaN`` and ``Infinity``, which Python writes though JSON has no such thing, become texts; half surrogates become
    question marks. Raises InputError for anything else that is not a JSON object of a sane size.
    """
    if len(data) > MOST_BYTES:
        raise InputError(f"{name} has {len(data):,} bytes; no such file has more than {MOST_BYTES:,}")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MOST_VALUES:  # before it takes memory
        raise InputError(f"{name} holds more than {MOST_VALUES:,} values; no such file does")
    if data.startswith(b"version https://git-lfs."):
        raise InputError(f"{name} is a git-lfs pointer, not the file: run git lfs pull there, or hf download")
    if not data.strip():
        raise InputError(f"{name} is empty: download it again")
    try:
        value = json.loads(data)
    except RecursionError:
        raise InputError(f"{name} is nested too deeply to be read") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise InputError(f"{name} holds {shown(value)}, not a JSON object")
    found: dict[str, Any] = _plain(value, name, "", 0)
    return found


def _plain(value: Any, name: str, key: str, depth: int) -> Any:
    """The value with what is no JSON replaced, in place: a second copy of a large header is memory for nothing."""
    if depth > MOST_DEPTH:
        raise InputError(f"{name}: {key or 'it'} is nested more than {MOST_DEPTH} levels deep")
    if isinstance(value, dict):
        for k, v in value.items():
            value[k] = _plain(v, name, k, depth + 1)
        return value if all(map(str.isascii, value)) else {_text(k): v for k, v in value.items()}
    if isinstance(value, list):
        value[:] = [_plain(v, name, key, depth + 1) for v in value]
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not _LOWEST <= value <= _HIGHEST:
        raise InputError(f"{name}: {key} is a number of {len(str(abs(value)))} digits; no model has such a value")
    return value


def _text(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
