"""Whatever frames arrive, the parser gives a message or raises ProtocolError, and allocates no more than it was sent."""

from __future__ import annotations

import random
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import ProtocolError
from kgdist.kvstore.identity import read_body
from kgdist.kvstore.messages import HEADER, MAGIC, PART, pack, pack_whole, parse
from tests.kvstore.samples import SAMPLES

TOGETHER = [SAMPLES[:3], [SAMPLES[10], SAMPLES[3]], SAMPLES[6:14], SAMPLES]  # in one envelope
ENVELOPES = [*([sample] for sample in SAMPLES), *TOGETHER]
SEEDS = [*([bytes(part) for part in pack(*some)] for some in ENVELOPES), *([pack_whole(some)] for some in ENVELOPES)]


def fate(frames: list[bytes]) -> str:
    """What becomes of the frames."""
    try:
        messages = parse(frames)
    except ProtocolError:
        return "refused"
    parts = [part for message in messages for part in message.parts]
    arrays = [*(message.values for message in messages), *(a for part in parts for a in (part.ids, part.squares))]
    assert sum(map(len, frames)) >= sum(a.nbytes for a in arrays if a is not None)
    return "parsed"


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_any_bytes(frames: list[bytes]) -> None:
    assert fate(frames) == "refused"  # none of these found the magic


@given(st.binary(min_size=HEADER.size - 4, max_size=HEADER.size - 4), st.lists(st.binary(max_size=64), max_size=3))
def test_any_header_after_the_magic(head: bytes, frames: list[bytes]) -> None:
    fate([MAGIC + head, *frames])


@given(st.sampled_from(SEEDS), st.data())
def test_a_good_message_with_some_bytes_changed(seed: list[bytes], data: st.DataObject) -> None:
    frames = [bytearray(part) for part in seed]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = frames[data.draw(st.integers(0, len(frames) - 1))]
        if frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    fate([bytes(part) for part in frames])


def test_a_random_corpus() -> None:
    """Bytes changed, frames cut, joined, doubled, dropped and swapped: 20,000 of them, and some are still good."""
    chance, fates = random.Random(0), []
    for _ in range(20_000):
        frames = [bytearray(part) for part in chance.choice(SEEDS)]
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(frames)) if frames else 0
            match chance.randrange(6) if frames else 3:
                case 0 if frames[at]:
                    frames[at][chance.randrange(len(frames[at]))] = chance.randrange(256)
                case 1:
                    frames[at] = frames[at][: chance.randrange(len(frames[at]) + 1)]
                case 2:
                    frames.append(frames[at])
                case 3:
                    frames.insert(at, bytearray(chance.randbytes(chance.randrange(80))))
                case 4:
                    del frames[at]
                case 5:
                    chance.shuffle(frames)
        fates.append(fate([bytes(part) for part in frames]))
    assert 1000 < fates.count("parsed") < 19_000


def test_a_lying_header_costs_nothing() -> None:
    """Counts of up to 2^32 rows and numbers, with nothing behind them."""
    chance = random.Random(1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(3000):
            frames = [bytearray(part) for part in chance.choice(SEEDS)]
            if len(frames[0]) >= HEADER.size + PART.size:
                frames[0][HEADER.size + 4 : HEADER.size + 12] = chance.randbytes(8)  # rows and width
            frames[0][20:24] = chance.randbytes(4) if chance.random() < 0.5 else frames[0][20:24]  # parts
            fate([bytes(part) for part in frames])
        assert tracemalloc.get_traced_memory()[1] - before < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.text(max_size=300) | st.from_regex(r'\{"version": .*\}', fullmatch=True))
def test_any_text_for_a_body(text: str) -> None:
    try:
        read_body(text)
    except ProtocolError:
        return
    raise AssertionError("nobody guesses a HELLO")
