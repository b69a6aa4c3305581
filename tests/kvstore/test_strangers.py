"""Other users of this machine: between processes of one user nobody else learns, changes or breaks anything."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import zmq
from zmq.utils import garbage

from kgdist.base.errors import KgdistError, UsageError
from kgdist.kvstore.places import port_holder, user_name
from kgdist.kvstore.server import GARBAGE, REFUSED
from kgdist.kvstore.wire import Transport
from tests.kvstore.servers import Store, push, store
from tests.patience import patience

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract names of Unix-domain sockets are Linux's")
NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def running() -> Iterator[Store]:
    with store(optimizer="sgd", user=True) as made:
        yield made


def as_nobody(work: str, **given: Any) -> Any:
    """Run these lines, which set `found`, as another user, in a process without anything of ours: what they found."""
    child = "import json, os, socket, sys\nos.setuid(%d)\ngiven = json.loads(sys.argv[1])\n%s\nprint(json.dumps(found))"
    command = [sys.executable, "-I", "-c", child % (NOBODY, work), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CONNECT = """
def reach(name):
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect("\\0" + name)
    return peer
"""

ASK = f"""{CONNECT}
found = []
for name in given["names"]:
    peer = reach(name)
    try:
        peer.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00NULL" + bytes(48))
        found.append(peer.recv(4096).hex())
    except ConnectionError:
        found.append("")
"""

FLOOD = f"""{CONNECT}
found = 0
for _ in range(given["times"]):
    peer = reach(given["name"])
    try:
        for _ in range(50):
            peer.sendall(bytes.fromhex(given["bytes"]))
    except OSError:
        found += 1
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    peer.close()
"""

SQUAT = """
squatter = socket.socket(socket.AF_UNIX)
squatter.bind("\\0" + given["name"])
squatter.listen()
print("ready", flush=True)
squatter.settimeout(given["patience"])
peer, _ = squatter.accept()
peer.settimeout(given["patience"])
found = 0
try:
    peer.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00NULL" + bytes(48))
    while came := len(peer.recv(4096)):  # who goes before the client has looked is not seen, and told no more than a greeting
        found += came
except ConnectionError:
    pass  # the client was quicker
"""


@AS_ROOT
def test_another_user_is_told_nothing(running: Store) -> None:
    """Not even that ZMTP is spoken here: each connection ends before a byte has come."""
    names = [user_name(*endpoint) for endpoint in running.endpoints]
    assert as_nobody(ASK, names=names) == ["", "", ""]
    push(tables := running.client(), "entity", torch.arange(12), torch.ones(12, 4), -1.0)
    tables.flush()
    assert (running.whole("entity") == 1).all() and not running.counted(GARBAGE) + running.counted(REFUSED)


@AS_ROOT
def test_another_users_floods_and_resets_reach_no_line_of_libzmq(running: Store) -> None:
    """They would end the process at an assertion of its stream engine, if they could get there."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    flood = (greeting + b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER" + b"\x00\x05kgdsX" * 2000).hex()
    given: dict[str, Any] = {"name": user_name(*running.endpoints[0]), "bytes": flood}
    assert as_nobody(FLOOD, times=500, **given) > 400
    push(tables := running.client(), "entity", torch.arange(12), torch.ones(12, 4), -1.0)
    tables.flush()
    assert (running.whole("entity") == 1).all() and not running.counted(GARBAGE)


@AS_ROOT
def test_a_client_says_nothing_to_another_users_server() -> None:
    transport = Transport(None, 3.0, user=True)
    held = transport.server("127.0.0.1", 0)
    port = int(held.socket.get(zmq.LAST_ENDPOINT).rpartition(b":")[2])
    held.close()
    child = "import json, os, socket, sys\nos.setuid(%d)\ngiven = json.loads(sys.argv[1])\n%s\nprint(found)"
    given = {"name": user_name("127.0.0.1", port), "patience": patience(30)}
    command = [sys.executable, "-I", "-c", child % (NOBODY, SQUAT), json.dumps(given)]
    squatter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert squatter.stdout is not None and squatter.stdout.readline() == "ready\n"
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} is in use \\(pid {squatter.pid}\\)"):
            transport.server("127.0.0.1", port)
        wire = transport.client("127.0.0.1", port)
        with pytest.raises(KgdistError, match=f"127.0.0.1:{port}: a process of another user listens there"):
            for _ in range(300):
                wire.monitor.poll(100)
                list(wire.events())
        wire.close()
        assert int(squatter.communicate(timeout=patience(30))[0]) <= 128, "more than a greeting and the kind of socket"
    finally:
        squatter.kill()
        squatter.communicate(timeout=patience(10))
        transport.close()
        garbage.gc.stop()


def test_a_server_holds_its_port_and_says_whose_it_is(running: Store) -> None:
    host, port = running.endpoints[0]
    assert port_holder(host, port) == os.getpid()
    with pytest.raises(UsageError, match=f"127.0.0.1:{port} is in use \\(pid {os.getpid()}\\)"):
        running.transport().server(host, port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port), timeout=patience(5))
