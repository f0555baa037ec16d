"""Facts that follow from a case: the model understood, the launch resolved, the forecast. Pure, lazy, memoised."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from . import models, runtimes
from .case import Case, observed
from .errors import InputError
from .facts import (
    Calibration,
    Draft,
    DraftSource,
    Fact,
    Forecast,
    Gpus,
    Launch,
    LaunchRequest,
    Model,
    ModelSource,
    Unavailable,
)

F = TypeVar("F", bound=Fact)


class Facts:
    """All facts of one case by type: those observed and those derived from them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._known: dict[type[Fact], Fact] = {}
        self.crashes: dict[str, str] = {}
        """Derivations that crashed (our bug), by the fact they were to give."""

    def get(self, kind: type[F]) -> F | Unavailable:
        """The fact of that type, or why there is none. Raises KeyError for a type no case or derivation provides."""
        if kind not in self._known:
            derivation = DERIVED.get(kind)
            self._known[kind] = self._derived(kind, derivation) if derivation else observed(self.case, kind)
        return cast("F | Unavailable", self._known[kind])

    def _derived(self, kind: type[Fact], derivation: Callable[[Facts], Fact]) -> Fact:
        try:
            return derivation(self)
        except Exception as error:  # our bug: it is reported as such, and the other facts still count
            place = traceback.extract_tb(error.__traceback__)[-1]
            crash = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            self.crashes[kind.__name__] = crash
            return Unavailable(reason=f"llmdoctor crashed while working it out: {crash}")

    def optional(self, kind: type[F]) -> F | None:
        fact = self.get(kind)
        return None if isinstance(fact, Unavailable) else fact


def _model(facts: Facts) -> Fact:
    source = facts.get(ModelSource)
    return source if isinstance(source, Unavailable) else _described(source)


def _draft(facts: Facts) -> Fact:
    draft = facts.get(DraftSource)
    if isinstance(draft, Unavailable):
        return draft
    model = _described(draft.source)
    return Draft(model=model) if isinstance(model, Model) else model


def _described(source: ModelSource) -> Model | Unavailable:
    try:
        return models.describe(source)
    except InputError as error:
        return Unavailable(reason=str(error))


def _launch(facts: Facts) -> Fact:
    request = facts.get(LaunchRequest)
    if isinstance(request, Unavailable):
        return request
    if request.runtime not in runtimes.NAMES:
        return Unavailable(reason=f"the launches of {request.runtime} are not resolved yet", permanent=True)
    runtime = runtimes.runtime(request.runtime)
    return runtime.resolve(request, facts.optional(Model), facts.optional(Gpus))


def _forecast(facts: Facts) -> Fact:
    request, launch, model = facts.get(LaunchRequest), facts.get(Launch), facts.get(Model)
    for needed in (request, launch, model):
        if isinstance(needed, Unavailable):
            return needed
    assert isinstance(request, LaunchRequest)
    assert isinstance(launch, Launch)
    assert isinstance(model, Model)
    draft, gpus, calibration = facts.optional(Draft), facts.optional(Gpus), facts.optional(Calibration)
    runtime = runtimes.runtime(launch.runtime)

    def forecast_for(pool: int | None) -> Forecast:
        return runtime.forecast(launch, model, gpus, draft.model if draft else None, pool)

    try:
        forecast = forecast_for(request.kv_memory)
        if calibration is None:
            return forecast
        from .load.calibration import apply, key_of

        again = forecast_for if request.kv_memory is None else None
        return apply(forecast, key_of(launch, model, gpus), calibration.entries, again)
    except InputError as error:
        return Unavailable(reason=str(error))


DERIVED: dict[type[Fact], Callable[[Facts], Fact]] = {
    Model: _model,
    Draft: _draft,
    Launch: _launch,
    Forecast: _forecast,
}
