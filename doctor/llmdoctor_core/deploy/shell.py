"""Shell text as far as launches need it: its simple commands with their lines, and the variables it assigns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from llmdoctor_core.errors import InputError

from .deployment import Word

QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*"|\\."""
SUBSTITUTED = r"\$\((?:[^()]|\([^()]*\))*\)|\$\{[^}\n]{0,256}\}"
LONE_DOLLAR = r"\$(?![({])"
"""With it no character can be matched two ways: what does not match is given up in one pass."""
COMMENT = r"(?<!\S)\#[^\n]*(?=\n|\Z)"
PART = re.compile(
    rf"""
      (?P<comment> (?<![^\s;&|(]) \#[^\n]*(?=\n|\Z) )
    | (?P<here> <<-?[ \t]*(?P<mark>\w+|'\w+'|"\w+") )
    | (?P<redirection> (?:(?<!\S)\d+)? (?:&>>?|>>?[&|]?|<<<|<[&>]?) [ \t]* (?:{QUOTED}|[^\s;&|<>()'"\\])* )
    | (?P<array> (?<!\S)\w+\+?=\( (?:{QUOTED}|{SUBSTITUTED}|{LONE_DOLLAR}|{COMMENT}|(?<=\S)\#|[^()'"\\$\#])* \) )
    | (?P<kept> {QUOTED}|{SUBSTITUTED} )
    | (?P<cut> [;&|\n()] )
    | (?P<plain> [^\s'"\\$\#;&|<>()]+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
KEYWORDS = re.compile(r"\A(?:(?:if|then|elif|else|while|until|do|!|\{)\s+)*")
VALUE = rf"(?:{QUOTED}|{SUBSTITUTED}|{LONE_DOLLAR}|[^\s'\"\\$])*"
ASSIGNMENTS = re.compile(
    rf"\s*(?P<export>(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+)*)?(?P<all>(?:[A-Za-z_]\w*={VALUE}(?:\s+|\Z))+)",
    re.DOTALL,
)
ASSIGNMENT = re.compile(rf"([A-Za-z_]\w*)=({VALUE})\s*", re.DOTALL)
EXPORTED = re.compile(r"\s*export((?:\s+[A-Za-z_]\w*)+)\s*")
ARRAY = re.compile(r"\s*(\w+)(\+?)=\((.*)\)\s*", re.DOTALL)
DEFAULTED = re.compile(r"\$\{(\w+):?=([^}]*)\}")
VARIABLE = re.compile(
    r"\"?\$\{(?P<array>\w+)\[[@*]\]\}\"?|(?P<all>\"\$[@*]\"|\$[@*])"
    r"|\$(?:\{(?P<braced>\w+)(?::?[-=](?P<default>[^}]*))?\}|(?P<bare>\w+))"
)
QUOTING = re.compile(r"['\"\\]")
PLAIN = re.compile(r"[^ \t\r\n]+")
"""The words of a text in which nothing is quoted; shlex looks at each character."""
MAX_FILLED = 1 << 17
"""Characters that variables put into one statement; Linux takes no longer word (MAX_ARG_STRLEN)."""


class Command(NamedTuple):
    """A simple command as written, and the line it begins on."""

    text: str
    line: int


class Statement(NamedTuple):
    """The words of a simple command, its variables filled in, and what was exported before it, with lines."""

    words: list[Word]
    exported: dict[str, Word]


def split(text: str, line: int = 0) -> list[Word]:
    """Words of a shell command, continuation lines joined, each with its line. Raises InputError for open quotes."""
    joined = text.replace("\\\n", " \n")
    if not QUOTING.search(joined):
        rows = enumerate(joined.split("\n"), line)
        return [Word(word, number if line else 0) for number, row in rows for word in PLAIN.findall(row)]
    words: list[Word] = []
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        while (token := lexer.get_token()) is not None:
            words.append(Word(token, line + lexer.lineno - 1 - token.count("\n") if line else 0))
    except ValueError as error:
        raise InputError(f"line {line}: the command has {str(error).lower()}") from None
    return words


def statements(text: str, line: int, environment: Mapping[str, str]) -> Iterator[Statement]:
    """Every simple command with what the text has assigned before it; a variable that nothing sets stays as written."""
    variables = dict(environment)
    exported: dict[str, Word] = {}
    for command in commands(text, line):
        written = KEYWORDS.sub("", command.text, count=1)
        if array := ARRAY.fullmatch(written):
            words = filled(_without_comments(array[3]).replace("\n", " "), variables)
            variables[array[1]] = f"{variables.get(array[1], '') if array[2] else ''} {words}"[:MAX_FILLED]
        elif names := EXPORTED.fullmatch(written):
            known = {name: Word(variables[name], command.line) for name in names[1].split() if name in variables}
            exported |= known
        elif assignments := ASSIGNMENTS.fullmatch(written):
            for name, value in ASSIGNMENT.findall(assignments["all"]):
                variables[name] = _unquoted(filled(value, variables))
                if (assignments["export"] or "").startswith("export") or name in exported:
                    exported[name] = Word(variables[name], command.line)
        else:
            for name, default in DEFAULTED.findall(written):
                variables.setdefault(name, default)
            try:
                yield Statement(split(filled(written, variables), command.line), dict(exported))
            except InputError:
                continue  # a line of shell that is no plain command, such as one half of a here-document


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value


def _without_comments(text: str) -> str:
    return "".join(part[0] for part in PART.finditer(text) if not part["comment"])


def commands(text: str, line: int = 1) -> list[Command]:
    """The simple commands of a shell text: cut at its operators, without comments and redirections.

    Each keeps its own line breaks, so that its words keep their lines; a here-document is read as a text of its own.
    """
    return [_trimmed(command) for command in _cut(text, line, _last_lines(text)) if command.text.strip()]


def _last_lines(text: str) -> dict[str, int]:
    """Where each line last begins, by its words: a here-document ends where its mark stands alone."""
    found: dict[str, int] = {}
    position = 0
    for line in text.split("\n"):
        found[line.strip()] = position
        position += len(line) + 1
    return found


def _cut(text: str, line: int, ends: Mapping[str, int]) -> list[Command]:
    found: list[Command] = []
    kept: list[str] = []
    marks: list[str] = []
    begun = line
    position = 0
    while match := PART.match(text, position):
        part, position = match[0], match.end()
        if match["here"]:
            marks.append(match["mark"].strip("'\""))
        elif match["cut"]:
            line += part.count("\n")
            found.append(Command("".join(kept), begun))
            kept, begun = [], line
            if part == "\n" and marks and ends.get(mark := marks.pop(0), -1) >= position:
                end = _here_end(text, position, mark)
                found += _cut(text[position:end], line, {})
                line += text.count("\n", position, end)
                position, begun = end, line
        elif match["comment"] or match["redirection"]:
            line += part.count("\n")
        else:
            kept.append(part)
            line += part.count("\n")
    found.append(Command("".join(kept), begun))
    return found


def _trimmed(command: Command) -> Command:
    """The command from its first character on, without a continuation that a comment cut off."""
    front = command.text[: len(command.text) - len(command.text.lstrip())]
    return Command(re.sub(r"(?:\\\n|\s)+\Z", "", command.text).lstrip(), command.line + front.count("\n"))


def _here_end(text: str, position: int, mark: str) -> int:
    end = re.compile(rf"^[ \t]*{re.escape(mark)}[ \t]*$", re.MULTILINE).search(text, position)
    return end.start() if end else len(text)


def filled(text: str, variables: Mapping[str, str]) -> str:
    """The text with the variables that are known put in; what would grow beyond a word's length stays as written."""

    def value(match: re.Match[str]) -> str:
        if match["all"]:
            return ""  # the file is read as one that is run without arguments
        name = match["array"] or match["braced"] or match["bare"]
        return variables.get(name, match["default"] if match["default"] is not None else match[0])

    if sum(len(value(match)) for match in VARIABLE.finditer(text)) > MAX_FILLED:
        return text  # variables that double each other are no launch: left as written
    return VARIABLE.sub(value, text)
