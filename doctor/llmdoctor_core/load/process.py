"""Starts exactly one command under a supervisor, reads its output as it comes, and ends it without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import ServerEnd

from .output import Line, Output

MARK = "LLMDOCTOR_LOAD"
"""Set in the server's environment: finds its processes should even the supervisor be killed."""
LONGEST_SCRATCH = 70
"""Characters. The path of a socket has 107 (Linux, sockaddr_un), and vLLM's end in a slash and a UUID of 36."""
GRACE = 10.0
"""Seconds that the server has to stop after SIGTERM; a container engine gives as many."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Whether nobody listens on that port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def scratch_in(temporary: str | None) -> Path:
    """A new directory in TMPDIR, or in the system's own where a socket's path in TMPDIR's would become too long.

    Raises InputError where TMPDIR is no directory that can be written to.
    """
    try:
        scratch = Path(tempfile.mkdtemp(prefix="llmdoctor-", dir=temporary))
    except OSError as error:
        raise InputError(f"TMPDIR {temporary or tempfile.gettempdir()}: {error.strerror}") from None
    if len(str(scratch)) > LONGEST_SCRATCH:
        with contextlib.suppress(OSError):
            shorter = tempfile.mkdtemp(prefix="llmdoctor-", dir="/tmp")
            scratch.rmdir()
            return Path(shorter)
    return scratch


def marked(mark: str) -> list[int]:
    """Living processes whose environment carries the mark, from /proc."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


class Process:
    """A place to run one server in. A context: however it is left, the server, its children and its files are gone.

    ``scratch`` is its directory of temporary files; ``start`` runs the command. ``on_line`` is called with each line of
    output, on the reading thread. ``keep`` says which lines of a flood are kept.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        grace: float = GRACE,
        on_line: Callable[[Line], None] = lambda _line: None,
        keep: Callable[[str], bool] = lambda _text: False,
    ) -> None:
        self._environment = environment
        self._grace = grace
        self.output = Output(on_line, keep)
        self.end: ServerEnd | None = None
        self.left: tuple[str, ...] = ()
        self.pid: int | None = None
        self.began = time.monotonic()
        self._events: queue.Queue[dict[str, object]] = queue.Queue()
        self._gone = self._stopped = False

    def __enter__(self) -> Process:
        self.scratch = scratch_in(self._environment.get("TMPDIR"))
        read, self._write = os.pipe()
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py")), str(self.scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._write,),
            start_new_session=True,
        )
        os.close(self._write)  # the supervisor has it under the same number
        self._reader = threading.Thread(target=self._read, args=(read,), daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, argv: Sequence[str], cwd: Path | None = None) -> None:
        """Run the command as it is, in the environment and ``cwd``. Raises InputError where it cannot be started."""
        executable = shutil.which(argv[0], path=self._environment.get("PATH"))
        if executable is None:
            raise InputError(f"{argv[0]}: no such executable on the PATH of the target environment")
        spec = {
            "argv": [executable, *argv[1:]],
            "cwd": str(cwd or Path.cwd()),
            "environment": {**self._environment, "TMPDIR": str(self.scratch), MARK: self.scratch.name},
            "output": self._write,
            "grace": self._grace,
        }
        self.began = time.monotonic()
        self._say(json.dumps(spec).encode() + b"\n")
        event = self._events.get()
        while event["event"] == "nudge":
            event = self._events.get()
        if event["event"] != "started":
            self._note(event)
            raise InputError(f"{argv[0]} cannot be started: {event.get('reason', 'its supervisor was killed')}")
        self.pid = int(str(event["pid"]))

    def seconds(self) -> float:
        """Since the command was started."""
        return time.monotonic() - self.began

    def silent(self) -> float:
        """Seconds since the last line, or since the start where none came yet."""
        return self.seconds() - self.output.last_at

    def wait(self, seconds: float) -> None:
        """Let it run; returns early when it ends, or when a line was one to look at (``nudge``)."""
        deadline = time.monotonic() + seconds
        while self.end is None and not self._gone:
            try:
                event = self._events.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                return
            self._note(event)
            if event["event"] == "nudge":
                return

    def nudge(self) -> None:
        """Wake whoever waits. Called on the reading thread."""
        self._events.put({"event": "nudge"})

    def running(self) -> bool:
        """Whether the server itself still runs."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._note(self._events.get_nowait())
        return self.end is None and not self._gone

    def stop(self) -> None:
        """End the server and all it started, remove its files. A second Ctrl-C meanwhile kills at once."""
        if self._stopped:
            return
        self._stopped = True
        try:
            self._say(b"stop\n" if self.pid else b"")
            self._close()
        except KeyboardInterrupt:
            self._say(b"kill\n")
            self._close()

    def _close(self) -> None:
        if self.pid is None and self._supervisor.stdin is not None:
            self._supervisor.stdin.close()
        while not self._gone:
            self._note(self._events.get())
        self._supervisor.wait()
        for pid in marked(self.scratch.name):  # none, unless the supervisor was killed
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 9)
        self._reader.join(timeout=5)
        if self._supervisor.stdin is not None:
            with contextlib.suppress(OSError):
                self._supervisor.stdin.close()
        shutil.rmtree(self.scratch, ignore_errors=True)  # done already, unless the supervisor was killed
        if self.scratch.exists():
            self.left += (f"temporary directory {self.scratch}",)

    def _say(self, words: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            assert self._supervisor.stdin is not None
            self._supervisor.stdin.write(words)
            self._supervisor.stdin.flush()

    def _note(self, event: dict[str, object]) -> None:
        if event["event"] == "exited" and not self._stopped:
            signal, status = event.get("signal"), event.get("status")
            self.end = ServerEnd(
                signal=None if signal is None else str(signal),
                exit_status=None if status is None else int(str(status)),
            )
        if event["event"] in ("gone", "failed"):
            self._gone = True
            left = event.get("left", [])
            assert isinstance(left, list)
            self.left += tuple(f"process {pid}" for pid in left)

    def _read(self, output: int) -> None:
        """Until the supervisor is gone; then only what is in the pipe, for what cannot be killed may hold it open."""
        assert self._supervisor.stdout is not None
        events = self._supervisor.stdout.fileno()
        said = b""
        supervised = True
        with selectors.DefaultSelector() as ready, os.fdopen(output, "rb", buffering=0):
            ready.register(output, selectors.EVENT_READ)
            ready.register(events, selectors.EVENT_READ)
            while found := ready.select(None if supervised else 0):
                for key, _ in found:
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        ready.unregister(key.fd)
                        supervised &= key.fd != events
                    elif key.fd == output:
                        self.output.feed(chunk, self.seconds())
                    else:
                        *lines, said = (said + chunk).split(b"\n")
                        for line in lines:
                            self._events.put(json.loads(line))
                if not ready.get_map():
                    break
        self.output.close(self.seconds())
        self._events.put({"event": "gone", "left": []})


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP was sent to the doctor: it ends like an interrupted one, and takes the server with it."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within it, SIGTERM and SIGHUP raise Terminated in the main thread, so that contexts are left in order.

    In another thread signals are not ours to handle, and nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> None:
        raise Terminated(signal.Signals(number).name)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
