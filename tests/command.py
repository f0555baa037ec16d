"""Calls the command line: in this process where the answer matters, started where the process itself does."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from unittest import mock

from llmdoctor_core.cli import main

Done = subprocess.CompletedProcess[bytes]


def run(*arguments: str, **environment: str) -> Done:
    """What the command answers; a Python of its own would take most of the time."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = {
        "stdin": io.TextIOWrapper(io.BytesIO(), encoding="utf-8"),
        "stdout": io.TextIOWrapper(out, encoding="utf-8", write_through=True),
        "stderr": io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace", write_through=True),
    }
    code: object = 0
    with (
        mock.patch.dict(os.environ, {"LANG": "C.UTF-8", **environment}),
        mock.patch.multiple(sys, argv=["llmdoctor", *arguments], **streams),
    ):
        try:
            main()
        except SystemExit as left:
            code = left.code
    assert isinstance(code, int)
    return Done(arguments, code, out.getvalue(), err.getvalue())


def started(*arguments: str, **environment: str) -> Done:
    """What the command answers as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "llmdoctor_core", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "LANG": "C.UTF-8", **environment},
        timeout=60,
    )
