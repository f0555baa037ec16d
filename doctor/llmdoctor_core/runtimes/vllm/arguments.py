"""vLLM's command line as typed: which setting each word gives. First cut; tables per release follow."""

from __future__ import annotations

import json
from typing import Any

SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-dcp": "decode_context_parallel_size",
    "-q": "quantization",
    "-sc": "speculative_config",
    "-cc": "compilation_config",
}


def read(argv: tuple[str, ...]) -> dict[str, Any]:
    """Settings by name, from the words of a command line."""
    words = list(argv)
    found: dict[str, Any] = {}
    while words and not words[0].startswith("-"):
        word = words.pop(0)
        if word in ("vllm", "serve") or word.endswith(("/vllm", "python", "python3")):
            continue
        found.setdefault("model", word)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if flag == "-m":
            words[:1] = []
            continue
        name = SHORT.get(flag) or flag.lstrip("-").replace("-", "_")
        if equals:
            found[name] = _value(value)
        elif words and not words[0].startswith("-"):
            found[name] = _value(words.pop(0))
        elif name.startswith("no_"):
            found[name[3:]] = False
        else:
            found[name] = True
    return found


def _value(text: str) -> Any:
    if text[-1:] in "kK" and text[:-1].isdigit():
        return int(text[:-1]) * (1024 if text[-1] == "K" else 1000)
    try:
        return json.loads(text)
    except ValueError:
        return text


def model_reference(argv: tuple[str, ...]) -> str | None:
    """The model the arguments name (an id or a folder), or None."""
    model = read(argv).get("model")
    return None if model is None else str(model)


def draft_reference(argv: tuple[str, ...]) -> str | None:
    """The draft model the arguments name, or None."""
    speculative = read(argv).get("speculative_config")
    draft = speculative.get("model") if isinstance(speculative, dict) else None
    return draft if isinstance(draft, str) else None
