"""Shell scripts as far as they are plain: exported variables, simple assignments, and the commands that launch."""

from __future__ import annotations

import re

from msgspec.structs import replace

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Place

from .deployment import MAX_LAUNCHES, Deployment
from .words import deployment_from, split

EXPORT = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\S*)\s*(?:#.*)?")
MAX_FILLED = 1 << 17
"""Characters that variables put into one statement; Linux takes no longer word (MAX_ARG_STRLEN)."""
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")


def read(text: str, name: str) -> list[Deployment]:
    """Every launch in a script; a variable the script assigns is put in, one it does not stays as written."""
    variables: dict[str, str] = {}
    exported: dict[str, int] = {}
    found: list[Deployment] = []
    for number, statement in _statements(text):
        if len(found) > MAX_LAUNCHES:
            break
        if assignment := EXPORT.fullmatch(statement):
            variables[assignment[1]] = _filled(assignment[2].strip("\"'"), variables)
            if statement.lstrip().startswith("export"):
                exported[assignment[1]] = number
            continue
        base = Deployment(argv=(), environment={key: variables[key] for key in exported})
        try:
            launch = deployment_from(split(_filled(statement, variables), number), name, base)
        except InputError:
            continue  # a line of shell that is no plain command, such as one half of a here-document
        if launch:
            places = {f"env:{key}": Place(kind="file", name=name, line=line) for key, line in exported.items()}
            found.append(replace(launch, places={**places, **launch.places}))
    return found


def _statements(text: str) -> list[tuple[int, str]]:
    """Line number and text of each statement; continuation lines stay inside, so that words keep their lines."""
    statements: list[tuple[int, list[str]]] = []
    continued = False
    for number, line in enumerate(text.splitlines(), 1):
        if continued:
            statements[-1][1].append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            statements.append((number, [line]))
        else:
            continue
        continued = line.endswith("\\")
    return [(number, "\n".join(lines)) for number, lines in statements]


def _filled(text: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else match[0])

    if sum(len(value(match)) for match in VARIABLE.finditer(text)) > MAX_FILLED:
        return text  # variables that double each other are no launch: left as written
    return VARIABLE.sub(value, text)
