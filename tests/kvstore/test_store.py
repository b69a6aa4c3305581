"""A store of several machines is, to a trainer, the same tables as in one memory, for every way to set it up."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.base.errors import KgdistError, PeersLost
from kgdist.kvstore import client as client_module
from kgdist.kvstore import store as store_module
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.connection import Connection
from kgdist.kvstore.messages import PART, Kind, Sealed, parse
from kgdist.kvstore.optim import OPTIMIZERS
from kgdist.kvstore.server import PULLED, PUSHED, REFUSED
from kgdist.kvstore.tables import MemoryTables, Update, initialise
from kgdist.kvstore.wire import Keys, Wire
from tests.kvstore.servers import IDENTITY, Store, push, store

PLACES: dict[str, dict[str, Any]] = {
    "elsewhere": {},
    "direct": {"machine": 0},
    "owner": {"machine": 0, "by_owner": True},
    "second": {"machine": 1},
}
WAYS = pytest.mark.parametrize("place", PLACES)


@contextlib.contextmanager
def placed(place: str, **options: Any) -> Iterator[tuple[Store, Callable[..., StoreTables]]]:
    """A store, and what makes clients at this place of it."""
    given = dict(PLACES[place])
    with store(by_owner=given.pop("by_owner", False), **options) as running:
        yield running, functools.partial(running.client, **given)


def filled(running: Store, optimizer: str) -> MemoryTables:
    """One memory with the same rows, in the store and outside of it."""
    twin = MemoryTables.create({name: (running.layout.rows(name), w) for name, w in running.layout.widths.items()}, optimizer)
    for stream, name in enumerate(running.layout.widths):
        initialise(twin.rows[name], "uniform", 0.5, seed=1, stream=stream)
        for machine, tables in enumerate(running.machines):
            low, high = running.layout.machine_range(name, machine)
            tables.rows[name].copy_(twin.rows[name][low:high])
    return twin


@WAYS
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_is_the_same_as_one_memory(place: str, optimizer: str) -> None:
    random = np.random.default_rng(0)
    with placed(place, optimizer=optimizer) as (running, client):
        twin, tables = filled(running, optimizer), client()
        assert tables.names() == twin.names() and tables.local("entity") is None
        for step in range(12):
            wanted, updates = {}, {}
            for name in tables.names():
                rows, width = twin.shape(name)
                assert tables.shape(name) == (rows, width)
                wanted[name] = random.integers(0, rows, random.integers(0, 20))
                ids = random.permutation(rows)[: random.integers(0, rows + 1)]
                squares = torch.rand(len(ids)) if step % 2 else None
                updates[name] = Update(ids, torch.randn(len(ids), width), squares)
            if step % 3:
                tables.ahead(wanted)
            for name, asked in wanted.items():
                ids = torch.from_numpy(asked)
                np.testing.assert_array_equal(tables.pull(name, ids), twin.pull(name, ids))
            for each in (tables, twin):
                each.push({name: update._replace(grads=update.grads.clone()) for name, update in updates.items()}, 0.1)
            tables.flush()
        for name in tables.names():
            np.testing.assert_allclose(running.whole(name), twin.rows[name], rtol=1e-6, atol=1e-7)
            for start, stop in ((0, 0), (0, 3), (2, 4), (0, twin.shape(name)[0])):
                np.testing.assert_array_equal(tables.block(name, start, stop), running.whole(name)[start:stop])


@WAYS
def test_rows_that_were_asked_for_ahead_are_collected_in_order(place: str) -> None:
    with placed(place) as (running, client):
        twin, tables = filled(running, "adagrad_row"), client()
        batches = [np.array([1, 1, 8, 0]), np.array([11, 2]), np.array([1, 1, 8, 0]), np.empty(0, np.int64)]
        for ids in batches:
            tables.ahead({"entity": ids, "relation": ids % 5})
        asked = running.counted(PULLED)
        for ids in (*batches, np.array([3])):
            out = torch.full((len(ids), 4), np.nan)
            assert tables.pull("entity", torch.from_numpy(ids), out) is out
            np.testing.assert_array_equal(out, twin.rows["entity"][ids])
            np.testing.assert_array_equal(tables.pull("relation", torch.from_numpy(ids % 5)), twin.rows["relation"][ids % 5])
        assert running.counted(PULLED) - asked <= 30


@pytest.mark.parametrize("by_owner", [False, True])
def test_a_step_costs_each_target_one_envelope_each_way(by_owner: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it has of all tables, the push and the request behind it: for each machine, or, by owner, for each server."""
    said: dict[bool, list[list[Kind]]] = {True: [], False: []}
    send = Wire.send

    def listen(wire: Wire, frames: list[Any]) -> Any:
        is_asked = frames[0].startswith(b"server-")
        said[is_asked].append([message.kind for message in parse(frames[1:])])
        if not is_asked:  # rows stay where they were gathered, and the rest is written before them
            assert len(frames) == 2 and isinstance(frames[1], memoryview) == (said[False][-1][-1] is Kind.ROWS)
        return send(wire, frames)

    with store(by_owner=by_owner) as running:
        tables = running.client()
        every = {name: np.arange(running.layout.rows(name)) for name in tables.names()}
        tables.ahead(every, every)
        monkeypatch.setattr(Wire, "send", listen)
        for step in range(5):
            for name, ids in every.items():
                tables.pull(name, torch.from_numpy(ids))
            tables.push({name: Update(ids, torch.ones(len(ids), tables.shape(name)[1])) for name, ids in every.items()}, 0.1)
            if step < 3:
                tables.ahead(every)
        tables.flush()
        targets = len(running.servers) if by_owner else running.layout.machines
        # of five pushes two have no request behind them; the answers to what was asked first may still be among those heard
        assert said[True].count([Kind.PUSH, Kind.PULL]) == 3 * targets and said[True].count([Kind.PUSH]) == 2 * targets
        assert len(said[True]) == 5 * targets
        assert said[False].count([Kind.ACK, Kind.ROWS]) == 3 * targets and said[False].count([Kind.ACK]) == 2 * targets


def test_pushes_of_some_steps_travel_together_and_are_applied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[list[Kind]] = []
    send = Wire.send

    def listen(wire: Wire, frames: list[Any]) -> Any:
        if frames[0] == b"server-2":
            said.append([message.kind for message in parse(frames[1:])])
        return send(wire, frames)

    with store() as running:
        twin, tables = filled(running, "adagrad_row"), running.client(pull_ahead=3)
        batches = [np.random.default_rng(step).integers(0, 12, 15) for step in range(9)]
        monkeypatch.setattr(Wire, "send", listen)
        before = running.counted(PULLED)
        for start in (0, 3, 6):
            tables.ahead(*({"entity": ids} for ids in batches[start : start + 3]))
            seen = twin.rows["entity"].clone()  # an announcement comes behind the pushes before it
            for ids in batches[start : start + 3]:
                np.testing.assert_allclose(tables.pull("entity", torch.from_numpy(ids)), seen[ids], rtol=1e-6, atol=1e-7)
                rows, grads = torch.from_numpy(np.unique(ids)), torch.randn(len(np.unique(ids)), 4)
                for each in (tables, twin):
                    push(each, "entity", rows, grads.clone(), 0.1)
        tables.flush()
        np.testing.assert_allclose(running.whole("entity"), twin.rows["entity"], rtol=1e-6, atol=1e-7)
        assert said == [[Kind.PULL], [*[Kind.PUSH] * 3, Kind.PULL], [*[Kind.PUSH] * 3, Kind.PULL], [Kind.PUSH] * 3]
        assert running.counted(PULLED) - before == sum(len(np.unique(batches[s : s + 3])) for s in (0, 3, 6))  # each row once


def test_an_announcement_that_nobody_came_for_does_no_harm() -> None:
    with store() as running:
        twin, tables = filled(running, "adagrad_row"), running.client()
        for number in range(30):
            tables.ahead({"entity": np.array([number % 12])})
        np.testing.assert_array_equal(tables.pull("entity", torch.tensor([29 % 12])), twin.rows["entity"][[29 % 12]])
        np.testing.assert_array_equal(tables.pull("entity", torch.tensor([0])), twin.rows["entity"][[0]])


def test_rows_are_those_of_the_time_of_asking_or_later() -> None:
    """One batch of look-ahead: the pull does not see the push after it, and the next one does."""
    with store(optimizer="sgd") as running:
        tables, ids = running.client(), torch.tensor([2, 9])
        tables.ahead({"entity": ids.numpy()})
        push(tables, "entity", ids, torch.ones(2, 4), -1.0)
        assert not tables.pull("entity", ids).any()
        assert tables.pull("entity", ids).eq(1).all()  # no flush between: requests and pushes keep their order


def test_ids_travel_once_and_to_their_owner_only() -> None:
    with store() as running:
        tables = running.client(machine=0)
        tables.pull("entity", torch.tensor([0, 1, 8, 8, 8, 9, 0]))
        push(tables, "entity", torch.tensor([0, 8]), torch.zeros(2, 4), 0.1)
        tables.flush()
        assert [int(s.counters[PULLED]) for s in running.servers] == [0, 0, 2]
        assert [int(s.counters[PUSHED]) for s in running.servers] == [0, 0, 1]


def test_local_rows_are_not_copied_into_blocks() -> None:
    with store() as running:
        tables = running.client(machine=0)
        assert tables.block("entity", 2, 6).data_ptr() == running.machines[0].rows["entity"][2:].data_ptr()


@WAYS
def test_blocks_one_after_another_are_those_that_were_asked_for(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with placed(place, entities=(40, 30), optimizer="sgd") as (running, client):
        twin, tables = filled(running, "sgd"), client()
        for ahead, spans in (
            (0, [(0, 70)]),
            (64, [(4 * n, 4 * n + 4) for n in range(17)]),
            (999, [(60, 70), (0, 0), (35, 45), (0, 9)]),
        ):
            monkeypatch.setattr(client_module, "AHEAD_BYTES", ahead)
            for (start, stop), rows in zip(spans, tables.blocks("entity", spans), strict=True):
                np.testing.assert_array_equal(rows, twin.rows["entity"][start:stop])


def test_the_blocks_to_come_are_on_their_way_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []
    request = Connection.request

    def listen(connection: Connection, message: Sealed, *more: Any) -> None:
        said.append(PART.unpack(message.tail)[-1])
        request(connection, message, *more)

    monkeypatch.setattr(Connection, "request", listen)
    monkeypatch.setattr(client_module, "AHEAD_BYTES", 2 * 4 * 4 * 4)  # two blocks of four rows
    with store(entities=(0, 40), servers=(1, 1)) as running:
        tables = running.client(machine=0)
        for number, _ in enumerate(tables.blocks("entity", [(4 * n, 4 * n + 4) for n in range(10)])):
            assert said == list(range(0, min(4 * number + 12, 40), 4))  # this one and the next two


@WAYS
def test_long_messages_are_cut_in_pieces(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PIECE_BYTES", 40)  # two rows
    with placed(place, entities=(40, 30), optimizer="sgd") as (running, client):
        tables = client(max_inflight=2)
        rows = torch.arange(280.0).view(70, 4)
        tables.assign("entity", slice(0, len(rows)), rows)
        np.testing.assert_array_equal(running.whole("entity"), rows)
        ids = torch.randperm(70)
        push(tables, "entity", ids, rows[ids], 0.5)
        tables.flush()
        np.testing.assert_array_equal(tables.block("entity", 5, 70), rows[5:] / 2)
        repeated = torch.cat([ids, ids])
        np.testing.assert_array_equal(tables.pull("entity", repeated), rows[repeated] / 2)


@pytest.mark.parametrize("secure", [False, True])
def test_bfloat16_rounds_what_travels(secure: bool) -> None:
    with store(width=64, optimizer="sgd", keys=Keys.make() if secure else None) as running:
        twin = filled(running, "sgd")
        tables, ids = running.client(machine=0, transport_dtype="bf16"), torch.arange(12)
        expected = torch.cat([twin.rows["entity"][:7], twin.rows["entity"][7:].bfloat16().float()])
        np.testing.assert_array_equal(tables.pull("entity", ids), expected)
        np.testing.assert_array_equal(tables.block("entity", 0, 12), twin.rows["entity"])
        grads = torch.randn(12, 64)
        push(tables, "entity", ids, grads, 1.0)
        tables.flush()
        received = torch.cat([grads[:7], grads[7:].bfloat16().float()])
        np.testing.assert_array_equal(running.whole("entity"), twin.rows["entity"] - received)


def test_traffic_is_counted() -> None:
    with store(entities=(0, 1000), servers=(1, 1), width=400) as running:
        tables = running.client(machine=0)
        sent, received = tables.traffic()
        ids = torch.arange(1000)
        tables.pull("entity", ids)
        push(tables, "entity", ids, torch.ones(1000, 400), 0.1, torch.ones(1000))
        tables.flush()
        now_sent, now_received = tables.traffic()
        payload = 1000 * 8 + 1000 * 400 * 4 * 2
        assert payload < (now_sent - sent) + (now_received - received) < 1.01 * payload


def test_what_is_wrong_with_a_push_is_said() -> None:
    with store() as running:
        tables = running.client()
        with pytest.raises(ValueError, match="updated twice"):
            push(tables, "entity", torch.tensor([1, 1]), torch.ones(2, 4), 0.1)
        with pytest.raises(ValueError, match="do not fit together"):
            push(tables, "entity", torch.tensor([1]), torch.ones(2, 4), 0.1)
        with pytest.raises(IndexError, match="row 12"):
            push(tables, "entity", torch.tensor([12]), torch.ones(1, 4), 0.1)
        with pytest.raises(IndexError, match="row -1"):
            tables.pull("entity", torch.tensor([-1]))
        for wrong in ((0, 13), (-1, 2), (5, 4)):
            with pytest.raises(IndexError):
                tables.block("entity", *wrong)
        push(tables, "entity", torch.tensor([1, 2]), torch.full((2, 4), torch.nan), 0.1)
        with pytest.raises(KgdistError, match=r"127.0.0.1:\d+: error: gradients that are not finite"):
            tables.flush()
        assert not running.whole("entity").any() and running.counted(REFUSED) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.9"}, "version is 0.9 there and 1.0 here"),
        ({"run": "another"}, "run is another there and run-7 here"),
        ({"attempt": 2}, "attempt is 2 there and 1 here"),
        ({"config": "c"}, "config is c there and config here"),
        ({"graph": "g"}, "graph is g there and graph here"),
    ],
)
@pytest.mark.parametrize("way", ["user", "curve", "open"])
def test_who_does_not_belong_is_refused_with_both_values(change: dict[str, Any], words: str, way: str) -> None:
    """But to anybody who may come, not a word of what would fit."""
    with store(user=way == "user", keys=Keys.make() if way == "curve" else None) as running:
        other = IDENTITY.__class__(**(vars(IDENTITY) | change))
        with pytest.raises(KgdistError, match="refused: HELLO does not fit this server$" if way == "open" else words):
            running.client(identity=other)
        running.client().pull("entity", torch.tensor([1]))
        assert running.counted(REFUSED) >= 1


def test_a_newer_incarnation_takes_the_place_of_the_older() -> None:
    with store(optimizer="sgd", user=True) as running:
        old, ids = running.client(3, incarnation=0), torch.tensor([0, 11])
        push(old, "entity", ids, torch.ones(2, 4), -1.0)
        old.flush()
        old.close()
        new = running.client(3, incarnation=1)
        push(new, "entity", ids, torch.ones(2, 4), -1.0)
        new.flush()
        with pytest.raises(KgdistError, match="has been replaced by 1"):
            running.client(3, incarnation=0)
        assert (running.whole("entity")[[0, 11]] == 2).all()
        assert running.servers[1].applied.state() == [[3, 0, 1], [3, 1, 1]]  # of two, the one that odd clients ask
        with pytest.raises(KgdistError, match="used before"):
            running.client(3, incarnation=1)


def test_the_server_that_welcomes_must_be_the_one_that_is_meant() -> None:
    """Nobody is taken for another: where ports are mixed up names decide, and a name must be its server's."""
    with store(timeout=0.4) as running:
        first, second, third = running.endpoints
        twin, tables = filled(running, "adagrad_row"), running.client(endpoints=[third, second, first])
        np.testing.assert_array_equal(tables.pull("entity", torch.arange(12)), twin.rows["entity"])
        with pytest.raises(PeersLost, match="not a word for"):
            running.client(endpoints=[second, second, third], connect_timeout=0.5)
        running.servers[0].number = 2  # it has server 0's name and says that it is server 2
        with pytest.raises(KgdistError, match=r"127.0.0.1:\d+: server 2 is there, and server 0 should be"):
            running.client(connect_timeout=0.5)


def test_nobody_there_is_an_error_in_time() -> None:
    with store() as running:
        dead = [*running.endpoints[:2], ("127.0.0.1", 1)]
        with pytest.raises(PeersLost, match="127.0.0.1:1: not a word for"):
            running.client(endpoints=dead, connect_timeout=0.5)


@pytest.mark.parametrize("hung", [False, True])
def test_a_server_that_is_silent_is_missed_by_name(hung: bool) -> None:
    with store(timeout=0.4) as running:
        tables = running.client()
        running.end(sockets=not hung)
        with pytest.raises(PeersLost, match=r"127.0.0.1:\d+: not a word for"):
            tables.pull("entity", torch.arange(12))


def test_seen_numbers_survive_with_the_rows() -> None:
    with store(optimizer="sgd") as running:
        tables = running.client(5, incarnation=2)
        for _ in range(3):
            push(tables, "entity", torch.tensor([0]), torch.ones(1, 4), -1.0)
        tables.flush()
        asked = running.servers[1]
        state = asked.applied.state()
        assert state == [[5, 2, 3]]
        asked.applied.load([[5, 2, 1]])  # back in time
        asked._peers.clear()
        with pytest.raises(PeersLost, match="confirmed update 3 and now knows of 1 only"):
            tables.pull("entity", torch.tensor([0]))
