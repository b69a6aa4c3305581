"""One message of each kind, and hypothesis' many."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kgdist.kvstore.messages import BF16, FP32, Identity, Kind, Message

IDS = np.array([3, 1, 2], np.int32)
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
SIZES = {"count": 3, "width": 4}

SAMPLES = [
    Message(Kind.HELLO, client=1, incarnation=2, round=3, text=Identity("1", "run", 1, "c", "g").text("trainer", 0)),
    Message(Kind.WELCOME, client=1, number=9, text=Identity("1", "run", 1, "c", "g").text("server", 0)),
    Message(Kind.REFUSED, text="no"),
    Message(Kind.PULL, number=1, ids=IDS, dtype=BF16, **SIZES),
    Message(Kind.READ, number=2, first=7, **SIZES),
    Message(Kind.ROWS, number=1, values=VALUES.astype(np.uint16), dtype=BF16, **SIZES),
    Message(Kind.ROWS, number=2, values=VALUES, **SIZES),
    Message(Kind.WRITE, number=3, values=VALUES, first=7, **SIZES),
    Message(Kind.WRITTEN, number=3),
    Message(Kind.PUSH, number=1, table=1, lr=0.1, ids=IDS, values=VALUES, squares=np.ones(3, np.float32), **SIZES),
    Message(Kind.PUSH, number=2, lr=0.1, ids=IDS.astype(np.int64), values=VALUES.astype(np.uint16), dtype=BF16, **SIZES),
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
    fields: dict[str, object] = {name: draw(u32) for name in ("client", "incarnation", "round")}
    fields |= {"number": draw(st.integers(0, (1 << 64) - 1)), "table": draw(st.integers(0, 65535))}
    fields |= {"first": draw(st.integers(-(1 << 63), (1 << 63) - 1)), "lr": draw(st.floats(allow_nan=False))}
    if kind in (Kind.HELLO, Kind.WELCOME, Kind.REFUSED, Kind.ERROR):
        fields["text"] = draw(st.text(st.characters(codec="utf-8"), max_size=50))
    if kind in (Kind.PULL, Kind.READ, Kind.ROWS, Kind.WRITE, Kind.PUSH):
        count, width = draw(st.integers(0, 5)), draw(st.integers(1, 5))
        dtype = draw(st.sampled_from([FP32, BF16])) if kind not in (Kind.READ, Kind.WRITE) else FP32
        fields |= {"count": count, "width": width, "dtype": dtype}
        if kind in (Kind.PULL, Kind.PUSH):
            fields["ids"] = draw(hnp.arrays(draw(st.sampled_from([np.int32, np.int64])), count))
        if kind in (Kind.ROWS, Kind.WRITE, Kind.PUSH):
            fields["values"] = draw(hnp.arrays(np.float32 if dtype == FP32 else np.uint16, (count, width)))
        if kind is Kind.PUSH and draw(st.booleans()):
            fields["squares"] = draw(hnp.arrays(np.float32, count))
    return Message(kind, **fields)  # type: ignore[arg-type]
