"""A tiny run, and a real server of it on a real port, in a thread of this process."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgdist.cli import train as train_command
from kgdist.options.tools import ServeOptions
from kgdist.serve.answering import ready
from kgdist.serve.app import App
from kgdist.serve.gatherer import Gatherer
from kgdist.serve.listener import Server, bind, more_connections, server_of
from kgdist.serve.live import Current, Live, open_live
from tests.cli.graphs import FILES, SMALL, random_splits, write
from tests.patience import patience

PATIENCE = patience(30.0)
TOKEN = "correct-horse-battery-staple"


def graph(folder: Path) -> None:
    """Write a random graph of 30 entities."""
    for name, split in zip(FILES, random_splits(), strict=True):
        write(folder / name, split)


def trained(folder: Path, *words: str, graph: Callable[[Path], None] = graph) -> Path:
    """A run of DistMult on `graph`, whose data lie beside it."""
    graph(folder / "data")
    source = ["--data_path", str(folder / "data"), "--dataset", "toy", "--format", "raw_udd_hrt", "--data_files", *FILES]
    before = set(folder.glob("ckpts/*"))
    own = ["--model_name", "DistMult", "--quiet", *words]
    assert train_command.main([*source, "--save_path", str(folder / "ckpts"), *SMALL, *own]) == 0
    (made,) = set(folder.glob("ckpts/*")) - before
    return made


@dataclass
class Served:
    """A server that answers on `port`."""

    port: int
    app: App
    current: Current
    gatherer: Gatherer
    server: Server

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """(status, answer): a GET, or a POST of `body` (JSON, or bytes as they are)."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET" if data is None else "POST", path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
            is_json = answer.headers["content-type"] == "application/json"
            return answer.status, json.loads(text) if is_json else text.decode()

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)


@contextlib.contextmanager
def served(run: Path, token: bytes | None = None, **options: Any) -> Iterator[Served]:
    """Serve `run` meanwhile."""
    chosen = ServeOptions(model_path=str(run), port=0, num_thread=1, **{"batch_wait": 0.5, "reload": 0.05, **options})

    def opened(before: Live | None = None) -> Live:
        return ready(open_live(run, None, 1, before))

    bound = bind("127.0.0.1", 0)
    more_connections()
    current, gatherer = Current(run, opened(), opened, chosen.reload), Gatherer(chosen.batch_wait / 1000)
    app = App(current, gatherer, chosen, token)
    server = server_of(app, chosen)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    gatherer.start()
    current.start()
    port = bound.getsockname()[1]
    thread.start()
    try:
        until(lambda: server.started)
        list(app._pool.map(lambda _: time.sleep(0.05), range(2)))  # its threads are there before any test looks
        list(gatherer._pool.map(lambda _: time.sleep(0.05), range(1)))
        yield Served(port, app, current, gatherer, server)
    finally:
        server.should_exit = True
        thread.join(timeout=PATIENCE)
        current.close()
        gatherer.close()
        app.close()
        assert not thread.is_alive()


def until(so: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
