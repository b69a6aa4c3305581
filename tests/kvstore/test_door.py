"""What a connection may cost before anybody has vouched for it, and what a message that never ends."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from kgdist.kvstore import door as door_module
from kgdist.kvstore.door import STRANGER_BYTES, STRANGERS, Door, received
from kgdist.kvstore.messages import PIECE_BYTES, Kind, Message, pack
from kgdist.kvstore.server import GARBAGE, PUSHED, TURNS
from kgdist.kvstore.wire import Keys
from tests.kvstore.servers import IDENTITY, Store, eventually, push, store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell how much has come")
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
CLOSE_WAIT = 8  # a state of TCP: the other side has ended the connection
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"


class Pair:
    """A connection, of which the test plays the outer end, and a Door has the inner one."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.outer = socket.create_connection(listener.getsockname(), timeout=30)
            self.inner, _ = listener.accept()
        self.sent = 0

    def send(self, size: int) -> None:
        """It has arrived when this returns; nobody reads it."""
        drain = threading.Thread(target=self._drain, args=(size,))
        drain.start()
        self.outer.sendall(bytes(size))
        drain.join(timeout=30)
        self.sent += size

    def _drain(self, size: int) -> None:
        while size:
            size -= len(self.inner.recv(min(size, 1 << 20)))

    def is_open(self) -> bool:
        self.outer.setblocking(False)
        try:
            return self.outer.recv(1) != b""
        except BlockingIOError:
            return True
        finally:
            self.outer.settimeout(30)

    def close(self) -> None:
        self.outer.close()
        self.inner.close()


@pytest.fixture
def pairs() -> Iterator[Callable[[], Pair]]:
    made: list[Pair] = []

    def make() -> Pair:
        made.append(Pair())
        return made[-1]

    yield make
    for pair in made:
        pair.close()


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    """One that looks whenever it is asked to."""
    made = Door()
    look = made.look

    def at_once(*, drained: bool) -> None:
        made._next_strange = made._next_own = 0.0
        look(drained=drained)

    monkeypatch.setattr(made, "look", at_once)
    return made


def test_a_stranger_has_so_many_bytes_and_one_of_ours_as_many_as_it_likes(door: Door, pairs: Callable[[], Pair]) -> None:
    stranger, ours = pairs(), pairs()
    for pair in (stranger, ours):
        door.opened(pair.inner.fileno())
        pair.send(STRANGER_BYTES)
    assert received(ours.inner.fileno()) == STRANGER_BYTES
    door.look(drained=True)
    assert stranger.is_open() and ours.is_open() and door.waiting
    door.vouch(ours.inner.fileno(), b"ours")
    for pair in (stranger, ours):
        pair.send(1)
    door.look(drained=True)
    assert not stranger.is_open() and ours.is_open() and door.shut == 1 and not door.waiting


def test_the_oldest_of_too_many_strangers_goes(monkeypatch: pytest.MonkeyPatch, door: Door, pairs: Callable[[], Pair]) -> None:
    monkeypatch.setattr(door_module, "STRANGERS", 3)
    came = [pairs() for _ in range(5)]
    for pair in came:
        door.opened(pair.inner.fileno())
    assert [pair.is_open() for pair in came] == [False, False, True, True, True] and STRANGERS > 100


def test_a_message_without_end_is_ended(monkeypatch: pytest.MonkeyPatch, door: Door, pairs: Callable[[], Pair]) -> None:
    """But not the connection of one who sends whole messages, or whose messages we have not read yet."""
    monkeypatch.setattr(door_module, "UNFINISHED", 1 << 20)
    endless, busy, unread = pairs(), pairs(), pairs()
    for pair, name in ((endless, b"endless"), (busy, b"busy"), (unread, b"unread")):
        door.opened(pair.inner.fileno())
        door.vouch(pair.inner.fileno(), name)
    door.look(drained=True)
    for _ in range(4):
        busy.send(1 << 19)
        endless.send(1 << 19)
        door.heard.add(b"busy")
        door.look(drained=False)
    assert endless.is_open()
    unread.send(1 << 21)
    door.look(drained=False)
    assert unread.is_open()
    door.heard.add(b"unread")
    door.look(drained=True)
    assert not endless.is_open() and busy.is_open() and unread.is_open()


def test_a_stranger_that_has_gone_before_it_is_sent_away_is_no_error(door: Door) -> None:
    """The system has closed its descriptor, of which its end has not been read yet."""
    for descriptor in range(100_000, 100_000 + STRANGERS + 2):
        door.opened(descriptor)
    assert door.shut == 2
    door.look(drained=True)
    assert not door.waiting


def test_what_strangers_have_left_is_given_back_a_moment_later(
    monkeypatch: pytest.MonkeyPatch, door: Door, pairs: Callable[[], Pair]
) -> None:
    """Not for the end of one of ours, and not while the last time has cost too much."""
    given: list[float] = []
    monkeypatch.setattr(door_module, "give_back", lambda: given.append(time.monotonic()))
    monkeypatch.setattr(door_module, "TIDY", 0.05)
    stranger, ours = pairs(), pairs()
    for pair in (stranger, ours):
        door.opened(pair.inner.fileno())
    door.vouch(ours.inner.fileno(), b"ours")
    door.closed(ours.inner.fileno())
    time.sleep(0.06)
    door.look(drained=True)
    assert not given
    left = time.monotonic()
    door.closed(stranger.inner.fileno())
    while not given:
        door.look(drained=True)
    assert given[0] - left >= 0.05
    door.look(drained=True)
    assert len(given) == 1
    door._next_tidy = time.monotonic() + 3600
    again = pairs()
    door.opened(again.inner.fileno())
    door.closed(again.inner.fileno())
    time.sleep(0.06)
    door.look(drained=True)
    assert len(given) == 1


def test_freed_memory_between_used_memory_is_given_back() -> None:
    """In a process that keeps what it frees, as servers do: pages in the middle of the heap go, too."""
    script = """
        import ctypes, re
        from pathlib import Path
        from kgdist.kvstore.door import give_back
        from kgdist.base.machine import keep_freed_memory
        held = lambda: int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
        keep_freed_memory()
        library = ctypes.CDLL(None)
        library.malloc.restype = ctypes.c_void_p
        library.free.argtypes = library.malloc.argtypes = [ctypes.c_size_t]
        before = held()
        frames = [library.malloc(1 << 20) for _ in range(100)]
        for frame in frames:
            ctypes.memset(frame, 1, 1 << 20)
        for frame in frames[:-1]:
            library.free(frame)
        kept = held() - before
        give_back()
        print(kept, held() - before)
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    kept, left = map(int, subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split())
    assert kept > 90 and left < 20


def test_connections_that_have_ended_are_forgotten(door: Door, pairs: Callable[[], Pair]) -> None:
    """Also those whose end nobody told."""
    told, silent = pairs(), pairs()
    for pair in (told, silent):
        door.opened(pair.inner.fileno())
    door.closed(told.inner.fileno())
    silent.inner.close()
    door.look(drained=True)
    assert not door.waiting and not door.shut


def greeted(running: Store, mechanism: bytes) -> socket.socket:
    """A raw connection to server 0: with NULL, one that has shaken hands and may send messages; with CURVE, one that is to."""
    peer = socket.create_connection(running.endpoints[0], timeout=30)
    peer.sendall(GREETING + mechanism.ljust(52, b"\0"))
    if mechanism == b"NULL":
        peer.sendall(READY)
        come = b""
        while b"Identity" not in come:  # the last word of its READY
            come += peer.recv(4096)
    return peer


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def serves(running: Store, client: int) -> None:
    tables = running.client(client)
    push(tables, "entity", torch.arange(12), torch.ones(12, 4), -1.0)
    tables.flush()
    tables.close()


@pytest.mark.parametrize("way", ["curve", "open"])
def test_strangers_frames_take_no_memory(way: str) -> None:
    """40 connections, each with a frame of 4 MiB (of a handshake, or of a message that never ends) of which it sends all that is
    taken: every one is shut, and together they never had 64 MiB."""
    keys = Keys.make() if way == "curve" else None
    with store(optimizer="sgd", keys=keys, timeout=60.0) as running:  # no handshake is given up for taking long
        serves(running, 0)
        before, most, noise = resident(), 0, bytes(1 << 16)
        head = (b"\x06" if keys else b"\x03") + PIECE_BYTES.to_bytes(8, "big")
        peers = [greeted(running, b"CURVE" if keys else b"NULL") for _ in range(40)]
        for peer in peers:
            peer.sendall(head)
            peer.setblocking(False)
        deadline = time.monotonic() + 60
        left = list(peers)
        while left:
            assert time.monotonic() < deadline
            for peer in list(left):
                try:
                    peer.send(noise)
                    ended = False
                except BlockingIOError:
                    ended = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == CLOSE_WAIT
                    time.sleep(0.0001)
                except OSError:
                    ended = True
                if ended:
                    left.remove(peer)
            most = max(most, resident() - before)
        for peer in peers:
            peer.close()
        assert most < 64 << 20
        serves(running, 1)
        assert running.counted(PUSHED) == 24
        if keys:  # it is told when libzmq says so
            eventually(lambda: running.counted(GARBAGE))


@pytest.mark.slow
def test_frames_of_one_of_ours_without_end_are_ended() -> None:
    """By one who knows what HELLO has to say, but does not keep to our ZMTP; libzmq sends no message before its end."""
    hello = pack(Message(Kind.HELLO, client=9, round=1, number=1, text=IDENTITY.text("trainer", 9)))[0]
    with store(optimizer="sgd", timeout=60.0) as running, greeted(running, b"NULL") as peer:
        server, before, most = running.servers[0], resident(), 0
        peer.sendall(b"\x02" + len(hello).to_bytes(8, "big") + hello)
        deadline = time.monotonic() + 60
        while not server._peers:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        frame = b"\x03" + (1 << 20).to_bytes(8, "big") + bytes(1 << 20)
        with pytest.raises(OSError):
            for _ in range(1000):
                peer.sendall(frame)
                most = max(most, resident() - before)
                turns = server.counters[TURNS]  # where it looks at the bound: however slow the machine is, a frame comes for each
                eventually(lambda turns=turns: server.counters[TURNS] > turns)
        assert 16 << 20 < most < 128 << 20  # a thousand were offered
        serves(running, 1)


@pytest.mark.parametrize("keys", [None, Keys.make()])
def test_strangers_that_come_and_go_by_the_thousand_end_nothing(keys: Keys | None) -> None:
    with store(optimizer="sgd", keys=keys) as running:
        for _ in range(8):
            peers = [socket.create_connection(running.endpoints[0], timeout=60) for _ in range(STRANGERS + 1)]
            for peer in peers:
                peer.close()
        serves(running, 1)
