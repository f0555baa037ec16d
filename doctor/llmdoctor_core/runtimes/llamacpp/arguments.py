"""llama-server's command line and environment as typed values, by build, with what this build does not take.

The grammar is ``common_params_parse_ex`` of common/arg.cpp (b11434): a name and its value are two words, ``=`` is not
taken, ``_`` in a ``--name`` counts as ``-``, an unknown name ends the start. Names by build: data/arguments.json.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from llmdoctor_core.facts import Argument, ArgumentProblem

from .builds import DATA, changes, has

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_WHOLE = re.compile(r"\s*[+-]?\d+")
_REAL = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_CUMULATIVE = {"spec_type", "override_tensor", "lora", "control_vector", "override_kv"}
_ON_OFF_AUTO = {"flash_attn", "fit"}
_CACHE_TYPES = {"cache_type_k", "cache_type_v", "spec_draft_type_k", "spec_draft_type_v"}

_LEAST = {"ctx_size": 0, "batch_size": 1, "kv_unified_per_slot": 0}
"""Sizes in tokens that the server casts to unsigned: a smaller one ends its start (b10434, b11434), by slots and
build with a failed GGML_ASSERT, 'n_ctx_seq == 0' or 'failed to allocate buffer for kv cache'. A negative -ub is -b."""

Span = tuple[int | None, int | None]


class Row(Struct, frozen=True, kw_only=True):
    """One argument over all builds read; each name with the first and the last build known to take it."""

    name: str
    kind: str
    values: int
    hint: str | None
    names: dict[str, Span]
    negative: dict[str, Span]
    env: dict[str, Span]
    replacement: str | None = None


class Word(Struct, frozen=True):
    """A spelling of an argument: ``--no-mmap`` is the negative of ``mmap``."""

    row: Row
    positive: bool
    span: Span


class Parsed(Struct, frozen=True, kw_only=True):
    """What was typed: values by name with their origin, the command in front, and what the build would not take."""

    command: tuple[str, ...]
    arguments: dict[str, Argument]
    problems: tuple[ArgumentProblem, ...]


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((DATA / "arguments.json").read_text())
    return table


@lru_cache(maxsize=1)
def rows() -> tuple[Row, ...]:
    """All arguments known, of whatever build."""
    table = _table()["rows"]
    return tuple(
        Row(
            name=row["name"],
            kind=row["kind"],
            values=row["values"],
            hint=row["hint"],
            names={name: tuple(span) for name, span in row["names"].items()},
            negative={name: tuple(span) for name, span in row["negative"].items()},
            env={name: tuple(span) for name, span in row["env"].items()},
            replacement=row.get("replacement"),
        )
        for row in table
    )


@lru_cache(maxsize=1)
def words() -> dict[str, Word]:
    """Every spelling of every argument."""
    known: dict[str, Word] = {}
    for row in rows():
        known |= {name: Word(row, True, span) for name, span in row.names.items()}
        known |= {name: Word(row, False, span) for name, span in row.negative.items()}
    return known


@lru_cache(maxsize=1)
def choices() -> dict[str, Any]:
    """The words that arguments take."""
    return tomllib.loads((DATA / "choices.toml").read_text())


def alive(span: Span, build: int) -> bool:
    """False where the build is known not to take a name with that span; between two trees read it counts as taken."""
    return not (absent_before(span, build) or gone_since(span, build))


@lru_cache(maxsize=1024)
def _nearest(name: str, build: int) -> str | None:
    """The spelling of that build most like ``name``: remedies resolve a launch many times, a look-up takes long."""
    live = [known for known, word in words().items() if alive(word.span, build)]
    return next(iter(difflib.get_close_matches(name, live, n=1)), None)


def absent_before(span: Span, build: int) -> bool:
    """Whether a source tree of that build or a later one still lacked the name."""
    first, _ = span
    return first is not None and any(build <= read < first for read in _table()["about"]["builds"])


def gone_since(span: Span, build: int) -> int | None:
    """The tree of that build or an earlier one in which the name is gone, or None."""
    _, last = span
    if last is None:
        return None
    return next((read for read in _table()["about"]["builds"] if last < read <= build), None)


def parse(argv: Sequence[str], environment: Mapping[str, str], build: int) -> Parsed:
    """The command line and the environment as that build reads them. Raises nothing: it notes problems."""
    command, rest = split_command(argv)
    reader = _Reader(build)
    reader.read_environment(environment)
    reader.read(rest)
    return Parsed(command=command, arguments=reader.arguments, problems=tuple(dict.fromkeys(reader.problems)))


def split_command(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The command in front (``llama-server``, ``llama serve``) and the arguments proper."""
    for number, word in enumerate(argv):
        if word.startswith("-"):
            return tuple(argv[:number]), tuple(argv[number:])
        if number == 0 and Path(word).name not in ("llama", "llama.exe"):
            return (word,), tuple(argv[1:])
        if number == 1:
            return tuple(argv[:2]), tuple(argv[2:])
    return tuple(argv), ()


def value_of(argv: Sequence[str], *names: str) -> str | None:
    """The last value given to one of these arguments (by their names in the table), without judging anything else."""
    _, rest = split_command(argv)
    found = None
    for flag, value in pairwise(rest):
        word = words().get(_spelling(flag))
        if word is not None and word.row.values and word.row.name in names:
            found = value
    return found


def default(name: str, build: int) -> Argument | None:
    """What the build fills in for the argument, and since when; None where it fills in nothing that matters here."""
    for row in _defaults():
        if row["name"] == name:
            change = row.get("change")
            old = change is not None and not has(build, change)
            why = "" if change is None else f"{'until' if old else 'since'} b{changes()[change].since}"
            return Argument(name=name, value=row["before"] if old else row["value"], origin="default", why=why)
    return None


def defaults(build: int) -> dict[str, Argument]:
    """All defaults of the build that a forecast needs, by name."""
    found = ((row["name"], default(row["name"], build)) for row in _defaults())
    return {name: argument for name, argument in found if argument is not None}


@lru_cache(maxsize=1)
def _defaults() -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = tomllib.loads((DATA / "defaults.toml").read_text())["default"]
    return table


def _spelling(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


class _Reader:
    def __init__(self, build: int) -> None:
        self.build = build
        self.arguments: dict[str, Argument] = {}
        self.problems: list[ArgumentProblem] = []

    def read_environment(self, environment: Mapping[str, str]) -> None:
        known = set()
        for row in rows():
            for env, span in row.env.items():
                negative = env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_") if row.negative else ""
                known |= {env, negative}
                if not alive(span, self.build):
                    continue
                if negative and negative in environment:
                    self._set(row, False, negative, "environment")
                elif env in environment:
                    self._environment_value(row, env, environment[env])
        for name in environment:
            if name.startswith("LLAMA_ARG_") and name not in known:
                near = difflib.get_close_matches(name, known - {""}, n=1)
                self._problem("ignored", name, "no build reads this variable", nearest=near[0] if near else None)

    def _environment_value(self, row: Row, env: str, text: str) -> None:
        if row.kind not in ("flag", "toggle"):
            self._value(row, [text], env, "environment")
        elif text in choices()["on_off_auto"]["on"]:
            self._set(row, True, env, "environment")
        elif text in choices()["on_off_auto"]["off"]:
            self._set(row, False, env, "environment")
        elif row.kind == "toggle":
            self._problem("invalid", env, f"{text!r} is neither on nor off")

    def read(self, argv: Sequence[str]) -> None:
        remaining = list(argv)
        while remaining:
            typed = remaining.pop(0)
            flag = _spelling(typed)
            word = words().get(flag)
            if word is None:
                self._unknown(typed, flag)
                if typed.startswith("-") and remaining and not remaining[0].startswith("-"):
                    remaining.pop(0)  # most likely its value: one problem is enough
                continue
            if not alive(word.span, self.build):
                self._not_in_build(word, flag)
            if not word.row.values:
                self._set(word.row, word.positive, flag, "given")
                continue
            given, remaining = remaining[: word.row.values], remaining[word.row.values :]
            if len(given) < word.row.values:
                self._problem("incomplete", flag, "expected value for argument")
            else:
                self._value(word.row, given, flag, "given")

    def _unknown(self, typed: str, flag: str) -> None:
        if not typed.startswith("-"):
            self._problem(
                "unknown", typed, "llama-server takes no words without a name: it stops with 'invalid argument'"
            )
            return
        name, equals, value = flag.partition("=")
        word = words().get(name)
        if equals and word is not None and word.row.values == 1:
            self._problem("unknown", typed, "llama-server takes no '=': it stops with 'invalid argument'",
                          replacement=f"{name} {value}")  # fmt: skip
            self._value(word.row, [value], name, "given")
            return
        near = _nearest(name, self.build)
        self._problem("unknown", typed, f"b{self.build} stops with 'invalid argument'", nearest=near)

    def _not_in_build(self, word: Word, flag: str) -> None:
        first, last = word.span
        if absent_before(word.span, self.build):
            self._problem("unknown", flag, f"b{self.build} does not have it: known since b{first}", since=f"b{first}")
            return
        gone = f"b{gone_since(word.span, self.build)}"
        row = word.row
        names = row.names if word.positive else row.negative
        living = [name for name, span in names.items() if alive(span, self.build)]
        if living:
            newest = max(living, key=lambda name: (name.startswith("--"), len(name)))
            self._problem("renamed", flag, f"last known in b{last}, gone in {gone}", since=gone, replacement=newest)
            return
        successor = row.replacement or choices()["replacement"].get(row.name)
        self._problem("removed", flag, f"last known in b{last}, gone in {gone}", since=gone, replacement=successor)

    def _value(self, row: Row, given: list[str], flag: str, origin: Any) -> None:
        if row.kind == "pair":
            self._set(row, tuple(given), flag, origin)
            return
        text = given[0]
        value: str | int | float | None
        if row.kind in ("int", "float"):
            value = self._number(row, text, flag)
        elif row.name == "gpu_layers" or row.name == "spec_draft_ngl":
            value = text if text in ("auto", "all") else self._number(row, text, flag)
        elif row.name in _ON_OFF_AUTO:
            value = self._on_off_auto(row, text, flag)
        elif row.name in _CACHE_TYPES:
            value = self._choice("cache_type", text, flag)
        elif row.name == "split_mode":
            value = self._choice("split_mode", text, flag)
        else:
            value = text
        if row.name == "parallel" and value == 0:
            self._problem("invalid", flag, "invalid value for n_parallel: 0 slots cannot serve")
            value = None
        if row.name in _LEAST and isinstance(value, int) and value < _LEAST[row.name]:
            told = f"{value} is read as {value % 2**32:,} tokens" if value < 0 else f"{value} leaves no token a step"
            self._problem("invalid", flag, f"{told}: the start ends ('GGML_ASSERT', 'n_ctx_seq == 0', out of memory)")
            value = None
        if value is not None:
            self._set(row, value, flag, origin)

    def _number(self, row: Row, text: str, flag: str) -> int | float | None:
        """As std::stoi and std::stof read it: the longest number the text starts with."""
        match = (_REAL if row.kind == "float" else _WHOLE).match(text)
        if not match:
            self._problem("invalid", flag, f"{text!r} is no number: the start ends with an error of std::stoi")
            return None
        value = float(match[0]) if row.kind == "float" else int(match[0])
        if row.kind != "float" and not -(1 << 31) <= value < 1 << 31:
            self._problem("invalid", flag, f"{text} does not fit 32 bits: the start ends with 'stoi'")
            return None
        if match.end() < len(text.rstrip()):
            self._problem("ignored", flag, f"{text!r} is read as {match[0].strip()}: suffixes are not understood")
        return value

    def _on_off_auto(self, row: Row, text: str, flag: str) -> str | None:
        for meaning, spellings in choices()["on_off_auto"].items():
            if text in spellings and (meaning != "auto" or row.name == "flash_attn"):
                return str(meaning)
        self._problem(
            "invalid", flag, f"unknown value {text!r}; it takes on, off" + (" or auto" * (row.name == "flash_attn"))
        )
        return None

    def _choice(self, table: str, text: str, flag: str) -> str | None:
        allowed = choices()[table]["words"]
        if text in allowed:
            return text
        detail = str(choices()[table]["error"]).format(value=text)
        self._problem("invalid", flag, f"{detail}; it takes {', '.join(allowed)}")
        return None

    def _set(self, row: Row, value: Any, flag: str, origin: Any) -> None:
        before = self.arguments.get(row.name)
        if row.name in _CUMULATIVE and before is not None and before.origin == origin:
            value = f"{before.value},{value}"
        self.arguments[row.name] = Argument(name=row.name, value=value, origin=origin, flag=flag)

    def _problem(self, kind: Any, flag: str, detail: str, **more: str | None) -> None:
        self.problems.append(ArgumentProblem(kind=kind, flag=flag, detail=detail, **more))
