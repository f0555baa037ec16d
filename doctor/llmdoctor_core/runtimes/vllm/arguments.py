"""vLLM's command line as typed: which setting each word gives in a release, and what that release does not take.

Follows vLLM's FlexibleArgumentParser (utils/argparse_utils.py, before 0.11.1 utils.py) and Python's argparse under it:
underscores for dashes, ``-O3``, dotted JSON keys, ``--config``, abbreviations that are a unique prefix.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import ge, gt, le, lt
from typing import Any, Literal

import yaml

from llmdoctor_core.facts import Argument, ArgumentProblem
from llmdoctor_core.runtimes.numbers import WHOLE

from . import releases, since
from .releases import ConfigClass, Era, Release, Spelling

Origin = Literal["given", "environment", "config file"]

DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
PROBLEM_KINDS = Literal["unknown", "removed", "renamed", "invalid", "incomplete", "ignored"]
TRUTH_WORDS = ("true", "false", "1", "0", "yes", "no", "on", "off")
MAX_CONFIG_BYTES = 1 << 20
FLAT_SPECULATION = "0.7.3"
"""The newest listed release in which speculative decoding had flags of its own (--speculative-model)."""


@dataclass(frozen=True)
class CommandLine:
    """A command line taken apart: variables set in front, the command, its arguments."""

    environment: dict[str, str]
    command: tuple[str, ...]
    words: tuple[str, ...]
    module: bool = False
    """Started as ``python -m vllm.entrypoints...``, which does not look at a positional model."""


def split(argv: Sequence[str]) -> CommandLine:
    """``VLLM_X=1 python -m vllm.entrypoints.openai.api_server --port 80`` in parts; bare arguments have no command."""
    words = list(argv)
    environment: dict[str, str] = {}
    while words and (words[0] == "env" or ASSIGNMENT.fullmatch(words[0])):
        match = ASSIGNMENT.fullmatch(words.pop(0))
        if match:
            environment[match[1]] = match[2]
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        base = word.rsplit("/", 1)[-1]
        if word == "-m" and following.startswith("vllm"):
            command, rest = _serve(words, index + 2)
            return CommandLine(environment, command, rest, module=command[-1] != "serve")
        if base == "api_server.py":
            return CommandLine(environment, *_serve(words, index + 1), module=True)
        if base in ("vllm", "vllm.exe"):
            return CommandLine(environment, *_serve(words, index + 1))
        if word.startswith("-") and index == 0:
            break
    return CommandLine(environment, *_serve(words, 0))


def _serve(words: list[str], start: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if words[start : start + 1] == ["serve"]:
        start += 1
    return tuple(words[:start]), tuple(words[start:])


def human_size(text: str) -> int:
    """``32k`` is 32,000, ``32K`` 32,768; a fraction only with a decimal suffix. ValueError for anything else.

    vLLM utils/argparse_utils.py: human_readable_int.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        return int(text.strip())
    number, suffix = match.groups()
    if suffix in DECIMAL:
        return int(float(number) * DECIMAL[suffix])
    if "." in number:
        raise ValueError(f"no fraction with the binary suffix {suffix}: {number}{suffix.lower()} is decimal")
    return int(number) * BINARY[suffix]


@dataclass
class Reading:
    """What a release makes of a command line."""

    line: CommandLine
    settings: dict[str, Argument] = field(default_factory=dict)
    problems: list[ArgumentProblem] = field(default_factory=list)

    @property
    def command(self) -> tuple[str, ...]:
        return self.line.command

    @property
    def environment(self) -> dict[str, str]:
        """Variables set in front of the command."""
        return self.line.environment

    def value(self, name: str) -> Any:
        return self.settings[name].value if name in self.settings else None


def read(argv: Sequence[str], version: str, config_files: dict[str, str] | None = None) -> Reading:
    """The settings that ``argv`` gives in this version, with a problem for each word it does not take."""
    line = split(argv)
    reader = _Reader(releases.release(version), version, line)
    try:
        words = reader.with_config_file([(word, "given") for word in line.words], config_files or {})
        reader.arguments(reader.nested(reader.normalised(words)), line.module)
    except RecursionError:
        reader.problem("invalid", "the command line", "JSON nested too deep")
    return reader.reading


def model_reference(
    argv: tuple[str, ...], config_files: dict[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> str | None:
    """The model that the arguments, or the config file they name, give: an id or a folder; no variable does."""
    model = read(argv, releases.newest(), config_files).value("model")
    return model if isinstance(model, str) else None


def draft_reference(argv: tuple[str, ...]) -> str | None:
    """The draft model the arguments name, also by a flag that newer releases no longer take; or None."""
    reading = read(argv, releases.newest())
    speculative = reading.value("speculative_config")
    draft = speculative.get("model") if isinstance(speculative, dict) else reading.value("spec_model")
    if draft is None:
        draft = read(argv, FLAT_SPECULATION).value("speculative_model")
    return draft if isinstance(draft, str) and not draft.startswith("[") else None


def config_references(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of YAML files the arguments name, to be read at the rim."""
    words = split(argv).words
    return tuple(words[i + 1] for i, word in enumerate(words[:-1]) if word == "--config")


ADAPTER_CONFIG = "adapter_config.json"


def adapter_folders(modules: Any) -> dict[str, str]:
    """Name and path of each LoRA adapter in the value of ``--lora-modules``: ``name=path``, or JSON with both."""
    folders: dict[str, str] = {}
    for word in modules if isinstance(modules, list) else []:
        text = str(word).strip()
        if text.startswith("{"):
            try:
                given = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(given, dict) and given.get("path"):
                folders[str(given.get("name"))] = str(given["path"])
        elif "=" in text:
            name, _, path = text.partition("=")
            folders[name] = path
    return folders


def adapter_references(argv: tuple[str, ...], config_files: dict[str, str] | None = None) -> tuple[str, ...]:
    """Paths of the adapters' configurations that the arguments name, to be read at the rim where they are local."""
    folders = adapter_folders(read(argv, releases.newest(), config_files).value("lora_modules"))
    return tuple(f"{folder}/{ADAPTER_CONFIG}" for folder in folders.values())


Word = tuple[str, Origin]


class _Reader:
    """Applies one release's options to words."""

    def __init__(self, release: Release, version: str, line: CommandLine) -> None:
        self.release = release
        self.version = version
        self.reading = Reading(line)

    def problem(self, kind: PROBLEM_KINDS, flag: str, detail: str, **more: str | None) -> None:
        self.reading.problems.append(ArgumentProblem(kind=kind, flag=flag, detail=detail, **more))

    # --- --config FILE

    def with_config_file(self, words: list[Word], files: dict[str, str]) -> list[Word]:
        """Words of the file named by ``--config`` in front of the others, so that the command line wins."""
        texts = [word for word, _ in words]
        for word in texts:
            if word.startswith("--config="):
                self.problem(
                    "ignored",
                    "--config",
                    "vLLM reads the file only when it is a word of its own",
                    replacement=f"--config {word.partition('=')[2]}",
                )
        if "--config" not in texts:
            return words
        index = texts.index("--config")
        if index + 1 == len(texts):
            self.problem("incomplete", "--config", "names no file")
            return words[:index]
        path = texts[index + 1]
        rest = words[:index] + words[index + 2 :]
        first = 1 if rest and not rest[0][0].startswith("-") else 0
        return rest[:first] + self._config_words(path, files) + rest[first:]

    def _config_words(self, path: str, files: dict[str, str]) -> list[Word]:
        if path.rpartition(".")[2] not in ("yaml", "yml"):
            self.problem("invalid", "--config", f"{path}: vLLM takes only .yaml and .yml")
            return []
        text = files.get(path)
        if text is None:
            self.problem("incomplete", "--config", f"{path} was not read: what it sets is not known")
            return []
        try:
            if len(text) > MAX_CONFIG_BYTES:
                raise ValueError("is larger than a config file can be")
            content = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.problem("invalid", "--config", f"{path} is not YAML: {str(error).splitlines()[0]}")
            return []
        if not isinstance(content, dict):
            self.problem("invalid", "--config", f"{path} holds no keys and values")
            return []
        words: list[Word] = []
        for key, value in content.items():
            words += [(word, "config file") for word in self._config_entry(str(key), value, path)]
        return words

    def _config_entry(self, key: str, value: Any, path: str) -> list[str]:
        """vLLM's load_config_file: true alone is the flag, false nothing (since 0.28.0 the --no- form)."""
        flag = "--" + key
        if value is True:
            return [flag]
        if value is False:
            negative = "--no-" + key.replace("_", "-")
            if negative in self.release.flags and self.release.at_least("0.28.0"):
                return [negative]
            spelling = self.release.flags.get(flag.replace("_", "-"))
            if spelling and releases.default_of(self.release.options[spelling.name]):
                self.problem("ignored", flag, f"{path}: false is dropped before 0.28.0, the option stays on")
            return []
        if isinstance(value, list) and self.release.at_least("0.10.2"):
            return [flag, *map(str, value)] if value else []
        if isinstance(value, dict) and self.release.at_least("0.17.0"):
            return [flag, json.dumps(value, default=str)]
        return [flag, str(value)]

    # --- spelling

    def normalised(self, words: list[Word]) -> list[Word]:
        """Underscores in flags become dashes, and ``-O3`` what the release makes of it."""
        found: list[Word] = []
        for index, (word, origin) in enumerate(words):
            following = words[index + 1][0] if index + 1 < len(words) else ""
            if word.startswith("--"):
                key, equals, value = word.partition("=")
                head, dot, tail = key.partition(".")
                found.append((head.replace("_", "-") + dot + tail + equals + value, origin))
            elif word.startswith("-O"):
                found += [(text, origin) for text in self._optimization(word, following)]
            else:
                found.append((word, origin))
        return found

    def _optimization(self, word: str, following: str) -> list[str]:
        level = word[2:].removeprefix("=")
        if self.release.at_least("0.12.0"):
            if level.startswith("."):
                if self.release.name == "0.12.0":
                    return ["-cc" + level]
                self.problem("removed", word, "-O.key is no longer read", since="0.13.0", replacement="-cc" + level)
                return []
            if not level and following not in ("0", "1", "2", "3"):
                return ["-O"]
            return ["--optimization-level", level] if level else ["--optimization-level"]
        if level and not level.startswith("."):
            return ["--compilation-config", level]
        return ["--compilation-config" + level]

    def nested(self, words: list[Word]) -> list[Word]:
        """Dotted keys gathered into one JSON per option, put last as vLLM does (since 0.9.0)."""
        if not self.release.at_least("0.9.0"):
            return words
        kept: list[Word] = []
        gathered: dict[str, tuple[dict[str, Any], Origin]] = {}
        skip = False
        for index, (word, origin) in enumerate(words):
            if skip:
                skip = False
                continue
            key, equals, value = word.partition("=")
            if not (word.startswith("-") and "." in key) or NEGATIVE_NUMBER.fullmatch(key):
                kept.append((word, origin))
                continue
            if not equals:
                if index + 1 == len(words):
                    self.problem("incomplete", key, "has no value")
                    continue
                value, skip = words[index + 1][0], True
            option, *path = key.removesuffix("+").split(".")
            decoded: Any = value.split(",") if key.endswith("+") else self._dotted_value(value)
            for part in reversed(path):
                decoded = {part: decoded}
            _update(gathered.setdefault(option, ({}, origin))[0], decoded)
        for option, (content, origin) in gathered.items():
            if any(word.partition("=")[0] == option for word, _ in kept):
                self.problem(
                    "ignored", option, f"given whole and by keys: vLLM keeps only the keys {', '.join(content)}"
                )
            kept += [(option, origin), (json.dumps(content), origin)]
        return kept

    def _dotted_value(self, text: str) -> Any:
        if not self.release.at_least("0.9.2"):
            return text
        try:
            return json.loads(text)
        except ValueError:
            pass
        try:
            return human_size(text) if self.release.at_least("0.20.0") else text
        except ValueError:
            return text

    # --- argparse

    def arguments(self, words: list[Word], module: bool) -> None:
        """Each word to the option that takes it; what is left over is the model or a problem."""
        loose: list[Word] = []
        index = 0
        while index < len(words):
            word, origin = words[index]
            index += 1
            if word == "--":
                loose += words[index:]
                break
            if not _is_option(word):
                loose.append((word, origin))
                continue
            flag, equals, value = word.partition("=")
            spelling, matched, attached = self._spelling(flag)
            following = _values(words, index)
            if spelling is None:
                named = bool(loose) or "model" in self.reading.settings
                taken = self._unknown(flag, following, named)
                index += 0 if equals else taken
                continue
            explicit = value if equals else attached
            index += self._take(spelling, matched, explicit, [text for text, _ in following], origin)
        self._positional(loose, module)

    def _spelling(self, flag: str) -> tuple[Spelling | None, str, str | None]:
        """The option a flag means: exactly, as a unique prefix, or as a short flag with its value (``-qfp8``)."""
        flags = self.release.flags
        if flag in flags:
            return flags[flag], flag, None
        matches = {known: flags[known] for known in self.release.begun_by(flag)}
        if not flag.startswith("--") and flag[:2] in flags:
            return flags[flag[:2]], flag[:2], flag[2:]
        if len(set(matches.values())) == 1:
            known = next(iter(matches))
            return matches[known], known, None
        if matches:
            self.problem("invalid", flag, f"could be {', '.join(sorted(matches)[:6])}: write it out")
            return None, flag, None
        return None, flag, None

    def _take(self, spelling: Spelling, flag: str, explicit: str | None, following: list[str], origin: Origin) -> int:
        """Store the option's value; the number of following words it takes."""
        era = self.release.options[spelling.name]
        if era.kind in ("boolean", "switch"):
            return self._switch(spelling, flag, explicit, following, origin)
        if explicit is not None:
            texts, taken = [explicit], 0
        elif era.kind == "list":
            texts, taken = following, len(following)
        else:
            texts, taken = following[:1], min(len(following), 1)
        if era.kind in ("optional value", "boolean value") and not texts:
            self._store(spelling.name, True, origin, flag)
        elif not texts:
            self.problem("incomplete", flag, "has no value")
        else:
            self._convert(spelling.name, era, flag, texts, origin)
        return taken

    def _switch(self, spelling: Spelling, flag: str, explicit: str | None, following: list[str], origin: Origin) -> int:
        word = explicit if explicit is not None else (following[0] if following else "")
        if explicit is None and word.lower() not in TRUTH_WORDS[:2]:
            self._store(spelling.name, not spelling.negated, origin, flag)
            return 0
        wanted = word.lower() in ("true", "1", "yes", "on")
        off = "--no-" + flag.lstrip("-")
        replacement = flag if wanted else (off if off in self.release.flags else f"leave {flag} out")
        self.problem("invalid", flag, f"takes no value ({word}): it is a switch", replacement=replacement)
        return 0 if explicit is not None else 1

    def _convert(self, name: str, era: Era, flag: str, texts: list[str], origin: Origin) -> None:
        try:
            if era.kind == "json":
                value = self._json(name, era, flag, texts[0])
            elif era.kind == "boolean value":
                value = _truth(texts[0])
            elif era.kind in ("list", "append"):
                value = [self._scalar(name, era, text) for text in texts]
            else:
                value = self._scalar(name, era, texts[0])
        except (ValueError, OverflowError) as error:
            self._refuse(name, flag, texts[0], str(error))
            return
        if era.kind == "append" and name in self.reading.settings:
            value = [*self.reading.settings[name].value, *value]
        self._store(name, value, origin, flag)

    def _scalar(self, name: str, era: Era, text: str) -> Any:
        """A value of the option's type. ValueError in the words shown to the person."""
        if text in ("", "None") and era.default is None:
            return None
        value = _number(era.type, text)
        choices = self.release.choices(name)
        if choices and not era.open and str(value) not in choices:
            raise ValueError(f"{text} is none of {', '.join(c for c in choices if c != 'null')}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            _within_bounds(era, value)
        return value

    def _refuse(self, name: str, flag: str, text: str, reason: str) -> None:
        """Note a refused value, and the release that takes it where it is a choice of another one."""
        spans = releases.tables().options[name].choices.get(text)
        if not spans:
            self.problem("invalid", flag, reason)
            return
        first, last = spans[0][0], spans[-1][1]
        changed = (
            first if not releases.within(first, None, self.release.index) else releases.after(last) if last else None
        )
        word = "new in" if changed == first else "gone since"
        self.problem("invalid", flag, f"{reason}; {text} is {word} {changed}" if changed else reason, since=changed)

    # --- JSON settings

    def _json(self, name: str, era: Era, flag: str, text: str) -> Any:
        if text in ("", "None") and era.default is None:
            return None
        if era.text and not re.fullmatch(r"(?s)\s*{.*}\s*", text):
            return text
        if era.config == "CompilationConfig" and text in ("0", "1", "2", "3") and not self.release.at_least("0.12.0"):
            return {"mode" if self.release.at_least("0.11.1") else "level": int(text)}
        expanded = _expand_sizes(text) if self.release.at_least("0.20.0") else text
        try:
            value = json.loads(expanded)
        except ValueError as error:
            raise ValueError(f"{text} is not JSON: {error}") from None
        if era.config and isinstance(value, dict):
            self._check_keys(name, era.config, flag, value)
        elif era.config and value is not None:
            raise ValueError(f"{text} is not a JSON object")
        return value

    def _check_keys(self, name: str, config: str, flag: str, content: dict[str, Any], depth: int = 0) -> None:
        known = releases.tables().classes.get(config)
        if known is None or depth > 4:
            return
        for key, value in content.items():
            entry = known.fields.get(key)
            era = self.release.era(entry) if entry else None
            if entry is None or era is None:
                self._unknown_key(name, known, flag, key, entry)
            elif era.config and isinstance(value, dict):
                self._check_keys(name, era.config, f"{flag}.{key}", value, depth + 1)
            elif entry.choices and not era.open and isinstance(value, str):
                choices = self.release.choices_of(entry)
                if choices and value not in choices:
                    listed = ", ".join(c for c in choices if c != "null")
                    self.problem("invalid", f"{flag}.{key}", f"{value} is none of {listed}")

    def _unknown_key(self, name: str, known: ConfigClass, flag: str, key: str, entry: releases.Entry | None) -> None:
        refused = any(releases.within(a, b, self.release.index) for a, b in known.forbids_extra)
        effect = "vLLM refuses it" if refused else "vLLM drops it without a word"
        where = f"{flag}.{key}"
        row = releases.changed().get(f"--{name.replace('_', '-')}.{key}")
        if entry is not None and not releases.within(entry.eras[0].since, None, self.release.index):
            first = entry.eras[0].since
            self.problem("unknown" if refused else "ignored", where, f"it is new in {first}; {effect}", since=first)
        elif entry is not None:
            gone = releases.after(entry.eras[-1].until or entry.eras[-1].since)
            self.problem(
                "removed" if refused else "ignored",
                where,
                effect + (f"; {row.note}" if row else ""),
                since=gone,
                replacement=row.replacement if row else None,
            )
        else:
            keys = [name for name, field in known.fields.items() if self.release.era(field)]
            near = difflib.get_close_matches(key, keys, n=1)
            self.problem(
                "unknown" if refused else "ignored",
                where,
                f"no such key; {effect}",
                nearest=near[0] if near else None,
            )

    # --- what is left over

    def _unknown(self, flag: str, following: list[Word], named: bool) -> int:
        """Say what became of a flag this release does not have; the number of following words that were its values.

        ``named`` is whether the model is known already, so that a word after a strange flag cannot be the model.
        """
        if self.reading.problems and self.reading.problems[-1].flag == flag:  # ambiguous: said already
            return min(len(following), 1)
        positive = "--" + flag[5:] if flag.startswith("--no-") else flag
        name = releases.history().get(flag) or releases.history().get(positive)
        if name is None:
            near = self.release.nearest(flag)
            known = releases.newest()
            beyond = since.release(self.version) > since.release(known)
            detail = f"nor does {known}, the newest release this doctor knows" if beyond else "no release does"
            self.problem("unknown", flag, detail, nearest=near)
            takes = not self._is_switch(near) if near else named
            return min(len(following), 1) if takes else 0
        eras = [era for era in releases.tables().options[name].eras if {flag, positive} & set(era.flags)]
        first, last = eras[0].since, eras[-1].until
        if not releases.within(first, None, self.release.index):
            self.problem("unknown", flag, f"it is new in {first}", since=first)
        elif last is not None and releases.within(last, None, self.release.index):
            self._gone(flag, positive, last)
        else:
            self.problem("invalid", flag, f"{positive} is a switch without a --no- form in vLLM {self.version}")
        return _taken(eras[-1], following)

    def _gone(self, flag: str, positive: str, last: str) -> None:
        row = releases.changed().get(positive)
        gone = releases.after(last)
        self.problem(
            "renamed" if row and row.renamed else "removed",
            flag,
            row.note if row else "nothing replaces it",
            since=gone,
            replacement=row.replacement if row else None,
        )

    def _is_switch(self, flag: str) -> bool:
        return self.release.options[self.release.flags[flag].name].kind in ("boolean", "switch")

    def _positional(self, loose: list[Word], module: bool) -> None:
        """The model: ``vllm serve`` takes one positional word, ``python -m vllm.entrypoints...`` looks at none."""
        typed = self.reading.settings.get("model")
        named = typed is not None and typed.origin == "given"
        if named and self.reading.command[-1:] == ("serve",) and not self.release.at_least("0.11.0"):
            self.problem(
                "invalid",
                "--model",
                "before 0.11.0 vllm serve takes the model only as a positional word",
                replacement=f"vllm serve {typed.value if typed else ''}",
            )
        if loose and self._name_before_model(loose[0][0]):
            self.problem(
                "invalid",
                "--served-model-name",
                "since 0.17.0 the model stands first where --served-model-name is given",
                since="0.17.0",
                replacement=f"vllm serve {loose[0][0]} ...",
            )
        if loose and module:
            word = loose[0][0]
            self.problem(
                "ignored",
                word,
                "python -m vllm.entrypoints... does not look at a positional model",
                replacement=f"--model {word}",
            )
        if loose and not named:
            word, origin = loose[0]
            self._store("model", word, origin, None)
        for text, _ in loose if named and not module else loose[1:]:
            self.problem("unknown", text, "vLLM takes one positional word, the model")

    def _name_before_model(self, model: str) -> bool:
        """vLLM takes several names, the model among them, where the names come first: it refuses such a line."""
        served, line = self.reading.settings.get("served_model_name"), self.reading.line
        if served is None or served.origin != "given" or not self.release.at_least("0.17.0"):
            return False
        return line.command[-1:] == ("serve",) and line.words[0] != model and "--config" not in line.words

    def _store(self, name: str, value: Any, origin: Origin, flag: str | None) -> None:
        self.reading.settings[name] = Argument(name=name, value=value, origin=origin, flag=flag)


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not NEGATIVE_NUMBER.fullmatch(word) and " " not in word


def _values(words: list[Word], start: int) -> list[Word]:
    end = start
    while end < len(words) and not _is_option(words[end][0]):
        end += 1
    return words[start:end]


def _taken(era: Era, following: list[Word]) -> int:
    if era.kind in ("boolean", "switch"):
        return 0
    return len(following) if era.kind == "list" else min(len(following), 1)


def _update(original: dict[str, Any], change: Any) -> None:
    """vLLM's recursive_dict_update: dicts merge, lists grow, the later value wins."""
    if not isinstance(change, dict):
        return
    for key, value in change.items():
        old = original.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            _update(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            original[key] = old + value
        else:
            original[key] = value


def _expand_sizes(text: str) -> str:
    """``{"bytes": 80m}``: vLLM reads sizes in JSON outside of strings (engine/arg_utils.py, since 0.20.0)."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(
            r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", lambda match: str(human_size(match.group())), parts[index]
        )
    return "".join(parts)


def _number(kind: str, text: str) -> Any:
    if kind in ("size", "size or auto", "int"):
        if kind == "size or auto" and text.strip().lower() in ("auto", "-1"):
            return -1
        try:
            return int(text) if kind == "int" else human_size(text)
        except ValueError as error:
            words = "an integer" if kind == "int" else "a number like 4096, 32k or 32K"
            said = str(error) if "suffix" in str(error) else f"{text} is not {words}"
            raise ValueError(said) from None
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{text} is not a number") from None
    if kind == "word":
        return text.lower().replace("-", "_")
    if kind == "pairs":
        return _pairs(text)
    return text


def _pairs(text: str) -> dict[str, int]:
    """``image=16,video=2``, as ``--limit-mm-per-prompt`` took it up to 0.8.4."""
    pairs: dict[str, int] = {}
    for part in text.split(","):
        key, equals, number = part.partition("=")
        if not equals or not WHOLE.fullmatch(number):
            raise ValueError(f"{text} is not like image=16,video=2")
        pairs[key.strip()] = int(number)
    return pairs


def _within_bounds(era: Era, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    limits = ((era.gt, "more than", gt), (era.ge, "at least", ge), (era.lt, "less than", lt), (era.le, "at most", le))
    for limit, words, holds in limits:
        if limit is not None and not holds(value, limit):
            raise ValueError(f"{value:g} must be {words} {limit:g}")


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text} is neither true nor false")
    return text.lower() == "true"
