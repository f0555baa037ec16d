"""Reads a vLLM log: release, model, the arguments it was started with and resolved, and its memory figures."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterable
from typing import Any

from llmdoctor_core.facts.measured import Figure
from llmdoctor_core.runtimes.log import LogRow, rows

MAX_LITERAL = 32 << 10
"""Characters of a printed dictionary that are parsed; no start prints a longer one."""
MAX_MESSAGE = 4096
"""Characters of a line in which a figure is looked for."""
PATTERNS = (
    r"non-default args: (?P<dict>\{.*)",
    r"vllm serve |openai\.api_server ",
    r"args: Namespace\((?P<namespace>.*)\)",
    r"LLM engine \(v[^)]+\) with config: (?P<config>.*)",
)
"""What announces the arguments, beside the rows of figures."""
_CONFIG_NAMES = {
    "model": "model", "dtype": "dtype", "max_seq_len": "max_model_len", "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size", "data_parallel_size": "data_parallel_size",
    "quantization": "quantization", "enforce_eager": "enforce_eager", "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching", "chunked_prefill_enabled": "enable_chunked_prefill",
    "enable_chunked_prefill": "enable_chunked_prefill", "load_format": "load_format", "tokenizer": "tokenizer",
    "speculative_config": "speculative_config", "trust_remote_code": "trust_remote_code", "seed": "seed",
    "disable_custom_all_reduce": "disable_custom_all_reduce", "served_model_name": "served_model_name",
}  # fmt: skip
"""Names of the engine's config line to names of arguments."""
_CONFIG_ITEM = re.compile(r"(?:^|, )([a-z_]+)=")
_FROM_NAMESPACE = (
    "model_tag", "model", "max_model_len", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype", "dtype", "quantization",
    "enforce_eager", "speculative_config", "kv_transfer_config", "trust_remote_code", "enable_expert_parallel",
    "distributed_executor_backend", "hf_overrides", "limit_mm_per_prompt", "cpu_offload_gb", "block_size",
)  # fmt: skip
_TYPED = re.compile(
    r"(?i:^|[$#>+] |\bexec |\bcommand:? |\bcmd:? |\brunning:? )"
    r"((?:\S*/)?vllm serve (?!with\b|on\b)\S|(?:\S*/)?python[\d.]* -m vllm\.entrypoints\.openai\.api_server \S)"
)
"""The command as a shell, its trace or a supervisor shows it; not as prose mentions it."""
_NOT_ARGUMENTS = {"subparser", "dispatch_function", "model_tag", "config", "headless", "api_server_count", "model"}


def log_rows() -> tuple[LogRow, ...]:
    """The rows that read vLLM's figures."""
    return rows(__package__, "log.toml")


class VllmLog:
    """Collects what the lines tell, in any order and of any release."""

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        """``version``, ``architecture``, ``attention_backend``, ``nccl``: the first that was printed."""
        self.given: dict[str, Any] = {}
        """Arguments that were not left at their default, by the runtime's own names."""
        self.resolved: dict[str, Any] = {}
        """Arguments as the engine's configuration line shows them, defaults filled in."""
        self.command: tuple[str, ...] = ()
        """The command as typed, where a line shows it."""
        self.figures: list[Figure] = []
        self.lines = 0

    def take(self, text: str) -> None:
        """One line, without the carriers in front of its message."""
        for row in log_rows():
            value = row.read(text[:MAX_MESSAGE])
            if value is None:
                continue
            self.lines += 1
            if isinstance(value, Figure):
                self.figures.append(value)
            else:
                self.facts.setdefault(row.name, value)
        if "non-default args:" in text:
            self.given |= _dictionary(text.partition("non-default args:")[2].strip())
        elif "args: Namespace(" in text and not self.given:
            self.given |= _namespace(text.partition("args: ")[2])
        elif " with config: " in text and "LLM engine (v" in text:
            self.resolved |= _config(text.partition(" with config: ")[2])
        elif not self.command and (typed := _command(text)):
            self.command = typed

    @property
    def version(self) -> str | None:
        return self.facts.get("version")

    @property
    def model(self) -> str | None:
        """The model as it was given."""
        for source in (self.given, self.resolved):
            for name in ("model_tag", "model"):
                if isinstance(source.get(name), str):
                    return str(source[name])
        return None

    def argv(self) -> tuple[str, ...]:
        """The launch as a command: the one typed where it is shown, else one rebuilt from the arguments printed."""
        if self.command:
            return self.command
        if self.model is None:
            return ()
        # the engine's line holds values, not whether they were given: only what is never a harmless default is taken
        resolved: dict[str, Any] = {
            name: self.resolved[name]
            for name in ("max_model_len", "tensor_parallel_size", "pipeline_parallel_size", "kv_cache_dtype", "dtype")
            if name in self.resolved and not self.given
        }
        return ("vllm", "serve", self.model, *_flags({**resolved, **self.given}))

    def figure(self, name: str) -> Figure | None:
        """The last figure of that name; of several ranks' memory the smallest, which is the one that counts."""
        found = [figure for figure in self.figures if figure.name == name]
        if not found:
            return None
        return min(found, key=lambda figure: figure.value) if name == "available_cache" else found[-1]


def read(lines: Iterable[str]) -> VllmLog:
    """What the lines of a vLLM log tell."""
    log = VllmLog()
    for line in lines:
        log.take(line)
    return log


def _dictionary(text: str) -> dict[str, Any]:
    """A printed dict, or of a damaged one as much as can be told. Objects that are no literals become their text."""
    end = text.rfind("}")
    for candidate in (text, text[: end + 1]):
        if candidate and len(candidate) <= MAX_LITERAL:
            try:
                value = ast.literal_eval(candidate)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            if isinstance(value, dict):
                return {str(key): item for key, item in value.items()}
    return _items(text.strip("{}"), re.compile(r"(?:^|, )'([a-z_]+)': "))


def _namespace(text: str) -> dict[str, Any]:
    """Arguments of ``Namespace(...)``. It holds every argument, so only those that size memory are taken as given."""
    inside = text.partition("(")[2].rpartition(")")[0]
    values = _items(inside, _CONFIG_ITEM)
    return {name: values[name] for name in _FROM_NAMESPACE if values.get(name) not in (None, False, [], {}, "", "auto")}


def _config(text: str) -> dict[str, Any]:
    values = _items(text.rstrip(), _CONFIG_ITEM)
    named = {_CONFIG_NAMES[name]: value for name, value in values.items() if name in _CONFIG_NAMES}
    if isinstance(named.get("dtype"), str):
        named["dtype"] = named["dtype"].removeprefix("torch.")
    return {name: value for name, value in named.items() if value is not None}


def _items(text: str, separator: re.Pattern[str]) -> dict[str, Any]:
    """``name=value, name=value`` where values may hold commas: cut at the names at depth zero."""
    text = text[:MAX_LITERAL]
    depth, quote, top = 0, "", []
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        top.append(depth <= 0 and (not quote or character == quote))
    marks = [match for match in separator.finditer(text) if top[match.start()]]
    found: dict[str, Any] = {}
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    for mark, end in zip(marks, ends, strict=False):
        raw = text[mark.end() : end].strip()
        try:
            found[mark[1]] = ast.literal_eval(raw)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[mark[1]] = raw
    return found


def _flags(arguments: dict[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in arguments.items():
        if name in _NOT_ARGUMENTS or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            continue
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is False:
            flags.append("--no-" + flag[2:])
        elif isinstance(value, dict):
            flags += [flag, json.dumps(value, default=str)]
        elif isinstance(value, (list, tuple)):
            if value:
                flags += [flag, *map(str, value)]
        elif value is not None:
            flags += [flag, str(value)]
    return flags


def _command(text: str) -> tuple[str, ...]:
    """``vllm serve ...`` or ``python -m vllm.entrypoints.openai.api_server ...`` as a shell's trace shows it."""
    match = _TYPED.search(text)
    if match is None or len(text) > MAX_LITERAL:
        return ()
    try:
        words = shlex.split(text[match.start(1) :], comments=False)
    except ValueError:
        return ()
    return tuple(word for word in words if word != "\\")
