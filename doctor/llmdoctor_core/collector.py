"""The collector: the probes packed into one file that any bare Python interpreter (3.8 or newer) runs."""

from __future__ import annotations

import importlib.util
import tempfile
import zipapp
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns

from .errors import InputError

MAIN = """import os, sys
if sys.version_info < (3, 8):
    sys.exit("this probe needs Python 3.8 or newer, this is " + sys.version.split()[0])
from probes.__main__ import main
code = main()
sys.stdout.flush()
os._exit(code)
"""


def write(path: Path) -> None:
    """Write the collector, with a copy of pynvml where this environment has it as one file.

    Run it as ``python3 probe.pyz [--python PATH] > facts.json``. Raises InputError where ``path`` cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copytree(Path(__file__).parent / "probes", root / "probes", ignore=ignore_patterns("__pycache__"))
        (root / "__main__.py").write_text(MAIN, encoding="utf-8")
        spec = importlib.util.find_spec("pynvml")
        if spec and spec.origin and not spec.submodule_search_locations:
            copyfile(spec.origin, root / "pynvml.py")
        try:
            zipapp.create_archive(root, path, interpreter="/usr/bin/env python3", compressed=True)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
