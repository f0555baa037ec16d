"""A fix is old or new at any moment, and undo gives back the original bytes, whenever the process dies."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from llmdoctor_core.apply import FixIncompleteError, apply, decode_plans, encode_plans, history, prepared, undo
from llmdoctor_core.errors import InputError
from llmdoctor_core.remedy import Cost, EditFile, MakeDirectory, Plan, PostponeAnnotations, Safety

ORIGINAL = '"""Docstring."""\nimport array\n\n\ndef f(x: "array.array[int]") -> None: ...\n'
FIXED = ORIGINAL.replace("import array", "from __future__ import annotations\nimport array")


def plan_for(*paths: Path, python: str = sys.executable) -> Plan:
    actions = tuple(PostponeAnnotations(path=str(path), python=python) for path in paths)
    return Plan(
        remedy="postpone-annotations", title="t", code="PY301", safety=Safety.SAFE, cost=Cost.NOTHING, actions=actions
    )


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "module.py"
    path.write_text(ORIGINAL)
    path.chmod(0o640)
    return path


def test_apply_changes_one_line_keeps_the_mode_and_undo_restores_the_bytes(module: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    fix = apply(plan_for(module), state)
    assert module.read_text() == FIXED
    assert stat.S_IMODE(module.stat().st_mode) == 0o640
    assert [f.state for f in history(state)] == ["applied"]
    undo(fix, state)
    assert module.read_text() == ORIGINAL
    assert [f.state for f in history(state)] == ["undone"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["module.py", "state"]


def test_a_saved_plan_is_refused_when_the_file_changed(module: Path, tmp_path: Path) -> None:
    (saved,) = decode_plans(encode_plans([prepared(plan_for(module))]), "plan.json")
    module.write_text(ORIGINAL + "# edited\n")
    with pytest.raises(InputError, match="has changed since the plan was made"):
        apply(saved, tmp_path / "state")
    assert module.read_text().endswith("# edited\n")
    assert history(tmp_path / "state") == []


def test_undo_leaves_a_file_that_somebody_changed_after_the_fix(module: Path, tmp_path: Path) -> None:
    fix = apply(plan_for(module), tmp_path / "state")
    module.write_text("mine\n")
    with pytest.raises(FixIncompleteError, match="changed by someone"):
        undo(fix, tmp_path / "state")
    assert module.read_text() == "mine\n"


def test_a_failing_verification_puts_the_file_back(module: Path, tmp_path: Path) -> None:
    refuses = tmp_path / "python"
    refuses.write_text("#!/bin/sh\nexit 1\n")
    refuses.chmod(0o755)
    with pytest.raises(FixIncompleteError, match="failed"):
        apply(plan_for(module, python=str(refuses)), tmp_path / "state")
    assert module.read_text() == ORIGINAL


def test_a_made_directory_goes_with_undo_only_while_it_is_empty(tmp_path: Path) -> None:
    made = tmp_path / "cache"
    plan = Plan(
        remedy="r", title="t", code="HOST104", safety=Safety.SAFE, cost=Cost.NOTHING,
        actions=(MakeDirectory(path=str(made)),),
    )  # fmt: skip
    first = apply(plan, tmp_path / "state")
    undo(first, tmp_path / "state")
    assert not made.exists()
    second = apply(plan, tmp_path / "state")
    (made / "used").touch()
    undo(second, tmp_path / "state")
    assert made.exists()


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from llmdoctor_core.apply import apply, decode_plans

    steps = int(sys.argv[1])
    seen = 0

    def pause(where):
        global seen
        if seen == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    (plan,) = decode_plans(Path(sys.argv[2]).read_bytes(), "plan")
    apply(plan, Path(sys.argv[3]), pause)
    print(seen)
    """


@pytest.mark.slow
def test_killed_between_any_two_steps_the_file_is_old_or_new_and_undo_works(tmp_path: Path) -> None:
    step = 0
    while True:
        root = tmp_path / str(step)
        root.mkdir()
        files = [root / "a.py", root / "b.py"]
        for file in files:
            file.write_text(ORIGINAL)
        plan, state = root / "plan.json", root / "state"
        plan.write_bytes(encode_plans([prepared(plan_for(*files))]))
        code = textwrap.dedent(KILLED)
        done = subprocess.run([sys.executable, "-c", code, str(step), str(plan), str(state)], capture_output=True)
        for file in files:
            assert file.read_text() in (ORIGINAL, FIXED), f"torn at step {step}"
        if done.returncode == 0:
            assert step == int(done.stdout), "every pause was a place to die at"
            break
        assert done.returncode == -signal.SIGKILL
        if history(state):
            undo(None, state)
        assert [file.read_text() for file in files] == [ORIGINAL, ORIGINAL], f"undo after step {step}"
        assert not [path for path in root.iterdir() if path.name.startswith(".")], f"scratch left at step {step}"
        step += 1
    assert step >= 8


def test_root_keeps_the_owner(module: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    os.chown(module, 12345, 23456)
    apply(plan_for(module), tmp_path / "state")
    status = module.stat()
    assert (status.st_uid, status.st_gid) == (12345, 23456)


@pytest.mark.parametrize(
    "text",
    [
        'x = 1\n\x0c\n"""No docstring."""\n',
        '"""A page\x0cbreak."""\nimport array\n',
        "@cache\ndef f(): ...\n",
        "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n@print\nclass C: ...\n",
        "",
    ],
)
def test_the_import_stands_where_python_wants_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_bytes(text.encode())
    (action,) = prepared(plan_for(path)).actions
    assert isinstance(action, EditFile)
    compile(action.content, str(path), "exec")
    assert action.content.replace("from __future__ import annotations\n", "", 1) == text
    apply(plan_for(path), tmp_path / "state")


def test_a_file_that_went_away_is_said_not_a_crash(module: Path, tmp_path: Path) -> None:
    fix = apply(plan_for(module), tmp_path / "state")
    module.unlink()
    with pytest.raises(FixIncompleteError, match=r"module\.py.*; what it keeps is in"):
        undo(fix, tmp_path / "state")


def test_a_journal_that_cannot_be_written_stops_the_fix_before_anything(module: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    with pytest.raises(InputError, match="nothing was changed"):
        apply(plan_for(module), tmp_path / "state")
    assert module.read_text() == ORIGINAL
