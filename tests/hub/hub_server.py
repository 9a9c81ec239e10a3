"""A hub on this machine that behaves as it is told: it cuts connections, lies about lengths, refuses and stalls."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1000  # bytes from which on the server keeps a file as its hub does large ones, by SHA-256


@dataclass
class Asked:
    """One request as it came."""

    path: str
    range: str | None
    authorization: str | None


class Answering(BaseHTTPRequestHandler):
    """What a misbehaviour is given: the request, and the means to answer it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: FakeHub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(Asked(path, self.headers.get("Range"), self.headers.get("Authorization")))
        for start, misbehaviours in self.hub.misbehaviours.items():
            if path.startswith(start) and misbehaviours:
                return misbehaviours.pop(0)(self)
        if path.startswith("/api/models/"):
            assert "blobs" in parse_qs(urlsplit(self.path).query)
            return self.send(200, json.dumps(self.hub.listing()).encode())
        return self.send_file()

    @property
    def content(self) -> bytes:
        """Of the file that is asked for."""
        return self.hub.files[unquote(urlsplit(self.path).path).split("/resolve/")[1].partition("/")[2]]

    def send_file(self, content: bytes | None = None, *, cut: int | None = None, ranges: bool = True) -> None:
        """Send the file, or what lies behind the start of the range; break off after `cut` bytes of it."""
        content = self.content if content is None else content
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1]) if ranges else 0
        if start >= len(content) and start:
            return self.send(416, b"")
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        return self.send(206 if start else 200, content[start:], cut=cut, headers=headers)

    def send(self, status: int, body: bytes, *, cut: int | None = None, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *arguments: Any) -> None:
        pass


Misbehaviour = Callable[[Answering], None]


@dataclass
class FakeHub:
    """`files` of the one repository; `misbehaviours`: by the beginning of a path, the next one each time."""

    files: dict[str, bytes]
    misbehaviours: dict[str, list[Misbehaviour]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    endpoint: str = ""

    def listing(self) -> dict[str, Any]:
        return {"id": "org/tiny", "sha": COMMIT, "siblings": [_sibling(*item) for item in self.files.items()]}

    def misbehave(self, file: str, *misbehaviours: Misbehaviour) -> None:
        self.misbehaviours[f"/org/tiny/resolve/{COMMIT}/{file}"] = list(misbehaviours)

    def ranges(self, file: str) -> list[str | None]:
        """The range of each request for `file`."""
        return [asked.range for asked in self.asked if asked.path.endswith(f"/{file}")]


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_digest(content)}
    if len(content) >= LARGE:
        sha256 = hashlib.sha256(content).hexdigest()
        sibling["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 130}
    return sibling


def git_digest(content: bytes) -> str:
    """The name that git gives to the content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def served(files: dict[str, bytes]) -> Iterator[FakeHub]:
    """The hub, while it is up."""
    hub = FakeHub(dict(files))
    handler = type("Handler", (Answering,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
