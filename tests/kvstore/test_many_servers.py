"""A client has one socket for all servers: a thousand of them are no limit, nor is the usual number of open files."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import zmq
from zmq.utils import garbage

from kgdist.kvstore.connection import name_of
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.places import SPARE
from kgdist.kvstore.server import Server
from kgdist.kvstore.tables import MemoryTables
from kgdist.kvstore.wire import Transport
from tests.kvstore.servers import HOST, IDENTITY
from tests.patience import patience

SERVERS, TOGETHER = 1100, 300  # of a context of libzmq, which has 1,023 sockets, three for each
ROOT = Path(__file__).resolve().parents[2]

CLIENT = """
import json, os, resource, sys
import numpy as np, torch
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.wire import Transport
from kgdist.kvstore.tables import Update
from tests.kvstore.servers import IDENTITY
job = json.loads(sys.stdin.readline())
layout, transport = Layout.from_json(job["layout"]), Transport(None, 60.0)
tables = StoreTables(layout, job["places"], transport, IDENTITY, client=0, peer_timeout=60.0, connect_timeout=120.0)
ids = np.arange(layout.rows("entity"))
tables.ahead({"entity": ids})
rows = tables.pull("entity", torch.from_numpy(ids))
tables.push({"entity": Update(ids, torch.ones(len(ids), 2))}, -1.0)
tables.flush()
print(json.dumps({"sum": float(rows.sum()), "files": len(os.listdir("/proc/self/fd"))}), flush=True)
tables.close()
transport.close()
"""


@pytest.mark.slow
def test_over_a_thousand_servers_with_1024_open_files_to_begin_with() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8 * SERVERS:
        pytest.skip("this system allows too few open files for so many servers")
    layout = Layout.build({"entity": 2}, {"entity": np.array([0, 3 * SERVERS])}, [SERVERS], by_owner=True)
    tables = MemoryTables.create({"entity": (3 * SERVERS, 2)}, "sgd")
    tables.rows["entity"].fill_(0.5)
    transports, servers, places, poller, ending = [], {}, [], zmq.Poller(), threading.Event()
    try:
        for number in range(SERVERS):
            if number % TOGETHER == 0:
                transports.append(Transport(None, 60.0))
            wire = transports[-1].server(HOST, 0, name_of(number))
            places.append((HOST, int(wire.socket.get(zmq.LAST_ENDPOINT).rpartition(b":")[2])))
            servers[wire.socket] = Server(number, layout, tables, IDENTITY, wire)
            poller.register(wire.socket, zmq.POLLIN)

        def serve() -> None:
            while not ending.is_set():
                for ready, _ in poller.poll(100):
                    servers[ready].step(0)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            job = json.dumps({"layout": layout.to_json(), "places": places}) + "\n"
            command = [sys.executable, "-c", CLIENT]
            done = subprocess.run(command, input=job, capture_output=True, text=True, cwd=ROOT, timeout=patience(120))
        finally:
            ending.set()
            thread.join(timeout=10)
    finally:
        for transport in transports:
            transport.close()
        garbage.gc.stop()
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["sum"] == 3 * SERVERS * 2 * 0.5 and torch.all(tables.rows["entity"] == 1.5)
    assert SERVERS < said["files"] < SERVERS + SPARE  # one for each connection
