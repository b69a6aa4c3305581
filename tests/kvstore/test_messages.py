"""What is packed is parsed, and nothing else: every rule of the format, one at a time."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kgdist.base.errors import ProtocolError
from kgdist.kvstore.asking import CODES, described, read_arrays, size_of_arrays, write_arrays
from kgdist.kvstore.identity import Identity, read_body
from kgdist.kvstore.messages import (
    ARRAY,
    BF16,
    FIRST,
    HEADER,
    MOST_TOGETHER,
    PART,
    PROTOCOL,
    U8,
    Kind,
    Message,
    Part,
    pack,
    pack_whole,
    parse,
)
from tests.kvstore.samples import SAMPLES, VALUES, messages

IDENTITY = Identity("1.0", "run", 2, "c0", "9f")


def equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def same(a: Message, b: Message) -> bool:
    fields = ("kind", "client", "incarnation", "round", "number", "dtype", "lr", "text", "arrays", "first")
    return (
        all(getattr(a, f) == getattr(b, f) for f in fields)
        and equal(a.values, b.values)
        and len(a.parts) == len(b.parts)
        and all(
            x[:4] == y[:4] and equal(x.ids, y.ids) and equal(x.squares, y.squares) for x, y in zip(a.parts, b.parts, strict=True)
        )
    )


@given(st.lists(messages(), min_size=1, max_size=5))
def test_packed_and_parsed_is_the_same(some: list[Message]) -> None:
    found = parse([bytes(part) for part in pack(*some)])
    assert len(found) == len(some) and all(same(a, b) for a, b in zip(found, some, strict=True))


@given(st.lists(messages(), min_size=1, max_size=5), st.integers(0, 400), st.booleans())
def test_so_is_what_is_packed_whole(some: list[Message], room: int, there: bool) -> None:
    """With the values of the last message in memory of the sender's, or of another's, as with none."""
    memory, last = None, some[-1].values
    if last is not None:
        memory = np.full(room + last.nbytes, 255, np.uint8)
        if there:
            values = memory[room:].view(last.dtype) if room % last.itemsize == 0 else memory[room:].copy().view(last.dtype)
            values[:] = last
            some = [*some[:-1], some[-1]._replace(values=values)]
    frame = bytes(pack_whole(some, memory))
    assert frame == pack_whole(some)
    found = parse([frame])
    assert len(found) == len(some) and all(same(a, b) for a, b in zip(found, some, strict=True))


def test_values_that_are_sent_whole_stay_where_they_are_and_come_as_views() -> None:
    memory = np.zeros(1000 + VALUES.nbytes, np.uint8)
    values = memory[1000:].view(np.float32)
    values[:] = VALUES
    rows = Message(Kind.ROWS, number=2, parts=(Part(0, 3, 4),), values=values)
    for before in ([], [ACK], [ACK, ACK]):
        frame = pack_whole([*before, rows], memory)
        assert np.shares_memory(frame, values) and frame == pack_whole([*before, rows])
        *_, message = parse([frame])
        assert message.values is not None and np.shares_memory(message.values, values)
    for some, lent in (([rows, ACK], memory), ([rows, rows], memory), ([rows], memory[-60:]), ([rows], memory[:-4])):
        assert isinstance(pack_whole(some, lent), bytes)


def test_an_envelope_has_a_bound() -> None:
    assert len(parse(pack(*[ACK] * MOST_TOGETHER))) == MOST_TOGETHER
    with pytest.raises(ProtocolError, match="more than 32 messages"):
        parse(pack(*[ACK] * (MOST_TOGETHER + 1)))


def test_every_kind_has_a_sample() -> None:
    assert {sample.kind for sample in SAMPLES} == set(Kind)


def changed(sample: Message, **fields: Any) -> list[bytes]:
    """The frames of a message whose header, or line of its first part, says something else."""
    head, *body = (bytes(part) for part in pack(sample))
    names = "magic protocol kind dtype client incarnation round parts number lr size behind".split()
    values = dict(zip(names, HEADER.unpack_from(head), strict=True))
    lines = head[HEADER.size :]
    if sample.parts:
        of_part = dict(zip("table wide squared rows width first".split(), PART.unpack_from(lines), strict=True))
        lines = PART.pack(*(of_part | {k: v for k, v in fields.items() if k in of_part}).values()) + lines[PART.size :]
    return [HEADER.pack(*(values | {k: v for k, v in fields.items() if k in values}).values()) + lines, *body]


PUSH = next(s for s in SAMPLES if s.kind is Kind.PUSH and s.parts[0].squares is not None)
PULL = next(s for s in SAMPLES if s.kind is Kind.PULL)
READ = next(s for s in SAMPLES if s.kind is Kind.READ)
ACK = next(s for s in SAMPLES if s.kind is Kind.ACK)
HEAD, BODY_OF_PUSH = changed(PUSH)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "0 frames"),
        ([b""] * 34, "34 frames"),
        ([b""], "not a message of kgdist"),
        ([b"GET / HTTP/1.1\r\n"], "not a message of kgdist"),
        (changed(PUSH, magic=b"kgdt"), "not a message"),
        (changed(PUSH, protocol=PROTOCOL + 1), f"version {PROTOCOL + 1}, this side {PROTOCOL}"),
        (changed(PUSH, protocol=PROTOCOL - 1), f"version {PROTOCOL - 1}, this side {PROTOCOL}"),
        ([HEAD[:47], BODY_OF_PUSH], "a header of 47 bytes"),
        ([HEAD[:-1], BODY_OF_PUSH], "a head of 96 bytes, where 95 have come"),
        (changed(PUSH, size=95), "23 bytes of ids and squares instead of 24"),
        ([changed(PUSH, size=97)[0] + b"x", BODY_OF_PUSH], "25 bytes of ids and squares instead of 24"),
        (changed(PUSH, size=71), "71 bytes cannot describe 1 parts"),
        (changed(PUSH, size=47), "a head of 47 bytes"),
        (changed(PUSH, size=(1 << 32) - 1), "a head of 4294967295 bytes"),
        ([HEAD + b"x", BODY_OF_PUSH], "not a message"),
        ([HEAD + HEAD, BODY_OF_PUSH], "PUSH: 0 bytes of values instead of 48"),
        ([HEAD + changed(ACK)[0], BODY_OF_PUSH, b""], "3 frames for PUSH, ACK"),
        ([changed(ACK, size=49)[0] + b"x"], "ACK: 1 bytes of ids and squares instead of 0"),
        (changed(PUSH, kind=0), "kind 0"),
        (changed(PUSH, kind=99), "kind 99"),
        (changed(PUSH, dtype=4), "dtype 4"),
        (changed(PUSH, dtype=U8), "PUSH: its values are never of dtype 3"),
        (changed(READ, dtype=BF16), "READ: its values are never of dtype 2"),
        ([HEAD], "PUSH: 0 bytes of values instead of 48"),
        ([*changed(ACK), b""], "2 frames for ACK"),
        (changed(PUSH, parts=0), "PUSH of 0 parts"),
        (changed(PUSH, parts=65), "PUSH of 65 parts"),
        (changed(PUSH, parts=(1 << 32) - 1), "of 4294967295 parts"),
        (changed(ACK, parts=1), "ACK of 1 parts"),
        (changed(PUSH, rows=4), "24 bytes of ids and squares instead of 32"),
        (changed(PUSH, width=5), "48 bytes of values instead of 60"),
        (changed(PUSH, width=0), "3 rows of 0 numbers"),
        (changed(PUSH, dtype=BF16), "48 bytes of values instead of 24"),
        (changed(PUSH, wide=2), "ids of 2 bytes"),
        (changed(PUSH, wide=0), "ids of 0 bytes"),
        (changed(PUSH, wide=8), "24 bytes of ids and squares instead of 36"),
        (changed(READ, wide=4), "ids of 4 bytes"),
        (changed(READ, wide=3), "ids of 3 bytes"),
        (changed(PUSH, squared=2), "squares that it cannot have"),
        (changed(PUSH, squared=0), "24 bytes of ids and squares instead of 12"),
        (changed(PULL, squared=1), "squares that it cannot have"),
        (changed(READ, rows=(1 << 32) - 1, width=(1 << 32) - 1), "over the limit of 64 MiB"),
        (changed(READ, rows=1 << 24, width=2), "over the limit"),
        ([HEAD, BODY_OF_PUSH[:-1]], "47 bytes of values"),
        ([changed(SAMPLES[0], size=48 + 4097)[0][:48] + b"x" * 4097], "bytes of text"),
        ([changed(PUSH, behind=48)[0] + BODY_OF_PUSH[:-1]], "48 bytes of values behind its head, where 47 have come"),
        ([changed(PUSH, behind=44)[0] + BODY_OF_PUSH[:-4]], "44 bytes of values instead of 48"),
        ([changed(PUSH, behind=48)[0] + BODY_OF_PUSH, BODY_OF_PUSH], "2 frames for PUSH"),
        ([changed(PUSH, behind=(1 << 32) - 1)[0] + BODY_OF_PUSH], "4294967295 bytes of values behind its head"),
        ([changed(ACK, behind=8)[0] + bytes(8)], "ACK with 8 bytes of values, which it does not have"),
        ([changed(PULL, behind=8)[0] + bytes(12)], "PULL with 8 bytes of values, which it does not have"),
        ([changed(SAMPLES[2], behind=1)[0] + bytes(7)], "REFUSED with 1 bytes of values, which it does not have"),
    ],
)
def test_each_lie_is_named(frames: list[bytes], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        parse(frames)


def test_the_format_is_what_other_releases_expect() -> None:
    ack = Message(Kind.ACK, client=1, incarnation=2, round=3, number=4, lr=0.5)
    said = b"kgds" + struct.pack("<HBB", 5, 9, 1) + struct.pack("<IIIIQdII", 1, 2, 3, 0, 4, 0.5, 48, 0)
    assert pack(ack) == [said] and len(said) == 48
    head = b"kgds" + struct.pack("<HBB", 5, 8, 1) + struct.pack("<IIIIQdII", 1, 2, 3, 1, 4, 0.5, 88, 0)
    head += struct.pack("<IBBHIIq", 7, 4, 1, 0, 2, 3, -6) + struct.pack("<ii", 8, 9) + struct.pack("<ff", 0.5, 1.5)
    part = Part(7, 2, 3, -6, np.array([8, 9], np.int32), np.array([0.5, 1.5], np.float32))
    values = np.arange(6, dtype=np.float32)
    push = Message(Kind.PUSH, client=1, incarnation=2, round=3, number=4, lr=0.5, parts=(part,), values=values)
    assert [bytes(frame) for frame in pack(push)] == [head, values.tobytes()]
    assert [bytes(frame) for frame in pack(ack, push, ack)] == [said + head + said, values.tobytes()]
    told = struct.pack("<I", values.nbytes)
    assert pack_whole([ack, push, ack]) == said + head[:44] + told + head[48:] + values.tobytes() + said
    ask = Message(
        Kind.ASK, client=1, incarnation=2, round=3, number=4, text="[]", arrays=((6, 2), (10, 1)), values=np.zeros(16, np.uint8)
    )
    head = b"kgds" + struct.pack("<HBB", 5, 14, 1) + struct.pack("<IIIIQdII", 1, 2, 3, 2, 4, 0, 90, 0)
    head += struct.pack("<QQQQQ", 0, 6, 2, 10, 1) + b"[]"
    assert [bytes(frame) for frame in pack(ask)] == [head, bytes(16)]


def typed(sample: Message, first: int = 0, lines: list[tuple[int, int]] | None = None, body: bytes | None = None) -> list[bytes]:
    """The frames of ASK or ANSWER that say something else than they have."""
    head, *rest = (bytes(part) for part in pack(sample))
    told = FIRST.pack(first) + b"".join(ARRAY.pack(*line) for line in (sample.arrays if lines is None else lines))
    told += sample.text.encode()
    fields = [*HEADER.unpack_from(head)]
    fields[7], fields[10] = len(sample.arrays if lines is None else lines), HEADER.size + len(told)
    return [HEADER.pack(*fields) + told, *(rest if body is None else [body])]


ASK, ANSWER = (next(s for s in SAMPLES if s.kind is kind) for kind in (Kind.ASK, Kind.ANSWER))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (typed(ASK)[:1], "ASK: 0 bytes of values from 0 on, of 16"),
        (typed(ASK, body=b"x" * 17), "17 bytes of values from 0 on, of 16"),
        (typed(ASK, body=b"x" * 15), "15 bytes of values from 0 on, of 16"),
        (typed(ASK, body=b""), "0 bytes of values"),
        (typed(ASK, first=8, body=b"x" * 8), "8 bytes of values from 8 on"),
        (typed(ASK, lines=[(0, 1)]), "arrays of dtypes"),
        (typed(ASK, lines=[(13, 1)]), "arrays of dtypes"),
        (typed(ASK, lines=[(3, (1 << 64) - 1)]), "16 bytes of values from 0 on"),
        (typed(ASK, lines=[(3, 0)] * 65), "cannot describe 65 arrays"),
        (typed(ASK, lines=[(3, 0)]), "2 frames for ASK"),
        (changed(ASK, parts=60), "cannot describe 60 arrays"),
        (changed(ASK, parts=(1 << 32) - 1), "cannot describe 4294967295 arrays"),
        (typed(ANSWER, first=16), "16 bytes of values from 16 on, of 16"),
        (typed(ANSWER, first=(1 << 64) - 1), "bytes of values from"),
        (typed(ANSWER, first=8), "16 bytes of values from 8 on, of 16"),
        (typed(ANSWER, first=8, lines=[])[:1], "from 8 on, of none"),
        ([*typed(ASK._replace(text="x" * 4096), lines=[(3, 5), (10, 0), (5, 2)])[:1], b"x"], "1 bytes of values"),
        ([typed(ASK)[0] + b"x" * 9, *typed(ASK)[1:]], "a header of 9 bytes|not a message"),
    ],
)
def test_each_lie_about_arrays_is_named(frames: list[bytes], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        parse(frames)


@given(st.lists(hnp.arrays(st.sampled_from(list(CODES)), st.integers(0, 20)), max_size=5))
def test_arrays_of_every_dtype_come_as_they_were(arrays: list[np.ndarray]) -> None:
    columns = described(arrays)
    memory = np.full(size_of_arrays(columns), 255, np.uint8)
    write_arrays(arrays, memory)
    found = read_arrays(columns, memory)
    assert [each.dtype for each in found] == [each.dtype for each in arrays]
    assert [each.tobytes() for each in found] == [each.tobytes() for each in arrays]


def test_a_bool_is_true_or_false_whatever_came() -> None:
    (found,) = read_arrays([(1, 3)], np.array([0, 7, 255], np.uint8))
    assert found.dtype == np.bool_ and found.view(np.uint8).tolist() == [0, 1, 1]
    with pytest.raises(TypeError, match="complex128 do not travel"):
        described([np.zeros(1, np.complex128)])


def test_a_learning_rate_arrives_to_the_last_bit() -> None:
    for lr in (1e-9, 0.1, 5e-324, 1 / 3):
        assert parse(pack(PUSH._replace(lr=lr)))[0].lr == lr


def test_arrays_are_views_where_they_can_be() -> None:
    values = np.zeros(6, np.float32)
    frames = pack(Message(Kind.PUSH, parts=(Part(0, 2, 3, ids=np.arange(2)),), values=values))
    (message,) = parse([bytearray(frames[0]), frames[1]])
    assert message.values is not None and np.shares_memory(message.values, values)
    ((part, rows),) = message.filled()
    assert np.shares_memory(rows, values) and part.ids is not None and part.ids.base is not None
    odd = memoryview(bytearray(25))[1:]  # an address that no float lies at
    copied = parse([frames[0], odd])[0].values
    assert copied is not None and copied.flags.aligned


def test_identities_differ_by_name_and_both_values() -> None:
    assert IDENTITY.difference(IDENTITY.text("trainer", 3)) is None
    for change, words in (
        ({"version": "0.9"}, "version is 0.9 there and 1.0 here"),
        ({"run": "other"}, "run is other there and run here"),
        ({"attempt": 1}, "attempt is 1 there and 2 here"),
        ({"config": "c1\n"}, r"config is c1\n there and c0 here"),
        ({"graph": "aa"}, "graph is aa there and 9f here"),
    ):
        assert IDENTITY.difference(replace(IDENTITY, **change).text("trainer", 0)) == words


BODY = json.loads(IDENTITY.text("trainer", 0))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '"x"', "[" * 4000, '{"a":' * 800, json.dumps({**BODY, "more": 1}), json.dumps({**BODY, "rank": "0"}),
     json.dumps({**BODY, "attempt": True}), json.dumps({**BODY, "attempt": 1.0}), json.dumps({**BODY, "run": None}), "NaN"],
)  # fmt: skip
def test_a_body_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="HELLO"):
        read_body(text)
