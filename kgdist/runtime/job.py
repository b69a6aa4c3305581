"""What a run consists of, made from its options alone, so that every process of it makes the same things."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import KgdistError, OptionError, counted
from kgdist.base.machine import keep_freed_memory
from kgdist.base.types import Batch, Side
from kgdist.data.batches import Batches, relation_shares, size_at
from kgdist.data.dataset import Triples
from kgdist.data.domains import Domains
from kgdist.data.known import KnownTriples
from kgdist.data.queries import Queries
from kgdist.data.weighing import Weighing
from kgdist.kvstore.catalogue import TableSpec
from kgdist.kvstore.optim import OPTIMIZERS
from kgdist.kvstore.shared_memory import SharedArray
from kgdist.kvstore.tables import AsyncTables, MemoryTables, TableMemory, Tables
from kgdist.models.base import Model
from kgdist.models.encoders.encoder import TABLE as ENCODER
from kgdist.models.encoders.encoder import Encoding
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.options.interval import Interval, Rhythm
from kgdist.options.model_file import bring
from kgdist.runtime.processes.child import Owner
from kgdist.runtime.processes.control import SharedControl, WorkerControl
from kgdist.sampling.negatives import ChunkedNegatives, Standing
from kgdist.training.loop import Trainer
from kgdist.training.losses import SOFTMAX


def last_words(last: int | None, command: str) -> str:
    """How to go on when nothing more is saved: from the checkpoint of step `last`, where there is one, by this command."""
    if last is None:
        return "; no checkpoint was written, so there is nothing to go on from"
    return f"; the last checkpoint is of step {last}, go on with: {command}"


@dataclass(frozen=True)
class Seat:
    """Where a process sits in a training on several machines."""

    machine: int
    machines: int
    triples: int  # of all machines
    own: tuple[int, int]  # the first entity of its machine, and the one after its last
    shares: tuple[int, ...] = ()  # triples of each machine, where all make the same step
    entities: int | None = None  # of all machines, where its tables have only some of them
    pool: np.ndarray | None = None  # int64[n], the entities that negatives are drawn from, where they are not all or its own

    def weight(self, batch_size: int, step: int) -> float:
        """What a mean over its own positives of a step counts in the mean of all machines' means, so that this is the mean over
        all positives: batches that end an epoch are shorter, and not those of all machines at the same step."""
        sizes = [size_at(triples, batch_size, step) for triples in self.shares]
        return sizes[self.machine] * len(sizes) / sum(sizes) if sizes else 1.0

    def start(self, rank: int, ranks: int) -> int:
        """The entity at which trainer `rank` of `ranks` begins when it looks at all of them: among its own, and not where another
        trainer begins, so that all are never with one machine."""
        low, high = self.own
        return low + (high - low) * rank // ranks


def epoch_of(config: Config, triples: Triples | int, machines: int = 1) -> int:
    """Steps of each process that are a pass over the triples, or so many; the last batch of an epoch may be a short one."""
    if config.candidates == "all" and isinstance(triples, Triples):
        return queries_of(config, triples).steps_per_epoch
    count = triples if isinstance(triples, int) else len(triples)
    return math.ceil(count / (config.batch_size * config.num_proc * machines))


def steps_of(config: Config, triples: Triples | int, machines: int = 1) -> int:
    """Steps of each process: `--max_step`, or as many as `--max_epoch` passes over the triples take."""
    if config.max_epoch is None:
        return config.max_step
    return max(1, math.ceil(config.max_epoch * epoch_of(config, triples, machines)))


def with_interval(config: Config, steps: int) -> Config:
    """With the `--eval_interval` of so many steps, where none was given: ten validations show a curve, and few cost little."""
    return config if config.eval_interval else config.replace(eval_interval=min(10_000, math.ceil(steps / 10)))


def bytes_of(config: Config, shapes: Mapping[str, tuple[int, int]]) -> int:
    """Of tables of these shapes, with the optimiser's state."""
    widths = OPTIMIZERS[config.optimizer]().widths
    return sum(4 * rows * (width + sum(widths(width).values())) for rows, width in shapes.values())


def rhythm_of(config: Config) -> Rhythm:
    """When checkpoints are due."""
    return Rhythm(Interval.parse(config.checkpoint_interval) if not config.no_save_emb else Interval())


def meetings_of(config: Config) -> Callable[[int], bool]:
    """Whether all processes wait for one another after that many steps."""
    intervals = []
    if config.valid:
        intervals.append(config.eval_interval)
    if steps := Interval.parse(config.checkpoint_interval).steps:
        intervals.append(steps)
    if config.force_sync_interval > 0:  # -1 where there is nobody to wait for; one trainer may have others on other machines
        intervals.append(config.force_sync_interval)
    return lambda step: any(step % interval == 0 for interval in intervals)


def device_of(config: Config, rank: int) -> torch.device:
    """Where process `rank` computes; the GPUs are dealt out in turn."""
    return torch.device("cpu") if config.gpu[0] < 0 else torch.device("cuda", config.gpu[rank % len(config.gpu)])


def shapes_of(config: Config, model: Model, num_entities: int, num_relations: int) -> dict[str, tuple[int, int]]:
    """(rows, width) of the tables that a training has: those of the score function, but that an encoder begins with entities'
    rows of a size of their own."""
    shapes = model.shapes(num_entities, num_relations)
    return shapes if config.encoder == "none" else shapes | {"entity": (num_entities, config.encoder_dim)}


def weights_of(encoding: Encoding, *, shared: bool = False) -> TableMemory:
    """Memory of the encoder's weights, with Adam's state: 12 bytes a weight. Not yet filled."""
    spec = TableSpec(ENCODER, ENCODER, row_shape=(encoding.encoder.weights().shape[1],), optimizer="adam")
    return TableMemory.allocate(spec, 1, shared=shared)


def trainer_of(
    config: Config,
    train: Triples,
    tables: Tables,
    rank: int,
    seat: Seat | None = None,
    encoding: Encoding | None = None,
    types: np.ndarray | None = None,
) -> Trainer:
    """The training of process `rank` of this machine on its split `train`, whose entities have the `types` int32[n, 2], if any
    (`kgdist.data.entity_types`). Raises OptionError when it would have no triples."""
    model = model_of(config)
    if config.compute_dtype == "bfloat16":
        model.comparator = model.comparator.in_bfloat16()
    number, total = rank, steps_of(config, train)
    if seat is not None:
        number, total = seat.machine * config.num_proc + rank, steps_of(config, seat.triples, seat.machines)
    batch: Callable[[int], Batch]
    notes: list[str] = []
    sizes = tables.shape("entity")[0], tables.shape("relation")[0] // model.per_relation
    if config.candidates == "all":
        batch = queries_of(config, train).batch
    else:
        batch, notes = _sampled(config, model, train, sizes, seat, (rank, number), types)
    if config.bernoulli or config.subsampling or config.answer_weight < 1:
        weighing = Weighing(
            train, sizes[1], bernoulli=config.bernoulli, subsampling=config.subsampling, answer=config.answer_weight
        )
        plain = batch

        def batch(step: int) -> Batch:
            return weighing(plain(step))

    if config.async_update:
        tables = AsyncTables(tables)
    machines = seat.machines if seat is not None else 1
    device = device_of(config, rank)
    shown = rank if encoding is None else number  # also whose draws of neighbours are its own
    weight = partial(seat.weight, config.batch_size) if seat is not None else None
    return Trainer(
        config, model, tables, batch,
        device=device, total=total, rank=shown, machines=machines, encoding=encoding, weight=weight,
        notes=notes if number == 0 else [],
    )  # fmt: skip


def queries_of(config: Config, train: Triples) -> Queries:
    """Of a training against all entities."""
    return Queries(
        train, config.batch_size,
        answers=config.answers, seed=config.seed, known=config.mask_known, inverses=config.reciprocal,
    )  # fmt: skip


def _sampled(
    config: Config,
    model: Model,
    train: Triples,
    sizes: tuple[int, int],
    seat: Seat | None,
    process: tuple[int, int],
    types: np.ndarray | None,
) -> tuple[Callable[[int], Batch], list[str]]:
    """Positives and drawn negatives of each step of a `process`, which is its number here, and of all; and what is to be said of
    them. Raises OptionError when it would have no triples."""
    (rank, number), (entities, relations) = process, sizes
    owned = relation_shares(train.array[:, 1], config.num_proc)[rank] if config.rel_part and config.num_proc > 1 else None
    try:
        batches = Batches(train, config.batch_size, seed=config.seed, rank=rank, world=config.num_proc, owned=owned)
    except ValueError as error:
        raise OptionError("--num_proc", f"{error}: {len(train)} triples are too few for {config.num_proc} processes") from error
    (first, last), pool, known, standing = (0, entities), None, None, None
    if seat is not None:
        (first, last), pool = seat.own if config.negatives == "local" else (first, last), seat.pool
    if config.mask_known:
        known = KnownTriples.build([train.array], entities, relations)
    if config.loss_genre == SOFTMAX:
        whole = entities if seat is None or seat.entities is None else seat.entities  # of these a drawn one is a sample
        standing = Standing.of(train.array, whole, degree=config.neg_deg_sample)
    domains: Domains | None = None
    notes: list[str] = []
    if config.neg_sampler == "typed":
        allowed = np.zeros(entities, bool)
        allowed[pool if pool is not None else slice(first, last)] = True
        domains, notes = _domains(train, entities, relations, allowed, types)
    negatives = ChunkedNegatives(
        last - first if pool is None else len(pool),
        config.neg_sample_size,
        config.neg_deg_sample,
        config.seed,
        rank=number,
        sort=model.projects,
        first=first if pool is None else 0,
        among=pool,
        standing=standing,
        known=known,
        domains=domains,
    )
    return (lambda step: negatives.batch(step, batches.at(step))), notes


def _domains(
    train: Triples, entities: int, relations: int, allowed: np.ndarray, types: np.ndarray | None
) -> tuple[Domains, list[str]]:
    """The entities of each relation that may be drawn, bool[entities], and what is to be said of them."""
    found = Domains.of(train.array, relations)
    used = found.sizes(Side.TAIL) > 0
    if types is not None:
        found = found.typed(types, entities)
    found = found.within(allowed)
    alone = int(sum((found.sizes(side)[used] < 2).sum() for side in Side))
    ends = f"at {counted(alone, 'end')} of {counted(int(used.sum()), 'relation')} there are fewer than two entities to draw"
    return found, [f"--neg_sampler typed: {ends}; there they are drawn among all"] if alone else []


def train_rank(
    config: Config,
    train: Triples,
    tables: Tables,
    control: WorkerControl,
    encoding: Encoding | None = None,
    types: np.ndarray | None = None,
) -> int:
    """The work of worker `control.rank`, in the thread that calls; returns the number of steps done since the run's first."""
    torch.set_num_threads(config.num_thread)  # counts for this thread
    return trainer_of(config, train, tables, control.rank, encoding=encoding, types=types).run(control, control.start)


def train_share(job: dict[str, Any], owner: Owner) -> int:
    """The work of one process of a run: map the shared tables, train, return the number of steps done."""
    keep_freed_memory()
    if job["config"]["model_file"]:
        bring(job["config"]["model_file"])
    config = Config(**job["config"])
    tables = MemoryTables.attach(job["tables"], config.optimizer)
    control = WorkerControl(SharedControl.attach(job["control"]), job["rank"], meetings_of(config), owner.say)
    train = Triples.open(job["store"], "train")
    relations = tables.shape("relation")[0] // model_of(config).per_relation
    encoding = Encoding.of(config, train.array, tables.shape("entity")[0], relations)
    if encoding is not None:
        tables.add(TableMemory.attach(weights_of(encoding).spec, job["weights"]))
    types = SharedArray.attach(job["types"][0]).array if job["types"] else None
    return train_rank(config, train, tables, control, encoding, types)


def warm_up(config: Config, *, weighted: bool) -> None:
    """Compile the kernels of a training before its workers start, so that each finds them in the cache.

    They are those that two steps of this very training run, of both sides, here on a graph of four entities that is thrown away.
    `weighted`: its triples have weights. Takes milliseconds when the kernels are in the cache. Does nothing where GPUs do
    the work.
    """
    if config.gpu[0] >= 0:
        return
    count, entities = 8, 4
    short = {
        "batch_size": count,
        "neg_sample_size": entities,
        "max_step": 2,
        "max_epoch": None,
        "attributes": None,
        "entity_types": None,
    }
    small = config.replace(**short, num_proc=1, lr=1e-6, adversarial_temperature=1.0)
    ids = np.arange(count, dtype=np.int32)
    array = np.stack([ids % entities, np.zeros_like(ids), (ids + 1) % entities], axis=1)  # int32[count, 3]
    triples = Triples(array, np.ones(count, np.float32) if weighted else None)
    tables = MemoryTables.create(shapes_of(small, model_of(small), entities, 1), small.optimizer)
    if (encoding := Encoding.of(small, array, entities, 1)) is not None:
        tables.add(weights_of(encoding))
    for rows in tables.rows.values():
        rows.fill_(0.1)
    trainer = trainer_of(small, triples, tables, 0, encoding=encoding)
    with contextlib.suppress(KgdistError):  # options of which no training can come: the training will say so
        for step in range(2):
            trainer.step(step)
