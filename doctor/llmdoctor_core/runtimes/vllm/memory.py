"""Memory of a GPU outside the KV cache: weights counted, the rest estimated with bounds learned from start-up logs."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from llmdoctor_core.facts import Certainty, DeviceMemory, Estimate, Gpu, Gpus, Launch, Model, Quantization, TensorGroup
from llmdoctor_core.models.keys import Keys
from llmdoctor_core.models.weights import bytes_per_rank, exact_layout, weight_groups

from .planner import GIB
from .since import at, release, table
from .specs import capability_of, model_dtype, speculation, stage_partition


class Figure(Struct, frozen=True, kw_only=True):
    """A number of bytes with bounds."""

    value: float
    low: float
    high: float
    why: str

    def estimate(self) -> Estimate:
        return Estimate(low=round(self.low), high=round(self.high), why=self.why)


class Pool(Struct, frozen=True, kw_only=True):
    """What a stage's device leaves for the KV cache, in bytes."""

    value: int
    low: int
    high: int


def devices(launch: Launch, model: Model, draft: Model | None, gpus: Gpus | None) -> tuple[DeviceMemory, ...]:
    """Memory of every device of one engine, stage by stage; figures are None where GPU or weights are not known."""
    tensor, stages = _size(launch, "tensor_parallel_size"), _size(launch, "pipeline_parallel_size")
    visible = gpus.visible if gpus else ()
    groups = _counted(model, model_dtype(launch, model), _quantized_while_loading(launch, model))
    found = []
    for stage in range(stages):
        weights = weights_of(launch, model, draft, stage, groups)  # the ranks of a stage are alike
        ends = _ends(launch, groups, stage)
        for number in range(stage * tensor, (stage + 1) * tensor):
            gpu = visible[number] if number < len(visible) else None
            if launch.platform == "cpu":
                found.append(_rank_on_cpu(weights, bool(model.weights) or exact_layout(model)))
                continue
            found.append(_device(launch, model, draft, gpus, gpu, number, stage, weights, ends))
    return tuple(found)


_last: list[tuple[Model, tuple[object, ...], tuple[TensorGroup, ...]]] = []


def _counted(model: Model, dtype: str, quantization: Quantization | None) -> tuple[TensorGroup, ...]:
    """The weights by group. The last answer is kept: a sweep asks for one model again and again, and counting the
    tensors of a large one takes most of a forecast's time."""
    asked = (dtype, quantization)
    if _last and _last[0][0] is model and _last[0][1] == asked:
        return _last[0][2]
    groups = weight_groups(model, dtype, quantization)
    _last[:] = [(model, asked, groups)]
    return groups


def pools(memory: tuple[DeviceMemory, ...], stages: int) -> list[Pool] | None:
    """The pool of each stage (its poorest device counts), or None where a device's is not known."""
    tensor = len(memory) // stages
    found = []
    for stage in range(stages):
        own = memory[stage * tensor : (stage + 1) * tensor]
        known = [device for device in own if device.cache is not None]
        if len(known) < len(own) or not own:
            return None
        poorest = min(known, key=lambda device: device.cache or 0)
        bounds = poorest.certainty["cache"]
        assert isinstance(bounds, Estimate)
        found.append(Pool(value=poorest.cache or 0, low=int(bounds.low), high=int(bounds.high)))
    return found


def _device(
    launch: Launch,
    model: Model,
    draft: Model | None,
    gpus: Gpus | None,
    gpu: Gpu | None,
    number: int,
    stage: int,
    weights: int | None,
    ends: float,
) -> DeviceMemory:
    total = gpu.memory_total if gpu else None
    budget = budget_of(launch, total) if total else None
    active = activations(launch, model, stage)
    graphs = captured(launch, model)
    other = beside(launch, draft, gpus, total, weights or 0, ends)
    inside = graphs if graphs_inside(launch) else _nothing("taken outside the budget, or not at all")
    cache = bounds = None
    if budget is not None and weights is not None:
        parts = (active, inside, other)
        cache = int(budget - weights - sum(part.value for part in parts))
        bounds = Estimate(
            low=int(budget - weights - sum(part.high for part in parts)),
            high=int(budget - weights - sum(part.low for part in parts)),
            why="the budget less the weights and what is measured while profiling",
        )
    certainty: dict[str, Any] = {
        "weights": _weights_certainty(weights, bool(model.weights) or exact_layout(model)),
        "activations": active.estimate(),
        "graphs": inside.estimate(),
        "other": other.estimate(),
        "budget": "exact",
    }
    if bounds is not None:
        certainty["cache"] = bounds
    return DeviceMemory(
        device=number,
        name=gpu.name if gpu else "",
        total=total,
        budget=budget,
        weights=weights,
        activations=round(active.value),
        graphs=round(inside.value),
        other=round(other.value),
        cache=cache,
        headroom=total - budget if total is not None and budget is not None else None,
        certainty=certainty,
    )


def _weights_certainty(weights: int | None, layout_known: bool) -> Certainty:
    """Bounds of what the server prints for its weights: the tensors' bytes, and what the allocator rounds up to."""
    held, slack = weights or 0, table("memory.toml")["weights"]
    if not layout_known:
        low, high = held * (1 + slack["unknown_low"]), held * (1 + slack["unknown_high"])
        return Estimate(low=low, high=high, why=slack["unknown_source"])
    high = held * (1 + slack["high"]) + slack["printed_more"] * GIB
    return Estimate(low=held, high=high, why=f"the tensors take {held:,} bytes; {slack['printed_source']}")


def _rank_on_cpu(weights: int | None, exact: bool) -> DeviceMemory:
    """A rank whose memory is the host's: its pool is set, not left over of a budget, and nothing else is predicted."""
    return DeviceMemory(
        device=-1, name="CPU", total=None, budget=None, weights=weights, activations=None, graphs=None, other=None,
        cache=None, headroom=None, certainty={"weights": _weights_certainty(weights, exact)},
    )  # fmt: skip


def budget_of(launch: Launch, total: int) -> int:
    """Bytes that vLLM may take of a GPU of ``total`` bytes: a share of all its memory, whoever else uses it."""
    share = total * float(launch.get("gpu_memory_utilization") or 0.9)
    return math.ceil(share) if _rules(launch)["budget_rounded_up"] else int(share)


def weights_of(
    launch: Launch, model: Model, draft: Model | None, stage: int, groups: tuple[TensorGroup, ...]
) -> int | None:
    """Bytes of the weights on a rank of a stage, a drafter's included; None where they cannot be known."""
    tensor, stages = _size(launch, "tensor_parallel_size"), _size(launch, "pipeline_parallel_size")
    speculates = speculation(launch, model, draft)
    experts = tensor * _size(launch, "data_parallel_size") if launch.get("enable_expert_parallel") else None
    own = bytes_per_rank(
        model,
        tensor_parallel=tensor,
        pipeline_parallel=stages,
        stage=stage,
        partition=stage_partition(launch),
        expert_ranks=experts,
        towers=not launch.get("language_model_only"),
        prediction=speculates is not None and speculates.method == "mtp",
        groups=groups,
    )
    if own is None:
        return None
    if draft is not None and speculates is not None and speculates.layers and stage == stages - 1:
        own += bytes_per_rank(draft, tensor_parallel=tensor) or 0
    offloaded = float(launch.get("cpu_offload_gb") or 0) * GIB
    return max(0, own - int(offloaded))


def _quantized_while_loading(launch: Launch, model: Model) -> Quantization | None:
    """``--quantization fp8`` over an unquantised checkpoint: the linear layers are quantised as they load."""
    if model.quantization is None and launch.get("quantization") in ("fp8", "fp8_per_tensor", "fp8_per_block"):
        return Quantization(method="fp8", bits=8)
    return None


def activations(launch: Launch, model: Model, stage: int) -> Figure:
    """The peak of the profiling run: the sampler over every sequence, one MLP over a whole batch, or the encoder's.

    The sampler takes ``logit_bytes`` for each sequence and vocabulary entry: logits in float32, and where it sorts them
    their sorted copy, its indices and the sort's own buffers. A fused MoE keeps two workspaces
    (fused_moe/modular_kernel.py).
    """
    learned, rules = table("memory.toml")["activation"], _rules(launch)
    tensor, stages = _size(launch, "tensor_parallel_size"), _size(launch, "pipeline_parallel_size")
    batch = int(launch["max_num_batched_tokens"])
    width = model.intermediate_size or 4 * model.hidden_size
    mlp = batch * (3 * width // tensor + learned["hidden_copies"] * model.hidden_size) * 2
    experts = 0
    if model.experts and model.expert_intermediate_size:
        part = model.expert_intermediate_size // tensor
        copies = max(2 * part, model.hidden_size) + max(part, model.hidden_size)
        experts = batch * max(model.experts_per_token, 1) * copies * 2
        mlp = batch * learned["hidden_copies"] * model.hidden_size * 2
    logits, least = (sampler_peak(launch, model, name) for name in ("logit_bytes", "logit_bytes_least"))
    if stage != stages - 1 or model.pooling:
        logits = least = 0.0
    kept, freed = (experts, 0) if rules["expert_workspace_kept"] else (0, experts)
    encoder = encoder_peak(launch, model) if stage == 0 else 0.0
    value, low = (max(max(peak, mlp + freed) + kept, encoder) for peak in (logits, least))
    who = "the sampler" if logits > mlp + freed else "a batch"
    return Figure(
        value=value,
        low=low * learned["low"] - 0.05 * GIB,
        high=value * learned["high"] + learned["margin"] * GIB,
        why=f"{'the vision encoder' if value == encoder else who} at its peak while profiling; {learned['source']}",
    )


def encoder_peak(launch: Launch, model: Model) -> float:
    """Bytes of one block of the vision encoder over the largest image; 0 where no image is profiled or none is known.

    It runs before the language model, whose workspaces are not there yet (v1/worker/gpu_model_runner.py: profile_run).
    """
    data, kind = table("memory.toml"), model.config.get("model_type")
    known = next((row for row in data["encoder"] if kind in row["model_types"]), None)
    limits = launch.get("limit_mm_per_prompt")
    none = isinstance(limits, dict) and all(limits.get(item) == 0 for item in ("image", "video"))
    if known is None or none or launch.get("language_model_only") or launch.get("skip_mm_profiling"):
        return 0.0
    vision = Keys(model.config, f"config.json of {model.name}").below("vision_config")
    if vision is None:
        return 0.0
    tensor = 1 if launch.get("mm_encoder_tp_mode") == "data" else _size(launch, "tensor_parallel_size")
    width, hidden = vision.count("intermediate_size") or 0, vision.count("hidden_size") or 0
    copies = data["activation"]["hidden_copies"]
    return float(known["patches"] * (3 * width // tensor + copies * hidden) * 2)


def sampler_peak(launch: Launch, model: Model, name: str = "logit_bytes") -> float:
    """Bytes of the sampler's peak over the rows it is profiled with; ``name`` is the rule of an entry's bytes."""
    entry, constant = sampler_rule(launch, name)
    return rows_sampled(launch) * model.vocabulary * entry + constant * GIB


def sampler_rule(launch: Launch, name: str = "logit_bytes") -> tuple[float, float]:
    """Bytes of an entry of the logits and GiB beside them, as the release has it."""
    rules = _rules(launch)
    return float(rules[name]), float(rules["logit_constant"])


def rows_sampled(launch: Launch) -> int:
    """Rows of logits in the profiling run: one a sequence, and one more where drafted tokens are verified."""
    sequences = min(int(launch.get("max_num_seqs") or 256), int(launch["max_num_batched_tokens"]))
    if launch.get("speculative_config"):
        return sequences * (1 + int(_rules(launch)["speculation_profiled"]))
    return sequences


def captured(launch: Launch, model: Model) -> Figure:
    """CUDA graphs of the sizes that are captured."""
    learned = table("memory.toml")["graphs"]
    sizes = launch.get("cudagraph_capture_sizes") or ()
    if not sizes:
        return _nothing("no CUDA graphs are captured")
    share = len(sizes) / learned["sizes"]
    value = learned["per_layer"] * len(model.layers) * share * GIB
    return Figure(
        value=value,
        low=min(value * 0.3, (learned["low"] + 1.5) * GIB),
        high=value * learned["high"] + learned["margin"] * GIB * share,
        why=learned["source"],
    )


def graphs_inside(launch: Launch) -> bool:
    """Whether the release subtracts an estimate of the graphs from the budget before the cache is sized."""
    if launch.environment.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "1").strip() == "0":
        return False
    way = _rules(launch)["graphs_subtracted"]
    return bool(way == "every runner" or (way == "V1 runner" and launch.get("model_runner") != "V2"))


def beside(
    launch: Launch, draft: Model | None, gpus: Gpus | None, total: int | None, weights: int, ends: float
) -> Figure:
    """What is neither weights, activations nor graphs: communication buffers, workspaces, the allocator's rounding."""
    data = table("memory.toml")
    version = release(launch.version)
    ranks = _size(launch, "tensor_parallel_size")
    parallel = ranks > 1
    capability = capability_of(gpus)
    major = capability[0] if capability else 8
    runner = str(launch.get("model_runner") or "V1")
    if draft is not None and runner == "V1":
        runner = "V1 with a draft model"
    fixed = next(
        row
        for row in data["non_torch"]
        if row["tensor_parallel"] == parallel
        and row.get("ranks", 1) <= ranks
        and ("device" not in row or capability == tuple(row["device"]))
        and row.get("capability", [major])[0] <= major <= row.get("capability", [major])[-1]
        and release(row["since"]) <= version
    )
    memory = (total or 1 << 60) / GIB
    left = next(
        (
            row
            for row in data["remainder"]
            if memory <= row["most_memory"]
            and release(row["since"]) <= version
            and (row["most_memory"] > 1000 or (row["tensor_parallel"] == parallel and row["runner"] == runner))
        ),
        data["remainder"][-1],
    )
    slack = data["weights"]
    parts = {
        bound: fixed[bound] * GIB + left[bound] * ends + slack["slack" if bound == "value" else bound] * weights
        for bound in ("value", "low", "high")
    }
    return Figure(
        value=parts["value"],
        low=parts["low"],
        high=parts["high"] + data["unexplained"]["share"] * (total or 0),
        why=f"{fixed['source']}; {left['source']}",
    )


def _ends(launch: Launch, groups: tuple[TensorGroup, ...], stage: int) -> float:
    """Bytes of embedding and output on a rank of a stage."""
    tensor, stages = _size(launch, "tensor_parallel_size"), _size(launch, "pipeline_parallel_size")
    size = 0.0
    for group in groups:
        if (group.kind == "embedding" and stage == 0) or (group.kind == "output" and stage == stages - 1):
            size += group.bytes / tensor
    return size


def _nothing(why: str) -> Figure:
    return Figure(value=0, low=0, high=0, why=why)


def _rules(launch: Launch) -> dict[str, Any]:
    return at(table("memory.toml")["rule"], launch.version)


def _size(launch: Launch, name: str) -> int:
    return int(launch.get(name) or 1)
