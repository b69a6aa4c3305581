"""The processes of test_ledger: `python -m tests.faults.store_roles`, the job as a line of JSON on stdin, facts on stdout.

A server serves until its stdin ends, and says for each line, and in the end, what it has applied. A trainer pushes +1 to
rows that follow from its client number, its incarnation and the step, and says after each step what has been confirmed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import numpy as np
import torch
import zmq

from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.connection import name_of
from kgdist.kvstore.identity import Identity
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.server import Server
from kgdist.kvstore.tables import MemoryTables, Update
from kgdist.kvstore.wire import Keys, Transport


def identity(attempt: int) -> Identity:
    return Identity("1", "ledger", attempt, "config", "graph")


def rows_of(client: int, incarnation: int, step: int, rows: int) -> np.ndarray:
    """int64[.], different rows, ascending, of one push of a trainer."""
    random = np.random.default_rng([client, incarnation, step])
    return np.flatnonzero(random.random(rows) < 0.3)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def server(job: dict[str, Any]) -> None:
    transport = Transport(Keys.from_json(job["keys"]) if job["keys"] else None, job["timeout"])
    wire = transport.server(*job.get("at", ("127.0.0.1", 0)), name_of(job["number"]))
    tables = MemoryTables.attach(job["handles"], "sgd")
    made = Server(job["number"], Layout.from_json(job["layout"]), tables, identity(job["attempt"]), wire, transport=transport)
    made.applied.load(job["state"])
    ended = threading.Event()

    def obey() -> None:
        for _ in sys.stdin:
            say(state=made.applied.state())
        ended.set()

    threading.Thread(target=obey, daemon=True).start()
    say(port=int(wire.socket.get(zmq.LAST_ENDPOINT).rpartition(b":")[2]))
    made.serve(ended.is_set)
    say(state=made.applied.state(), counters=made.counters.tolist())


def trainer(job: dict[str, Any]) -> None:
    layout = Layout.from_json(job["layout"])
    transport = Transport(Keys.from_json(job["keys"]) if job["keys"] else None, job["timeout"])
    local = MemoryTables.attach(job["handles"], "sgd") if job["handles"] else None
    client, incarnation = job["client"], job["incarnation"]
    tables = StoreTables(
        layout, [tuple(end) for end in job["ends"]], transport, identity(job["attempt"]), client=client, incarnation=incarnation,
        machine=job["machine"], local=local, max_inflight=job["window"], pull_ahead=job["together"], peer_timeout=job["timeout"],
    )  # fmt: skip
    for step in range(job["steps"]):
        ids = torch.from_numpy(rows_of(client, incarnation, step, layout.rows("entity")))
        if step % job["together"] == 0:  # with which the pushes go that were made since the last time
            coming = range(step, step + job["together"])
            tables.ahead(*({"entity": rows_of(client, incarnation, each, layout.rows("entity"))} for each in coming))
        tables.push({"entity": Update(ids.numpy(), torch.ones(len(ids), layout.widths["entity"]))}, -1.0)
        tables.pull("entity", ids)
        say(acked={number: found.acked for number, found in tables._connections.of.items()})
    tables.flush()
    say(done={number: found.acked for number, found in tables._connections.of.items()})
    tables.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = json.loads(sys.stdin.readline())
    {"server": server, "trainer": trainer}[given["role"]](given)
    os._exit(0)
