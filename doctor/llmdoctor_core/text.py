"""Messages in the reader's language: the English template is the key, the catalogue packages hold the translations."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from .finding import Finding

if TYPE_CHECKING:
    from importlib.abc import Traversable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LANGUAGES = ("en", "ko")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    """Without control characters and lone surrogates, which break terminals and XML alike."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


@lru_cache(maxsize=8)
def templates(language: str, packages: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Translations by code, then by English template."""
    merged: dict[str, dict[str, str]] = {}
    for package in packages:
        file = resources.files(package) / "text" / f"{language}.toml"
        if file.is_file():
            merged |= tomllib.loads(file.read_text(encoding="utf-8"))
    return merged


def localized(finding: Finding, language: str, packages: tuple[str, ...]) -> str:
    """The finding's message in the language; English where no translation stands."""
    if language != "en":
        template = templates(language, packages).get(finding.code, {}).get(finding.message_id)
        if template is not None:
            return clean(template.format_map(finding.params))
    return clean(finding.message)


def page(code: str, language: str, packages: tuple[str, ...]) -> str | None:
    """The page of a condition, in the language or else in English; None where there is none."""
    for wanted in dict.fromkeys((language, "en")):
        for package in packages:
            file = resources.files(package) / "explain" / wanted / f"{code}.md"
            if file.is_file():
                return file.read_text(encoding="utf-8")
    return None


@lru_cache(maxsize=8)
def conditions(packages: tuple[str, ...]) -> dict[str, str]:
    """Code to name of every condition that has a page, in code order; the page's first line is the registry."""
    named: dict[str, str] = {}
    for package in packages:
        folder = resources.files(package) / "explain" / "en"
        if folder.is_dir():
            named |= dict(filter(None, map(_heading, folder.iterdir())))
    return dict(sorted(named.items()))


def _heading(file: Traversable) -> tuple[str, str] | None:
    if not file.name.endswith(".md"):
        return None
    with file.open(encoding="utf-8") as lines:
        code, _, name = lines.readline().removeprefix("# ").strip().partition(" ")
    return code, name


def pick_language(given: str | None, environment: dict[str, str]) -> str:
    """``--lang``, then LLMDOCTOR_LANG, then the locale; English where none says Korean."""
    for value in (given, environment.get("LLMDOCTOR_LANG")):
        if value:
            return value if value in LANGUAGES else "en"
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if value := environment.get(variable):
            return "ko" if value.lower().startswith("ko") else "en"
    return "en"
