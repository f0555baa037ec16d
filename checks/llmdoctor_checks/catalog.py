"""The catalogue: every check, in the order in which reports show them."""

from llmdoctor_core.check import checks_in

from . import (
    annotations,
    arguments,
    capability,
    context,
    cuda,
    draft,
    environment,
    gguf,
    gpu,
    host,
    jit,
    links,
    memory,
    model,
    parallel,
    transfer,
)

CHECKS = checks_in(
    gpu,
    capability,
    links,
    cuda,
    jit,
    environment,
    annotations,
    model,
    gguf,
    draft,
    parallel,
    context,
    memory,
    arguments,
    host,
    transfer,
)
