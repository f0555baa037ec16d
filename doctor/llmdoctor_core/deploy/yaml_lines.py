"""YAML read safely, with the line of every node, so that a finding can point to it."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from llmdoctor_core.errors import InputError

MAX_NODES = 200_000


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
        if isinstance(self._node, yaml.MappingNode):
            for key, value in self._node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
                    for part in merged:
                        yield from Node(part).items()
                else:
                    yield Node(key), Node(value)

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
        if sum(1 for _ in yaml.parse(text, Loader=yaml.SafeLoader)) > MAX_NODES:
            raise InputError(f"{name}: more than {MAX_NODES:,} nodes are no deployment file")
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise InputError(f"{name} is no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError(f"{name}: nested too deeply") from None
    return [Node(node) for node in nodes if node is not None]
