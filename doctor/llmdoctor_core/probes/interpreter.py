# Runs inside the target interpreter (python -I -S -B -c): prints what only that interpreter knows, as JSON. It imports
# no package of the environment and keeps to a syntax that every Python 3 reads.
import json
import os
import sys
import sysconfig

executable = sys.executable
include = sysconfig.get_path("include")
scripts = sysconfig.get_path("scripts")
base = getattr(sys, "base_prefix", sys.prefix)
shared = True  # whether the base interpreter's and the user's packages are seen
beside = os.path.dirname(executable)
for folder in (beside, os.path.dirname(beside)):
    marker = os.path.join(folder, "pyvenv.cfg")
    if os.path.isfile(marker):
        sys.prefix = os.path.dirname(beside)  # as site does, left out by -S; Debian's folders depend on it
        with open(marker) as file:
            text = file.read().lower().replace(" ", "")
        shared = "include-system-site-packages=true" in text
        break
prefix = sys.prefix

named = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
import site  # noqa: E402 - as a module of functions: under -S it changes nothing

# site.main's order: a virtual environment's own packages win over the user's, and these over the base interpreter's
folders = site.getsitepackages([prefix]) if base != prefix else []
if shared and not os.environ.get("PYTHONNOUSERSITE"):
    folders.append(site.getusersitepackages())
if shared:
    folders += site.getsitepackages([base])
print(
    json.dumps(
        {
            "version": list(sys.version_info[:3]),
            "implementation": {"cpython": "CPython", "pypy": "PyPy"}.get(
                sys.implementation.name, sys.implementation.name
            ),
            "platform": sysconfig.get_platform(),
            "machine": os.uname()[4],
            "python": executable,
            "prefix": prefix,
            "python_path": [folder for folder in named if os.path.isdir(folder)],
            "site_packages": [folder for folder in folders if os.path.isdir(folder)],
            "scripts": os.path.join(prefix, "bin") if prefix != base else scripts,
            "include": include,
        }
    )
)
