"""Builds a case from what a log told, so that the forecast and the checks run on it."""

from __future__ import annotations

import re
from collections.abc import Callable

from llmdoctor_core import runtimes
from llmdoctor_core.case import Case
from llmdoctor_core.facts import Gpu, Gpus, LaunchRequest, ModelSource, NvidiaDriver, Unavailable
from llmdoctor_core.units import whole

from .diagnosis import Diagnosis
from .reading import Reading

UNTOLD = "the log does not tell"
FindModel = Callable[[str], ModelSource | None]


def case_from(diagnosis: Diagnosis, find_model: FindModel | None = None) -> Case:
    """The case that the log describes; what it does not tell stays unavailable.

    ``find_model`` gives the files of a model by the name that the log has, the built-in catalogue where none is given:
    no network is used here.
    """
    reading = diagnosis.reading
    return Case(
        launch=_launch(reading), model=_model(reading, find_model), gpus=_gpus(reading), driver=_driver(reading)
    )


def _untold(what: str) -> Unavailable:
    """No log can tell it: nothing was tried and failed, so no check may take it for a fault."""
    return Unavailable(reason=f"{UNTOLD} {what}", permanent=True)


def _launch(reading: Reading) -> LaunchRequest | Unavailable:
    if reading.runtime is None:
        return _untold("which runtime wrote it")
    where = reading.sources.get(reading.runtime, "log")
    return LaunchRequest(
        runtime=reading.runtime,
        argv=reading.argv,
        version=reading.version,
        version_source=f"the log ({where})" if reading.version else f"not observed: {UNTOLD}",
        model=reading.model or _named(reading),
    )


def _named(reading: Reading) -> str | None:
    if reading.runtime in runtimes.NAMES and reading.argv:
        return runtimes.runtime(reading.runtime).model_reference(reading.argv)
    return None


def _model(reading: Reading, find_model: FindModel | None) -> ModelSource | Unavailable:
    if reading.gguf.get("general.architecture"):
        return ModelSource(
            name=str(reading.gguf.get("general.name") or reading.model or "model"),
            origin="log",
            where="the GGUF metadata that llama.cpp printed",
            gguf=reading.gguf,
            weight_format="gguf",
            notes=("from the log: tensors are not known, so weights and layer kinds are as far as the metadata tells",),
        )
    name = reading.model or _named(reading)
    if name is None:
        return _untold("the model")
    if find_model is None:
        from llmdoctor_core.models import catalogue

        find_model = catalogue.find
    found = find_model(name) or find_model(name.rstrip("/").rpartition("/")[2])
    if found is None:
        return _untold(f"more of the model than its name, {name}, which is not in the built-in catalogue")
    return found


def _gpus(reading: Reading) -> Gpus | Unavailable:
    name = reading.facts.get("gpu")
    total = next((figure for figure in reading.figures if figure.name == "gpu_memory_total"), None)
    if name is None and total is None:
        return _untold("the GPU")
    capability = reading.facts.get("gpu_compute_capability")
    match = re.fullmatch(r"(\d{1,2})\.(\d)", capability or "")
    return Gpus(
        devices=tuple(
            Gpu(
                index=index,
                name=name or "GPU (not named in the log)",
                visible_as=index,
                compute_capability=(int(match[1]), int(match[2])) if match else None,
                memory_total=round(total.value) if total else None,
                unread={"memory_free": UNTOLD},
            )
            for index in range(_ranks(reading))
        ),
        assumed="read from a log: as many GPUs of one kind as the launch has ranks",
    )


def _ranks(reading: Reading) -> int:
    for name in ("tensor_parallel_size", "tp_size"):
        size = reading.resolved.get(name)
        if isinstance(size, int) and 1 <= size <= 64:
            return size
    words = list(reading.argv)
    for flag in ("--tensor-parallel-size", "-tp", "--tp", "--tp-size"):
        if flag in words[:-1] and (size := whole(words[words.index(flag) + 1])) is not None:
            return min(64, max(1, size))
    return 1


def _driver(reading: Reading) -> NvidiaDriver | Unavailable:
    version = reading.facts.get("driver")
    return NvidiaDriver(version=version) if version else _untold("the driver")
