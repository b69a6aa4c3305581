"""A real HTTP server on loopback that serves files and, as told, behaves as badly as servers and networks do."""

from __future__ import annotations

import contextlib
import hashlib
import io
import ssl
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.patience import patience

PAGE = b"<html><body>Please log in to use this network</body></html>"


@dataclass
class Site:
    """What is served, how, and what was asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # path -> content; others answer 404
    # What happens to the next requests, one word each, then "ok": a status, cut:N (the body ends after N bytes), html, empty,
    # moved, to:URL, long (announces more than it has), short (announces less), chunked (announces nothing), endless (nor stops),
    # trickle, silent
    plan: list[str] = field(default_factory=list)
    ranges: bool = True  # whether Range is understood
    stubborn: bool = False  # whether a Range is served although If-Range does not hold
    tags: str = "strong"  # strong, weak, none, date
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range of every request
    pace: float = 0.0  # seconds before each answer


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        site = self.site
        wanted = self.headers.get("Range")
        site.asked.append((self.path, wanted))
        time.sleep(site.pace)
        self.close_connection = True
        content = site.files.get(self.path)
        mood = "404" if content is None else site.plan.pop(0) if site.plan and not self.path.endswith(".sha256") else "ok"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if mood.isdigit():
                self.answer(int(mood), b"")
            elif mood == "html":
                self.answer(200, PAGE, {"Content-Type": "text/html; charset=utf-8"})
            elif mood == "moved":
                self.answer(302, b"", {"Location": self.path})
            elif mood.startswith("to:"):
                self.answer(302, b"", {"Location": mood.removeprefix("to:")})
            elif mood == "silent":
                time.sleep(patience(1.5))
            elif content is not None:
                self.serve(content, mood, wanted)

    def serve(self, content: bytes, mood: str, wanted: str | None) -> None:
        site = self.site
        tag = f'"{hashlib.sha256(content).hexdigest()[:8]}"'
        headers = {
            "strong": {"ETag": tag},
            "weak": {"ETag": f"W/{tag}"},
            "date": {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"},
            "none": {},
        }[site.tags]
        holds = self.headers.get("If-Range") in headers.values() or site.stubborn
        status = 200
        if wanted and site.ranges and holds:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.answer(416, b"")
                return
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            status, content = 206, content[start:]
        length: int | None = len(content)
        if mood.startswith("cut:"):
            content = content[: int(mood[4:])]
        elif mood == "empty":
            content, length = b"", 0
        elif mood == "long":
            length = len(content) + 100
        elif mood == "short":
            length = len(content) // 2
            content = content[:length]
        elif mood in ("chunked", "endless"):
            length = None
        self.answer(status, None, headers, length)
        if mood == "endless":
            self.wfile.write(content)
            while True:
                self.wfile.write(bytes(1 << 16))
        elif mood == "trickle":
            for i in range(60):
                self.wfile.write(content[i : i + 1])
                time.sleep(0.05)
        else:
            self.wfile.write(content)

    def answer(self, status: int, body: bytes | None, headers: dict[str, str] | None = None, length: int | None = None) -> None:
        """The head of an answer, and its whole body if one is given."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if body is not None:
            length = len(body)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body or b"")


@contextlib.contextmanager
def serving(secure: ssl.SSLContext | None = None) -> Iterator[Site]:
    """A site for the block, over TLS if there is a context with a certificate."""
    site = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site}))
    if secure is not None:
        server.socket = secure.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    site.url = f"{'http' if secure is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=patience(60))


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive in memory."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()
