"""A bundle leaves the host without its secrets and is checked and triaged elsewhere."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

from command import run

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz012345"
LOG = f"INFO vLLM API server version 0.29.0\nusing token {TOKEN}\nRuntimeError: No CUDA GPUs are available\n"
SERVER = ("vllm", "serve", "Qwen/Qwen3-8B", "--api-key", "sk-secret-1")
LAUNCH = ("--offline", "--gpu", "L4", "--", f"HF_TOKEN={TOKEN}", *SERVER)


def test_packed_shown_checked_and_triaged(tmp_path: Path) -> None:
    log, bundle = tmp_path / "server.log.gz", tmp_path / "bundle.zip"
    log.write_bytes(gzip.compress(LOG.encode()))
    done = run("bundle", "--yes", "--log", str(log), "-o", str(bundle), *LAUNCH)
    assert done.returncode == 0, done.stderr
    assert b"removed: 1 x tokens by their shape" in done.stderr
    with zipfile.ZipFile(bundle) as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    assert TOKEN.encode() not in content
    assert b"sk-secret-1" not in content
    assert b"FIRST CAUSE  GPU001" in run("triage", "--no-checks", str(bundle)).stdout
    assert b"Qwen/Qwen3-8B" in run("check", "--case", str(bundle)).stdout


def test_nothing_is_written_without_a_yes(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    done = run("bundle", "-o", str(bundle), *LAUNCH)
    assert done.returncode == 2
    assert b"--yes" in done.stderr
    assert not bundle.exists()


def test_a_snapshot_holds_no_secret(tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    assert run("snapshot", "-o", str(case), *LAUNCH).returncode == 0
    text = case.read_text()
    assert TOKEN not in text
    assert "sk-secret-1" not in text
