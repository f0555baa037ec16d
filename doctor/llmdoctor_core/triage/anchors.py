"""Which words a line must hold before a pattern can match it: the cheap test that lets a log be read at speed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

DIGITS = b"0123456789"
FOLD = bytes(
    code + 32 if 65 <= code <= 90 else code if 97 <= code <= 122 or code >= 128 or code == 95 else 32
    for code in range(256)
)
"""Letters in lower case, ``_`` and bytes of other scripts stay; every other byte becomes a space."""

COMMON = frozenset(
    (
        b"a an and are as at be been before being build by can cannot check data device does driver error failed fail "
        b"file files find for found from get has have head if import in info input into is it its kv cache larger "
        b"least length less library load loaded loading make match max memory mode model more most must name need new "
        b"no not now number of on one only or open out output params please port process prompt python read ready "
        b"request requests run running same server set should shared short size some space start starting state status "
        b"such supported system target tensor text than that the there this to token tokens total type unable use used "
        b"using value version was weight weights which will with within word work worker wrong you your available api "
        b"both could engine exists free hold key layer left list node rank select split symbol time user access active "
        b"allow already also appear batch client core custom double enough exceed format "
    ).split()
)
"""Words that healthy logs and prompts are full of: a pattern is known by them only where it has no other."""

Needle = frozenset[bytes]
"""Words that a line must hold, all of them."""


def words_of(line: bytes) -> list[bytes]:
    """The words of a line or block in the folded alphabet, digits left out."""
    return line.translate(None, DIGITS).translate(FOLD).split()


def needles(pattern: str) -> tuple[Needle, ...]:
    """Sets of words of which every matching line holds at least one whole, as far as the pattern's literals tell.

    The ends of the pattern and gaps (``.*``, ``.{0,40}``) are taken for ends of words. Raises ValueError where an
    alternative of the pattern has no literal word.
    """
    try:
        alternatives, _ = _parse(pattern, 0)
    except (IndexError, ValueError):
        raise ValueError(f"cannot be read as a pattern: {pattern!r}") from None
    found = _needles(alternatives, opens=True, closes=True)
    if found is None:
        raise ValueError(f"no literal word in every alternative of {pattern!r}")
    return tuple(dict.fromkeys(found))


class Index:
    """Finds, by the words of a line, the patterns that may match it."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._by_word: dict[bytes, list[tuple[Needle, int]]] = {}
        for number, pattern in enumerate(patterns):
            for needle in needles(pattern):
                self._by_word.setdefault(max(needle, key=_rarity), []).append((needle, number))

    @classmethod
    def together(cls, indexes: Iterable[Index]) -> Index:
        """One index of all, for ``words`` and ``may_match``; its numbers mean nothing."""
        whole = cls()
        for index in indexes:
            for word, found in index._by_word.items():
                whole._by_word.setdefault(word, []).extend(found)
        return whole

    @property
    def words(self) -> frozenset[bytes]:
        """The words of which a line that any pattern may match holds one."""
        return frozenset(self._by_word)

    def numbers(self, words: AbstractSet[bytes]) -> list[int]:
        """Numbers of the patterns that may match a line of these words, in order."""
        found = {
            number for word in self._by_word.keys() & words for needle, number in self._by_word[word] if needle <= words
        }
        return sorted(found)

    def may_match(self, words: AbstractSet[bytes]) -> bool:
        """Whether any pattern may match a line of these words."""
        return any(needle <= words for word in self._by_word.keys() & words for needle, _ in self._by_word[word])


# A pattern as far as it matters here: a literal character, a sure word boundary, a gap of any characters, a separator
# that may be absent, anything else, or a group. Beside a gap, as at the ends of a pattern, whole words are written.
_BOUNDARY, _GAP, _MAYBE, _ANYTHING = object(), object(), object(), object()
_Item = object
_Sequence = list[_Item]


class _Optional(list[_Sequence]):
    """A group that may be absent."""


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
            alternatives[-1].append(_absent(item) if optional else item)
    return alternatives, position


def _absent(item: _Item) -> _Item:
    """What an item is where it may be absent."""
    if item in (_GAP, _MAYBE):
        return item
    if item is _BOUNDARY or (isinstance(item, str) and not _is_word(item)):
        return _MAYBE
    return _Optional(item) if isinstance(item, list) else _ANYTHING


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
    members = re.sub(r"\\d|0-9|\\(?=\W)", "", inside)
    if inside.startswith("^") or any(_is_word(member) for member in members):
        return _ANYTHING, end + 1
    return (_BOUNDARY if members == inside else _MAYBE), end + 1  # with digits among them it may leave nothing


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
    """Whether what stands before may be absent, and where the quantifier ends."""
    match = re.match(r"(\?|\*|\+|\{(\d*),?\d*\})\??", pattern[position:])
    if match is None:
        return False, position
    optional = match[1] in ("?", "*") or (match[1].startswith("{") and match[2] in ("", "0"))
    return optional, position + match.end()


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_" or ord(character) >= 128


def _needles(alternatives: list[_Sequence], opens: bool, closes: bool) -> list[Needle] | None:
    """The needles of the alternatives together, None where one has none."""
    together: list[Needle] = []
    for sequence in alternatives:
        words, groups = _required(sequence, opens, closes)
        rare = any(word not in COMMON for word in words)
        if groups and not rare:
            # the group with the rarest of its least words tells most; of several groups one is enough
            best = max(groups, key=lambda group: min(max(map(_rarity, needle)) for needle in group))
            together += [needle | words for needle in best]
        elif words:
            together.append(frozenset(words))
        else:
            return None
    return together


def _rarity(word: bytes) -> tuple[bool, int]:
    return word not in COMMON, min(len(word), 12)


def _required(sequence: _Sequence, opens: bool, closes: bool) -> tuple[Needle, list[list[Needle]]]:
    """Words that a line matching the sequence holds, and the needles of its groups."""
    words: set[bytes] = set()
    groups: list[list[Needle]] = []
    run, begins = "", opens
    for index, item in enumerate([*sequence, _BOUNDARY if closes else _ANYTHING]):
        if isinstance(item, str):
            run += item
            continue
        before = (not _is_word(run[-1])) if run else begins
        after = _separates_from(sequence, index + 1, closes)
        if item in (_BOUNDARY, _GAP):
            here, behind = True, True
        elif item is _MAYBE:
            here, behind = after, before
        elif isinstance(item, _Optional):
            here = after and all(_edge(inner, 0) for inner in item)
            behind = before and all(_edge(inner, -1) for inner in item)
        else:
            here = behind = False
        words.update(_whole_words(run, begins, here))
        if (
            isinstance(item, list)
            and not isinstance(item, _Optional)
            and (inside := _needles(item, before, after)) is not None
        ):
            groups.append(inside)
        run, begins = "", behind
    return frozenset(words), groups


def _separates_from(sequence: _Sequence, index: int, closes: bool) -> bool:
    """Whether a word that ends before this place of the sequence is sure not to go on there."""
    while index < len(sequence):
        item = sequence[index]
        if item in (_BOUNDARY, _GAP) or (isinstance(item, str) and not _is_word(item)):
            return True
        if item is not _MAYBE and not (isinstance(item, _Optional) and all(_edge(inner, 0) for inner in item)):
            return False
        index += 1
    return closes


def _edge(sequence: _Sequence, index: int) -> bool:
    """Whether a group's alternative begins (0) or ends (-1) with a separator."""
    item = sequence[index] if sequence else None
    return item in (_BOUNDARY, _GAP) or (isinstance(item, str) and not _is_word(item))


def _whole_words(text: str, opens: bool, closes: bool) -> Iterable[bytes]:
    """Words of a literal run that do not go on beyond it. ``opens``/``closes``: a word boundary is known there."""
    folded = text.encode().translate(None, DIGITS).translate(FOLD)
    for match in re.finditer(rb"[^ ]+", folded):
        if (match.start() > 0 or opens) and (match.end() < len(folded) or closes):
            yield match[0]
