"""Whatever an insider asks, assigns or answers: the server says what is wrong with it or passes over it, and serves the next one.

Questions are for the services that a partition's owner has, over a small graph; what they are given is anything.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kgdist.base.errors import ProtocolError
from kgdist.distributed.services import Owner, OwnRows
from kgdist.kvstore.asking import CODES, described, size_of_arrays, worded, write_arrays
from kgdist.kvstore.catalogue import TableSpec
from kgdist.kvstore.messages import REQUESTS, U8, Kind, Message, Part, pack, parse
from kgdist.kvstore.server import GARBAGE, REFUSED
from tests.distributed.worlds import Part as WorldPart
from tests.distributed.worlds import world
from tests.kvstore.servers import Store, store
from tests.kvstore.test_hostile import HELLO, Peer
from tests.patience import patience

EDGES = {("a", "r", "b"): 40, ("b", "s", "a"): 60}
MADE = world(2, {"a": 30, "b": 7}, EDGES)
WEIGHTS = torch.from_numpy(MADE.edge_features["b", "s", "a"]["w"][: MADE.edges["b", "s", "a"][1]])
TABLES = {"w": OwnRows(0, WEIGHTS), "mask": OwnRows(0, WEIGHTS > 0.5), "ids": OwnRows(3, torch.arange(12).view(6, 2))}
SERVICES = Owner(TABLES.get, {"g": WorldPart(MADE, 0)}).services()
RAW = TableSpec("raw", "entity", "uint8", (3,))


@pytest.fixture(scope="module")
def running() -> Iterator[Store]:
    with store(optimizer="sgd", services=SERVICES, timeout=30) as made:
        made.add(RAW, 5, np.array([0, 7, 12]))
        yield made


@pytest.fixture(scope="module")
def peer(running: Store) -> Peer:
    return Peer(running)


def asking(text: str, arrays: list[np.ndarray], number: int = REQUESTS + 1) -> Message:
    columns = described(arrays)
    values = np.empty(size, np.uint8) if (size := size_of_arrays(columns)) else None
    if values is not None:
        write_arrays(arrays, values)
    return Message(Kind.ASK, client=9, number=number, text=text, arrays=columns, values=values)


GOOD = asking(worded("in_degrees", {"graph": "g", "etype": 1}), [np.arange(3)], REQUESTS + 77)


def came(peer: Peer, number: int) -> Message:
    """The reply of that number; others before it are passed over."""
    while peer.wire.socket.poll(1000 * patience(60)):
        for message in parse(peer.wire.receive() or []):
            if message.number == number:
                return message
    raise AssertionError("no reply")


# What is nearly right gets further than what is not.
WORDS = st.sampled_from(["g", "w", "mask", "ids", "node", "edge", "a", "b", "a:r:b", "in_degrees", ""]) | st.text(max_size=9)
NUMBERS = st.integers(-3, 8) | st.integers() | st.floats() | st.sampled_from([2**31, 2**63, -(2**63), 10**400])
SMALL = st.none() | st.booleans() | NUMBERS | WORDS
ANYTHING = st.recursive(SMALL, lambda some: st.lists(some, max_size=4) | st.dictionaries(WORDS, some, max_size=4), max_leaves=8)
FANOUTS = st.integers(-3, 3) | st.none() | WORDS | st.sampled_from([2**31 + 1, 2**63, 10**400, float("nan"), 1.5, True])
ROW = st.fixed_dictionaries(
    {
        "etype": st.integers(0, 1) | SMALL,
        "fanout": st.integers(-1, 3) | FANOUTS,
        "replace": st.booleans() | SMALL,
        "table": st.sampled_from([None, "w"]) | SMALL,
    }
)
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "graph": st.just("g"),
    "etype": st.integers(0, 1),
    "table": st.sampled_from(["w", "mask", "ids"]),
    "kind": st.sampled_from(["node", "edge"]),
    "type": st.sampled_from(["a", "a:r:b"]),
    "draw": st.just([1, 2, 3]) | ANYTHING,
    "questions": st.lists(ROW, min_size=1, max_size=2) | ANYTHING,
}
NODES = hnp.arrays(np.int64, st.integers(0, 9), elements=st.integers(0, 3))
ARRAYS = st.lists(NODES, min_size=2, max_size=2) | st.lists(
    NODES | hnp.arrays(st.sampled_from(list(CODES)), st.integers(0, 9)), max_size=6
)


@st.composite
def asked(draw: st.DrawFn) -> str:
    """A question that a service of ours may have an answer to, or not."""
    arguments = draw(st.fixed_dictionaries(KEYS))
    for key in draw(st.lists(st.sampled_from(list(KEYS)), max_size=2)):
        arguments[key] = draw(ANYTHING)
    if draw(st.integers(0, 9)) == 0:
        del arguments[draw(st.sampled_from(list(arguments)))]
    return worded(draw(st.sampled_from(list(SERVICES)) | WORDS), arguments)


@settings(max_examples=300)
@given(asked(), ARRAYS)
def test_every_question_is_answered_or_refused_in_a_line(peer: Peer, text: str, arrays: list[np.ndarray]) -> None:
    peer.send(pack(asking(text, arrays)))
    reply = came(peer, REQUESTS + 1)
    event(reply.kind.name)
    assert reply.kind is Kind.ANSWER or (reply.kind is Kind.ERROR and reply.text and "\n" not in reply.text), reply
    peer.send(pack(GOOD))
    assert came(peer, GOOD.number).kind is Kind.ANSWER


@settings(max_examples=50)
@given(ANYTHING | st.text(max_size=40))
def test_a_text_that_is_no_question_is_refused(peer: Peer, what: Any) -> None:
    for text in (json.dumps(what), str(what), "[" * 4096):
        peer.send(pack(asking(text, [])))
        assert came(peer, REQUESTS + 1).kind is Kind.ERROR


PART = Part(5, 2, 3, ids=np.array([0, 2], np.int32))
SEEDS = [
    GOOD._replace(number=REQUESTS + 1),
    asking(worded("neighbours", {"graph": "g", "draw": [0, 0, 0], "questions": []}), [np.arange(2), np.ones(3, np.bool_)]),
    Message(Kind.ANSWER, client=9, number=REQUESTS + 1, arrays=((3, 5), (8, 1)), values=np.zeros(16, np.uint8)),
    Message(Kind.ANSWER, client=9, number=REQUESTS + 1, arrays=((2, 21),), values=np.zeros(8, np.uint8), first=8),
    Message(Kind.ASSIGN, client=9, number=2, dtype=U8, parts=(PART,), values=np.zeros(6, np.uint8)),
    Message(Kind.ASSIGN, client=9, number=2, dtype=U8, parts=(PART._replace(ids=None, first=1),), values=np.zeros(6, np.uint8)),
]
ENVELOPES = st.lists(st.sampled_from(SEEDS), min_size=1, max_size=3).map(lambda some: [bytes(part) for part in pack(*some)])


@st.composite
def spoilt(draw: st.DrawFn) -> list[bytes]:
    """Frames of such messages, some bytes of which are others, or gone, or too many, or whose frames are."""
    frames = [bytearray(part) for part in draw(ENVELOPES)]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(frames) - 1))
        match draw(st.integers(0, 4)):
            case 0 | 1 if frames[at]:
                frames[at][draw(st.integers(0, len(frames[at]) - 1))] = draw(st.integers(0, 255))
            case 2:
                del frames[at][draw(st.integers(0, len(frames[at]))) :]
            case 3:
                frames[at] += draw(st.binary(max_size=40))
            case 4:
                frames.insert(at + 1, bytearray(draw(st.binary(max_size=40))))
    return [bytes(part) for part in frames]


@settings(max_examples=300)
@given(spoilt())
def test_what_is_spoilt_is_told_or_passed_over(running: Store, peer: Peer, frames: list[bytes]) -> None:
    before = running.counted(GARBAGE)
    try:
        parse(frames)
        fine = True
    except ProtocolError:
        fine = False
    peer.send(frames)
    peer.send(pack(HELLO, GOOD))  # it may have said BYE, too
    assert came(peer, GOOD.number).kind is Kind.ANSWER
    assert running.counted(GARBAGE) == before + (not fine)


def test_what_is_no_answer_to_anybody_is_told_in_one_line(peer: Peer, running: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A server is asked and does not ask: whoever answers it is told so, each time, and the log once a minute."""
    logging.getLogger("kgdist").addHandler(caplog.handler)
    try:
        before = running.counted(REFUSED)
        running.servers[0]._said = -math.inf  # as if a minute had gone
        for number in range(20):
            peer.send(pack(SEEDS[2]._replace(number=REQUESTS + 100 + number)))
            reply = came(peer, REQUESTS + 100 + number)
            assert reply.kind is Kind.ERROR and reply.text == "a client does not say ANSWER"
        assert running.counted(REFUSED) == before + 20
    finally:
        logging.getLogger("kgdist").removeHandler(caplog.handler)
    (line,) = {record.getMessage() for record in caplog.records}
    assert "the last: ANSWER of client 9: a client does not say ANSWER" in line
