"""All remedies, by the door that plug-ins use too."""

from __future__ import annotations

from types import ModuleType

from llmdoctor_core.remedy import Remedy

from . import arguments, host, memory


def _in(*modules: ModuleType) -> tuple[Remedy, ...]:
    return tuple(value for module in modules for value in vars(module).values() if isinstance(value, Remedy))


REMEDIES = _in(arguments, memory, host)
