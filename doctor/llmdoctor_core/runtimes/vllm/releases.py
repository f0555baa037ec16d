"""What each release of vLLM takes: options, keys of its JSON settings, environment variables, KV connectors.

The tables (``data/arguments.json``, ``data/envs.json``) are written by ``tools/extract_vllm_arguments.py`` from the
sources of each release.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from . import since

INVERSES = (("--enable-", "--disable-"), ("--disable-", "--enable-"))


class Era(Struct, frozen=True):
    """How one option, key, variable or connector is, from one release on."""

    since: str
    until: str | None = None
    flags: tuple[str, ...] = ()
    part: str = "engine"
    """``engine`` for what LLM() takes too, ``serve`` for the server's own."""
    kind: str = "value"
    """``value``, ``boolean`` (has a --no- form), ``switch`` (has none), ``boolean value``, ``optional value``,
    ``list``, ``append`` or ``json``."""
    type: str = "str"
    """``str``, ``int``, ``float``, ``size`` (32k), ``size or auto``, ``word`` (case and dashes do not matter)."""
    default: Any = UNSET
    """Unset where only running vLLM tells."""
    open: bool = False
    """Other values than the listed choices are taken (plug-ins)."""
    text: bool = False
    """A JSON option that takes plain text too."""
    config: str | None = field(default=None, name="class")
    """The configuration class a JSON option fills, or a connector's class."""
    deprecated: bool = False
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    module: str | None = None
    hybrid: bool = False
    """Whether a KV connector works with the hybrid KV cache manager."""


Spans = list[tuple[str, str | None]]


class Entry(Struct, frozen=True):
    """One name through the releases."""

    eras: tuple[Era, ...]
    choices: dict[str, Spans] = {}


class ConfigClass(Struct, frozen=True):
    """A configuration class that a JSON option fills, and when unknown keys are refused rather than dropped."""

    forbids_extra: Spans
    fields: dict[str, Entry]


class Tables(Struct, frozen=True):
    source: str
    releases: tuple[str, ...]
    options: dict[str, Entry] = {}
    classes: dict[str, ConfigClass] = {}
    connectors: dict[str, Entry] = {}
    environment: dict[str, Entry] = {}


@lru_cache(maxsize=2)
def tables(name: str = "arguments.json") -> Tables:
    """The tables of one data file, decoded once."""
    data = resources.files(__package__).joinpath("data", name).read_bytes()
    return msgspec.json.decode(data, type=Tables)


@lru_cache(maxsize=1)
def _ordered() -> tuple[tuple[int, ...], ...]:
    return tuple(since.release(name) for name in tables().releases)


def newest() -> str:
    """The newest release the tables hold."""
    return tables().releases[-1]


def position(version: str) -> int:
    """Index of the newest listed release that is not newer than ``version``; 0 for what is older than all."""
    return max(bisect_right(_ordered(), since.release(version)) - 1, 0)


def within(first: str, last: str | None, index: int) -> bool:
    """Whether the release at ``index`` lies between two listed releases, both included."""
    releases = tables().releases
    return releases.index(first) <= index and (last is None or index <= releases.index(last))


def after(release: str) -> str | None:
    """The listed release that follows, None after the newest."""
    releases = tables().releases
    index = releases.index(release) + 1
    return releases[index] if index < len(releases) else None


def era_at(entry: Entry, index: int) -> Era | None:
    """The entry as it is in the release at ``index``; None where that release does not have it."""
    return next((era for era in entry.eras if within(era.since, era.until, index)), None)


def choices_at(entry: Entry, index: int) -> tuple[str, ...]:
    """The choices that the release at ``index`` lists."""
    return tuple(word for word, spans in entry.choices.items() if any(within(a, b, index) for a, b in spans))


@dataclass(frozen=True)
class Spelling:
    """What a flag stands for: an option's name, and whether this spelling switches it off."""

    name: str
    negated: bool = False


@dataclass(frozen=True)
class Release:
    """One release's options by name and by spelling."""

    name: str
    index: int
    between: bool = False
    """A build on the way to the next release (0.19.2rc1.dev134): what that release adds may be there already."""

    def era(self, entry: Entry) -> Era | None:
        """The entry as this release has it, None where it does not."""
        found = era_at(entry, self.index)
        return era_at(entry, self.index + 1) if found is None and self.between else found

    @cached_property
    def options(self) -> dict[str, Era]:
        eras = ((name, self.era(entry)) for name, entry in tables().options.items())
        return {name: era for name, era in eras if era is not None}

    @cached_property
    def flags(self) -> dict[str, Spelling]:
        """Every spelling the parser knows, ``--no-`` forms included (argparse's BooleanOptionalAction adds them).

        0.33.0 adds ``--disable-x`` beside ``--enable-x`` (utils/argparse_utils.py: EnableDisableAction).
        """
        found: dict[str, Spelling] = {}
        paired = self.at_least("0.33.0")
        for name, era in self.options.items():
            for flag in era.flags:
                found[flag] = Spelling(name)
                if era.kind == "boolean" and flag.startswith("--"):
                    found.setdefault("--no-" + flag[2:], Spelling(name, negated=True))
                    for prefix, inverse in INVERSES if paired else ():
                        if flag.startswith(prefix):
                            found.setdefault(inverse + flag[len(prefix) :], Spelling(name, negated=True))
        return found

    @cached_property
    def environment(self) -> dict[str, Era]:
        eras = ((name, self.era(entry)) for name, entry in tables("envs.json").environment.items())
        return {name: era for name, era in eras if era is not None}

    def at_least(self, version: str) -> bool:
        return since.release(self.name) >= since.release(version)

    def choices(self, name: str) -> tuple[str, ...]:
        return self.choices_of(tables().options[name])

    def choices_of(self, entry: Entry) -> tuple[str, ...]:
        """The choices this release lists, none where any value is taken."""
        own = choices_at(entry, self.index)
        added = choices_at(entry, self.index + 1) if self.between and own else ()
        return (*own, *(choice for choice in added if choice not in own))

    def connector(self, name: str) -> Era | None:
        entry = tables().connectors.get(name)
        return None if entry is None else self.era(entry)

    def begun_by(self, flag: str) -> list[str]:
        """The known spellings that begin with ``flag``."""
        first = bisect_left(self._sorted_flags, flag)
        if not self._sorted_flags[first : first + 1] or not self._sorted_flags[first].startswith(flag):
            return []
        return [known for known in self.flags if known.startswith(flag)]

    @cached_property
    def _sorted_flags(self) -> list[str]:
        return sorted(self.flags)

    def nearest(self, flag: str) -> str | None:
        """The known spelling most like ``flag``, None where none is near."""
        if flag not in self._near:  # remedies resolve the launch many times, and each look-up takes milliseconds
            near = difflib.get_close_matches(flag, self.flags, n=1, cutoff=0.75)
            self._near[flag] = near[0] if near else None
        return self._near[flag]

    @cached_property
    def _near(self) -> dict[str, str | None]:
        return {}


@lru_cache(maxsize=64)
def release(version: str) -> Release:
    """The listed release that answers for ``version``: itself, or the newest one before it."""
    index, asked = position(version), since.release(version)
    between = asked > _ordered()[index] and "dev" in version and index + 1 < len(_ordered())
    return Release(tables().releases[index], index, between)


def connectors(config: object) -> list[dict[str, Any]]:
    """The connector that a ``--kv-transfer-config`` sets, and those that a MultiConnector holds, at any depth."""
    if not isinstance(config, dict):
        return []
    extra = config.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, dict) else None
    return [config, *(held for one in (inner if isinstance(inner, list) else []) for held in connectors(one))]


@lru_cache(maxsize=1)
def history() -> dict[str, str]:
    """Option name by every flag that any listed release has had."""
    return {flag: name for name, entry in tables().options.items() for era in entry.eras for flag in era.flags}


class Changed(Struct, frozen=True):
    """What became of an option, key or variable: a row of ``data/arguments_changed.toml``."""

    name: str
    since: str
    """First release without it."""
    replacement: str | None
    """What to write instead; None where nothing replaces it."""
    note: str
    source: str
    renamed: bool = False
    """The replacement means the same under another name."""


@lru_cache(maxsize=1)
def changed() -> dict[str, Changed]:
    """Rows of the changed-arguments table by flag, ``flag.key`` or variable."""
    rows = since.table("arguments_changed.toml")["changed"]
    return {row["name"]: msgspec.convert({"replacement": None, **row}, Changed) for row in rows}


def default_of(era: Era) -> Any:
    """The era's literal default, None where vLLM computes it."""
    return None if isinstance(era.default, UnsetType) else era.default


@lru_cache(maxsize=4096)
def default_since(name: str, index: int) -> str:
    """The release since which the option at ``index`` has the default it has there."""
    first = ""
    default: Any = UNSET
    for era in tables().options[name].eras:
        if not within(era.since, None, index):
            break
        if not first or default_of(era) != default:
            first, default = era.since, default_of(era)
    return first
