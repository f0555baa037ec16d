"""Reads the log of a llama-server as it comes: what it allocated, how it divided its context, what went wrong.

Formats from May 2025 (``KV self size``) to b11549, plain, with the prefixes of new builds, and ``--log-jsonl``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from llmdoctor_core.runtimes.log import ABSURD

MIB = 1 << 20
KEPT_ERRORS = 50
MAX_LINE = 16 << 10
"""Characters of a line that are looked at; what a server prints of itself is far shorter."""
_PREFIX = re.compile(r"^(?:\d+\.\d\d\.\d{3}\.\d{3} )?(?:(?P<level>[IWED]) )?(?:(?:srv|cmn|slot|spec)\s+\S+: )?")
_SETTING = re.compile(r"llama_context: (n_seq_max|n_ctx|n_ctx_seq|n_ctx_per_seq|n_batch|n_ubatch|n_rs_seq) += (\d+)")
_WORD = re.compile(r"llama_context: (flash_attn|kv_unified) += (\w+)")
_BUFFER = re.compile(r"(\S+) +(model|KV|RS|compute|output) buffer size = +(\d+\.\d+) MiB")
_CACHE = re.compile(
    r"size = +(\d+\.\d+) MiB \( *(\d+) cells, +(\d+) layers, +(\d+)(?:/(\d+))? seqs\), "
    r"K \((\w+)\): +(\d+\.\d+) MiB, V \((\w+)\): +(\d+\.\d+) MiB"
)
_OLD_CACHE = re.compile(r"KV self size += +(\d+\.\d+) MiB, K \((\w+)\): +(\d+\.\d+) MiB, V \((\w+)\): +(\d+\.\d+) MiB")
_STATE = re.compile(
    r"size = +(\d+\.\d+) MiB \( *(\d+) cells, +(\d+) layers, +(\d+) seqs(?: +(\d+) rs_seq)?\), "
    r"R \(f32\): +(\d+\.\d+) MiB, S \(f32\): +(\d+\.\d+) MiB"
)
_SLOTS = re.compile(r"initializing(?: slots)?, n_slots = (\d+)")
_SLOT = re.compile(r"(?:n_ctx_slot|new slot,? n_ctx(?:_slot)?) = (\d+)")
_TRAINED = re.compile(r"print_info: n_ctx_train += (\d+)")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_BUILD = re.compile(r"\b(?:build|version):? *b?(\d{4,5})\b|build_info: b(\d{4,5})")
_MODEL = re.compile(
    r"loaded meta data with \d+ key-value pairs and \d+ tensors from (.+?) \(version|loading model '(.+)'"
)
_FITTED = re.compile(
    r"(?:common|llama)_\w*fit\w*: (?:successfully fit|fitting params to free memory took|failed to fit)"
)
_READY = re.compile(r"(?:server is )?listening on https?://|main: server is listening")
_ERROR = re.compile(
    r"(?i)\berror\b|failed to|unknown (?:model architecture|pre-tokenizer)|GGML_ASSERT|unable to allocate|"
    r"out of memory|cudaMalloc failed|invalid argument|not within the file bounds|"
    r"requires flash_attn|does not divide n_embd_head"
)


class CacheLine(Struct, frozen=True, kw_only=True):
    """One attention cache as printed, sizes in bytes as far as two decimals of a MiB tell."""

    bytes: int
    cells: int | None
    layers: int | None
    sequences: int | None
    streams: int | None
    key_type: str
    value_type: str
    key_bytes: int
    value_bytes: int
    text: str


class StateLine(Struct, frozen=True, kw_only=True):
    """The recurrent states as printed."""

    bytes: int
    cells: int
    layers: int
    sequences: int
    rollback: int
    convolution_bytes: int
    recurrent_bytes: int
    text: str


class Buffer(Struct, frozen=True, kw_only=True):
    """One buffer: ``kind`` is model, KV, RS, compute or output; ``device`` the runtime's name (CUDA0, CPU_Mapped)."""

    kind: str
    device: str
    bytes: int


class ServerLog(Struct, frozen=True, kw_only=True):
    """What a llama-server said of its start. None and empty for what it did not say: by default it hides much."""

    build: int | None = None
    model: str | None = None
    settings: dict[str, int] = {}
    """n_seq_max, n_ctx, n_ctx_seq, n_batch, n_ubatch, n_rs_seq."""
    flash_attn: str | None = None
    unified: bool | None = None
    slots: int | None = None
    slot_tokens: int | None = None
    training_length: int | None = None
    offloaded: tuple[int, int] | None = None
    """Layers on devices, of how many; the output counts as one."""
    caches: tuple[CacheLine, ...] = ()
    states: tuple[StateLine, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    ready: bool = False


def read_log(lines: Iterable[str]) -> ServerLog:
    """A whole log."""
    reader = LogReader()
    for line in lines:
        reader.take(line)
    return reader.log()


class LogReader:
    """Takes the lines one by one; ``log()`` at any time gives what they said so far."""

    def __init__(self) -> None:
        self._one: dict[str, Any] = {}
        self._settings: dict[str, int] = {}
        self._caches: list[CacheLine] = []
        self._states: list[StateLine] = []
        self._buffers: list[Buffer] = []
        self._warnings: list[str] = []
        self._errors: list[str] = []

    def take(self, line: str) -> None:
        """One line, in any of the formats."""
        text, level = _plain(line[:MAX_LINE].rstrip())
        if not text:
            return
        if not ABSURD.search(text):
            self._figures(text)
        if level == "W" or " exceeds the training context" in text or "possible training context overflow" in text:
            self._keep(self._warnings, text)
        elif level == "E" or (level is None and _ERROR.search(text)):
            self._keep(self._errors, text)

    def _figures(self, text: str) -> None:
        if " buffer size = " in text:
            self._buffer(text)
        elif "size" in text and " MiB" in text and "K (" in text:
            self._cache(text)
        elif "R (f32)" in text:
            self._state(text)
        elif "llama_context:" in text and " = " in text:
            self._setting(text)
        elif _FITTED.search(text):
            # What stood before was the measuring pass of --fit, which allocates nothing.
            self._caches, self._states, self._buffers = [], [], []
        self._rest(text)

    def log(self) -> ServerLog:
        return ServerLog(
            settings=dict(self._settings),
            caches=tuple(self._caches),
            states=tuple(self._states),
            buffers=tuple(self._buffers),
            warnings=tuple(self._warnings),
            errors=tuple(self._errors),
            **self._one,
        )

    def _keep(self, texts: list[str], text: str) -> None:
        if len(texts) < KEPT_ERRORS:
            texts.append(text)

    def _buffer(self, text: str) -> None:
        if match := _BUFFER.search(text):
            self._buffers.append(Buffer(device=match[1], kind=match[2], bytes=_bytes(match[3])))

    def _cache(self, text: str) -> None:
        if match := _CACHE.search(text):
            self._caches.append(
                CacheLine(
                    bytes=_bytes(match[1]),
                    cells=int(match[2]),
                    layers=int(match[3]),
                    sequences=int(match[4]),
                    streams=int(match[5]) if match[5] else None,
                    key_type=match[6],
                    key_bytes=_bytes(match[7]),
                    value_type=match[8],
                    value_bytes=_bytes(match[9]),
                    text=match[0],
                )
            )
        elif match := _OLD_CACHE.search(text):
            self._caches.append(
                CacheLine(
                    bytes=_bytes(match[1]),
                    cells=None,
                    layers=None,
                    sequences=None,
                    streams=None,
                    key_type=match[2],
                    key_bytes=_bytes(match[3]),
                    value_type=match[4],
                    value_bytes=_bytes(match[5]),
                    text=match[0],
                )
            )

    def _state(self, text: str) -> None:
        if match := _STATE.search(text):
            self._states.append(
                StateLine(
                    bytes=_bytes(match[1]),
                    cells=int(match[2]),
                    layers=int(match[3]),
                    sequences=int(match[4]),
                    rollback=int(match[5] or 0),
                    convolution_bytes=_bytes(match[6]),
                    recurrent_bytes=_bytes(match[7]),
                    text=match[0],
                )
            )

    def _setting(self, text: str) -> None:
        if match := _SETTING.search(text):
            name = "n_ctx_seq" if match[1] == "n_ctx_per_seq" else match[1]
            self._settings[name] = int(match[2])
        elif match := _WORD.search(text):
            if match[1] == "kv_unified":
                self._one["unified"] = match[2] == "true"
            else:
                self._one["flash_attn"] = match[2]

    def _rest(self, text: str) -> None:
        if match := _SLOTS.search(text):
            self._one["slots"] = int(match[1])
        if match := _SLOT.search(text):
            self._one["slot_tokens"] = int(match[1])
        if match := _TRAINED.search(text):
            self._one["training_length"] = int(match[1])
        elif match := _OFFLOADED.search(text):
            self._one["offloaded"] = (int(match[1]), int(match[2]))
        elif match := _MODEL.search(text):
            self._one["model"] = match[1] or match[2]
        elif match := _BUILD.search(text):
            self._one.setdefault("build", int(match[1] or match[2]))
        elif _READY.search(text):
            self._one["ready"] = True


def _plain(line: str) -> tuple[str, str | None]:
    """The message without prefix, and its level where the line tells one."""
    if line.startswith('{"'):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return line, None
        if isinstance(entry, dict) and isinstance(entry.get("msg"), str):
            level = {"error": "E", "warn": "W", "warning": "W", "info": "I", "debug": "D"}.get(str(entry.get("level")))
            return _plain(entry["msg"].rstrip())[0], level
    match = _PREFIX.match(line)
    assert match is not None, "the pattern matches the empty string"
    return line[match.end() :], match["level"]


def _bytes(mib: str) -> int:
    return round(float(mib) * MIB)
