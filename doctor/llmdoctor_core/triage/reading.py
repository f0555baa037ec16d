"""What a log tells beside its troubles: runtime, release, model, arguments, memory figures, GPUs."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

from msgspec import Struct

from llmdoctor_core.facts import RuntimeName
from llmdoctor_core.facts.measured import Figure
from llmdoctor_core.runtimes.llamacpp.log import LogReader as LlamacppLog
from llmdoctor_core.runtimes.llamacpp.log import ServerLog
from llmdoctor_core.runtimes.log import LogRow, rows
from llmdoctor_core.runtimes.vllm import log as vllm_log

from .anchors import Index

_LLAMACPP = (
    " buffer size = ", "llama_context: ", "llama_kv_cache", "KV self size", "llama_memory_recurrent", "n_slots = ",
    "n_ctx_slot", "new slot, n_ctx", "print_info: n_ctx_train", r"offloaded \d+/\d+ layers to GPU",
    "loaded meta data with", "load_model: loading model", "build_info: ",
    r"\bbuild: \d+ \(.*\) with (?:GNU|cc|gcc|clang|Clang|AppleClang|MSVC) ", "llama_model_loader: - kv",
)  # fmt: skip
"""What announces a line that llama.cpp's own reader understands."""
_COMMANDS = ("llama-server -", "sglang.launch_server", "sglang serve", "trtllm-serve")
_BUFFERS = {"model": "weights", "KV": "cache", "RS": "state", "compute": "compute", "output": "output"}
_GGUF_ROW = re.compile(r"llama_model_loader: - kv +\d+: +(\S+) +(\w+(?:\[[^\]]*\])?) += (.*)")
_SGLANG_ITEM = re.compile(r"(?:^|, )([a-z_]+)=('[^']*'|\"[^\"]*\"|[^,()\[\]{}]+|\[[^\]]*\])")
_TYPED = re.compile(
    r"(?i:^|[$#>+] |\bexec |\bcommand:? |\bcmd:? |\brunning:? )"
    r"((?:\S*/)?llama-server -|(?:\S*/)?python[\d.]* -m sglang\.launch_server |sglang serve -|trtllm-serve )"
)
MOST_FIGURES = 500
MOST_TEXT = 4096
"""Characters of a line that is no list of arguments."""


class Reading(Struct, frozen=True, kw_only=True):
    """What was read out of a log."""

    runtime: RuntimeName | None = None
    version: str | None = None
    model: str | None = None
    argv: tuple[str, ...] = ()
    """The launch, as typed where the log shows it, else rebuilt from the arguments that it printed."""
    resolved: dict[str, Any] = {}
    """Arguments with the defaults that the runtime filled in, where it printed them."""
    facts: dict[str, str] = {}
    """``architecture``, ``gpu``, ``gpu_compute_capability``, ``driver``, ``torch``, ``nccl``, ..."""
    figures: tuple[Figure, ...] = ()
    gguf: dict[str, Any] = {}
    """Metadata of the GGUF header as llama.cpp printed it."""
    sources: dict[str, str] = {}
    """Where runtime, version, model and arguments were read: file and line."""


@lru_cache(maxsize=1)
def _rows() -> tuple[LogRow, ...]:
    return rows(__package__, "readings.toml")


@lru_cache(maxsize=1)
def _index() -> Index:
    """Of the rows, then vLLM's patterns, then llama.cpp's, then commands: what ``Reader.take`` tells apart."""
    vllm = [*(row.pattern for row in vllm_log.log_rows()), *vllm_log.PATTERNS]
    return Index([*(row.pattern for row in _rows()), *vllm, *_LLAMACPP, *_COMMANDS])


class Reader:
    """Collects what the lines tell."""

    def __init__(self) -> None:
        self._vllm = vllm_log.VllmLog()
        self._llamacpp = LlamacppLog()
        self._facts: dict[str, dict[str, str]] = {}
        self._figures: list[tuple[str, Figure]] = []
        self._gguf: dict[str, Any] = {}
        self._typed: dict[str, tuple[str, ...]] = {}
        self._sources: dict[str, str] = {}

    @staticmethod
    def index() -> Index:
        """What finds the lines that tell something."""
        return _index()

    def take(self, text: str, words: AbstractSet[bytes], where: str) -> None:
        """One message, its words, and the place where it stands."""
        own = len(_rows())
        vllm = own + len(vllm_log.log_rows()) + len(vllm_log.PATTERNS)
        numbers = _index().numbers(words)
        for number in numbers:
            if number < own:
                self._take_row(_rows()[number], text, where)
        if any(own <= number < vllm for number in numbers):
            before = (self._vllm.version, self._vllm.model)
            self._vllm.take(text)
            if before != (self._vllm.version, self._vllm.model):
                self._sources.setdefault("vllm", where)
        if any(vllm <= number < vllm + len(_LLAMACPP) for number in numbers):
            self._llamacpp.take(text[:MOST_TEXT])
            if match := _GGUF_ROW.match(text[:MOST_TEXT]):
                self._gguf[match[1]] = _gguf_value(match[2], match[3])
        if any(number >= vllm + len(_LLAMACPP) for number in numbers):
            self._take_command(text)

    def _take_row(self, row: LogRow, text: str, where: str) -> None:
        value = row.read(text if row.name == "server_args" else text[:MOST_TEXT])
        if isinstance(value, Figure):
            if len(self._figures) < MOST_FIGURES:
                self._figures.append((row.runtime, value))
        elif value is not None and row.name not in self._facts.setdefault(row.runtime, {}):
            self._facts[row.runtime][row.name] = value
            self._sources.setdefault(row.runtime, where)

    def _take_command(self, text: str) -> None:
        if (match := _TYPED.search(text)) and len(text) < 16384:
            try:
                words = tuple(word for word in shlex.split(text[match.start(1) :]) if word != "\\")
            except ValueError:
                return
            name = "sglang" if "sglang" in match[1] else "trtllm" if "trtllm" in match[1] else "llamacpp"
            self._typed.setdefault(name, words)

    def reading(self) -> Reading:
        """Everything together, for the runtime that told most."""
        runtime = self._runtime()
        own = self._facts.get(runtime or "", {}) | self._facts.get("", {})
        figures = [figure for name, figure in self._figures if name in (runtime, "")]
        if runtime == "vllm":
            vllm = self._vllm
            return Reading(
                runtime="vllm",
                version=vllm.version,
                model=vllm.model,
                argv=vllm.argv(),
                resolved=vllm.resolved,
                facts={**self._facts.get("", {}), **{k: v for k, v in vllm.facts.items() if k != "version"}},
                figures=(*vllm.figures, *figures),
                sources=self._sources,
            )
        server = self._llamacpp.log() if runtime in ("llamacpp", "ollama") else ServerLog()
        figures += _llamacpp_figures(server)
        if server.build is not None and runtime == "llamacpp":
            own["version"] = str(server.build)
        arguments = _sglang_arguments(own.pop("server_args", "")) if runtime == "sglang" else {}
        argv = self._typed.get(runtime or "", ())
        if not argv and "model_path" in arguments:
            argv = ("sglang", "serve", "--model-path", str(arguments["model_path"]))
        return Reading(
            runtime=runtime,
            version=own.pop("version", None),
            model=server.model or (str(arguments["model_path"]) if "model_path" in arguments else None),
            argv=argv,
            resolved=arguments,
            facts=own,
            figures=tuple(figures),
            gguf=self._gguf,
            sources=self._sources,
        )

    def _runtime(self) -> RuntimeName | None:
        counts: dict[RuntimeName, int] = {
            "vllm": self._vllm.lines * 2 + 3 * bool(self._vllm.given or self._vllm.command),
            "ollama": 50 * len(self._facts.get("ollama", {})),
            "sglang": 3 * len(self._facts.get("sglang", {})) + 3 * ("sglang" in self._typed),
            "trtllm": 3 * len(self._facts.get("trtllm", {})) + 3 * ("trtllm" in self._typed),
            "llamacpp": len(self._facts.get("llamacpp", {})) + bool(self._gguf) + 3 * ("llamacpp" in self._typed),
        }
        server = self._llamacpp.log()
        counts["llamacpp"] += len(server.buffers) + len(server.settings) + 2 * (server.slots is not None)
        for name, _ in self._figures:
            if name in counts:
                counts[name] += 1
        best = max(counts, key=lambda name: counts[name])
        return best if counts[best] else None


def _llamacpp_figures(log: ServerLog) -> list[Figure]:
    """The buffers by device, in bytes (two decimals of a MiB are printed), and the lengths in tokens."""
    step = (1 << 20) / 100
    figures = [
        Figure(name=_BUFFERS[buffer.kind], value=float(buffer.bytes), step=step, device=buffer.device)
        for buffer in log.buffers
    ]
    lengths = {"request_tokens": log.settings.get("n_ctx"), "slot_tokens": log.slot_tokens}
    return figures + [Figure(name=name, value=float(value)) for name, value in lengths.items() if value is not None]


def _gguf_value(kind: str, text: str) -> Any:
    if kind.startswith("arr"):
        count = re.search(r",(\d+)\]", kind)
        return {"array": kind.partition("[")[2].partition(",")[0], "length": int(count[1]) if count else 0}
    try:
        if kind[0] in "ui" and kind[1:].isdigit():
            return int(text)
        if kind.startswith("f"):
            return float(text)
    except ValueError:
        return text
    return {"true": True, "false": False}.get(text, text) if kind == "bool" else text


def _sglang_arguments(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for match in _SGLANG_ITEM.finditer(text[: 32 << 10]):
        try:
            found[match[1]] = ast.literal_eval(match[2].strip())
        except (ValueError, SyntaxError):
            found[match[1]] = match[2].strip()
    return {name: value for name, value in found.items() if value is not None}
