"""Who may import whom: the arrows of the house, read from the imports themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "doctor", ROOT / "checks", ROOT / "remedies")
CATALOGUES = {"llmdoctor_checks", "llmdoctor_remedies"}
ALLOWED = {
    "probes": set[str](),
    "facts": set[str](),
    "models": {"facts", "errors"},
    "runtimes": {"facts", "errors", "models"},
    "deploy": {"facts", "errors", "units"},
    "finding": {"facts"},
    "check": {"facts", "finding"},
    "llmdoctor_checks": {"facts", "finding", "check", "units", "runtimes"},
    "llmdoctor_remedies": {"facts", "finding", "remedy", "derive", "units"},
}
SYSTEM = {"subprocess", "socket", "urllib", "http", "psutil", "pynvml", "huggingface_hub", "time", "random", "click"}


def module_of(source: Path, file: Path) -> tuple[str, str]:
    """Dotted name of a file's module, and of the package its relative imports start from."""
    parts = file.relative_to(source).with_suffix("").parts
    if parts[-1] == "__init__":
        return ".".join(parts[:-1]), ".".join(parts[:-1])
    return ".".join(parts), ".".join(parts[:-1])


def imports(source: Path, file: Path) -> Iterator[str]:
    """Every module a file imports, also inside functions, type checking blocks left out."""
    _, package = module_of(source, file)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def room(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] == "llmdoctor_core":
        return parts[1] if len(parts) > 1 and not parts[1].startswith("__") else None
    return parts[0] if parts[0] in CATALOGUES else None


ARROWS = {
    (room(module_of(source, file)[0]), room(name), file)
    for source in SOURCES
    for file in source.rglob("*.py")
    for name in imports(source, file)
}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_room_imports_only_what_stands_below_it(name: str) -> None:
    wrong = {
        (str(file.relative_to(ROOT)), target)
        for source, target, file in ARROWS
        if source == name and target not in {None, name, *ALLOWED[name]}
    }
    assert wrong == set()


def test_the_engine_knows_no_catalogue_but_through_the_door() -> None:
    assert not [file for source, target, file in ARROWS if target in CATALOGUES and source not in CATALOGUES]


def test_nothing_but_the_entry_points_imports_the_command_line() -> None:
    allowed = {"doctor/llmdoctor_core/__main__.py"}
    found = {str(file.relative_to(ROOT)) for source, target, file in ARROWS if target == "cli" and source != "cli"}
    assert found <= allowed


def test_checks_and_arithmetic_touch_no_host_clock_or_network() -> None:
    pure = [ROOT / "doctor/llmdoctor_core/runtimes", ROOT / "doctor/llmdoctor_core/facts", ROOT / "checks"]
    wrong = {
        (str(file.relative_to(ROOT)), name)
        for folder in pure
        for file in folder.rglob("*.py")
        for name in imports(ROOT, file)
        if name.split(".")[0] in SYSTEM
    }
    assert wrong == set()
