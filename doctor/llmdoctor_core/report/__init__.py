"""Reports: one file a format, each a function from examinations (one, or one a host) to text."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from msgspec import Struct

from llmdoctor_core.errors import InputError
from llmdoctor_core.examine import Examination

FORMATS = ("terminal", "json", "junit", "sarif", "github", "markdown", "html")


class View(Struct, frozen=True, kw_only=True):
    """How the reader wants it: language, verbosity, and whether the terminal takes colour and boxes."""

    language: str = "en"
    verbosity: int = 0
    colour: bool = False
    width: int | None = None
    """Columns of the terminal; None on a pipe, where nothing is wrapped."""
    packages: tuple[str, ...] = ()
    """Catalogue packages that hold pages and translations."""
    anchor: str | None = None
    """A file of the repository that a finding without a file of its own points to (SARIF)."""


Renderer = Callable[[Sequence[Examination], View], str]


def renderer(name: str) -> Renderer:
    """The renderer of that format. Raises InputError naming the known ones."""
    if name not in FORMATS:
        raise InputError(f"unknown report format {name!r}; known are {', '.join(FORMATS)}")
    render: Renderer = importlib.import_module(f"{__name__}.{name}").render
    return render
