"""Opens a model wherever it is: a folder, a GGUF file, the hub's cache, the hub, Ollama, or the built-in catalogue."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from ..errors import InputError
from ..facts import ModelFile, ModelSource
from ..facts.model import Origin
from . import catalogue
from .folder import read_folder
from .hub import HubModel, HubSettings, cached_snapshot, hub_id, offline_by
from .keys import shown
from .web import RefusedError, UnreachableError, Web

MOST_REFERENCE = 4096


OTHER_FOLDERS = {
    "params.json": ": params.json is Mistral's own format",
    "model_index.json": ": model_index.json is that of a diffusers pipeline, which no LLM server here takes",
    "snapshots": ": it is the hub cache's folder of a model; name the model, or the folder below snapshots/",
}
"""What else a folder may be, by the name that tells it."""


def open_model(
    reference: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> ModelSource:
    """Everything that the files of ``reference`` say, whatever it is; ``origin`` tells which it was.

    ``offline`` (or HF_HUB_OFFLINE) uses no network at all. A hub that does not answer is stood in for by its local
    cache, then by the catalogue, and a note says so. ``environment`` is that of the service (HF_HOME, HF_ENDPOINT,
    HF_TOKEN, OLLAMA_MODELS). Raises InputError, one sentence naming the reference, for what cannot be opened.
    """
    reference = reference.strip()
    if not reference or len(reference) > MOST_REFERENCE or not reference.isprintable():
        raise InputError(f"{shown(reference)} names no model")
    offline = offline or offline_by(environment)
    settings = HubSettings.of(environment)
    if reference.startswith("ollama:"):
        return _ollama(reference, environment)
    if reference.startswith(("http://", "https://")):
        return _url(reference, settings, revision, offline)
    path = _expanded(reference)
    if _exists(path):
        return _local(path)
    if reference.lower().endswith((".gguf", ".json", ".safetensors")) or reference.startswith((".", "/", "~")):
        raise InputError(f"there is no file or folder {reference}")
    name, _, tag = reference.partition(":")
    if not hub_id(name):
        raise InputError(
            f"{shown(reference)} is no file, no folder and no Hugging Face id (owner/name), nor ollama:NAME or a URL"
        )
    if "/" not in name and (known := catalogue.find(name)) is not None:
        name = known.name
    return _by_id(name, tag or None, settings, revision, offline)


def _expanded(reference: str) -> Path:
    try:
        return Path(reference).expanduser()
    except RuntimeError:  # no such user, or one without a home
        return Path(reference)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file system takes
        return False


def _local(path: Path) -> ModelSource:
    from .gguf import read_gguf

    if path.is_dir():
        if (path / "config.json").is_file():
            return read_folder(path, path.resolve().name or str(path), "folder")
        return read_gguf(_only_gguf(path), origin="folder")
    if not path.is_file():  # a device or a pipe would be waited for
        raise InputError(f"{path} is neither a folder nor a file")
    if path.name == "config.json":
        return read_folder(path.parent, path.resolve().parent.name, "folder")
    if path.suffix.lower() == ".gguf" or _starts_as_gguf(path):
        return read_gguf(path)
    raise InputError(f"{path} is neither a model folder nor a GGUF file")


def _only_gguf(folder: Path) -> Path:
    """The one GGUF model of a folder without config.json; the first part where it is split."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror or error}") from None
    if "adapter_config.json" in names:
        raise InputError(f"{folder} holds a LoRA adapter, not a model: name the base model it was trained on")
    found = [name for name in names if name.lower().endswith(".gguf")]
    models = [
        name for name in found if "mmproj" not in name.lower() and not re.search(r"-(?!00001)\d{5}-of-\d{5}\.", name)
    ]
    if len(models) == 1:
        return folder / models[0]
    if models:
        raise InputError(f"{folder} holds {len(models)} GGUF models: name one of {', '.join(models[:6])}")
    known = next((meaning for name, meaning in OTHER_FOLDERS.items() if name in names), "")
    raise InputError(f"{folder} has no config.json and no GGUF file: it is no model folder{known}")


def _starts_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _ollama(reference: str, environment: Mapping[str, str]) -> ModelSource:
    from .gguf import read_gguf
    from .ollama import blob_of

    source = read_gguf(blob_of(reference.partition(":")[2], environment), origin="ollama")
    return replace(source, name=reference)


def _by_id(name: str, tag: str | None, settings: HubSettings, revision: str | None, offline: bool) -> ModelSource:
    cached = _cached(settings, name, tag, revision)
    if cached is not None and (offline or _complete(cached)):
        return cached
    why = "no network is to be used (offline)"
    if not offline:
        try:
            hub = HubModel(settings, name, revision)
            return _hub_gguf(hub, tag) if tag or _only_holds_gguf(hub) else hub.source()
        except UnreachableError as error:
            why = f"{settings.endpoint} could not be reached: {error}"
    if cached is not None:
        return replace(cached, notes=(*cached.notes, f"read from the hub's local cache: {why}"))
    known = None if tag else catalogue.find(name)
    if known is not None:
        ignored = f"; revision {revision} is not looked at" if revision else ""
        return replace(known, notes=(*known.notes, f"taken from the built-in catalogue: {why}{ignored}"))
    suggestions = catalogue.near(name)
    meant = f"; the built-in catalogue has {', '.join(suggestions)}" if suggestions else ""
    raise InputError(f"{name} is neither in the local Hugging Face cache nor in the catalogue, and {why}{meant}")


def _cached(settings: HubSettings, name: str, tag: str | None, revision: str | None) -> ModelSource | None:
    """The model as far as the hub's local cache holds it, None where it holds neither configuration nor GGUF file."""
    snapshot = cached_snapshot(settings, name, revision)
    if snapshot is None:
        return None
    folder, commit = snapshot
    if tag is None and (folder / "config.json").is_file():
        return read_folder(folder, name, "hub cache", commit)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
    file = _gguf_of(names, tag)
    if file is None:
        return None
    from .gguf import read_gguf

    return replace(read_gguf(folder / file, origin="hub cache"), name=name, revision=commit)


def _complete(source: ModelSource) -> bool:
    """Whether a cached snapshot holds its weights too: a server would download the rest at its start."""
    return bool(source.files) and all(file.problem is None for file in source.files)


def _only_holds_gguf(hub: HubModel) -> bool:
    return "config.json" not in hub.files and any(name.endswith(".gguf") for name in hub.files)


def _hub_gguf(hub: HubModel, tag: str | None) -> ModelSource:
    found = _gguf_of(hub.files, tag)
    if found is not None:
        return _remote_gguf(hub.web, hub.url, found, hub.files, hub.name, "hub", hub.commit)
    has = ", ".join(sorted(name for name in hub.files if name.endswith(".gguf"))[:8]) or "none"
    raise InputError(f"{hub.name} has no GGUF file for {shown(tag)}; its GGUF files: {has}")


def _gguf_of(names: Iterable[str], tag: str | None) -> str | None:
    """The file that llama-server's ``-hf owner/name[:TAG]`` takes: that of the tag, else Q4_K_M, else the first."""
    models = sorted(name for name in names if name.endswith(".gguf") and "mmproj" not in name.lower())
    for wanted in [tag] if tag else ["Q4_K_M", ""]:
        pattern = re.compile(rf"(^|[-._/]){re.escape(wanted)}([-._/]|$)", re.IGNORECASE) if wanted else re.compile("")
        found = next((name for name in models if pattern.search(name)), None)
        if found is not None:
            return found
    return None


def _url(reference: str, settings: HubSettings, revision: str | None, offline: bool) -> ModelSource:
    parts = urlsplit(reference)
    on_hub = reference.startswith((settings.endpoint + "/", "https://huggingface.co/", "https://hf.co/"))
    path = parts.path.strip("/")
    if on_hub and hub_id(path):
        return _by_id(path, None, settings, revision, offline)
    if not path.lower().endswith(".gguf"):
        raise InputError(f"{reference} is neither a GGUF file nor a model's page on the hub")
    if offline:
        raise InputError(f"{reference} cannot be read: no network is to be used (offline)")
    if on_hub:
        reference = reference.replace("/blob/", "/resolve/", 1)
    mine = reference.startswith(settings.endpoint + "/") and settings.token
    web = Web({"Authorization": f"Bearer {settings.token}"} if mine else {})
    base, _, file = reference.partition("?")[0].rpartition("/")
    query = f"?{parts.query}" if parts.query else ""
    try:
        return _remote_gguf(web, lambda name: f"{base}/{name}{query}", file, {}, None, "url", None)
    except UnreachableError as error:
        raise InputError(f"{reference} could not be reached: {error}") from None


def _remote_gguf(
    web: Web,
    url: Callable[[str], str],
    file: str,
    sizes: Mapping[str, int | None],
    name: str | None,
    origin: Origin,
    commit: str | None,
) -> ModelSource:
    """A GGUF model over byte ranges: the header of each part, and nothing else, is read."""
    from . import gguf

    def part(path: str) -> tuple[gguf.Header | None, ModelFile]:
        address = url(path)
        short = path.rpartition("/")[2]
        try:
            size = sizes.get(path) or web.size(address)
            if size is None:
                raise InputError(f"{address}: the server does not say how long the file is")

            def read(offset: int, length: int) -> bytes:
                return web.get(address, offset, length)

            problem = gguf.not_gguf(read(0, 64))
            if problem:
                return None, ModelFile(name=short, bytes=size, problem=problem)
            header = gguf.read_header(read, size, address)
            return header, gguf.file_of(header, short, size)
        except RefusedError as error:
            if error.status == 404:
                return None, ModelFile(name=short, bytes=0, problem="missing")
            raise InputError(f"{address} cannot be read: the server answers with status {error.status}") from None

    first, facts = part(file)
    if first is None:
        raise InputError(f"{url(file)} is no GGUF file: {facts.problem}")
    headers, files = [first], [facts]
    folder = file.rpartition("/")[0]
    for other in gguf.other_parts(first, file.rpartition("/")[2], url(file)):
        header, facts = part(f"{folder}/{other}" if folder else other)
        headers.append(header)  # type: ignore[arg-type]  # a missing part is noted, not fatal
        files.append(facts)
    source = gguf.source_from(headers, files, name=name or file.rpartition("/")[2], where=url(file), origin=origin)
    return replace(source, revision=commit)
