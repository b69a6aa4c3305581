"""One message of each kind, and hypothesis' many."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kgdist.kvstore.messages import BF16, FILLED, FP32, NAMING, SIZED, TEXTS, Identity, Kind, Message, Part

IDS = np.array([3, 1, 2], np.int32)
VALUES = np.arange(12, dtype=np.float32)
BITS = VALUES.astype(np.uint16)
SQUARES = np.ones(3, np.float32)

SAMPLES = [
    Message(Kind.HELLO, client=1, incarnation=2, round=3, text=Identity("1", "run", 1, "c", "g").text("trainer", 0)),
    Message(Kind.WELCOME, client=1, number=9, text=Identity("1", "run", 1, "c", "g").text("server", 0)),
    Message(Kind.REFUSED, text="no"),
    Message(Kind.PULL, number=1, dtype=BF16, parts=(Part(0, 3, 4, ids=IDS),)),
    Message(Kind.PULL, number=2, parts=(Part(0, 3, 4, ids=IDS), Part(1, 3, 2, ids=IDS.astype(np.int64)))),
    Message(Kind.READ, number=2, parts=(Part(0, 3, 4, first=7),)),
    Message(Kind.ROWS, number=1, dtype=BF16, parts=(Part(0, 3, 4),), values=BITS),
    Message(Kind.ROWS, number=2, parts=(Part(0, 2, 4), Part(2, 1, 4)), values=VALUES),
    Message(Kind.WRITE, number=3, parts=(Part(0, 3, 4, first=7),), values=VALUES),
    Message(Kind.WRITTEN, number=3),
    Message(Kind.PUSH, number=1, lr=0.1, parts=(Part(1, 3, 4, ids=IDS, squares=SQUARES),), values=VALUES),
    Message(Kind.PUSH, number=2, lr=0.1, dtype=BF16, parts=(Part(0, 3, 4, ids=IDS.astype(np.int64)),), values=BITS),
    Message(
        Kind.PUSH,
        number=3,
        lr=0.1,
        parts=(Part(0, 2, 3, ids=IDS[:2]), Part(1, 3, 2, ids=IDS, squares=SQUARES)),
        values=VALUES,
    ),
    Message(Kind.ACK, number=2),
    Message(Kind.GAP, number=1),
    Message(Kind.WHO),
    Message(Kind.ERROR, number=4, text="row 9 in a table of rows 0 to 8"),
    Message(Kind.BYE),
]


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any message that can be packed."""
    kind = draw(st.sampled_from(Kind))
    u32 = st.integers(0, (1 << 32) - 1)
    fields: dict[str, Any] = {name: draw(u32) for name in ("client", "incarnation", "round")}
    fields |= {"number": draw(st.integers(0, (1 << 64) - 1)), "lr": draw(st.floats(allow_nan=False))}
    if kind in TEXTS:
        fields["text"] = draw(st.text(st.characters(codec="utf-8"), max_size=50))
    if kind in SIZED:
        dtype = draw(st.sampled_from([FP32, BF16])) if kind not in (Kind.READ, Kind.WRITE) else FP32
        parts = draw(st.lists(some_parts(kind), min_size=1, max_size=4))
        fields |= {"dtype": dtype, "parts": tuple(parts)}
        if kind in FILLED:
            count = sum(part.rows * part.width for part in parts)
            fields["values"] = draw(hnp.arrays(np.float32 if dtype == FP32 else np.uint16, count))
    return Message(kind, **fields)


@st.composite
def some_parts(draw: st.DrawFn, kind: Kind) -> Part:
    """One part of such a message."""
    rows, ids, squares = draw(st.integers(0, 5)), None, None
    if kind in NAMING:
        ids = draw(hnp.arrays(draw(st.sampled_from([np.int32, np.int64])), rows))
    if kind is Kind.PUSH and draw(st.booleans()):
        squares = draw(hnp.arrays(np.float32, rows))
    first = draw(st.integers(-(1 << 63), (1 << 63) - 1))
    return Part(draw(st.integers(0, 65535)), rows, draw(st.integers(1, 5)), first, ids, squares)
