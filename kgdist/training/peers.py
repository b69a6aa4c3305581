"""Workers that train side by side, each on triples of its own, all at the same step: they share their gradients.

A step's update of a row is the mean of the workers' updates, as if one of them had had a batch of all their triples, and every
worker makes it to the rows that it has: so rows never travel, and copies of a row stay equal to the bit. `Peers` is
torch.distributed's group, with deadlines; `PeerTables` are a worker's own tables, seen through it.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import threading
from collections.abc import Iterator, Mapping

import numpy as np
import torch
import torch.distributed as dist

from kgdist.base.errors import PeersLost, UsageError
from kgdist.base.gloo import let_gloo_rest
from kgdist.kvstore.tables import Tables, Update

REST = 0  # the word that says: wait on
EVERY = 5.0  # seconds between two of them, at most
SENT = 1 << 26  # bytes of one broadcast


class Peers:
    """This worker and the others.

    Args:
        patience: seconds that a worker waits for another one.
    Raises PeersLost, here and in every method, when another worker has ended or does not come.

    Attributes:
        rank, world: of this worker, and how many there are.
        alone: held by the first worker while it tells the others something that has several parts.
    """

    def __init__(self, patience: float) -> None:
        self._every = min(EVERY, patience / 4)
        self._own = not dist.is_initialized()  # otherwise it is somebody else's, who ends it
        with _together():
            if self._own:
                dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=patience))
            # Whoever made the group may have made it of GPUs, and with a deadline of its own.
            self._group = dist.group.WORLD if self._own else dist.new_group(
                backend="gloo", timeout=datetime.timedelta(seconds=patience)
            )  # fmt: skip
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.alone = threading.RLock()  # what the first worker tells is told in one piece

    def sums(self, *numbers: int) -> list[int]:
        """Each number, added up over the workers."""
        found = torch.tensor(numbers)
        with _together():
            dist.all_reduce(found, dist.ReduceOp.SUM, self._group)
        return [int(each) for each in found]

    def texts(self, text: str) -> list[str]:
        """What each worker says, by rank."""
        return [
            bytes(each.numpy()).decode() for each in self.each(torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy()))
        ]

    def same(self, text: str) -> bool:
        """Whether all workers say the same."""
        return all(other == text for other in self.texts(text))

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """float32[...] added up over the workers, in place."""
        with _together():
            dist.all_reduce(values, dist.ReduceOp.SUM, self._group)
        return values

    def each(self, values: torch.Tensor) -> list[torch.Tensor]:
        """The tensors [n of this worker, ...] of all workers, by rank. Costs each the largest one times the workers."""
        count = torch.tensor([len(values)])
        counts = [torch.empty_like(count) for _ in range(self.world)]
        with _together():
            dist.all_gather(counts, count, self._group)
            sizes = [int(each) for each in counts]
            if len(values) < max(sizes):
                values = torch.cat([values, values.new_zeros(max(sizes) - len(values), *values.shape[1:])])
            found = [torch.empty_like(values) for _ in sizes]
            dist.all_gather(found, values.contiguous(), self._group)
        return [part[:size] for part, size in zip(found, sizes, strict=True)]

    def spread(self, array: np.ndarray) -> None:
        """Let all have what the first worker has, in place, contiguous: in pieces."""
        flat = torch.from_numpy(array.reshape(-1))
        step = max(1, SENT // max(1, array.itemsize))
        with self.alone, _together():
            for start in range(0, len(flat), step):
                dist.broadcast(flat[start : start + step], 0, self._group)

    def send(self, values: torch.Tensor) -> None:
        """To the first worker, which receives it."""
        with _together():
            dist.send(values.contiguous(), 0, self._group)

    def receive(self, values: torch.Tensor, rank: int) -> torch.Tensor:
        """What another one sends, into `values`."""
        with _together():
            dist.recv(values, rank, self._group)
        return values

    # ---- one says what to do, the others do it

    def tell(self, word: int) -> None:
        """Of the first worker: what all do next, at least 1."""
        with self.alone, _together():
            dist.broadcast(torch.tensor([word]), 0, self._group)

    def hear(self) -> int:
        """What the first one says, however long it takes as long as it lives."""
        word = torch.tensor([REST])
        with _together():
            while not word:
                dist.broadcast(word, 0, self._group)
        return int(word)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Of the first worker: while the block runs, in which it says nothing, the others are told to wait on."""
        over = threading.Event()

        def rest() -> None:
            while not over.wait(self._every):
                with contextlib.suppress(PeersLost):  # whoever needs them will see it
                    self.tell(REST)

        thread = threading.Thread(target=rest, name="kgdist-rest", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=2 * EVERY)

    def leave(self) -> None:
        """There is no more to share."""
        if self._own:
            dist.destroy_process_group()
            let_gloo_rest()


class PeerTables:
    """A worker's own tables; what it pushes is shared before.

    Args:
        entities: int64[n], the number in the whole graph of each entity that the worker has; None: all of them, in order.
        total: how many entities the whole graph has. Costs 4 bytes for each.
    """

    def __init__(self, tables: Tables, peers: Peers, entities: np.ndarray | None, total: int) -> None:
        self.tables, self.peers, self.entities = tables, peers, entities
        self.pull, self.ahead, self.local, self.block = tables.pull, tables.ahead, tables.local, tables.block
        self.blocks, self.shape, self.names, self.flush = tables.blocks, tables.shape, tables.names, tables.flush
        self.place: np.ndarray | None = None  # int32[total], where a worker has each, -1 where it has not
        if entities is not None:
            self.place = np.full(total, -1, np.int32)
            self.place[entities] = np.arange(len(entities), dtype=np.int32)

    def push(self, updates: Mapping[str, Update], lr: float) -> None:
        """See Tables: with the means of all workers' updates. All push the same tables, one after another. Everything is shared
        before anything is changed: where another worker is gone meanwhile, the rows are those of the step before, all of them."""
        self.tables.push({name: self._shared(name, update) for name, update in updates.items()}, lr)

    def _shared(self, name: str, update: Update) -> Update:
        world, width = self.peers.world, update.grads.shape[1]
        if self.shape(name)[0] == 1 and update.squares is None:  # every worker has all of it: half of the bytes
            return update._replace(grads=self.peers.sum(update.grads.cpu().contiguous()).div_(world))
        numbers = update.ids if name != "entity" or self.entities is None else self.entities[update.ids]
        values = update.grads.cpu()
        if update.squares is not None:
            values = torch.cat([values, torch.as_tensor(update.squares).cpu()[:, None]], 1)
        ids = torch.cat(self.peers.each(torch.from_numpy(numbers))).numpy()
        found, places = np.unique(ids, return_inverse=True)
        sums = torch.zeros(len(found), values.shape[1])
        sums.index_add_(0, torch.from_numpy(places.reshape(-1)), torch.cat(self.peers.each(values)))
        if name == "entity" and self.place is not None:
            own = self.place[found]
            here = np.flatnonzero(own >= 0)
            found, sums = own[here].astype(np.int64), sums[torch.from_numpy(here)]
        # Of a batch that is so many times as large, each use has that part of the gradient, and the square of that its square.
        squares = sums[:, width] / world**2 if update.squares is not None else None
        return Update(found, sums[:, :width] / world, squares, update.rate)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """What gloo says of workers that are gone or late, in one of our errors."""
    try:
        yield
    except ValueError as error:  # of the environment
        hint = "start the workers by torchrun, or train by kgdist-dist-train"
        raise UsageError(f"torch.distributed finds no others: {str(error).splitlines()[0]}; {hint}") from error
    except RuntimeError as error:
        said = re.sub(r"^\[.*?\] ?", "", str(error).splitlines()[0])
        raise PeersLost(f"another worker has ended, or does not answer: {said}") from error
