"""FlashInfer's annotation fault, mended in a real environment of Python 3.10, and put back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RELEASE = "flashinfer-python==0.6.16.post3"
LAUNCH = ("--offline", "--gpu", "A100-80GB", "--", "vllm", "serve", "Qwen/Qwen3-8B")


def python_3_10() -> str:
    """An interpreter of Python 3.10; skips where the machine has none."""
    places = [shutil.which("python3.10"), *map(str, Path.home().glob(".pyenv/versions/3.10.*/bin/python"))]
    for place in places:
        if place and subprocess.run([place, "-c", "pass"], capture_output=True).returncode == 0:
            return place
    pytest.skip("no Python 3.10 on this machine")


def run(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "LANG": "C.UTF-8"}
    argv = [sys.executable, "-m", "llmdoctor_core", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)


@pytest.mark.slow
def test_mended_and_put_back(tmp_path: Path) -> None:
    subprocess.run([python_3_10(), "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv/bin/python"
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", RELEASE]
    subprocess.run(install, check=True, capture_output=True)
    select = ("check", "--format", "json", "--select", "PY301", "--python", str(python), *LAUNCH)

    (finding,) = json.loads(run(tmp_path, *select).stdout)["findings"]
    assert finding["outcome"] == "fail"
    faulty = Path(finding["where"]["name"])
    original = faulty.read_bytes()

    fix = ("fix", "--select", "PY301", "--python", str(python))
    shown = run(tmp_path, *fix, *LAUNCH)
    assert "+from __future__ import annotations" in shown.stdout
    assert faulty.read_bytes() == original, "showing a plan changes nothing"
    done = run(tmp_path, *fix, "--apply", "--yes", *LAUNCH)
    assert done.returncode == 0, done.stderr

    assert faulty.read_bytes() != original
    subprocess.run([str(python), "-m", "py_compile", str(faulty)], check=True)
    assert json.loads(run(tmp_path, *select).stdout)["findings"] == []

    assert "restored" in run(tmp_path, "undo").stdout
    assert faulty.read_bytes() == original
