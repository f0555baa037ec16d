"""Inputs that are made to be slow or to fill memory: too large to keep as files, so each is built when it is needed."""

from __future__ import annotations

import gzip
import json
import resource
import struct
import sys
import time
from collections.abc import Callable

import fuzz_targets

MIB = 1 << 20


def _gguf(keys: bytes, key_count: int, tensors: bytes = b"", tensor_count: int = 0) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, tensor_count, key_count) + keys + tensors


def _gguf_keys(count: int) -> bytes:
    return _gguf(b"".join(struct.pack("<Q8sI?", 8, b"%08x" % number, 7, True) for number in range(count)), count)


def _gguf_tensors(count: int) -> bytes:
    entry = struct.Struct("<Q8sIQIQ")
    return _gguf(b"", 0, b"".join(entry.pack(8, b"%08x" % number, 1, 32, 0, 0) for number in range(count)), count)


def _gguf_strings(count: int) -> bytes:
    key = b"tokenizer.ggml.tokens"
    head = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, count)
    return _gguf(head + bytes(8 * count), 1)


def _safetensors(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


def _tensors(count: int) -> bytes:
    row = '"model.layers.%d.mlp.experts.%d.up_proj.weight":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
    return ("{" + ",".join(row % (n % 90, n, n, n + 1) for n in range(count)) + "}").encode()


def _gpus(count: int) -> bytes:
    devices = [{"index": n, "name": f"NVIDIA {n}", "visible_as": n} for n in range(count)]
    launch = {"fact": "launchrequest", "runtime": "vllm", "argv": ["vllm", "serve", "m", "-tp", "8"]}
    return json.dumps({"gpus": {"fact": "gpus", "devices": devices}, "launch": launch}).encode()


def _argv(*words: str) -> bytes:
    return "\n".join(("# runtime=vllm model=Qwen/Qwen3-0.6B gpu=L4x2", "vllm", "serve", "m", *words)).encode()


BOMBS: dict[str, dict[str, Callable[[], bytes]]] = {
    "config": {
        "nested arrays": lambda: b'{"a":' + b"[" * MIB + b"]" * MIB + b"}",
        "nested objects": lambda: b'{"a":' * MIB + b"1" + b"}" * MIB,
        "empty lists": lambda: b'{"a":[' + b"[]," * 10_000_000 + b"1]}",
        "empty objects": lambda: b'{"layer_types":[' + b"{}," * 10_000_000 + b"1]}",
        "keys": lambda: json.dumps({str(n): n for n in range(990_000)}).encode(),
        "lists": lambda: b'{"a":[' + b"[1]," * 490_000 + b"1]}",
        "a text": lambda: json.dumps({"model_type": "x" * (30 * MIB)}).encode(),
        "a number": lambda: b'{"num_hidden_layers":' + b"9" * (30 * MIB) + b"}",
        "layers": lambda: json.dumps(
            {"model_type": "llama", "num_hidden_layers": 4096, "layer_types": ["full_attention"] * 4096}
        ).encode(),
        "escapes": lambda: b'{"model_type":"' + b"\\ud800" * (5 * MIB) + b'"}',
    },
    "gguf": {
        "keys": lambda: _gguf_keys(6_000_000),
        "as many keys as are read": lambda: _gguf_keys(1 << 16),
        "tensors": lambda: _gguf_tensors(3_000_000),
        "as many tensors as are read": lambda: _gguf_tensors(1 << 17),
        "tokens": lambda: _gguf_strings(15_000_000),
        "as many tokens as are read": lambda: _gguf_strings(1 << 22),
        "a key": lambda: _gguf(struct.pack("<Q", 100 * MIB) + b"k" * (100 * MIB) + struct.pack("<I?", 7, True), 1),
    },
    "safetensors": {
        "nested arrays": lambda: _safetensors(b'{"a":' + b"[" * MIB + b"]" * MIB + b"}"),
        "empty lists": lambda: _safetensors(b'{"a":[' + b"[]," * 10_000_000 + b"1]}"),
        "tensors": lambda: _safetensors(_tensors(250_000)),
        "as many tensors as a real file has": lambda: _safetensors(_tensors(60_000)),
    },
    "log": {
        "a line": lambda: b"x" * (64 * MIB),
        "zeros, packed": lambda: gzip.compress(bytes(256 * MIB), mtime=0),
        "tracebacks": lambda: b"Traceback (most recent call last):\n" * 100_000,
        "exceptions": lambda: b"".join(b"ValueError: %d is wrong\n" % n for n in range(100_000)),
        "braces": lambda: (b"{" * 1000 + b"\n") * 2000,
        "metadata": lambda: b"".join(
            b"llama_model_loader: - kv %d: general.k%d str = v\n" % (n, n) for n in range(200_000)
        ),
        "arguments": lambda: b"non-default args: {" + b"'a': {" * 200_000 + b"\n",
        "JSON lines": lambda: b'{"log":"{\\"log\\":1}","a":[[[[]]]]}\n' * 50_000,
        "gibberish of letters": lambda: b"a.b-c_d=" * 8_000,
        "levels": lambda: b"\x1b[" * (8 * MIB),
    },
    "case": {
        "GPUs": lambda: _gpus(1000),
        "nested arrays": lambda: b'{"model":{"fact":"modelsource","config":{"a":' + b"[" * MIB + b"]" * MIB + b"}}}",
        "a text": lambda: json.dumps({"host": "x" * MIB}).encode(),
    },
    "argv": {
        "words": lambda: _argv(*["--max-model-len"] * 1_000),
        "a number": lambda: _argv("--max-model-len", "9" * 4_000_000),
        "sizes": lambda: _argv("--cuda-graph-sizes", *map(str, range(20_000))),
        "JSON": lambda: _argv("--hf-overrides", '{"a":' * 100_000),
        "dots": lambda: _argv("--hf-overrides" + ".a" * 100_000, "1"),
        "GPUs": lambda: b"# runtime=vllm model=Qwen/Qwen3-0.6B gpu=L4x100000000\nvllm\nserve\nm",
    },
    "deploy": {
        "aliases": lambda: (
            b"--- x.yaml\na0: &a0 [x]\n"
            + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 30))
            + b"services: {llm: {image: vllm/vllm-openai, command: *a29}}\n"
        ),
        "merges": lambda: (
            b"--- x.yaml\na0: &a0 {x: 1}\n"
            + b"".join(b"a%d: &a%d {<<: [%s]}\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12))
            + b"services: {llm: {image: vllm/vllm-openai, <<: *a11}}\n"
        ),
        "nested arrays": lambda: b"--- x.yaml\nservices: " + b"[" * 500_000,
        "keys": lambda: b"--- x.yaml\nservices:\n" + b"".join(b"  a%d: {}\n" % n for n in range(100_000)),
        "documents": lambda: b"--- x.yaml\n" + b"---\napiVersion: v1\n" * 50_000,
        "variables": lambda: (
            b"--- run.sh\nA0=xxxxxxxxxxxxxxxx\n"
            + b"".join(b"A%d=$A%d$A%d\n" % (n, n - 1, n - 1) for n in range(1, 60))
            + b"vllm serve $A59\n"
        ),
        "quotes": lambda: b"--- run.sh\nvllm serve '" + b"x '" * 300_000,
        "continuations": lambda: b"--- run.sh\nvllm serve m \\\n" + b"-x \\\n" * 200_000,
        "launches": lambda: b"--- run.sh\n" + b"vllm serve m\n" * 70_000,
    },
}


def main(target: str, name: str) -> None:
    """Let one bomb in and print seconds of CPU, MiB more than before, and the refusal."""
    data = BOMBS[target][name]()
    fuzz_targets.plugins.catalogue()
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    said = fuzz_targets.hold(target, data)
    seconds = time.process_time() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    print(json.dumps({"seconds": seconds, "grown": grown, "said": said}))


if __name__ == "__main__":
    main(*sys.argv[1:])
