"""Typed reading of config.json: every value is checked, every absent key is filled in as transformers does."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InputError
from .tables import table

MOST = 1 << 24
"""No width, head count or expert count of a model comes near; what is larger is an absurd file, not a large model."""
MOST_LAYERS = 4096
MOST_TOKENS = 1 << 40
MOST_VOCABULARY = 1 << 28


def absent_values() -> dict[str, dict[str, Any]]:
    """What transformers fills in per model_type when a key is absent (data/absent.json)."""
    rows: dict[str, dict[str, Any]] = table("absent")["absent"]
    return rows


def shown(value: Any) -> str:
    """A value as an error message shows it: short, whatever it is."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


class Keys:
    """One JSON object of a configuration, read key by key.

    ``where`` names it in errors ("config.json of org/name"). ``absent`` is what the model type fills in; what was
    taken from there is remembered in ``filled``. Keys in ``unknown`` are not recorded (a catalogue row that keeps only
    part of a config.json) and are never filled in.
    """

    def __init__(
        self,
        values: Any,
        where: str,
        absent: Mapping[str, Any] | None = None,
        filled: dict[str, Any] | None = None,
        unknown: frozenset[str] = frozenset(),
    ) -> None:
        if not isinstance(values, Mapping):
            raise InputError(f"{where} is {shown(values)}, not a JSON object")
        self.values = values
        self.where = where
        self.absent = {} if absent is None else absent
        self.filled: dict[str, Any] = {} if filled is None else filled
        self.unknown = unknown

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def wrong(self, key: str, value: Any, needed: str) -> InputError:
        return InputError(f"{self.where}: {key} is {shown(value)}; it must be {needed}")

    def present(self, *names: str) -> str | None:
        """The first of these keys that has a value (null counts as absent)."""
        return next((name for name in names if self.values.get(name) is not None), None)

    def null(self, *names: str) -> bool:
        """Whether one of the keys is there as null and none has a value: for some keys that means none at all."""
        return self.present(*names) is None and any(name in self.values for name in names)

    def raw(self, *names: str) -> tuple[str, Any]:
        """The first name that has a value, else the first that the model type fills in, else the first with None."""
        name = self.present(*names)
        if name is not None:
            return name, self.values[name]
        for name in names:
            if name in self.absent and name not in self.unknown and not self.unknown.intersection(names):
                self.filled[name] = self.absent[name]
                return name, self.absent[name]
        return names[0], None

    def count(self, *names: str, least: int = 0, most: int = MOST) -> int | None:
        """A whole number, None where it is absent. Raises InputError for any other type or an absurd size."""
        name, value = self.raw(*names)
        return None if value is None else self._whole(name, value, least, most)

    def own_count(self, *names: str, least: int = 0, most: int = MOST) -> int | None:
        """Like ``count``, without what the model type fills in."""
        name = self.present(*names)
        return None if name is None else self._whole(name, self.values[name], least, most)

    def need(self, *names: str, least: int = 1, most: int = MOST) -> int:
        """Like ``count``, but absence is an error."""
        found = self.count(*names, least=least, most=most)
        if found is None:
            raise InputError(f"{self.where} has no {names[0]}, and its model_type gives no default for it")
        return found

    def _whole(self, name: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, value, f"a whole number from {least} to {most:,}")
        if isinstance(value, float) and not (math.isfinite(value) and value.is_integer()):
            raise self.wrong(name, value, f"a whole number from {least} to {most:,}")
        if not least <= value <= most:
            raise self.wrong(name, value, f"a whole number from {least} to {most:,}")
        return int(value)

    def number(self, *names: str) -> float | None:
        """A finite number, None where it is absent."""
        name, value = self.raw(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.wrong(name, value, "a finite number")
        return number

    def flag(self, name: str) -> bool | None:
        name, value = self.raw(name)
        if value is None or isinstance(value, bool):
            return value
        if value in (0, 1):
            return bool(value)
        raise self.wrong(name, value, "true or false")

    def text(self, *names: str) -> str | None:
        name, value = self.raw(*names)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(name, value, "a text")

    def sequence(self, name: str, most: int = MOST_LAYERS) -> list[Any] | None:
        name, value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.wrong(name, value, "a list")
        if len(value) > most:
            raise InputError(f"{self.where}: {name} has {len(value):,} entries; no model has more than {most:,}")
        return list(value)

    def counts(self, name: str, most: int = MOST, entries: int = MOST_LAYERS) -> list[int] | None:
        """A list of whole numbers, None where the key is absent."""
        found = self.sequence(name, entries)
        if found is None:
            return None
        return [self._whole(f"{name}[{i}]", value, 0, most) for i, value in enumerate(found)]

    def below(self, name: str) -> Keys | None:
        """The JSON object under ``name``, None where it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "a JSON object")
        return Keys(value, f"{self.where}, {name}")

    def objects(self, name: str) -> Iterator[Keys]:
        """The JSON objects of a list."""
        for i, value in enumerate(self.sequence(name) or ()):
            yield Keys(value, f"{self.where}, {name}[{i}]")
