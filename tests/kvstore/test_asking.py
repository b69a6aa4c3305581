"""Questions and assignments, of peers that are right and of some that are not: these are told in words, alone, and bounded."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.base.errors import KgdistError, UsageError
from kgdist.kvstore import answers as answers_module
from kgdist.kvstore.asking import described, size_of_arrays, worded, write_arrays
from kgdist.kvstore.catalogue import TableSpec
from kgdist.kvstore.messages import REQUESTS, U8, Kind, Message, Part, pack, parse
from kgdist.kvstore.server import REFUSED
from kgdist.kvstore.tables import MemoryTables, TableMemory, Update
from tests.kvstore.servers import eventually, store
from tests.kvstore.test_hostile import Peer, serves

BOUNDS = np.array([0, 7, 12])
RAW = TableSpec("raw", "entity", "uint8", (3,))
EMB = TableSpec("emb", "entity", "float32", (4,), "adagrad")


def services(seen: list[Any]) -> dict[str, Any]:
    def grow(args: dict[str, Any], arrays: list[np.ndarray]) -> list[np.ndarray]:
        seen.append(args)
        return [np.arange(args["n"]), np.ones(3, np.bool_)]

    def fail(args: dict[str, Any], arrays: list[np.ndarray]) -> list[np.ndarray]:
        raise RuntimeError("two\nlines")

    return {"grow": grow, "fail": fail, "odd": lambda args, arrays: [np.zeros(2, np.complex64)],
            "many": lambda args, arrays: [np.zeros(1)] * 65, "back": lambda args, arrays: arrays}  # fmt: skip


def asking(what: str, number: int = REQUESTS + 1, arrays: tuple[np.ndarray, ...] = (), **args: Any) -> Message:
    columns = described(arrays)
    values = np.empty(size_of_arrays(columns), np.uint8) if arrays else None
    if values is not None:
        write_arrays(arrays, values)
    return Message(Kind.ASK, client=9, number=number, text=worded(what, args), arrays=columns, values=values)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (asking("nobody"), "nobody here answers 'nobody': grow, fail"),
        (asking("fail"), r"RuntimeError: two\nlines"),
        (asking("odd"), "TypeError: arrays of complex64 do not travel"),
        (asking("many"), "an answer of 65 arrays: 64 at most"),
        (asking("grow"), "KeyError: 'n'"),
        (asking("grow")._replace(text="{"), "not JSON"),
        (asking("grow")._replace(text="[" * 4000), "not JSON"),
        (asking("grow")._replace(text='["grow"]'), "a name and its arguments"),
        (asking("grow")._replace(text='["grow", 3]'), "a name and its arguments"),
        (asking("grow")._replace(text='{"grow": {}}'), "a name and its arguments"),
    ],
)
def test_a_question_that_has_no_answer_is_told_so_to_its_sender_alone(message: Message, reason: str) -> None:
    with store(optimizer="sgd", services=services([])) as running:
        peer = Peer(running)
        answer = peer.ask(pack(message))
        assert answer.kind is Kind.ERROR and answer.number == message.number and reason in answer.text
        (found,) = [peer.ask(pack(asking("back", REQUESTS + 2, (np.arange(3),))))]
        assert found.kind is Kind.ANSWER and found.values is not None and found.values.view(np.int64).tolist() == [0, 1, 2]
        serves(running)


PART = Part(5, 2, 3, ids=np.array([0, 2], np.int32))
ASSIGN = Message(Kind.ASSIGN, client=9, number=1, dtype=U8, parts=(PART,), values=np.arange(6, dtype=np.uint8))


def assigning(width: int = 3, **fields: Any) -> Message:
    part = PART._replace(width=width, **fields)
    return ASSIGN._replace(parts=(part,), values=np.zeros(part.rows * width, np.uint8))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (assigning(table=4), "no table 4: 5 tables; it has been dropped, or is not here yet"),
        (assigning(table=(1 << 32) - 1), "no table 4294967295"),
        (assigning(width=2), "rows of 2 numbers: table raw has 3"),
        (assigning(ids=np.array([0, 4], np.int32)), "rows 0 to 4 of table raw: server 0 has rows 0 to 2"),
        (assigning(ids=np.array([-1, 1])), "rows -1 to 1"),
        (assigning(ids=None, first=2), "rows 2 to 3 of table raw"),
        (assigning(ids=None, first=-(1 << 63)), "of table raw"),
        (ASSIGN._replace(parts=(PART, PART), values=np.zeros(12, np.uint8)), "a table appears twice"),
        (ASSIGN._replace(parts=(PART._replace(table=6, width=4),), values=np.zeros(8, np.uint8)), "in dtype 3: they travel in 1"),
        (ASSIGN._replace(dtype=1, values=np.zeros(6, np.float32)), "in dtype 1: they travel in 3"),
        (ASSIGN._replace(dtype=1, parts=(PART._replace(table=6, width=4),), values=np.full(8, np.nan, np.float32)), "not finite"),
        (Message(Kind.PUSH, client=9, number=1, parts=(PART._replace(table=7, width=1),), values=np.zeros(2, np.float32)),
         "table words has no optimiser"),
        (Message(Kind.PULL, client=9, number=REQUESTS + 1, dtype=2, parts=(PART._replace(table=7, width=1),)), "in dtype 2"),
        (Message(Kind.READ, client=9, number=REQUESTS + 1, parts=(Part(5, 1, 3),)), "in dtype 1: they travel in 3"),
    ],
)  # fmt: skip
def test_an_assignment_that_is_wrong_is_told_and_changes_nothing(message: Message, reason: str) -> None:
    with store(optimizer="sgd") as running:
        memory = [running.add(spec, number, BOUNDS)[0] for number, spec in enumerate((RAW, EMB, TableSpec("words", "entity")), 5)]
        peer = Peer(running)
        answer = peer.ask(pack(message))
        assert answer.kind is Kind.ERROR and reason in answer.text and running.counted(REFUSED) == 1
        assert not any(array.any() for table in memory for array in table.arrays.values())
        assert peer.ask(pack(ASSIGN)).kind is Kind.ACK and peer.ask(pack(ASSIGN._replace(number=3))).kind is Kind.GAP
        assert memory[0].arrays[""][[0, 2]].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_assignment_that_is_repeated_overwrites_nothing_newer() -> None:
    with store(optimizer="sgd") as running:
        (memory, _), peer = running.add(RAW, 5, BOUNDS), Peer(running)
        newer = ASSIGN._replace(number=2, values=np.full(6, 9, np.uint8))
        for message in (ASSIGN, newer, ASSIGN, newer, ASSIGN):
            assert peer.ask(pack(message)).kind is Kind.ACK
        assert (memory.arrays[""][[0, 2]] == 9).all()


def test_of_an_id_that_comes_again_the_last_row_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from kgdist.kvstore import store as store_module

    monkeypatch.setattr(store_module, "PIECE_BYTES", 24)
    with store() as running:
        running.add(RAW, 5, BOUNDS)
        tables = running.client()
        tables.add(RAW, 5)
        ids = np.random.default_rng(0).integers(0, 12, 200)
        values = np.random.default_rng(1).integers(0, 256, (200, 3), np.uint8)
        expected = np.zeros((12, 3), np.uint8)
        expected[ids] = values
        tables.assign("raw", torch.from_numpy(ids), torch.from_numpy(values), wait=False)
        tables.flush()
        np.testing.assert_array_equal(running.whole_raw("raw"), expected)


def test_a_table_that_is_dropped_is_refused_and_its_name_can_come_again() -> None:
    with store(optimizer="sgd") as running:
        first, peer = running.add(RAW, 5, BOUNDS), Peer(running)
        tables = running.client()
        tables.add(RAW, 5)
        tables.assign("raw", slice(0, 12), torch.full((12, 3), 7, dtype=torch.uint8))
        running.drop("raw")  # before the client knows
        with pytest.raises(KgdistError, match=r"127.0.0.1:\d+: error: there is no table 5: 2 tables; it has been dropped"):
            tables.pull("raw", torch.arange(12))
        with pytest.raises(KgdistError, match="there is no table 5"):
            tables.block("raw", 0, 12)
        tables.ahead({"raw": np.arange(3)})
        tables.drop("raw")
        with pytest.raises(UsageError, match="there is no table raw: entity, relation"):
            tables.pull("raw", torch.arange(12))
        assert peer.ask(pack(ASSIGN)).kind is Kind.ERROR
        again = TableSpec("raw", "entity", "int64")
        running.add(again, 6, BOUNDS)
        tables.add(again, 6)
        tables.assign("raw", torch.tensor([3, 11]), torch.tensor([-1, 5]))
        assert tables.pull("raw", torch.tensor([11, 3, 0])).tolist() == [5, -1, 0]
        assert (first[0].arrays[""] == 7).all()
        serves(running, 1)


def test_long_answers_come_in_pieces_among_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more of them wait than there is room for: the questions do."""
    monkeypatch.setattr(answers_module, "PIECE_BYTES", 1000)
    monkeypatch.setattr(answers_module, "MOST_HELD", 20_000)
    seen: list[Any] = []
    with store(services=services(seen)) as running:
        tables = running.client()
        asked = [tables.ask(number % 2, "grow", {"n": 1 + 700 * number}) for number in range(30)]
        tables.pull("entity", torch.arange(12))
        for number, each in enumerate(asked):
            whole, flags = each.result()
            assert each.done() and flags.dtype == np.bool_ and flags.all()
            np.testing.assert_array_equal(whole, np.arange(1 + 700 * number))
        assert {each["n"] for each in seen} == {1 + 700 * number for number in range(30)}  # on a slow machine, asked again
        eventually(lambda: not any(server._answers.busy for server in running.servers))


def test_too_many_questions_are_refused_and_what_nobody_takes_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "MOST_HELD", 1000)
    monkeypatch.setattr(answers_module, "MOST_ASKED", 200)
    monkeypatch.setattr(answers_module, "PIECE_BYTES", 100)
    monkeypatch.setattr(answers_module, "LEFT", 0.0)
    made = answers_module.Answers(services([]))
    silent = lambda peer, message: False  # noqa: E731
    take = lambda size: np.empty(size, np.uint8)  # noqa: E731
    assert made.ask(b"p", asking("grow", n=1000), take) is None
    question = asking("back", REQUESTS + 2, (np.zeros(20),))
    assert made.ask(b"p", question, take) is None and made.ask(b"p", question._replace(number=REQUESTS + 3), take) is None
    with pytest.raises(KgdistError, match="2 questions wait already"):
        made.ask(b"p", question._replace(number=REQUESTS + 4), take)
    deadline = time.monotonic() + 60
    while made.busy:
        made.turn(silent)
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert made.ask(b"p", asking("grow", n=1000), take) is None and made.busy
    made.forget(9)
    assert not made.busy


def test_questions_for_which_there_is_no_room_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask for long answers at once, nobody is refused, and the server keeps no more than it may."""
    monkeypatch.setattr(answers_module, "MOST_HELD", 1)
    monkeypatch.setattr(answers_module, "MOST_ASKED", 50_000)
    monkeypatch.setattr(answers_module, "PIECE_BYTES", 20_000)
    put_off: list[str] = []
    with store(servers=(1, 1), services=services([])) as running:
        server, reading = running.servers[0], threading.Event()
        odd, piece = server._odd, server._piece
        monkeypatch.setattr(server, "_odd", lambda counter, what: put_off.append(what) or odd(counter, what))
        monkeypatch.setattr(server, "_piece", lambda peer, message: reading.is_set() and piece(peer, message))
        asked = []
        for client in range(4):
            tables = running.client(client)
            asked += [(number, tables.ask(0, "back", {}, [np.arange(number, number + 4000)])) for number in range(2)]
        eventually(lambda: len(put_off) >= 5)
        reading.set()
        for number, each in asked:
            np.testing.assert_array_equal(each.result()[0], np.arange(number, number + 4000))
        assert all("put off, for 2 questions wait already" in each for each in put_off)


def test_an_answer_for_which_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the service's arrays nor for what goes out, at once or after a while: whoever asked is told what to do."""
    write = answers_module._written

    def written(arrays: list[np.ndarray], memory: np.ndarray) -> np.ndarray:
        if len(memory) == 8 * 999:
            raise MemoryError
        return write(arrays, memory)

    monkeypatch.setattr(answers_module, "_written", written)
    told = "there is not enough memory for the answer, ask about less at a time "
    zeros = {"zeros": lambda args, arrays: [np.zeros(args["n"], np.int64)]}
    with store(services=zeros) as running:
        tables = running.client()
        for size, detail in ((1 << 57, "Unable to allocate 1.00 EiB"), (999, "MemoryError")):
            with pytest.raises(KgdistError, match=rf"{told}\({detail}"):
                tables.ask(0, "zeros", {"n": size}).result()
        assert len(tables.ask(0, "zeros", {"n": 998}).result()[0]) == 998
        serves(running, 1)
    monkeypatch.setattr(answers_module, "PIECE_BYTES", 100)
    monkeypatch.setattr(answers_module, "MOST_HELD", 1000)
    made, sent = answers_module.Answers(zeros), []
    for number, size in enumerate((998, 999)):
        assert made.ask(b"p", asking("zeros", number, n=size), lambda size: np.empty(size, np.uint8)) is None
    while made.busy:
        made.turn(lambda peer, message: sent.append(message) is None)
    assert [each.kind for each in sent] == [Kind.ANSWER] * 80 + [Kind.ERROR] and sent[-1].text == f"{told}(MemoryError)"


def test_arrays_lie_where_their_numbers_may() -> None:
    """Compiled loops take that for granted; libzmq puts short messages at any address."""
    aligned: list[bool] = []

    def see(args: dict[str, Any], arrays: list[np.ndarray]) -> list[np.ndarray]:
        aligned.extend(array.flags.aligned for array in arrays)
        return arrays

    with store(services={"see": see}) as running:
        tables = running.client()
        for size in range(0, 200, 7):
            found = tables.ask(0, "see", {"x": "x" * size}, [np.arange(size), np.ones(size, np.float32)]).result()
            aligned.extend(array.flags.aligned for array in found)
    assert len(aligned) == 4 * 29 and all(aligned)


def test_questions_that_are_too_long_are_not_sent() -> None:
    with store(services=services([])) as running:
        tables = running.client()
        with pytest.raises(UsageError, match="a question of"):
            tables.ask(0, "back", {"text": "x" * 5000})
        with pytest.raises(UsageError, match="4,194,304 bytes are possible: ask about less at a time"):
            tables.ask(0, "back", {}, [np.zeros((4 << 20) + 1, np.uint8)])
        with pytest.raises(TypeError, match="do not travel"):
            tables.ask(0, "back", {}, [np.zeros(1, np.complex64)])
        with pytest.raises(ValueError, match="no machine 2"):
            tables.ask(2, "back", {})
        assert tables.ask(1, "back", {}).result() == []


def test_pushes_to_tables_with_an_optimiser_of_their_own() -> None:
    spec = TableSpec("emb", "entity", "float32", (2, 2), "adam", {"beta1": 0.5, "eps": 1e-3})
    with store(optimizer="sgd") as running:
        running.add(spec, 5, BOUNDS)
        tables, leaf = running.client(), torch.zeros(12, 4, requires_grad=True)
        tables.add(spec, 5)
        adam = torch.optim.Adam([leaf], lr=0.1, betas=(0.5, 0.999), eps=1e-3)
        for step in range(5):
            leaf.grad = torch.randn(12, 4, generator=torch.Generator().manual_seed(step))
            tables.push({"emb": Update(np.arange(12), leaf.grad.clone())}, 0.1)
            adam.step()
        tables.flush()
        found = tables.pull("emb", torch.arange(12))
        assert found.shape == (12, 2, 2)
        torch.testing.assert_close(found.view(12, 4), leaf.detach(), rtol=1e-5, atol=1e-5)
        running.add(RAW, 6, BOUNDS)
        tables.add(RAW, 6)
        with pytest.raises(UsageError, match="table raw has no optimiser"):
            tables.push({"raw": Update(np.arange(2), torch.zeros(2, 3))}, 0.1)


def test_memory_of_another_length_is_refused() -> None:
    with store() as running:
        running.add(RAW, 5, BOUNDS)
        tables = running.client(machine=0, local=None)
        with pytest.raises(ValueError, match="table raw: rows 0 to 6 in memory of 5 rows"):
            tables.add(RAW, 5, TableMemory.allocate(RAW, 5))
        other = TableSpec("other", "entity", "int16")
        with pytest.raises(ValueError, match="table other: 6 rows in memory, and 7 of this machine"):
            running.servers[0].add(other, 6, TableMemory.allocate(other, 6))
        assert "raw" not in tables.catalogue and "other" not in running.servers[0].catalogue
        assert "other" not in running.machines[0]
        tables.add(TableSpec("raw", "entity", "uint8", (3,)), 5)
        assert not tables.pull("raw", torch.arange(12)).any()


def test_random_questions_and_assignments_of_an_insider() -> None:
    chance = random.Random(5)
    with store(optimizer="sgd", services=services([])) as running:
        running.add(RAW, 5, BOUNDS)
        peer = Peer(running)
        seeds = [asking("grow", n=3), asking("back", arrays=(np.arange(9), np.ones(3, np.bool_))), ASSIGN._replace(number=2)]
        for _ in range(1500):
            frames = [bytearray(part) for part in pack(chance.choice(seeds))]
            for _ in range(chance.randint(1, 4)):
                part = chance.choice(frames)
                part[chance.randrange(len(part))] = chance.randrange(256)
            if frames[0][6] in (Kind.PUSH, Kind.ASSIGN):
                frames[0][24:32] = (2).to_bytes(8, "little")  # too early: even a good one is not applied
            frames[0][6] = Kind.ASK if frames[0][6] == Kind.BYE else frames[0][6]
            peer.send([bytes(part) for part in frames])
            while (came := peer.wire.receive()) is not None:
                parse(came)
        serves(running)
        assert not running.whole_raw("raw").any()


def test_memory_tables_refuse_what_cannot_be() -> None:
    tables = MemoryTables({}, {}, "sgd")
    tables.add(TableMemory.allocate(RAW, 4))
    with pytest.raises(UsageError, match="a table raw already"):
        tables.add(TableMemory.allocate(RAW, 4))
    for ids in (torch.tensor([0, 4]), torch.tensor([-1])):
        with pytest.raises(IndexError, match="in a table of 4 rows"):
            tables.pull("raw", ids)
        with pytest.raises(IndexError, match="in a table of 4 rows"):
            tables.assign("raw", ids, RAW.zeros(len(ids)) + 1)
    with pytest.raises(ValueError, match="3 rows for 2 ids"):
        tables.assign("raw", torch.arange(2), RAW.zeros(3))
    assert not tables.raw["raw"].any()
    with pytest.raises(UsageError, match="no table other that was added: raw"):
        tables.drop("other")
