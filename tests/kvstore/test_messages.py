"""What is packed is parsed, and nothing else: every rule of the format, one at a time."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from kgdist.errors import ProtocolError
from kgdist.kvstore.messages import BF16, HEADER, PROTOCOL, Identity, Kind, Message, pack, parse, read_body
from tests.kvstore.samples import SAMPLES, messages

IDENTITY = Identity("1.0", "run", 2, "c0", "9f")


def same(a: Message, b: Message) -> bool:
    fields = ("kind", "client", "incarnation", "round", "number", "table", "count", "width", "first", "lr", "text")
    arrays = ("ids", "values", "squares")
    return all(getattr(a, f) == getattr(b, f) for f in fields) and all(
        (x is None) == (y is None) and (x is None or (x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")))
        for x, y in ((getattr(a, f), getattr(b, f)) for f in arrays)
    )


@given(messages())
def test_packed_and_parsed_is_the_same(message: Message) -> None:
    assert same(parse([bytes(part) for part in pack(message)]), message)


def test_every_kind_has_a_sample() -> None:
    assert {sample.kind for sample in SAMPLES} == set(Kind)


def changed(sample: Message, **fields: Any) -> list[bytes]:
    """The frames of a message whose header says something else."""
    frames = [bytes(part) for part in pack(sample)]
    names = "magic protocol kind dtype client incarnation round number table wide count width first lr".split()
    values = dict(zip(names, HEADER.unpack(frames[0]), strict=True)) | fields
    return [HEADER.pack(*values.values()), *frames[1:]]


PUSH = next(s for s in SAMPLES if s.kind is Kind.PUSH and s.squares is not None)
PULL = next(s for s in SAMPLES if s.kind is Kind.PULL)
READ = next(s for s in SAMPLES if s.kind is Kind.READ)
ACK = next(s for s in SAMPLES if s.kind is Kind.ACK)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "0 frames"),
        ([b""] * 5, "5 frames"),
        ([b""], "not a message of kgdist"),
        ([b"GET / HTTP/1.1\r\n"], "not a message of kgdist"),
        (changed(PUSH, magic=b"kgdt"), "not a message"),
        (changed(PUSH, protocol=PROTOCOL + 1), f"version {PROTOCOL + 1}, this side {PROTOCOL}"),
        (changed(PUSH, protocol=PROTOCOL - 1), f"version {PROTOCOL - 1}, this side {PROTOCOL}"),
        ([changed(PUSH)[0][:-1], *changed(PUSH)[1:]], "a header of 55 bytes"),
        ([changed(PUSH)[0] + b"x", *changed(PUSH)[1:]], "a header of 57 bytes"),
        (changed(PUSH, kind=0), "kind 0"),
        (changed(PUSH, kind=99), "kind 99"),
        (changed(PUSH, dtype=3), "dtype 3"),
        (changed(READ, dtype=BF16), "float32 only"),
        (changed(PUSH)[:2], "with 1 frames"),
        ([*changed(ACK), b""], "with 1 frames"),
        (changed(PUSH, count=PUSH.count + 1), "bytes of ids instead of"),
        (changed(PUSH, width=PUSH.width + 1), "bytes of values instead of"),
        (changed(PUSH, width=0), "rows of 0 numbers"),
        (changed(ACK, width=3), "rows of 3 numbers"),
        (changed(ACK, count=3), "3 rows of 0"),
        (changed(PUSH, dtype=BF16), "bytes of values instead of"),
        (changed(PUSH, wide=2), "ids of 2 bytes"),
        (changed(PUSH, wide=0), "ids of 0 bytes"),
        (changed(PUSH, wide=12 - changed(PUSH)[0][30]), "bytes of ids instead of"),
        (changed(ACK, wide=4), "ids of 4 bytes"),
        (changed(PULL, count=(1 << 32) - 1, width=(1 << 32) - 1), "over the limit of 64 MiB"),
        (changed(READ, count=1 << 24, width=2), "over the limit"),
        ([*changed(PUSH)[:3], b"123"], "bytes of squares"),
        ([changed(SAMPLES[0])[0], b"x" * 4097], "bytes of text"),
    ],
)
def test_each_lie_is_named(frames: list[bytes], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        parse(frames)


def test_the_header_is_what_other_releases_expect() -> None:
    message = Message(Kind.ACK, client=1, incarnation=2, round=3, number=4, table=5, first=-6, lr=0.5)
    expected = b"kgds" + struct.pack("<HBB", 1, 10, 1) + struct.pack("<IIIQHHIIqd", 1, 2, 3, 4, 5, 0, 0, 0, -6, 0.5)
    assert pack(message) == [expected] and len(expected) == 56


def test_a_learning_rate_arrives_to_the_last_bit() -> None:
    for lr in (1e-9, 0.1, 5e-324, 1 / 3):
        assert parse(pack(replace(PUSH, lr=lr))).lr == lr


def test_arrays_are_views_where_they_can_be() -> None:
    values = np.zeros((2, 3), np.float32)
    message = parse(
        [bytearray(p) if i == 0 else p for i, p in enumerate(pack(Message(Kind.ROWS, count=2, width=3, values=values)))]
    )
    assert message.values is not None and np.shares_memory(message.values, values)
    odd = memoryview(bytearray(25))[1:]  # an address that no float lies at
    copied = parse([pack(Message(Kind.ROWS, count=2, width=3, values=values))[0], odd]).values
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
