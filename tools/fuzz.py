"""Coverage-guided fuzzing of the doors through which strangers' bytes come in: files, logs, cases, command lines.

    python tools/fuzz.py config --seconds 600 --corpus tests/fuzz/corpus/config

needs ``pip install atheris gguf`` beside the project (Python 3.12 for ``--distil``). Inputs start from the tests' own
models, configurations and logs. Whatever comes out but InputError, takes more than 2 s of CPU or more than 300 MB is
minimised and kept under ``--work``/findings with its traceback; ``--distil`` then adds to the corpus the smallest
inputs that reach new lines. tests/fuzz/test_corpus.py replays the corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PROJECT = ("llmdoctor_core", "llmdoctor_checks", "llmdoctor_remedies")
SECONDS, MEGABYTES = 2.0, 300
HANGS_AFTER, WAITS_FOR = 15, 180
"""Seconds of CPU time and of wall time after which an input is broken off."""
MOST_INPUT = 64 << 10
LESS_INPUT = {"argv": 4 << 10, "deploy": 8 << 10}
"""A command line of a thousand unknown arguments takes seconds, each looked up among all that are known."""
MOST_CORPUS = 900_000
"""Bytes of a kept corpus."""
MINIMISING = 15.0
"""Seconds spent on making one finding smaller."""
TARGETS = ("config", "gguf", "safetensors", "log", "case", "argv", "deploy")

sys.path[:0] = [str(TESTS), str(TESTS / "models"), str(Path(__file__).parent)]


class HangError(BaseException):
    """Raised into an input that does not end; no handler of ours may swallow it."""


def _broken_off(number: int, frame: FrameType | None) -> None:
    raise HangError(f"still running after {HANGS_AFTER} s of CPU or {WAITS_FOR} s")


def failure(hold: Callable[[str, bytes], str | None], target: str, data: bytes) -> tuple[str, str] | None:
    """What is wrong with how an input was taken: a signature, the same for the same fault, and the details."""
    before, began = _peak(), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, HANGS_AFTER)
    signal.setitimer(signal.ITIMER_REAL, WAITS_FOR)
    try:
        hold(target, data)
    except HangError as error:
        return f"hang {_place(error)}", traceback.format_exc()
    except Exception as error:
        return f"{type(error).__name__} {_place(error)}", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    seconds, grown = time.process_time() - began, _peak() - before
    if seconds > SECONDS:
        return "slow", f"{seconds:.1f} s of CPU"
    if grown > MEGABYTES << 20:
        return "memory", f"{grown >> 20} MB more"
    return None


AS_USED = """
import sys, time
sys.path[:0] = sys.argv[2:]
from fuzz_targets import hold
data = sys.stdin.buffer.read()
for once in range(2):
    began = time.process_time()
    hold(sys.argv[1], data)
print(time.process_time() - began)
"""


def seconds_as_used(target: str, data: bytes) -> float:
    """Seconds of CPU that an input takes where nothing counts coverage and the tables have been read before."""
    command = [sys.executable, "-c", AS_USED, target, *sys.path]
    return float(subprocess.run(command, input=data, capture_output=True, check=True).stdout.split()[-1])


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _place(error: BaseException) -> str:
    """The innermost line of ours that the traceback goes through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if any(name in frame.filename for name in PROJECT)] or frames[-1:]
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}"


def minimised(data: bytes, still: Callable[[bytes], bool]) -> bytes:
    """A smaller input with the same fault: pieces are left out as long as it stays."""
    ends = time.monotonic() + MINIMISING
    size = len(data) // 2
    while size and time.monotonic() < ends:
        at = 0
        while at < len(data) and time.monotonic() < ends:
            shorter = data[:at] + data[at + size :]
            if still(shorter):
                data = shorter
            else:
                at += size
        size //= 2
    return data


def seeds(target: str) -> list[bytes]:
    """Well-formed inputs, from what the tests have."""
    configs = [path.read_bytes() for path in sorted((TESTS / "configs").glob("*--*.json"))]
    found = {
        "config": lambda: [*configs, *_folders()],
        "gguf": lambda: list(_gguf_headers()),
        "safetensors": lambda: list(_safetensors_headers()),
        "log": lambda: list(_logs()),
        "case": lambda: list(_cases()),
        "argv": lambda: list(_command_lines()),
        "deploy": lambda: list(_deployments()),
    }[target]()
    return [seed for seed in found if len(seed) <= LESS_INPUT.get(target, MOST_INPUT)]


def _folders() -> Iterator[bytes]:
    from model_files import repository

    yield b"".join(b"--- %s\n%s\n" % (name.encode(), data[:6000]) for name, data in repository().items())


def _gguf_headers() -> Iterator[bytes]:
    from fuzz_mutations import GgufDocument

    from make_gguf import SPECS, write_model

    with tempfile.TemporaryDirectory() as folder:
        for name in SPECS:
            path = Path(write_model(name, f"{folder}/{name}.gguf", hollow=True))
            with path.open("rb") as file:  # its tensors are a hole of many gigabytes
                document = GgufDocument(file.read(16 << 20))
            path.unlink()
            document.keys = [
                (key, kind, (value[0], value[1][:70]) if kind == 9 and len(value[1]) > 512 else value)
                for key, kind, value in document.keys
            ]
            document.tensors = [t for t in document.tensors if not re.match(rb"blk\.(?:[3-9]|\d\d)", t[0])]
            yield document.written()


def _safetensors_headers() -> Iterator[bytes]:
    from model_files import llama_tensors, safetensors, sharded

    yield safetensors(llama_tensors(range(1)))
    yield safetensors({"a": ("F8_E4M3", [2, 3]), "b": ("I32", [])})
    for data in sharded().values():
        header = data[: 8 + int.from_bytes(data[:8], "little")] if data[:1] != b"{" else bytes(8) + data
        yield header
    yield b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def _logs() -> Iterator[bytes]:
    from llmdoctor_core.bundle import pack, write_bundle
    from llmdoctor_core.case import Case

    with tempfile.TemporaryDirectory() as folder:
        write_bundle(Path(folder) / "b.zip", pack(case=Case(host="h"), logs={"a.log": "ValueError: x\n"}))
        yield (Path(folder) / "b.zip").read_bytes()
    for line in (TESTS / "data/failure-reports.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield "\n".join(row["log_lines"]).encode()
    for path in sorted((TESTS / "triage").rglob("*.log")) + sorted((TESTS / "logs").rglob("*")):
        if path.is_file():
            yield path.read_bytes()[-MOST_INPUT:]
    yield (
        b"INFO 07-16 10:00:00 [api_server.py:1] vLLM API server version 0.10.0\n"
        b"INFO 07-16 10:00:00 [utils.py:1] non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192}\n"
        b"INFO 07-16 10:00:01 [gpu_worker.py:1] Available KV cache memory: 1.78 GiB\n"
        b"INFO 07-16 10:00:01 [kv_cache_utils.py:1] GPU KV cache size: 12,928 tokens\n"
        b"INFO 07-16 10:00:01 [kv_cache_utils.py:1] Maximum concurrency for 8,192 tokens per request: 1.58x\n"
    )
    yield (
        b"build: 10434 (abc) with cc for x86_64-linux-gnu\n"
        b"llama_model_loader: - kv   0: general.architecture str = qwen3\n"
        b"llama_model_loader: - kv   1: qwen3.block_count u32 = 36\n"
        b"llama_model_loader: - kv   2: qwen3.embedding_length u32 = 4096\n"
        b"llama_model_loader: - kv   3: qwen3.attention.head_count u32 = 32\n"
        b'llama_model_loader: - kv   4: tokenizer.ggml.tokens arr[str,151936] = ["!", "\\""]\n'
        b"llama_kv_cache: size = 1152.00 MiB (  8192 cells,  36 layers,  4/4 seqs), "
        b"K (f16):  576.00 MiB, V (f16):  576.00 MiB\n"
        b"load_tensors:        CUDA0 model buffer size =  4455.34 MiB\n"
    )


def _cases() -> Iterator[bytes]:
    from llmdoctor_core.case import Case, _field_of_type, encode
    from llmdoctor_core.facts import LaunchRequest
    from llmdoctor_core.gpu_table import gpus_from, links_from
    from llmdoctor_core.models import catalogue

    for model in MODELS:
        launch = LaunchRequest(runtime="vllm", argv=("vllm", "serve", model, "-tp", "2"), version="0.11.0", model=model)
        yield encode(Case(launch=launch, model=catalogue.find(model), gpus=gpus_from("L4x2"), links=links_from("L4x2")))
    for name in ("smollm2-135m-q4_1", "gemma-3-270m-q4_k_m"):
        model = (TESTS / f"data/{name}.source.json").read_text()
        words = json.dumps(["llama-server", "-m", f"{name}.gguf", "-c", "8192"])
        launch = f'{{"fact":"launchrequest","runtime":"llamacpp","version":"b11434","argv":{words}}}'
        yield f'{{"format_version":"1.0","launch":{launch},"model":{model}}}'.encode()
    examples: Any = importlib.import_module("checks.cases")
    fields = _field_of_type()
    for example in examples.CASES.values():
        for facts in example:
            known = {fields[type(fact)]: fact for fact in facts if type(fact) in fields}
            if known:
                yield encode(Case(**{"launch": launch_of(known), **known}))


def launch_of(known: dict[str, Any]) -> Any:
    """A launch for facts that come without one."""
    from llmdoctor_core.facts import LaunchRequest

    model = known.get("model")
    runtime: Any = "llamacpp" if model is not None and model.gguf else "vllm"
    return LaunchRequest(runtime=runtime, argv=("vllm", "serve", "m") if runtime == "vllm" else ("llama-server",))


MODELS = ("Qwen/Qwen3-0.6B", "google/gemma-3-4b-it", "deepseek-ai/DeepSeek-V2-Lite", "LiquidAI/LFM2-1.2B")
HEADS = (
    "# runtime=vllm version=0.11.0 model=Qwen/Qwen3-0.6B gpu=A100-80GB",
    "# runtime=vllm version=0.32.0 model=deepseek-ai/DeepSeek-V2-Lite gpu=H200x2",
    "# runtime=vllm version=0.6.3 model=google/gemma-3-4b-it gpu=L4x4 entrypoint=llm",
    "# runtime=vllm model=LiquidAI/LFM2-1.2B draft=Qwen/Qwen3-0.6B kv_memory=62633000000",
    "# runtime=llamacpp version=b11434 model=google/gemma-3-4b-it gpu=L4x2",
    "# runtime=llamacpp version=b10434 model=ibm-granite/granite-4.0-h-tiny",
)


def _command_lines() -> Iterator[bytes]:
    lines = {
        "vllm": (
            "VLLM_USE_V1=1 vllm serve Qwen/Qwen3-8B --max-model-len 32k -tp 2 --no-enable-prefix-caching",
            'vllm serve m --speculative-config {"method":"eagle","num_speculative_tokens":3,"model":"d"} -O3',
            "vllm serve m --kv-cache-dtype fp8 --block-size 32 --gpu-memory-utilization=0.95 --enforce-eager",
            "vllm serve m --config conf.yaml --data-parallel-size 2 --enable-expert-parallel -pp 2 --quantization awq",
            "vllm serve m --compilation-config.cudagraph_capture_sizes [1,2,4] --max-num-seqs 1 --rope-scaling {}",
        ),
        "llamacpp": (
            "LLAMA_ARG_CTX_SIZE=4096 llama-server -m m.gguf -c 32768 --parallel 4 -ngl 99 -ctk q8_0 -ctv q4_0 -fa on",
            "llama-server -hf ggml-org/gemma-3-4b-it-GGUF:Q4_K_M -ts 3,1 -sm row -mg 1 -ub 512 -b 2048 --swa-full",
            "llama-server -m m.gguf -md d.gguf --draft-max 8 -cd 4096 -ngld 99 -nkvo -ot exps=CPU --n-cpu-moe 4",
        ),
    }  # fmt: skip
    for head in HEADS:
        for line in lines["llamacpp" if "llamacpp" in head else "vllm"]:
            yield "\n".join((head, *line.split(" "))).encode()
    yield b"\n".join(
        (HEADS[0].encode(), b"vllm\nserve\n--config\nconf.yaml\n--- conf.yaml\nmodel: m\nmax-model-len: 8k\n")
    )


def _deployments() -> Iterator[bytes]:
    import textwrap

    source = (TESTS / "deploy/test_deploy.py").read_text(encoding="utf-8")
    for text in re.findall(r'"""\\?\n(.*?)"""', source, re.DOTALL):
        for name in ("compose.yaml", "run.sh", "vllm.service", "llm.container"):
            yield f"--- {name}\n{textwrap.dedent(text)}".encode()
    yield b"--- run.sh\ndocker run --gpus all --ipc=host -p 8000:8000 vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B\n"
    yield b"--- run.sh\n#!/bin/sh\nfor i in 1 2; do llama-server -m $i.gguf -c $((4096*8)) & done\n"
    yield (
        b"--- llm.container\n[Container]\nImage=ghcr.io/ggml-org/llama.cpp:server-cuda-b11434\nShmSize=1g\n"
        b"Exec=-m /m.gguf -c 8192\nEnvironment=A=%h\n"
    )
    yield b"--- x.yaml\na: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nservices: {llm: {image: vllm/vllm-openai, command: *b}}\n"
    yield b"--- x.yaml\nservices: &s {llm: {image: vllm/vllm-openai, command: [--model, m], <<: *s}}\n"


def words_of(target: str) -> list[str]:
    """Words that inputs of that kind are made of beyond what the seeds hold."""
    if target not in ("argv", "deploy", "case", "log"):
        return []
    data = "".join(
        path.read_text(encoding="utf-8")
        for runtime in ("vllm", "llamacpp")
        for path in sorted((ROOT / f"doctor/llmdoctor_core/runtimes/{runtime}/data").glob("arguments*"))
    )
    return re.findall(r"(?<![\w-])-{1,2}[a-z][a-z0-9-]*", data) + re.findall(r"\b(?:VLLM|LLAMA_ARG)_[A-Z0-9_]+", data)


def mutation_of(target: str) -> Callable[[bytes, random.Random], bytes]:
    """The structured mutation of a target's inputs."""
    import fuzz_mutations as m

    inputs = seeds(target)
    if target == "gguf":
        table = (ROOT / "doctor/llmdoctor_core/models/data/gguf_architectures.toml").read_text(encoding="utf-8")
        return m.gguf_mutation(inputs, sorted(set(re.findall(r'"([a-z0-9-]+)"', table))) or ["llama"])
    if target == "safetensors":
        return m.framed(m.json_mutation(m.Vocabulary(seed[8:] for seed in inputs)))
    vocabulary = m.Vocabulary(inputs, words_of(target))
    if target == "config":
        files = ("generation_config.json", "hf_quant_config.json", "tokenizer_config.json", "tokenizer.json",
                 "model.safetensors.index.json", "model.safetensors")  # fmt: skip
        return m.sectioned(m.json_mutation(vocabulary), files)
    if target == "case":
        return m.json_mutation(vocabulary)
    lines = m.sectioned(m.lines_mutation(vocabulary), ())
    if target == "log":
        return lambda data, chance: m.gzipped(data, chance) if chance.random() < 0.02 else lines(data, chance)
    return lines


def fuzz(target: str, seconds: int, corpus: Path, work: Path) -> None:
    """Run the fuzzer for that long. It ends the process."""
    try:
        import atheris
    except ImportError:
        raise SystemExit("tools/fuzz.py needs atheris: pip install atheris") from None
    with atheris.instrument_imports(include=list(PROJECT)):
        from fuzz_targets import hold
        from llmdoctor_core import plugins

        if broken := plugins.catalogue().broken:
            raise SystemExit(broken[0].message)
    findings = work / "findings"
    grown = work / "corpus"
    for folder in (corpus, findings, grown, work / "seeds"):
        folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds(target):
        (work / "seeds" / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    structured = mutation_of(target)
    known: set[str] = set()
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _broken_off)

    def one(data: bytes) -> None:
        found = failure(hold, target, data)
        if found is None or found[0] in known or (found[0] == "slow" and seconds_as_used(target, data) <= SECONDS):
            return
        known.add(found[0])
        small = data
        if not found[0].startswith(("hang", "memory", "slow")):
            small = minimised(data, lambda shorter: (failure(hold, target, shorter) or ("",))[0] == found[0])
        name = hashlib.sha256(small).hexdigest()[:16]
        (findings / name).write_bytes(small)
        (findings / f"{name}.txt").write_text(f"{found[0]}\n{found[1]}", encoding="utf-8", errors="replace")
        print(f"FINDING {found[0]} ({len(small)} bytes: {findings / name})", file=sys.stderr, flush=True)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.2:
            return bytes(atheris.Mutate(data, most))
        changed = data
        for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
            changed = structured(changed, chance)
        return bytes(atheris.Mutate(changed, most)) if changed == data else changed[:most]

    options = [
        f"-max_total_time={seconds}",
        f"-max_len={LESS_INPUT.get(target, MOST_INPUT)}",
        "-len_control=0",
        "-timeout=120",
        "-rss_limit_mb=6144",
        "-reload=0",
        "-print_final_stats=1",
        f"-artifact_prefix={findings}/",
    ]
    atheris.Setup([sys.argv[0], *options, str(grown), str(corpus), str(work / "seeds")], one, custom_mutator=mutate)
    atheris.Fuzz()


def distil(target: str, corpus: Path, work: Path) -> None:
    """Add to the corpus the smallest inputs of the work folder that reach lines which the corpus does not reach."""
    if sys.version_info < (3, 12):
        raise SystemExit("--distil needs Python 3.12: it watches lines with sys.monitoring")
    from fuzz_targets import hold

    watch, tool, fresh = sys.monitoring, sys.monitoring.COVERAGE_ID, [False]

    def line(code: CodeType, number: int) -> Any:
        if any(name in code.co_filename for name in PROJECT):
            fresh[0] = True
        return watch.DISABLE

    watch.use_tool_id(tool, "fuzz")
    watch.register_callback(tool, watch.events.LINE, line)
    watch.set_events(tool, watch.events.LINE)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _broken_off)
    kept = sorted(path for path in corpus.iterdir() if path.is_file())
    size = sum(path.stat().st_size for path in kept)
    for path in kept:
        failure(hold, target, path.read_bytes())
    grown = [path for folder in ("seeds", "corpus") for path in (work / folder).iterdir()]
    for path in sorted(grown, key=lambda path: path.stat().st_size):
        data, fresh[0] = path.read_bytes(), False
        found = failure(hold, target, data)
        if found is not None:
            print(f"{path}: {found[0]}", file=sys.stderr)
        elif fresh[0] and size + len(data) <= MOST_CORPUS:
            size += len(data)
            (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    print(f"{target}: {len(list(corpus.iterdir()))} inputs, {size:,} bytes")


def main() -> None:
    """The command line."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("target", choices=TARGETS)
    given.add_argument("--seconds", type=int, default=600)
    given.add_argument("--corpus", type=Path, help="kept inputs (tests/fuzz/corpus/TARGET)")
    given.add_argument("--work", type=Path, help="inputs and findings of this run (TMP/llmdoctor-fuzz/TARGET)")
    given.add_argument("--distil", action="store_true", help="choose inputs of the work folder for the corpus")
    options = given.parse_args()
    corpus = options.corpus or TESTS / "fuzz/corpus" / options.target
    work = options.work or Path(tempfile.gettempdir()) / "llmdoctor-fuzz" / options.target
    if options.distil:
        distil(options.target, corpus, work)
    else:
        fuzz(options.target, options.seconds, corpus, work)


if __name__ == "__main__":
    main()
