"""Results: what calls hand out. A `Table` of answers, the `Embeddings` of a run, the `Evaluation` of a split.

Tables hold what a call returned, in memory; embeddings are memory-mapped, and rows are read from the disk when they are asked
for.
"""

from __future__ import annotations

import html
from collections import namedtuple
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from kgdist.base.errors import UsageError
from kgdist.base.text_table import TextTable
from kgdist.data.vocabulary import Vocabulary
from kgdist.evaluation.ranks import protocol_line, report_table
from kgdist.predict.lists import Wanted, ids_of

if TYPE_CHECKING:
    import pandas
    import pyarrow

SHOWN = 20  # rows of its text


def _pandas() -> Any:
    """The module, which no part of kgdist needs. Raises UsageError where it is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise UsageError("to_pandas needs pandas: pip install pandas, or take to_arrow") from error
    return pandas


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
        """A data frame. Raises UsageError where pandas is not installed."""
        return _pandas().DataFrame(self.columns)

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
        """A data frame with the names as its index and d columns, which reads all rows. Raises UsageError where
        pandas is not installed."""
        pandas = _pandas()
        return pandas.DataFrame(np.asarray(self.array), index=pandas.Index(list(self.names), name=self.noun))

    def to_arrow(self) -> pyarrow.Table:
        """An Arrow table of `name` and `embedding` (lists of d float32). The rows are those of `array`, without a copy."""
        import pyarrow

        flat = pyarrow.array(np.ascontiguousarray(self.array).reshape(-1))
        rows = pyarrow.FixedSizeListArray.from_arrays(flat, self.shape[1])
        return pyarrow.table({"name": pyarrow.array(list(self.names), pyarrow.string()), "embedding": rows})

    def __repr__(self) -> str:
        return f"<{len(self)} {self.noun} embeddings of {self.shape[1]} numbers>"


class Evaluation(dict[str, Any]):
    """All of the report (see `kgdist.evaluation.ranks.summary`): "all", "sides", "relations", "categories", "protocol", ...

    The properties are those of the tie policy that was asked for (`rank_ties`, realistic unless told otherwise).

    >>> result = run.evaluate("test")
    >>> result.mrr, result.hits10, result["sides"]["tail"]["realistic"]["mrr"]
    """

    @property
    def metrics(self) -> dict[str, float]:
        """mrr, mr, median, hits@1, hits@3, hits@10 and others that were asked for, auc-roc, amri; the last two are None where no
        query had a rival."""
        found: dict[str, float] = self["all"][self["ties"]]
        return found

    @property
    def mrr(self) -> float:
        """Mean of 1 / rank."""
        return self.metrics["mrr"]

    @property
    def mr(self) -> float:
        """Mean rank."""
        return self.metrics["mr"]

    @property
    def median(self) -> float:
        """Median rank."""
        return self.metrics["median"]

    @property
    def hits1(self) -> float:
        """Share of ranks of at most 1."""
        return self.metrics["hits@1"]

    @property
    def hits3(self) -> float:
        """Share of ranks of at most 3."""
        return self.metrics["hits@3"]

    @property
    def hits10(self) -> float:
        """Share of ranks of at most 10."""
        return self.metrics["hits@10"]

    @property
    def auc_roc(self) -> float | None:
        """Mean share of rivals that score below the true entity, ties counting half by the realistic rank."""
        return self.metrics["auc-roc"]

    def __repr__(self) -> str:
        return "\n".join([protocol_line(self), *report_table(self)])
