"""Takes a log line out of what its carriers wrapped around it: docker JSON, CRI, journald, process tags, levels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from msgspec import Struct

CARRIERS = 8
"""How many carriers around one message are taken off."""
MAX_LINE = 64 << 10
"""Characters of one line that are looked at; a longer line is not a message."""


class Line(Struct, frozen=True):
    """One message. ``text`` is without carriers; ``tag`` names the process that wrote it, where it says so."""

    text: str
    level: str = ""
    tag: str = ""


_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|#033\[[0-9;]*m")
"""Escape sequences of a terminal; rsyslog writes the escape as ``#033``."""
_LEVELS = {
    "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "ERROR", "D": "DEBUG",
    "WARN": "WARNING", "CRITICAL": "ERROR", "FATAL": "ERROR", "ERR": "ERROR",
}  # fmt: skip
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] ",
        r"\[pod/[^\]]+\] ",
        r"[a-zA-Z0-9][\w.-]{0,60}\s*\| (?=\S)",
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? (?:[\w.-]+ (?:[\w.@/-]+\[\d+\]|kernel|systemd): )?",
        r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) [\w.-]+ [\w.@/-]+\[\d+\]: ",
        r"\d+\|[\w.-]+ *\| ",
        r"\((?P<tag>[A-Za-z][\w =-]*?) pid=\d+(?:, ip=[^)]*)?\) ?",
        r"\[(?P<rank>rank\d+)\]:? ?",
        r"(?P<vllm>INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? "
        r"(?:\[[\w/.<>-]+:\d+\]|[\w/.-]+:\d+\]) ?",
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?P<sglang>(?: (?:TP|PP|DP|EP)\d+)*)\] ",
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ - [\w.]+ - (?P<python>[A-Z]+) - (?:\S+:\d+ - )?",
        r"(?P<glog>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [\w./-]+:\d+\] ",
        r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?(?: UTC| KST)? ",
        r"\[\d\d/\d\d/\d{4}-[\d:]+\] (?:\[TRT-LLM(?: \|[^\]]*)?\] )?(?:\[RANK \d+\] )?\[(?P<trt>[IWEF])\] ?",
        r"\[TensorRT-LLM\]\[(?P<trtcpp>[A-Z]+)\] ?",
        r"\d+\.\d\d\.\d{3}\.\d{3} (?P<llama>[IWED]) ",
        r"[\w.-]+:\d+:\d+ \[\d+\] (?=NCCL )",
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\] LMCache (?P<lmcache>[A-Z]+)\s*:? ",
    )
)
_REQUEST = re.compile(
    r"(?:Received request|Request) \S+(?: details)?: (?=prompt|params)|Generated response \S+.{0,40}?: output: "
    r"|(?:Receive|Finish): obj=|(?:chat|completion|generate) request (?=.{0,200}\bprompt=)"
)
"""A request or an answer as a server logs it: what users wrote is no message of the server's."""
_SLOG = re.compile(r'time=\S+ level=(\w+) source=\S+ msg=("(?:[^"\\]|\\.)*"|\S+) ?(.*)', re.DOTALL)


def messages(raw: str) -> Iterator[Line]:
    """The messages of one line of a file: one, or several where a JSON carrier holds line breaks."""
    text = raw.rstrip("\r\n")
    if text.startswith("{") and (carried := _json_message(text)) is not None:
        content, level = carried
        for part in content.split("\n"):
            if part.strip():
                line = unwrap(part)
                yield line if line.level else Line(line.text, level, line.tag)
    else:
        yield unwrap(text)


def unwrap(text: str) -> Line:
    """One line without its carriers, with the level and the process that they told."""
    if "\x1b" in text or "#033[" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        text = text.rstrip("\r").rpartition("\r")[2]
    level = tag = ""
    for _ in range(CARRIERS):
        for prefix in _PREFIXES:
            if match := prefix.match(text):
                for name, value in match.groupdict().items():
                    if not value:
                        continue
                    if name in ("tag", "rank", "sglang"):
                        tag = value.strip()  # the innermost is the process itself
                    else:
                        level = _LEVELS.get(value, value)
                text = text[match.end() :]
                break
        else:
            break
    if match := _SLOG.match(text):
        level = _LEVELS.get(match[1], match[1])
        message = match[2]
        text = (message[1:-1] if message.startswith('"') else message).replace('\\"', '"') + " " + match[3]
    if level != "ERROR" and (request := _REQUEST.match(text)):
        text = request[0]
    return Line(text[:MAX_LINE], level, tag)


def _json_message(text: str) -> tuple[str, str] | None:
    """Message and level of a JSON log line, None where it is none.

    Docker calls it ``log``, journald ``MESSAGE``, Google's logging ``textPayload``, others ``msg`` or ``message``.
    """
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    if isinstance(payload := entry.get("jsonPayload"), dict):
        entry = {**entry, **payload}
    for key in ("log", "msg", "message", "MESSAGE", "textPayload"):
        if isinstance(entry.get(key), str):
            level = entry.get("level") or entry.get("severity") or entry.get("levelname") or ""
            spelled = str(level).upper()
            detail = entry.get("exc_info") or entry.get("exception") or entry.get("stack_trace")
            content = entry[key] + (f"\n{detail}" if isinstance(detail, str) else "")
            return content, _LEVELS.get(spelled, spelled)
    return None
