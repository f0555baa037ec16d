"""One launch as a deployment describes it: the command, what surrounds it, and where each part stands."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from llmdoctor_core.facts import Place

MAX_LAUNCHES = 256


class Word(NamedTuple):
    """A word of a command and the line it stands on (1-based; 0 for a command that was typed, not read)."""

    text: str
    line: int


class Deployment(Struct, frozen=True, kw_only=True):
    """A launch and its surroundings. Sizes in bytes; None where the deployment does not say."""

    argv: tuple[str, ...]
    name: str = ""
    """The service, container or unit it belongs to."""
    runtime: str | None = None
    environment: dict[str, str] = {}
    engine: str | None = None
    """``docker``, ``podman``, ``kubernetes``, ``systemd``; None where the command runs as it is."""
    image: str | None = None
    entrypoint: tuple[str, ...] | None = None
    """What runs in place of the image's own entry point; None where that stands."""
    version: str | None = None
    """The runtime's version where the image's tag names it."""
    gpus: int | None = None
    """How many GPUs are granted; None for all or not said."""
    gpu_access: bool | None = None
    """Whether the container is given GPUs at all; None where the deployment does not say."""
    shm_bytes: int | None = None
    """Size of /dev/shm where it is set."""
    ipc_host: bool = False
    memory_limit: int | None = None
    cpu_limit: float | None = None
    memlock_unlimited: bool | None = None
    mounts: dict[str, str] = {}
    """Path inside to what is mounted there."""
    start_seconds: int | None = None
    """How long the deployment's probes let the server start before it is killed."""
    read_only: bool = False
    user: str | None = None
    wrapper: tuple[str, ...] = ()
    """Words in front of the server's command, as typed."""
    implied: int = 0
    """How many words at the front of ``argv`` the image supplies."""
    variables: dict[str, str | None] = {}
    """Variables assigned in front of the command."""
    places: dict[str, Place] = {}
    """Where each flag, variable and setting stands: ``--max-model-len``, ``env:HF_HOME``, ``shm``, ``launch``."""
