#!/usr/bin/env python3
"""Extract from vLLM's sources what each release knows by name: parsers, quantization methods, pipeline parallelism.

    tools/extract_vllm_names.py FOLDER...

Each folder holds an unpacked ``vllm/`` and is called by the release (``0.33.0``). The tables
``checks/llmdoctor_checks/data/{vllm-names,vllm-pipeline}.toml`` are made anew from all of them; nothing of vLLM is
imported. A name's row says the first and last release seen with it and the neighbours seen without.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from packaging.version import Version

DATA = Path(__file__).parent.parent / "checks/llmdoctor_checks/data"
TOOL_PARSERS = ("tool_parsers", "entrypoints/openai/tool_parsers")
PIPELINE = "SupportsPP"


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def texts(node: ast.AST) -> Iterator[str]:
    """String constants of a literal, in order."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def registered(folder: Path) -> set[str]:
    """Names of parsers: keys of the lazy registries, and arguments of ``@...Manager.register_module``."""
    names: set[str] = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(one, ast.Name) and one.id.endswith("PARSERS_TO_REGISTER") for one in targets):
                    names |= {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
            if not isinstance(node, ast.ClassDef):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and "register_module" in ast.unparse(call.func):
                    names |= {text for argument in call.args for text in texts(argument)}
                    names |= {text for keyword in call.keywords for text in texts(keyword.value)}
    return names


def quantizations(vllm: Path) -> set[str]:
    for node in parsed(vllm / "model_executor/layers/quantization/__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "QuantizationMethods":
            return set(texts(node.value))
    return set()


def named(vllm: Path) -> dict[str, set[str]]:
    """What the release knows, by kind."""
    parsers = next(vllm / name for name in TOOL_PARSERS if (vllm / name).is_dir())
    return {
        "tool_call_parser": registered(parsers),
        "reasoning_parser": registered(vllm / "reasoning"),
        "quantization": quantizations(vllm),
    }


def architectures(vllm: Path) -> dict[str, bool]:
    """Each architecture of the registry, and whether its class derives from SupportsPP."""
    folder = vllm / "model_executor/models"
    places: dict[str, tuple[str, str]] = {}
    for node in parsed(folder / "registry.py").body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if not isinstance(value, ast.Dict):
            continue
        for key, place in zip(value.keys, value.values, strict=True):
            words = list(texts(place)) if isinstance(place, ast.Tuple) else []
            if isinstance(key, ast.Constant) and len(words) == 2:
                places[key.value] = (words[0], words[1])
    bases: dict[str, set[str]] = defaultdict(set)
    for path in (*folder.rglob("*.py"), *(vllm / "models").rglob("*.py")):
        if path == folder / "config.py":  # classes there bear the names of the architectures they set up
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                bases[node.name] |= {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    return {name: derives(place[1], bases) for name, place in places.items() if place[1] in bases}


def derives(name: str, bases: dict[str, set[str]]) -> bool:
    """Whether the class has SupportsPP among its bases; a base made by a call has it, as far as is known."""
    seen, left = set(), [name]
    while left:
        one = left.pop()
        if one == PIPELINE or one.endswith(")") or (one.startswith("_") and one not in bases):
            return True
        if one not in seen:
            seen.add(one)
            left += bases.get(one, ())
    return False


def spans(has: list[bool], releases: list[str]) -> Iterator[dict[str, str]]:
    """Stretches of releases that have it: first and last, and the neighbours without."""
    start = None
    for index, present in enumerate([*has, False]):
        if present and start is None:
            start = index
        if not present and start is not None:
            span = {}
            if start:
                span |= {"since": releases[start], "absent_in": releases[start - 1]}
            if index < len(releases):
                span |= {"last": releases[index - 1], "gone_in": releases[index]}
            yield span
            start = None


def written(name: str, title: str, rows: list[dict[str, object]], source: str) -> None:
    lines = [f'title = "{title}"', f'date = "{date.today().isoformat()}"', ""]
    for row in rows:
        lines += ["[[row]]", *(f"{key} = {shown(value)}" for key, value in row.items()), f'source = "{source}"', ""]
    (DATA / f"{name}.toml").write_text("\n".join(lines), encoding="utf-8")


def shown(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(f'"{one}"' for one in value) + "]"
    return f'"{value}"'


def grouped(found: dict[str, list[bool]], releases: list[str]) -> dict[tuple[tuple[str, str], ...], list[str]]:
    groups: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for name, has in sorted(found.items()):
        for span in spans(has, releases):
            groups[tuple(span.items())].append(name)
    return groups


def gained(name: str, span: dict[str, str], classes: list[dict[str, bool]], releases: list[str]) -> bool:
    """Whether the stretch ends because the class takes part in pipelines, not because it left the registry."""
    return "gone_in" in span and name in classes[releases.index(span["gone_in"])]


def kept(
    span: tuple[tuple[str, str], ...], names: list[str], classes: list[dict[str, bool]], releases: list[str]
) -> dict[str, str]:
    given = dict(span)
    if not gained(names[0], given, classes, releases):
        given.pop("gone_in", None)
    return given


def main() -> None:
    folders = sorted(map(Path, sys.argv[1:]), key=lambda folder: Version(folder.name))
    releases = [folder.name for folder in folders]
    known = [named(folder / "vllm") for folder in folders]
    classes = [architectures(folder / "vllm") for folder in folders]
    range_ = f"{len(releases)} releases, {releases[0]} to {releases[-1]}"
    rows: list[dict[str, object]] = []
    for kind in known[0]:
        found = {name: [name in one[kind] for one in known] for name in set().union(*(one[kind] for one in known))}
        rows += [{"kind": kind, **dict(span), "names": names} for span, names in grouped(found, releases).items()]
    written(
        "vllm-names",
        f"vLLM: parsers and quantization methods by release ({range_})",
        rows,
        "vllm tool_parsers, reasoning and layers/quantization/__init__.py of the sources",
    )
    lacking = {
        name: [one.get(name) is False for one in classes]
        for name in set().union(*classes)
        if any(one.get(name) is False for one in classes)
    }
    pipeline = [
        (span, [name for name in names if gained(name, dict(span), classes, releases) is given])
        for span, names in grouped(lacking, releases).items()
        for given in (True, False)
    ]
    pipeline = [(span, names) for span, names in pipeline if names]
    written(
        "vllm-pipeline",
        f"vLLM: architectures without pipeline parallelism, and the releases that refuse it ({range_})",
        [{**kept(span, names, classes, releases), "architectures": names} for span, names in pipeline],
        "vllm model_executor/models and models: classes of the registry that do not derive from SupportsPP",
    )


if __name__ == "__main__":
    main()
