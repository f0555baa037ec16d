"""A Hugging Face hub as one thread of this process: real HTTP, real byte ranges, its error codes."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """Serves ``repos`` (files by name, by model id). ``log`` keeps (path, Range header, Authorization header).

    ``redirect`` is another such server that serves the files in its place, as the hub's storage does.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.ranges = True
        self.redirect: HubServer | None = None
        self.failing = 0
        self.log: list[tuple[str, str | None, str | None]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the name http.server asks for
        hub = self.server
        asked = self.headers.get("Range")
        hub.log.append((self.path, asked, self.headers.get("Authorization")))
        if hub.failing:
            return self.answer(hub.failing, b"sorry")
        path = unquote(urlsplit(self.path).path).strip("/")
        if path.startswith("api/models/"):
            return self.listing(path.removeprefix("api/models/"))
        if path.startswith("cdn/"):
            name, _, file = path.removeprefix("cdn/").partition("//")
            return self.file(hub.repos[name][file], asked)
        name, _, rest = path.partition("/resolve/")
        _, _, file = rest.partition("/")
        if name in hub.gated:
            return self.answer(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"})
        if file not in hub.repos.get(name, {}):
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        if hub.redirect:
            return self.answer(302, b"", {"Location": f"{hub.redirect.endpoint}/cdn/{name}//{file}"})
        return self.file(hub.repos[name][file], asked)

    def listing(self, path: str) -> None:
        name, _, revision = path.partition("/revision/")
        files = self.server.repos.get(name)
        if files is None:
            return self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", COMMIT):
            return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        siblings = [
            {
                "rfilename": file,
                "size": len(data),
                "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)},
            }
            for file, data in files.items()
        ]
        return self.answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())

    def file(self, data: bytes, asked: str | None) -> None:
        if asked and self.server.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last), len(data) - 1)
            if start >= len(data):
                return self.answer(416, b"")
            return self.answer(206, data[start : end + 1], {"Content-Range": f"bytes {start}-{end}/{len(data)}"})
        return self.answer(200, data)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        try:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        return
