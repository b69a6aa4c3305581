"""Keys, and the limits that every socket has."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils import garbage

from kgdist.base.errors import UsageError
from kgdist.kvstore.places import OUTGOING, hold, in_use, port_holder
from kgdist.kvstore.wire import CURVE, FRAME_BYTES, NONE, USER, Keys, Transport, secured
from tests.patience import patience


@pytest.fixture
def transport() -> Iterator[Transport]:
    made = Transport(Keys.make(), 1.5)
    yield made
    made.close()


def test_keys_travel_as_data_and_do_not_show() -> None:
    keys = Keys.make()
    keys = keys.knowing({"[::1]:9": Keys.make().public})
    assert Keys.from_json(json.loads(json.dumps(keys.to_json()))) == keys != Keys.make()
    assert keys.secret not in repr(keys)


def test_machines_with_a_pair_each_hear_each_other_and_no_stranger() -> None:
    one, other, stranger = Keys.make(), Keys.make(), Keys.make()
    serving = Transport(one.knowing({"192.0.2.1:9": other.public}), 1.5)
    wire = serving.server("127.0.0.1", 0)
    port = int(wire.socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2].rstrip("\0"))
    callers = [Transport(keys.knowing({f"127.0.0.1:{port}": one.public}), 1.5) for keys in (other, stranger)]
    wires = [caller.client("127.0.0.1", port) for caller in callers]
    try:
        heard: list[bytes] = []
        deadline = time.monotonic() + patience(20)
        while time.monotonic() < deadline and not (heard and serving.strangers):
            for word, caller in zip((b"one of us", b"a stranger"), wires, strict=True):
                caller.send([word])
            if (frames := wire.receive()) is not None:
                heard.append(bytes(frames[1]))
            time.sleep(0.01)
        assert set(heard) == {b"one of us"} and serving.strangers
    finally:
        for each in (serving, *callers):
            each.close()


@pytest.mark.parametrize(
    ("choice", "hosts", "wanted"),
    [
        ("auto", ["127.0.0.1", "localhost", "127.1.2.3"], USER),
        ("auto", ["127.0.0.1", "10.0.0.1"], CURVE),
        ("auto", ["::1"], USER),
        ("auto", ["2001:db8::1"], CURVE),
        ("auto", ["127.0.0.1", ""], CURVE),  # not known yet
        ("curve", ["127.0.0.1"], CURVE),
        ("none", ["10.0.0.1"], NONE),
    ],
)
def test_strangers_are_kept_out_unless_they_are_asked_in(choice: str, hosts: list[str], wanted: str) -> None:
    assert secured(choice, hosts) == (CURVE if wanted == USER and sys.platform != "linux" else wanted)


def test_a_name_that_nobody_knows_is_named() -> None:
    for host in ("no-such-host.invalid", "", "a" * 300, "two words"):
        if host:
            with pytest.raises(UsageError, match="no address of that name"):
                secured("auto", [host])


@pytest.mark.parametrize(("here", "there", "size"), [("127.0.0.1", "127.0.0.2", 1 << 19), ("0.0.0.0", "192.0.2.1", 4 << 20)])
def test_every_socket_has_its_limits(transport: Transport, here: str, there: str, size: int) -> None:
    router = transport.router(1)
    transport.connect(router, there, 9)
    wires = [transport.server(here, 0), transport.client(there, 9), router]
    expected = {
        **{zmq.LINGER: 0, zmq.IMMEDIATE: 1, zmq.SNDTIMEO: 500, zmq.RCVTIMEO: 500, zmq.HEARTBEAT_IVL: 500},
        **{zmq.HEARTBEAT_TIMEOUT: 1500, zmq.HANDSHAKE_IVL: 500, zmq.MAXMSGSIZE: FRAME_BYTES},
        **{zmq.SNDBUF: size, zmq.RCVBUF: size, zmq.IPV6: 0, zmq.MECHANISM: zmq.CURVE},
    }
    for wire, waiting in zip(wires, (16, 256, 256), strict=True):
        assert {option: wire.socket.get(option) for option in expected} == expected
        assert wire.socket.get(zmq.SNDHWM) == wire.socket.get(zmq.RCVHWM) == waiting
    assert wires[0].socket.get(zmq.ZAP_DOMAIN) in (b"kgdist", "kgdist") and wires[0].socket.get(zmq.CURVE_SERVER)


def test_the_port_in_use_is_named_with_its_owner(transport: Transport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            transport.server("127.0.0.1", port)
        pid = f" (pid {os.getpid()})" if Path("/proc/net/tcp").exists() else ""
        assert str(caught.value).startswith(f"127.0.0.1:{port} is in use{pid}")
    assert transport.server("127.0.0.1", port)  # nothing of the first try is left


def test_a_port_that_an_outgoing_connection_has_is_told_as_that(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as outgoing:
        port = outgoing.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            hold("127.0.0.1", port)
        assert str(caught.value) == f"127.0.0.1:{port} {in_use('127.0.0.1', port)}" and "(pid" not in str(caught.value)
    nobody = "is in use, perhaps by an outgoing connection; a port below 32768 never is"
    assert in_use("127.0.0.1", OUTGOING, tmp_path) == nobody
    assert in_use("127.0.0.1", OUTGOING - 1, tmp_path) == "is in use"


def test_the_holder_of_a_free_port_is_nobody(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert port_holder("127.0.0.1", port) is None
    assert port_holder("127.0.0.1", 80, tmp_path) is None


NOBODY, V4, V6, V4_IN_V6, ANY4, ANY6 = "10.0.0.9", "127.0.0.2", "fe80::1", "::ffff:127.0.0.2", "0.0.0.0", "::"
HOLDERS = [  # wanted, who listens on that port, and whose socket it is
    (V4, ["127.0.0.1", V4], V4),
    (V4, ["127.0.0.1"], None),
    (V4, [V4_IN_V6, "127.0.0.1"], V4_IN_V6),
    (V4_IN_V6, [V4], V4),
    (V4, [ANY4], ANY4),
    (V4, [ANY6, "127.0.0.1"], ANY6),
    (V4, [ANY6, ANY4], ANY4),
    (V4, [ANY4, V4], V4),
    (V6, [ANY4], None),
    (V6, [ANY4, ANY6], ANY6),
    (V6 + "%eth0", [V6, "fe80::2"], V6),
    (ANY4, [V6, V4], V4),
    (ANY6, [V4], V4),
    (NOBODY, [V4, V6], None),
]


@pytest.mark.parametrize(("wanted", "listening", "holder"), HOLDERS)
def test_the_holder_of_a_port_is_the_one_of_that_address(
    wanted: str, listening: list[str], holder: str | None, tmp_path: Path
) -> None:
    """A table as the system writes it, with process n holding the n-th socket."""
    heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    tables = {4: heading, 6: heading}
    for number, text in enumerate(listening, 1):
        address = ipaddress.ip_address(text)
        words = [int.from_bytes(address.packed[at : at + 4], sys.byteorder) for at in range(0, len(address.packed), 4)]
        place = "".join(f"{word:08X}" for word in words)
        tables[address.version] += f"   0: {place}:7562 {'0' * len(place)}:0000 0A 0:0 0:0 0 0 0 {700 + number} 1 0\n"
        tables[address.version] += f"   1: {place}:7562 {place}:1234 01 0:0 0:0 0 0 0 {900 + number} 1 0\n"  # no listener
        (tmp_path / str(number) / "fd").mkdir(parents=True)
        (tmp_path / str(number) / "fd" / "3").symlink_to(f"socket:[{700 + number}]")
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(tables[4])
    (tmp_path / "net" / "tcp6").write_text(tables[6])
    assert port_holder(wanted, 0x7562, tmp_path) == (None if holder is None else 1 + listening.index(holder))
    assert port_holder(wanted, 0x7563, tmp_path) is None


def test_a_neighbour_with_the_same_port_is_not_taken_for_its_holder(transport: Transport) -> None:
    """The process of 127.0.0.2 is another one, and lives to see that it is named."""
    listen = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", listen], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        assert port_holder("127.0.0.1", port) == other.pid
        with socket.create_server(("127.0.0.2", port)):
            assert port_holder("127.0.0.2", port) == os.getpid()
        assert port_holder("127.0.0.2", port) is None
        assert other.stdin is not None
        other.stdin.close()
        other.wait(timeout=patience(30))


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
