"""The Hugging Face hub and its local cache: config files whole, weight headers by range requests, nothing written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from ..errors import InputError
from ..facts import ModelFile, ModelSource
from . import safetensors
from .folder import INDEX, OPTIONAL, SINGLE, Weights, weights_of
from .json_text import json_object
from .keys import shown
from .tokenizer import CONFIG, tokenizer_facts
from .web import RefusedError, UnreachableError, Web

MOST_SHARDS_READ = 96
"""More shards than that are not asked one by one for their headers: the index says their bytes in sum."""
FALSE = ("", "0", "off", "no", "false")


class HubSettings(Struct, frozen=True):
    """Where the hub and its cache are, by the variables that huggingface_hub reads (constants.py, 2.4)."""

    endpoint: str
    cache: Path
    token: str | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> HubSettings:
        home_folder = home(environment)
        default = Path(environment.get("XDG_CACHE_HOME") or Path(home_folder, ".cache"), "huggingface")
        own = Path(environment.get("HF_HOME") or default)
        cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or own / "hub"
        return cls(
            endpoint=(environment.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/"),
            cache=_home(Path(cache), home_folder),
            token=_token(environment, own),
        )


def home(environment: Mapping[str, str]) -> str:
    """The service's home; ``/`` where it has none, as in a container under a uid that /etc/passwd does not know."""
    try:
        return environment.get("HOME") or str(Path.home())
    except RuntimeError:
        return "/"


def _home(path: Path, home: str) -> Path:
    text = str(path)
    return Path(home + text[1:]) if text == "~" or text.startswith("~/") else path


def _token(environment: Mapping[str, str], home: Path) -> str | None:
    if environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() not in FALSE:
        return None
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        # A collected environment carries "<set>" in place of secrets; such a value is no token.
        value = environment.get(name, "").strip()
        if value and value != "<set>":
            return value
    try:
        text = Path(environment.get("HF_TOKEN_PATH") or home / "token").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text or None


def cached_snapshot(settings: HubSettings, name: str, revision: str | None) -> tuple[Path, str] | None:
    """Folder and commit of a model's snapshot in the local cache, None where it has none of that revision."""
    folder = settings.cache / ("models--" + name.replace("/", "--"))
    wanted = revision or "main"
    try:
        commit = (folder / "refs" / wanted).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError, ValueError):
        commit = wanted
    if not re.fullmatch(r"[\w.-]{1,64}", commit):
        return None
    snapshot = folder / "snapshots" / commit
    return (snapshot, commit) if snapshot.is_dir() else None


class HubModel:
    """One model on the hub: which files it has and how to read them. Raises InputError for what the person can mend."""

    def __init__(self, settings: HubSettings, name: str, revision: str | None) -> None:
        self.settings, self.name, self.asked = settings, name, revision
        headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        self.web = Web(headers)
        info = self._info()
        self.commit = str(info.get("sha") or revision or "main")
        self.files: dict[str, int | None] = {}
        self.digests: dict[str, str] = {}
        siblings = info.get("siblings")
        for entry in siblings if isinstance(siblings, list) else ():
            file = entry.get("rfilename") if isinstance(entry, Mapping) else None
            if not isinstance(file, str):
                continue
            size, lfs = entry.get("size"), entry.get("lfs")
            self.files[file] = size if isinstance(size, int) and 0 <= size < 1 << 50 else None
            if isinstance(lfs, Mapping) and isinstance(lfs.get("sha256"), str):
                self.digests[file] = lfs["sha256"]

    def _info(self) -> dict[str, Any]:
        revision = quote(self.asked or "main", safe="")
        url = f"{self.settings.endpoint}/api/models/{self.name}/revision/{revision}?blobs=true"
        return json_object(self._get(url), f"the hub's answer about {self.name}")

    def _get(self, url: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            return self.web.get(url, start, length)
        except RefusedError as error:
            raise self._explained(error) from None

    def _explained(self, error: RefusedError) -> Exception:
        """What the hub's refusal means for the person, by its X-Error-Code (huggingface_hub utils/_http.py, 2.4)."""
        page = f"{self.settings.endpoint}/{self.name}"
        if error.code == "GatedRepo":
            advice = (
                "ask for access with the account of the token in use"
                if self.settings.token
                else "accept its terms there and set HF_TOKEN (or run: hf auth login)"
            )
            return InputError(f"{self.name} is a gated model ({page}): {advice}")
        if error.code == "RevisionNotFound":
            return InputError(f"{self.name} has no revision {shown(self.asked or 'main')}")
        if error.code == "EntryNotFound":
            return InputError(f"{self.name} lacks a file that its listing names: {error.message}")
        if error.code == "RepoNotFound" or error.status in (401, 404):
            private = "" if self.settings.token else ", unless it is private: then set HF_TOKEN"
            return InputError(f"there is no model {self.name} on {self.settings.endpoint}{private}")
        if error.status == 403:
            return InputError(
                f"{self.settings.endpoint} forbids access to {self.name}: {error.message or 'status 403'}"
            )
        return UnreachableError(f"{self.settings.endpoint} answered with status {error.status}")

    def url(self, file: str) -> str:
        return f"{self.settings.endpoint}/{self.name}/resolve/{quote(self.commit, safe='')}/{quote(file)}"

    def read(self, file: str) -> bytes | None:
        return self._get(self.url(file)) if file in self.files else None

    def ranges(self, file: str) -> safetensors.ByteRange:
        url = self.url(file)
        return lambda offset, length: self._get(url, offset, length)

    def source(self) -> ModelSource:
        """The model as facts. Raises InputError for a repository without config.json."""
        config_text = self.read("config.json")
        if config_text is None:
            raise InputError(f"{self.name} on {self.settings.endpoint} has no config.json")
        config = json_object(config_text, f"config.json of {self.name}")
        notes: list[str] = []
        extra: dict[str, Any] = {}
        for field, file in OPTIONAL.items():
            text = self.read(file)
            try:
                if text is not None:
                    extra[field] = json_object(text, f"{file} of {self.name}")
            except InputError as error:
                notes.append(str(error))
        weights = self.weights(config)
        tokenizer, tokenizer_notes = tokenizer_facts(
            # The vocabulary itself stays on the hub: megabytes for a number that config.json holds too.
            lambda file: self.read(file) if file == CONFIG else None,
            self.files.__contains__,
            self.digests.get,
        )
        return ModelSource(
            name=self.name,
            origin="hub",
            where=f"{self.settings.endpoint}/{self.name}",
            config=config,
            weights=weights.groups,
            weight_bytes=weights.bytes,
            weight_format=weights.format,
            files=weights.files,
            tokenizer=tokenizer,
            revision=self.commit,
            notes=(*notes, *weights.notes, *tokenizer_notes),
            **extra,
        )

    def weights(self, config: Mapping[str, Any]) -> Weights:
        claimed: int | None = None
        if INDEX in self.files:
            index = json_object(self.read(INDEX) or b"", f"{INDEX} of {self.name}")
            names, claimed = safetensors.shards(index, f"{INDEX} of {self.name}")
        elif SINGLE in self.files:
            names = (SINGLE,)
        else:
            listed = sorted(file for file in self.files if file.endswith(".safetensors") and "/" not in file)
            names = tuple(file for file in listed if not file.startswith("consolidated")) or tuple(listed)
        if not names:
            pickled = tuple(f for f in self.files if f.startswith("pytorch_model") and f.endswith(".bin"))
            files = tuple(ModelFile(name=file, bytes=self.files[file] or 0) for file in pickled)
            return Weights(files=files, format="bin" if pickled else None)
        if len(names) > MOST_SHARDS_READ:
            files = tuple(ModelFile(name=name, bytes=self.files.get(name) or 0) for name in names)
            note = f"weight bytes are the index's own total: {len(names)} shards were not asked one by one"
            return Weights((), claimed, "safetensors", files, (note,))
        with ThreadPoolExecutor(max_workers=8) as pool:
            return weights_of(list(pool.map(self._shard, names)), config, claimed)

    def _shard(self, name: str) -> tuple[safetensors.Header | None, ModelFile]:
        size = self.files.get(name)
        if name not in self.files:
            return None, ModelFile(name=name, bytes=0, problem="missing")
        try:
            if size is None:
                size = self.web.size(self.url(name))
            return safetensors.file_facts(self.ranges(name), size or 0, name)
        except (InputError, UnreachableError, RefusedError) as error:
            return None, ModelFile(name=name, bytes=size or 0, problem=f"unreadable: {error}")


def offline_by(environment: Mapping[str, str]) -> bool:
    """Whether HF_HUB_OFFLINE (or transformers' own variable) forbids the network."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(environment.get(name, "").lower() not in FALSE for name in names)


def hub_id(reference: str) -> bool:
    """Whether the text can be the id of a model on the hub (huggingface_hub utils/_validators.py)."""
    return bool(re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", reference)) and not re.search(
        r"\.\.|--|\.git$|[.-]$", reference
    )
