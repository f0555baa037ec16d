"""YAML read safely, with the line of every node, so that a finding can point to it."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from llmdoctor_core.errors import InputError

MAX_NODES, MAX_DEPTH = 100_000, 100
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it: a long manifest takes seconds without."""


class Node:
    """A YAML node with its line: indexable like the mapping or sequence it is, falsy where nothing stands."""

    def __init__(self, node: yaml.Node | None) -> None:
        self._node = node
        self.line = node.start_mark.line + 1 if node is not None else 0

    def __bool__(self) -> bool:
        return self._node is not None and not (
            isinstance(self._node, yaml.ScalarNode) and self._node.tag == "tag:yaml.org,2002:null"
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
        pending, merged, known = [self._node], set[int](), set[str]()
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
        if isinstance(self._node, yaml.SequenceNode):
            yield from map(Node, self._node.value)

    @property
    def is_sequence(self) -> bool:
        return isinstance(self._node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self._node, yaml.MappingNode)

    @property
    def text(self) -> str:
        """A scalar as written; empty for anything else."""
        return str(self._node.value) if isinstance(self._node, yaml.ScalarNode) and self else ""

    @property
    def content_line(self) -> int:
        """Line of a block scalar's first content line; the node's own line otherwise."""
        block = isinstance(self._node, yaml.ScalarNode) and self._node.style in ("|", ">")
        return self.line + 1 if block else self.line


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
