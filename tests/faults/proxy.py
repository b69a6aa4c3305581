"""A TCP proxy that behaves like a bad network: delay, jitter, cut connections, silence, resets, half-open connections.

It runs in a thread with its own event loop and needs no rights. What it does can be changed while connections are open; byte
counts at which a connection is cut come from a seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable

PIECE = 1 << 16


class Proxy:
    """Forwards connections to its own port to `target`; ends with the `with`.

    Attributes:
        delay, jitter: seconds that each piece of data is late, and up to how many more.
        cut_after: (least, most) bytes after which a connection is reset, anew for each; None: never.
        connections: how many there have been.
    """

    def __init__(self, target: tuple[str, int], *, seed: int = 0) -> None:
        self.target = target
        self.delay = self.jitter = 0.0
        self.cut_after: tuple[int, int] | None = None
        self.connections = 0
        self._chance = random.Random(seed)
        self._silent = False
        self._deaf = False
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._run, name="proxy")

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._loop.stop)
        self._thread.join(timeout=10)

    def stall(self) -> None:
        """Be silent: connections stay, nothing is forwarded or lost, new ones are not answered. A black hole, until `resume`."""
        self._silent = True

    def half_open(self) -> None:
        """Forward what clients say, and drop what servers answer, until `resume`."""
        self._deaf = True

    def resume(self) -> None:
        """Be a good network again."""
        self._silent = self._deaf = False

    def reset(self) -> None:
        """Cut all connections now, with RST as a crashed machine does."""
        self._call(self._reset)

    def _call(self, function: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(function)

    def _reset(self) -> None:
        for writer in list(self._open):
            _abort(writer)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._connect, sock=self._listener))
        self._loop.run_forever()
        self._reset()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._listener.close()
        self._loop.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        left = [self._chance.randint(*self.cut_after) if self.cut_after else -1]
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            self._open |= {writer, far_writer}
            await asyncio.gather(self._carry(reader, far_writer, left), self._carry(far_reader, writer, left, answers=True))
            _abort(far_writer)
            self._open -= {writer, far_writer}
        _abort(writer)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int], *, answers: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                if self.delay or self.jitter:
                    await asyncio.sleep(self.delay + self.jitter * self._chance.random())
                while self._silent:
                    await asyncio.sleep(0.01)
                if answers and self._deaf:
                    continue
                if left[0] >= 0:
                    writer.write(data[: left[0]])
                    left[0] -= len(data)
                    if left[0] <= 0:
                        break
                else:
                    writer.write(data)
                await writer.drain()
        _abort(writer)


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close with RST."""
    found = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
