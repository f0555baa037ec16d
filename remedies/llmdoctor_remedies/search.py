"""Finds the value that fits: the largest or smallest setting whose forecast is not refused."""

from __future__ import annotations

from collections.abc import Callable

from llmdoctor_core.derive import Facts
from llmdoctor_core.facts import Forecast, Gpus, Launch, Unavailable
from llmdoctor_core.remedy import SetArgument, corrected


def forecast_with(facts: Facts, **settings: str) -> Forecast | None:
    """The forecast of the launch with these arguments set; None where there is none."""
    actions = [SetArgument(name=name, value=value) for name, value in settings.items()]
    forecast = Facts(corrected(facts.case, actions)).get(Forecast)
    return None if isinstance(forecast, Unavailable) else forecast


def starts(facts: Facts, name: str, value: int | float | str) -> bool:
    """Whether the launch with that setting is not refused, and its cache holds one request by the middle estimate."""
    forecast = forecast_with(facts, **{name: str(value)})
    if forecast is None or forecast.refused is not None:
        return False
    cache = forecast.cache
    if cache is None or cache.blocks is None or cache.blocks_per_request is None:
        return True
    return cache.blocks >= cache.blocks_per_request


def largest(low: int, high: int, step: int, good: Callable[[int], bool]) -> int | None:
    """The largest multiple of ``step`` in [low, high] that is good, where everything below a good one is good too."""
    first, last = -(-low // step), high // step
    if first > last or not good(first * step):
        return None
    while first < last:
        middle = (first + last + 1) // 2
        first, last = (middle, last) if good(middle * step) else (first, middle - 1)
    return first * step


def launch_of(facts: Facts) -> Launch | None:
    return facts.optional(Launch)


def visible_gpus(facts: Facts) -> int | None:
    """How many GPUs the server can see; None where that is not known."""
    gpus = facts.optional(Gpus)
    return len(gpus.visible) if gpus else None


def text_of(launch: Launch, name: str) -> str | None:
    """A setting as the person would write it, for showing what it was."""
    value = launch.get(name)
    return None if value is None else str(value)
