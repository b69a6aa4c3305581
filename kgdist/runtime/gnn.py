"""A training with a graph encoder by several workers, side by side: each has a self-sufficient partition, all make the same step.

    worker n   partition n: triples to train on, those that carry messages, and rows of the entities that it reaches
    each step  blocks, encoder and score function on one's own partition; then gradients are shared (kgdist.training.peers)
    meetings   the first worker validates, saves and decides, as on one machine; each encodes its own core entities for it

The first worker has rows of all entities, which every update reaches, so what is saved is whole, and is the run of one machine:
it can be gone on with by any number of workers.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import OptionError, PeersLost, counted
from kgdist.base.log import background, log, say
from kgdist.base.machine import keep_freed_memory, usable_cores
from kgdist.data.dataset import Dataset
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.encoders.encoder import Encoding
from kgdist.models.encoders.message_graph import MessageGraph
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.runtime.checks import check_data
from kgdist.runtime.cluster.training_plan import partition_folder
from kgdist.runtime.course import Result
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.job import Seat, meetings_of, shapes_of, steps_of, warm_up, weights_of, with_interval
from kgdist.runtime.local import Session, train
from kgdist.runtime.share import Share
from kgdist.runtime.solo import SoloControl
from kgdist.runtime.told import as_the_first, gone_on, understood
from kgdist.training.callbacks import Callback, Callbacks, Event, Progress, Validation
from kgdist.training.loop import Control, Trainer
from kgdist.training.peers import Peers
from kgdist.training.step import Losses

ON, ENCODE, LOAD, REPORT, END = 1, 2, 3, 4, 5  # what the first worker lets the others do
Report = Callable[[dict[str, Any], Path | None, int], object]  # metrics; the run folder and the step of its checkpoint, or None


class Leader(Session):
    """The first worker. Its tables have the rows of all entities, by its own numbers."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        interrupts: Interrupts,
        callbacks: Callbacks,
        share: Share,
        peers: Peers,
        seat: Seat,
        run: str | None,
        resuming: str | None,
    ) -> None:
        self.share, self.peers, self.seat, self._resuming = share, peers, seat, resuming
        super().__init__(config, dataset, interrupts, callbacks, run=run)
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # workers, which wait while this one ranks
        self.evaluator.threads = min(here * config.num_thread, usable_cores())

    def _shared(self) -> tuple[int, int]:
        return self.seat.triples, self.seat.machines

    def _encoding(self) -> Encoding:
        return self.share.encoding(self.config)

    def _trainer(self, rank: int) -> Trainer:
        assert self.encoding is not None, "an encoder is named"
        return self.share.trainer(self.config, self.seat, self.tables, self.encoding, self.peers)

    def _control(self) -> Control:
        return LeaderControl(self)

    def _new_run(self) -> Path:
        folder = super()._new_run()
        self._own_order()
        return folder

    def _resume(self, folder: Path) -> Path:
        found = super()._resume(folder)
        self._own_order()
        return found

    def _own_order(self) -> None:
        """The rows of entities were put down in the order of the graph."""
        order = torch.from_numpy(self.share.entities)
        for rows in (self.tables.rows["entity"], *self.tables.state["entity"].values()):
            rows.copy_(rows[order])

    def _arrays(self) -> dict[str, np.ndarray]:
        """In the order of the graph. Costs a copy of the entities' rows and state."""
        arrays = super()._arrays()
        for key in arrays:
            if key.partition(".")[0] == "entity":
                whole = np.empty_like(arrays[key])
                whole[self.share.entities] = arrays[key]
                arrays[key] = whole
        return arrays

    @property
    def command(self) -> str:
        return super().command if self._resuming is None else self._resuming.replace(self.run or "RUN", self.folder.name)

    def give(self) -> None:
        """Let the others have rows and state."""
        self.peers.spread(np.array(self.start))
        for array in self._arrays().values():
            self.peers.spread(array)

    def take_best(self) -> list[str]:
        if not (problems := super().take_best()):
            self._own_order()  # the best rows have no state, but nothing is trained any more
            with self.peers.alone:  # nobody is told to wait on between the parts
                self.peers.tell(LOAD)
                self.give()
        return problems

    def evaluate(self, split: str) -> dict[str, Any]:
        rows = self._embeddings()  # to its end, whatever comes: the others are in it
        with self.interrupts.immediate():
            return self.evaluator.run(self.model, rows, split, self.folder)

    def _embeddings(self) -> MemoryTables:
        """See Session; the others encode what is theirs. Where --fanout left edges out of the partitions, nobody has all that
        lead to an entity, and this worker encodes the whole graph by itself."""
        assert self.encoding is not None, "an encoder is named"
        if self.share.part.manifest.common.reach.fanout:
            return self._whole(self.share.encode(self.encoding._replace(messages=self._messages), self.tables))
        self.peers.tell(ENCODE)
        made = self.share.encode(self.encoding, self.tables)
        found = self._whole(made)
        whole = found.rows["entity"]
        for rank, core in enumerate(self.share.cores[1:], 1):
            rows = self.peers.receive(torch.empty(len(core), made.shape[1]), rank)
            whole[torch.from_numpy(core)] = rows.to(whole.device)  # they came by the network, into CPU memory
        return found

    @functools.cached_property
    def _messages(self) -> MessageGraph:
        """Those of the whole graph, by this worker's own numbers."""
        place = np.empty(len(self.share.entities), np.int32)
        place[self.share.entities] = np.arange(len(place), dtype=np.int32)
        triples = np.array(self.dataset.train.array)
        triples[:, 0::2] = place[triples[:, 0::2]]
        return MessageGraph.of(triples, len(place), self.share.relations, inverse=not self.config.no_inverse)

    def _whole(self, made: torch.Tensor) -> MemoryTables:
        """What is ranked and saved, of entities' rows by this worker's own numbers."""
        whole = torch.empty_like(made)
        whole[torch.from_numpy(self.share.entities)] = made
        rows_of = {name: whole if name == "entity" else self.tables.rows[name] for name in self.model.tables(1, 1)}
        return MemoryTables(rows_of, {name: {} for name in rows_of}, "sgd")


class LeaderControl(SoloControl):
    """Of the first worker: what it decides is said to all."""

    def __init__(self, session: Leader) -> None:
        super().__init__(session)
        self.leader = session
        self._due = False  # a checkpoint
        self._trained = 0

    def stopping(self) -> bool:
        course, interrupts = self.leader.course, self.leader.interrupts
        stop, due, others, _ = self.leader.peers.sums(course.stopping(), course.rhythm.by_clock(), 0, self.lowered())
        self.positives += others
        self._due = due > 0
        if stop and not course.stopping():  # another worker was asked to leave, and all do
            interrupts.asked = True
        return stop > 0

    def meeting(self, step: int) -> bool:
        return self._due or self.leader.meeting(step)

    def meet(self, step: int) -> None:
        with self.leader.peers.waiting():
            super().meet(step)
        self.leader.peers.tell(ON)


class Follower:
    """Another worker."""

    def __init__(
        self, config: Config, share: Share, peers: Peers, seat: Seat, interrupts: Interrupts, reports: Report | None
    ) -> None:
        self.config, self.share, self.peers, self.interrupts, self.reports = config, share, peers, interrupts, reports
        shapes = shapes_of(config, model_of(config), len(share.entities), share.relations)
        self.tables = MemoryTables.create(shapes, config.optimizer, huge=config.huge_pages)
        self.encoding = share.encoding(config)
        self.tables.add(weights_of(self.encoding))
        self.trainer = share.trainer(config, seat, self.tables, self.encoding, peers)
        self.start = np.zeros(1, np.int64)
        self._meeting, self._due, self._positives, self._lowered = meetings_of(config), False, 0, 0

    def train(self) -> None:
        """Until the first worker has ended."""
        self.attend()  # it makes or reads all rows first
        self.load()
        self.trainer.run(self, int(self.start[0]))
        self.attend()

    def load(self) -> None:
        """Take what the first worker gives."""
        self.peers.spread(self.start)
        for key, array in self.tables.arrays().items():
            if key.partition(".")[0] != "entity":
                self.peers.spread(array)
                continue
            whole = np.empty((self.share.total, array.shape[1]), np.float32)
            self.peers.spread(whole)
            array[:] = whole[self.share.entities]

    def attend(self) -> None:
        """Do what the first worker asks for, until training goes on or is over."""
        while (word := self.peers.hear()) not in (ON, END):
            if word == ENCODE:
                self.peers.send(self.share.encode(self.encoding, self.tables)[: self.share.part.num_core])
            elif word == LOAD:
                self.load()
            elif word == REPORT and self.reports is not None:
                self.reports({}, None, 0)

    # ---- as the control of its loop

    def stopping(self) -> bool:
        """See Control."""
        stop, due, _, self._lowered = self.peers.sums(self.interrupts.asked, False, self._positives, 0)
        self._positives, self._due = 0, due > 0
        return stop > 0

    def lowered(self) -> int:
        """See Control: the first worker knows it."""
        return self._lowered

    def report(self, step: int, positives: int, losses: Losses) -> None:
        """See Control."""
        self._positives += positives

    def meeting(self, step: int) -> bool:
        """See Control."""
        return self._due or self._meeting(step)

    def meet(self, step: int) -> None:
        """See Control."""
        self.attend()

    def say(self, line: str) -> None:
        """See Control: one of all workers is enough."""


class Reporting:
    """A callback that reports each checkpoint, and lets the other workers do so."""

    def __init__(self, reports: Report, peers: Peers | None = None) -> None:
        self._reports, self._peers = reports, peers
        self._values: dict[str, Any] = {}
        self._last = 0  # the step that was reported

    def __call__(self, event: Event) -> None:
        if isinstance(event, Validation):
            names = ("mrr", "mr", "hits1", "hits3", "hits10")
            self._values |= {name: getattr(event, name) for name in names}
        elif isinstance(event, Progress):
            self._values |= {"loss": event.loss, "triples_per_second": event.triples_per_second}
        elif event.step != self._last:
            self._last = event.step
            if self._peers is not None:
                self._peers.tell(REPORT)
            self._reports(self._values | {"step": event.step}, Path(event.folder), event.step)


def train_gnn(
    config: Config | Mapping[str, Any],
    callbacks: Iterable[Callback] = (),
    *,
    run: str | None = None,
    resuming: str | None = None,
    reports: Report | None = None,
) -> Result:
    """Train a graph encoder and a score function as one of several workers, all of which call this.

    They are those of torch.distributed: of the group that there is, or that the environment names (RANK, WORLD_SIZE, MASTER_ADDR,
    MASTER_PORT), as torchrun, kgdist-dist-train and Ray Train see to. Worker n trains `partition_n` of kgdist-partition --edges,
    in the folder `<path>/<data_path>/<dataset>`. A batch is each worker's own, so twice the workers make half the steps an epoch.
    A process that is alone, and for whom nothing was partitioned, trains on the data set itself, as `kgdist.train` does.

    Args:
        config: options of kgdist-dist-train by name, and of kgdist-train for a process that is alone. They mean what they do on a
            command line, `preset`, `config`, `model_file` and `resume` too; workers take those that all must have alike from the
            first. `num_proc` has no effect: how many workers there are says who starts them.
        callbacks: heard by the first worker.
        run: what names this training when it is begun again: it then goes on at its last checkpoint, if there is one in
            `save_path`.
        reports: called in every worker whenever a checkpoint was written: in the first one with the values of the last validation
            and of the log before, the run folder and the step; in the others with {}, None and 0.
        resuming: the command to name when it can be gone on with, in which `run` stands for the name of the run folder.
    Returns how it ended, in the first worker; the others know no run folder and no metrics.
    Raises KgdistError; PeersLost (exit code 3) when another worker has ended, or does not come within `stall_timeout`.
    """
    rank, workers = _seat()
    if not isinstance(config, Config):
        config = understood(config, rank, workers)
    config = config.replace(num_proc=1)
    if workers == 1 and not partition_folder(config, 0).is_dir():
        _require_encoder(config)
        alone: list[Callback] = [*callbacks] if reports is None else [*callbacks, Reporting(reports)]
        return train(config if run is None else gone_on(config, run), alone, run=run)
    return _train(config, callbacks, (run, resuming), reports)


def _seat() -> tuple[int, int]:
    """The rank of this worker, and how many there are, as far as torch.distributed knows."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _require_encoder(config: Config) -> None:
    if config.encoder == "none":
        raise OptionError("--encoder", "name the graph encoder to train")


@background()
def _train(config: Config, callbacks: Iterable[Callback], known: tuple[str | None, str | None], reports: Report | None) -> Result:
    keep_freed_memory()
    torch.set_num_threads(config.num_thread)
    peers = Peers(config.stall_timeout)
    local = int(os.environ.get("LOCAL_RANK", peers.rank))
    config = config.replace(gpu=(config.gpu[local % len(config.gpu)],))
    with Interrupts() as interrupts, contextlib.ExitStack() as ends:
        ends.callback(peers.leave)
        config = as_the_first(config, peers)
        _require_encoder(config)
        share = Share.of(config, peers)
        config = config.replace(**share.part.manifest.common.source)
        seat = share.seat(config, peers)
        config = with_interval(config, steps_of(config, seat.triples, seat.machines))
        warm_up(config, weighted=share.part.core.weights is not None)  # all at once, while nobody waits for anybody
        dataset = share.dataset(config, peers)
        if dataset is None:
            Follower(config, share, peers, seat, interrupts, reports).train()
            return Result(None, interrupts.asked, None)
        heard: list[Callback] = [*callbacks] if reports is None else [*callbacks, Reporting(reports, peers)]
        return _lead(config, heard, known, (share, peers, seat), dataset, interrupts)


def _lead(
    config: Config,
    callbacks: Iterable[Callback],
    known: tuple[str | None, str | None],
    worker: tuple[Share, Peers, Seat],
    dataset: Dataset,
    interrupts: Interrupts,
) -> Result:
    (run, resuming), (_, peers, _) = known, worker
    heard = Callbacks(callbacks)
    with peers.waiting():  # rows are made or read, however long that takes
        check_data(config, dataset)
        if run is not None:
            config = gone_on(config, run)
        if not config.quiet:
            sizes = f"{len(dataset.entities)} entities, {len(dataset.relations)} relations, {len(dataset.train)} training triples"
            say(f"{dataset.name}: {sizes}, {counted(peers.world, 'worker')}")
        session = Leader(config, dataset, interrupts, heard, *worker, run, resuming)
    try:
        peers.tell(ON)
        session.give()
        session.train()
        with peers.waiting():
            result = session.course.finish(session.step)
    except KeyboardInterrupt:
        if not config.no_save_emb:
            log.warning("what was not saved is lost%s", session.hint)
        raise
    finally:
        session.close()
    with contextlib.suppress(PeersLost):  # all is done
        peers.tell(END)
    if heard.failure is not None:
        raise heard.failure
    return result
