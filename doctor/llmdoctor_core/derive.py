"""Facts that follow from a case: the model understood, the launch resolved, the forecast. Pure, lazy, memoised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from . import models, runtimes
from .case import Case, observed
from .errors import InputError
from .facts import Draft, DraftSource, Fact, Forecast, Gpus, Launch, LaunchRequest, Model, ModelSource, Unavailable

F = TypeVar("F", bound=Fact)


class Facts:
    """All facts of one case by type: those observed and those derived from them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._known: dict[type[Fact], Fact] = {}

    def get(self, kind: type[F]) -> F | Unavailable:
        """The fact of that type, or why there is none. Raises KeyError for a type no case or derivation provides."""
        if kind not in self._known:
            derivation = DERIVED.get(kind)
            self._known[kind] = derivation(self) if derivation else observed(self.case, kind)
        return cast("F | Unavailable", self._known[kind])

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
    draft = facts.optional(Draft)
    try:
        return runtimes.runtime(launch.runtime).forecast(
            launch, model, facts.optional(Gpus), draft.model if draft else None, request.kv_memory
        )
    except InputError as error:
        return Unavailable(reason=str(error))


DERIVED: dict[type[Fact], Callable[[Facts], Fact]] = {
    Model: _model,
    Draft: _draft,
    Launch: _launch,
    Forecast: _forecast,
}
