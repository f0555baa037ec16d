"""A stand-in for a server that is ill in a chosen way: ``python patients.py ILLNESS [--port N ...]``.

It is the patient of the drills, no mock of our code: a real process with a real port, real children, real signals.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

START = [
    "(APIServer pid=1) INFO 11-29 18:33:34 [api_utils.py:286] non-default args: {'model': 'tiny'}",
    "(Worker pid=2) INFO 11-29 18:33:35 [parallel_state.py:1906] world_size=1 rank=0 distributed_init_method=file:///t",
    "(Worker pid=2) INFO 11-29 18:33:36 [gpu_model_runner.py:5040] Starting to load model tiny...",
    "(Worker pid=2) INFO 11-29 18:33:37 [gpu_model_runner.py:5150] Model loading took 1.50 GiB memory and 1.0 seconds",
    "(EngineCore pid=3) INFO 11-29 18:33:38 [gpu_worker.py:760] Available KV cache memory: 2.50 GiB",
    "(EngineCore pid=3) INFO 11-29 18:33:38 [kv_cache_utils.py:2327] GPU KV cache size: 524,288 tokens, "
    "Maximum concurrency for 4,096 tokens per request: 128.00x",
    "(EngineCore pid=3) INFO 11-29 18:33:39 [runner.py:6582] Graph capturing finished in 1 secs, took 0.25 GiB",
    "(EngineCore pid=3) INFO 11-29 18:33:40 [core.py:402] init engine (profile, create kv cache, warmup model) took 3",
]
LINES = {"configuration": 1, "communication": 2, "weights": 3, "profiling": 4, "cache": 6, "graphs": 7, "warm-up": 8}
"""How many of the lines are printed when the phase has begun."""


def say(text: str) -> None:
    print(text, flush=True)


def forever() -> None:
    while True:
        time.sleep(60)


def option(name: str) -> str:
    return sys.argv[len(sys.argv) - 1 - sys.argv[::-1].index(name) + 1]


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/health": "ok",
            "/version": json.dumps({"version": "0.32.0"}),
            "/v1/models": json.dumps({"data": [{"id": "tiny", "max_model_len": 4096}]}),
            "/metrics": "# TYPE vllm:num_preemptions counter\nvllm:num_preemptions_total 0.0\n",
        }
        self.answer(answers.get(self.path))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if "mute" in sys.argv:
            forever()
        self.answer(json.dumps({"choices": [{"text": "x"}]}))

    def answer(self, body: str | None) -> None:
        self.send_response(200 if body is not None else 404)
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, *_: object) -> None:
        pass


def serve() -> None:
    for line in START:
        say(line)
    say("INFO:     Application startup complete.")
    http.server.ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Server).serve_forever()


def hang_in(phase: str) -> None:
    for line in START[: LINES[phase]]:
        say(line)
    forever()


def deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def main() -> None:
    illness = sys.argv[1]
    if illness == "well" or illness == "mute":
        serve()
    elif illness == "dies":
        say("RuntimeError: Engine core initialization failed")
        sys.exit(1)
    elif illness == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif illness == "silent":
        forever()
    elif illness.startswith("hangs-in-"):
        hang_in(illness.removeprefix("hangs-in-"))
    elif illness == "floods":
        block = b"x" * 99 + b"\n"
        for _ in range(100):
            os.write(1, block * 10_000)
        serve()
    elif illness == "endless line":
        for _ in range(50):
            os.write(1, b"y" * (1 << 20))
        serve()
    elif illness == "deaf":
        deaf()
        serve()
    elif illness == "family":  # a child in its own session, one forked twice, a grandchild; all of them deaf
        deaf()
        me = [sys.executable, __file__]
        subprocess.Popen([*me, "child", *sys.argv[2:]], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                subprocess.Popen([*me, "child", *sys.argv[2:]])
                forever()
            os._exit(0)
        serve()
    elif illness == "child":
        deaf()
        Path(os.environ["TMPDIR"], f"left-by-{os.getpid()}").write_text("a file")
        forever()
    elif illness == "orphans":  # dies at once and leaves its children
        subprocess.Popen([sys.executable, __file__, "child", *sys.argv[2:]], start_new_session=True)
        time.sleep(0.3)
        sys.exit(3)
    elif illness == "garbage":
        os.write(
            1,
            b"\xff\xfe\x1b[31mred\x1b[0m \x1b]0;title\x07\x00\x08\xed\xa0\x80 \x9b tail\r\nprogress 1%\rprogress 2%\n",
        )
        serve()
    elif illness == "taken":
        say("OSError: [Errno 98] Address already in use")
        sys.exit(1)
    elif illness == "shared memory":
        from multiprocessing import shared_memory

        block = shared_memory.SharedMemory(create=True, size=4096)
        say(f"shared memory {block.name}")
        deaf()
        serve()
    else:
        sys.exit(f"unknown illness {illness}")


if __name__ == "__main__":
    main()
