"""Every launch that README, docs and examples print goes through the doctor: it answers, and none crashes it."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from llmdoctor_core.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*") if path.is_file())
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *EXAMPLES]
COMMAND = re.compile(r"llmdoctor (?:check|predict|load|fix)\b[^#|;&`\n]*? -- (?P<launch>[^#|;&`\n]+)")
"""A command of ours with a launch behind it; what it would do on the writer's host is not done here."""


def launches() -> list[tuple[str, str]]:
    found = set()
    for page in PAGES:
        for match in COMMAND.finditer(page.read_text(encoding="utf-8")):
            if "..." not in match["launch"]:
                found.add((str(page.relative_to(ROOT)), match["launch"].strip()))
    return sorted(found)


def exit_code(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["llmdoctor", "check", "--offline", *words])
    with pytest.raises(SystemExit) as done:
        main()
    assert isinstance(done.value.code, int)
    return done.value.code


def test_there_are_launches_to_try() -> None:
    assert len(launches()) >= 6


@pytest.mark.parametrize(("page", "launch"), launches())
def test_a_printed_launch_starts_on_a_fitting_gpu(page: str, launch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = re.search(r"--tensor-parallel-size (\d+)", launch)
    gpu = f"A100-80GBx{ranks[1]}" if ranks else "A100-80GB"
    model = ("--model", "Qwen/Qwen3-8B") if "model.gguf" in launch else ()
    assert exit_code(monkeypatch, "--gpu", gpu, *model, "--", *shlex.split(launch)) == 0


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_checked_or_said_to_hold_no_launch(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = exit_code(monkeypatch, "--gpu", "H100-80GBx2", "-f", str(file))
    assert code == 0 or (code == 2 and "no launch of a known runtime" in capsys.readouterr().err)
