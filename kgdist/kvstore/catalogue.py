"""Which tables there are, and what each is: it grows and shrinks while a job runs. Plain data; rows live elsewhere.

A table is declared by a `TableSpec`. One with an optimiser holds float32 rows and takes gradients; one without is *raw*: a row
is so many bytes, of any dtype, which is read and overwritten and never looked into. On the wire, and for compiled loops, the
rows of either are numbers of 32 bits where their bytes allow that, else bytes: their *words*.

Every process of a job has a catalogue of its own. What is added bears a number that whoever leads the job gives, the same
everywhere and never again, so that a message for a table that is gone, or is not there yet, can mean no other one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.kvstore.layout import Layout, shared_among
from kgdist.kvstore.messages import FP32, MOST_BYTES, PIECE_BYTES, U8
from kgdist.kvstore.optim import AdagradRow, rule_of

# dtype -> the dtype of its arrays, and of its tensors; NumPy has no bfloat16, so arrays hold its bits
DTYPES: dict[str, tuple[np.dtype[Any], torch.dtype]] = {
    "bool": (np.dtype("?"), torch.bool),
    "uint8": (np.dtype("u1"), torch.uint8),
    "int8": (np.dtype("i1"), torch.int8),
    "int16": (np.dtype("<i2"), torch.int16),
    "int32": (np.dtype("<i4"), torch.int32),
    "int64": (np.dtype("<i8"), torch.int64),
    "float16": (np.dtype("<f2"), torch.float16),
    "bfloat16": (np.dtype("<u2"), torch.bfloat16),
    "float32": (np.dtype("<f4"), torch.float32),
    "float64": (np.dtype("<f8"), torch.float64),
}


@dataclass(frozen=True)
class TableSpec:
    """What a table is, the same in every process.

    Attributes:
        policy: whose ranges its rows have: a name in `Layout.starts` (`entity`) or one that was declared (`node:author`).
        dtype: a name of `DTYPES`, as NumPy and torch call it.
        row_shape: of one row; () where the table has one dimension.
        optimizer: which takes gradients, a name of kgdist.kvstore.optim.OPTIMIZERS; None: the table is raw.
        settings: of the optimiser: eps, beta1, beta2. Those not given are its own.
        by_owner: a row is changed by the server that owns it and by nobody else, so no update is ever lost. Otherwise any server
            of a machine changes its rows, and so do its own processes, in shared memory.

    Raises UsageError for what cannot be.
    """

    name: str
    policy: str
    dtype: str = "float32"
    row_shape: tuple[int, ...] = ()
    optimizer: str | None = None
    settings: Mapping[str, float] = field(default_factory=dict)
    by_owner: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"table {self.name}: no table is of {self.dtype}: use one of {', '.join(DTYPES)}")
        if any(size < 1 for size in self.row_shape):
            raise UsageError(f"table {self.name}: a row of shape {self.row_shape} holds nothing")
        if self.row_bytes > MOST_BYTES:
            raise UsageError(f"table {self.name}: a row of {self.row_bytes:,} bytes is longer than a message of "
                             f"{MOST_BYTES >> 20} MiB")  # fmt: skip
        if self.optimizer is not None and self.dtype != "float32":
            raise UsageError(f"table {self.name}: an optimiser changes rows of float32, not of {self.dtype}")
        if self.optimizer is None and self.settings:
            raise UsageError(f"table {self.name}: settings of an optimiser where there is none")
        self.rule()

    def rule(self) -> AdagradRow | None:
        """The optimiser with its settings. Raises UsageError for one that is not known, or settings that it cannot have."""
        return None if self.optimizer is None else rule_of(self.optimizer, self.settings)

    @property
    def raw(self) -> bool:
        """Whether rows are bytes that nobody looks into."""
        return self.optimizer is None

    @property
    def storage(self) -> np.dtype[Any]:
        """Of arrays; that of bfloat16 is its bits."""
        return DTYPES[self.dtype][0]

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of tensors."""
        return DTYPES[self.dtype][1]

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return math.prod(self.row_shape) * self.storage.itemsize

    @property
    def words(self) -> tuple[int, int]:
        """How many numbers a row is on the wire, and their dtype there."""
        return (self.row_bytes // 4, FP32) if self.row_bytes % 4 == 0 else (self.row_bytes, U8)

    def empty(self, rows: int) -> torch.Tensor:
        """So many rows of any contents: [rows, *row_shape]."""
        return torch.empty((rows, *self.row_shape), dtype=self.torch_dtype)

    def zeros(self, rows: int) -> torch.Tensor:
        """The same of zeros."""
        return torch.zeros((rows, *self.row_shape), dtype=self.torch_dtype)

    def words_of(self, rows: torch.Tensor | np.ndarray) -> np.ndarray:
        """The words of [n, *row_shape]: a view, float32[n, width] or uint8[n, width]. Raises ValueError for rows of another shape
        or dtype, or that are not contiguous."""
        fits = rows.dtype == (self.storage if isinstance(rows, np.ndarray) else self.torch_dtype)
        if not fits or tuple(rows.shape[1:]) != tuple(self.row_shape) or not rows.ndim:
            given = str(rows.dtype).removeprefix("torch.")
            raise ValueError(f"table {self.name}: rows of {given}{list(rows.shape[1:])} where it has {self.dtype}"
                             f"{list(self.row_shape)}")  # fmt: skip
        if isinstance(rows, torch.Tensor):
            rows = (rows.view(torch.int16) if rows.dtype is torch.bfloat16 else rows).detach().numpy()
        if not rows.flags.c_contiguous:
            raise ValueError(f"table {self.name}: rows must lie one after another in memory")
        width, code = self.words
        return rows.reshape(-1).view(np.float32 if code == FP32 else np.uint8).reshape(len(rows), width)

    def rows_of(self, words: np.ndarray) -> torch.Tensor:
        """The rows of words [n, width], contiguous: a view, [n, *row_shape]."""
        if words.dtype != self.storage or len(self.row_shape) != 1:
            words = words.view(self.storage).reshape(len(words), *self.row_shape)
        return self.tensor_of(words)

    def tensor_of(self, rows: np.ndarray) -> torch.Tensor:
        """The same memory as a tensor, bfloat16 again where it is that; `rows` of `storage`."""
        if self.dtype == "bfloat16":
            return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(rows)

    def to_json(self) -> dict[str, Any]:
        """Names, numbers and lists."""
        return asdict(self) | {"row_shape": list(self.row_shape), "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TableSpec:
        """What `to_json` gave."""
        return cls(**{**value, "row_shape": tuple(value["row_shape"])})


class Listed:
    """A table of a catalogue.

    Attributes:
        number: by which messages call it.
        rows: on all machines.
        width, dtype: of a row on the wire: its words, FP32 or U8.
        wide: bytes of an id on the wire.
    """

    def __init__(self, spec: TableSpec, number: int, layout: Layout) -> None:
        self.spec, self.number = spec, number
        self.name = spec.name
        self._layout = layout if layout.by_owner == spec.by_owner else replace(layout, by_owner=spec.by_owner)
        self.rows = layout.rows(spec.policy)
        self.width, self.dtype = spec.words
        self.wide = 4 if self.rows <= 1 << 31 else 8

    def served(self, server: int) -> tuple[int, int]:
        """The rows that a server answers for: first, and the one after the last."""
        return self._layout.served(self.spec.policy, server)

    def machine_range(self, machine: int) -> tuple[int, int]:
        """The rows of a machine: the same."""
        return self._layout.machine_range(self.spec.policy, machine)

    def targets(self, client: int) -> list[int]:
        """The T servers that a client asks, in the order of their rows."""
        return self._layout.targets(client)

    def bounds(self) -> np.ndarray:
        """int64[T + 1], the ranges of any client's targets."""
        return self._layout.bounds(self.spec.policy)


class Catalogue:
    """The tables of a job as one process knows them: those of the layout, numbered from 0 on, and what is added.

    Attributes:
        layout: the servers, and the ranges of all policies so far.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.named: dict[str, Listed] = {}
        self.numbered: dict[int, Listed] = {}
        for number, (name, width) in enumerate(layout.widths.items()):
            self.add(TableSpec(name, name, "float32", (width,), layout.optimizer, by_owner=layout.by_owner), number)

    def declare(self, policy: str, bounds: np.ndarray) -> None:
        """Ranges for tables to come: machine m has rows bounds[m]:bounds[m + 1], int64[machines + 1], its servers each an
        even share. Once more is nothing. Raises UsageError for bounds that are not of these machines, or other than before."""
        servers = np.bincount(self.layout.machine_of).tolist()
        try:
            starts = shared_among(policy, np.asarray(bounds, np.int64), servers)
            known = self.layout.starts.get(policy)
            if known is None:
                self.layout = replace(self.layout, starts={**self.layout.starts, policy: starts})
            elif not np.array_equal(known, starts):
                raise ValueError(f"rows of {policy} have been declared with other ranges")
        except ValueError as error:
            raise UsageError(str(error)) from error

    def add(self, spec: TableSpec, number: int) -> Listed:
        """One more table. Raises UsageError for a name or number that is taken, or ranges that nobody declared."""
        if spec.name in self.named:
            raise UsageError(f"there is a table {spec.name} already")
        if number in self.numbered:
            raise UsageError(f"table {spec.name}: its number {number} is that of {self.numbered[number].name}")
        if spec.policy not in self.layout.starts:
            raise UsageError(f"table {spec.name}: nobody declared whose rows are {spec.policy}: {', '.join(self.layout.starts)}")
        if number >= len(self.layout.widths) and spec.row_bytes > PIECE_BYTES:  # sockets know of no longer frames by now
            raise UsageError(f"table {spec.name}: a row of {spec.row_bytes:,} bytes, {PIECE_BYTES:,} at most")
        listed = self.named[spec.name] = self.numbered[number] = Listed(spec, number, self.layout)
        return listed

    def drop(self, name: str) -> Listed:
        """Forget a table. Raises UsageError for one that is not there."""
        listed = self[name]
        del self.named[name], self.numbered[listed.number]
        return listed

    def __getitem__(self, name: str) -> Listed:
        """By name. Raises UsageError for one that is not there."""
        if (found := self.named.get(name)) is None:
            raise UsageError(f"there is no table {name}: {', '.join(self.named) or 'none'}")
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.named

    def __iter__(self) -> Iterator[str]:
        return iter(self.named)
