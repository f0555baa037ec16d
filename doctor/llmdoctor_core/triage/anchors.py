"""Which words a line must hold before a pattern can match it: the cheap test that lets a log be read at speed."""

from __future__ import annotations

import re
from collections.abc import Iterable

DIGITS = b"0123456789"
FOLD = bytes(
    code + 32 if 65 <= code <= 90 else code if 97 <= code <= 122 or code >= 128 or code == 95 else 32
    for code in range(256)
)
"""Letters in lower case, ``_`` and bytes of other scripts stay; every other byte becomes a space."""

COMMON = frozenset(
    b"a an and are as at be by cannot cuda device error failed file for from gpu has in info is it kv cache memory "
    b"max model no not of on or process server size starting that the this to token tokens torch use used using vllm "
    b"warning was with you your available value must request requests engine load loaded loading version running "
    b"name found data code type supported".split()
)
"""Words that healthy logs are full of: taken only where a pattern has no other."""


def words_of(line: bytes) -> list[bytes]:
    """The words of a line or block in the folded alphabet, digits left out."""
    return line.translate(None, DIGITS).translate(FOLD).split()


def anchors(pattern: str) -> frozenset[bytes]:
    """Words of which every matching line holds at least one: the best choice that the pattern's literals allow.

    The ends of the pattern and gaps (``.*``, ``.{0,40}``) are taken for ends of words. Raises ValueError where an
    alternative of the pattern has no literal word.
    """
    try:
        alternatives, _ = _parse(pattern, 0)
    except (IndexError, ValueError):
        raise ValueError(f"cannot be read as a pattern: {pattern!r}") from None
    words = _best(alternatives, opens=True, closes=True)
    if words is None:
        raise ValueError(f"no literal word in every alternative of {pattern!r}")
    return words


# A pattern as far as it matters here: a literal character, a sure word boundary, a gap of any characters, anything
# else, or a group. Whoever writes a pattern writes whole words beside a gap, as at its ends.
_BOUNDARY, _GAP, _ANYTHING = object(), object(), object()
_Item = object
_Sequence = list[_Item]


def _parse(pattern: str, position: int) -> tuple[list[_Sequence], int]:
    """The alternatives from a position to the end of the group or pattern, and where that is."""
    alternatives: list[_Sequence] = [[]]
    while position < len(pattern) and pattern[position] != ")":
        character = pattern[position]
        item: _Item | None
        if character == "|":
            alternatives.append([])
            position += 1
            continue
        if character == "\\":
            escaped = pattern[position + 1]
            item, position = _escaped(escaped), position + 2
        elif character == "[":
            item, position = _class(pattern, position)
        elif character == "(":
            item, position = _group(pattern, position)
        else:
            item = _GAP if character == "." else _BOUNDARY if character in "^$" else character
            position += 1
        optional, position = _quantifier(pattern, position)
        if item is not None:
            alternatives[-1].append(_ANYTHING if optional and item is not _GAP else item)
    return alternatives, position


def _escaped(character: str) -> _Item | None:
    if character == "d":
        return None  # digits are left out of lines
    if character in "bsn":
        return _BOUNDARY
    return _ANYTHING if character.isalnum() else character


def _class(pattern: str, position: int) -> tuple[_Item, int]:
    end = position + (3 if pattern[position + 1] == "^" else 2)
    while pattern[end] != "]":
        end += 2 if pattern[end] == "\\" else 1
    inside = pattern[position + 1 : end]
    separates = all(not _is_word(member) for member in inside)
    return (_BOUNDARY if separates and "^" not in inside else _ANYTHING), end + 1


def _group(pattern: str, position: int) -> tuple[_Item | None, int]:
    flags = re.match(r"\(\?[a-zA-Z]+\)", pattern[position:])
    if flags:
        return None, position + flags.end()
    head = re.match(r"\((?:\?(?:P<\w+>|:|(?P<look><?[=!])))?", pattern[position:])
    assert head is not None
    alternatives, end = _parse(pattern, position + head.end())
    if pattern[end] != ")":
        raise ValueError(pattern)
    return (None if head["look"] else alternatives), end + 1  # what is looked at is not taken


def _quantifier(pattern: str, position: int) -> tuple[bool, int]:
    """Whether what stands before may be absent or repeated with something between, and where the quantifier ends."""
    match = re.match(r"(\?|\*|\+|\{(\d*),?\d*\})\??", pattern[position:])
    if match is None:
        return False, position
    optional = match[1] in ("?", "*") or (match[1].startswith("{") and match[2] in ("", "0"))
    return optional, position + match.end()


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_" or ord(character) >= 128


def _best(alternatives: list[_Sequence], opens: bool, closes: bool) -> frozenset[bytes] | None:
    """The words of the alternatives together, None where one has none."""
    together: set[bytes] = set()
    for sequence in alternatives:
        choices = list(_choices(sequence, opens, closes))
        if not choices:
            return None
        together |= max(choices, key=lambda words: (min(map(_rarity, words)), -len(words)))
    return frozenset(together)


def _rarity(word: bytes) -> tuple[bool, int]:
    return word not in COMMON, min(len(word), 12)


def _choices(sequence: _Sequence, opens: bool, closes: bool) -> Iterable[frozenset[bytes]]:
    """Each set of words of which a line matching the sequence must hold one."""
    run, begins = "", opens
    for index, item in enumerate([*sequence, _BOUNDARY if closes else _ANYTHING]):
        if isinstance(item, str):
            run += item
            continue
        before = (not _is_word(run[-1])) if run else begins
        yield from (frozenset({word}) for word in _whole_words(run, begins, item in (_BOUNDARY, _GAP)))
        if isinstance(item, list):
            following = sequence[index + 1] if index + 1 < len(sequence) else _BOUNDARY if closes else _ANYTHING
            after = following in (_BOUNDARY, _GAP) or (isinstance(following, str) and not _is_word(following))
            words = _best(item, before, after)
            if words is not None:
                yield words
        run, begins = "", item in (_BOUNDARY, _GAP)


def _whole_words(text: str, opens: bool, closes: bool) -> Iterable[bytes]:
    """Words of a literal run that do not go on beyond it. ``opens``/``closes``: a word boundary is known there."""
    folded = text.encode().translate(None, DIGITS).translate(FOLD)
    for match in re.finditer(rb"[^ ]+", folded):
        if (match.start() > 0 or opens) and (match.end() < len(folded) or closes):
            yield match[0]
