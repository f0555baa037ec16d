"""Refits what the forecast learned from start-up logs and says how far off it is on launches it was not fitted on.

    python tools/fit_vllm_memory.py LOGS.jsonl

Printed: bytes per logit and the constant of the sampler's peak (least squares), GiB of CUDA graphs per layer, memory
beside PyTorch's by kind of launch; each with the values in data/memory.toml beside it, and the error when every model
in turn is left out of the fit. Put new values into data/memory.toml by hand, with their source.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from msgspec import Struct

sys.path.insert(0, str(Path(__file__).parent))
import replay_logs

from llmdoctor_core.facts import LaunchRequest
from llmdoctor_core.runtimes import vllm
from llmdoctor_core.runtimes.vllm import memory
from llmdoctor_core.runtimes.vllm.since import table

GIB = 1 << 30


class Row(Struct, frozen=True, kw_only=True):
    """A log with what it printed of the profiling run, in GiB, and what we would say."""

    id: str
    model: str
    logits: float
    """Sequences times vocabulary: entries of the sampler's logits."""
    rule: tuple[float, float]
    """Bytes of an entry and the constant that hold for the release."""
    layers: int
    sizes: int
    tensor: int
    capability: int
    activation: float
    non_torch: float | None
    graphs: float | None
    beside_logits: float
    """What the activations hold beside the sampler's logits by our formula: workspaces of experts."""
    batch: bool
    """Whether a batch, not the sampler, makes the peak."""
    predicted: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", type=Path)
    options = parser.parse_args()
    found = [row for line in options.logs.read_text().splitlines() if (row := read(json.loads(line)))]
    activations(found)
    graphs(found)
    beside(found)


def read(log: dict[str, Any]) -> Row | None:
    printed = log["printed"]
    version = str(log.get("version") or "")
    if (
        log.get("runtime") != "vllm"
        or printed.get("activation_gib") is None
        or not re.match(r"0\.(9|[1-9]\d)\.", version)
    ):
        return None  # the first engine, up to 0.8, profiled otherwise
    made, gpus = replay_logs.model_of(log), replay_logs.gpus_of(log)
    if made is None or gpus is None:
        return None
    request = LaunchRequest(
        runtime="vllm", argv=tuple(replay_logs.words(log)), version=log["version"], entrypoint="serve", model=made.name
    )
    launch = vllm.resolve(request, made, gpus)
    stage = int(launch.get("pipeline_parallel_size") or 1) - 1
    whole = memory.activations(launch, made, 0 if log["pp"] and log["pp"] > 1 else stage)
    logits = memory.rows_sampled(launch) * made.vocabulary
    sampler = memory.sampler_peak(launch, made)
    batch = "a batch" in whole.why or bool(log["pp"] and log["pp"] > 1)
    estimated = printed.get("graph_est_gib")
    inside = estimated if estimated and memory.graphs_inside(launch) else 0
    return Row(
        id=log["id"],
        model=log["model"],
        logits=logits,
        rule=memory.sampler_rule(launch),
        layers=len(made.layers),
        sizes=len(launch.get("cudagraph_capture_sizes") or ()),
        tensor=int(launch.get("tensor_parallel_size") or 1),
        capability=(gpus.visible[0].compute_capability or (0, 0))[0],
        activation=printed["activation_gib"] - inside,
        non_torch=printed.get("non_torch_gib"),
        graphs=estimated,
        beside_logits=0.0 if batch else (whole.value - sampler) / GIB,
        batch=batch,
        predicted=whole.value / GIB,
    )


def fit(rows: list[Row]) -> tuple[float, float]:
    """Bytes per logit and the constant in GiB, by least squares over the rows whose peak is the sampler's."""
    points = [(row.logits / GIB, row.activation - row.beside_logits) for row in rows]
    mean_x, mean_y = statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return slope, mean_y - slope * mean_x


def activations(rows: list[Row]) -> None:
    peaks = [row for row in rows if not row.batch]
    now = statistics.mode(row.rule for row in peaks)
    sampled = [row for row in peaks if row.rule == now]
    slope, constant = fit(sampled)
    print(f"activations: {len(rows)} logs, {len(sampled)} with the peak of one sampler")
    print(f"   bytes per logit {slope:.2f} (now {now[0]}), constant {constant:.2f} GiB (now {now[1]})")
    for row in peaks:
        if row.rule != now:
            print(f"   another sampler: {row.id} {row.model}: printed {row.activation:.2f}, ours {row.predicted:.2f}")
    errors = []
    for name in sorted({row.model for row in sampled}):
        slope, constant = fit([row for row in sampled if row.model != name])
        for row in sampled:
            if row.model == name:
                guess = slope * row.logits / GIB + constant + row.beside_logits
                errors.append((guess - row.activation, row))
    off = [abs(error) for error, _ in errors]
    print(f"   each model left out: median {statistics.median(off):.2f} GiB, worst {max(off):.2f} GiB")
    for error, row in sorted(errors, key=lambda pair: -abs(pair[0]))[:5]:
        print(f"      {row.id} {row.model}: printed {row.activation:.2f}, {error:+.2f}")
    for row in rows:
        if row.batch:
            print(f"   a batch's peak: {row.id} {row.model}: printed {row.activation:.2f}, ours {row.predicted:.2f}")


def graphs(rows: list[Row]) -> None:
    known = [row for row in rows if row.graphs and row.sizes]
    if not known:
        return
    learned = table("memory.toml")["graphs"]
    each = [row.graphs / row.layers * learned["sizes"] / row.sizes for row in known if row.graphs]
    middle = statistics.median(each)
    print(
        f"graphs: {len(known)} logs; GiB per layer: median {middle:.4f} (now {learned['per_layer']}), "
        f"{min(each):.4f} to {max(each):.4f}"
    )


def beside(rows: list[Row]) -> None:
    kinds = defaultdict(list)
    for row in rows:
        if row.non_torch is not None:
            kinds[(row.capability, row.tensor > 1)].append(row.non_torch)
    print("beside PyTorch's memory, GiB:")
    for (capability, parallel), values in sorted(kinds.items()):
        kind = "tensor parallel" if parallel else "one rank"
        print(f"   capability {capability}, {kind}: median {statistics.median(values):.2f}, "
              f"{min(values):.2f} to {max(values):.2f} ({len(values)} logs)")  # fmt: skip


if __name__ == "__main__":
    main()
