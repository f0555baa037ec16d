"""The host as a probe sees it: a root folder, an environment and a way to run programs; tests give another."""

from __future__ import annotations

import json
import os
import subprocess
import time
from functools import lru_cache
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

Fact = Dict[str, Any]

LARGEST_TEXT = 4 << 20


class Answer(NamedTuple):
    """What a program said. ``code`` is None where it was killed at its limit or did not start: ``problem`` says why."""

    code: Optional[int]
    out: str
    err: str
    problem: Optional[str] = None


class Host:
    """Where a probe looks: files under ``root``, variables of the service, programs run with a time limit."""

    def __init__(self, root: str = "/", environ: Optional[Mapping[str, str]] = None) -> None:
        self.root = root
        self.environ: Dict[str, str] = dict(os.environ if environ is None else environ)

    def path(self, name: str) -> str:
        """The absolute path ``name`` under the root."""
        return name if self.root == "/" else os.path.join(self.root, name.lstrip("/"))

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def list(self, name: str) -> List[str]:
        """Names in a folder, sorted; empty where there is none or it cannot be read."""
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError:
            return []

    def text(self, name: str) -> Optional[str]:
        """Text of a file, or None where it cannot be read."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read(LARGEST_TEXT).decode("utf-8", "replace")
        except OSError:
            return None

    def program(self, name: str) -> Optional[str]:
        """Path of a program as the service's PATH finds it; an absolute name stands for itself if it can be run."""
        if "/" in name:
            return name if self._runs(name) else None
        for folder in self.environ.get("PATH", "").split(os.pathsep):
            candidate = os.path.join(folder or ".", name)
            if self._runs(candidate):
                return candidate
        return None

    def _runs(self, name: str) -> bool:
        path = self.path(name)
        return os.path.isfile(path) and os.access(path, os.X_OK)

    def run(self, argv: List[str], timeout: float) -> Answer:
        """Run a program in the service's environment and return what it said within ``timeout`` seconds.

        Never raises for what the program does, and never waits for one that cannot be killed.
        """
        return run(argv, timeout, self.environ)


def run(argv: List[str], timeout: float, environ: Mapping[str, str]) -> Answer:
    """See ``Host.run``."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        return Answer(None, "", "", error.strerror or str(error))
    except ValueError as error:  # a NUL byte in a name or a variable
        return Answer(None, "", "", str(error))
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as expired:
        said = _abandon(process, expired.stdout)
        return Answer(None, said, "", "no answer within {:g} s".format(timeout))
    return Answer(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _abandon(process: subprocess.Popen[bytes], said: Optional[bytes]) -> str:
    """Kill a program that is too late. One stuck inside a driver call ignores even that: it is left behind."""
    process.kill()
    deadline = time.monotonic() + 0.2
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.returncode = process.returncode if process.returncode is not None else -9
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    return (said or b"").decode("utf-8", "replace")


def unavailable(reason: str, permanent: bool = False) -> Fact:
    """The fact that something could not be read, and why."""
    return {"fact": "unavailable", "reason": reason, "permanent": permanent}


def data(name: str) -> bytes:
    """A file of this folder, which may lie inside a zip archive."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    loader = globals().get("__loader__")
    if loader is not None and hasattr(loader, "get_data"):
        return bytes(loader.get_data(path))
    with open(path, "rb") as file:
        return file.read()


@lru_cache(maxsize=None)
def table(name: str) -> Any:
    """A table of this folder: rows of data, each with its source."""
    return json.loads(data(name).decode("utf-8"))
