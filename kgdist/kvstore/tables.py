"""Where rows live, seen from a trainer: pull rows by id, push gradients by id.

`Tables` is the seam between the training loop and storage. `MemoryTables` is the in-memory version, private to a process or
shared by the processes of one machine; shared rows are updated without locks (Hogwild, Recht et al. 2011): two processes that
update one row at the same moment may lose one of the updates, never the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.base.files import Moved, unwatched
from kgdist.kernels.random import normal_rows, uniform_rows
from kgdist.kernels.route import look_up, put_rows
from kgdist.kernels.rows import gather_rows
from kgdist.kernels.shares import Crew, in_threads, part
from kgdist.kvstore.asking import Asking, Service, settled
from kgdist.kvstore.catalogue import TableSpec
from kgdist.kvstore.optim import OPTIMIZERS, AdagradRow, Places, Squares, State, Updater
from kgdist.kvstore.shared_memory import SharedArray, private_array

SHARED = 1 << 20  # numbers of an update from which on the threads of a process share it
LOADED = 1 << 24  # bytes of a checkpoint that are taken over at a time
UPDATE_LIMIT = 300.0  # seconds one update may take before the run counts as stuck

Ids = torch.Tensor  # int64[U]


class Update(NamedTuple):
    """What a step has for the rows of a table. Good until the next step."""

    ids: np.ndarray  # int64[U], unique
    grads: torch.Tensor  # float32[U, width], summed over all uses
    squares: Squares = None  # float32[U], mean squares summed over all uses (kgdist.kvstore.optim)
    rate: float | None = None  # of this table, where it is not that of the push: of tables in memory alone

    def times(self, factor: float) -> Update:
        """What it is for a loss that counts `factor` times."""
        return self._replace(grads=self.grads * factor, squares=None if self.squares is None else self.squares * factor**2)


class Tables(Protocol):
    """Named tables of float32 rows."""

    def pull(self, name: str, ids: Ids, out: torch.Tensor | None = None) -> torch.Tensor:
        """A copy of the rows `ids`, which may repeat: float32[U, width], in `out` (contiguous) where given."""

    def ahead(self, *wanted: Mapping[str, np.ndarray]) -> None:
        """For each of some steps to come, the ids of every table that its next pull will be of, int64[U], which may repeat: rows
        that lie far away can be sent for now."""

    def push(self, updates: Mapping[str, Update], lr: float) -> None:
        """Let the optimiser take one step on these rows of these tables, where they live: on all of them, or, where it raises
        because others are gone, on none."""

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


class TableMemory:
    """The rows that a machine has of one table, and their optimiser state: private, or shared by the processes of the machine.

    Attributes:
        arrays: "" -> the rows, of the table's dtype [n, *row_shape]; a name of the optimiser's -> float32[n, width] of its state.
    """

    def __init__(
        self, spec: TableSpec, arrays: Mapping[str, np.ndarray], shared: Mapping[str, SharedArray] | None = None
    ) -> None:
        self.spec, self.arrays = spec, dict(arrays)
        self._shared = dict(shared or {})

    @classmethod
    def allocate(cls, spec: TableSpec, rows: int, *, shared: bool = False, huge: bool = False) -> TableMemory:
        """So many rows of zeros; `shared` where `handles` lets others map them. Raises OSError when memory is refused."""
        rule, width = spec.rule(), spec.row_bytes // 4
        shapes = {"": (rows, *spec.row_shape)} | {key: (rows, w) for key, w in (rule.widths(width) if rule else {}).items()}
        dtypes = {key: np.float32 if key else spec.storage for key in shapes}
        if not shared:
            return cls(spec, {key: private_array(shape, dtypes[key], huge=huge) for key, shape in shapes.items()})
        made = {key: SharedArray.allocate(shape, dtypes[key], huge=huge) for key, shape in shapes.items()}
        return cls(spec, {key: array.array for key, array in made.items()}, made)

    def handles(self) -> dict[str, dict[str, Any]]:
        """For `attach` in any process of this user, while this one keeps the memory: plain data."""
        return {key: array.handle(pid=True) for key, array in self._shared.items()}

    @classmethod
    def attach(cls, spec: TableSpec, handles: Mapping[str, dict[str, Any]]) -> TableMemory:
        """The same memory. Raises KgdistError where there is none any more."""
        shared = {key: SharedArray.attach(handle) for key, handle in handles.items()}
        return cls(spec, {key: array.array for key, array in shared.items()}, shared)

    def close(self) -> None:
        """Give up the descriptors; the memory stays while an array of it does."""
        for array in self._shared.values():
            array.close()
        self._shared.clear()


class MemoryTables:
    """Tables in this process's memory, or in memory shared with other processes of this machine.

    Those that it is made with have one optimiser and take part in trainings; more come and go (`add`, `drop`), each with an
    optimiser of its own or none, and are known by the methods whose names are those of `StoreTables`.

    Args:
        rows: name -> float32[n, width].
        state: name -> optimiser state by name, each float32[n, state width].
    Costs 4 * width bytes a row, and the optimiser's state.

    Attributes:
        raw: name -> [n, *row_shape] of each table without an optimiser.
        specs: of all that were added.
        services: by name, what answers questions (`ask`).
        crew: threads that share large updates, where whoever makes these has some; else as many as torch has here begin for it.
    """

    def __init__(self, rows: dict[str, torch.Tensor], state: dict[str, State], optimizer: str) -> None:
        self.rows = rows
        self.state = state
        self.raw: dict[str, np.ndarray] = {}
        self.specs: dict[str, TableSpec] = {}
        self.services: dict[str, Service] = {}
        self.crew: Crew | None = None
        self._rules: dict[str, AdagradRow] = {name: OPTIMIZERS[optimizer]() for name in rows}
        self._shared: dict[str, SharedArray] = {}
        self._added: dict[str, TableMemory] = {}

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

    def add(self, memory: TableMemory) -> None:
        """One more table, in CPU memory wherever the others are. Raises UsageError for a name that is taken."""
        spec = memory.spec
        if spec.name in self:
            raise UsageError(f"there is a table {spec.name} already")
        if (rule := spec.rule()) is None:
            self.raw[spec.name] = memory.arrays[""]
        else:
            rows = memory.arrays[""]
            self.rows[spec.name] = torch.from_numpy(rows.reshape(len(rows), spec.row_bytes // 4))
            self.state[spec.name] = {key: torch.from_numpy(part) for key, part in memory.arrays.items() if key}
            self._rules[spec.name] = rule
        self.specs[spec.name], self._added[spec.name] = spec, memory

    def drop(self, name: str) -> None:
        """Forget a table that was added; its memory goes with the last view of it. Raises UsageError for one that was not."""
        if name not in self._added:
            raise UsageError(f"there is no table {name} that was added: {', '.join(self._added) or 'none'}")
        for tables in (self.rows, self.state, self._rules, self.raw, self.specs):
            tables.pop(name, None)
        self._added.pop(name).close()

    def __contains__(self, name: str) -> bool:
        return name in self.rows or name in self.raw

    def words(self, name: str) -> np.ndarray:
        """The rows of any table as they are on the wire: float32[n, width] or uint8[n, width], the same memory."""
        return self.specs[name].words_of(self.raw[name]) if name in self.raw else self.rows[name].numpy()

    def pull(self, name: str, ids: Ids, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Tables; raises IndexError for an id that is not there. Rows of a raw table are [U, *row_shape] of its dtype."""
        if (raw := self.raw.get(name)) is not None:
            spec = self.specs[name]
            out = spec.empty(len(ids)) if out is None else out
            if not look_up(self.words(name), ids.numpy(), 0, len(raw), 0, spec.words_of(out).reshape(-1)):
                raise IndexError(f"row ids from {int(ids.min())} to {int(ids.max())} in a table of {len(raw)} rows")
            return out
        rows = self.rows[name]
        return self._shaped(name, gather_rows(rows, ids.to(rows.device), out))

    def _shaped(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """float32[n, width] as [n, *row_shape] of a table that was added."""
        return rows.view(len(rows), *self.specs[name].row_shape) if name in self.specs else rows

    def ahead(self, *wanted: Mapping[str, np.ndarray]) -> None:
        """See Tables; all rows are here."""

    def assign(self, name: str, ids: Ids | slice, values: torch.Tensor) -> None:
        """Overwrite the rows `ids`, int64[n], or those of a range start:stop, by [n, *row_shape] of the table's dtype. Where an
        id comes again, the last row stays. Raises IndexError for a row that is not there, and then nothing is changed."""
        table = self.words(name)
        spec = self.specs.get(name) or TableSpec(name, name, "float32", (table.shape[1],))
        words = spec.words_of(values.contiguous())
        rows = np.arange(len(table))[ids] if isinstance(ids, slice) else ids.numpy()
        if len(rows) != len(words):
            raise ValueError(f"table {name}: {len(words)} rows for {len(rows)} ids")
        if not put_rows(table, rows, 0, len(table), 0, words):
            raise IndexError(f"row ids from {int(rows.min())} to {int(rows.max())} in a table of {len(table)} rows")

    def ask(self, machine: int, what: str, args: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()) -> Asking:
        """See `StoreTables.ask`; answered at once, by `services` here, whatever the machine."""
        return settled(self.services, what, args, arrays)

    def push(self, updates: Mapping[str, Update], lr: float) -> None:
        for name, update in updates.items():
            rate = lr if update.rate is None else update.rate
            self.apply(name, torch.from_numpy(update.ids), update.grads, rate, update.squares)

    def apply(self, name: str, ids: Ids, grads: torch.Tensor, lr: float, squares: Squares = None, places: Places = None) -> None:
        """One step of the optimiser on the rows `ids`, unique; float32[U, width], float32[U]. With `places` int64[U], of the
        gradients and squares only those there, which saves copying them."""
        rows, rule = self.rows[name], self._rules[name]
        squares = squares.to(rows.device) if squares is not None else None
        given, state = (ids.to(rows.device), grads.to(rows.device)), self.state[name]
        threads = torch.get_num_threads() if self.crew is None else self.crew.threads
        if threads == 1 or places is not None or grads.numel() < SHARED or not rows.is_cpu:
            rule.apply(rows, state, *given, lr, squares, places)
            return

        def some(number: int) -> None:
            mine = part(len(ids), number, threads)
            rule.apply(rows, state, given[0][mine], given[1][mine], lr, None if squares is None else squares[mine])

        if self.crew is None:
            in_threads(threads, some)
        else:
            self.crew(some)

    def updater(self, name: str) -> Updater:
        """What does the same as `apply` with arrays, for tables on the CPU (see `AdagradRow.updater`)."""
        return self._rules[name].updater(self.rows[name], self.state[name])

    def local(self, name: str) -> torch.Tensor | None:
        if name in self.raw:
            return self.specs[name].tensor_of(self.raw[name])
        rows = self.rows[name]
        return rows if rows.device.type == "cpu" else None

    def block(self, name: str, start: int, stop: int) -> torch.Tensor:
        if name in self.raw:
            return self.specs[name].tensor_of(self.raw[name][start:stop])
        return self._shaped(name, self.rows[name][start:stop])

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
        for memory in self._added.values():
            memory.close()
        self._shared.clear()
        self._added.clear()


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
