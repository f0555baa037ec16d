"""The model's files and configuration: whether they are whole, trusted, and known to the engine."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from llmdoctor_core.check import check
from llmdoctor_core.facts import (
    Forecast,
    Launch,
    LaunchRequest,
    Model,
    ModelSource,
    Place,
    TargetEnvironment,
    Unavailable,
)
from llmdoctor_core.finding import Finding, fail, seen, skip, warn
from llmdoctor_core.units import gib

from .launches import choices, known_by_name, listed, refusal, release
from .tables import Row, table

HUGGING_FACE_RUNTIMES = ("vllm", "sglang", "trtllm")
SLOW_TOKENIZER_NEEDS = {
    "tokenizer.model": "sentencepiece",
    "spiece.model": "sentencepiece",
    "tekken.json": "mistral-common",
}
"""What reads a vocabulary where there is no tokenizer.json (transformers, vLLM's mistral mode)."""


def _unrecorded(source: ModelSource, key: str) -> bool:
    """Whether this source cannot tell if config.json has the key (built-in catalogue)."""
    return key in source.unrecorded or source.config is None


def _hub_forbidden(request: LaunchRequest) -> str | None:
    """The value of the variable that keeps the server from the hub, None where nothing does."""
    value = request.environment.get("HF_HUB_OFFLINE") or request.environment.get("TRANSFORMERS_OFFLINE")
    return value if value and value.lower() not in ("0", "false") else None


def _stands_in(request: LaunchRequest | None) -> bool:
    """Whether the model that was read was given beside the launch (``--model``): the server loads another copy."""
    if request is None or request.model is None:
        return False
    return not any(request.model in text for text in (*request.argv, *request.config_files.values()))


@check("MODEL510", "model-file-missing-or-truncated", runtimes=HUGGING_FACE_RUNTIMES, remedy="by-hand")
def model_file_missing_or_truncated(
    source: ModelSource, launch: Launch | None, request: LaunchRequest | None
) -> Iterator[Finding]:
    """A weight file is missing, cut off, or a git-lfs pointer instead of the file."""
    if source.gguf is not None or (launch and launch.get("load_format") == "dummy"):
        return
    for file in source.files:
        if file.problem is None:
            continue
        place = Place(kind="file", name=file.name)
        if file.problem.startswith("no weights"):
            if _stands_in(request):
                yield skip("{folder} stands in for the model the launch loads, and holds no weights", folder=file.name)
                continue
            if source.origin == "hub cache" and not (request and _hub_forbidden(request)):
                yield skip("the hub's cache has no weights of {model}: they are downloaded first", model=source.name)
                continue
            if launch and launch.get("load_format") not in (None, *choices("load formats of weight files")):
                yield skip("--load-format {format} reads weights of its own", format=launch.get("load_format"))
                continue
            yield fail(
                "{folder} has a config.json and {problem}: 'Cannot find any model weights with' it. Download them into "
                "the same folder (hf download {model})",
                evidence=(seen("weights", "no .safetensors, .bin or .pt file", file.name),),
                where=place,
                folder=file.name,
                problem=file.problem,
                model=source.name,
            )
        elif "lfs" in file.problem.lower():
            yield fail(
                "{file} is a git-lfs pointer of {bytes} bytes, not the weights: 'Error while deserializing header: "
                "HeaderTooLarge'. Run git lfs install and git lfs pull in the folder, or download with hf download "
                "{model}",
                evidence=(seen("first bytes", file.problem, file.name),),
                where=place,
                file=file.name,
                bytes=file.bytes,
                model=source.name,
            )
        elif file.problem == "missing":
            yield fail(
                "{file} is missing although the index of the weights names it: loading stops with "
                "FileNotFoundError. Download it again (hf download {model}), into the same folder",
                evidence=(seen("file", "missing", file.name),),
                where=place,
                file=file.name,
                model=source.name,
            )
        elif file.problem == "truncated" and file.expected_bytes:
            yield fail(
                "{file} has {have:,} bytes and its header announces {need:,}: {missing} are missing, the download "
                "was cut off ('MetadataIncompleteBuffer', 'HeaderTooLarge'). Delete it and download again (hf "
                "download {model})",
                evidence=(
                    seen("size", f"{file.bytes:,} bytes", file.name),
                    seen("size by its header", f"{file.expected_bytes:,} bytes", file.name),
                ),
                where=place,
                file=file.name,
                have=file.bytes,
                need=file.expected_bytes,
                missing=gib(file.expected_bytes - file.bytes),
                model=source.name,
            )
        else:
            yield fail(
                "{file} cannot be read: {problem}. Look at its permissions and its first bytes, or download it "
                "again (hf download {model})",
                evidence=(seen("file", file.problem, file.name),),
                where=place,
                file=file.name,
                problem=file.problem,
                model=source.name,
            )


def _takes_the_default_model(request: LaunchRequest) -> bool:
    """Whether a command of vLLM names no model, and no config file that could."""
    configured = any(word.partition("=")[0] == "--config" for word in request.argv)
    return request.runtime == "vllm" and bool(request.argv) and request.model is None and not configured


@check("MODEL514", "model-not-reachable", runtimes=(*HUGGING_FACE_RUNTIMES, "llamacpp"))
def model_not_reachable(source: ModelSource | Unavailable, request: LaunchRequest) -> Iterator[Finding]:
    """The model that the launch names cannot be found or read."""
    if not isinstance(source, Unavailable):
        offline = _hub_forbidden(request)
        if source.origin == "hub" and offline:
            yield fail(
                "{model} is on the Hugging Face hub and not in the local cache, and HF_HUB_OFFLINE={value} forbids "
                "to download it: 'LocalEntryNotFoundError'. Download it first (hf download {model}) with the same "
                "HF_HOME",
                evidence=(seen("HF_HUB_OFFLINE", offline, "environment"), seen("model", source.origin, source.where)),
                where=Place(kind="environment", name="HF_HUB_OFFLINE"),
                model=source.name,
                value=offline,
            )
    elif _takes_the_default_model(request):
        yield warn(
            "the launch names no model: vLLM then serves its default ({default}), and no error says so. Name the model "
            "after vllm serve, or with --model; an empty shell variable does this too",
            evidence=(seen("model", "not named", " ".join(request.argv[:4])),),
            where=Place(kind="argument", name="--model"),
            default="Qwen/Qwen3-0.6B, before 0.10 facebook/opt-125m",
        )
    elif source.permanent or request.model is None:
        yield skip("the model was not looked at: {reason}", reason=source.reason)
    else:
        yield fail(
            "the model {model} cannot be read: {reason}. The server will stop at the same place; check the name, "
            "the revision and the access (hf auth login, HF_TOKEN in the service's environment)",
            evidence=(seen("model", source.reason, request.model),),
            where=Place(kind="argument", name="--model"),
            model=request.model,
            reason=source.reason,
        )


@check("MODEL511", "custom-code-not-trusted", runtimes={"vllm"}, remedy="trust-remote-code")
def custom_code_not_trusted(launch: Launch, source: ModelSource, target: TargetEnvironment | None) -> Iterator[Finding]:
    """The model brings its own Python code, and the launch does not allow it to run."""
    if source.gguf is not None or launch.get("trust_remote_code"):
        return
    if _unrecorded(source, "auto_map"):
        yield skip("whether config.json has an auto_map is not known for this source")
        return
    config = source.config or {}
    mapped = config.get("auto_map")
    if not isinstance(mapped, dict) or "AutoConfig" not in mapped:
        return
    kind, version = str(config.get("model_type")), release(launch.version)
    for entry in table("vllm-configs").rows:
        since, last = release(entry.get("since")), release(entry.get("last"))
        if (
            kind in entry["model_types"]
            and version
            and since
            and version >= since
            and (last is None or version <= last)
        ):
            return
    transformers = target.has("transformers") if target else None
    have = release(transformers.version) if transformers else None
    known = next((entry for entry in table("model-types").rows if kind in entry["model_types"]), None)
    native = known is not None and (
        have is None or known.get("since") is None or have >= (release(known["since"]) or have)
    )
    if native:
        return
    yield fail(
        "config.json names code of its own ({code}) and {flag} is not given: 'Please pass the argument "
        "trust_remote_code=True'. Read the code, pin it with --revision and --code-revision, and add "
        "--trust-remote-code",
        evidence=(seen("auto_map", listed(f"{name}={code}" for name, code in mapped.items()), source.where),),
        where=Place(kind="argument", name="--trust-remote-code"),
        code=str(mapped["AutoConfig"]),
        flag="--trust-remote-code",
    )


@check("MODEL512", "no-chat-template", runtimes={"vllm", "sglang"})
def no_chat_template(source: ModelSource, launch: Launch | None, model: Model | None) -> Iterator[Finding]:
    """The model has no chat template: the server starts, and each chat request is answered with 400."""
    if source.gguf is not None or (launch and (launch.get("chat_template") or launch.entrypoint == "llm")):
        return
    if model and (model.pooling or model.encoder_decoder):
        return
    template = source.tokenizer.chat_template
    if template is None:
        yield skip("whether the model has a chat template is not known for this source")
    elif not template:
        yield warn(
            "{model} has no chat template (neither in tokenizer_config.json nor as chat_template.jinja): the server "
            "starts, and every request to /v1/chat/completions is answered with 400. Serve the instruct version, "
            "give --chat-template FILE, or use /v1/completions",
            evidence=(seen("chat template", "absent", source.where),),
            where=Place(kind="file", name=source.where),
            model=source.name,
        )


@check("MODEL513", "architecture-unsupported-by-runtime", runtimes={"vllm", "llamacpp"})
def architecture_unsupported_by_runtime(launch: Launch, model: Model, forecast: Forecast | None) -> Iterator[Finding]:
    """This release of the server has no implementation of the model's architecture."""
    if model.source.gguf is not None:
        return
    name, version = model.architecture, release(launch.version)
    if launch.runtime == "llamacpp":
        if refusal(forecast, "MODEL513"):
            yield fail(
                "llama.cpp has no architecture for {architecture}: its converter knows none, so there can be no "
                "GGUF file of this model. Look for a fork that serves it, or use vLLM",
                evidence=(seen("architectures", name, model.source.where),),
                architecture=name,
            )
        return
    rows = [entry for entry in table("vllm-architectures").rows if name in entry["architectures"]]
    if version is None:
        yield skip("vLLM {version} is no release that can be compared", version=launch.version)
        return
    evidence = (
        seen("architectures", name, model.source.where),
        seen("vLLM", launch.version, "assumed" if launch.version_assumed else "observed"),
    )
    newest = table("vllm-architectures").title.rpartition(" ")[2].rstrip(")")
    if not rows and version > (release(newest) or version):
        yield skip(
            "vLLM {version} is newer than the table of architectures ({newest})", version=launch.version, newest=newest
        )
        return
    if not rows and model.source.origin == "catalogue":
        yield skip("the built-in catalogue may hold another class name than the model's own files: {name}", name=name)
        return
    if not rows:
        yield warn(
            "no release of vLLM up to {newest} has {architecture} in its registry: vLLM then tries its Transformers "
            "backend, slower and not for every model, or answers 'Model architectures are not supported for now'",
            evidence=evidence,
            newest=newest,
            architecture=name,
        )
        return
    entry = rows[0]
    since, absent, last = release(entry.get("since")), release(entry.get("absent_in")), release(entry.get("last"))
    if last is not None and version > last:
        yield fail(
            "vLLM {version} no longer has {architecture}, the last release with it was {last}: 'is not supported "
            "in-tree anymore'. Install vllm=={last} in an environment of its own, or run it as an out-of-tree "
            "plug-in",
            evidence=evidence,
            version=launch.version,
            architecture=name,
            last=entry["last"],
        )
    elif absent is not None and version <= absent:
        yield warn(
            "vLLM {version} does not have {architecture} yet, it came with {since}: vLLM then tries its "
            "Transformers backend, slower and not for every model, or answers 'Model architectures are not "
            "supported for now'. Upgrade to vLLM {since} or newer",
            evidence=evidence,
            version=launch.version,
            architecture=name,
            since=entry["since"],
        )
    elif since is not None and version < since:
        yield skip(
            "{architecture} came between vLLM {absent} and {since}; whether {version} has it is not in the table",
            architecture=name,
            absent=entry.get("absent_in"),
            since=entry["since"],
            version=launch.version,
        )


@check("MODEL515", "tokenizer-unreadable", runtimes=HUGGING_FACE_RUNTIMES)
def tokenizer_unreadable(
    source: ModelSource, target: TargetEnvironment | None, launch: Launch | None, request: LaunchRequest | None
) -> Iterator[Finding]:
    """The tokenizer's files are not there, cannot be read, or need a package that is not installed."""
    if source.gguf is not None or source.origin in ("catalogue", "log"):
        return
    if launch and (launch.given("tokenizer") or launch.get("skip_tokenizer_init")):
        return
    notes = [note for note in source.notes if "tokenizer" in note]
    if notes and source.tokenizer.file is None and _stands_in(request):
        yield skip("{folder} stands in for the model the launch loads, and holds no tokenizer", folder=source.where)
        return
    for note in notes:
        yield fail(
            "the tokenizer of {model} cannot be read: {note}. Download its files again (hf download {model} "
            "--include 'tokenizer*')",
            evidence=(seen("tokenizer", note, source.where),),
            where=Place(kind="file", name=source.where),
            model=source.name,
            note=note,
        )
    file = source.tokenizer.file
    package = SLOW_TOKENIZER_NEEDS.get(file or "")
    if notes or target is None or package is None or target.has(package):
        return
    yield fail(
        "{model} has {file} and no tokenizer.json: reading it needs {package}, which the environment does "
        "not have. {python} -m pip install {package}",
        evidence=(seen("vocabulary", file, source.where), seen(package, "not installed", target.python)),
        where=Place(kind="package", name=package),
        model=source.name,
        file=file,
        package=package,
        python=target.python,
    )


@check("MODEL516", "quantization-config-contradicts", runtimes={"vllm"})
def quantization_config_contradicts(model: Model) -> Iterator[Finding]:
    """config.json and the separate quantization file do not say the same, or the weights do not match them."""
    source = model.source
    own = (source.config or {}).get("quantization_config")
    apart = source.quantization_config
    if isinstance(own, dict) and isinstance(apart, dict):
        inner = apart.get("quantization") if isinstance(apart.get("quantization"), dict) else apart
        first, second = own.get("quant_algo"), inner.get("quant_algo") if isinstance(inner, dict) else None
        if first and second and str(first).upper() != str(second).upper():
            yield fail(
                "config.json says quant_algo {first} and hf_quant_config.json says {second}: releases differ in "
                "which one they follow. Make both say what the weights are",
                evidence=(
                    seen("quantization_config", first, "config.json"),
                    seen("quant_algo", second, "hf_quant_config.json"),
                ),
                where=Place(kind="file", name=source.where),
                first=first,
                second=second,
            )
    packed = sum(
        group.bytes for group in source.weights if (group.dtype or "").upper() in ("I32", "U8", "F8_E4M3", "I8")
    )
    if packed and source.weight_bytes and packed > source.weight_bytes // 2 and model.quantization is None:
        yield warn(
            "most weights of {model} are stored in 8 bits or packed, and its config.json has no "
            "quantization_config: the server would read them as plain numbers. Restore the quantization_config of "
            "the original checkpoint",
            evidence=(seen("packed weights", gib(packed), "safetensors headers"),),
            where=Place(kind="file", name=source.where),
            model=source.name,
        )


@check("MODEL518", "quantization-unknown-to-version", runtimes={"vllm"})
def quantization_unknown_to_version(
    launch: Launch, model: Model, target: TargetEnvironment | None
) -> Iterator[Finding]:
    """This release of vLLM does not have the checkpoint's quantization method, or keeps it in a plug-in."""
    own = model.config.get("quantization_config")
    stored = own.get("quant_method") if isinstance(own, dict) else None
    method = "gguf" if model.source.gguf is not None else stored or launch.get("quantization")
    version = release(launch.version)
    if not isinstance(method, str):
        return
    method = choices("quantization spelled otherwise").get(method.lower(), method.lower())
    known, row = known_by_name("quantization", method, version) if version else (None, None)
    if known or method in choices("quantization read as another"):
        return
    if known is None or version is None:
        yield skip("whether vLLM {version} knows quantization method {method} was not looked up",
                   version=launch.version, method=method)  # fmt: skip
        return
    plugin = next((entry for entry in table("optional-packages").rows if _brings(entry, method, version)), None)
    # The newest release stands in where none was observed: an older one may still have the method.
    report = warn if launch.version_assumed else fail
    evidence = (
        seen("quant_method", method, model.source.where),
        seen("vLLM", launch.version, "assumed" if launch.version_assumed else "observed"),
    )
    if plugin:
        if target is None or target.has(plugin["package"]) is None:
            yield report(
                "vLLM has {method} in the package {plugin} since {since}, no longer in itself, and this is "
                "{version}: 'Unknown quantization method: {method}'. Install {plugin} into the environment, or take "
                "vLLM {last}",
                evidence=evidence,
                where=Place(kind="package", name=plugin["package"]),
                method=method,
                plugin=plugin["package"],
                since=row["gone_in"] if row else "-",
                version=launch.version,
                last=row["last"] if row else "-",
            )
        return
    yield report(
        "vLLM {version} does not know quantization method {method}: 'Unknown quantization method: {method}'. "
        "{releases}; otherwise take a checkpoint quantized in another way, or the 16-bit one",
        evidence=evidence,
        where=Place(kind="file", name=model.source.where),
        version=launch.version,
        method=method,
        releases=_releases(row),
    )


def _brings(entry: Row, method: str, version: Version) -> bool:
    return (
        entry["feature"] == "quantization"
        and entry["value"] == method
        and "plugin" in entry["package"]
        and SpecifierSet(entry["versions"]).contains(version, prereleases=True)
    )


def _releases(row: Row | None) -> str:
    if row is None:
        return "No release of vLLM has it"
    first, last = row.get("since"), row.get("last")
    return (
        f"vLLM {first} to {last} have it"
        if first and last
        else f"vLLM has it {f'since {first}' if first else f'until {last}'}"
    )
