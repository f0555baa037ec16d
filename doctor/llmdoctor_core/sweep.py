"""Forecasts over ranges of settings: which value gives the cache back, as a table and as bars."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from . import runtimes
from .case import Case
from .derive import Facts
from .errors import InputError
from .facts import Forecast, LaunchRequest, Model, Unavailable
from .units import MIB, gib, parse_count

MAX_POINTS = 4096
BAR_CELLS = 40


class Point(Struct, frozen=True, kw_only=True):
    """One forecast of the sweep, by the values that were set."""

    settings: dict[str, int]
    request_bytes: int | None = None
    tokens: int | None = None
    max_concurrency: float | None = None
    refused: str | None = None


def sweep(case: Case, ranges: tuple[str, ...]) -> list[Point]:
    """Forecast every combination of the ranges (``max_model_len=4k..256k``: doubling; ``a=1,2,3``: as listed).

    Raises InputError for a malformed range, too many points, or a case without a launch.
    """
    request = case.launch
    if isinstance(request, Unavailable):
        raise InputError(f"no launch to sweep: {request.reason}")
    names, values = zip(*map(values_of, ranges), strict=True)
    combinations = list(itertools.product(*values))
    if len(combinations) > MAX_POINTS:
        raise InputError(f"--sweep asks for {len(combinations):,} forecasts; {MAX_POINTS:,} are the most")
    return [_point(case, request, dict(zip(names, combination, strict=True))) for combination in combinations]


LENGTH = {"vllm": "max_model_len", "llamacpp": "ctx_size"}
"""The argument that sets the context length, by runtime."""


def over_length(case: Case) -> tuple[Point, ...]:
    """The forecast over context lengths up to the training length: what a report draws. Empty without a model."""
    model = Facts(case).optional(Model)
    request = case.launch
    if model is None or isinstance(request, Unavailable) or request.runtime not in LENGTH or not model.training_length:
        return ()
    shortest = max(512, model.training_length >> 7)
    return tuple(sweep(case, (f"{LENGTH[request.runtime]}={shortest}..{model.training_length}",)))


def values_of(text: str) -> tuple[str, list[int]]:
    """Name and values of ``name=from..to`` (doubling, the end included) or ``name=a,b,c``."""
    name, equals, values = text.partition("=")
    if not equals or not name or not values:
        raise InputError(f"--sweep {text!r}: write it like max_model_len=4k..256k or max_num_seqs=64,128")
    low, dots, high = values.partition("..")
    if not dots:
        return name, [parse_count(value, f"--sweep {name}") for value in values.split(",")]
    first, last = (parse_count(value, f"--sweep {name}") for value in (low, high))
    if not 0 < first <= last:
        raise InputError(f"--sweep {text!r}: the range runs backwards or starts at zero")
    doubled = list(itertools.takewhile(lambda value: value < last, (first << shift for shift in itertools.count())))
    return name, [*doubled, last]


def _point(case: Case, request: LaunchRequest, settings: dict[str, int]) -> Point:
    runtime = runtimes.runtime(request.runtime)
    argv = request.argv
    for name, value in settings.items():
        try:
            argv = runtime.with_argument(argv, name, str(value))
        except KeyError:
            raise InputError(f"--sweep {name}: {request.runtime} has no argument of that name") from None
    forecast = Facts(replace(case, launch=replace(request, argv=argv))).get(Forecast)
    if isinstance(forecast, Unavailable):
        return Point(settings=settings, refused=forecast.reason)
    cache = forecast.cache
    refused = f"{forecast.refused.code}" if forecast.refused else None
    if cache is None:
        return Point(settings=settings, refused=refused)
    return Point(
        settings=settings,
        request_bytes=cache.bytes_per_request,
        tokens=cache.tokens if cache.tokens is not None else cache.slot_tokens,
        max_concurrency=cache.max_concurrency,
        refused=refused,
    )


def render(points: list[Point], format_name: str) -> str:
    """The points as JSON, or as a table with a bar for what one request reserves."""
    if format_name == "json":
        return json.dumps(msgspec.to_builtins(points), indent=1) + "\n"
    names = list(points[0].settings)
    largest = max((point.request_bytes or 0 for point in points), default=0) or 1
    rows = [[*names, "one request", "tokens", "concurrency", ""]]
    rows += [_row(point, largest) for point in points]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _row(point: Point, largest: int) -> list[str]:
    size = point.request_bytes
    bar = "█" * max(1, round(BAR_CELLS * size / largest)) if size else ""
    return [
        *(f"{value:,}" for value in point.settings.values()),
        (f"{size / MIB:,.1f} MiB" if size < 1 << 34 else gib(size)) if size is not None else "-",
        _or_dash(point.tokens, ",d"),
        _or_dash(point.max_concurrency, ".2f", "x"),
        f"{bar} refused: {point.refused}" if point.refused else bar,
    ]


def _or_dash(value: Any, form: str, unit: str = "") -> str:
    return "-" if value is None else format(value, form) + unit
