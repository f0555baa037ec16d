"""Shell scripts as far as they are plain: what they assign and export, and the commands that launch."""

from __future__ import annotations

from msgspec.structs import replace

from llmdoctor_core.facts import Place

from . import shell
from .deployment import MAX_LAUNCHES, Deployment
from .words import deployment_from


def read(text: str, name: str) -> list[Deployment]:
    """Every launch in a script; a variable the script assigns is put in, one it does not stays as written."""
    found: list[Deployment] = []
    for statement in shell.statements(text, 1, {}):
        if len(found) > MAX_LAUNCHES:
            break
        exported = statement.exported
        base = Deployment(argv=(), environment={key: value.text for key, value in exported.items()})
        if launch := deployment_from(statement.words, name, base):
            places = {f"env:{key}": Place(kind="file", name=name, line=value.line) for key, value in exported.items()}
            found.append(replace(launch, places={**places, **launch.places}))
    return found
