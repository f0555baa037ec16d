"""The target Python environment."""

from __future__ import annotations

from llmdoctor_checks import environment
from llmdoctor_core.facts import NativeLibrary, Requirement
from llmdoctor_core.finding import Outcome

from .building import distribution, model, request, source, system, target


def test_a_local_version_satisfies_its_pin() -> None:
    pinned = target(distribution("vllm", "0.32.0", "torch==2.13.0"), distribution("torch", "2.13.0+cu130"))
    assert environment.pinned_version_differs(pinned, request()) == []


def test_a_pin_for_another_python_is_not_ours() -> None:
    engine = distribution("vllm", "0.32.0")
    engine = engine.__class__(
        name="vllm",
        version="0.32.0",
        requires=(Requirement(name="numpy", specifier="==1.0", marker='python_version < "3.9"'),),
    )
    assert environment.pinned_version_differs(target(engine, distribution("numpy", "2.2.0")), request()) == []
    assert environment.package_missing(target(engine), request(), None, None) == []


def test_torch_of_another_version_is_worse_than_a_helper() -> None:
    engine = distribution("vllm", "0.32.0", "torch==2.13.0", "cbor2==5.6")
    found = environment.pinned_version_differs(
        target(engine, distribution("torch", "2.14.0"), distribution("cbor2", "5.7")), request()
    )
    assert [(finding.params["name"], finding.outcome) for finding in found] == [
        ("torch", Outcome.FAIL),
        ("cbor2", Outcome.WARN),
    ]


def test_the_highest_symbol_counts_not_the_tag() -> None:
    libraries = tuple(
        NativeLibrary(path=path, symbol_versions={"GLIBC": version})
        for path, version in (("old.so", "2.17"), ("new.so", "2.34"), ("ten.so", "2.4"))
    )
    (finding,) = environment.glibc_too_old(target(native=libraries), system(glibc="2.31"))
    assert finding.params["path"] == "new.so"


def test_a_type_that_vllm_brings_itself_needs_no_transformers() -> None:
    engine, old = distribution("vllm", "0.32.0"), distribution("transformers", "4.50.0")
    chat = model(source=source(config={"model_type": "chatglm"}))
    assert environment.transformers_too_old_for_model(target(engine, old), chat, request()) == []


def test_a_release_between_two_that_were_read_is_no_pass() -> None:
    between = target(distribution("vllm", "0.30.0"), distribution("transformers", "5.23.7"))
    found = environment.transformers_too_old_for_model(
        between, model(source=source(config={"model_type": "lara_mini"})), request()
    )
    assert [finding.outcome for finding in found] == [Outcome.SKIP]


def test_two_engines_without_a_clash_are_a_warning() -> None:
    both = target(distribution("vllm", "0.32.0"), distribution("sglang", "0.5.23"))
    assert [finding.outcome for finding in environment.two_engines_in_one_environment(both)] == [Outcome.WARN]
