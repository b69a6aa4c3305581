"""Answers as a small table: named columns that become named tuples, a pandas data frame, an Arrow table or text.

It holds what a call returned, in memory; it reads and writes no files.
"""

from __future__ import annotations

import html
from collections import namedtuple
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from kgdist.base.text_table import TextTable

if TYPE_CHECKING:
    import pandas
    import pyarrow

SHOWN = 20  # rows of its text


class Table:
    """Columns of one length.

    Attributes:
        columns: name -> array; names of entities and relations as object[n] of str, scores as float64[n].
        ids: name -> int64[n], for the columns that name entities or relations.

    >>> table = kgdist.Table({"tail": ["cat", "dog"], "score": [9.5, 8.0]})
    >>> table[0].tail, len(table), table["score"].max()
    ('cat', 2, 9.5)
    >>> [row.tail for row in table]
    ['cat', 'dog']
    """

    def __init__(self, columns: Mapping[str, Any], ids: Mapping[str, np.ndarray] | None = None) -> None:
        self.columns = {name: _array(values) for name, values in columns.items()}
        self.ids = dict(ids or {})
        self._row: Any = namedtuple("Row", self.columns)  # type: ignore[misc]
        if len({len(values) for values in self.columns.values()}) > 1:
            raise ValueError("columns of different lengths")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __iter__(self) -> Iterator[Any]:
        """The rows as named tuples of str, int and float."""
        return map(self._row._make, zip(*(values.tolist() for values in self.columns.values()), strict=True))

    def __getitem__(self, key: str | int) -> Any:
        """A column by its name, or a row by its number. Raises KeyError or IndexError."""
        if isinstance(key, str):
            return self.columns[key]
        return self._row._make(values[key].item() if hasattr(values[key], "item") else values[key] for values in self._values())

    def _values(self) -> list[np.ndarray]:
        return list(self.columns.values())

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame; needs pandas."""
        import pandas

        return pandas.DataFrame(self.columns)

    def to_arrow(self) -> pyarrow.Table:
        """An Arrow table."""
        import pyarrow

        return pyarrow.table({name: pyarrow.array(values.tolist()) for name, values in self.columns.items()})

    def __repr__(self) -> str:
        lines = TextTable(list(self.columns), None).lines([values[:SHOWN].tolist() for values in self._values()])
        return "\n".join([*lines, *([f"... {len(self)} rows in all"] if len(self) > SHOWN else [])])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = [list(self.columns), *map(list, islice(self, SHOWN))]
        shown = [[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row] for row in rows]
        cells = ["".join(f"<td>{html.escape(text)}</td>" for text in row) for row in shown]
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


def _array(values: Any) -> np.ndarray:
    """Numbers as they are, text as objects, so that rows hold plain str."""
    array = np.asarray(values)
    return array.astype(object) if array.dtype.kind in "US" else array
