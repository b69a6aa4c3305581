"""The embeddings of a run by name or by id, memory-mapped: rows are read from the disk when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kgdist.data.vocabulary import Vocabulary
from kgdist.wanted import Wanted, ids_of

if TYPE_CHECKING:
    import pandas
    import pyarrow


class Embeddings:
    """One table: float32[n, d], row i belonging to name i.

    Attributes:
        array: float32[n, d], memory-mapped, read-only.
        names: all names by id; `names.id(name)` is the way back.
        noun: "entity" or "relation".

    >>> run.entity_embeddings["dog.n.01"]          # float32[d]
    >>> run.entity_embeddings[["dog.n.01", 7]]     # float32[2, d]
    >>> numpy.asarray(run.entity_embeddings)       # float32[n, d], no copy
    """

    def __init__(self, array: np.ndarray, names: Vocabulary, noun: str) -> None:
        self.array = array.view()
        self.array.flags.writeable = False
        self.names, self.noun = names, noun

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return self.array.shape[0], self.array.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32."""
        return self.array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.array)

    def __getitem__(self, key: Wanted | slice) -> np.ndarray:
        """A name or id -> float32[d]; several, or a slice of ids, -> float32[m, d]. Raises UsageError for an unknown one."""
        if isinstance(key, slice):
            return self.array[key]
        ids, single = ids_of(key, self.names, self.noun)
        rows: np.ndarray = self.array[ids]
        return rows[0] if single else rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype=dtype, copy=True) if copy else np.asarray(self.array, dtype=dtype)

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with the names as its index and d columns, which reads all rows; needs pandas."""
        import pandas

        return pandas.DataFrame(np.asarray(self.array), index=pandas.Index(list(self.names), name=self.noun))

    def to_arrow(self) -> pyarrow.Table:
        """An Arrow table of `name` and `embedding` (lists of d float32). The rows are those of `array`, without a copy."""
        import pyarrow

        flat = pyarrow.array(np.ascontiguousarray(self.array).reshape(-1))
        rows = pyarrow.FixedSizeListArray.from_arrays(flat, self.shape[1])
        return pyarrow.table({"name": pyarrow.array(list(self.names), pyarrow.string()), "embedding": rows})

    def __repr__(self) -> str:
        return f"<{len(self)} {self.noun} embeddings of {self.shape[1]} numbers>"
