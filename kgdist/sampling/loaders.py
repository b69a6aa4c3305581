"""Loaders: batches of a set of nodes, of edges or of anything, made here or by worker processes, always the same and in order.

Batch b of epoch e follows from (seed, e, b) and the set alone: not from how many workers there are, what was made before, or
whether the loader was stopped and begun again. Workers are those of torch's DataLoader, forked: a graph in memory is shared.
"""

from __future__ import annotations

import contextlib
import re
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset as TorchDataset

from kgdist.base.errors import KgdistError, UsageError, WorkerError
from kgdist.base.integers import integer
from kgdist.graphs.ids import as_ids
from kgdist.graphs.in_memory import Graph
from kgdist.graphs.structure import NID, Draw, Neighbourhood, check_ids
from kgdist.kernels.random import shuffled
from kgdist.sampling.blocks import Block
from kgdist.sampling.neighbours import schema_of, seed_of
from kgdist.sampling.parcels import Parcel, packed, unpacked
from kgdist.sampling.samplers import EdgePredictionSampler, MultiLayerNeighborSampler, check_sampler

AHEAD = 4  # batches that each worker makes ahead
FAR = 32  # bits: an epoch's batches are numbered below 2^FAR
DEAD = re.compile(r"DataLoader worker \(pid.*\) (exited|is killed)")  # what torch says of a worker that is no more


class Defaults:
    """What loaders are told by others."""

    workers = 0  # processes, where a loader is not told: `distributed.initialize` says how many


class SplitSizes(NamedTuple):
    """How much the trainers have of a split, so that all can make equally many batches: they differ by one at most, for each type
    of which there are ids."""

    least: int
    most: int

    @classmethod
    def of(cls, ids: Any) -> SplitSizes | None:
        """Those of `ids`, if it is what `node_split` or `edge_split` returned, itself and not made of it."""
        return getattr(ids, "split_sizes", None)


class _Refused(NamedTuple):
    """An error of ours on its way from a worker."""

    kind: type[KgdistError]
    text: str


class _Made(TorchDataset[Any]):
    """Batches by (epoch, number), as torch's workers make them."""

    def __init__(self, make: Callable[[int, int], Any]) -> None:
        self.make = make

    def __getitem__(self, number: tuple[int, int]) -> Parcel | _Refused:
        try:
            return packed(self.make(*number))
        except KgdistError as error:  # torch would send a page of traceback instead of one line
            return _Refused(type(error), str(error))


@contextlib.contextmanager
def _children_left_alone() -> Iterator[None]:
    """Keep torch from answering SIGCHLD: it would raise a worker's death in the midst of whatever this process is doing. Within
    seconds it sees the same when a batch is waited for, where `Loader` can say what it means."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, before)


def _as_it_is(batch: Any) -> Any:
    return batch


class Loader:
    """Batches of `size` things: how many, in which order, and by whom they are made. Going over it is one epoch.

    Args:
        size: how many things there are.
        batch_size: things a batch; the last batch has what is left, or is left out with `drop_last`.
        shuffle: another order each epoch.
        seed: equal ones give equal batches; where none is given, torch's generator says it.
        num_workers: processes that make batches; where not said, as `distributed.initialize` was told. 0: this process makes
            each when it is asked for.
        ahead: batches that are made ahead, by all workers together; four each where not said.
        even: what the trainers have of a split: all then go over equally many batches, for those that share gradients wait for
            one another. Who has one thing less than fills the last batch of others has one of his again.
    """

    def __init__(
        self,
        size: int,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        num_workers: int | None = None,
        ahead: int | None = None,
        even: SplitSizes | None = None,
    ) -> None:
        self.num_workers = Defaults.workers if num_workers is None else integer("num_workers", num_workers, 0)
        self.size, self.batch_size, self.shuffle, self.drop_last = size, integer("batch_size", batch_size, 1), shuffle, drop_last
        self.seed = seed_of(seed)
        if even is not None and size == 0 < even.most:
            raise UsageError(f"this trainer has nothing to go over, and another one has {even.most}: take fewer trainers")
        self.ahead = None if ahead is None else integer("queue_size", ahead, 1)
        self.even = even or SplitSizes(size, size)
        self.epoch, self.first = 0, 0

    def __len__(self) -> int:
        least, most = self.even
        return least // self.batch_size if self.drop_last else -(-most // self.batch_size)

    def set_epoch(self, epoch: int, batch: int = 0) -> None:
        """What the next going over gives: this epoch, from this batch on. Without a word, epochs follow one another."""
        self.epoch, self.first = epoch, batch

    def positions(self, epoch: int, number: int) -> np.ndarray:
        """int64[n], which of the things a batch has."""
        start, stop = number * self.batch_size, min((number + 1) * self.batch_size, self.size)
        if start >= self.size:  # a batch that others have
            start, stop = 0, min(self.even.most - start, self.size)
        return shuffled(self.seed, epoch, start, stop, self.size) if self.shuffle else np.arange(start, stop)

    def make(self, epoch: int, number: int) -> Any:
        """A batch, in whatever process."""
        raise NotImplementedError

    def before_fork(self) -> None:
        """What is done once here, for all workers."""

    def send_for(self, batch: Any) -> Callable[[], Any]:
        """Begin to fetch what a batch lacks, in this process, while the one before is in use; the call waits for it."""
        return lambda: batch

    def __iter__(self) -> Iterator[Any]:
        epoch, first = self.epoch, self.first
        self.epoch, self.first = epoch + 1, 0
        numbers = [(epoch, number) for number in range(first, len(self))]
        return _one_ahead(self._made(numbers), self.send_for)

    def _made(self, numbers: Sequence[tuple[int, int]]) -> Iterator[Any]:
        if self.num_workers == 0 or not numbers:
            for number in numbers:
                yield self.make(*number)
            return
        self.before_fork()
        each = AHEAD if self.ahead is None else -(-self.ahead // self.num_workers)
        loader: TorchLoader[Any] = TorchLoader(
            _Made(self.make),
            batch_size=None,
            collate_fn=_as_it_is,  # torch would take named tuples apart
            sampler=numbers,
            num_workers=self.num_workers,
            prefetch_factor=each,
            multiprocessing_context="fork",
        )
        with _children_left_alone():
            batches: Any = iter(loader)
        try:
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                except (RuntimeError, OSError, EOFError) as error:  # the last two: it died as it was handing a batch over
                    if not DEAD.search(str(error)) and not _ended(batches):
                        raise
                    said = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
                    raise WorkerError(f"a process that makes batches has died ({said}): is there too little memory?") from None
                if isinstance(batch, _Refused):
                    raise batch.kind.__new__(batch.kind, batch.text)
                yield unpacked(batch)
        finally:
            batches._shutdown_workers()  # now, and not when the last traceback that knows them is forgotten


def _ended(batches: Any) -> bool:
    """Whether a process that makes them is no more, or will be in a moment: its descriptors close before it can be waited for."""
    return any(select.select([worker.sentinel for worker in batches._workers], [], [], 1))


def _one_ahead(batches: Iterator[Any], send_for: Callable[[Any], Callable[[], Any]]) -> Iterator[Any]:
    """Each batch, once what the next one lacks has been sent for."""
    waiting = None
    for batch in batches:
        following = send_for(batch)
        if waiting is not None:
            yield waiting()
        waiting = following
    if waiting is not None:
        yield waiting()


class DataLoader(Loader):
    """Batches of nodes or edges of a graph, in memory or on many machines: what `sampler.sample` makes of them.

    Args:
        graph: where neighbours are drawn.
        indices: ids of nodes (of edges for an `EdgePredictionSampler`), or a dictionary of these by type.
        graph_sampler: its blocks are drawn by (seed, epoch and batch, hop, node).
        device: where the tensors of a batch are put.

    The others are those of `Loader`. Data that the sampler names (`prefetch_node_feats`, `prefetch_labels`) is sent for while
    the batch before is in use.
    """

    def __init__(
        self,
        graph: Neighbourhood,
        indices: Any,
        graph_sampler: MultiLayerNeighborSampler | EdgePredictionSampler,
        device: torch.device | str | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        num_workers: int | None = None,
    ) -> None:
        self.graph, self.sampler, self.device = graph, graph_sampler, device
        check_sampler(graph_sampler)
        schema = schema_of(graph)
        find: Any = schema.etype if isinstance(graph_sampler, EdgePredictionSampler) else schema.ntype
        given = indices if isinstance(indices, Mapping) else {find(None): indices}
        self.by_type = isinstance(indices, Mapping)
        self.indices = {find(kind): as_ids(ids, "indices").astype(np.int64, copy=False) for kind, ids in given.items()}
        for kind, ids in self.indices.items():
            noun, count = ("node", graph.num_nodes(kind)) if isinstance(kind, str) else ("edge", graph.num_edges(kind))
            check_ids(noun, ids, count)
        sizes = [len(ids) for ids in self.indices.values()]
        shares = [SplitSizes.of(ids) or SplitSizes(own, own) for ids, own in zip(given.values(), sizes, strict=True)]
        even = SplitSizes(*map(sum, zip(*shares, strict=True))) if shares else None
        self._ready = False  # for workers
        super().__init__(sum(sizes), batch_size, shuffle, drop_last, seed, num_workers, even=even)

    def make(self, epoch: int, number: int) -> Any:
        """What the sampler makes of the batch's nodes or edges."""
        positions = self.positions(epoch, number)
        chosen: Any = {}
        start = 0
        for kind, ids in self.indices.items():
            own = positions[(positions >= start) & (positions < start + len(ids))] - start
            chosen[kind] = torch.from_numpy(ids[own])
            start += len(ids)
        if not self.by_type:
            (chosen,) = chosen.values()
        draw = Draw(self.seed, epoch << FAR | number)
        return self.sampler.sample(self.graph, chosen, None, draw)  # type: ignore[arg-type]

    def before_fork(self) -> None:
        """Bring a graph's edges into order and load the loops: every worker of every epoch would do so by itself."""
        if isinstance(self.graph, Graph) and not self._ready:
            self.make(0, 0)
            self._ready = True

    def send_for(self, batch: Any) -> Callable[[], Any]:
        """Begin to read the data that the sampler names."""
        blocks = batch[-1] if isinstance(batch, tuple) and isinstance(batch[-1], list) else []
        waiting = []
        if blocks:
            waiting = [
                *_sent_for(self.graph, self.sampler.prefetch_node_feats, blocks[0].srcnodes, blocks[0].ntypes),
                *_sent_for(self.graph, self.sampler.prefetch_labels, blocks[-1].dstnodes, blocks[-1].ntypes),
            ]

        def whole() -> Any:
            for frame, name, arrive in waiting:
                frame[name] = arrive()
            return batch if self.device is None else _moved(batch, self.device)

        return whole


def _sent_for(
    graph: Any, names: Sequence[str], nodes: Any, ntypes: Sequence[str]
) -> Iterator[tuple[Any, str, Callable[[], Any]]]:
    """(frame, name, what gives the rows) for each name and each type that has such data.

    A tensor that can `prefetch(ids)` is asked to, and gives what is then called for the rows; others are read when they are
    needed.
    """
    for name in names:
        found = False
        for ntype in ntypes:
            there = graph.nodes[ntype].data
            if name not in there:
                continue
            found = True
            frame, column = nodes[ntype].data, there[name]
            begin = getattr(column, "prefetch", None) or partial(partial, column.__getitem__)
            yield frame, name, begin(frame[NID])
        if not found:
            raise UsageError(f"the graph has no node data {name!r}")


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, torch.Tensor | Block) or hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(each, device) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(each, device) for each in value)
    return value


class NodeDataLoader(DataLoader):
    """(input nodes, seeds, blocks) for batches of nodes: see `DataLoader`."""

    def __init__(
        self, g: Neighbourhood, nids: Any, graph_sampler: MultiLayerNeighborSampler, device: Any = None, **how: Any
    ) -> None:
        super().__init__(g, nids, graph_sampler, device, **how)


class EdgeDataLoader(DataLoader):
    """(input nodes, graph of the edges, graph of negatives where there is a sampler of such, blocks) for batches of edges.

    `exclude`, `reverse_eids`, `reverse_etypes` and `negative_sampler` are those of `EdgePredictionSampler`, others those of
    `DataLoader`.
    """

    def __init__(
        self,
        g: Neighbourhood,
        eids: Any,
        graph_sampler: MultiLayerNeighborSampler,
        device: Any = None,
        *,
        exclude: str | None = None,
        reverse_eids: Any = None,
        reverse_etypes: Mapping[Any, Any] | None = None,
        negative_sampler: Any = None,
        **how: Any,
    ) -> None:
        sampler = EdgePredictionSampler(graph_sampler, exclude, reverse_eids, reverse_etypes, negative_sampler)
        super().__init__(g, eids, sampler, device, **how)


DistNodeDataLoader, DistEdgeDataLoader = NodeDataLoader, EdgeDataLoader


class DistDataLoader(Loader):
    """Batches of anything, as `collate_fn` makes them: torch's DataLoader, with as many workers as `distributed.initialize` said.

    Args:
        dataset: what has a length and is asked for by number; a tensor or array is asked for a batch at once.
        collate_fn: called with a batch: a tensor of a tensor's rows, or a list. Without it, that is the batch.
        queue_size: batches that are made ahead.

    The others are those of `Loader`. Batches come in order (DGL's do not).
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        shuffle: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        queue_size: int | None = None,
        *,
        seed: int | None = None,
        num_workers: int | None = None,
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(dataset, Mapping):
            raise UsageError(f"a {type(dataset).__name__} is asked for by no number: give a tensor, an array or a list")
        if not (collate_fn is None or callable(collate_fn)):
            raise UsageError(f"collate_fn={collate_fn!r}: give a function of a batch, or leave it out")
        self.dataset, self.collate = dataset, collate_fn
        super().__init__(len(dataset), batch_size, shuffle, drop_last, seed, num_workers, queue_size, SplitSizes.of(dataset))

    def make(self, epoch: int, number: int) -> Any:
        """The batch that `collate_fn` makes."""
        positions = self.positions(epoch, number)
        if isinstance(self.dataset, torch.Tensor | np.ndarray):
            rows: Any = torch.as_tensor(self.dataset).detach().cpu()[torch.from_numpy(positions)]
        else:
            rows = [self.dataset[int(each)] for each in positions]
        return rows if self.collate is None else self.collate(rows)
