"""The paths of the server: who may ask, how much and how long, what is answered, and what is counted of it.

Every answer is JSON but the metrics; an error is {"error": what to say}, with names like an unknown one in "near".
Nothing here computes or blocks: the event loop reads, checks and writes; the gatherer's thread answers; a small pool looks names
up and writes long answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from kgdist.base.errors import KgdistError
from kgdist.base.log import log
from kgdist.data.read.columns import shown
from kgdist.options.tools import ServeOptions
from kgdist.serve import explorer
from kgdist.serve.answering import Limits, as_json, facts_of, read, written
from kgdist.serve.gatherer import Gatherer
from kgdist.serve.live import Current
from kgdist.serve.lookup import Refused, complete, near
from kgdist.serve.openapi import description

Made = TypeVar("Made")
ASKED = ("/predict", "/similar", "/score", "/explain")
OPEN = ("/healthz", "/openapi.json", *explorer.PATHS)  # without a token: they say nothing of the run
ROOM = 1_000_000  # answers of all requests that are inside
PIECE = 1 << 16  # bytes of a long answer that are written at a time, as fast as the client takes them
LONG = 2000  # answers from which on the event loop does not write them itself
HINTS = 8  # unknown names that wait for others like them; more are refused without
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
AGAIN = {"retry-after": "1"}


class Json(Response):
    """An answer, handed out in pieces: memory is not the client's to fill."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(content, status, {"cache-control": "no-store", **(headers or {})})

    def render(self, content: Any) -> bytes:
        text = content if isinstance(content, str) else as_json(content)
        return text.encode("utf-8", "replace")  # a name of the client's may hold half of a surrogate pair

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = bytes(self.body)
        for start in range(0, max(1, len(body)), PIECE):
            more = start + PIECE < len(body)
            await send({"type": "http.response.body", "body": body[start : start + PIECE], "more_body": more})


class App:
    """The ASGI application. `token`: what clients must show, or None where only this machine can reach the server."""

    def __init__(self, current: Current, gatherer: Gatherer, options: ServeOptions, token: bytes | None) -> None:
        self.current, self.gatherer, self.options, self._token = current, gatherer, options, token
        self.limits = Limits(options.max_k, options.max_questions)
        self.inside = self.room = self.hints = 0
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.took: dict[str, list[float]] = {}  # path -> counts of requests by SECONDS, then all of them, then their seconds
        self._pool = ThreadPoolExecutor(2, "kgdist-serve-words")
        routes = [
            Route("/healthz", self._health),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
            Route("/entities", self._names),
            Route("/facts", self._facts),
            *(Route(path, _page) for path in explorer.PATHS),
            *(Route(path, self._ask, methods=["GET", "POST"]) for path in ASKED),
        ]
        self._paths = {route.path for route in routes}
        handlers: dict[Any, Any] = {HTTPException: _said, Refused: self._refused, Exception: _broken}
        self._routes = Starlette(routes=routes, exception_handlers=handlers)

    def close(self) -> None:
        """End the pool's threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began, path = time.monotonic(), scope["path"] if scope["path"] in self._paths else "other"
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            with _gone():
                await send(message)

        async def heard() -> Message:
            message: Message = {"type": "http.disconnect"}
            with _gone():
                message = await receive()
            return message

        scope["began"] = began
        self.inside += 1
        try:
            refusal = self._door(scope)
            await (refusal or self._routes)(scope, heard, watched)
        finally:
            self.inside -= 1
            self.room -= scope.get("room", 0)
            self.statuses[path, status] += 1
            self._count(path, time.monotonic() - began)

    # ---- who may come in

    def _door(self, scope: Scope) -> Response | None:
        """What is said to a request that is not even read."""
        headers = dict(scope["headers"])
        if self._token is None and not _is_local(headers.get(b"host", b"localhost")):
            # a page elsewhere whose name was made to lead to this machine
            what = "without --token_file the server answers as localhost alone; start it with one to reach it by other names"
            return Json({"error": what}, 403)
        if scope["path"] not in OPEN and not self._may(headers):
            what = "give the server's token: Authorization: Bearer TOKEN"
            return Json({"error": what}, 401, {"www-authenticate": "Bearer"})
        if self.inside > self.options.max_requests and scope["path"] not in ("/healthz", "/metrics"):
            what = f"{self.options.max_requests} requests are inside already (--max_requests); ask again"
            return Json({"error": what}, 503, AGAIN)
        return None

    def _may(self, headers: dict[bytes, bytes]) -> bool:
        if self._token is None:
            return True
        scheme, _, word = headers.get(b"authorization", b"").partition(b" ")
        return hmac.compare_digest(word.strip(), self._token) and scheme.lower() == b"bearer"

    # ---- questions

    async def _ask(self, request: Request) -> Response:
        until = request.scope["began"] + self.options.timeout
        body = await self._body(request, until)
        live = self.current.live
        questions, single = read(request.url.path, body, live, self.limits)
        wanted = sum(question.k for question in questions)
        if self.room + wanted > ROOM:
            return Json({"error": "too many answers are being made already; ask again"}, 503, AGAIN)
        request.scope["room"] = wanted
        self.room += wanted
        future = self.gatherer.ask(live, questions)
        try:
            found = await asyncio.wait_for(future, max(0.001, until - time.monotonic()))
        except (asyncio.TimeoutError, TimeoutError):
            late = f"not answered within {self.options.timeout:g} s (--timeout); ask for less, or again"
            return Json({"error": late}, 503, AGAIN)
        except KgdistError as error:
            return Json({"error": str(error)}, 422)
        except MemoryError:
            return Json({"error": "out of memory; ask for less, or again"}, 503, AGAIN)

        def write() -> str:
            results = written(live, questions, found)
            return results[0] if single else f'{{"results":[{",".join(results)}]}}'

        return Json(write() if wanted <= LONG else await self._apart(write))

    async def _body(self, request: Request, until: float) -> Any:
        """What is asked: the JSON of a POST, or the words of a GET or HEAD. Raises Refused."""
        if request.method in ("GET", "HEAD"):
            return {name: _word(name, value) for name, value in _words(request).items()}
        most = self.options.max_body * 1024
        large = Refused(413, f"the body is larger than {self.options.max_body} KiB (--max_body)")
        length = request.headers.get("content-length", "0")
        if int(length if length.isdecimal() else 0) > most and "expect" in request.headers:
            raise large
        try:
            raw = await asyncio.wait_for(_read(request, most), max(0.001, until - time.monotonic()))
        except (asyncio.TimeoutError, TimeoutError):
            raise Refused(408, f"the body did not come within {self.options.timeout:g} s (--timeout)") from None
        except ClientDisconnect:
            raise Refused(400, "the client has gone") from None
        if raw is None:
            raise large
        try:
            return json.loads(raw)
        except RecursionError:
            raise Refused(400, "the body is nested too deeply") from None
        except ValueError as error:  # of JSON, of UTF-8
            known = isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
            why = str(error)[:200] if known else "a number has thousands of digits"  # Python names a setting of its own
            raise Refused(400, f"the body is not JSON that can be read: {why}") from None

    async def _apart(self, work: Callable[[], Made]) -> Made:
        """Let the pool do it, while the event loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _names(self, request: Request) -> Response:
        words = _words(request)
        kind = words.get("kind", "entity")
        if kind not in ("entity", "relation"):
            raise Refused(400, f"kind must be entity or relation, not {kind!r:.60}")
        live, text, most = self.current.live, words.get("q", "")[:200], self._most(request, 10)
        return Json(await self._apart(lambda: complete(live, kind, text, most)))

    async def _facts(self, request: Request) -> Response:
        live, name, most = self.current.live, _words(request).get("entity"), self._most(request, 100)
        if name is None:
            raise Refused(400, "/facts takes the name of an entity: ?entity=NAME")
        return Json(await self._apart(lambda: facts_of(live, name, most)))

    def _most(self, request: Request, usual: int) -> int:
        return self.limits.checked(_word("k", request.query_params.get("k", str(min(usual, self.limits.k)))))

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        more: dict[str, Any] = {}
        if error.unknown is not None and self.hints < HINTS:
            live, unknown = self.current.live, error.unknown
            self.hints += 1
            try:
                more["near"] = await self._apart(lambda: near(live, *unknown))
            finally:
                self.hints -= 1
        headers = {"connection": "close"} if error.status in (408, 413) else {}
        return Json({"error": error.text, **more}, error.status, headers)

    # ---- besides

    async def _health(self, request: Request) -> Response:
        more: dict[str, Any] = {}
        if self._may(dict(request.scope["headers"])):
            live = self.current.live
            more = {
                "run": live.opened.run.path.name,
                "model": live.opened.config.model_name,
                "dataset": live.opened.config.dataset,
                "entities": len(live.entities),
                "relations": len(live.relations),
                "facts": live.known is not None,
                "calibrated": live.calibration is not None,
                "taken_over": self.current.taken_over,
                "max_k": self.options.max_k,
                "max_questions": self.options.max_questions,
            }
        return Json({"status": "ok", **more})

    async def _openapi(self, request: Request) -> Response:
        return Json(description(self.options))

    async def _metrics(self, request: Request) -> Response:
        lines = ["# HELP kgdist_requests_total Requests, by path and status.", "# TYPE kgdist_requests_total counter"]
        for (path, status), count in sorted(self.statuses.items()):
            lines.append(f'kgdist_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += ["# HELP kgdist_request_seconds Seconds from a request's head to the end of its answer."]
        lines += ["# TYPE kgdist_request_seconds histogram"]
        for path, counts in sorted(self.took.items()):
            for bound, below in zip([*map(str, SECONDS), "+Inf"], counts, strict=False):
                lines.append(f'kgdist_request_seconds_bucket{{path="{path}",le="{bound}"}} {below:.0f}')
            lines.append(f'kgdist_request_seconds_sum{{path="{path}"}} {counts[-1]:.6f}')
            lines.append(f'kgdist_request_seconds_count{{path="{path}"}} {counts[-2]:.0f}')
        single = {
            ("kgdist_requests_inside", "gauge", "Requests that are being answered."): self.inside,
            ("kgdist_requests_waiting", "gauge", "Requests whose questions wait for the next round."): self.gatherer.waiting(),
            ("kgdist_questions_total", "counter", "Questions that were answered."): self.gatherer.answered,
            ("kgdist_rounds_total", "counter", "Rounds in which they were answered together."): self.gatherer.rounds,
            ("kgdist_taken_over_total", "counter", "Times that the run's new files were taken over."): self.current.taken_over,
            ("kgdist_entities", "gauge", "Entities of the run."): len(self.current.live.entities),
        }
        for (name, kind, text), value in single.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    def _count(self, path: str, seconds: float) -> None:
        counts = self.took.setdefault(path, [0.0] * (len(SECONDS) + 2))
        for place, bound in enumerate(SECONDS):
            counts[place] += seconds <= bound
        counts[-2] += 1
        counts[-1] += seconds


async def _read(request: Request, most: int) -> bytes | None:
    """The body; None where it is larger than `most` bytes. Then it is read on, as far as 16 times as much: whoever is still
    sending when the connection closes does not see the answer."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size <= most:
            pieces.append(piece)
        elif size > 16 * most:
            break
    return b"".join(pieces) if size <= most else None


async def _page(request: Request) -> Response:
    path = request.url.path
    return Response(explorer.content(path), headers=explorer.HEADERS, media_type=explorer.PATHS[path])


async def _said(request: Request, error: Exception) -> Response:
    """Of Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    return Json(
        {"error": f"{request.method} {request.url.path[:100]}: {error.detail}"}, error.status_code, dict(error.headers or {})
    )


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    """Pass over what uvloop says of a connection that its client has reset while requests waited in it: no fault of ours."""
    try:
        yield
    except RuntimeError as error:
        if "handler is closed" not in str(error):
            raise


async def _broken(request: Request, error: Exception) -> Response:
    """A fault of ours: its traceback is logged."""
    log.error("%s %s failed: %r", request.method, request.url.path, error)
    logging.getLogger("kgdist").debug("where it failed", exc_info=error)
    return Json({"error": "a fault of the server; its log says more"}, 500)


def _words(request: Request) -> dict[str, str]:
    """The words of an address. Raises Refused for one that is there twice."""
    given = request.query_params.multi_items()
    if twice := [name for name, count in Counter(name for name, _ in given).items() if count > 1]:
        raise Refused(400, f"{shown(twice[0])} is given more than once")
    return dict(given)


def _word(name: str, value: str) -> Any:
    """A word of an address as JSON would have it."""
    if name == "k":
        return int(value) if re.fullmatch("-?[0-9]{1,18}", value) else value
    return {"true": True, "false": False}.get(value, value) if name in ("exclude_known", "map") else value


def _is_local(host: bytes) -> bool:
    name = host.rpartition(b":")[0] if re.search(rb":[0-9]*$", host) else host
    return name.lower() in (b"localhost", b"[::1]") or re.fullmatch(rb"127(\.[0-9]{1,3}){3}", name) is not None
