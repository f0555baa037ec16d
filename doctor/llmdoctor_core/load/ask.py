"""Asks a server over HTTP with nothing but the standard library: bounded answers, a limit on every wait."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from llmdoctor_core.errors import InputError

MAX_ANSWER = 32 << 20
"""Bytes. The longest answer asked for is /metrics of many engines, a few MiB."""


class Answer(Struct, frozen=True):
    """Status and body of one answer; status 0 and the reason as body where none came."""

    status: int
    body: str
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON, or None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Client:
    """One server by its base URL. ``trust`` accepts any certificate: only for a server that we started ourselves."""

    def __init__(self, url: str, *, key: str | None = None, trust: bool = False) -> None:
        """Raises InputError for what is no http or https URL."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        odd = any(character.isspace() or not character.isprintable() for character in url)
        if odd or parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise InputError(f"{url}: not the address of a server; write it like http://host:8000")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._host, self._port, self._secure = parts.hostname, port, parts.scheme == "https"
        path = parts.path.rstrip("/")
        self._base = path.removesuffix("/v1")
        self._headers = {"Accept": "*/*"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._context = ssl.create_default_context() if self._secure else None
        if self._context and trust:
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE

    def get(self, path: str, timeout: float = 5.0) -> Answer:
        return self._ask("GET", path, None, timeout)

    def post(self, path: str, body: dict[str, Any], timeout: float) -> Answer:
        return self._ask("POST", path, json.dumps(body).encode(), timeout)

    def _ask(self, method: str, path: str, body: bytes | None, timeout: float) -> Answer:
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        began = time.monotonic()
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._context)
            if self._context
            else http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        )
        try:
            connection.request(method, self._base + path, body, headers)
            response = connection.getresponse()
            text = response.read(MAX_ANSWER).decode("utf-8", "replace")
            return Answer(response.status, text, time.monotonic() - began)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Answer(0, str(error) or type(error).__name__, time.monotonic() - began)
        finally:
            connection.close()


class Sample(Struct, frozen=True):
    """One sample of a metric: its labels and value."""

    labels: dict[str, str]
    value: float


def metrics(text: str) -> dict[str, list[Sample]]:
    """Samples by name from a Prometheus exposition. A line that is none of the format ends the reading there."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(Sample(dict(sample.labels), float(sample.value)))
    except (ValueError, KeyError, IndexError):
        return found
    return found
