"""Keys, and the limits that every socket has."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils import garbage

from kgdist.errors import UsageError
from kgdist.kvstore.security import Keys, Transport, curve_wanted, port_holder


@pytest.fixture
def transport() -> Iterator[Transport]:
    made = Transport(Keys.make(), 1.5)
    yield made
    made.close()


def test_keys_travel_as_data_and_do_not_show() -> None:
    keys = Keys.make()
    assert Keys.from_json(json.loads(json.dumps(keys.to_json()))) == keys != Keys.make()
    assert keys.server_secret not in repr(keys) and keys.client_secret not in repr(keys)


@pytest.mark.parametrize(
    ("choice", "hosts", "wanted"),
    [
        ("auto", ["127.0.0.1", "localhost", "127.1.2.3"], False),
        ("auto", ["127.0.0.1", "10.0.0.1"], True),
        ("auto", ["::1"], False),
        ("auto", ["2001:db8::1"], True),
        ("curve", ["127.0.0.1"], True),
        ("none", ["10.0.0.1"], False),
    ],
)
def test_encryption_is_on_unless_all_is_loopback(choice: str, hosts: list[str], wanted: bool) -> None:
    assert curve_wanted(choice, hosts) is wanted


def test_a_name_that_nobody_knows_is_named() -> None:
    for host in ("no-such-host.invalid", "", "a" * 300, "two words"):
        if host:
            with pytest.raises(UsageError, match="no address of that name"):
                curve_wanted("auto", [host])


@pytest.mark.parametrize(("here", "there", "size"), [("127.0.0.1", "127.0.0.2", 1 << 19), ("0.0.0.0", "192.0.2.1", 4 << 20)])
def test_every_socket_has_its_limits(transport: Transport, here: str, there: str, size: int) -> None:
    wires = [transport.server(here, 0), transport.client(there, 9)]
    expected = {
        **{zmq.LINGER: 0, zmq.IMMEDIATE: 1, zmq.SNDTIMEO: 500, zmq.RCVTIMEO: 500, zmq.HEARTBEAT_IVL: 500},
        **{zmq.HEARTBEAT_TIMEOUT: 1500, zmq.HANDSHAKE_IVL: 500, zmq.MAXMSGSIZE: 64 << 20, zmq.SNDHWM: 256, zmq.RCVHWM: 256},
        **{zmq.SNDBUF: size, zmq.RCVBUF: size, zmq.IPV6: 0, zmq.MECHANISM: zmq.CURVE},
    }
    for wire in wires:
        assert {option: wire.socket.get(option) for option in expected} == expected
    assert wires[0].socket.get(zmq.ZAP_DOMAIN) in (b"kgdist", "kgdist") and wires[0].socket.get(zmq.CURVE_SERVER)


def test_the_port_in_use_is_named_with_its_owner(transport: Transport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            transport.server("127.0.0.1", port)
        pid = f" (pid {os.getpid()})" if Path("/proc/net/tcp").exists() else ""
        assert str(caught.value) == f"127.0.0.1:{port} is in use{pid}"
    assert transport.server("127.0.0.1", port)  # nothing of the first try is left


def test_the_holder_of_a_free_port_is_nobody(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert port_holder(port) is None
    assert port_holder(80, tmp_path) is None


def test_an_address_of_another_machine_is_refused(transport: Transport) -> None:
    with pytest.raises(UsageError, match=r"192.0.2.1:30050 cannot be listened on"):
        transport.server("192.0.2.1", 30050)


def test_ipv6(transport: Transport) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    end = transport.server("::1", 0).socket.get(zmq.LAST_ENDPOINT)
    assert b"[::1]" in end
    assert transport.client("::1", 9).socket.get(zmq.IPV6) == 1


def test_closing_waits_for_nothing() -> None:
    transport = Transport(None, 1.5)
    wire = transport.client("127.0.0.1", 9)
    assert wire.send([b"x" * 100_000]) is None  # nobody is there, and nothing piles up
    transport.close()
    transport.close()
    garbage.gc.stop()
