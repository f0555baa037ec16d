"""Changing one argument of a typed command: every spelling of it is replaced, everything else stays as it was."""

from __future__ import annotations

from collections.abc import Iterable


def with_argument(
    argv: tuple[str, ...], spellings: Iterable[str], flag: str, value: str | None, takes_value: bool
) -> tuple[str, ...]:
    """The command with the argument set, or taken out.

    ``spellings`` are all flags that mean it (with ``--no-`` forms); ``value`` is its new value, ``"true"``/``"false"``
    for one that takes none, None to take it out. The first place where it stood keeps the argument.
    """
    known = {_normal(spelling) for spelling in spellings}
    kept: list[str] = []
    place: int | None = None
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if _normal(name) not in known:
            kept.append(word)
            continue
        place = len(kept) if place is None else place
        if takes_value and not equals and words and not _is_flag(words[0]):
            words.pop(0)
    if value is None:
        return tuple(kept)
    place = len(kept) if place is None else place
    return (*kept[:place], *_written(flag, value, takes_value), *kept[place:])


def _written(flag: str, value: str, takes_value: bool) -> tuple[str, ...]:
    if takes_value:
        return (flag, value)
    if value == "false":
        return ("--no-" + flag.removeprefix("--"),)
    return (flag,)


def _normal(flag: str) -> str:
    """``--max_model_len`` and ``--max-model-len`` are one flag to vLLM; short forms keep their case."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def _is_flag(word: str) -> bool:
    """Whether a word begins an argument; ``-1`` is a value."""
    return word.startswith("-") and not word[1:2].isdigit()
