"""What a release of vLLM fills in for a launch: every argument with its value, its origin and the rule behind it.

The rules stand in ``data/defaults.toml``, each option's declared default in ``data/arguments.json``; the code applies
them in vLLM's order (engine/arg_utils.py: create_engine_config, config/vllm.py: VllmConfig.__post_init__).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace
from packaging.version import Version

from llmdoctor_core.facts import (
    Argument,
    ArgumentProblem,
    Full,
    Gpu,
    Gpus,
    Latent,
    Launch,
    LaunchRequest,
    Model,
    Nothing,
    SlidingWindow,
    State,
)
from llmdoctor_core.runtimes.numbers import WHOLE

from . import arguments, graphs, releases, since, specs
from .length import Derived, derived_length, long_lengths_allowed
from .releases import Release

NEWEST = releases.newest()
GIB = 1 << 30
AUTO_LENGTH = -1
LEAST_BATCH = 2048
"""DEFAULT_MAX_NUM_BATCHED_TOKENS of config/scheduler.py, in every release since 0.9."""
CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")


def resolve(request: LaunchRequest, model: Model | None, gpus: Gpus | None) -> Launch:
    """The launch as this version and GPU complete it. Never raises for what a person can type: it notes problems."""
    version, assumed = _version(request.version)
    reading = arguments.read(request.argv, version, request.config_files)
    environment = {**request.environment, **reading.environment}
    on_cpu = request.platform == "cpu"
    resolver = _Resolver(version, request.entrypoint, environment, reading, model, None if on_cpu else gpus, on_cpu)
    resolver.fill()
    named = reading.value("model")
    return Launch(
        runtime="vllm",
        version=version,
        version_assumed=assumed,
        untagged=assumed and request.version is not None,
        entrypoint=request.entrypoint,
        model=request.model or (named if isinstance(named, str) else None),
        arguments=resolver.found,
        environment=environment,
        problems=tuple(
            dict.fromkeys((*reading.problems, *environment_problems(releases.release(version), environment)))
        ),
        command=reading.command,
        platform=request.platform,
    )


def _version(observed: str | None) -> tuple[str, bool]:
    """The version to resolve for, and whether it is assumed: none was observed, or one that tells no release.

    ``0.1.dev1+g...`` is what a build from a checkout without tags calls itself.
    """
    try:
        version = Version(observed) if observed else None
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads
        version = None
    if version is None or (version.is_devrelease and version.release <= (0, 1)):
        return NEWEST, True
    return str(version), False


@lru_cache(maxsize=32)
def rules_for(version: str) -> dict[str, Any]:
    """The single rules of ``data/defaults.toml`` as a version has them."""
    return since.at(since.table("defaults.toml")["rule"], version)


# ------------------------------------------------------------------ environment


def environment_problems(release: Release, environment: Mapping[str, str]) -> list[ArgumentProblem]:
    """Variables that this release does not read, and those whose value stops it."""
    problems = []
    known = releases.tables("envs.json").environment
    for name, value in environment.items():
        if name == "VLLM_PORT" and "://" in value:
            problems.append(
                ArgumentProblem(
                    kind="invalid",
                    flag=name,
                    detail=f"{value} is an address (Kubernetes sets it for a service called vllm); vLLM wants a number",
                    replacement="rename the service, or set enableServiceLinks: false",
                )
            )
        if not name.startswith("VLLM_") or name in release.environment:
            continue
        if name in known:
            problems.append(_gone_or_new(name, release))
        else:
            near = difflib.get_close_matches(name, release.environment, n=1, cutoff=0.85)
            if near:
                detail = f"vLLM {release.name} does not read it"
                problems.append(ArgumentProblem(kind="ignored", flag=name, detail=detail, nearest=near[0]))
    return problems


def _gone_or_new(name: str, release: Release) -> ArgumentProblem:
    eras = releases.tables("envs.json").environment[name].eras
    if not releases.within(eras[0].since, None, release.index):
        detail = f"is read since vLLM {eras[0].since}; this is {release.name}"
        return ArgumentProblem(kind="ignored", flag=name, detail=detail, since=eras[0].since)
    row = releases.changed().get(name)
    gone = releases.after(eras[-1].until or eras[-1].since)
    detail = f"is no longer read since vLLM {gone}" + (f": {row.note}" if row else "")
    return ArgumentProblem(
        kind="ignored", flag=name, detail=detail, since=gone, replacement=row.replacement if row else None
    )


# ------------------------------------------------------------------ the launch


class _Resolver:
    """One launch being completed. ``found`` holds every argument so far."""

    def __init__(
        self,
        version: str,
        entrypoint: str,
        environment: Mapping[str, str],
        reading: arguments.Reading,
        model: Model | None,
        gpus: Gpus | None,
        on_cpu: bool,
    ) -> None:
        self.on_cpu = on_cpu
        self.version = version
        self.release = releases.release(version)
        self.rules = rules_for(version)
        self.entrypoint = entrypoint
        self.environment = dict(environment)
        self.found: dict[str, Argument] = dict(reading.settings)
        self.problems = reading.problems
        self.model = model
        self.gpus = gpus
        visible = gpus.visible if gpus else ()
        self.gpu: Gpu | None = visible[0] if visible else None

    # --- the arguments so far

    def value(self, name: str) -> Any:
        argument = self.found.get(name)
        return None if argument is None else argument.value

    def number(self, name: str, default: int = 1) -> int:
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def settled(self, name: str) -> bool:
        """Whether the argument was given, so that no default applies. A given None (``--x None``) does not count."""
        argument = self.found.get(name)
        given = argument is not None and argument.origin in ("given", "environment", "config file")
        return given and argument is not None and argument.value is not None

    def default(self, name: str, value: Any, why: str) -> None:
        """A value that follows from the release alone."""
        if not self.settled(name):
            self.found[name] = Argument(name=name, value=value, origin="default", why=why)

    def derive(self, name: str, value: Any, why: str) -> None:
        """A value that follows from the model, the device or other arguments."""
        if not self.settled(name):
            self.found[name] = Argument(name=name, value=value, origin="derived", why=why)

    def override(self, name: str, value: Any, why: str) -> None:
        """A value that vLLM sets whatever was given."""
        old = self.found.get(name)
        self.found[name] = Argument(
            name=name, value=value, origin="derived", why=why, flag=old.flag if old is not None else None
        )

    # --- in vLLM's order

    def fill(self) -> None:
        """Complete the launch."""
        self._declared()
        self._variables()
        self._speculation()
        self._executor()
        self._dtype()
        self._length()
        self._prefix_caching()
        self._batch()
        self._state_cache()
        self._engine()
        self._runner()
        self._async()
        if self.on_cpu:
            self._cpu()
        self._graphs()
        self._cache()

    def _declared(self) -> None:
        for name, era in self.release.options.items():
            if not self.settled(name):
                self.default(
                    name, releases.default_of(era), f"since {releases.default_since(name, self.release.index)}"
                )
        if self.value("model") is not None and not self.settled("model"):
            del self.found["model"]  # the parser's own example model is nobody's launch

    def _variables(self) -> None:
        for row in since.table("defaults.toml")["variable"]:
            value = self.environment.get(row["name"])
            if value and row["name"] in self.release.environment and not self.settled(row["argument"]):
                self.found[row["argument"]] = Argument(
                    name=row["argument"], value=value, origin="environment", flag=row["name"]
                )

    def _speculation(self) -> None:
        """The speculative configuration as one mapping with its method, whichever flags gave it."""
        given = self.value("speculative_config")
        config = {str(key).replace("-", "_"): value for key, value in given.items()} if isinstance(given, dict) else {}
        flag = self.found["speculative_config"].flag if "speculative_config" in self.found else None
        for name, key in (
            ("spec_method", "method"),
            ("spec_model", "model"),
            ("spec_tokens", "num_speculative_tokens"),
        ):
            if self.settled(name):
                config[key] = self.value(name)
                flag = flag or self.found[name].flag
        if not config:
            return
        method, why = self._method(config)
        if method is not None:
            config["method"] = method
        if method == "mtp" and not config.get("num_speculative_tokens") and self.model and self.model.mtp_layers:
            config["num_speculative_tokens"] = len(self.model.mtp_layers)
            why += "; as many tokens as the model has MTP layers"
        old = self.found.get("speculative_config")
        origin = old.origin if old is not None and old.origin == "config file" else "given"
        self.found["speculative_config"] = Argument(
            name="speculative_config", value=config, origin=origin, flag=flag, why=why
        )

    def _method(self, config: Mapping[str, Any]) -> tuple[str | None, str]:
        """The method given or found out from the draft's name (config/speculative.py: SpeculativeConfig)."""
        given, draft = config.get("method"), str(config.get("model") or "").lower()
        if isinstance(given, str) and given.endswith("mtp"):
            return "mtp", "" if given == "mtp" else f"{given} is called mtp"
        if given in ("ngram", "[ngram]") or (given is None and draft in ("ngram", "[ngram]")):
            return "ngram", "" if given else "the model is called ngram"
        if isinstance(given, str) and given != "draft_model":
            return given, ""
        for part, method in (("eagle3", "eagle3"), ("eagle-", "eagle"), ("dflash", "dflash"), ("dspark", "dspark")):
            if part in draft and method in self._methods():
                return method, f"the draft's name holds {part}"
        if draft:
            return "draft_model", "" if given else "a model without a method is a draft model"
        if given is None and self.model is not None and self.model.mtp_layers and not self.release.at_least("0.11.1"):
            return "mtp", "the target's own MTP layers, up to 0.11.0"
        return (given if isinstance(given, str) else None), ""

    def _methods(self) -> tuple[str, ...]:
        entry = releases.tables().classes["SpeculativeConfig"].fields["method"]
        return self.release.choices_of(entry)

    def _executor(self) -> None:
        world = 1
        for name in RANKS:
            world *= max(self.number(name), 1)
        across = world * (max(self.number("data_parallel_size"), 1) if self.release.at_least("0.20.0") else 1)
        visible = len(self.gpus.visible) if self.gpus else None
        if across <= 1:
            self.derive("distributed_executor_backend", "uni", "one rank")
        elif self.value("data_parallel_backend") == "ray":
            self.derive("distributed_executor_backend", "ray", "the data parallel backend is ray")
        elif visible is not None and visible < world and not self.release.at_least("0.11.1"):
            self.derive("distributed_executor_backend", "ray", f"{world} ranks on {visible} GPUs, up to 0.11.0")
        else:
            self.derive("distributed_executor_backend", "mp", f"{world} ranks on this node")

    def _dtype(self) -> None:
        asked = {"half": "float16", "float": "float32"}.get(str(self.value("dtype")), self.value("dtype"))
        if asked != "auto" or self.model is None:
            if asked != self.value("dtype"):
                self.found["dtype"] = replace(self.found["dtype"], value=asked)
            return
        dtype, why = self._auto_dtype(self.model)
        self.override("dtype", dtype, why)

    def _auto_dtype(self, model: Model) -> tuple[str, str]:
        """config/model.py: _resolve_auto_dtype. Without a known GPU, one that has bfloat16 is taken."""
        capability = self.gpu.compute_capability if self.gpu else None
        supported = ["float16", "float32"] if capability and capability < (8, 0) else ["bfloat16", "float16", "float32"]
        if model.model_type in self.rules["no_float16_types"]:
            supported.remove("float16")
        if self.rules["float32_runs_as"] == "float16" or (model.pooling and "float16" in supported):
            preferred = "float16"
        else:
            preferred = supported[0]
        if model.dtype == "float32":
            return preferred, "a float32 checkpoint runs in half precision"
        if model.dtype not in supported and self.rules["bfloat16_falls_back"]:
            return preferred, f"compute capability {capability} has no {model.dtype}: falls back since 0.9.0"
        return model.dtype, "the checkpoint's dtype"

    def _length(self) -> None:
        asked = self.value("max_model_len")
        automatic = asked == AUTO_LENGTH
        self.derive("max_model_len_is_automatic", automatic, "--max-model-len auto shrinks to what fits, since 0.14.0")
        if self.model is None:
            if automatic:
                self.override("max_model_len", None, "auto: the model's length, which is not known")
            return
        without_window = bool(self.value("disable_sliding_window"))
        derived = derived_length(self.model, self.version, disable_sliding_window=without_window)
        self.found["derived_max_model_len"] = self._longest(derived)
        why = f"{derived.key} of the configuration" if derived.key else "the configuration tells no length"
        if derived.factor != 1.0:
            why += f", rope factor {derived.factor:g}"
        if derived.default < derived.length:
            why += "; LongRoPE starts at original_max_position_embeddings since 0.11.1"
        if automatic:
            self.override("max_model_len", derived.default, f"auto: at most {why}")
        else:
            self.derive("max_model_len", derived.default, why)

    def _longest(self, derived: Derived) -> Argument:
        """The longest ``--max-model-len`` that is not refused; None where any is taken."""
        limit: int | None = max(int(derived.length), derived.model_max_length or 0)
        why = f"{derived.key}={derived.length:g}"
        if derived.key is None:
            limit, why = None, "the configuration tells no length: any is taken"
        elif long_lengths_allowed(self.environment):
            limit, why = None, f"VLLM_ALLOW_LONG_MAX_MODEL_LEN is set ({why})"
        return Argument(name="derived_max_model_len", value=limit, origin="derived", why=why)

    def _prefix_caching(self) -> None:
        model = self.model
        if model is None:
            self.default("enable_prefix_caching", True, "on since V1, but for some kinds of model")
            self.default("enable_chunked_prefill", True, "on since V1, but for some kinds of model")
            return
        caching, prefill, why = True, True, "generate models"
        if model.pooling and not _causal(model):
            caching, prefill, why = False, False, "pooling models that attend both ways"
        elif model.encoder_decoder:
            caching, prefill, why = False, False, "encoder-decoder models"
        elif _attention_free(model):
            caching, why = False, "attention-free models"
        elif _has_state(model):
            caching = self.rules["hybrid_prefix_caching"]
            why = "models with state and attention: off up to 0.27, on since 0.28.0"
        self.derive("enable_prefix_caching", caching, why)
        self.derive("enable_chunked_prefill", prefill, why)

    # --- batch

    def _batch(self) -> None:
        tier, why = self._tier()
        served = self.entrypoint == "serve"
        sequences = tier["seqs"] if served else tier.get("llm_seqs", tier["seqs"])
        batched = tier["serve" if served else "llm"]
        if tier.get("each_rank"):
            ranks = self.number("tensor_parallel_size") * self.number("pipeline_parallel_size")
            sequences, batched = sequences * ranks, batched * ranks
        experts = self.rules["batched_experts_tokens"]
        if experts and self._batched_experts():
            batched, why = experts, "batched experts with data parallel, since 0.20.0"
        if self.value("performance_mode") == "throughput":
            sequences, batched, why = sequences * 2, batched * 2, why + ", doubled by --performance-mode throughput"
        sequences = self.number("max_num_seqs", sequences) if self.settled("max_num_seqs") else sequences
        length = self.value("max_model_len")
        if isinstance(length, int):
            batched, why = self._batch_for_length(batched, sequences, length, why)
        self.derive("max_num_batched_tokens", batched, why)
        final = self.number("max_num_batched_tokens", batched)
        capped = f"; at most max_num_batched_tokens {final}" if sequences > final else ""
        self.derive("max_num_seqs", min(sequences, final), why.partition(",")[0] + capped)

    def _batch_for_length(self, batched: int, sequences: int, length: int, why: str) -> tuple[int, str]:
        if self.value("enable_chunked_prefill") is False and self.release.at_least("0.9.0") and length > batched:
            batched, why = length, f"{why}; without chunked prefill at least max_model_len"
        floor = self._multimodal_floor()
        if floor > batched:
            batched, why = floor, f"{why}; raised to one multimodal item, since 0.22.0"
        if self.rules["batched_tokens_below_length"] == "seqs times length" and sequences * length < batched:
            batched, why = sequences * length, f"{why}; at most max_num_seqs times max_model_len, since 0.11.1"
        return batched, why

    def _multimodal_floor(self) -> int:
        """Tokens of the largest item of a model that attends both ways within an image."""
        model = self.model
        if model is None or self.value("language_model_only"):
            return 0
        both_ways = model.text_config.get("use_bidirectional_attention") == "vision"
        return int(self.rules["multimodal_floor_tokens"].get(model.architecture, 0)) if both_ways else 0

    def _batched_experts(self) -> bool:
        return (
            self.value("all2all_backend") in ("deepep_low_latency", "nixl_ep")
            and bool(self.value("enable_expert_parallel"))
            and self.number("data_parallel_size") > 1
        )

    def _tier(self) -> tuple[dict[str, Any], str]:
        """The row of the device tiers that fits, and what to say of it."""
        rows = since.table("defaults.toml")["cpu_tier" if self.on_cpu else "tier"]
        asked = since.release(self.version)
        start = max(
            (row["since"] for row in rows if since.release(row["since"]) <= asked), key=since.release, default="0.8.0"
        )
        group = [row for row in rows if row["since"] == start]
        row = next(row for row in group if self._fits(row))
        if self.on_cpu:
            return row, f"the CPU's, since {start}"
        if self.gpu is None or (self.gpu.memory_total is None and "gib" in group[0]):
            smallest = min((row["gib"] for row in group if "gib" in row), default=None)
            below = f"tier below {smallest} GiB" if smallest else "tier of other GPUs"
            return row, f"GPU unknown: assuming {below}, since {start}"
        if "gib" in row:
            return row, f"GPU of {row['gib']} GiB or more, since {start}"
        return row, f"{self.gpu.name}: tier of other GPUs, since {start}"

    def _fits(self, row: Mapping[str, Any]) -> bool:
        name = self.gpu.name.lower() if self.gpu else ""
        memory = (self.gpu.memory_total or 0) if self.gpu else 0
        capability = self.gpu.compute_capability if self.gpu else None
        return (
            memory >= row.get("gib", 0) * GIB
            and (not row.get("named") or any(part in name for part in row["named"]))
            and not any(part in name for part in row.get("not_named", ()))
            and (capability is None or capability != tuple(row.get("not_capability", ())))
        )

    # --- state, runner, scheduling, graphs, cache

    def _state_cache(self) -> None:
        """How states are kept for prefix caching (models/config.py: MambaModelConfig)."""
        model = self.model
        if model is None or not _has_state(model):
            self.default("mamba_cache_mode", "none", "no layer with a state" if model else "depends on the model")
            return
        if not self.value("enable_prefix_caching"):
            self.override("mamba_cache_mode", "none", "prefix caching is off")
            return
        rule = self.rules["state_prefix_caching"]
        supported = model.architecture in self.rules["state_prefix_caching_classes"]
        if rule == "none" or (rule == "some classes" and not supported):
            why = f"{model.architecture} has no prefix caching in vLLM {self.version}"
            self.problems.append(ArgumentProblem(kind="ignored", flag="--enable-prefix-caching", detail=why))
            self.override("enable_prefix_caching", False, why)
            self.override("mamba_cache_mode", "none", why)
            return
        mode, why = self._state_mode(rule, supported)
        given = self.value("mamba_cache_mode") if self.settled("mamba_cache_mode") else None
        if given in (None, "none") or (given == "all" and not supported):
            self.override("mamba_cache_mode", mode, why)

    def _state_mode(self, rule: str, supported: bool) -> tuple[str, str]:
        if rule == "some classes":
            return "all", "a state for every block, up to 0.14"
        if rule == "align":
            return "align", "with prefix caching, since 0.28.0"
        speculating = rule.endswith("speculating") and bool(self.value("speculative_config"))
        if supported and not speculating:
            return "all", "the model's class keeps a state for every block, 0.15 to 0.27"
        return "align", "with prefix caching, since 0.15.0"

    def _engine(self) -> None:
        """V1, or V0 where a variable asks for it; the other reasons of 0.8 to 0.10 for V0 are not looked at."""
        if "VLLM_USE_V1" in self.release.environment and self.environment.get("VLLM_USE_V1", "1").strip() == "0":
            why = "V0's own defaults are not filled in: those shown are V1's"
            self.found["engine"] = Argument(
                name="engine", value="V0", origin="environment", flag="VLLM_USE_V1", why=why
            )
        else:
            self.default("engine", "V1", "V1 since 0.8.0, the only engine since 0.11.0")

    def _runner(self) -> None:
        forced = self.environment.get("VLLM_USE_V2_MODEL_RUNNER")
        if forced is not None and "VLLM_USE_V2_MODEL_RUNNER" in self.release.environment:
            runner = "V2" if forced.strip().lower() in ("1", "true") else "V1"
            self.found["model_runner"] = Argument(
                name="model_runner", value=runner, origin="environment", flag="VLLM_USE_V2_MODEL_RUNNER"
            )
            return
        if self.on_cpu:
            self.derive("model_runner", "V1", "the V2 runner needs Triton, which vllm-cpu does not bring")
            return
        if not self._v2_by_default():
            self.derive("model_runner", "V1", f"not of the models with the V2 runner in {self.release.name}")
            return
        unsupported = self._v1_only()
        if unsupported:
            self.derive("model_runner", "V1", f"the V2 runner does not do {', '.join(unsupported)}")
        else:
            self.derive("model_runner", "V2", self.rules["v2_models"] + f", in {self.release.name}")

    def _v2_by_default(self) -> bool:
        kind, model = self.rules["v2_models"], self.model
        if kind in ("none", "every"):
            return bool(kind == "every")
        if self._always_v2():
            return True
        if model is None or model.pooling:
            return False
        named, dense, state = model.architecture in self.rules["v2_names"], not model.experts, _has_state(model)
        if kind == "named, dense and not quantised":
            return named and dense and model.quantization is None
        if kind == "named":
            return named
        if kind == "named or dense, without state":
            return not state and (named or dense)
        return named or (dense and not state)

    def _always_v2(self) -> bool:
        """Launches that 0.25 to 0.28 send to the V2 runner whatever the model (config/vllm.py)."""
        if self._method_in_use() == "dspark" and self.release.at_least("0.25.0"):
            return True
        return self.release.at_least("0.27.0") and self.number("prefill_context_parallel_size") > 1

    def _method_in_use(self) -> str | None:
        config = self.value("speculative_config")
        method = config.get("method") if isinstance(config, dict) else None
        return method if isinstance(method, str) else None

    def _v1_only(self) -> list[str]:
        """What of the launch the V2 runner does not do in this release."""
        config = self.value("speculative_config")
        speculative: Mapping[str, Any] = config if isinstance(config, dict) else {}
        method = self._method_in_use()
        pipeline = self.number("pipeline_parallel_size") > 1
        state = self.model is not None and _has_state(self.model)
        mode = self.value("mamba_cache_mode")
        present = {
            "a model with state": state,
            "a model with state and mamba_cache_mode align": state and mode == "align",
            "mamba_cache_mode all": mode == "all",
            "prefill context parallel": self.number("prefill_context_parallel_size") > 1,
            "KV sharing fast prefill": bool(self.value("kv_sharing_fast_prefill")),
            "dual batch overlap": bool(self.value("enable_dbo")),
            "elastic expert parallel": bool(self.value("enable_elastic_ep")),
            "prompt embeddings": bool(self.value("enable_prompt_embeds")),
            "raw logits": self.value("logprobs_mode") in ("raw_logits", "processed_logits"),
            "routed experts capture": bool(self.value("enable_return_routed_experts")),
            "encoder cache transfer": bool(self.value("ec_transfer_config")),
            "custom logits processors": bool(self.value("logits_processors")),
            "pipeline parallel with external_launcher": pipeline
            and self.value("distributed_executor_backend") == "external_launcher",
            "EAGLE3 with pipeline parallel": pipeline and method == "eagle3",
            "parallel drafting": bool(speculative.get("parallel_drafting")) and method not in ("dflash", "dspark"),
            "different vocabularies": bool(speculative.get("use_heterogeneous_vocab")),
        }
        rows = since.table("defaults.toml")["v1_only"]
        held = [row["feature"] for row in rows if releases.within(row["since"], row.get("until"), self.release.index)]
        found = [feature for feature in held if present[feature]]
        if method in self.rules["v1_methods"]:
            found.append(f"speculative method {method}")
        return found

    def _async(self) -> None:
        if not self.rules["async"]:
            self.default("async_scheduling", False, "off unless asked for, up to 0.13")
            return
        reason = self._no_async()
        if reason:
            self.derive("async_scheduling", False, f"off with {reason}")
        else:
            self.derive("async_scheduling", True, "on since 0.14.0")

    def _no_async(self) -> str | None:
        """What switches asynchronous scheduling off in this release, None where nothing does."""
        v1 = self.value("model_runner") == "V1"
        config = self.value("speculative_config")
        method = self._method_in_use()
        limited = v1 or self.rules["async_speculation_limits"] == "every runner"
        pipeline = self.number("pipeline_parallel_size") > 1
        backend = self.value("distributed_executor_backend")
        if self.model is not None and self.model.pooling and not self.rules["async_pooling"]:
            return "pooling models, since 0.20.0"
        if isinstance(config, dict) and config and limited:
            if method not in self.rules["async_methods"]:
                return f"speculative method {method}"
            if config.get("disable_padded_drafter_batch"):
                return "disable_padded_drafter_batch"
        if backend == "ray":
            return "the ray executor"
        if pipeline and (self.rules["async_pipeline"] == "off" or (v1 and self.rules["async_pipeline"] != "on")):
            return f"pipeline parallel, {self.rules['async_pipeline']}"
        if self.value("mamba_cache_mode") != "none" and not self.rules["async_state_prefix_caching"]:
            return "prefix caching of states, in 0.16"
        return None

    def _cpu(self) -> None:
        """What the CPU's platform sets whatever was given (platforms/cpu.py: check_and_update_config)."""
        rules = since.at(since.table("defaults.toml")["cpu"], self.version)
        if rules["async_switched_off"]:
            self.override("async_scheduling", False, "the CPU schedules synchronously")
        latent = self.model is not None and any(
            isinstance(cache, Latent) for layer in self.model.layers for cache in layer.caches
        )
        length = self.value("max_model_len")
        if latent and rules["latent_whole_prompts"] and isinstance(length, int):
            why = f"MLA on a CPU without AMX, since {rules['latent_whole_prompts']}"
            self.override("enable_chunked_prefill", False, why)
            self.override("enable_prefix_caching", False, why)
            self.override("max_num_batched_tokens", max(length, LEAST_BATCH), f"{why}: whole prompts")
        self._cpu_pool(rules)

    def _cpu_pool(self, rules: Mapping[str, Any]) -> None:
        """The cache's size: of VLLM_CPU_KVCACHE_SPACE (GiB), of --kv-cache-memory-bytes, or the release's default."""
        name, space = "kv_cache_memory_bytes", self.environment.get(CPU_SPACE, "")
        if WHOLE.fullmatch(space) and (int(space) or not rules["no_space_is_default"]):
            self.found[name] = Argument(
                name=name, value=int(space) * GIB, origin="environment", flag=CPU_SPACE, why="GiB, for each rank"
            )
        elif not (rules["pool_argument"] and self.settled(name)):
            pool = rules["pool_default"]
            self.override(name, pool or None, rules["pool_default_says"])

    def _graphs(self) -> None:
        config = self.value("compilation_config")
        given: Mapping[str, Any] = config if isinstance(config, dict) else {}
        mode, why = self._graph_mode(given)
        self.found["cudagraph_mode"] = Argument(name="cudagraph_mode", value=mode, origin="derived", why=why)
        listed = self._listed_sizes(given)
        batched, sequences = self.value("max_num_batched_tokens"), self.value("max_num_seqs")
        if mode == "NONE" or not isinstance(batched, int) or not isinstance(sequences, int):
            sizes, why = [], "no CUDA graphs"
        elif listed is not None:
            sizes, why = sorted({size for size in listed if size <= batched}), "given"
        else:
            sizes, why = self._default_sizes(given, batched, sequences), "by the release's grid"
        for name, value in (("cudagraph_capture_sizes", sizes), ("max_cudagraph_capture_size", max(sizes, default=0))):
            if self.settled(name):  # what was given, without the sizes that no batch reaches
                self.found[name] = replace(self.found[name], value=value)
            else:
                self.derive(name, value, why)

    def _graph_mode(self, given: Mapping[str, Any]) -> tuple[str, str]:
        if self.on_cpu:
            return "NONE", "a CPU has no CUDA graphs"
        mode, why = self._asked_graph_mode(given)
        model = self.model
        if model is None or mode == "NONE":
            return mode, why
        full = mode.startswith("FULL")
        lowered = self.rules["graph_mode_encoder_decoder"]
        if model.pooling and full:
            return "PIECEWISE", "pooling models have no full graphs"
        if model.encoder_decoder and (full or lowered == "FULL_DECODE_ONLY"):
            return lowered, "encoder-decoder models"
        parallel = self.number("decode_context_parallel_size") > 1 or self.number("prefill_context_parallel_size") > 1
        if parallel and full and self.rules["graph_mode_context_parallel"]:
            return self.rules["graph_mode_context_parallel"], "context parallel, 0.11.1 and 0.12"
        return mode, why

    def _asked_graph_mode(self, given: Mapping[str, Any]) -> tuple[str, str]:
        """The mode that the arguments name, or the release's own."""
        level = str(self.value("optimization_level"))
        compiled = given.get("mode", given.get("level"))
        if self.value("enforce_eager"):
            return "NONE", "--enforce-eager"
        if isinstance(given.get("cudagraph_mode"), str):
            return str(given["cudagraph_mode"]).upper(), "given in --compilation-config"
        if given.get("full_cuda_graph"):
            return "FULL", "given in --compilation-config"
        if given.get("use_cudagraph") is False or level in ("0", "O0"):
            return "NONE", "switched off"
        if compiled in (0, 1, 2, "NONE", "none", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE"):
            return "NONE", f"compilation mode {compiled} has no piecewise graphs"
        if level in ("1", "O1"):
            return "PIECEWISE", "-O1"
        state = self.model is not None and _has_state(self.model)
        why = "PIECEWISE up to 0.10, FULL_AND_PIECEWISE since 0.11.0; the attention backend may lower it"
        return self.rules["graph_mode_state" if state else "graph_mode"], why

    def _listed_sizes(self, given: Mapping[str, Any]) -> list[int] | None:
        lists = [
            self.value("cudagraph_capture_sizes"),
            given.get("cudagraph_capture_sizes"),
            self.value("cuda_graph_sizes"),
        ]
        for sizes in lists:
            if isinstance(sizes, list) and sizes and all(isinstance(size, int) for size in sizes):
                if sizes is lists[2] and len(sizes) == 1:  # --cuda-graph-sizes N is the largest of the grid
                    continue
                return sizes
        return None

    def _default_sizes(self, given: Mapping[str, Any], batched: int, sequences: int) -> list[int]:
        largest = self.value("max_cudagraph_capture_size") or given.get("max_cudagraph_capture_size")
        single = self.value("cuda_graph_sizes")
        if self.settled("cuda_graph_sizes") and isinstance(single, list) and len(single) == 1:
            largest = single[0]
        most = graphs.MOST
        capability = self.gpu.compute_capability if self.gpu else None
        if capability is not None and capability[0] == 10:
            most = self.rules["graph_size_most_blackwell"]
        if self.model is not None and self.model.architecture == "GptOssForCausalLM" and not largest:
            own = self.rules["graph_size_most_gpt_oss"]
            if self.rules["graph_sizes"] == "every eighth to 512":
                most = own or most
            else:
                largest = own or largest
        config = self.value("speculative_config")
        tokens = config.get("num_speculative_tokens") if isinstance(config, dict) else 0
        return graphs.sizes(
            self.rules,
            sequences=sequences,
            batched_tokens=batched,
            speculative_tokens=tokens if isinstance(tokens, int) else 0,
            most=most,
            largest=largest if isinstance(largest, int) else None,
            interactive=self.value("performance_mode") == "interactivity",
        )

    def _cache(self) -> None:
        """Block size, KV dtype and hybrid manager, as far as the launch decides them."""
        self.default("block_size", None, "chosen by the attention backend")
        if self.model is None:
            return
        launch = Launch(
            runtime="vllm",
            version=self.version,
            version_assumed=False,
            entrypoint="serve",
            model=None,
            arguments=self.found,
            environment=self.environment,
            platform="cpu" if self.on_cpu else "cuda",
        )
        if self.value("kv_cache_dtype") in (None, "auto"):
            dtype = specs.kv_dtype_of(launch, self.model, self.gpu.compute_capability if self.gpu else None)
            if dtype != specs.model_dtype(launch, self.model):
                self.override("kv_cache_dtype", dtype, "the checkpoint's or the model's own KV scheme")
            else:
                self.override("kv_cache_dtype", "auto", f"the model's dtype, {dtype}")
        off = specs.one_manager(launch, self.model, specs.speculation(launch, self.model, None))
        self.derive("disable_hybrid_kv_cache_manager", off, "on unless something does not support it")


def _has_state(model: Model) -> bool:
    return any(isinstance(cache, State) for layer in model.layers for cache in layer.caches)


def _attention_free(model: Model) -> bool:
    kinds = [cache for layer in model.layers for cache in layer.caches if not isinstance(cache, Nothing)]
    return bool(kinds) and all(isinstance(cache, State) for cache in kinds)


def _causal(model: Model) -> bool:
    """Whether a pooling model is a decoder: its layers keep keys and values."""
    return any(isinstance(cache, Full | SlidingWindow) for layer in model.layers for cache in layer.caches)
