"""Keeps vLLM's answers as compact data for the fast tests: one file a release, one line a case.

    python keep.py CASES.jsonl ANSWERS.jsonl tests/data/vllm/oracle-0.33.0.jsonl

A line is {"model", "setting", "usage", "gpu", "args", "plans"}; a plan is [blocks, bytes of a block, blocks of a
request, tokens, concurrency as printed, length], or {"refused": the numbers in vLLM's words}. Cases that vLLM could not
answer here are kept with the reason instead of plans.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from compare import left_out, plain, stride  # beside this file


def reason(answer: dict[str, Any]) -> str:
    """The first line of what vLLM raised; the line of code where it raised nothing in words."""
    lines = plain(answer["error"]).splitlines() or answer["where"].splitlines()[-3:]
    return str(lines[0]).strip()


def kept(case: dict[str, Any], answer: dict[str, Any], gpus: dict[str, str]) -> dict[str, Any]:
    """One case with its answer, in the compact form."""
    model, setting = case["id"].split("/")
    folder = str(Path(case["model"]).parent)
    line = {
        "model": model,
        "setting": setting,
        "usage": case["usage"],
        "gpu": gpus[case["gpu"]["name"]],
        "args": json.loads(json.dumps(case["args"]).replace(folder + "/", "@")),
    }
    if left_out(answer):
        return {**line, "left_out": reason(answer)[:160]}
    if "error" in answer:
        return {**line, "plans": [{"refused": numbers(plain(answer["error"]))}]}
    return {**line, "plans": [kept_plan(plan) for plan in answer["plans"]]}


def kept_plan(plan: dict[str, Any]) -> Any:
    if "refused" in plan:
        return {"refused": numbers(plain(plan["refused"]))}
    blocks = plan["blocks_per_request"]
    concurrency = f"{plan['concurrency']:.2f}"
    return [plan["blocks"], stride(plan), blocks and round(blocks), plan["tokens"], concurrency, plan["max_model_len"]]


def numbers(text: str) -> list[str]:
    """What tells one refusal from another of its kind."""
    return re.findall(r"\d+(?:\.\d+)?", text.partition("See https")[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    cases = {case["id"]: case for case in map(json.loads, options.cases.read_text().splitlines())}
    names = {"NVIDIA A100-SXM4-80GB": "A100", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA L4": "L4", "NVIDIA B200": "B200"}
    answers = map(json.loads, options.answers.read_text().splitlines())
    lines = [kept(cases[a["id"]], a, names) for a in answers if a["id"] in cases]
    lines.sort(key=lambda line: (line["model"], line["setting"]))
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
