"""What fuzzing has found stays found: every kept input is taken, or refused in one sentence, in bounded time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fuzz_bombs
from fuzz_targets import TARGETS, hold

CORPUS = Path(__file__).parent / "corpus"
INPUTS = [(path.parent.name, path) for path in sorted(CORPUS.glob("*/*"))]
BOMBS = [(target, name) for target, bombs in fuzz_bombs.BOMBS.items() for name in bombs]
SECONDS, MEBIBYTES = 10, 300
"""A bomb's CPU time leaves room for a busy machine; what these inputs did before was minutes, or gigabytes."""


def test_every_door_has_a_corpus() -> None:
    assert {target for target, _ in INPUTS} == set(TARGETS)


@pytest.mark.parametrize(
    "target", [pytest.param(name, marks=pytest.mark.slow if name in ("case", "argv") else ()) for name in TARGETS]
)
def test_kept_inputs_are_taken_or_refused(target: str) -> None:
    taken = 0
    for path in sorted((CORPUS / target).iterdir()):
        try:
            taken += hold(target, path.read_bytes()) is None
        except Exception as error:
            pytest.fail(f"{path}: {type(error).__name__}: {error}")
    assert taken


@pytest.mark.slow
@pytest.mark.parametrize(("target", "name"), BOMBS)
def test_a_bomb_fills_neither_time_nor_memory(target: str, name: str) -> None:
    command = [sys.executable, fuzz_bombs.__file__, target, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["seconds"] < SECONDS
    assert measured["grown"] < MEBIBYTES
