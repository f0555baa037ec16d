"""docker-compose files, Kubernetes manifests (Helm's output too) and KServe services, from YAML with lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Place
from llmdoctor_core.units import MOST_DIGITS, parse_size, whole

from .deployment import Deployment, Word
from .shell import split
from .words import default_shared_memory, deployment_from, docker_size
from .yaml_lines import Node, documents, merged

SECRET_REFERENCE = "<set>"
"""Stands for a value that comes from a secret: it is never read."""
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")


def read(text: str, name: str, variables: Mapping[str, str]) -> list[Deployment]:
    """All launches in a YAML stream of compose files or manifests; ``variables`` fill in those of compose files."""
    if re.search(r"^services:", text, re.MULTILINE):
        text = _interpolated(text, variables)
    found = []
    for document in documents(text, name):
        if document["services"].is_mapping:
            for key, service in document["services"].items():
                whole_service = _extended(service, document["services"], name)
                found += [launch] if (launch := _service(key.text, whole_service, name)) else []
        for manifest in document["items"] if document["kind"].text == "List" else (document,):
            found += _manifest(manifest, name)
    return found


COMPOSE_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::?-([^}\n]*))?\}|([A-Za-z_]\w*))")


def _interpolated(text: str, variables: Mapping[str, str]) -> str:
    """A compose file with its variables put in, as compose does; one without value or default stays as written."""

    def value(match: re.Match[str]) -> str:
        escaped, braced, default, bare = match.groups()
        if escaped:
            return "$"
        known = variables.get(braced or bare, default)
        # what YAML would read as more than text stays out: it would be another file
        return match[0] if known is None or not re.fullmatch(r"[\w./:@%+=,~-]*", known) else known

    return COMPOSE_VARIABLE.sub(value, text)


def _extended(service: Node, services: Node, file: str) -> Node:
    """A service with what it ``extends`` behind its own keys. Raises InputError where that stands in another file."""
    known = set[str]()
    parts = [service]
    while base := parts[-1]["extends"]:
        name = base.text or base["service"].text
        if base["file"] or name in known or not services[name]:
            raise InputError(
                f"{file}:{base.line}: the service extends one that is not in this file, so its launch is not known; "
                "give what compose makes of it: docker compose config | llmdoctor check -f -"
            )
        known.add(name)
        parts.append(services[name])
    return merged(parts)


def _words(node: Node) -> list[Word]:
    """A command as a list of words or as one string, with lines."""
    if node.is_sequence:
        return [Word(item.text, item.content_line) for item in node]
    return split(node.text, node.content_line) if node else []


def _service(name: str, service: Node, file: str) -> Deployment | None:
    """One compose service."""
    places = {"launch": Place(kind="file", name=file, line=service.line)}
    seen = _Settings(file, places)
    image = service["image"]
    if image:
        seen.note("image", image)
    environment = _compose_environment(service["environment"], seen)
    gpu_devices = [
        device
        for device in service.at("deploy", "resources", "reservations", "devices")
        if "gpu" in [capability.text for capability in device["capabilities"]] or device["driver"].text == "nvidia"
    ]
    gpu_devices += list(service["gpus"])
    gpus = _compose_gpus(gpu_devices, service, seen)
    shm = seen.size("/dev/shm", service["shm_size"])
    ipc = service["ipc"]
    if ipc:
        seen.note("/dev/shm", ipc)
    limit = service.at("deploy", "resources", "limits", "memory") or service["mem_limit"]
    memlock = service.at("ulimits", "memlock")
    base = Deployment(
        argv=(),
        name=name,
        engine="docker",
        image=image.text or None,
        entrypoint=tuple(word.text for word in _words(service["entrypoint"])) if service["entrypoint"] else None,
        environment=environment,
        gpus=gpus,
        gpu_access=bool(gpu_devices or service["gpus"] or service["runtime"].text == "nvidia" or service["devices"]),
        shm_bytes=shm,
        ipc_host=ipc.text == "host",
        memory_limit=seen.size("memory", limit),
        memlock_unlimited=("-1" in (memlock.text, memlock["soft"].text)) if memlock else None,
        mounts=_compose_mounts(service["volumes"], seen),
        start_seconds=_seconds(service.at("healthcheck", "start_period").text),
        read_only=service["read_only"].text == "true",
        user=service["user"].text or None,
        places=places,
    )
    return deployment_from(_words(service["command"]), file, base)


class _Settings:
    """Reads settings and notes where each stands."""

    def __init__(self, file: str, places: dict[str, Place]) -> None:
        self.file = file
        self.places = places

    def note(self, key: str, node: Node) -> None:
        self.places[key] = Place(kind="file", name=self.file, line=node.line)

    def size(self, key: str, node: Node) -> int | None:
        if not node:
            return None
        self.note(key, node)
        return docker_size(node.text, f"{self.file}:{node.line} {key}")


def _compose_environment(node: Node, seen: _Settings) -> dict[str, str]:
    environment = {}
    for key, value in node.items():
        environment[key.text] = value.text
        seen.note(f"env:{key.text}", key)
    for item in node:
        name, equals, text = item.text.partition("=")
        environment[name] = text if equals else SECRET_REFERENCE
        seen.note(f"env:{name}", item)
    return environment


def _compose_gpus(devices: list[Node], service: Node, seen: _Settings) -> int | None:
    gpus = service["gpus"]
    if (number := whole(gpus.text)) is not None:
        seen.note("gpus", gpus)
        return number
    for device in devices:
        seen.note("gpus", device)
        if ids := [item.text for item in device["device_ids"]]:
            return len(ids)
        if (number := whole(device["count"].text)) is not None:
            return number
    return None


def _compose_mounts(volumes: Node, seen: _Settings) -> dict[str, str]:
    mounts = {}
    for volume in volumes:
        seen.note("volumes", volume)
        if volume.is_mapping:
            mounts[volume["target"].text] = volume["source"].text or volume["type"].text
        else:
            source, _, target = volume.text.partition(":")
            mounts[target.partition(":")[0] or source] = source
    return mounts


def _seconds(duration: str) -> int | None:
    """Seconds of a compose duration, ``1h5m30s``."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|m|s)(?!\w)|(\d+(?:\.\d+)?)(h|m|s)", duration)
    units = {"h": 3600, "m": 60, "s": 1}
    found = [float(a or c) * units[b or d] for a, b, c, d in parts]
    return int(sum(found)) if found else None


def _manifest(manifest: Node, file: str) -> list[Deployment]:
    kind = manifest["kind"].text
    name = manifest.at("metadata", "name").text
    pods = {
        "Pod": [manifest["spec"]],
        "CronJob": [manifest.at("spec", "jobTemplate", "spec", "template", "spec")],
        "LeaderWorkerSet": [
            manifest.at("spec", "leaderWorkerTemplate", part, "spec") for part in ("leaderTemplate", "workerTemplate")
        ],
        "InferenceService": [manifest.at("spec", "predictor")],
        "ServingRuntime": [manifest["spec"]],
    }.get(kind, [manifest.at("spec", "template", "spec")])
    found = []
    for pod in pods:
        containers = [*pod["containers"], *([pod["model"]] if kind == "InferenceService" and pod["model"] else [])]
        for container in containers:
            if launch := _pod_container(name, pod, container, file):
                found.append(launch)
    return found


def _pod_container(name: str, pod: Node, container: Node, file: str) -> Deployment | None:
    places = {"launch": Place(kind="file", name=file, line=container.line)}
    seen = _Settings(file, places)
    image = container["image"]
    if image:
        seen.note("image", image)
    resources = container["resources"]
    gpu = next(
        (resources.at("limits", resource) for resource in GPU_RESOURCES if resources.at("limits", resource)), None
    )
    if gpu:
        seen.note("gpus", gpu)
    memory = resources.at("limits", "memory")
    if memory:
        seen.note("memory", memory)
    mounts, shm = _pod_mounts(pod, container, seen)
    base = Deployment(
        argv=(),
        name=f"{name}/{container['name'].text}".rstrip("/"),
        engine="kubernetes",
        image=image.text or None,
        entrypoint=() if container["command"] else None,
        environment=_pod_environment(container["env"], seen),
        gpus=whole(gpu.text) if gpu is not None else None,
        gpu_access=bool(gpu) or bool(container.at("resources", "claims")) or None,
        shm_bytes=shm,
        ipc_host=pod["hostIPC"].text == "true",
        memory_limit=_quantity(memory.text, f"{file}:{memory.line} memory") if memory else None,
        mounts=mounts,
        start_seconds=_start_seconds(container, seen),
        read_only=container.at("securityContext", "readOnlyRootFilesystem").text == "true",
        user=container.at("securityContext", "runAsUser").text or pod.at("securityContext", "runAsUser").text or None,
        places=places,
    )
    args = _expanded(_words(container["args"]), base.environment)
    command = _expanded(_words(container["command"]), base.environment)
    if command:
        return deployment_from([*command, *args], file, base)
    return deployment_from(args, file, base)


def _expanded(words: list[Word], environment: dict[str, str]) -> list[Word]:
    """Words with Kubernetes' own ``$(NAME)`` put in; one that the container does not set stays, as it does there."""
    return [Word(re.sub(r"\$\((\w+)\)", lambda m: environment.get(m[1], m[0]), text), line) for text, line in words]


def _pod_environment(env: Node, seen: _Settings) -> dict[str, str]:
    environment = {}
    for item in env:
        name = item["name"].text
        environment[name] = SECRET_REFERENCE if item["valueFrom"] else item["value"].text
        seen.note(f"env:{name}", item)
    return environment


def _pod_mounts(pod: Node, container: Node, seen: _Settings) -> tuple[dict[str, str], int | None]:
    volumes = {volume["name"].text: volume for volume in pod["volumes"]}
    mounts: dict[str, str] = {}
    shm: int | None = default_shared_memory()
    for mount in container["volumeMounts"]:
        path, volume = mount["mountPath"].text, volumes.get(mount["name"].text, Node(None))
        kind = next((key.text for key, _ in volume.items() if key.text != "name"), "volume")
        mounts[path] = kind
        if path.rstrip("/") == "/dev/shm":
            limit = volume.at("emptyDir", "sizeLimit")
            seen.note("/dev/shm", limit or mount)
            # without a limit a memory-backed emptyDir may grow to half of the node's memory: not known here
            shm = _quantity(limit.text, f"{seen.file}:{limit.line} sizeLimit") if limit else None
    return mounts, shm


def _start_seconds(container: Node, seen: _Settings) -> int | None:
    """How long the probes let the server start: the start-up probe's, else the liveness probe's patience."""
    for probe_name in ("startupProbe", "livenessProbe"):
        probe = container[probe_name]
        if probe:
            seen.note("start", probe)
            delay, period, failures = (
                default if (number := whole(probe[key].text)) is None else number
                for key, default in (("initialDelaySeconds", 0), ("periodSeconds", 10), ("failureThreshold", 3))
            )
            return delay + period * failures
    return None


QUANTITY: dict[str, Any] = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6,
                            "G": 10**9, "T": 10**12, "": 1}  # fmt: skip


def _quantity(text: str, name: str) -> int:
    """Bytes of a Kubernetes quantity: ``16Gi``, ``8G``, ``128974848``. Raises InputError naming the place."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T|)", text)
    if not match or len(match[1]) > MOST_DIGITS:
        return parse_size(text, name)
    return int(float(match[1]) * QUANTITY[match[2]])
