"""vLLM's argument tables: against the parser that vLLM 0.32.0 itself builds, and against themselves."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from llmdoctor_core.runtimes.vllm import arguments, releases

ROOT = Path(__file__).parents[3]
REAL = json.loads((ROOT / "tests/data/vllm/parser-0.32.0.json").read_text())
KINDS = {"BooleanOptionalAction": "boolean", "_StoreTrueAction": "switch", "_AppendAction": "append"}


def real_kind(action: dict[str, Any]) -> tuple[str, ...]:
    """Kinds of ours that an action of argparse can be."""
    if action["action"] in KINDS:
        return (KINDS[action["action"]],)
    return {None: ("value", "json"), "?": ("optional value",)}.get(action["nargs"], ("list",))


def test_every_option_of_the_real_parser_is_known_as_it_is() -> None:
    release = releases.release("0.32.0")
    assert set(release.options) == set(REAL)
    for name, action in REAL.items():
        era = release.options[name]
        own = {flag for flag in action["flags"] if not flag.startswith("--no-") or era.kind != "boolean"}
        assert set(era.flags) == own, name
        assert era.kind in real_kind(action), name
        if action["choices"] and name != "mm_processor_device":  # its choices depend on the platform
            assert set(release.choices(name)) == {c for c in action["choices"] if c != "None"}, name


def test_every_spelling_of_the_real_parser_is_known() -> None:
    spelled = {flag for action in REAL.values() for flag in action["flags"]}
    assert set(releases.release("0.32.0").flags) == spelled


def test_literal_defaults_are_the_real_ones() -> None:
    release, compared = releases.release("0.32.0"), 0
    for name, action in REAL.items():
        try:
            default = ast.literal_eval(action["default"])
        except (ValueError, SyntaxError):
            continue  # an object that only vLLM builds
        if name in ("log_error_stack", "ssl_cert_reqs", "limit_mm_per_prompt") or default == "==SUPPRESS==":
            continue  # computed when vLLM is imported, or left out of the namespace
        default = sorted(default) if isinstance(default, set) else default
        assert releases.default_of(release.options[name]) == default, name
        compared += 1
    assert compared > 250


@pytest.mark.parametrize("row", releases.changed().values(), ids=lambda row: row.name)
def test_changed_rows_agree_with_the_extraction(row: releases.Changed) -> None:
    """A row's release is the first without it, and no row is left out of date by a release that has it again."""
    if row.name.startswith("VLLM_"):
        entry = releases.tables("envs.json").environment[row.name]
    elif "." in row.name:
        flag, _, key = row.name.partition(".")
        option = releases.tables().options[releases.history()[flag]]
        config = next(era.config for era in reversed(option.eras) if era.config)
        entry = releases.tables().classes[config].fields[key]
    else:
        entry = releases.tables().options[releases.history()[row.name]]
    having = [era for era in entry.eras if not row.name.startswith("-") or "." in row.name or row.name in era.flags]
    assert having[-1].until is not None
    assert releases.after(having[-1].until) == row.since
    assert row.source


def test_every_option_that_is_gone_has_a_row() -> None:
    gone = {
        era.flags[0]
        for entry in releases.tables().options.values()
        if (era := entry.eras[-1]).until and not era.flags[0].startswith("-O")
    }
    assert gone <= set(releases.changed())


@pytest.mark.parametrize(
    ("flag", "first", "last"),
    [
        ("--speculative-config", "0.8.2", None),
        ("--speculative-model", "0.7.3", "0.8.2"),
        ("--kv-cache-memory-bytes", "0.10.2", None),
        ("--disable-hybrid-kv-cache-manager", "0.9.1", None),
        ("--swap-space", "0.7.3", "0.17.1"),
        ("--task", "0.7.3", "0.12.0"),
        ("--performance-mode", "0.17.0", None),
        ("--mamba-cache-mode", "0.15.0", None),
    ],
)
def test_first_and_last_release_of_known_options(flag: str, first: str, last: str | None) -> None:
    eras = releases.tables().options[releases.history()[flag]].eras
    assert (eras[0].since, eras[-1].until) == (first, last)


def test_environment_names_by_release() -> None:
    assert "VLLM_USE_V1" in releases.release("0.10.0").environment
    assert "VLLM_USE_V1" not in releases.release("0.12.0").environment
    assert "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS" in releases.release("0.20.0").environment


def test_connectors_and_the_hybrid_manager() -> None:
    nixl = releases.release("0.22.0").connector("NixlConnector")
    assert nixl is not None
    assert nixl.hybrid
    older = releases.release("0.17.1").connector("NixlConnector")
    assert older is not None
    assert not older.hybrid
    assert releases.release("0.13.0").connector("SharedStorageConnector") is None
    # since 0.24 the name is an alias: NixlConnector = NixlPullConnector
    assert [releases.release("0.33.0").connector(name).hybrid for name in ("NixlConnector", "NixlPullConnector")] == [
        True,
        True,
    ]


def test_the_release_that_answers_for_a_version() -> None:
    assert releases.release("0.29.1rc1").name == "0.29.0"
    assert releases.release("0.13.0+faa43dbf.nv26.01").name == "0.13.0"
    assert releases.release("0.1.0").name == releases.tables().releases[0]
    assert releases.release("99.0").name == releases.newest()


TOOL = runpy.run_path(str(ROOT / "tools/extract_vllm_arguments.py"))
ARG_UTILS = """
from vllm.config import CacheConfig
def get_kwargs(cls):
    if name == "max_model_len": kwargs[name]["type"] = human_readable_int
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        kwargs = get_kwargs(CacheConfig)
        group = parser.add_argument_group()
        kwargs["dtype"]["choices"].remove("old")
        group.add_argument("--dtype", "-d", **kwargs["dtype"])
        group.add_argument("--eager", **{**kwargs["eager"], "default": None})
        group.add_argument("--sizes", **kwargs["sizes"])
        group.add_argument("--max-model-len", **kwargs["max_model_len"])
        return parser
"""
CONFIG = """
from dataclasses import field
from typing import Literal
from pydantic import Field
Dtype = Literal["auto", "old", "fp8"]
@config
class CacheConfig:
    dtype: Dtype = "auto"
    eager: bool = False
    sizes: list[int] | None = None
    max_model_len: int = Field(default=None, gt=0)
"""
SERVE = """
from vllm.engine.arg_utils import EngineArgs
class Serve:
    def subparser_init(self, subparsers):
        serve_parser = subparsers.add_parser("serve")
        serve_parser.add_argument("--config", help="x")
        return EngineArgs.add_cli_args(serve_parser)
"""


def test_the_extraction_reads_a_parser_it_has_never_run() -> None:
    modules = {"vllm.engine.arg_utils": ARG_UTILS, "vllm.config": CONFIG, "vllm.entrypoints.cli.serve": SERVE}
    found = TOOL["extract"](TOOL["Sources"]("9.9.0", modules))["options"]
    assert found["dtype"]["flags"] == ["--dtype", "-d"]
    assert found["dtype"]["choices"] == ["auto", "fp8"]
    assert (found["eager"]["kind"], found["eager"]["default"]) == ("boolean", None)
    assert (found["sizes"]["kind"], found["sizes"]["type"]) == ("list", "int")
    assert (found["max_model_len"]["type"], found["max_model_len"]["gt"]) == ("size", 0)
    assert found["config"]["kind"] == "value"


LINES = json.loads((ROOT / "tests/data/vllm/parsed-lines-0.32.0.json").read_text())


def test_random_lines_read_as_the_real_parser_reads_them() -> None:
    """500 lines of random options, abbreviations and values, with what vLLM 0.32.0's own parser made of each.

    Where it took a line, we may refuse a number out of bounds: vLLM does so a step later, when it builds its
    configuration.
    """
    differ = []
    for row in LINES:
        reading = arguments.read(["vllm", "serve", *row["words"]], "0.32.0")
        problems = [p for p in reading.problems if p.kind != "ignored"]
        if row["refused"] is None and all("must be" in problem.detail for problem in problems):
            refused = {releases.release("0.32.0").flags[p.flag].name for p in problems}
            ours = {name: reading.value(name) for name in row["sets"]}
            same = all(str(ours[name]) == str(value) for name, value in row["sets"].items() if name not in refused)
        else:
            same = bool(problems) == (row["refused"] is not None)
        if not same:
            differ.append(row["words"])
    assert differ == []


FACTORY = """
KVConnectorFactory.register_connector("Old", "vllm.connector", "Old")
KVConnectorFactory.register_connector("Plain", "vllm.connector", "Plain")
"""
CONNECTOR = """
class SupportsHMA: ...
class Pull(SupportsHMA): ...
class Plain: ...
Old = Pull
"""


def test_a_connector_that_is_an_alias_has_its_class_s_mark() -> None:
    modules = {"vllm.distributed.kv_transfer.kv_connector.factory": FACTORY, "vllm.connector": CONNECTOR}
    found = TOOL["_connectors"](TOOL["Sources"]("9.9.0", modules))
    assert {name: record.get("hybrid", False) for name, record in found.items()} == {"Old": True, "Plain": False}
