"""Annotations (and what else runs at import) that the target interpreter cannot evaluate, found by reading the sources.

Nothing is imported. A line filter over the bytes picks the few files that can hold such a fault; only those are parsed.
What runs at import: decorators, default values, base classes, module and class level expressions, and the annotations
of parameters, results, module and class variables, unless ``from __future__ import annotations`` (PEP 563) or
Python 3.14 (PEP 649) puts them off. Strings, bodies of functions and local variables do not run.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from .host import Fact, table, unavailable
from .target import Target

Version = Tuple[int, ...]
NO_GUARD: "frozenset[str]" = frozenset()
LARGEST_SOURCE = 4 << 20
POSTPONED = b"from __future__ import annotations"
MOST_USES = 100
TRY = (ast.Try, getattr(ast, "TryStar", ast.Try))
CATCHES = {
    "ImportError": {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"},
    "AttributeError": {"AttributeError", "Exception", "BaseException"},
    "TypeError": {"TypeError", "Exception", "BaseException"},
}
TYPE_NAMES = frozenset(
    "int str float bool bytes bytearray complex object range slice memoryview "
    "list dict set frozenset tuple type".split()
)


def version_of(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


class Rules:
    """What the target interpreter cannot do, and the byte patterns that find candidates for it."""

    def __init__(self, target: Version) -> None:
        rows = table("import_annotations.json")
        self.target = target
        self.lazy = target >= version_of(rows["lazy"]["since"])
        self.union_since = rows["union"]["since"]
        self.no_union = target < version_of(self.union_since)
        self.lazy_since = rows["lazy"]["since"]
        self.unsubscriptable = self._newer(rows["subscriptable"])
        self.absent = self._newer(rows["names"])
        self.absent_modules = {name.rpartition(".")[0] for name in self.absent}
        self.evaluators = {row["name"]: row["kind"] for row in rows["evaluators"]}
        self.evaluator_words = {name.partition(".")[0].encode() for name in self.evaluators}
        self.filters = self._filters()
        self.always = [one for one in self.filters if one[0] != b"|"]

    def _newer(self, rows: List[Dict[str, Any]]) -> Dict[str, str]:
        return {name: row["since"] for row in rows if self.target < version_of(row["since"]) for name in row["names"]}

    def _filters(self) -> "List[Tuple[bytes, bytes, re.Pattern[bytes]]]":
        """Two words that must stand in a source and a pattern that must then match: the words are what makes reading
        thousands of files a matter of a second."""
        filters = []
        for name in self.unsubscriptable:
            module, _, word = name.rpartition(".")
            first = "" if module == "builtins" else module.partition(".")[0]
            # subscripted, given another name by an import, or bound to one
            filters.append((word, first, r"{0}(?:\s*\[|\s+as\s|(?<=\.{0})\s*\n)".format(word)))
        for module in sorted(self.absent_modules):
            words = "|".join(name.rpartition(".")[2] for name in self.absent if name.rpartition(".")[0] == module)
            spoken = "from {} import".format(module)
            filters.append(
                (
                    spoken,
                    "",
                    r"{}\s*(?:\([^)]*?\b(?:{words})\b|[^(\n]*?\b(?:{words})\b)".format(re.escape(spoken), words=words),
                )
            )
            filters.append(("import " + module, "", r"\.(?:{})\b".format(words)))
        if not self.lazy:
            types = "|".join(sorted(TYPE_NAMES | {"None"}))
            filters.append(("|", "", r"\|\s*[\"']|\|(?:(?<=[\"'] \|)|(?<=[\"']\|))\s*(?:{})\b".format(types)))
        if self.no_union:
            filters.append(("|", "", r"\|[ \t]*[\w\"'(]"))
        return [(word.encode(), other.encode(), re.compile(pattern.encode())) for word, other, pattern in filters]

    def suspicious(self, source: bytes) -> bool:
        """Whether a source can hold a fault at all."""
        if POSTPONED in source and not any(word in source for word in self.evaluator_words):
            filters = self.always
        else:
            filters = self.filters
        return any(word in source and other in source and pattern.search(source) for word, other, pattern in filters)


class Use(NamedTuple):
    """One fault in one module."""

    line: int
    expression: str
    reason: str
    evaluated_by: str
    postponable: bool


class _FoundError(Exception):
    """Ends the reading of a module at its first fault, as the fault would end its import."""

    def __init__(self, use: Use) -> None:
        super().__init__(use.reason)
        self.use = use


class _Scope:
    """Names of a module or class body and the qualified names they stand for; None for what is not known."""

    def __init__(self, parent: "Optional[_Scope]" = None) -> None:
        self.names: Dict[str, Optional[str]] = {}
        self.parent = parent

    def lookup(self, name: str) -> Optional[str]:
        scope: Optional[_Scope] = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return "builtins." + name if hasattr(builtins, name) else None


def qualified(node: ast.AST, scope: _Scope) -> Optional[str]:
    """``array.array`` for ``a.array`` after ``import array as a``; None where it cannot be told."""
    if isinstance(node, ast.Name):
        return scope.lookup(node.id)
    if isinstance(node, ast.Attribute):
        owner = qualified(node.value, scope)
        return owner + "." + node.attr if owner else None
    return None


class _Reader:
    """Walks what a module runs when it is imported. Raises _FoundError at the first fault."""

    def __init__(self, rules: Rules, tree: ast.Module, text: str) -> None:
        self.rules = rules
        self.text = text
        self.tests: Dict[str, bool] = {}
        future = any(
            isinstance(node, ast.ImportFrom)
            and node.module == "__future__"
            and any(alias.name == "annotations" for alias in node.names)
            for node in tree.body
        )
        self.postponed = future or rules.lazy
        self.block(tree.body, _Scope(), NO_GUARD)

    # statements

    def block(self, body: List[ast.stmt], scope: _Scope, guards: "frozenset[str]") -> None:
        for statement in body:
            self.statement(statement, scope, guards)

    def statement(self, node: ast.stmt, scope: _Scope, guards: "frozenset[str]") -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.function(node, scope, guards)
        elif isinstance(node, ast.ClassDef):
            self.class_(node, scope, guards)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                scope.names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            self.import_from(node, scope, guards)
        elif isinstance(node, ast.AnnAssign):
            where = "class-level annotation" if scope.parent else "module-level annotation"
            self.annotation(node.annotation, scope, guards, where)
            if node.value is not None:
                self.expression(node.value, scope, guards, "assignment")
            self.bind(node.target, node.value, scope)
        elif isinstance(node, ast.Assign):
            self.expression(node.value, scope, guards, "assignment")
            for target in node.targets:
                self.bind(target, node.value, scope)
        elif isinstance(node, ast.If):
            self.condition(node, scope, guards)
        elif isinstance(node, TRY):
            self.try_(node, scope, guards)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            suppressed = NO_GUARD
            for item in node.items:
                self.expression(item.context_expr, scope, guards, "with statement")
                suppressed |= _suppressed(item.context_expr, scope)
            self.block(node.body, scope, guards | suppressed)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self.block(node.body + node.orelse, scope, guards)
        elif isinstance(node, (ast.Expr, ast.AugAssign, ast.Return)) and node.value is not None:
            self.expression(node.value, scope, guards, "expression")

    def try_(self, node: Any, scope: _Scope, guards: "frozenset[str]") -> None:
        self.block(node.body, scope, guards | _caught(node.handlers))
        self.block(node.orelse + node.finalbody, scope, guards)
        for handler in node.handlers:
            self.bind_names(handler.body, scope)

    def function(self, node: Any, scope: _Scope, guards: "frozenset[str]") -> None:
        evaluator = None
        for decorator in node.decorator_list:
            self.expression(decorator, scope, guards, "decorator of " + node.name)
            evaluator = evaluator or self.evaluator(decorator, scope, "decorator")
        arguments = node.args
        for default in arguments.defaults + [one for one in arguments.kw_defaults if one is not None]:
            self.expression(default, scope, guards, "default value of " + node.name)
        every = getattr(arguments, "posonlyargs", []) + arguments.args + arguments.kwonlyargs
        for argument in every + [one for one in (arguments.vararg, arguments.kwarg) if one is not None]:
            if argument.annotation is not None:
                where = "annotation of parameter {} of {}".format(argument.arg, node.name)
                self.annotation(argument.annotation, scope, guards, where, evaluator)
        if node.returns is not None:
            self.annotation(node.returns, scope, guards, "return annotation of " + node.name, evaluator)
        scope.names[node.name] = None

    def class_(self, node: ast.ClassDef, scope: _Scope, guards: "frozenset[str]") -> None:
        evaluator = None
        for decorator in node.decorator_list:
            self.expression(decorator, scope, guards, "decorator of class " + node.name)
            evaluator = evaluator or self.evaluator(decorator, scope, "decorator")
        for base in node.bases + [keyword.value for keyword in node.keywords]:
            self.expression(base, scope, guards, "base class of " + node.name)
            evaluator = evaluator or self.evaluator(base, scope, "base")
        inner = _Scope(scope)
        self.block(node.body, inner, guards)
        if evaluator and self.postponed:
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign):
                    self.annotation(statement.annotation, inner, guards, "field of " + node.name, evaluator)
        scope.names[node.name] = None

    def evaluator(self, node: ast.AST, scope: _Scope, kind: str) -> Optional[str]:
        """The name of a base or decorator that evaluates annotations itself, however they were put off."""
        name = qualified(node.func if isinstance(node, ast.Call) else node, scope)
        return name if name and self.rules.evaluators.get(name) == kind else None

    def import_from(self, node: ast.ImportFrom, scope: _Scope, guards: "frozenset[str]") -> None:
        module = node.module if node.level == 0 else None
        for alias in node.names:
            name = "{}.{}".format(module, alias.name) if module else None
            if name in self.rules.absent:
                self.absent(node, name or "", guards, "ImportError", "import")
                name = None
            scope.names[alias.asname or alias.name] = name

    def condition(self, node: ast.If, scope: _Scope, guards: "frozenset[str]") -> None:
        self.expression(node.test, scope, guards, "condition")
        holds = self.holds(node.test, scope)
        if holds is not False:
            self.block(node.body, scope, guards)
        else:
            self.bind_names(node.body, scope, only_missing=True)
        if holds is not True:
            self.block(node.orelse, scope, guards)

    def holds(self, test: ast.AST, scope: _Scope) -> Optional[bool]:
        """Whether a condition holds on the target: TYPE_CHECKING, a test of sys.version_info; None if unknown."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.holds(test.operand, scope)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            return self.junction(test, scope)
        if isinstance(test, (ast.Name, ast.Attribute)):
            name = qualified(test, scope)
            if name in ("typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING"):
                return False
            if isinstance(test, ast.Name) and test.id in self.tests:
                return self.tests[test.id]
            return False if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING" else None
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self.version_test(test, scope)
        return None

    def junction(self, test: ast.BoolOp, scope: _Scope) -> Optional[bool]:
        sides = [self.holds(value, scope) for value in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in sides:
            return decisive
        return None if None in sides else not decisive

    def version_test(self, test: ast.Compare, scope: _Scope) -> Optional[bool]:
        left = test.left
        have: Any = self.rules.target
        if isinstance(left, ast.Subscript):
            position = getattr(left.slice, "value", left.slice)  # Python 3.8 wraps a plain index
            if isinstance(position, int):
                have = have[position] if position < 2 else None
            elif not isinstance(left.slice, ast.Slice):
                return None
            left = left.value
        elif isinstance(left, ast.Attribute) and left.attr in ("major", "minor"):
            have = have[0 if left.attr == "major" else 1]
            left = left.value
        if qualified(left, scope) != "sys.version_info":
            return None
        try:
            wanted = ast.literal_eval(test.comparators[0])
        except ValueError:
            return None
        if isinstance(wanted, tuple):
            wanted = wanted[:2]
            have = have[: len(wanted)] if isinstance(have, tuple) else have
        return _compare(test.ops[0], have, wanted)

    # expressions

    def annotation(
        self, node: ast.expr, scope: _Scope, guards: "frozenset[str]", where: str, evaluator: Optional[str] = None
    ) -> None:
        if self.postponed and not evaluator:
            return
        by = "{}, evaluated by {}".format(where, evaluator) if self.postponed else where
        self.expression(node, scope, guards, by, annotation=True, postponable=not self.postponed)

    def expression(
        self,
        node: ast.AST,
        scope: _Scope,
        guards: "frozenset[str]",
        by: str,
        annotation: bool = False,
        postponable: bool = False,
    ) -> None:
        """Report the faults of an expression that runs."""
        if isinstance(node, (ast.Lambda, ast.GeneratorExp)):
            return
        if isinstance(node, ast.Subscript):
            name = qualified(node.value, scope)
            if name in self.rules.unsubscriptable:
                why = "{} is not subscriptable before Python {}".format(_spoken(name), self.rules.unsubscriptable[name])
                self.report(node, why, by, postponable, guards, "TypeError")
        elif isinstance(node, ast.Attribute):
            name = qualified(node, scope)
            if name in self.rules.absent:
                self.absent(node, name, guards, "AttributeError", by, postponable)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            why_not = self.union(node, scope, annotation)
            if why_not:
                self.report(node, why_not, by, postponable, guards, "TypeError")
                return
        for child in ast.iter_child_nodes(node):
            self.expression(child, scope, guards, by, annotation, postponable)

    def union(self, node: ast.BinOp, scope: _Scope, annotation: bool) -> Optional[str]:
        sides = (node.left, node.right)
        typed = [_is_type(side, scope) for side in sides]
        text = [isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides]
        if any(text) and any(typed) and not self.rules.lazy:
            return "a string is no operand of | before Python {}".format(self.rules.lazy_since)
        if self.rules.no_union and (annotation or any(typed)):
            return "types cannot be joined by | before Python {}".format(self.rules.union_since)
        return None

    def absent(
        self, node: ast.AST, name: str, guards: "frozenset[str]", error: str, by: str, postponable: bool = False
    ) -> None:
        why = "{} does not exist before Python {}".format(name, self.rules.absent[name])
        self.report(node, why, by, postponable, guards, error)

    def report(self, node: Any, reason: str, by: str, postponable: bool, guards: "frozenset[str]", error: str) -> None:
        if guards & CATCHES[error] or "" in guards:
            return
        expression = ast.get_source_segment(self.text, node) or ""
        raise _FoundError(Use(node.lineno, " ".join(expression.split())[:200], reason, by, postponable))

    # names

    def bind(self, target: ast.AST, value: Optional[ast.AST], scope: _Scope) -> None:
        if isinstance(target, ast.Name):
            scope.names[target.id] = qualified(value, scope) if isinstance(value, (ast.Name, ast.Attribute)) else None
            holds = self.holds(value, scope) if isinstance(value, (ast.Compare, ast.UnaryOp)) else None
            if holds is not None:
                self.tests[target.id] = holds
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self.bind(element, None, scope)

    def bind_names(self, body: List[ast.stmt], scope: _Scope, only_missing: bool = False) -> None:
        """Names that a branch which does not run (or runs only after a failure) would bind: no longer known."""
        for statement in body:
            for name in _bound(statement):
                if not only_missing or name not in scope.names:
                    scope.names[name] = None


def _spoken(name: str) -> str:
    return name[len("builtins.") :] if name.startswith("builtins.") else name


def _is_type(node: ast.AST, scope: _Scope) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.Subscript):
        node = node.value
    name = qualified(node, scope)
    return bool(name and name.startswith("builtins.") and name.partition(".")[2] in TYPE_NAMES)


def _caught(handlers: List[ast.ExceptHandler]) -> "frozenset[str]":
    """Names of the exceptions that handlers catch; the empty name for a bare ``except``."""
    names: Set[str] = set()
    for handler in handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        for kind in kinds:
            names.add("" if kind is None else getattr(kind, "id", getattr(kind, "attr", "?")))
    return frozenset(names)


def _suppressed(node: ast.AST, scope: _Scope) -> "frozenset[str]":
    if isinstance(node, ast.Call) and qualified(node.func, scope) == "contextlib.suppress":
        return frozenset(getattr(kind, "id", getattr(kind, "attr", "?")) for kind in node.args)
    return NO_GUARD


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id
    elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name


def _compare(operator: ast.cmpop, have: Any, wanted: Any) -> Optional[bool]:
    operations: "Dict[type, Callable[[Any, Any], bool]]" = {
        ast.GtE: lambda a, b: a >= b,
        ast.Gt: lambda a, b: a > b,
        ast.LtE: lambda a, b: a <= b,
        ast.Lt: lambda a, b: a < b,
        ast.Eq: lambda a, b: a == b,
        ast.NotEq: lambda a, b: a != b,
    }
    operation = operations.get(type(operator))
    if operation is None or not isinstance(wanted, type(have)):
        return None
    if isinstance(operator, ast.Gt) and isinstance(have, tuple):
        return bool(have >= wanted)  # (3, 11, 4, ...) > (3, 11)
    if isinstance(operator, ast.LtE) and isinstance(have, tuple):
        return bool(have < wanted)
    return operation(have, wanted)


def scan(source: bytes, rules: Rules) -> Optional[Use]:
    """The first fault of one module, or None. Raises SyntaxError or ValueError where it cannot be parsed."""
    text = source.decode("utf-8", "replace")
    try:
        _Reader(rules, ast.parse(text), text)
    except _FoundError as found:
        return found.use
    return None


def probe(target: Target, deadline: float) -> Fact:
    """Read the sources of the server's distributions. Stops at ``deadline`` (time.monotonic) and says what is left."""
    if not target.known:
        return unavailable("there is no target environment whose sources could be read", permanent=True)
    environment = target.fact
    rules = Rules(tuple(environment["version"][:2]))
    rows = table("import_annotations.json")
    uses: List[Fact] = []
    scanned, unread = [], {}  # type: List[str], Dict[str, str]
    for row in rows["distributions"]:
        distribution = environment["distributions"].get(row["name"])
        if distribution is None:
            continue
        label = "{} {}".format(distribution["name"], distribution["version"])
        for path in sources(distribution["location"], row["packages"], row["skip"], set(rows["skipped_folders"])):
            if time.monotonic() > deadline:
                unread[label] = "the time limit was reached before all of its sources were read"
                break
            if len(uses) >= MOST_USES:
                unread[label] = "{} of its modules or more fail: the rest was not read".format(MOST_USES)
                break
            use = _file(path, rules, distribution["name"], unread)
            uses += [use] if use else []
        else:
            scanned.append(label)
    python = "{} {}".format(environment["implementation"], ".".join(str(part) for part in environment["version"]))
    return {"fact": "importannotations", "uses": uses, "scanned": scanned, "python": python, "unread": unread}


def sources(location: str, packages: List[str], skip: List[str], skipped: Set[str]) -> Iterator[str]:
    """Python files of packages, without the folders that no server imports."""
    left_out = {os.path.join(location, folder) for folder in skip}
    for package in packages:
        for folder, folders, files in os.walk(os.path.join(location, package)):
            folders[:] = [
                name for name in sorted(folders) if name not in skipped and os.path.join(folder, name) not in left_out
            ]
            for name in sorted(files):
                if name.endswith(".py"):
                    yield os.path.join(folder, name)


def _file(path: str, rules: Rules, distribution: str, unread: Dict[str, str]) -> Optional[Fact]:
    try:
        with open(path, "rb") as file:
            source = file.read(LARGEST_SOURCE)
        found = scan(source, rules) if rules.suspicious(source) else None
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        unread[path] = "{}: {}".format(type(error).__name__, error)
        return None
    if found is None:
        return None
    return dict(found._asdict(), path=path, distribution=distribution, imported_by=imported_by(path))


def imported_by(path: str) -> Optional[str]:
    """``FILE:LINE`` of the first module beside or above that imports this one: the way it is reached at start."""
    name = os.path.basename(path)[: -len(".py")]
    folder = os.path.dirname(path)
    if name == "__init__":
        name, folder = os.path.basename(folder), os.path.dirname(folder)
    pattern = re.compile(
        r"^[ \t]*(?:from\s+\S*\.{0}\s+import|from\s+\.+\s*import\s+[^\n]*\b{0}\b|import\s+\S*\.{0}\b)".format(
            re.escape(name)
        ),
        re.MULTILINE,
    )
    for place in (folder, os.path.dirname(folder)):
        for other in sorted(os.listdir(place)):
            candidate = os.path.join(place, other)
            if not other.endswith(".py") or candidate == path:
                continue
            try:
                with open(candidate, encoding="utf-8", errors="replace") as file:
                    text = file.read(LARGEST_SOURCE)
            except OSError:
                continue
            match = pattern.search(text)
            if match:
                return "{}:{}".format(candidate, text.count("\n", 0, match.start()) + 1)
    return None
