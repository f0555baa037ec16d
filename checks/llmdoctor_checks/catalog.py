"""The catalogue: every check, in the order in which reports show them."""

from llmdoctor_core.check import checks_in

from . import annotations, cuda, gpu, jit, links

CHECKS = checks_in(gpu, links, cuda, jit, annotations)
