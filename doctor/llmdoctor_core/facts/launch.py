"""The intended start of a server: as typed (``LaunchRequest``), and as this version and GPU resolve it (``Launch``)."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from .base import Fact

RuntimeName = Literal["vllm", "llamacpp", "sglang", "trtllm", "ollama"]
Platform = Literal["cuda", "cpu"]
"""What the installed build of vLLM runs on: its defaults, its block size and its pool follow from it."""


class Place(Struct, frozen=True, kw_only=True):
    """Where something stands: a file and line, an argument, an environment variable, a device or a package."""

    kind: Literal["file", "argument", "environment", "device", "package", "case"]
    name: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name


class LaunchRequest(Fact, frozen=True, kw_only=True):
    """What the person asked for, untouched: a replay resolves it anew.

    ``argv`` starts with the server's command where one was typed (``vllm serve X ...``) and holds only arguments where
    it was not. ``version`` is None when it could not be found out: the newest known is then assumed and said so.
    """

    runtime: RuntimeName
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    version: str | None = None
    version_source: str = "not observed"
    entrypoint: Literal["serve", "llm"] = "serve"
    model: str | None = None
    config_files: dict[str, str] = {}
    """Text of files that arguments name (vLLM's ``--config``, the adapter_config.json of local LoRA adapters), read at
    the rim, by path."""
    kv_memory: int | None = None
    """Bytes of the KV pool given by the person (``--kv-memory``), replacing the prediction of memory."""
    places: dict[str, Place] = {}
    """Where each argument was written (deployment file and line), by its flag."""
    wrapper: tuple[str, ...] = ()
    """Words in front of the server's command (``docker run ... IMAGE``), for printing the launch again."""
    implied: int = 0
    """How many words at the front of ``argv`` the image supplies and nobody typed."""
    variables: dict[str, str | None] = {}
    """Variables set on the command itself (``FOO=1 vllm serve``); None for one to unset."""
    platform: Platform = "cuda"


class Argument(Struct, frozen=True, kw_only=True):
    """One setting of the launch with its origin."""

    name: str
    """The runtime's own name, with underscores: ``max_model_len``, ``ctx_size``."""
    value: Any
    origin: Literal["given", "environment", "config file", "default", "derived"]
    why: str = ""
    """For a default or derived value: the rule, with the version since which it holds."""
    flag: str | None = None
    """The spelling the person used."""


class ArgumentProblem(Struct, frozen=True, kw_only=True):
    """An argument this version does not take as typed."""

    kind: Literal["unknown", "removed", "renamed", "invalid", "incomplete", "ignored"]
    flag: str
    detail: str
    since: str | None = None
    replacement: str | None = None
    nearest: str | None = None


class Launch(Fact, frozen=True, kw_only=True):
    """Runtime, version, arguments and environment with the defaults that this version and GPU fill in."""

    runtime: RuntimeName
    version: str
    version_assumed: bool
    """True where no version was observed and the newest known one stands in."""
    untagged: bool = False
    """True where the version observed names no release (``0.1.dev1+g4d2a68d64``): when the build was cut is unknown."""
    entrypoint: Literal["serve", "llm"]
    model: str | None
    arguments: dict[str, Argument]
    environment: dict[str, str] = {}
    problems: tuple[ArgumentProblem, ...] = ()
    command: tuple[str, ...] = ()
    """The command in front of the arguments (``vllm serve``), empty where none was typed."""
    platform: Platform = "cuda"

    def __getitem__(self, name: str) -> Any:
        """Value of the argument ``name``; KeyError where the runtime has none of that name."""
        return self.arguments[name].value

    def get(self, name: str, default: Any = None) -> Any:
        argument = self.arguments.get(name)
        return default if argument is None else argument.value

    def given(self, name: str) -> bool:
        """Whether the person set it, on the command line, in a config file or by environment."""
        argument = self.arguments.get(name)
        return argument is not None and argument.origin in ("given", "environment", "config file")
