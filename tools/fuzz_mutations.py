"""Mutations that keep an input's format while making its content hostile: JSON, GGUF, safetensors, lines of text."""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 8, 16, 64, 127, 128, 255, 256, 4095, 4096, 65535, 65536, (1 << 31) - 1, 1 << 31, 1 << 32,
    (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 31), -(1 << 63), 10**40, 10**400,
    0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-300, 1e300, 5e-324, float("nan"), float("inf"), -float("inf"),
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "\ud800", "\udfff x", "{", "{0}", "{a.b}", "%s", "[bold]", "[/x]", "\x1b[31m", "<b>", "]]>", "auto",
    "None", "null", "true", "-1", "0", "1e400", "nan", "inf", "0x10", "1_000", "١٢", "²", "9" * 5000, "x" * 70_000,
    "a/b", "../..", "/dev/null", "0.0.0", "1.2.3.4.5", "99999999999.0", "v", "b", "1!2.0", "2.0.dev0+cu999.x", "12.",
    "fp8", "bfloat16", "float99", "Q4_K_M", "*", "re:(", "(a+)+$", "한글", "\u202e", "\u2028", "\ufeff", "8G", "1e3GiB",
)  # fmt: skip
SPLICED = ("\0", "\r", "\t", "\x1b[0m", "=", ",", ";", ":", "'", '"', "\\", "$", "${", "$(", "`", "|", "&&", "#", "{{")


class Pairs(list[Any]):
    """A JSON object as its pairs, so that a key can be there twice."""


class Bare(str):
    """A number that no Python value writes: put into JSON as it stands."""


BARE = tuple(map(Bare, ("NaN", "Infinity", "-Infinity", "-0", "-0.0", "1e999", "1E+2", "1" * 400, "01", "1.")))


def json_text(value: Any) -> str:
    """JSON of a parsed document, duplicate keys and half surrogates included."""
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(str(key))}:{json_text(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return str(value) if isinstance(value, Bare) else json.dumps(value)


def nested(value: Any, depth: int, brackets: bool) -> Bare:
    """The value under that many arrays or objects."""
    opening, closing = ("[", "]") if brackets else ('{"a":', "}")
    return Bare(opening * depth + json_text(value) + closing * depth)


class Vocabulary:
    """Keys with the values that seeds have under them, and lines and words, to mutate with."""

    def __init__(self, seeds: Iterable[bytes], words: Iterable[str] = ()) -> None:
        self.keys: dict[str, list[Any]] = {}
        self.lines: list[str] = []
        self.words: list[str] = sorted(set(words))
        for seed in seeds:
            for part in re.split(rb"^--- .*\n", seed, flags=re.MULTILINE):
                document = parsed(part)
                if document is not None:
                    self._learn(document)
            text = seed.decode("utf-8", "replace")
            self.lines += [line for line in text.splitlines() if len(line) < 600]
        self.lines = sorted(set(self.lines))
        self.words = sorted({*self.words, *(word for line in self.lines for word in line.split() if len(word) < 60)})

    def _learn(self, value: Any) -> None:
        for key, item in value if isinstance(value, Pairs) else ():
            known = self.keys.setdefault(key, [])
            if len(known) < 40 and item not in known:
                known.append(item)
        for item in [item for _, item in value] if isinstance(value, Pairs) else value:
            if isinstance(item, list):
                self._learn(item)


def parsed(data: bytes) -> Any:
    """The JSON document of the bytes, objects as pairs; None where it is none."""
    if data[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(data, object_pairs_hook=Pairs)
    except (ValueError, RecursionError):
        return None


def containers(value: Any, found: list[Any] | None = None) -> list[Any]:
    """Every array and object of a document."""
    found = [] if found is None else found
    if isinstance(value, list) and len(found) < 5000:
        found.append(value)
        for item in value:
            containers(item[1] if isinstance(value, Pairs) else item, found)
    return found


def leaf(old: Any, known: Sequence[Any], random: Random) -> Any:
    """Another value in the place of ``old``: mostly of its type, that it gets past the first look."""
    roll = random.random()
    if known and roll < 0.3:
        return random.choice(known)
    if roll < 0.35:
        return random.choice(BARE)
    if roll < 0.45:
        return random.choice((None, True, False, [], Pairs(), "", 0, 1.5, [None], Pairs([("a", None)])))
    if isinstance(old, bool):
        return not old
    if isinstance(old, int | float):
        near = (old + 1, old - 1, old * 2, old // 2, -old) if isinstance(old, int) else (old / 2, old * 1e9, -old)
        return random.choice((*near, *NUMBERS))
    if isinstance(old, str):
        at = random.randint(0, len(old))
        return random.choice((old[:at], old[at:], old + random.choice(SPLICED), old * 2, *TEXTS))
    return random.choice((*NUMBERS, *TEXTS))


def json_mutation(vocabulary: Vocabulary) -> Mutation:
    """One change somewhere in a JSON document."""
    names = sorted(vocabulary.keys)

    def mutate(data: bytes, random: Random) -> bytes:
        document = parsed(data)
        if document is None:
            return data
        place = random.choice(containers(document))
        is_object = isinstance(place, Pairs)
        at = random.randrange(len(place)) if place else None
        action = random.random()
        if (at is None or action < 0.2) and names and is_object:
            key = random.choice(names)
            place.insert(random.randint(0, len(place)), (key, leaf(None, vocabulary.keys[key], random)))
        elif at is None:
            place.append(random.choice((*NUMBERS, *TEXTS)))
        elif action < 0.28:
            del place[at]
        elif action < 0.33:
            place.insert(random.randint(0, len(place)), place[at])
        elif action < 0.36:
            value = place[at][1] if is_object else place[at]
            deep = nested(value, random.choice((1, 2, 63, 64, 200, 1500)), random.random() < 0.5)
            place[at] = (place[at][0], deep) if is_object else deep
        elif action < 0.38 and not is_object:
            place *= random.choice((2, 8, 200)) if len(place) < 200 else 2
        elif action < 0.42 and is_object:
            place[at] = (random.choice((*names, *TEXTS)), place[at][1])
        elif is_object:
            key, old = place[at]
            place[at] = (key, leaf(old, vocabulary.keys.get(key, ()), random))
        else:
            place[at] = leaf(place[at], place, random)
        try:
            return json_text(document).encode("utf-8", "surrogatepass")
        except (RecursionError, ValueError):
            return data

    return mutate


def lines_mutation(vocabulary: Vocabulary) -> Mutation:
    """One change to the lines, words or numbers of a text."""

    def mutate(data: bytes, random: Random) -> bytes:
        lines = data.decode("utf-8", "surrogateescape").split("\n")
        at = random.randrange(len(lines))
        action = random.random()
        known, words = vocabulary.lines or [""], vocabulary.words or [""]
        if action < 0.22:
            lines.insert(at, random.choice(known))
        elif action < 0.3:
            del lines[at]
        elif action < 0.36:
            lines.insert(random.randint(0, len(lines)), lines[at])
        elif action < 0.4:
            lines[at] = random.choice(known)
        elif action < 0.58:
            numbers = list(re.finditer(r"-?\d+(?:\.\d+)?", lines[at]))
            if numbers:
                found = random.choice(numbers)
                new = str(random.choice(NUMBERS))
                lines[at] = lines[at][: found.start()] + new + lines[at][found.end() :]
        elif action < 0.7:
            parts = re.split(r"(\s+)", lines[at])
            parts[random.randrange(len(parts))] = random.choice((*words, *TEXTS))
            lines[at] = "".join(parts)
        elif action < 0.78:
            split = random.randint(0, len(lines[at]))
            new = random.choice((*SPLICED, *words, *TEXTS))
            lines[at] = lines[at][:split] + new + lines[at][split:]
        elif action < 0.82:
            lines[at] = " " * random.randint(1, 8) + lines[at].lstrip() if random.random() < 0.7 else lines[at].lstrip()
        elif action < 0.86:
            lines[at] = lines[at][: random.randint(0, len(lines[at]))]
        elif action < 0.9:
            lines[at] = wrapped(lines[at], random)
        elif action < 0.94:
            lines[at : at + 2] = ["".join(lines[at : at + 2])]
        elif action < 0.97:
            lines[at] = lines[at] * random.choice((2, 10, 300)) if len(lines[at]) < 200 else lines[at][:50]
        else:
            lines = [wrapped(line, Random(at)) for line in lines]
        return "\n".join(lines).encode("utf-8", "surrogateescape" if all(map(_escapes, lines)) else "replace")

    return mutate


def _escapes(line: str) -> bool:
    try:
        line.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def wrapped(line: str, random: Random) -> str:
    """A line as one of its carriers has it: docker's JSON, the container runtime's, compose's, a worker's tag."""
    return random.choice(
        (
            json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-01-01T00:00:00Z"}),
            json.dumps({"message": [line], "level": 3}),
            f"2026-01-01T00:00:00.0Z stderr F {line}",
            f"vllm-1  | {line}",
            f"(EngineCore_0 pid=1) ERROR 01-01 00:00:00 [core.py:1] {line}",
            f'time=x level=ERROR source=a msg="{line}',
            f"\x1b[1;31m{line}\x1b[0m",
            f"Jan  1 00:00:00 host vllm[1]: {line}",
        )
    )


def gzipped(data: bytes, random: Random) -> bytes:
    """The bytes packed, sometimes cut short or followed by something else."""
    packed = gzip.compress(data, mtime=0)
    return random.choice((packed, packed[: random.randint(0, len(packed))], packed + data[:64], packed + packed))


def framed(mutation: Mutation) -> Mutation:
    """A mutation of a safetensors header's JSON, its length put right."""

    def mutate(data: bytes, random: Random) -> bytes:
        length = min(int.from_bytes(data[:8], "little"), len(data) - 8)
        header = mutation(data[8 : 8 + max(length, 0)], random)
        size = len(header) if random.random() < 0.9 else random.choice((0, 1, len(header) + 1, 1 << 31, 1 << 63))
        return struct.pack("<Q", size) + header

    return mutate


def sectioned(mutation: Mutation, names: Sequence[str]) -> Mutation:
    """A mutation of one of the files in an input; sometimes a file is added under one of the names."""

    def mutate(data: bytes, random: Random) -> bytes:
        parts = re.split(rb"(^--- .*\n)", data, flags=re.MULTILINE)
        at = random.randrange(0, len(parts), 2)
        parts[at] = mutation(parts[at], random)
        if names and random.random() < 0.03:
            parts += [f"\n--- {random.choice(names)}\n".encode(), parts[at]]
        return b"".join(parts)

    return mutate


_SCALAR = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


class GgufDocument:
    """A GGUF header taken apart far enough to be changed and written again."""

    def __init__(self, data: bytes) -> None:
        """Raises ValueError, struct.error or IndexError where the bytes are no header."""
        self.data, self.at = data, 24
        magic, self.version, tensors, keys = struct.unpack_from("<4sIQQ", data)
        if magic != b"GGUF" or keys > 4096 or tensors > 4096:
            raise ValueError("no GGUF header")
        self.keys = [(self._string(), *self._value()) for _ in range(keys)]
        self.tensors = [self._tensor() for _ in range(tensors)]

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def _string(self) -> bytes:
        length = self._take("<Q")
        if length > len(self.data):
            raise ValueError("past the end")
        self.at += length
        return self.data[self.at - length : self.at]

    def _value(self) -> tuple[int, Any]:
        kind = self._take("<I")
        if kind == _ARRAY:
            element, count = self._take("<I"), self._take("<Q")
            if count > 1_000_000 or element not in (*_SCALAR, _STRING):
                raise ValueError("no such array")
            return kind, (element, [self._item(element) for _ in range(count)])
        return kind, self._item(kind)

    def _item(self, kind: int) -> Any:
        return self._string() if kind == _STRING else self._take(_SCALAR[kind])

    def _tensor(self) -> tuple[bytes, list[int], int, int]:
        name, dimensions = self._string(), self._take("<I")
        if dimensions > 8:
            raise ValueError("dimensions")
        return name, [self._take("<Q") for _ in range(dimensions)], self._take("<I"), self._take("<Q")

    def written(self, keys: int | None = None, tensors: int | None = None) -> bytes:
        """The header again; ``keys`` and ``tensors`` may claim other counts."""
        counted = len(self.keys) if keys is None else keys, len(self.tensors) if tensors is None else tensors
        out = [struct.pack("<4sIQQ", b"GGUF", self.version & 0xFFFFFFFF, counted[1], counted[0])]
        for name, kind, value in self.keys:
            out += [_counted(name), struct.pack("<I", kind)]
            if kind == _ARRAY:
                out.append(struct.pack("<IQ", value[0], len(value[1])))
                out += [_packed(value[0], item) for item in value[1]]
            else:
                out.append(_packed(kind, value))
        for name, shape, kind, offset in self.tensors:
            out += [_counted(name), struct.pack("<I", len(shape)), *(struct.pack("<Q", extent) for extent in shape)]
            out.append(struct.pack("<IQ", kind, offset))
        return b"".join(out)


def _counted(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _packed(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _counted(value if isinstance(value, bytes) else str(value).encode("utf-8", "replace"))
    form = _SCALAR.get(kind, "<I")
    if isinstance(value, bytes | str):
        value = len(value)
    try:
        if form in ("<f", "<d"):
            return struct.pack(form, float(value))
        if form == "<?":
            return struct.pack(form, bool(value))
        size = struct.calcsize(form)
        return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    except (OverflowError, ValueError):
        return b"\xff" * struct.calcsize(form)


def gguf_mutation(seeds: Sequence[bytes], architectures: Sequence[str]) -> Mutation:
    """One change to a GGUF header's keys or tensors."""
    known: list[tuple[bytes, int, Any]] = []
    for seed in seeds:
        document = GgufDocument(seed)
        architecture = next((value for key, _, value in document.keys if key == b"general.architecture"), b"")
        for key, kind, value in document.keys:
            if kind != _ARRAY or len(value[1]) < 200:
                known.append((key.replace(architecture + b".", b"{}.", 1) if architecture else key, kind, value))
    known = sorted({repr(entry): entry for entry in known}.values(), key=repr)

    def mutate(data: bytes, random: Random) -> bytes:
        try:
            document = GgufDocument(data)
        except (ValueError, struct.error, IndexError, KeyError):
            return data
        keys, tensors = document.keys, document.tensors
        architecture = next((value for key, _, value in keys if key == b"general.architecture"), b"llama")
        if not isinstance(architecture, bytes):
            architecture = b"llama"
        action = random.random()
        if action < 0.3 or not keys:
            key, kind, value = random.choice(known)
            key = key.replace(b"{}", architecture)
            document.keys = [*(entry for entry in keys if entry[0] != key), (key, kind, value)]
        elif action < 0.65:
            at = random.randrange(len(keys))
            key, kind, value = keys[at]
            keys[at] = (key, *_other_value(kind, value, random))
        elif action < 0.7:
            del keys[random.randrange(len(keys))]
        elif action < 0.75:
            new = random.choice(architectures).encode()
            document.keys = [
                (key.replace(architecture + b".", new + b".", 1), kind, new if value == architecture else value)
                for key, kind, value in keys
            ]
        elif action < 0.78:
            return document.written(keys=random.choice((0, len(keys) + 1, 1 << 31, (1 << 64) - 1)))
        elif action < 0.8:
            return document.written(tensors=random.choice((0, len(tensors) + 1, 1 << 31, (1 << 64) - 1)))
        elif action < 0.82:
            document.version = random.choice((0, 1, 2, 3, 4, 3 << 24, 0xFFFFFFFF))
        elif tensors:
            _tensor_changed(tensors, random)
        return document.written()

    return mutate


def _other_value(kind: int, value: Any, random: Random) -> tuple[int, Any]:
    if kind == _ARRAY:
        element, items = value
        roll = random.random()
        if roll < 0.3 and items:
            items = list(items)
            items[random.randrange(len(items))] = random.choice(NUMBERS[:36] if element != _STRING else TEXTS)
        elif roll < 0.6:
            items = items[: random.randint(0, len(items))]
        elif roll < 0.7:
            items = items * 2
        else:
            element = random.choice((*_SCALAR, _STRING))
        return kind, (element, items)
    if random.random() < 0.2:
        other = random.choice((*_SCALAR, _STRING, _ARRAY))
        return (other, (4, [1, 0, 2])) if other == _ARRAY else (other, value)
    if kind == _STRING:
        return kind, random.choice(TEXTS)
    return kind, random.choice((value + 1, value * 2, -value, *NUMBERS[:36]))


def _tensor_changed(tensors: list[tuple[bytes, list[int], int, int]], random: Random) -> None:
    at = random.randrange(len(tensors))
    name, shape, kind, offset = tensors[at]
    roll = random.random()
    if roll < 0.2:
        del tensors[at]
    elif roll < 0.35:
        number = str(random.choice((0, 1, 5, 999999999))).encode()
        tensors.append((re.sub(rb"\d+", number, name, count=1), shape, kind, offset))
    elif roll < 0.6 and shape:
        shape[random.randrange(len(shape))] = int(random.choice((0, 1, 32, 256, 1 << 31, 1 << 62, (1 << 64) - 1)))
    elif roll < 0.7:
        tensors[at] = (name, shape, random.choice((*range(42), 1 << 31)), offset)
    elif roll < 0.8:
        tensors[at] = (name, shape, kind, random.choice((0, 1, 1 << 40, (1 << 64) - 1)))
    elif roll < 0.9:
        tensors[at] = (name, shape[: random.randint(0, 4)] or [1, 1, 1, 1, 1], kind, offset)
    else:
        tensors[at] = (random.choice(TEXTS).encode("utf-8", "replace")[:70_000], shape, kind, offset)
