"""Reads the launch out of what people deploy with: command lines, compose, Kubernetes, systemd, shell scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from llmdoctor_core.errors import InputError

from .deployment import MAX_LAUNCHES, Deployment, Word
from .shell import split
from .words import ENGINES, default_shared_memory, deployment_from

__all__ = ["ENGINES", "Deployment", "Word", "default_shared_memory", "deployment_from", "read", "split"]

MAX_BYTES = 1 << 20
"""Kubernetes keeps no larger object."""


def read(text: str, name: str, variables: Mapping[str, str] = MappingProxyType({})) -> list[Deployment]:
    """All launches of a known runtime in a deployment file; ``name`` tells its kind where the text does not.

    ``variables`` are those that compose would put into its file.

    Raises InputError naming the file when it cannot be read or holds no launch.
    """
    from . import script, systemd, yaml_files

    if len(text) > MAX_BYTES:
        raise InputError(f"{name}: more than {MAX_BYTES:,} characters are no deployment file")
    text = text.replace("\r\n", "\n")
    if name.endswith((".service", ".container")) or re.search(
        r"^(\[Unit\]|\[Service\]|ExecStart=)", text, re.MULTILINE
    ):
        found = systemd.read(text, name)
    elif name.endswith((".yaml", ".yml")) or re.search(r"^(services|apiVersion):", text, re.MULTILINE):
        found = yaml_files.read(text, name, variables)
    else:
        found = script.read(text, name)
    if len(found) > MAX_LAUNCHES:
        raise InputError(f"{name}: more than {MAX_LAUNCHES} launches are no deployment file")
    if not found:
        raise InputError(f"{name}: no launch of a known runtime in it (vllm serve, llama-server, one of their images)")
    return found
