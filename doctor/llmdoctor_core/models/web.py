"""HTTP as this room needs it: small files whole, headers by byte ranges; over huggingface_hub's own session."""

from __future__ import annotations

import sys
import time
from typing import Any

from ..errors import InputError

CONNECT_SECONDS, READ_SECONDS, ALL_SECONDS = 5.0, 10.0, 25.0
"""Limits of one connection, of one wait for data, and of all requests about one model together."""


class UnreachableError(Exception):
    """The server did not answer: its argument completes the sentence "the hub could not be reached: ..."."""


class RefusedError(Exception):
    """The server answered with an error status."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, code, message)
        self.status, self.code, self.message = status, code, message


class Web:
    """Requests of one reading, together no longer than ``ALL_SECONDS``. ``headers`` go to the first host only."""

    def __init__(self, headers: dict[str, str]) -> None:
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        self.session: Any = get_session()
        # huggingface_hub stands on httpx, before 1.0 on requests: their sessions and errors have no common base.
        library = sys.modules[type(self.session).__module__.partition(".")[0]]
        self.streams = callable(getattr(self.session, "stream", None))
        self.failures: tuple[type[Exception], ...] = (
            OSError,
            getattr(library, "RequestException", None) or library.HTTPError,
            library.exceptions.InvalidURL if hasattr(library, "exceptions") else library.InvalidURL,
        )
        self.headers = headers
        self.deadline = time.monotonic() + ALL_SECONDS

    def get(self, url: str, start: int = 0, length: int | None = None, most: int = 32 << 20) -> bytes:
        """Bytes of ``url``: all (at most ``most``), or up to ``length`` from ``start`` by a range request.

        Raises UnreachableError, RefusedError, and InputError for a server that does not answer ranges.
        """
        headers = {"Accept-Encoding": "identity", **self.headers}
        if length is not None:
            if length <= 0:
                return b""
            headers["Range"] = f"bytes={start}-{start + length - 1}"
        if time.monotonic() > self.deadline:
            raise UnreachableError(f"no answer within {ALL_SECONDS:.0f} s")
        wanted = most if length is None else length
        try:
            return self._stream(url, headers, start, wanted, ranged=length is not None)
        except self.failures as error:
            raise UnreachableError(str(error) or type(error).__name__) from None

    def _stream(self, url: str, headers: dict[str, str], start: int, wanted: int, ranged: bool) -> bytes:
        if self.streams:
            timeout: Any = READ_SECONDS
            with self.session.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
                return self._body(response, response.iter_bytes(65536), start, wanted, ranged, url)
        timeout = (CONNECT_SECONDS, READ_SECONDS)
        with self.session.get(url, headers=headers, timeout=timeout, stream=True) as response:
            return self._body(response, response.iter_content(65536), start, wanted, ranged, url)

    def _body(self, response: Any, chunks: Any, start: int, wanted: int, ranged: bool, url: str) -> bytes:
        status = response.status_code
        if status == 416:
            return b""
        if status >= 400:
            text = b"".join(_first(chunks, 2048)).decode("utf-8", "replace")
            message = response.headers.get("x-error-message") or text
            raise RefusedError(status, response.headers.get("x-error-code", ""), message[:300])
        skip = start if ranged and status != 206 else 0
        if skip > 1 << 20:
            raise InputError(f"{url}: the server does not answer byte ranges, which reading a header needs")
        data = b""
        for chunk in chunks:
            data += chunk
            if len(data) >= skip + wanted:
                break
            if time.monotonic() > self.deadline:
                raise UnreachableError(f"no answer within {ALL_SECONDS:.0f} s")
        if not ranged and len(data) > wanted:
            raise InputError(f"{url} has more than {wanted:,} bytes; no such file has")
        return data[skip : skip + wanted]

    def size(self, url: str) -> int | None:
        """Bytes of the file behind ``url``, None where the server does not tell."""
        headers = {"Accept-Encoding": "identity", "Range": "bytes=0-0", **self.headers}
        try:
            if self.streams:
                with self.session.stream(
                    "GET", url, headers=headers, timeout=READ_SECONDS, follow_redirects=True
                ) as answer:
                    return self._size(answer)
            with self.session.get(url, headers=headers, timeout=(CONNECT_SECONDS, READ_SECONDS), stream=True) as answer:
                return self._size(answer)
        except self.failures as error:
            raise UnreachableError(str(error) or type(error).__name__) from None

    def _size(self, response: Any) -> int | None:
        if response.status_code >= 400:
            raise RefusedError(response.status_code, response.headers.get("x-error-code", ""), "")
        total = response.headers.get("content-range", "").rpartition("/")[2]
        if response.status_code != 206:
            total = response.headers.get("content-length", "")
        return int(total) if total.isdecimal() and len(total) < 19 else None


def _first(chunks: Any, most: int) -> list[bytes]:
    out, size = [], 0
    for chunk in chunks:
        out.append(chunk)
        size += len(chunk)
        if size >= most:
            break
    return out
