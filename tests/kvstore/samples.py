"""One message of each kind, and hypothesis' many."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kgdist.kvstore.asking import ARRAYS, size_of_arrays, worded
from kgdist.kvstore.identity import Identity
from kgdist.kvstore.messages import (
    BF16,
    DTYPES_OF,
    FILLED,
    FP32,
    ID_WIDTHS,
    ITEM,
    NAMING,
    SIZED,
    TEXTS,
    TYPED,
    U8,
    Kind,
    Message,
    Part,
)

IDS = np.array([3, 1, 2], np.int32)
VALUES = np.arange(12, dtype=np.float32)
BITS = VALUES.astype(np.uint16)
BYTES = np.arange(18, dtype=np.uint8)
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
    Message(Kind.ASSIGN, number=3, parts=(Part(0, 3, 4, first=7),), values=VALUES),
    Message(Kind.ASSIGN, number=4, dtype=U8, parts=(Part(1 << 31, 3, 4, ids=IDS), Part(0, 2, 3, 1)), values=BYTES),
    Message(Kind.READ, number=2, dtype=U8, parts=(Part(0, 3, 4, first=7),)),
    Message(Kind.ROWS, number=2, dtype=U8, parts=(Part(0, 3, 4), Part(3, 2, 3)), values=BYTES),
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
    Message(Kind.ASK, number=5, text=worded("double", {"by": 2}), arrays=((3, 5), (10, 0), (5, 2)), values=BYTES[:16]),
    Message(Kind.ASK, number=6, text=worded("how", {})),
    Message(Kind.ANSWER, number=5, arrays=((3, 5), (8, 1)), values=BYTES[:16]),
    Message(Kind.ANSWER, number=5, arrays=((2, 21),), values=BYTES[:8], first=8),
    Message(Kind.ANSWER, number=6, arrays=((2, 0),)),
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
        dtype = draw(st.sampled_from(DTYPES_OF.get(kind, (FP32, BF16, U8))))
        parts = draw(st.lists(some_parts(kind), min_size=1, max_size=4))
        fields |= {"dtype": dtype, "parts": tuple(parts)}
        if kind in FILLED:
            count = sum(part.rows * part.width for part in parts)
            fields["values"] = draw(hnp.arrays(ITEM[dtype], count))
    if kind in TYPED:
        fields["arrays"] = arrays = tuple(draw(st.lists(st.tuples(st.sampled_from(list(ARRAYS)), st.integers(0, 9)), max_size=4)))
        fields["text"] = draw(st.text(st.characters(codec="utf-8"), max_size=50))
        if size := size_of_arrays(arrays):
            fields["first"] = draw(st.integers(0, size - 1)) if kind is Kind.ANSWER else 0
            fields["values"] = draw(hnp.arrays(np.uint8, size - fields["first"]))
    return Message(kind, **fields)


@st.composite
def some_parts(draw: st.DrawFn, kind: Kind) -> Part:
    """One part of such a message."""
    rows, ids, squares = draw(st.integers(0, 5)), None, None
    if kind in NAMING:
        wide = draw(st.sampled_from(NAMING[kind]))
        ids = draw(hnp.arrays(ID_WIDTHS[wide], rows)) if wide else None
    if kind is Kind.PUSH and draw(st.booleans()):
        squares = draw(hnp.arrays(np.float32, rows))
    first = draw(st.integers(-(1 << 63), (1 << 63) - 1))
    return Part(draw(st.integers(0, (1 << 32) - 1)), rows, draw(st.integers(1, 5)), first, ids, squares)
