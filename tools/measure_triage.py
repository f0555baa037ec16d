"""Triage of a large synthetic serving log: time and memory beside ``grep -c`` on the same file.

python tools/measure_triage.py [MEGABYTES] [FOLDER]
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

CAUSE = "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"
PROSE = """the of memory device model token request error summary please write about climate history analysis failed
library python version server network system quickly and then some other words that people use in prompts every day"""
WORDS = PROSE.split()
MEASURE = """
import sys, time
from llmdoctor_core.triage import triage, triage_lines
triage_lines(["warm"])
began, used = time.perf_counter(), time.process_time()
diagnosis = triage(sys.argv[1])
seconds, used = time.perf_counter() - began, time.process_time() - used
status = dict(line.split(":", 1) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(f"{diagnosis.conditions[0].code} {diagnosis.lines:,} lines, {diagnosis.bytes / seconds / 1e6:.0f} MB/s, "
      f"{seconds:.1f} s ({used:.1f} s of one CPU), {int(status['VmHWM'].split()[0]) / 1024:.0f} MiB at the most")
"""


def write(path: Path, megabytes: int) -> None:
    """Mostly access lines and statistics, one line in ten a request with a prompt and an id of its own."""
    chance = random.Random(1)
    with path.open("w") as log:
        size = 0
        while size < megabytes << 20:
            kind = chance.random()
            if kind < 0.6:
                line = f'INFO:     10.0.{chance.randrange(256)}.{chance.randrange(256)}:{chance.randrange(65536)} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'  # noqa: E501
            elif kind < 0.9:
                line = f"INFO 07-15 10:{chance.randrange(60):02}:00 [loggers.py:123] Engine 000: Avg prompt throughput: {chance.random() * 1000:.1f} tokens/s, Avg generation throughput: {chance.random() * 100:.1f} tokens/s, Running: {chance.randrange(99)} reqs, Waiting: 0 reqs, GPU KV cache usage: {chance.random() * 99:.1f}%, Prefix cache hit rate: {chance.random() * 99:.1f}%\n"  # noqa: E501
            else:
                line = f"INFO 07-15 10:00:00 [logger.py:43] Received request chatcmpl-{chance.getrandbits(128):032x}: prompt: '{' '.join(chance.choice(WORDS) for _ in range(30))}', params: SamplingParams(n=1), prompt_token_ids: None\n"  # noqa: E501
            log.write(line)
            size += len(line)
        log.write(CAUSE + "\n")


def main(megabytes: int, folder: Path) -> int:
    path = folder / f"llmdoctor-{megabytes}.log"
    write(path, megabytes)
    try:
        path.read_bytes() if megabytes < 512 else subprocess.run(
            ["cat", str(path)], stdout=subprocess.DEVNULL, check=True
        )
        for name, command in {
            "grep -c": ["grep", "-c", "Could not find nvcc", str(path)],
            "grep -ci": ["grep", "-ci", "could not find nvcc", str(path)],
            "triage": [sys.executable, "-c", MEASURE, str(path)],
        }.items():
            began = time.perf_counter()
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"{name:9} {time.perf_counter() - began:6.1f} s   {answer.stdout.strip()}")
    finally:
        path.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024, Path(sys.argv[2] if len(sys.argv) > 2 else "."))
    )
