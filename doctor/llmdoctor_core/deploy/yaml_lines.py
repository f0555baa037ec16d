"""YAML read safely, with the line of every node, so that a finding can point to it."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from llmdoctor_core.errors import InputError

MAX_NODES, MAX_DEPTH = 100_000, 100
MAPPING = "tag:yaml.org,2002:map"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it: a long manifest takes seconds without."""


class Node:
    """A YAML node with its line: indexable like the mapping or sequence it is, falsy where nothing stands."""

    def __init__(self, node: yaml.Node | None) -> None:
        self.node = node
        self.line = node.start_mark.line + 1 if node is not None else 0

    def __bool__(self) -> bool:
        return self.node is not None and not (
            isinstance(self.node, yaml.ScalarNode) and self.node.tag == "tag:yaml.org,2002:null"
        )

    def __getitem__(self, key: str) -> Node:
        """The value under a key; an empty node where there is none."""
        return next((value for name, value in self.items() if name.text == key), Node(None))

    def at(self, *keys: str) -> Node:
        """The value under a path of keys."""
        node = self
        for key in keys:
            node = node[key]
        return node

    def items(self) -> Iterator[tuple[Node, Node]]:
        """Keys and values, merged ones behind its own and not where it has its own; each mapping is merged once."""
        pending, merged, known = [self.node], set[int](), set[str]()
        while pending:
            node = pending.pop(0)
            if not isinstance(node, yaml.MappingNode) or id(node) in merged:
                continue
            merged.add(id(node))
            parts: list[yaml.Node] = []
            for key, value in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    parts += value.value if isinstance(value, yaml.SequenceNode) else [value]
                elif Node(key).text not in known:
                    known.add(Node(key).text)
                    yield Node(key), Node(value)
            pending = [*parts, *pending]

    def __iter__(self) -> Iterator[Node]:
        if isinstance(self.node, yaml.SequenceNode):
            yield from map(Node, self.node.value)

    @property
    def is_sequence(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def text(self) -> str:
        """A scalar as written; empty for anything else."""
        return str(self.node.value) if isinstance(self.node, yaml.ScalarNode) and self else ""

    @property
    def content_line(self) -> int:
        """Line of a block scalar's first content line; the node's own line otherwise."""
        block = isinstance(self.node, yaml.ScalarNode) and self.node.style in ("|", ">")
        return self.line + 1 if block else self.line


def merged(nodes: list[Node]) -> Node:
    """One mapping of several: the keys of the first, then what the others add; mappings under one key are merged too.

    A sequence of the first stands in place of the others'.
    """
    first = nodes[0].node
    if first is None or len(nodes) == 1 or not all(node.is_mapping for node in nodes):
        return nodes[0]
    parts: dict[str, tuple[Node, list[Node]]] = {}
    for node in nodes:
        for key, value in node.items():
            parts.setdefault(key.text, (key, []))[1].append(value)
    pairs = [(key.node, merged(values).node) for key, values in parts.values()]
    return Node(yaml.MappingNode(MAPPING, pairs, first.start_mark, first.end_mark))


def documents(text: str, name: str) -> list[Node]:
    """The documents of a YAML stream. Raises InputError naming the file and line for what is no YAML."""
    try:
        _bounded(text, name)
        nodes = list(yaml.compose_all(text, Loader=LOADER))
    except yaml.YAMLError as error:
        raise InputError(f"{name} is no YAML: {' '.join(str(error).split())[:400]}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{name} is no YAML: {error}") from None
    return [Node(node) for node in nodes if node is not None]


def _bounded(text: str, name: str) -> None:
    """Raises InputError for a stream that would take long or nest deeply, before it is composed."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=LOADER)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise InputError(f"{name}: nested more than {MAX_DEPTH} levels deep")
        if count > MAX_NODES:
            raise InputError(f"{name}: more than {MAX_NODES:,} nodes are no deployment file")
