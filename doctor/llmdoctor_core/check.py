"""The check decorator: a plain function whose annotations say which facts it needs, under a code and a name."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from .facts import Fact, Unavailable
from .finding import Finding

CODE = re.compile(r"[A-Z]{2,5}\d{3}")
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Need:
    """A parameter of a check: the fact type it asks for, and whether it can do without.

    ``reasoned`` means that the check wants to know why the fact is missing: it is given the ``Unavailable`` itself.
    """

    parameter: str
    fact: type[Fact]
    optional: bool
    reasoned: bool = False


@dataclass(frozen=True)
class Check:
    """A check: callable with facts, giving findings. Nothing found is a pass."""

    code: str
    name: str
    function: Callable[..., Iterator[Finding]]
    runtimes: frozenset[str]
    """Runtimes it applies to; empty for all."""
    remedy: str | None
    since: str
    profiles: frozenset[str]

    @property
    def family(self) -> str:
        return self.code.rstrip("0123456789")

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    def __call__(self, *args: Fact | None, **kwargs: Fact | None) -> list[Finding]:
        """The findings, without code and name: ``assert my_check(FACTS) == [fail(...)]``."""
        return list(self.function(*args, **kwargs))

    def needs(self) -> tuple[Need, ...]:
        """The facts it asks for, in order. Raises TypeError where an annotation is no fact."""
        return _needs(self.code, self.function)


@cache
def _needs(code: str, function: Callable[..., Iterator[Finding]]) -> tuple[Need, ...]:
    """Evaluating annotations costs more than most checks, and a remedy's plans run the checks many times."""
    hints = typing.get_type_hints(function)
    hints.pop("return", None)
    return tuple(_need(code, parameter, hint) for parameter, hint in hints.items())


def _need(code: str, parameter: str, hint: object) -> Need:
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [kind for kind in members if kind is not type(None) and kind is not Unavailable]
    if len(kinds) != 1 or not (isinstance(kinds[0], type) and issubclass(kinds[0], Fact)):
        raise TypeError(
            f"{code}: parameter {parameter} must be annotated with one fact type, that type | None or | Unavailable"
        )
    return Need(parameter, kinds[0], optional=type(None) in members, reasoned=Unavailable in members)


def check(
    code: str,
    name: str,
    *,
    runtimes: Iterable[str] = (),
    remedy: str | None = None,
    since: str = "0.1.0",
    profiles: Iterable[str] = ("preflight",),
) -> Callable[[Callable[..., Iterator[Finding]]], Check]:
    """Make a generator function a check.

    ``code`` is a family and three digits and never reused; ``name`` states the problem in kebab case. The function's
    annotations are its dependencies: a required fact that is not observed skips the check, ``X | None`` is optional,
    ``X | Unavailable`` hands the check the reason why there is none. Raises ValueError for a malformed code or name.
    """
    if not CODE.fullmatch(code) or not NAME.fullmatch(name):
        raise ValueError(f"check {code} {name}: a code is like GPU001, a name like no-gpu-visible")

    def wrap(function: Callable[..., Iterator[Finding]]) -> Check:
        return Check(code, name, function, frozenset(runtimes), remedy, since, frozenset(profiles))

    return wrap


def checks_in(*modules: types.ModuleType) -> tuple[Check, ...]:
    """The checks defined in the modules, in source order. Raises ValueError for a code given twice."""
    found: dict[str, Check] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Check) and value.function.__module__ == module.__name__:
                if value.code in found:
                    raise ValueError(f"check code {value.code} is given twice, the second time in {module.__name__}")
                found[value.code] = value
    return tuple(found.values())
