"""What a model's tokenizer files say, without loading a tokenizer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from ..errors import InputError
from ..facts import TokenizerFacts
from .json_text import json_object

VOCABULARY_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""Where the vocabulary is, in the order of preference."""
CONFIG, TEMPLATES = "tokenizer_config.json", ("chat_template.jinja", "chat_template.json")
MOST_PARSED = 48 << 20
_VOCABULARY = re.compile(rb'"vocab"\s*:\s*')

Read = Callable[[str], "bytes | None"]
"""The bytes of a file of the model by name, None where it has none of that name."""


def tokenizer_facts(
    read: Read, exists: Callable[[str], bool], fingerprint: Callable[[str], str | None]
) -> tuple[TokenizerFacts, tuple[str, ...]]:
    """Facts from the tokenizer files, and notes on files that cannot be read.

    ``fingerprint`` gives the SHA-256 of a file, in whatever way costs least.
    """
    notes: list[str] = []
    config: dict[str, Any] = {}
    data = read(CONFIG)
    if data is not None:
        try:
            config = json_object(data, CONFIG)
        except InputError as error:
            notes.append(str(error))
    kind, longest = config.get("tokenizer_class"), config.get("model_max_length")
    numeric = isinstance(longest, int | float) and not isinstance(longest, bool)
    template: bool | None = None
    if data is not None or any(exists(name) for name in TEMPLATES):
        template = bool(config.get("chat_template")) or any(exists(name) for name in TEMPLATES)
    file = next((name for name in VOCABULARY_FILES if exists(name)), None)
    vocabulary = None
    if file == "tokenizer.json":
        text = read(file)
        if text is not None:
            vocabulary = entries(text)
            if vocabulary is None:
                notes.append("tokenizer.json holds no vocabulary that llmdoctor can read")
    return (
        TokenizerFacts(
            kind=kind if isinstance(kind, str) else None,
            vocabulary=vocabulary,
            model_max_length=float(longest) if numeric else None,  # type: ignore[arg-type]
            chat_template=template,
            fingerprint=fingerprint(file) if file else None,
            file=file,
        ),
        tuple(notes),
    )


def entries(text: bytes) -> int | None:
    """Size of the vocabulary of a tokenizer.json: its highest id and one, added tokens included.

    Only the vocabulary and the added tokens are parsed, not the merges that make up most of the file.
    """
    if len(text) > MOST_PARSED:
        return None
    found = _VOCABULARY.search(text)
    if found is None:
        return None
    decoder = json.JSONDecoder()
    try:
        vocabulary = _value_at(decoder, text, found.end())
        added = text.find(b'"added_tokens"')
        listed = _value_at(decoder, text, text.index(b":", added) + 1) if added >= 0 else []
    except (ValueError, RecursionError, UnicodeDecodeError):
        return None
    highest = -1
    if isinstance(vocabulary, dict):
        highest = max((i for i in vocabulary.values() if type(i) is int), default=-1)
    elif isinstance(vocabulary, list):
        highest = len(vocabulary) - 1
    for token in listed if isinstance(listed, list) else ():
        number = token.get("id") if isinstance(token, dict) else None
        if type(number) is int:
            highest = max(highest, number)
    return highest + 1 if 0 <= highest < 1 << 28 else None


def _value_at(decoder: json.JSONDecoder, text: bytes, start: int) -> Any:
    rest = text[start:].lstrip().decode("utf-8")
    return decoder.raw_decode(rest)[0]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
