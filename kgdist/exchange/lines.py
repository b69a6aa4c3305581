"""Rows of numbers as lines of text: the shortest decimals that read back as the same float32."""

from __future__ import annotations

import numpy as np


def lines_of(rows: np.ndarray, delimiter: str, words: list[str] | None = None) -> bytes:
    """float32[n, width], and a word to begin each line with -> n lines of UTF-8. Some 500 ns a number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), pc.cast(pa.array(rows.ravel()), pa.string())), delimiter)
    if words is not None:
        joined = pc.binary_join_element_wise(pa.array(words, pa.string()), joined, delimiter)
    return "".join(f"{line}\n" for line in joined.to_pylist()).encode()
