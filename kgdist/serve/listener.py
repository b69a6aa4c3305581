"""The socket, and how long a connection may take: uvicorn, with deadlines for slow clients, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kgdist.base.errors import OptionError
from kgdist.options.tools import ServeOptions

BACKLOG = 2048  # connections that the system keeps until they are taken
HEAD = 1 << 16  # bytes of a request before its body
GRACE = 2.0  # seconds beside --timeout that a connection has for an answer to be said and read
LATE = b'{"error":"the request did not come in time (--timeout)"}'
LARGE = b'{"error":"the head of the request is too large"}'


def bind(host: str, port: int) -> socket.socket:
    """A socket of this address, on which nobody is heard yet. Raises OptionError where it is taken, or not of this machine."""
    try:
        ((family, _, _, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OptionError("--host", f"{host} is not an address ({getattr(error, 'strerror', None) or error})") from error
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(1)  # another that has bound it is noticed only here
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise OptionError("--port", f"{port} is in use on {host}; name another one, or 0 for any that is free") from error
        option = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
        raise OptionError(option, f"{host}:{port} cannot be listened on ({error.strerror or error})") from error
    return made


def more_connections() -> None:
    """Let this process have as many open files as the system allows it: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))


class _Connection(HttpToolsProtocol):
    """A connection whose request has `patience` seconds from its first byte, or from the connection's beginning, until the answer
    is read. App has deadlines of its own for bodies and answers, and says so; this one is for heads that do not end and for
    clients that do not read."""

    patience = 10.0

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._late: asyncio.TimerHandle | None = None
        self._head: int | None = None  # bytes so far of a head that has not ended

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head = 0
        self._hurry()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._late is None:
            self._hurry()
        super().data_received(data)
        if self._head is not None and not self.transport.is_closing():
            self._head += len(data)
            if self._head > HEAD:
                self._say(b"431 Request Header Fields Too Large", LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._rest()
        super().on_response_complete()
        if self.pipeline or self.transport.is_closing():
            self._hurry()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # it reads no more
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def _hurry(self) -> None:
        self._rest()
        self._late = self.loop.call_later(self.patience, self._too_late)

    def _rest(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        if self.transport.is_closing() or self._head is None:
            self.transport.abort()
        elif self._head:
            self._say(b"408 Request Timeout", LATE)
        else:
            self.transport.close()

    def _say(self, status: bytes, text: bytes) -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(text)) + text)
        self.transport.close()
        self._hurry()


class Server(uvicorn.Server):
    """uvicorn's server: SIGTERM and Ctrl-C end it when all that are inside have their answers. `signals`: which have come."""

    @property
    def signals(self) -> list[int]:
        """In the order in which they came."""
        return self._captured_signals

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the signal is not raised again: what it asks for has been done."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def server_of(app: Any, options: ServeOptions) -> Server:
    """The server that hands requests to the ASGI application `app`; `run(sockets=[bound])` returns when it was asked to end."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what clients do wrong is theirs, and counted in /metrics
    logging.getLogger("uvicorn.error").propagate = options.debug
    patience = options.timeout + GRACE
    config = uvicorn.Config(
        app,
        http=type("Connection", (_Connection,), {"patience": patience}),
        loop="auto",  # uvloop where it is installed: half as many CPU seconds a request
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=max(5, int(options.timeout)),
        timeout_graceful_shutdown=int(patience) + 1,
    )
    return Server(config)
