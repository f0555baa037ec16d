"""Observation of this host: the probes' plain answers, decoded strictly into the facts of a case."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from .case import Case, fact_from
from .errors import InputError
from .facts import Unavailable
from .probes.collect import FIELDS, Order, collect
from .probes.host import Host

GPU_FIELDS = ("driver", "gpus", "links")
MAX_COLLECTOR_BYTES = 64 << 20
NOT_ASKED = Unavailable(reason="this host was not looked at", permanent=True)


class ObserveOptions(Struct, frozen=True, kw_only=True):
    """What to observe and as whom."""

    python: str | None = None
    """Interpreter, or folder, of the environment the server runs in; None to find it."""
    command: str | None = None
    """First word of the launch (``vllm``, ``/opt/venv/bin/vllm``): its interpreter is the target's."""
    environment: Mapping[str, str] | None = None
    """The service's variables; None for this process's own."""
    host: bool = True
    """False to ask for the GPUs only."""
    ports: tuple[tuple[str, int], ...] = ()
    limit: float = Order().limit
    """Seconds each probe may take."""
    annotations: bool = True
    """Whether the environment's sources are read for annotations that fail at import."""


def observe(options: ObserveOptions) -> dict[str, Any]:
    """The fact of every field of a case that the host can fill, or Unavailable with the reason."""
    order = Order(
        python=options.python,
        command=options.command,
        ports=options.ports,
        limit=options.limit,
        annotations=options.annotations,
        fields=None if options.host else GPU_FIELDS,
    )
    host = Host(environ=os.environ if options.environment is None else options.environment)
    return dict.fromkeys(FIELDS, NOT_ASKED) | facts_from(collect(host, order))


def facts_from(observations: Mapping[str, Any]) -> dict[str, Any]:
    """Plain observations by field name as facts; a malformed one is Unavailable and says what is wrong with it."""
    types = {field.name: field.type for field in msgspec.structs.fields(Case)}
    return {name: fact_from(types[name], found, name) for name, found in observations.items() if name in FIELDS}


def from_collector(data: bytes, name: str) -> dict[str, Any]:
    """The facts a collector printed on another host. ``name`` names the input in errors.

    Raises InputError for what is no collector's output.
    """
    if len(data) > MAX_COLLECTOR_BYTES:
        raise InputError(f"{name}: {len(data):,} bytes are more than a collector prints ({MAX_COLLECTOR_BYTES:,})")
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is not a collector's output: {error}") from None
    facts = document.get("facts") if isinstance(document, dict) else None
    if not isinstance(facts, dict) or not str(document.get("llmdoctor_probe", "")).startswith("1."):
        raise InputError(f'{name} is not a collector\'s output: it has no "llmdoctor_probe": "1.x" with facts')
    return dict.fromkeys(FIELDS, NOT_ASKED) | facts_from(facts)
