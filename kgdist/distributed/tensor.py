"""A tensor whose rows are dealt out to machines as the nodes or edges of a graph are."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.distributed.current import storage
from kgdist.distributed.policy import PartitionPolicy
from kgdist.distributed.rows import NAMES, plain_ids, row_ids, rows_of
from kgdist.distributed.storage import Initialiser, Spec

_numbers = itertools.count()


def anonymous(kind: str) -> str:
    """The next name of what has none: trainers that create in the same order mean the same by it."""
    return f"anonymous~{kind}~{next(_numbers)}"


class DistTensor:
    """One row for each node or edge of a graph, each kept by the machine that owns it; read and written by row numbers.

    All trainers create it together, in the same order. A `name` that is taken means the same rows, whoever made them. Rows are
    zeros, or what `init_func(shape, dtype)` gives its owner for the rows that are its own. `part_policy` says whose rows they
    are, which else their number says. Rows that no object of any trainer names any more go, unless the tensor is `persistent`.

    `t[rows]` is a copy, a tensor on the CPU; `t[rows] = values` returns when all owners have written, and then every trainer
    reads what was written. Rows are an int (one row, so the first dimension is 1), a slice, a list, an array, a tensor, or a mask
    of all rows; negative numbers count from the end, and of rows that are written twice the last counts.

    Raises UsageError for a dtype, a shape, a name or rows that cannot be.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        name: str | None = None,
        init_func: Initialiser | None = None,
        part_policy: PartitionPolicy | None = None,
        persistent: bool = False,
    ) -> None:
        if persistent and name is None:
            raise UsageError("DistTensor: give a persistent tensor a name, by which to find it again")
        if not (init_func is None or callable(init_func)):
            raise UsageError(f"DistTensor {name!r}: init_func is a function of (shape, dtype), not {init_func!r}")
        self._spec = _spec(shape, dtype, anonymous("tensor") if name is None else name, part_policy)
        self._persistent, self._storage = persistent, storage()
        self._storage.create(self._spec, init_func)
        if not persistent:
            weakref.finalize(self, self._storage.release, self.name).atexit = False

    @classmethod
    def of(cls, spec: Spec) -> DistTensor:
        """The tensor of a table that is there, a feature of a graph."""
        tensor = cls.__new__(cls)
        tensor._spec, tensor._persistent, tensor._storage = spec, True, storage()
        return tensor

    @property
    def spec(self) -> Spec:
        """What the table of its rows is."""
        return self._spec

    @property
    def shape(self) -> torch.Size:
        """Of the whole."""
        return torch.Size(self._spec.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers."""
        return self._spec.dtype

    @property
    def name(self) -> str:
        """By which all trainers mean these rows."""
        return self._spec.name

    @property
    def persistent(self) -> bool:
        """Whether the rows stay when nobody names them."""
        return self._persistent

    @property
    def part_policy(self) -> PartitionPolicy:
        """Whose rows these are."""
        return self._spec.policy

    @property
    def local_partition(self) -> torch.Tensor:
        """The rows of this machine, in its memory where they can be written, too; all rows where one process holds all."""
        rows = self._storage.local(self.name)
        return self[self.part_policy.range(self.part_policy.part)[0] :] if rows is None else rows

    def __len__(self) -> int:
        return self._spec.policy.get_size()

    def __repr__(self) -> str:
        return f"DistTensor(name={self.name!r}, shape={tuple(self.shape)}, dtype={self.dtype}, rows as the {self.part_policy})"

    def __getitem__(self, key: Any) -> torch.Tensor:
        if (ids := plain_ids(key)) is not None and (found := self._storage.here(self.name, ids)) is not None:
            return found
        return self._storage.read(self.name, row_ids(key, len(self), self._what()))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, DistTensor):
            raise UsageError(f"{self._what()}: rows of another one are read first: a[ids] = b[ids]")
        rows = row_ids(key, len(self), self._what())
        self._storage.write(self.name, rows, rows_of(value, len(rows), self._spec.row_shape, self.dtype, self._what()))

    def prefetch(self, rows: Any) -> Callable[[], torch.Tensor]:
        """Send for rows, and go on: what is returned gives them when it is called, as they were when they were sent."""
        ids = np.asarray(row_ids(rows, len(self), self._what()), np.int64)
        self._storage.ahead(self.name, ids)
        return lambda: self._storage.read(self.name, ids, announced=True)

    def count_nonzero(self) -> int:
        """How many numbers of the whole are not zero; owners count their own."""
        return sum(count_nonzero(self))

    def __or__(self, other: DistTensor) -> DistTensor:
        """The union of two masks, a tensor of its own: made by all trainers together, each machine's rows by itself."""
        if not isinstance(other, DistTensor) or self.dtype.is_floating_point:
            raise UsageError(f"{self._what()} | {type(other).__name__}: two masks can be united")
        if (self.dtype, self.shape, self.part_policy) != (other.dtype, other.shape, other.part_policy):
            raise UsageError(f"{self._what()} | {other._what()}: they differ in dtype, shape or whose rows they are")
        union = DistTensor(self.shape, self.dtype, part_policy=self.part_policy)
        for part in self._storage.placement.cared_for(self.part_policy.parts):
            own = slice(*self.part_policy.range(part))
            union[own] = self[own] | other[own]
        self._storage.barrier()
        return union

    def _what(self) -> str:
        return f"DistTensor {self.name!r}"

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(f"{self._what()}: no {what} of rows that lie on several machines; read some first, t[rows] is a tensor")

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._refuse("loop")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        self._refuse("array")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DistTensor) or not isinstance(other, int | float | torch.Tensor | np.ndarray):
            return self is other
        self._refuse("==")

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(torch.Tensor, name):
            raise AttributeError(
                f"{self._what()}: no {name} of rows that lie on several machines; read some first, t[rows] is a tensor"
            )
        raise AttributeError(f"'DistTensor' object has no attribute {name!r}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "arithmetic")
        raise UsageError(f"DistTensor: no {name} of rows that lie on several machines; read some first, t[rows] is a tensor")


def count_nonzero(tensor: DistTensor) -> list[int]:
    """How many numbers of each partition are not zero."""
    parts = range(tensor.part_policy.parts)
    answers = [storage().ask(part, "count_nonzero", {"table": tensor.name}, []) for part in parts]
    return [int(answer()[0][0]) for answer in answers]


def _refused(name: str) -> Any:
    def refuse(self: DistTensor, *_: Any) -> NoReturn:
        self._refuse(name.strip("_"))

    return refuse


for _name in (
    *("add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv", "itruediv", "floordiv"),
    *("rfloordiv", "mod", "rmod", "pow", "rpow", "matmul", "rmatmul", "and", "rand", "iand", "ror", "ior", "xor", "rxor", "neg"),
    *("abs", "invert", "lt", "le", "gt", "ge", "float", "int", "bool"),
):
    setattr(DistTensor, f"__{_name}__", _refused(_name))


def _spec(shape: Sequence[int], dtype: torch.dtype, name: str, policy: PartitionPolicy | None) -> Spec:
    what = f"DistTensor {name!r}"
    try:
        rows, *row_shape = map(operator.index, shape)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what}: a shape is its number of rows and then what a row is, not {shape!r}") from error
    if rows < 0 or any(size < 1 for size in row_shape):
        raise UsageError(f"{what}: a row has at least one number, and not the shape {tuple(row_shape)} of {tuple(shape)}")
    if dtype not in NAMES:
        raise UsageError(f"{what}: its dtype is one of {', '.join(f'torch.{each}' for each in NAMES.values())}, not {dtype}")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise UsageError(f"{what}: a name is a text that can be printed")
    if not isinstance(policy, PartitionPolicy | None):
        raise UsageError(f"{what}: part_policy is what g.get_node_partition_policy(type) gives, not {policy!r}")
    if policy is None:
        policy = storage().policies.find(rows, what)
    elif policy.get_size() != rows:
        raise UsageError(f"{what}: {rows} rows, but there are {policy.get_size()} {policy}")
    return Spec(name, policy, dtype, tuple(row_shape))
