"""Takes out of texts and cases what must not leave the house: secrets, names of people and hosts, addresses, prompts.

The same secret becomes the same pseudonym, wherever it stands: ``<token-1>``. What was redacted once stays as it is.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from .case import Case
from .probes.environment import unless_secret

REFERENCE = re.compile(r"\$\{[A-Z][A-Z0-9_]*\}|\$[A-Z][A-Z0-9_]*")
"""A variable's name in place of its value: no secret itself."""
KINDS = ("key", "token", "credential", "secret", "prompt", "email", "user", "host", "address")
PSEUDONYM = re.compile(rf"<({'|'.join(KINDS)})-(\d+)>")
_ALREADY = rf"(?!<(?:{'|'.join(KINDS)})-\d+>)"
SECRET_KINDS = ("key", "token", "credential", "secret")
LEAST_SEEN = 6
"""Characters a secret must have to be looked for where no rule points at it."""
PLACES = 20
"""Places that the report names for each rule."""


class Redaction(Struct, frozen=True, kw_only=True):
    """What one rule took out: how often, and where (``server.log:12``, ``case environment.variables.HF_TOKEN``)."""

    rule: str
    count: int
    places: tuple[str, ...]


class Rule(Struct, frozen=True):
    """``find`` gives the spans to replace in a text and the kind of pseudonym that stands there afterwards."""

    name: str
    kind: str
    find: Callable[[str], Iterable[tuple[int, int]]]


def _whole(pattern: str, flags: int = 0, group: int | str = 0) -> Callable[[str], Iterable[tuple[int, int]]]:
    compiled = re.compile(pattern, flags)
    return lambda text: [match.span(group) for match in compiled.finditer(text) if match[group]]


# Shapes of tokens that tell themselves, by issuer. Lengths are the issuers' least, so that placeholders survive.
_TOKEN = (
    r"(?<![A-Za-z0-9_])(?:"
    r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|sk-(?:ant-|proj-|or-|lf-)?[A-Za-z0-9_-]{16,}|pk-lf-[A-Za-z0-9-]{16,}|"
    r"nvapi-[A-Za-z0-9_-]{16,}|gh[opusr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|"
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}|"
    r"dckr_pat_[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,}|r8_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{30,}|"
    r"xai-[A-Za-z0-9]{30,}|lsv2_[A-Za-z0-9_]{20,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|dop_v1_[a-f0-9]{32,}|"
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?|wandb_v1_[A-Za-z0-9_]{16,}|tvly-[A-Za-z0-9-]{16,}"
    r")"
)
_KEY_BLOCK = r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
_BEARER = rf"(?i)\b(?:bearer|basic)\s+{_ALREADY}(?P<value>[A-Za-z0-9._~+/=-]{{8,}})"
_HEADER = (
    r"(?i)\b(?:proxy-)?(?:authorization|x-api-key|x-auth-token|api-key)['\"]?\s*[:=]\s*"
    r"(?P<quote>['\"])?(?:(?:bearer|basic|token|digest|negotiate)\s+)?(?P<value>(?(quote)[^'\"\r\n]+|[^\s,;'\"]+))"
)
_COOKIE = r"(?i)\b(?:set-)?cookie['\"]?\s*[:=]\s*['\"]?(?P<value>[^'\"\r\n]+)"
_URL_CREDENTIAL = rf"(?i)\b[a-z][a-z0-9+.-]{{0,30}}://{_ALREADY}(?P<value>[^\s/?#'\"<>]+)@"
_URL_SECRET = (
    rf"(?i)[?&;](?:access_?token|token|auth|sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|"
    rf"x-goog-signature|key|api_?key|password|secret|code)={_ALREADY}(?P<value>[^\s&#'\";,)\]}}<>]+)"
)
_EMAIL = r"(?<![\w.+-])[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}(?![\w-])"
_HOME = (
    rf"(?:/home/|/Users/|[A-Za-z]:\\+Users\\+|/mnt/c/Users/|/data/home/){_ALREADY}"
    rf"(?P<value>[^\s/\\:'\",;<>()\[\]{{}}]+)"
)
_SHELL_USER = (
    rf"(?<![\w.@/<>-]){_ALREADY}(?P<value>[a-z_][a-z0-9_.-]{{0,31}})"
    rf"@(?=[A-Za-z0-9][A-Za-z0-9.-]*(?::[~/\s]|[\s\])>]|$))"
)
_SHELL_HOST = (
    rf"(?<=[A-Za-z0-9_>.-]@){_ALREADY}(?P<value>[A-Za-z0-9][A-Za-z0-9.-]*[A-Za-z0-9]|[A-Za-z0-9])(?=:[~/\s]|[\s\])>]|$)"
)
_JOURNAL_HOST = (
    rf"(?m)^[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d {_ALREADY}(?P<value>[A-Za-z0-9][A-Za-z0-9._-]*) "
    rf"(?=[\w.@/-]+(?:\[\d+\])?:)"
)
_NAMED_HOST = (
    rf"(?i)\b(?:host_?name|node_?name|nodename|fqdn|machine_?name|server_?name)['\"]?\s*[:=]\s*['\"]?"
    rf"{_ALREADY}(?P<value>[a-z0-9][a-z0-9._-]*)"
)
_NAMED_USER = rf"(?i)\b(?:user_?name|login|logname|sudo_user)['\"]?\s*[:=]\s*['\"]?{_ALREADY}(?P<value>[a-z_][\w.@-]*)"
_INTERNAL_HOST = (
    r"(?i)(?<![\w.@-])[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9-]+)*"
    r"\.(?:local|localdomain|internal|corp|lan|intra|intranet|private|home\.arpa|svc|cluster\.local)(?![\w-])(?!\.(?:so|py|h|json)\b)"
    r"|(?<![\w.-])ip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}(?:\.[a-z0-9.-]+[a-z0-9])?"
)
_PROMPT_NAMES = (
    "prompt|prompts|messages|content|input_text|text|system_prompt|user_prompt|negative_prompt|completion|"
    "generated_text|output_text|user_message|query|question|input"
)
_PROMPT = (
    rf"(?i)(?<![\w.-])(?:{_PROMPT_NAMES})['\"]?\s*[:=]\s*"
    r"(?:b?(?P<single>'(?:[^'\\]|\\.)*(?:'|$))|(?P<double>\"(?:[^\"\\]|\\.)*(?:\"|$))|(?P<escaped>\\\"(?:[^\\]|\\[^\"])*(?:\\\"|$)))"
)
_TOKEN_IDS = r"(?i)\b(?:prompt_token_ids|input_ids|token_ids)['\"]?\s*[:=]\s*\[(?P<value>[\d,\s]+)\]?"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMMON_USERS = _words(
    "root ubuntu user users app vllm ec2-user admin jovyan nobody runner debian azureuser opc ollama shared public "
    "default guest rocky centos fedora linuxbrew conda"
)
_COMMON_HOSTS = _words("localhost localhost.localdomain host.docker.internal kubernetes.default.svc")

_SECRET_WORDS = _words(
    "token secret password passwd pwd passphrase apikey credential credentials cookie authorization bearer jwt pat sas "
    "accesskey secretkey privatekey authtoken accesstoken psk dsn"
)
_SECRET_PAIRS = frozenset(
    ("api", "access", "private", "secret", "account", "auth", "ssh", "signing", "encryption", "license", "master")
)
_NO_SECRET_WITH_TOKEN = _words(
    "pad eos bos unk id ids num max min image video audio special per count type budget cls sep mask start end next "
    "usage add kv prompt completion draft verify file path stop begin new total tokenizer types mean median counter "
    "limit expires size level idx index mtp reserve skip first last ttl name"
)
_NO_VALUE = _words(
    "none null true false undefined nil set unset str string int required optional bearer basic token digest negotiate "
    "is was not has and or for of to in the a an be must may invalid missing expired"
)
# A name begins where its run of characters does, and its value is looked at only where the name is a secret's: a
# search from every letter, or for the value of every name, takes hours on one long line.
_ASSIGNED = re.compile(r"(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]+)(?P<link>['\"]?\s*(?:=|:)\s*|\s+(?=\S))")
_ASSIGNED_VALUE = re.compile(rf"{_ALREADY}(?:'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|[^\s'\",;&)\]}}<>]+)")
_FLAG = re.compile(r"(?<![\w-])--?(?P<name>[a-z][a-z0-9_-]*)(?P<link>=|\s+)")
_FLAG_VALUE = re.compile(rf"{_ALREADY}(?:'[^'\n]*'|\"[^\"\n]*\"|(?!-)[^\s'\",;<>]+)")
_QUAD = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.-]*\.\d)(?!\w)")
_VERSION_BEFORE = re.compile(
    r"(?i)(?:[=<>~!]=|[vV@]|version['\"]?\s*(?:[:=(]|is)?\s*['\"]?|versions?\s+(?:of\s+)?\S{0,30}\s?|\.so\.|release\s|"
    r"got\s|driver\W{1,20}|cuda\W{1,10}|cudnn\W{1,10}|nccl\W{1,10}|torch\W{1,10}|tensorrt\W{1,10}|firmware\W{1,10}|"
    r"(?:cu\d\d|py\d|[a-z]{2,})[- ]|[a-z]-cu\d\d\s+|\bbuild\s|_)$"
)
_ADDRESS_BEFORE = re.compile(
    r"(?i)(?://|@|\b(?:ip|host|addr|address|inet|peer|client|server|listen|listening on|from|to|connect|connecting to|"
    r"bind|at|on|node|rank\d*|endpoint|master|via|gateway|nameserver|remote|local)['\"]?\s*[:=(]?\s*['\"(]?)$"
)
_VERSION_AFTER = re.compile(r"^(?:-?(?:py\d|cp\d)|\+cu|\.post|\.dev|rc\d|-\d+(?:ubuntu|\.el))")
_SIX = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:%\w+)?(?![\w:])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:])")
_VERSION_FIELD = re.compile(r"(?:^|_)version$|^(?:driver|specifier|glibc|cuda|nccl|torch)$")
_VERSION = re.compile(r"[\w.+~^=<>!,* -]{1,60}")
_HARMLESS_ADDRESSES = frozenset({"127.0.0.1", "0.0.0.0", "255.255.255.255", "::", "::1"})


def secret_name(name: str) -> bool:
    """Whether a variable, flag or key of that name holds a secret: ``HF_TOKEN`` does, ``pad_token_id`` does not."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    if any(second in ("key", "keys") and first in _SECRET_PAIRS for first, second in zip(words, words[1:])):  # noqa: B905, RUF007
        return True
    found = _SECRET_WORDS.intersection(words)
    if found == {"token"}:
        return not _NO_SECRET_WITH_TOKEN.intersection(words)
    return bool(found)


def _assigned(text: str) -> Iterable[tuple[int, int]]:
    for names, values in ((_ASSIGNED, _ASSIGNED_VALUE), (_FLAG, _FLAG_VALUE)):
        position = 0
        while match := names.search(text, position):
            # the value of one name may be the name of the next: go on right behind the name
            position = match.end("name")
            name = match["name"]
            spaced = names is _ASSIGNED and not match["link"].strip(" \t'\"")
            if spaced or not secret_name(name):
                continue
            for found in _values(text, match.end(), values, several=name.replace("_", "-") in _SEVERAL):
                value = found[0].strip("'\"")
                if not value or value.lower() in _NO_VALUE or set(value) <= {"*", "x", "X", "."}:
                    break
                if not (name.lower().endswith("token") and _small_number(value)):
                    start = found.start() + (found[0][0] in "'\"")
                    yield start, start + len(value)
                    position = found.end()


_SEVERAL = ("api-key",)
"""Arguments of vLLM that take several secrets one after another; it prints them as a list."""
_LISTED = re.compile(r"[\[(]\s*")
_COMMA, _SPACE = re.compile(r"\s*,\s*"), re.compile(r"[ \t]+(?=\S)")
_NEXT_KEY = re.compile(r"(?!-)[^\s'\",;<>]*\d[^\s'\",;<>]*")
"""A further key behind a flag; words of a sentence hold no digit."""


def _values(text: str, position: int, values: re.Pattern[str], *, several: bool) -> Iterator[re.Match[str]]:
    """The value at a place, or each value of the list that stands there."""
    listed = _LISTED.match(text, position)
    found = values.match(text, listed.end() if listed else position)
    while found is not None:
        yield found
        between = (_COMMA if listed else _SPACE).match(text, found.end())
        if between is None or not (listed or (several and values is _FLAG_VALUE)):
            return
        found = (values if listed else _NEXT_KEY).match(text, between.end())


def _small_number(value: str) -> bool:
    return bool(re.fullmatch(r"\d{1,9}(?:\.\d+)?", value))


def _addresses(text: str) -> Iterable[tuple[int, int]]:
    for match in _QUAD.finditer(text):
        if match[0] in _HARMLESS_ADDRESSES or any(int(part) > 255 for part in match[0].split(".")):
            continue
        before, after = text[max(0, match.start() - 40) : match.start()], text[match.end() : match.end() + 12]
        port = re.match(r"[:<]\d{2,5}\b|/\d\d\b", after)
        told = port or _ADDRESS_BEFORE.search(before)
        if not told and (_VERSION_BEFORE.search(before) or _VERSION_AFTER.match(after)):
            continue
        yield match.span()
    for pattern in (_SIX, _MAC):
        for match in pattern.finditer(text):
            if pattern is _MAC or _is_six(match[0]):
                yield match.span()


def _is_six(text: str) -> bool:
    if text in _HARMLESS_ADDRESSES or ("::" not in text and text.count(":") < 7):
        return False
    try:
        ipaddress.IPv6Address(text.partition("%")[0])
    except ValueError:
        return False
    return any(character.isdigit() for character in text)


def _prompts(text: str) -> Iterable[tuple[int, int]]:
    for match in re.finditer(_PROMPT, text):
        for group in ("single", "double", "escaped"):
            if value := match[group]:
                width = 2 if group == "escaped" else 1
                start, end = match.start(group) + width, match.end(group)
                if value.endswith(value[:width]) and len(value) >= 2 * width:
                    end -= width
                if end > start and not PSEUDONYM.fullmatch(text[start:end]):
                    yield start, end
    yield from _whole(_TOKEN_IDS, group="value")(text)


RULES: tuple[Rule, ...] = (
    Rule("private keys", "key", _whole(_KEY_BLOCK, re.DOTALL)),
    Rule("prompts and answers", "prompt", _prompts),
    Rule("credentials in URLs", "credential", _whole(_URL_CREDENTIAL, group="value")),
    Rule("secrets in URLs", "token", _whole(_URL_SECRET, group="value")),
    Rule("authorization headers", "token", _whole(_HEADER, group="value")),
    Rule("cookies", "secret", _whole(_COOKIE, group="value")),
    Rule("bearer tokens", "token", _whole(_BEARER, group="value")),
    Rule("tokens by their shape", "token", _whole(_TOKEN)),
    Rule("secrets by their name", "secret", _assigned),
    Rule("e-mail addresses", "email", _whole(_EMAIL)),
    Rule("home directories", "user", _whole(_HOME, group="value")),
    Rule("user names", "user", _whole(_SHELL_USER, group="value")),
    Rule("user names", "user", _whole(_NAMED_USER, group="value")),
    Rule("host names", "host", _whole(_SHELL_HOST, group="value")),
    Rule("host names", "host", _whole(_JOURNAL_HOST, group="value")),
    Rule("host names", "host", _whole(_NAMED_HOST, group="value")),
    Rule("host names", "host", _whole(_INTERNAL_HOST)),
    Rule("addresses", "address", _addresses),
)
"""In order: an earlier rule's pseudonym is not looked at again."""


@cache
def _fields(kind: type[Struct]) -> tuple[tuple[str, str, bool], ...]:
    """Name, name in JSON, and whether the value comes from a fixed list."""
    return tuple(
        (field.name, field.encode_name, Literal in (get_origin(field.type), *map(get_origin, get_args(field.type))))
        for field in fields(kind)
    )


class Redactor:
    """Redacts any number of texts and cases with one set of pseudonyms."""

    def __init__(self, users: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        """``users`` and ``hosts`` are names known beforehand; they are taken out wherever they stand as a word."""
        self._names: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        self._next: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._places: dict[str, list[str]] = {}
        self._known = {
            "user": {name for name in users if len(name) > 2 and name not in _COMMON_USERS},
            "host": {name for name in hosts if len(name) > 2 and name not in _COMMON_HOSTS},
        }

    def learn(self, texts: Iterable[str] = (), case: Case | None = None, value: Any = None) -> None:
        """Read what will be redacted beforehand, so that its secrets are found where nothing points at them too."""
        counts, places = self._counts.copy(), {rule: list(found) for rule, found in self._places.items()}
        for text in texts:
            self.text(text)
        if case is not None:
            self.case(case)
        self.value(value, "")
        self._counts, self._places = counts, places

    def text(self, text: str, where: str = "text") -> str:
        """The text without what the rules take out. ``where`` names it in the report, with the line behind it."""
        for match in PSEUDONYM.finditer(text):
            self._next[match[1]] = max(self._next[match[1]], int(match[2]))
        for rule in RULES:
            text = self._apply(rule, text, where)
        return self._seen_secrets(self._known_names(text, where), where)

    def case(self, case: Case) -> Case:
        """The case with every string in it redacted, by the names of its fields where they tell."""
        if isinstance(user := getattr(case.system, "user", None), str) and user not in _COMMON_USERS:
            self._known["user"].add(user)
        if case.host:
            self._known["host"].add(case.host)
        plain = self._walk(case, "case", "")
        return msgspec.convert(plain, Case)

    def value(self, value: Any, where: str) -> Any:
        """Any JSON value with every string in it redacted."""
        return self._walk(value, where, "")

    def report(self) -> tuple[Redaction, ...]:
        """What was taken out so far, by rule, in the rules' order."""
        order = dict.fromkeys([*(rule.name for rule in RULES), *self._counts])
        return tuple(
            Redaction(rule=name, count=self._counts[name], places=tuple(self._places[name][:PLACES]))
            for name in order
            if self._counts[name]
        )

    def pseudonym(self, kind: str, secret: str) -> str:
        """The pseudonym of a secret: a new one, or the one it had."""
        known = self._names[kind]
        for other in SECRET_KINDS if kind in SECRET_KINDS else ():
            if secret in self._names[other]:
                return self._names[other][secret]
        if secret not in known:
            self._next[kind] += 1
            known[secret] = f"<{kind}-{self._next[kind]}>"
        return known[secret]

    def _apply(self, rule: Rule, text: str, where: str) -> str:
        spans = sorted(set(rule.find(text)))
        if not spans:
            return text
        parts, position = [], 0
        for start, end in spans:
            secret = text[start:end]
            if start < position or not self._hides(rule.kind, secret):
                continue
            parts += [text[position:start], self.pseudonym(rule.kind, secret)]
            position = end
            self._note(rule.name, where, text, start)
        return "".join([*parts, text[position:]])

    def _hides(self, kind: str, secret: str) -> bool:
        if kind == "user":
            if secret.lower() in _COMMON_USERS or len(secret) < 2:
                return False
            self._known["user"].add(secret)
        if kind == "host":
            if secret.lower() in _COMMON_HOSTS or secret in _HARMLESS_ADDRESSES:
                return False
            self._known["host"].add(secret)
        return not (PSEUDONYM.fullmatch(secret) if kind in ("prompt", "key") else PSEUDONYM.search(secret))

    def _known_names(self, text: str, where: str) -> str:
        for kind in ("host", "user"):
            for name in sorted(self._known[kind], key=len, reverse=True):
                if len(name) > 2 and name in text:
                    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])")
                    found = Rule(f"{kind} names", kind, lambda text, word=word: [m.span() for m in word.finditer(text)])  # type: ignore[misc]
                    text = self._apply(found, text, where)
        return text

    def _seen_secrets(self, text: str, where: str) -> str:
        for kind in SECRET_KINDS:
            for secret, pseudonym in self._names[kind].items():
                if len(secret) >= LEAST_SEEN and secret in text:
                    self._note("secrets seen elsewhere", where, text, text.index(secret))
                    text = text.replace(secret, pseudonym)
        return text

    def _note(self, rule: str, where: str, text: str, start: int) -> None:
        self._counts[rule] += 1
        places = self._places.setdefault(rule, [])
        line = text.count("\n", 0, start) + 1
        place = where if "\n" not in text else f"{where}:{line}"
        if len(places) < PLACES and place not in places:
            places.append(place)

    def _walk(self, value: Any, where: str, name: str) -> Any:
        if isinstance(value, str):
            return self._named(value, where, name)
        if isinstance(value, Struct):
            return self._facts(value, where)
        if isinstance(value, dict):
            return {
                (self.text(key, where) if isinstance(key, str) else key): self._walk(item, f"{where}.{key}", str(key))
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            walked, before = [], ""
            for item in value:
                flag = before if before.startswith("-") and "=" not in before else ""
                walked.append(self._walk(item, where, flag.lstrip("-") or name))
                before = item if isinstance(item, str) else ""
            return walked
        return value

    def _facts(self, value: Struct, where: str) -> dict[str, Any]:
        """A fact as plain values. What a case may only hold from a list stays: a user can be called ``serve``."""
        config = value.__struct_config__
        plain: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field else {}
        for name, written, enumerated in _fields(type(value)):
            item = getattr(value, name)
            plain[written] = item if enumerated else self._walk(item, f"{where}.{name}", name)
        return plain

    def _named(self, value: str, where: str, name: str) -> str:
        if not value or PSEUDONYM.fullmatch(value):
            return value
        lowered = name.lower()
        kind = None
        if secret_name(name) and value.lower() not in _NO_VALUE and value != "<set>" and not _small_number(value):
            kind = "secret"
        elif lowered in ("user", "username", "login") and value not in _COMMON_USERS:
            kind = "user"
        elif lowered in ("hostname", "nodename") and value not in _COMMON_HOSTS:
            kind = "host"
        if kind is not None and self._hides(kind, value):
            self._note(
                {"secret": "secrets by their name", "user": "user names", "host": "host names"}[kind], where, "", 0
            )
            return self.pseudonym(kind, value)
        if _VERSION_FIELD.search(lowered) and _VERSION.fullmatch(value) and not re.search(_TOKEN, value):
            return value  # it may look like an address
        return self.text(value, where)


def without_secrets(words: tuple[str, ...]) -> tuple[str, ...]:
    """Words of a command, the values of ``--api-key``, ``HF_TOKEN=`` and their like replaced by ``<set>``."""
    kept: list[str] = []
    flag, further = "", False
    for word in words:
        name, equals, value = word.partition("=")
        if REFERENCE.fullmatch(value if equals else word):
            kept.append(word)
        elif flag and not (further and word.startswith("-")) and unless_secret(flag, word) != word:
            kept.append("<set>")
        elif equals:
            kept.append(f"{name}={unless_secret(name.lstrip('-'), value)}")
        else:
            kept.append(word)
        further = flag.replace("_", "-") == "api-key" and not word.startswith("-")  # vLLM takes several keys behind it
        if not further:
            flag = name.lstrip("-") if word.startswith("-") and not equals else ""
    return tuple(kept)
