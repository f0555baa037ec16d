"""The case: all facts about one intended launch, as one plain JSON document that can be replayed anywhere."""

from __future__ import annotations

import json
import typing
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from . import __version__
from .errors import InputError
from .facts import (
    BrokenInterpreter,
    Calibration,
    Container,
    CudaToolkits,
    DraftSource,
    Environment,
    Fact,
    Gpus,
    ImportAnnotations,
    JitCompiler,
    LaunchRequest,
    Links,
    Measured,
    ModelSource,
    Network,
    NvidiaDriver,
    System,
    TargetEnvironment,
    Unavailable,
)

FORMAT_VERSION = "1.0"
MAX_CASE_BYTES = 64 << 20
NOT_LOOKED = Unavailable(reason="not looked for", permanent=True)


class Case(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that was observed about one intended launch. Everything else (launch, model, forecast) is derived from it."""

    format_version: str = FORMAT_VERSION
    doctor: str = __version__
    observed_at: str | None = None
    """UTC time in ISO 8601, from the rim; no check reads a clock."""
    host: str | None = None
    """A pseudonym of the host, for fleets."""
    launch: LaunchRequest | Unavailable = NOT_LOOKED
    model: ModelSource | Unavailable = NOT_LOOKED
    draft: DraftSource | Unavailable = NOT_LOOKED
    driver: NvidiaDriver | Unavailable = NOT_LOOKED
    gpus: Gpus | Unavailable = NOT_LOOKED
    links: Links | Unavailable = NOT_LOOKED
    toolkits: CudaToolkits | Unavailable = NOT_LOOKED
    jit: JitCompiler | Unavailable = NOT_LOOKED
    target: TargetEnvironment | BrokenInterpreter | Unavailable = NOT_LOOKED
    annotations: ImportAnnotations | Unavailable = NOT_LOOKED
    system: System | Unavailable = NOT_LOOKED
    container: Container | Unavailable = NOT_LOOKED
    environment: Environment | Unavailable = NOT_LOOKED
    network: Network | Unavailable = NOT_LOOKED
    measured: Measured | Unavailable = NOT_LOOKED
    calibration: Calibration | Unavailable = NOT_LOOKED


@lru_cache(maxsize=1)
def _field_of_type() -> dict[type, str]:
    hints = typing.get_type_hints(Case)
    fields = {}
    for name, hint in hints.items():
        for kind in typing.get_args(hint):
            if isinstance(kind, type) and issubclass(kind, Fact) and kind is not Unavailable:
                fields[kind] = name
    return fields


def observed(case: Case, kind: type[Fact]) -> Fact | Unavailable:
    """The case's fact of that type. Raises KeyError for a type that no field of a case holds."""
    fact = getattr(case, _field_of_type()[kind])
    if isinstance(fact, kind | Unavailable):
        return fact
    if isinstance(fact, BrokenInterpreter):
        return Unavailable(reason=f"{fact.python}: {fact.problem}")
    return Unavailable(reason=f"observed as {type(fact).__name__}", permanent=True)


def fact_types() -> frozenset[type]:
    """Types a case can hold."""
    return frozenset(_field_of_type())


def encode(case: Case) -> bytes:
    """The case as JSON, indented, keys in a fixed order."""
    try:
        data = msgspec.json.encode(case)
    except UnicodeEncodeError:  # a path or an argument that is no UTF-8, which Python keeps as half surrogates
        data = json.dumps(msgspec.to_builtins(case), ensure_ascii=False).encode("utf-8", "replace")
    return msgspec.json.format(data, indent=1) + b"\n"


def decode(data: bytes, name: str) -> Case:
    """A case from JSON. ``name`` names the input in errors. Raises InputError for anything that is not a case."""
    if len(data) > MAX_CASE_BYTES:
        raise InputError(f"{name}: {len(data):,} bytes are more than a case file can have ({MAX_CASE_BYTES:,})")
    try:
        case = msgspec.json.decode(data, type=Case)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is not a case file: {str(error)[:400]}") from None
    mine, theirs = FORMAT_VERSION.partition(".")[0], case.format_version[:40]
    if theirs.partition(".")[0] != mine:
        raise InputError(f"{name} has case format {theirs}; this llmdoctor reads {mine}.x")
    return case


def fact_from(kind: Any, observation: Any, name: str) -> Any:
    """One probe's JSON as a fact: the strict door for what comes from outside (a collector's file, a child process)."""
    try:
        return msgspec.convert(observation, type=kind, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        return Unavailable(reason=f"the {name} probe answered something malformed: {error}")
