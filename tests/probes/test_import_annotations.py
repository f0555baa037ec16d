"""Annotations that fail at import: found by reading, as the interpreter itself would fail."""

import ast
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from llmdoctor_core.facts import ImportAnnotations, Unavailable
from llmdoctor_core.observe import facts_from
from llmdoctor_core.probes import import_annotations, target
from llmdoctor_core.probes.host import Host
from llmdoctor_core.probes.import_annotations import Rules, scan

FAULT = '''"""Exchange of file descriptors."""
# SPDX-License-Identifier: Apache-2.0
import array
import socket


def _fd_ancillary(fd: int) -> tuple[tuple[int, int, array.array[int]]]:
    return ((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd])),)
'''
"""The construct of flashinfer/comm/fd_exchange.py 0.6.16 to 0.6.16.post3, written anew."""


def first(source, *version):
    rules = Rules(version)
    found = scan(source.encode(), rules)
    if found:
        assert rules.suspicious(source.encode()), "the line filter must not lose what the parser finds"
    return found


@pytest.fixture
def environment(environment_of, python_of):
    def make(version, source=FAULT):
        root = environment_of(
            python_of(*version),
            [("flashinfer-python", "0.6.16.post3", "Requires-Python: <4.0,>=3.10")],
            {
                "flashinfer/__init__.py": "",
                "flashinfer/comm/__init__.py": "raise SystemExit('imported')\n",
                "flashinfer/comm/fd_exchange.py": source,
                "flashinfer/comm/mnnvl.py": "import os\nfrom .fd_exchange import _fd_ancillary\n",
                "flashinfer/data/cutlass/tool.py": FAULT,
            },
            name=f"venv-{version[1]}",
        )
        seen = target.probe(Host("/", {}), str(root / "bin/python"), None, 10)
        fact = import_annotations.probe(seen, time.monotonic() + 20)
        return root, facts_from({"annotations": fact})["annotations"]

    return make


@pytest.mark.parametrize("version", [(3, 10), (3, 11)])
def test_the_fault_of_flashinfer_is_found_with_file_and_line(environment, version):
    root, seen = environment(version)
    (use,) = seen.uses
    assert Path(use.path) == next(root.glob("lib/*/site-packages")) / "flashinfer/comm/fd_exchange.py"
    assert (use.line, use.expression) == (7, "array.array[int]")
    assert use.reason == "array.array is not subscriptable before Python 3.12"
    assert use.evaluated_by == "return annotation of _fd_ancillary"
    assert use.postponable
    assert use.imported_by.endswith("flashinfer/comm/mnnvl.py:2")
    assert seen.scanned == ("flashinfer-python 0.6.16.post3",)
    assert seen.python.startswith(f"CPython {version[0]}.{version[1]}.")


@pytest.mark.parametrize("version", [(3, 12), (3, 13)])
def test_newer_interpreters_are_silent(environment, version):
    _, seen = environment(version)
    assert seen == ImportAnnotations(uses=(), scanned=seen.scanned, python=seen.python)
    assert seen.scanned


def test_the_cure_ends_it(environment):
    assert environment((3, 10), "from __future__ import annotations\n" + FAULT)[1].uses == ()


def test_a_time_limit_leaves_the_rest_unread(environment_of):
    root = environment_of(sys.executable, [("vllm", "0.29.0")], {"vllm/a.py": "", "vllm/b.py": ""})
    seen = target.probe(Host("/", {}), str(root / "bin/python"), None, 10)
    fact = facts_from({"annotations": import_annotations.probe(seen, time.monotonic() - 1)})["annotations"]
    assert fact.scanned == ()
    assert "time limit" in fact.unread["vllm 0.29.0"]


def test_without_an_environment_it_is_not_observed():
    seen = target.probe(Host("/", {}), "/nowhere/python", None, 10)
    assert isinstance(facts_from({"annotations": import_annotations.probe(seen, 0)})["annotations"], Unavailable)


BROKEN_ON_310 = {
    "parameter": "import array\ndef f(x: array.array[int]): ...\n",
    "keyword-only parameter": "import array\ndef f(*, x: array.array[int]): ...\n",
    "starred parameter": "import array\ndef f(*x: array.array[int]): ...\n",
    "module variable": "import array\nx: array.array[int]\n",
    "class variable": "import array\nclass C:\n    x: array.array[int]\n",
    "method": "import array\nclass C:\n    def f(self) -> array.array[int]: ...\n",
    "coroutine": "import array\nasync def f() -> array.array[int]: ...\n",
    "nested": "import array\ndef f() -> dict[str, list[array.array[int]]]: ...\n",
    "module under another name": "import array as a\ndef f(x: a.array[int]): ...\n",
    "class under another name": "from array import array as buffer\ndef f(x: buffer[int]): ...\n",
    "old name": "from array import ArrayType\ndef f(x: ArrayType[int]): ...\n",
    "bound again": "import array\nBuffer = array.array\ndef f(x: Buffer[int]): ...\n",
    "alias": "import array\nT = array.array[int]\n",
    "alias in spite of the cure": "from __future__ import annotations\nimport array\nT = array.array[int]\n",
    "default value": "import array\ndef f(x=array.array[int]): ...\n",
    "base class": "import array\nclass C(array.array[int]): ...\n",
    "decorator": "import array\n@register(array.array[int])\ndef f(): ...\n",
    "module level call": "import array\ncast(array.array[int], 1)\n",
    "wrong guard": "import array\ntry:\n    def f(x: array.array[int]): ...\nexcept ImportError:\n    pass\n",
    "true branch": "import array, sys\nif sys.version_info >= (3, 10):\n    def f(x: array.array[int]): ...\n",
    "other branch": "import array, sys\nif sys.version_info >= (3, 12):\n    pass\nelse:\n    x: array.array[int]\n",
    "not type checking": (
        "import array\nfrom typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    x: array.array[int]\n"
    ),
    "in a loop": "import array\nfor i in range(2):\n    x: array.array[int]\n",
    "in a with": "import array, contextlib\nwith contextlib.suppress(ImportError):\n    x: array.array[int]\n",
    "after a class with such a name": (
        "import array\nclass C:\n    class array: ...\n    x: array\ndef f(x: array.array[int]): ...\n"
    ),
    "missing name": "from typing import Self\n",
    "missing name among others": "from typing import (\n    Any,\n    Self,\n)\n",
    "missing attribute": "import typing\ndef f() -> typing.Self: ...\n",
    "missing attribute of an alias": "import typing as t\nclass C:\n    x: t.Required[int]\n",
    "queue": "from multiprocessing.queues import Queue\ndef f(q: Queue[int]): ...\n",
    "logger adapter": "import logging\nclass A(logging.LoggerAdapter[logging.Logger]): ...\n",
    "string and None": "def f(x: 'T' | None): ...\n",
    "type and string": "def f(x: int | 'T'): ...\n",
    "read by pydantic": (
        "from __future__ import annotations\nimport array\nfrom pydantic import BaseModel\n"
        "class M(BaseModel):\n    x: array.array[int]\n"
    ),
}
SOUND_ON_310 = {
    "the cure": "from __future__ import annotations\nimport array\ndef f(x: array.array[int]): ...\n",
    "string": "import array\ndef f(x: 'array.array[int]'): ...\n",
    "local variable": "import array\ndef f():\n    x: array.array[int] = 1\n",
    "body of a function": "import array\ndef f():\n    return array.array[int]\n",
    "lambda": "import array\nf = lambda: array.array[int]\n",
    "type checking": ("import array\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    T = array.array[int]\n"),
    "type checking by module": "import array, typing\nif typing.TYPE_CHECKING:\n    T = array.array[int]\n",
    "version test": "import array, sys\nif sys.version_info >= (3, 12):\n    T = array.array[int]\n",
    "version test by part": "import array, sys\nif sys.version_info[:2] > (3, 11):\n    T = array.array[int]\n",
    "version test by minor": "import array, sys\nif sys.version_info.minor >= 12:\n    T = array.array[int]\n",
    "named version test": "import array, sys\nNEW = sys.version_info >= (3, 12)\nif NEW:\n    T = array.array[int]\n",
    "other branch": "import array, sys\nif sys.version_info < (3, 12):\n    pass\nelse:\n    T = array.array[int]\n",
    "both tests": "import array, sys\nif sys.version_info >= (3, 12) and X:\n    T = array.array[int]\n",
    "guard": "import array\ntry:\n    T = array.array[int]\nexcept TypeError:\n    T = array.array\n",
    "bare guard": "import array\ntry:\n    T = array.array[int]\nexcept:\n    T = array.array\n",
    "suppressed": "import array, contextlib\nwith contextlib.suppress(TypeError):\n    T = array.array[int]\n",
    "guarded import": (
        "try:\n    from typing import Self\nexcept ImportError:\n    from typing_extensions import Self\n"
        "def f() -> Self: ...\n"
    ),
    "backport": "from typing_extensions import Self\ndef f() -> Self: ...\n",
    "element, not type": "import array\ndata = array.array('i', [1])\nx = data[0]\n",
    "another module's": "import numpy as array\ndef f(x: array.array[int]): ...\n",
    "own class": "class array:\n    def __class_getitem__(cls, item): ...\ndef f(x: array[int]): ...\n",
    "standard generics": "def f(x: list[int] | None, y: 'int' = 1) -> dict[str, int]: ...\n",
    "flags": "import re\nX = re.A | re.M\n",
    "literal strings": "from typing import Literal\ndef f(x: Literal['a', 'b'] | None): ...\n",
}


@pytest.mark.parametrize("name", BROKEN_ON_310)
def test_what_fails_is_found(name):
    found = first(BROKEN_ON_310[name], 3, 10)
    assert found is not None
    assert "before Python 3.1" in found.reason


@pytest.mark.parametrize("name", SOUND_ON_310)
def test_what_runs_is_left_alone(name):
    assert first(SOUND_ON_310[name], 3, 10) is None


STUBS = "def register(*a): return lambda f: f\ndef cast(*a): ...\nX = 1\n"


@pytest.mark.parametrize("verdict", ["broken", "sound"])
def test_the_real_interpreter_agrees(python_of, verdict):
    """Every case above, executed by Python 3.10 itself (but those that need other packages)."""
    cases = BROKEN_ON_310 if verdict == "broken" else SOUND_ON_310
    runnable = {
        name: text for name, text in cases.items() if not {"pydantic", "numpy", "typing_extensions"} & _tops(text)
    }
    program = (
        "import json, sys\nfor name, text in json.load(sys.stdin).items():\n"
        "    try:\n        exec(compile(text, name, 'exec'), {'__name__': 'm'})\n        print('sound', name)\n"
        "    except (TypeError, ImportError, AttributeError):\n        print('broken', name)\n"
    )
    sources = {name: text if text.startswith("from __future__") else STUBS + text for name, text in runnable.items()}
    done = subprocess.run(
        [python_of(3, 10), "-I", "-c", program], input=json.dumps(sources), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"{verdict} {name}" for name in runnable]


def _tops(text):
    tops = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            tops |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            tops.add(node.module.partition(".")[0])
    return tops


@pytest.mark.parametrize(
    ("source", "version", "words"),
    [
        ("def f(x: int | None): ...\n", (3, 9), "joined by | before Python 3.10"),
        ("import numpy as np\ndef f(x: np.ndarray | np.float32): ...\n", (3, 9), "before Python 3.10"),
        ("T = int | str\n", (3, 9), "before Python 3.10"),
        ("def f(x: list[int]): ...\n", (3, 8), "list is not subscriptable before Python 3.9"),
        ("from collections.abc import Callable\nx: Callable[[], int]\n", (3, 8), "before Python 3.9"),
        ("from typing import override\n", (3, 11), "typing.override does not exist before Python 3.12"),
        ("import types\ndef f() -> types.GeneratorType[int, None, None]: ...\n", (3, 12), "before Python 3.13"),
    ],
)
def test_each_version_has_its_own_limits(source, version, words):
    assert words in first(source, *version).reason


def test_annotations_are_lazy_from_python_314():
    assert first("x: memoryview[int]\ndef f(x: 'T' | None): ...\n", 3, 13) is not None
    assert first("x: memoryview[int]\ndef f(x: 'T' | None): ...\n", 3, 14) is None


@pytest.mark.slow
def test_the_real_release(environment_of, python_of, tmp_path):
    """FlashInfer 0.6.16.post3 as PyPI ships it, in an environment of Python 3.10 and in one of 3.12."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            str(tmp_path),
            "flashinfer-python==0.6.16.post3",
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip("PyPI is not reachable")
    for version, places in (((3, 10), ["comm/fd_exchange.py:55"]), ((3, 12), [])):
        root = environment_of(python_of(*version), name=f"real-{version[1]}")
        zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(next(root.glob("lib/*/site-packages")))
        seen = target.probe(Host("/", {}), str(root / "bin/python"), None, 10)
        fact = facts_from({"annotations": import_annotations.probe(seen, time.monotonic() + 30)})["annotations"]
        assert fact.scanned == ("flashinfer-python 0.6.16.post3",)
        assert [f"{use.path.partition('flashinfer/')[2]}:{use.line}" for use in fact.uses] == places
