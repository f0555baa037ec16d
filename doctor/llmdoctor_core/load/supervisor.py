"""Runs one server and outlives whoever asked for it just long enough to leave nothing of it behind.

Run as a script with one argument, the directory of temporary files that it removes in the end, and nothing but the
standard library. Standard input carries one JSON line, then commands; its end means that the doctor is gone, however it
died, and that the server must go too. Standard output carries JSON events: ``started``, ``failed``, ``exited``,
``gone``. On Linux it is the subreaper of everything it starts, so a process that leaves its session or is forked twice
still becomes its child and is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINUX = sys.platform.startswith("linux")
PATIENCE_AFTER_KILL = 15.0
"""Seconds for killed processes to disappear: a process in the driver dies only when its call returns."""


def prctl(option: int, value: int) -> None:
    """Linux only; a kernel that refuses leaves the other ways of finding processes."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def tell(**event: object) -> None:
    """One event to the doctor, which may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def descendants() -> list[int]:
    """All living processes below this one, from /proc. Empty where there is no /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents.setdefault(int(parent), []).append(int(entry.name))
    found, queue = [], [os.getpid()]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def shared_memory(pids: list[int]) -> set[str]:
    """Files in /dev/shm that these processes have mapped: those are theirs and nobody else's to remove."""
    files = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                path = line[73:].strip()
                if path.startswith("/dev/shm/") and not path.endswith(" (deleted)"):
                    files.add(path)
    return files


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class Server:
    """The one server, its process group and everything below it."""

    def __init__(self, spec: dict[str, object]) -> None:
        output = int(str(spec["output"]))
        self.shared: set[str] = set()
        self.existing = {str(path) for path in Path("/dev/shm").glob("*")} if LINUX else set()
        self.process = subprocess.Popen(
            spec["argv"],  # type: ignore[call-overload]
            cwd=spec["cwd"],
            env=spec["environment"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        os.close(output)
        self.status: int | None = None

    def reap(self) -> None:
        """Collect every child that has ended, ours and those that fell to us; remember how the server ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.process.pid:
                self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
                ended_by = {"signal": signal.Signals(-self.status).name} if self.status < 0 else {"status": self.status}
                tell(event="exited", **ended_by)

    def wait_for(self, done: object, seconds: float, hurry: object) -> bool:
        """Reap until ``done()`` or the time is up or somebody hurries."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.reap()
            if done():  # type: ignore[operator]
                return True
            if hurry():  # type: ignore[operator]
                return False
            time.sleep(0.02)
        return False

    def living(self) -> list[int]:
        self.reap()
        below = descendants()
        self.shared |= shared_memory(below)
        if not LINUX and self.status is None:
            return [self.process.pid]
        return below

    def end(self, grace: float, hurry: object) -> list[int]:
        """Ask the server to stop, as a container engine would; kill what does not. Gives what cannot be killed."""
        self.living()
        if self.status is None:
            send([self.process.pid], signal.SIGTERM)
            self.wait_for(lambda: self.status is not None, grace, hurry)
        if left := [pid for pid in self.living() if pid != self.process.pid]:
            send(left, signal.SIGTERM)
            self.wait_for(lambda: not self.living(), min(2.0, grace), hurry)
        deadline = time.monotonic() + PATIENCE_AFTER_KILL
        while (left := self.living()) and time.monotonic() < deadline:
            if self.status is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            send(left, signal.SIGKILL)
            time.sleep(0.02)
        for path in self.shared - self.existing:
            with contextlib.suppress(OSError):
                Path(path).unlink()
        return left


def read_line() -> bytes:
    """The first line of standard input, unbuffered: what follows it are commands."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line


def remove(directory: str) -> None:
    """The temporary files; again where a dying process still wrote one."""
    for _ in range(5):
        shutil.rmtree(directory, ignore_errors=True)
        if not Path(directory).exists():
            return
        time.sleep(0.1)


def main() -> None:
    try:
        supervise()
    finally:
        remove(sys.argv[1])


def supervise() -> None:
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    stopping = hurried = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    line = read_line()
    if not line.endswith(b"\n"):
        return
    spec = json.loads(line)
    try:
        server = Server(spec)
    except (OSError, ValueError) as error:
        tell(event="failed", reason=getattr(error, "strerror", None) or str(error))
        return
    tell(event="started", pid=server.process.pid)

    def hurry() -> bool:
        """Whether the doctor asks to kill at once: a second Ctrl-C."""
        nonlocal hurried
        if not hurried and select.select([0], [], [], 0)[0]:
            hurried = b"kill" in os.read(0, 4096)
        return hurried

    grace = float(spec["grace"])
    while not stopping and server.status is None:
        ready, _, _ = select.select([0, wake_read], [], [], 5.0)
        if wake_read in ready:
            os.read(wake_read, 4096)
        if 0 in ready:
            command = os.read(0, 4096)
            stopping, hurried = True, b"kill" in command
            if not command:  # the doctor died: nobody waits for a report, but the GPU is wanted back
                grace = min(grace, 3.0)
        server.reap()
    tell(event="gone", left=server.end(0.0 if hurried else grace, hurry))


if __name__ == "__main__":
    main()
