"""The HTML report in a real browser: drawn without a network, nothing wider than the page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCH = ("vllm", "serve", "google/gemma-3-4b-it", "--tensor-parallel-size", "2", "--no-such-flag")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_the_page_is_drawn(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    page = tmp_path / "report.html"
    argv = (sys.executable, "-m", "llmdoctor_core", "check", "--offline", "--gpu", "L4x2", "--report", f"html={page}")
    subprocess.run((*argv, "--", *LAUNCH), capture_output=True)
    artifacts = Path(os.environ.get("LLMDOCTOR_ARTIFACTS", tmp_path))
    picture = artifacts / "report.png"
    run = (browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,1900")
    subprocess.run((*run, f"--screenshot={picture}", page.as_uri()), capture_output=True, check=True, timeout=120)
    assert picture.read_bytes().startswith(PNG)
    dumped = subprocess.run((*run, "--dump-dom", page.as_uri()), capture_output=True, text=True, timeout=120).stdout
    for part in ("NOT READY", "Device 1", "GPU KV cache size", "<polyline", "ARG901"):
        assert part in dumped
