"""Where rows live, seen from a trainer: pull rows by id, push gradients by id.

`Tables` is the seam between the training loop and storage. `MemoryTables` is the in-memory version, private to a process or
shared by the processes of one machine; shared rows are updated without locks (Hogwild, Recht et al. 2011): two processes that
update one row at the same moment may lose one of the updates, never the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from kgdist.base.files import Moved, unwatched
from kgdist.kernels import jit
from kgdist.kernels.random import normal_rows, uniform_rows
from kgdist.kernels.rows import adagrad_arrays, gather_rows
from kgdist.kvstore.optim import OPTIMIZERS, Places, Squares, State
from kgdist.kvstore.shared_memory import SharedArray, private_array

LOADED = 1 << 24  # bytes of a checkpoint that are taken over at a time
UPDATE_LIMIT = 300.0  # seconds one update may take before the run counts as stuck

Ids = torch.Tensor  # int64[U]


class Update(NamedTuple):
    """What a step has for the rows of a table. Good until the next step."""

    ids: np.ndarray  # int64[U], unique
    grads: torch.Tensor  # float32[U, width], summed over all uses
    squares: Squares = None  # float32[U], mean squares summed over all uses (kgdist.kvstore.optim)


class Tables(Protocol):
    """Named tables of float32 rows."""

    def pull(self, name: str, ids: Ids, out: torch.Tensor | None = None) -> torch.Tensor:
        """A copy of the rows `ids`, which may repeat: float32[U, width], in `out` (contiguous) where given."""

    def ahead(self, *wanted: Mapping[str, np.ndarray]) -> None:
        """For each of some steps to come, the ids of every table that its next pull will be of, int64[U], which may repeat: rows
        that lie far away can be sent for now."""

    def push(self, updates: Mapping[str, Update], lr: float) -> None:
        """Let the optimiser take one step on these rows of these tables, where they live."""

    def local(self, name: str) -> torch.Tensor | None:
        """The table itself, float32[n, width], if it lies in this process's memory: for reading while others may write. Else
        None."""

    def block(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows start..stop for reading only, without a copy where possible: float32[stop - start, width]."""

    def blocks(self, name: str, spans: Iterable[tuple[int, int]]) -> Iterator[torch.Tensor]:
        """The block of each of these spans in turn; rows that lie far away are sent for while the blocks before are looked at."""

    def shape(self, name: str) -> tuple[int, int]:
        """(rows, width) of a table."""

    def names(self) -> list[str]:
        """All tables, in the order in which they were declared."""

    def flush(self) -> None:
        """Wait until every push so far has been applied."""


class MemoryTables:
    """Tables in this process's memory, or in memory shared with other processes of this machine.

    Args:
        rows: name -> float32[n, width].
        state: name -> optimiser state by name, each float32[n, state width].
    Costs 4 * width bytes a row, and the optimiser's state.
    """

    def __init__(self, rows: dict[str, torch.Tensor], state: dict[str, State], optimizer: str) -> None:
        self.rows = rows
        self.state = state
        self.optimizer_name = optimizer
        self.optimizer = OPTIMIZERS[optimizer]()
        self._shared: dict[str, SharedArray] = {}

    @classmethod
    def create(
        cls,
        shapes: dict[str, tuple[int, int]],
        optimizer: str,
        *,
        shared: bool = False,
        device: torch.device | str = "cpu",
        huge: bool = False,
    ) -> MemoryTables:
        """Tables of zeros. `shared` puts them where `handles()` lets other processes map them; `huge` asks for huge pages."""
        handles: dict[str, SharedArray] = {}

        def allocate(key: str, shape: tuple[int, int]) -> torch.Tensor:
            if torch.device(device).type != "cpu":
                return torch.zeros(shape, device=device)
            if not shared:
                return torch.from_numpy(private_array(shape, np.float32, huge=huge))
            handles[key] = SharedArray.allocate(shape, np.float32, huge=huge)
            return torch.from_numpy(handles[key].array)

        rule = OPTIMIZERS[optimizer]()
        rows = {name: allocate(name, shape) for name, shape in shapes.items()}
        state = {
            name: {key: allocate(f"{name}.{key}", (count, w)) for key, w in rule.widths(width).items()}
            for name, (count, width) in shapes.items()
        }
        tables = cls(rows, state, optimizer)
        tables._shared = handles
        return tables

    def handles(self) -> dict[str, dict[str, Any]]:
        """What `attach` needs: key -> `SharedArray.handle()`."""
        return {key: array.handle() for key, array in self._shared.items()}

    @classmethod
    def attach(cls, handles: dict[str, dict[str, Any]], optimizer: str) -> MemoryTables:
        """The same tables, in another process that has inherited the descriptors."""
        shared = {key: SharedArray.attach(handle) for key, handle in handles.items()}
        arrays = {key: torch.from_numpy(array.array) for key, array in shared.items()}
        rows = {key: array for key, array in arrays.items() if "." not in key}
        state: dict[str, State] = {name: {} for name in rows}
        for key, array in arrays.items():
            if "." in key:
                name, part = key.split(".")
                state[name][part] = array
        tables = cls(rows, state, optimizer)
        tables._shared = shared
        return tables

    def pull(self, name: str, ids: Ids, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Tables; raises IndexError for an id that is not there."""
        rows = self.rows[name]
        return gather_rows(rows, ids.to(rows.device), out)

    def ahead(self, *wanted: Mapping[str, np.ndarray]) -> None:
        """See Tables; all rows are here."""

    def push(self, updates: Mapping[str, Update], lr: float) -> None:
        for name, update in updates.items():
            self.apply(name, torch.from_numpy(update.ids), update.grads, lr, update.squares)

    def apply(self, name: str, ids: Ids, grads: torch.Tensor, lr: float, squares: Squares = None, places: Places = None) -> None:
        """One step of the optimiser on the rows `ids`, unique; float32[U, width], float32[U]. With `places` int64[U], of the
        gradients and squares only those there, which saves copying them."""
        rows = self.rows[name]
        squares = squares.to(rows.device) if squares is not None else None
        self.optimizer.apply(rows, self.state[name], ids.to(rows.device), grads.to(rows.device), lr, squares, places)

    def updater(self, name: str) -> Callable[[np.ndarray, np.ndarray, float, np.ndarray | None], object]:
        """What does the same as `apply` with arrays of ids, gradients, the rate and squares, for tables on the CPU: for whoever
        makes many small updates, which tensors would cost more than the rows."""
        rows, state = self.rows[name], self.state[name]
        if self.optimizer_name == "adagrad_row" and jit.compiled_for(rows, state["sum"]):
            table, sums = rows.numpy(), state["sum"].view(-1).numpy()
            return lambda ids, grads, lr, squares: adagrad_arrays(table, sums, ids, grads, squares, lr)
        return lambda ids, grads, lr, squares: self.apply(
            name, torch.from_numpy(ids), torch.from_numpy(grads), lr, None if squares is None else torch.from_numpy(squares)
        )

    def local(self, name: str) -> torch.Tensor | None:
        rows = self.rows[name]
        return rows if rows.device.type == "cpu" else None

    def block(self, name: str, start: int, stop: int) -> torch.Tensor:
        return self.rows[name][start:stop]

    def blocks(self, name: str, spans: Iterable[tuple[int, int]]) -> Iterator[torch.Tensor]:
        return (self.block(name, start, stop) for start, stop in spans)

    def shape(self, name: str) -> tuple[int, int]:
        count, width = self.rows[name].shape
        return count, width

    def names(self) -> list[str]:
        return list(self.rows)

    def flush(self) -> None:
        """See Tables; pushes are applied at once."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Rows and state by key (`entity`, `entity.sum`, ...) for a checkpoint; views where the tables are on the CPU."""
        flat = {name: rows for name, rows in self.rows.items()}
        flat |= {f"{name}.{key}": part for name, parts in self.state.items() for key, part in parts.items()}
        return {key: tensor.detach().cpu().numpy() for key, tensor in flat.items()}

    def load(self, arrays: dict[str, np.ndarray], moved: Moved = unwatched) -> None:
        """Overwrite rows and state with what `arrays()` gave; missing keys are left as they are."""
        for key, array in arrays.items():
            name, _, part = key.partition(".")
            target = self.state[name][part] if part else self.rows[name]
            step = max(1, LOADED // max(array[:1].nbytes, 1))
            for start in range(0, len(array), step):
                target[start : start + step] = torch.from_numpy(np.array(array[start : start + step], np.float32))
                moved(array[start : start + step].nbytes)

    def close(self) -> None:
        """Give up the shared descriptors."""
        for array in self._shared.values():
            array.close()
        self._shared.clear()


class AsyncTables:
    """Applies entity updates in a thread beside the loop (`--async_update`): a GPU computes the next step meanwhile.

    At most one step's update is under way, so rows are at most one step old.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.pull, self.local, self.block, self.blocks = tables.pull, tables.local, tables.block, tables.blocks
        self.shape, self.names, self.ahead = tables.shape, tables.names, tables.ahead
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kgdist-update")
        self._pending: Future[None] | None = None

    def push(self, updates: Mapping[str, Update], lr: float) -> None:
        """See Tables; raises what the update before it raised."""
        self.tables.push({name: update for name, update in updates.items() if name != "entity"}, lr)
        self.flush()
        entities = {name: update for name, update in updates.items() if name == "entity"}
        self._pending = self._thread.submit(self.tables.push, entities, lr)

    def flush(self) -> None:
        if self._pending is not None:
            self._pending.result(timeout=UPDATE_LIMIT)
            self._pending = None


def initialise(
    rows: torch.Tensor,
    kind: str,
    spread: float,
    *,
    seed: int,
    stream: int,
    first: int = 0,
    total: int | None = None,
    moved: Moved = unwatched,
) -> None:
    """Fill float32[n, width] in place, block by block, the same for any number of processes and machines.

    The rows are rows first..first + n of a table of `total` (default: all of it). `uniform` draws from U(-spread, spread),
    DGL-KE's rule with spread = (gamma + 2) / hidden_dim; `normal` from N(0, (spread / 3)^2); `xavier` from U(-a, a) with
    a = sqrt(6 / (total + width)) (Glorot and Bengio 2010), whatever the spread.
    """
    count, width = rows.shape
    if kind == "xavier":
        spread = (6.0 / ((count if total is None else total) + width)) ** 0.5
    step = max(1, (1 << 18) // max(width, 1))  # a block of 1 MB stays in the cache
    for start in range(0, count, step):
        stop = min(start + step, count)
        if kind == "normal":
            values = normal_rows(seed, stream, first + start, stop - start, width, spread / 3)
        else:
            values = uniform_rows(seed, stream, first + start, stop - start, width, -spread, spread)
        rows[start:stop] = torch.from_numpy(values)
        moved(values.nbytes)
