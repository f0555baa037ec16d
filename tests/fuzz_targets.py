"""The doors through which a stranger's bytes come in, each as a function of bytes that may raise InputError alone."""

from __future__ import annotations

import io
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

from msgspec.structs import replace

from llmdoctor_core import case, deploy, fleet, models, plugins
from llmdoctor_core.bundle import pack
from llmdoctor_core.case import Case
from llmdoctor_core.derive import DERIVED, Facts
from llmdoctor_core.errors import InputError
from llmdoctor_core.examine import DEFAULT_POLICY, Examination, examine
from llmdoctor_core.facts import DraftSource, LaunchRequest, ModelSource, Unavailable
from llmdoctor_core.finding import Outcome
from llmdoctor_core.gpu_table import gpus_from, links_from
from llmdoctor_core.intake import Intake, build_cases
from llmdoctor_core.models import catalogue, gguf, safetensors
from llmdoctor_core.models.config import weight_shape
from llmdoctor_core.models.folder import read_folder
from llmdoctor_core.models.json_text import json_object
from llmdoctor_core.models.open import open_model
from llmdoctor_core.models.weights import bytes_per_rank
from llmdoctor_core.redact import Redactor
from llmdoctor_core.remedy import launch_command, plans
from llmdoctor_core.report import FORMATS, View, renderer
from llmdoctor_core.report import diagnosis as diagnosis_report
from llmdoctor_core.triage import case_from, findings, triage, triage_lines

SECTION = re.compile(rb"^--- ([A-Za-z0-9_][\w.-]{0,80})\n", re.MULTILINE)
"""A line that begins another file in an input that stands for several."""
MOST_FILES = 8
GPU = "A100-80GB"


class CrashedError(Exception):
    """An examination that holds an ERROR: a check or a derivation of ours crashed."""


def files_of(data: bytes, first: str) -> dict[str, bytes]:
    """The files that an input stands for; what precedes the first ``--- NAME`` line is the file ``first``."""
    head, *rest = SECTION.split(data, maxsplit=MOST_FILES)
    named = {name.decode("ascii", "replace"): text for name, text in zip(rest[::2], rest[1::2], strict=True)}
    return ({first: head} if head or not named else {}) | named


@lru_cache(maxsize=1)
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="llmdoctor-fuzz-")


def _file(data: bytes, name: str) -> Path:
    path = Path(_scratch().name) / name
    path.write_bytes(data)
    return path


def _folder(files: dict[str, bytes]) -> Path:
    folder = Path(_scratch().name) / "model"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def examined(subject: Case) -> Examination:
    """The case examined with the whole catalogue. Raises what a check or derivation raised: an ERROR hides nothing."""
    loaded = plugins.catalogue()
    found = examine(subject, loaded.checks, DEFAULT_POLICY, loaded.broken, "fuzzed")
    for finding in found.findings:
        if finding.outcome is Outcome.ERROR:
            _raise_again(subject)
            raise CrashedError(f"{finding.code}: {finding.message}")
    return found


def _raise_again(subject: Case) -> None:
    """Run what ``examine`` ran without its nets, so that the crash shows where it happened."""
    facts = Facts(subject)
    for kind, derivation in DERIVED.items():
        facts._known[kind] = derivation(facts)
    for check in plugins.catalogue().checks:
        arguments: dict[str, Any] = {}
        for need in check.needs():
            fact = facts.get(need.fact)
            missing = isinstance(fact, Unavailable)
            if missing and not need.reasoned and not need.optional:
                break
            arguments[need.parameter] = None if missing and not need.reasoned else fact
        else:
            for finding in check.function(**arguments):
                _ = finding.message


def reported(*examinations: Examination) -> None:
    """Every format renders, as UTF-8: one examination in full, several in Korean."""
    several = len(examinations) > 1
    view = View(
        language="ko" if several else "en",
        verbosity=0 if several else 2,
        packages=plugins.catalogue().packages,
        anchor="launch.yaml",
    )
    for name in FORMATS:
        renderer(name)(examinations, view).encode("utf-8")


def _forecasts(source: ModelSource, *launches: LaunchRequest) -> None:
    """The model as it stands in launches of one kind of GPU: forecast, the first examined by all checks."""
    first, *others = (Case(launch=launch, model=source, gpus=gpus_from(GPU)) for launch in launches)
    examined(first)
    for other in others:
        facts = Facts(other)
        for kind, derivation in DERIVED.items():
            facts._known[kind] = derivation(facts)


VLLM = LaunchRequest(runtime="vllm", argv=("vllm", "serve", "m"), version="0.11.0", model="m")
VLLM_SPLIT = replace(
    VLLM, argv=(*VLLM.argv, "-tp", "2", "--kv-cache-dtype", "fp8", "--max-model-len", "4096"), version="0.32.0"
)
LLAMA = LaunchRequest(runtime="llamacpp", argv=("llama-server", "-m", "m.gguf"), version="b11434", model="m.gguf")
LLAMA_SPLIT = replace(LLAMA, argv=(*LLAMA.argv, "-c", "32768", "--parallel", "3", "-ctk", "q8_0", "--swa-full"))


def config(data: bytes) -> None:
    """A model folder: config.json alone, or several files."""
    files = files_of(data, "config.json")
    folder = _folder(files)
    text = files.get("config.json", b"")
    try:
        source = ModelSource(name="m", origin="folder", where="m", config=json_object(text, "config.json"))
    except InputError:
        source = None
    if source is not None:
        try:
            bytes_per_rank(models.describe(source), tensor_parallel=2, pipeline_parallel=2, stage=1)
        except InputError:
            _forecasts(source, VLLM)
        else:
            _forecasts(source, VLLM, VLLM_SPLIT, LLAMA)
    opened = open_model(str(folder), offline=True)
    if len(files) > 1:
        _forecasts(opened, VLLM)


def gguf_file(data: bytes) -> None:
    """A GGUF file, and the same bytes as the beginning of a longer one."""
    longer = io.BytesIO(data)

    def read(offset: int, length: int) -> bytes:
        longer.seek(offset)
        return longer.read(length)

    source = None
    try:
        header = gguf.read_header(read, 1 << 40, "long.gguf")
        found = gguf.file_of(header, "long.gguf", 1 << 40)
        source = gguf.source_from([header], [found], name="long", where="long.gguf", origin="url")
    except InputError:
        source = gguf.read_gguf(_file(data, "m.gguf"))
    try:
        models.describe(source)
    except InputError:
        _forecasts(source, LLAMA)
        raise
    _forecasts(source, LLAMA, LLAMA_SPLIT, VLLM)


def safetensors_file(data: bytes) -> None:
    """A safetensors file, its header over byte ranges, and the same bytes as an index."""
    tiny = catalogue.find("Qwen/Qwen3-0.6B")
    assert tiny is not None
    assert tiny.config is not None
    folder = _folder({"model.safetensors": data})

    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    header, _ = safetensors.file_facts(read, len(data), "model.safetensors")
    for size in (None, 1 << 40):
        try:
            header = safetensors.read_header(read, size, "model.safetensors")
        except InputError:
            continue
        safetensors.groups(header.tensors, *weight_shape(tiny.config))
    with suppress(InputError):
        safetensors.shards(json_object(data[8:], "index"), "index")
    (folder / "config.json").write_bytes(_qwen_config())
    opened = read_folder(folder, "m", "folder")
    if opened.weights:
        _forecasts(opened, VLLM)


@lru_cache(maxsize=1)
def _qwen_config() -> bytes:
    return (Path(__file__).parent / "configs/Qwen--Qwen3-0.6B.json").read_bytes()


def log(data: bytes) -> None:
    """A log, a gzip file or a bundle; what it tells, examined and shown."""
    diagnosed = [triage(_file(data, "server.log"))]
    if data[:2] not in (b"\x1f\x8b", b"PK"):
        diagnosed.append(triage_lines(data.decode("utf-8", "surrogateescape").splitlines(keepends=True)))
    view = View(packages=plugins.catalogue().packages)
    for diagnosis in diagnosed:
        findings(diagnosis)
        Redactor().text("\n".join(diagnosis.tail), "log")
        examination = examined(case_from(diagnosis))
        for show in (diagnosis_report.document, diagnosis_report.render):
            show(diagnosis, examination, view).encode("utf-8")


def case_file(data: bytes) -> None:
    """A case file: examined, shown in every format, mended, written again and read back, joined to a fleet."""
    subject = case.decode(data, "case.json")
    examination = examined(subject)
    reported(examination)
    for plan in plans(examination.findings, subject, plugins.remedies(), plugins.catalogue().checks):
        _ = plan.effect
    if isinstance(subject.launch, LaunchRequest):
        launch_command(subject.launch)
    pack(case=subject, logs={"x": "\n".join(finding.message for finding in examination.findings)})
    again = case.decode(case.encode(subject), "written again")
    reported(examination, fleet.joined({"a": subject, "b": again, "c": Case()}, DEFAULT_POLICY))


def argv(data: bytes) -> None:
    """A command line: ``#`` and ``runtime=`` and its like on the first line, then one word or ``NAME=value`` a line."""
    files = files_of(data, "argv")
    head, *words = files.pop("argv", b"").decode("utf-8", "surrogateescape").split("\n")
    settings = dict(pair.split("=", 1) for pair in head.split() if "=" in pair)
    environment = {}
    while words and re.match(r"[A-Z][A-Z0-9_]*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    model = catalogue.find(settings.get("model", "")) or Unavailable(reason="not in the catalogue")
    draft = catalogue.find(settings.get("draft", ""))
    gpu = settings.get("gpu")
    memory = settings.get("kv_memory", "")
    request = LaunchRequest(
        runtime="llamacpp" if settings.get("runtime") == "llamacpp" else "vllm",
        argv=tuple(words),
        environment=environment,
        version=settings.get("version"),
        entrypoint="llm" if settings.get("entrypoint") == "llm" else "serve",
        model=settings.get("model"),
        config_files={name: text.decode("utf-8", "replace") for name, text in files.items()},
        kv_memory=int(memory) if re.fullmatch(r"\d{1,18}", memory) else None,
    )
    subject = Case(
        launch=request,
        model=model,
        draft=DraftSource(source=draft) if draft else Unavailable(reason="none"),
        gpus=gpus_from(gpu) if gpu else Unavailable(reason="not looked at"),
        links=links_from(gpu) if gpu else Unavailable(reason="not looked at"),
    )
    examination = examined(subject)
    case.decode(case.encode(subject), "written")
    if crc32(data) % 8:
        return  # what follows takes a second: it is done for one input in eight
    reported(examination)
    for plan in plans(examination.findings, subject, plugins.remedies(), plugins.catalogue().checks):
        _ = plan.effect


def deployment(data: bytes) -> None:
    """A deployment file, by the name in front of it; its launches examined with an assumed GPU and no network."""
    ((name, text), *_) = files_of(data, "run.sh").items()
    words = text.decode("utf-8", "replace")
    for found in deploy.read(words, name):
        deploy.split(" ".join(found.argv))
    nowhere = {"HF_HOME": _scratch().name, "HF_HUB_OFFLINE": "1", "OLLAMA_MODELS": _scratch().name}
    cases = build_cases(Intake(file=name, gpu=GPU, offline=True), words, nowhere)
    reported(*(examined(subject) for subject in cases[:2]))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "config": config,
    "gguf": gguf_file,
    "safetensors": safetensors_file,
    "log": log,
    "case": case_file,
    "argv": argv,
    "deploy": deployment,
}


def hold(target: str, data: bytes) -> str | None:
    """Let the input in: its refusal in one sentence, or None where it was taken. Raises whatever else comes out."""
    try:
        TARGETS[target](data)
    except InputError as refusal:
        sentence = str(refusal)
        assert 0 < len(sentence) < 4096, f"a refusal of {len(sentence)} characters"
        sentence.encode("utf-8", "replace")
        return sentence
    return None
