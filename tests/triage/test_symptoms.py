"""Every signature: matches its kind reworded, is found by its words, and keeps silent on healthy starts."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from llmdoctor_core.examine import examine
from llmdoctor_core.finding import Outcome
from llmdoctor_core.plugins import catalogue
from llmdoctor_core.runtimes.vllm.since import table
from llmdoctor_core.text import LANGUAGES, page
from llmdoctor_core.triage import case_from, triage_lines
from llmdoctor_core.triage.anchors import COMMON, Index, needles, words_of
from llmdoctor_core.triage.signatures import Signature, parse, symptoms

DATA = Path(__file__).parents[1] / "data"
SIGNATURES = symptoms().signatures
REPORTS = [json.loads(line) for line in (DATA / "failure-reports.jsonl").read_text().splitlines()]
CARRIERS = (
    "{}",
    "(EngineCore_DP0 pid=4711) ERROR 07-15 10:00:00 [core.py:708] {}",
    "[2026-01-02 03:04:05 TP1] {}",
    "2026-01-02T03:04:05.123456789Z stderr F {}",
    "vllm-1  | \x1b[36m(Worker_TP1 pid=99)\x1b[0;0m ERROR 07-15 10:00:00 [multiproc_executor.py:671] {}",
)


CODES = sorted({signature.code for signature in SIGNATURES})


def _of(code: str) -> list[Signature]:
    return [signature for signature in SIGNATURES if signature.code == code]


def reworded(line: str, seed: int) -> str:
    """The same line from another machine: other paths, process numbers and addresses; figures stay."""
    chance = random.Random(seed)
    line = re.sub(r"/(?:usr/local|usr|opt|home/\w+|workspace|root)(?=/)", f"/srv/run{chance.randrange(99)}", line)
    line = re.sub(r"\bpid[= ]?\d+", f"pid={chance.randrange(2, 99999)}", line)
    return re.sub(r"\b0x[0-9a-f]{9,}", f"{chance.randrange(1 << 40):#x}", line)


@pytest.mark.parametrize("code", CODES)
def test_signatures_match_their_examples_and_not_their_counterexamples(code: str) -> None:
    for signature in _of(code):
        pattern = re.compile(signature.pattern)
        for line in signature.match:
            assert pattern.search(line), line
            assert pattern.search(reworded(line, 7)), reworded(line, 7)
            assert Index([signature.pattern]).may_match(set(words_of(line.encode()))), f"no words announce {line}"
        for line in signature.silent:
            assert not pattern.search(line), line


@pytest.mark.parametrize("code", CODES)
def test_a_condition_is_found_in_a_log_whatever_carries_its_lines(code: str) -> None:
    alone = (one for one in _of(code) if not (one.after or one.before or one.at_end or one.needs))
    for signature, carrier in itertools.product(alone, CARRIERS):
        line = carrier.format(signature.match[0])
        codes = {condition.code for condition in triage_lines([line]).conditions}
        assert code in codes or codes & set(signature.unless), line


def test_no_pattern_quotes_a_whole_message_of_one_report() -> None:
    """A pattern names the kind: what it spells out is never all of a report's line, unless the line is a bare name."""
    messages = {line for report in REPORTS for line in report["log_lines"] if len(line.split()) > 9}
    for signature in SIGNATURES:
        for alternative in re.split(r"(?<!\\)\|", signature.pattern):
            literal = re.sub(r"\\(.)", r"\1", alternative).lower()
            assert not any(len(message) > 70 and message.lower() in literal for message in messages), alternative


def test_every_condition_has_a_name_and_a_sentence() -> None:
    about, names = symptoms().about, symptoms().names
    for code in {signature.code for signature in SIGNATURES}:
        assert code in about, code
        assert code in names, f"{code} has no page"


def test_what_a_condition_names_as_looking_alike_exists() -> None:
    names = symptoms().names
    others = {code for signature in SIGNATURES for code in (*signature.also, *signature.unless, *signature.needs)}
    others |= {code for about in symptoms().about.values() for code in about.also}
    assert others <= names.keys(), others - names.keys()


def test_no_two_conditions_silence_each_other() -> None:
    pairs = {
        (signature.code, other) for signature in SIGNATURES for other in signature.unless if other != signature.code
    }
    assert not {pair for pair in pairs if pair[::-1] in pairs}


@pytest.mark.parametrize("language", LANGUAGES)
def test_pages_of_symptoms_have_the_fixed_sections(language: str) -> None:
    headings = {
        "en": ["What it checks", "Why it matters", "How to fix", "When to ignore", "Evidence", "References"],
        "ko": ["무엇을 확인합니까", "왜 중요합니까", "해결 방법", "무시해도 되는 경우", "근거", "참고"],
    }[language]
    for code in {signature.code for signature in SIGNATURES}:
        text = page(code, language, ("llmdoctor_checks",))
        assert text is not None, code
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == headings, code
        folder = resources.files("llmdoctor_checks") / "explain" / language
        assert (folder / f"{code}.md").is_file(), f"{code} has no page in {language}"


def test_the_first_answer_is_right_for_nine_of_ten_reports() -> None:
    logged = [report for report in REPORTS if report["log_lines"]]
    assert len(logged) > 150
    right = third = 0
    for report in logged:
        answers = triage_lines(report["log_lines"]).candidates
        right += bool(set(report["expected"]).intersection(answers[:1]))
        third += bool(set(report["expected"]).intersection(answers[:3]))
    assert right / len(logged) >= 0.9
    assert third >= right


# Lines of public reports outside of the data file.
LATER = {
    "(EngineCore pid=4140) Failed to get device capability: SM 12.x requires CUDA >= 12.9.": "CUDA211",
    "RuntimeError: RMSNorm failed with error code no kernel image is available for execution on the device": "GPU011",
    "E1128 16:31:49.479096 227 backend_model.cc:634] ERROR: Failed to create instance: unexpected error when creating "
    "modelInstanceState: maxTokensInPagedKvCache must be large enough to process at least 1 sequence": "CTX603",
    "Jan 26 17:50:35 ip-172-31-3-6 ollama[1418]: llama_model_load: error loading model: unable to allocate CUDA0 "
    "buffer": "MEM801",
    "llama_model_load: error loading model: unable to allocate CPU buffer": "MEM806",
    "Sep 04 13:22:14 FORGE ollama[1461072]: CUDA error: CUDA-capable device(s) is/are busy or unavailable": "GPU002",
    "ggml_cuda_init: failed to initialize CUDA: system not yet initialized": "GPU010",
    "2023/09/29 09:11:12 llama.go:320: llama runner exited with error: signal: illegal instruction": "HOST109",
    "(RayWorkerWrapper pid=2202490) ValueError: The quantization method fp8 is not supported for the current GPU. "
    "Minimum capability: 90. Current capability: 86.": "GPU013",
    "RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min capability: 75. ', "
    "'Current capability: 70.')": "GPU013",
    "There was a problem when trying to write in your cache folder (/home/b/.cache/huggingface/hub).": "HOST104",
    "Will ignore error and continue. Error: [Errno 13] Permission denied: '/cache/huggingface/hub/x.json'": "HOST104",
    "WARNING 12-11 22:38:53 _custom_ops.py:20] Failed to import from vllm._C with ImportError('libcudart.so.12: "
    "cannot open shared object file: No such file or directory')": "PY304",
    "gguf_init_from_file: invalid magic number 67676a74": "GGUF507",
    '"llama runner process has terminated: error loading model: unable to allocate CUDA_Host buffer"': "MEM806",
    "kernel: NVRM: Xid (PCI:0000:ed:00): 45, pid=1818992, name=python3, Ch 01 caused by previous Xid 145": "GPU007",
    "ImportError: libtorch_cuda.so: cannot open shared object file: No such file or directory": "PY305",
}


@pytest.mark.parametrize("line", LATER)
def test_lines_of_other_reports(line: str) -> None:
    assert [condition.code for condition in triage_lines([line]).conditions][:1] == [LATER[line]]


def test_no_pattern_is_announced_by_words_of_every_log() -> None:
    """Each needle has a word that healthy logs and prompts are not full of, or three words together."""
    patterns = [s.pattern for s in SIGNATURES] + [m.pattern for m in symptoms().milestones]
    for pattern in patterns:
        for needle in needles(pattern):
            assert len(needle) > 2 or needle - COMMON or needle == {b"value", b"error"}, (pattern, needle)


def test_a_report_reworded_gets_the_same_answer() -> None:
    for number, report in enumerate(REPORTS):
        lines = report["log_lines"]
        carried = [CARRIERS[number % 3].format(reworded(line, number)) for line in lines]
        before = [condition.code for condition in triage_lines(lines).conditions][:1]
        after = [condition.code for condition in triage_lines(carried).conditions][:1]
        assert before == after, report["id"]


# The conditions under which the forecast files vLLM's own words for not starting.
REFUSALS = {"kinds_cannot_join": "ARG903", "pages_cannot_unify": "ARG903", "no_memory": "MEM803"}
REFUSALS |= {"cannot_fit_a_token": "MEM803", "too_small": "CTX603", "too_long": "CTX601"}


def _refusals() -> Iterator[tuple[str, str]]:
    for file in ("planner.toml", "length.toml"):
        for rule in table(file)["rule"]:
            if rule["name"] in REFUSALS and rule["value"]:
                yield REFUSALS[rule["name"]], re.sub(r"\{\w+\}", "17", rule["value"])


@pytest.mark.parametrize(("code", "words"), list(_refusals()))
def test_a_refusal_that_the_forecast_foresees_has_the_same_code_in_a_log(code: str, words: str) -> None:
    assert [condition.code for condition in triage_lines([f"ValueError: {words}"]).conditions][:1] == [code]


HEALTHY = (DATA / "healthy-starts.log").read_text(encoding="utf-8").split("\n====\n")


@pytest.mark.parametrize("number", range(len(HEALTHY)))
def test_healthy_starts_show_nothing(number: int) -> None:
    shown = triage_lines(HEALTHY[number].splitlines()).conditions
    assert not shown, [(condition.code, condition.evidence) for condition in shown]


@pytest.mark.parametrize("text", [
    '[[signature]]\ncode = "X001"\npattern = "["\nmatch = ["["]\n',
    '[[signature]]\ncode = "X001"\npattern = "\\\\d+"\nmatch = ["1"]\n',
    '[[signature]]\ncode = "X001"\nregex = "a"\n',
    "not toml",
])  # fmt: skip
def test_a_symptom_file_that_is_wrong_is_refused(text: str) -> None:
    with pytest.raises((ValueError, re.error)):
        parse(text)


@pytest.mark.parametrize("number", range(len(HEALTHY)))
def test_the_case_of_a_healthy_start_gives_no_fail(number: int) -> None:
    examination = examine(case_from(triage_lines(HEALTHY[number].splitlines())), catalogue().checks)
    failed = [f for f in examination.findings if f.outcome in (Outcome.FAIL, Outcome.ERROR)]
    assert not failed, [(finding.code, finding.message) for finding in failed]
