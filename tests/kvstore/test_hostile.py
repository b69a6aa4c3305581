"""Peers that mean no good, or know no better: the service goes on, nothing they send is applied, and they are counted."""

from __future__ import annotations

import itertools
import logging
import random
import resource
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import zmq

from kgdist.base.errors import KgdistError
from kgdist.kvstore import server as server_module
from kgdist.kvstore.messages import HEADER, PROTOCOL, Kind, Message, Part, pack, parse
from kgdist.kvstore.optim import OPTIMIZERS
from kgdist.kvstore.server import GARBAGE, PUSHED, REFUSED
from kgdist.kvstore.wire import Keys, Wire
from tests.kvstore.servers import IDENTITY, Store, eventually, push, store
from tests.patience import patience

HELLO = Message(Kind.HELLO, client=9, round=1, number=1, text=IDENTITY.text("trainer", 9))


@pytest.fixture(params=["open", "curve"])
def running(request: pytest.FixtureRequest) -> Iterator[Store]:
    with store(optimizer="sgd", timeout=1.5, keys=Keys.make() if request.param == "curve" else None) as made:
        yield made


def serves(running: Store, client: int = 0) -> None:
    """A trainer can still do its work, and nobody else has changed anything."""
    before = running.whole("entity").copy()
    tables = running.client(client)
    push(tables, "entity", torch.arange(12), torch.ones(12, 4), -1.0)
    tables.flush()
    np.testing.assert_array_equal(tables.pull("entity", torch.arange(12)), before + 1)
    tables.close()


def odd(running: Store) -> int:
    return running.counted(GARBAGE) + running.counted(REFUSED)


GET = b"GET / HTTP/1.1\r\nHost: kgdist\r\n\r\n"
TLS = bytes.fromhex("1603010200010001fc0303") + b"\x01" * 60
ZMTP1 = b"\x01\x00" + b"\x06\x00hello" + b"\x40\x00" + b"x" * 63  # greeting of ZMTP 1.0, which old sockets are accepted with


def test_bytes_that_are_no_messages(running: Store) -> None:
    chance = random.Random(0)
    sent = [GET, TLS, ZMTP1, b"", *(chance.randbytes(chance.randint(1, 400)) for _ in range(200))]
    sent += [b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + chance.randbytes(90) for _ in range(30)]  # a greeting of ZMTP 3, then noise
    for number, data in enumerate(sent):
        with socket.create_connection(running.endpoints[number % 3], timeout=patience(60)) as peer:
            peer.sendall(data)
    eventually(lambda: odd(running))
    serves(running)
    assert running.counted(PUSHED) == 12


def test_a_thousand_silent_connections(running: Store) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit[1] < 3000:
        pytest.skip(f"this system gives a process only {limit[1]} descriptors")
    peers = []
    try:
        for _ in range(1000):
            peers.append(socket.create_connection(running.endpoints[0], timeout=patience(60)))
        serves(running)
        for peer in peers:  # each is closed by the server when it has said nothing for a while
            peer.settimeout(patience(60))
            while peer.recv(4096):
                pass
    finally:
        for peer in peers:
            peer.close()
    serves(running, 1)


def test_a_stranger_with_keys_of_his_own() -> None:
    keys = Keys.make()
    with store(keys=keys, timeout=1.5) as running:
        mine = Keys.make()
        places = [f"{host}:{port}" for host, port in running.endpoints]
        knows = mine.knowing(dict.fromkeys(places, keys.public))
        wrong = keys.knowing(dict.fromkeys(places, mine.public))
        for other in (knows, None, wrong):
            transport = running.transport()
            transport.keys = other
            with pytest.raises(KgdistError, match=r"127.0.0.1:\d+: (what listens there|not a word)"):
                running.client(transport=transport, connect_timeout=0.7)
        eventually(lambda: running.counted(REFUSED) >= 1)
        serves(running)


def test_keys_where_none_are_wanted() -> None:
    with store(timeout=1.5) as running:
        with pytest.raises(KgdistError, match=r"127.0.0.1:\d+: (what listens there|not a word)"):
            running.client(transport=running.transport(Keys.make()), connect_timeout=0.7)
        serves(running)


class Peer:
    """A raw socket of ours that says what it likes to one server; server 0 owns rows 0 to 2 of 12 entities."""

    def __init__(self, running: Store, *, greeted: bool = True, server: int = 0) -> None:
        self.wire: Wire = running.transport().client(*running.endpoints[server])
        if greeted:
            assert self.ask(pack(HELLO)).kind is Kind.WELCOME

    def send(self, frames: list[Any]) -> None:
        eventually(lambda: self.wire.send(frames) is not None)

    def ask(self, frames: list[Any]) -> Message:
        self.send(frames)
        assert self.wire.socket.poll(5000, zmq.POLLIN)
        return parse(self.wire.receive() or [])[-1]


PART = Part(0, 2, 4, ids=np.array([0, 2], np.int32), squares=np.ones(2, np.float32))
PUSH = Message(Kind.PUSH, client=9, number=1, lr=-1.0, parts=(PART,), values=np.ones(8, np.float32))
BAD = np.array([1, np.nan, 1, 1, 1, 1, 1, 1], np.float32)


def asking(kind: Kind, rows: int, first: int = 0, **fields: Any) -> Message:
    return Message(kind, client=9, parts=(Part(0, rows, 4, first),), **fields)


def pushing(**fields: Any) -> Message:
    """The push, its part otherwise."""
    part = PART._replace(**fields)
    return PUSH._replace(parts=(part,), values=np.ones(part.rows * part.width, np.float32))


BOTH = PUSH._replace(parts=(PART, Part(1, 1, 2, ids=np.array([0]))), values=np.ones(10, np.float32))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pushing(ids=np.array([0, 3], np.int32)), "rows 0 to 3 of table entity: server 0 has rows 0 to 2"),
        (pushing(ids=np.array([-1, 2], np.int32)), "rows -1 to 2"),
        (pushing(ids=np.array([0, 1 << 60])), f"rows 0 to {1 << 60}"),
        (pushing(ids=np.array([2, 2], np.int32)), "updated twice"),
        (PUSH._replace(values=BAD), "not finite"),
        (PUSH._replace(values=-np.nan_to_num(BAD, nan=np.inf)), "not finite"),
        (PUSH._replace(values=np.full(8, 1e13, np.float32)), "over 1e+12"),
        (pushing(squares=np.array([1, np.inf], np.float32)), "not numbers from 0"),
        (pushing(squares=np.array([1, np.nan], np.float32)), "not numbers from 0"),
        (pushing(squares=np.array([1, -5], np.float32)), "not numbers from 0"),
        (pushing(squares=np.array([1, 1e38], np.float32)), "not numbers from 0"),
        (PUSH._replace(lr=float("nan")), "a learning rate of nan"),
        (PUSH._replace(lr=float("inf")), "a learning rate of inf"),
        (PUSH._replace(lr=1e308), "a learning rate of 1e+308"),
        (pushing(width=3), "rows of 3 numbers: table entity has 4"),
        (pushing(table=1), "rows of 4 numbers: table relation has 2"),
        (pushing(table=2), "no table 2: 2 tables"),
        (PUSH._replace(parts=(PART, PART), values=np.ones(16, np.float32)), "a table appears twice"),
        (BOTH._replace(parts=(PART, Part(1, 1, 2, ids=np.array([1])))), "rows 1 to 1 of table relation"),
        (BOTH._replace(values=np.append(np.ones(9, np.float32), np.float32(np.nan))), "not finite"),
        (Message(Kind.PULL, client=9, parts=(Part(0, 1, 4, ids=np.array([3])),)), "rows 3 to 3"),
        (asking(Kind.READ, 4), "rows 0 to 3"),
        (asking(Kind.READ, 1, -1), "rows -1 to -1"),
        (asking(Kind.READ, 0, (1 << 63) - 1), "server 0 has rows"),
        (asking(Kind.ASSIGN, 2, 2, number=1, values=np.ones(8, np.float32)), "rows 2 to 3"),
        (asking(Kind.ASSIGN, 2, number=1, values=BAD), "not finite"),
        (Message(Kind.ACK, client=9), "does not say ACK"),
        (Message(Kind.WELCOME, client=9, text="{}"), "does not say WELCOME"),
    ],
)
def test_one_of_us_that_is_wrong_is_told_and_changes_nothing(message: Message, reason: str) -> None:
    with store(optimizer="sgd", by_owner=True) as running:
        peer = Peer(running)
        answer = peer.ask(pack(message))
        assert answer.kind is Kind.ERROR and reason in answer.text
        assert not running.whole("entity").any() and not running.whole("relation").any() and running.counted(REFUSED) == 1
        assert peer.ask(pack(PUSH)).kind is Kind.ACK  # the number is not used up
        assert (running.whole("entity")[[0, 2]] == 1).all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_absurd_numbers_reach_no_optimiser(optimizer: str) -> None:
    """Finite ones among them, which would leave rows infinite or the state changed by an update that failed."""
    with store(optimizer=optimizer) as running:
        peer, state = Peer(running), [tensor for parts in running.machines[0].state.values() for tensor in parts.values()]
        for wrong in (PUSH._replace(lr=1e308), PUSH._replace(lr=-1e30), pushing(squares=np.array([1, -5], np.float32)),
                      PUSH._replace(values=np.full(8, 3e38, np.float32))):  # fmt: skip
            assert peer.ask(pack(wrong)).kind is Kind.ERROR
        assert not running.whole("entity").any() and not any(tensor.any() for tensor in state)
        assert peer.ask(pack(PUSH)).kind is Kind.ACK


def test_what_nobody_thought_of_is_told_to_its_sender_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with store(optimizer="sgd") as running:
        peer, holdings = Peer(running), running.servers[0]._holdings
        with monkeypatch.context() as changed:
            changed.setattr(holdings, "update", lambda message: {}["entity"])  # any exception would do
            answer = peer.ask(pack(PUSH))
        assert answer.kind is Kind.ERROR and answer.text == "KeyError: 'entity'" and running.counted(REFUSED) == 1
        assert peer.ask(pack(PUSH)).kind is Kind.ACK
        serves(running)


def test_any_server_of_a_machine_answers_for_its_rows_and_for_no_others() -> None:
    with store(optimizer="sgd") as running:
        for server, ids, reason in ((0, [0, 6], ""), (1, [0, 6], ""), (1, [6, 7], "server 1 has rows 0 to 6"),
                                    (2, [7, 11], ""), (2, [6, 7], "server 2 has rows 7 to 11")):  # fmt: skip
            before = running.whole("entity").copy()
            peer = Peer(running, server=server)
            number = running.servers[server].applied.last(9, 0) + 1
            answer = peer.ask(pack(pushing(ids=np.array(ids, np.int32))._replace(number=number)))
            assert reason in answer.text and answer.kind is (Kind.ERROR if reason else Kind.ACK)
            before[ids] += not reason
            np.testing.assert_array_equal(running.whole("entity"), before)


def test_an_envelope_is_answered_in_order_and_each_message_for_itself() -> None:
    """A push, rows that show it, a push that is wrong, rows that do not show it: the answers come together."""
    with store(optimizer="sgd") as running:
        peer = Peer(running)
        rows = Message(Kind.PULL, client=9, parts=(Part(0, 2, 4, ids=np.array([0, 2])),))
        again, wrong = PUSH._replace(number=2), PUSH._replace(number=3, lr=float("nan"))
        peer.send(pack(rows, PUSH, again, rows._replace(number=1), wrong, rows._replace(number=2)))
        assert peer.wire.socket.poll(5000, zmq.POLLIN)
        answers = parse(peer.wire.receive() or [])
        kinds = [(answer.kind, answer.number) for answer in answers]
        assert kinds == [(Kind.ROWS, 0), (Kind.ACK, 2), (Kind.ROWS, 1), (Kind.ERROR, 3), (Kind.ROWS, 2)]
        assert [answer.values.tolist() for answer in answers if answer.values is not None] == [[0] * 8, [2] * 8, [2] * 8]


def test_answers_that_are_too_large_together_come_in_several_envelopes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PIECE_BYTES", 40)  # two rows
    with store(optimizer="sgd") as running:
        running.machines[0].rows["entity"][:] = torch.arange(28.0).view(7, 4)
        peer, came = Peer(running), []
        peer.send(pack(*(asking(Kind.READ, rows, 7 - rows, number=rows) for rows in (1, 1, 3, 2, 5, 7))))
        while sum(map(len, came)) < 6:
            assert peer.wire.socket.poll(5000, zmq.POLLIN)
            came.append(parse(peer.wire.receive() or []))
        assert [len(envelope) for envelope in came] == [2, 1, 1, 1, 1]
        for message in itertools.chain(*came):
            assert message.values is not None
            np.testing.assert_array_equal(message.values.reshape(-1, 4), running.whole("entity")[7 - message.number : 7])


def test_who_asks_for_too_much_at_once_is_told_so() -> None:
    """In one message or in many of one envelope: the turns of others come in milliseconds."""
    with store(entities=(2000, 5), servers=(1, 1), width=1000, optimizer="sgd") as running:
        peer, part = Peer(running), Part(0, 600, 1000, 0)
        read = Message(Kind.READ, client=9, parts=(part,))
        large = peer.ask(pack(read._replace(parts=(part._replace(rows=2000),))))
        assert large.kind is Kind.ERROR and "a message is for 4 MiB at most" in large.text
        peer.send(pack(*(read._replace(number=number) for number in range(3))))
        assert peer.wire.socket.poll(5000)
        assert [message.kind for message in parse(peer.wire.receive() or [])] == [Kind.ROWS, Kind.ERROR, Kind.ERROR]
        assert peer.ask(pack(read)).kind is Kind.ROWS


def test_nobody_takes_the_place_of_one_who_lives() -> None:
    """Whatever incarnation he makes up; and of clients that cannot be there nothing is remembered."""
    with store(optimizer="sgd", user=True, servers=(1, 1)) as running:
        tables, ids = running.client(9, incarnation=1), torch.tensor([0, 2])
        push(tables, "entity", ids, torch.ones(2, 4), -1.0)
        tables.flush()
        forger = Peer(running, greeted=False)
        forger.send(pack(HELLO._replace(incarnation=(1 << 32) - 1)))
        eventually(lambda: running.counted(REFUSED))
        push(tables, "entity", ids, torch.ones(2, 4), -1.0)
        tables.flush()
        assert (running.whole("entity")[[0, 2]] == 2).all() and running.servers[0].applied.newest(9) == 1
        assert forger.ask(pack(HELLO._replace(client=1 << 20))).kind is Kind.REFUSED
        assert running.servers[0].applied.newest(1 << 20) == -1


def test_nobody_is_served_before_hello() -> None:
    with store(optimizer="sgd") as running:
        peer = Peer(running, greeted=False)
        assert peer.ask(pack(PUSH)).kind is Kind.WHO
        assert peer.ask(pack(HELLO)).kind is Kind.WELCOME
        assert peer.ask(pack(PUSH._replace(client=8))).kind is Kind.WHO  # somebody else's name
        assert peer.ask(pack(PUSH)).kind is Kind.ACK
        peer.send(pack(Message(Kind.BYE, client=9)))
        assert peer.ask(pack(PUSH)).kind is Kind.WHO


@pytest.mark.parametrize("version", [PROTOCOL - 1, PROTOCOL + 1])
def test_another_protocol_is_told_both_versions(version: int) -> None:
    with store() as running:
        head, *rest = pack(HELLO)
        answer = Peer(running, greeted=False).ask([head[:4] + version.to_bytes(2, "little") + head[6:], *rest])
        assert answer.kind is Kind.ERROR and f"version {version}, this side {PROTOCOL}" in answer.text


@pytest.mark.parametrize("text", ["", "{}", "[" * 4096, IDENTITY.text("trainer", 9)[:-1]])
def test_a_hello_that_is_none(text: str) -> None:
    with store() as running:
        answer = Peer(running, greeted=False).ask(pack(HELLO._replace(text=text)))
        assert answer.kind is Kind.REFUSED and answer.text == "HELLO does not fit this server"


def test_frames_without_end() -> None:
    with store() as running:
        peer = Peer(running)
        peer.send([b""] * 100_000)
        peer.send([b""])
        answer = peer.ask([pack(PUSH)[0], *[b"x"] * 50])
        assert answer.kind is Kind.ERROR and "frames" in answer.text
        assert running.counted(GARBAGE) == 3
        serves(running)


def test_a_frame_over_the_limit_ends_the_connection_only() -> None:
    with store() as running:
        peer = Peer(running)
        peer.send([pack(PUSH)[0], bytes((64 << 20) + 1)])
        serves(running)


def test_random_messages_of_an_insider() -> None:
    chance = random.Random(3)
    with store(optimizer="sgd") as running:
        peer = Peer(running)
        for _ in range(2000):
            head, *rest = (bytearray(part) for part in pack(PUSH._replace(number=2)))  # too early: even a good one is not applied
            for _ in range(chance.randint(1, 3)):
                part = chance.choice([head, *rest])
                part[chance.randrange(len(part))] = chance.randrange(256)
            head[24:32] = (2).to_bytes(8, "little")
            head[6] = Kind.PUSH if head[6] in (Kind.ASSIGN, Kind.BYE) else head[6]
            peer.send([bytes(part) for part in (head, *rest)])
            while peer.wire.receive() is not None:
                pass
        eventually(lambda: running.counted(GARBAGE) > 200)  # of two connections neither is heard before the other
        serves(running)
        assert HEADER.size == 48  # the places above are those of the number and the kind


def test_a_recording_that_is_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inside peer repeats all that a trainer said, HELLO first: each push was applied before, so none is again."""
    with store(optimizer="sgd") as running:
        recorded: list[list[bytes]] = []
        send = Wire.send

        def record(wire: Wire, frames: list[Any]) -> Any:
            if frames[0] == b"server-1":  # of two, the one that odd clients ask
                recorded.append([bytes(part) for part in frames[1:]])
            return send(wire, frames)

        monkeypatch.setattr(Wire, "send", record)
        tables = running.client(9)
        for _ in range(5):
            push(tables, "entity", torch.tensor([0, 2]), torch.ones(2, 4), -1.0)
        tables.flush()
        monkeypatch.undo()
        peer = Peer(running, greeted=False, server=1)
        for frames in recorded:
            peer.ask(frames)
        assert (running.whole("entity")[[0, 2]] == 5).all()
        push(tables, "entity", torch.tensor([0]), torch.ones(1, 4), -1.0)  # the trainer is asked who it is, and goes on
        tables.flush()
        assert running.whole("entity")[0, 0] == 6


def test_the_log_has_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kgdist"), store() as running:
        logging.getLogger("kgdist").addHandler(caplog.handler)
        try:
            peer = Peer(running)
            for _ in range(50):
                assert peer.ask(pack(PUSH._replace(lr=float("nan")))).kind is Kind.ERROR
        finally:
            logging.getLogger("kgdist").removeHandler(caplog.handler)
        lines = {record.getMessage() for record in caplog.records}
        assert len(lines) == 1 and "messages refused so far, 0 that were none; the last: PUSH of client 9" in lines.pop()
