"""The step with a graph encoder: blocks -> encoder -> the very step of the score function, on rows that the encoder made.

The inner step asks its `Tables` for the rows of entities, and is given what the encoder has made of their neighbourhoods. The
gradients that it finds for these go back through the encoder, to its weights and to the rows of the neighbours. So every score
function, comparator, loss and regularisation is what it is without an encoder, compiled loops included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter

import numpy as np
import torch

from kgdist.base.types import Batch
from kgdist.graphs.structure import Draw
from kgdist.kernels.random import neighbour_key
from kgdist.kvstore.tables import Tables, Update
from kgdist.models.encoders.encoder import TABLE, Encoding
from kgdist.options.config import Config
from kgdist.sampling.samplers import MultiLayerNeighborSampler
from kgdist.training.step import BatchPlan, Clock, Losses, Step

ONLY = np.zeros(1, np.int64)  # the one row of the weights


class EncoderStep:
    """A step whose entities' rows an encoder makes (`kgdist.training.step.Step`).

    The edges of the batch's own triples, and their inverses, are no messages: a triple could else be told by itself. With
    `--neighbor_dropout`, neither are those of some entities, drawn anew in each step: they are as if nothing were known of them
    but their attributes.

    Args:
        inner: makes the step of the score function on tables in which the entities' rows are the encoder's.
        rate: of the encoder's weights at a step; they are pushed with the rows: a checkpoint holds those of one step.
        rank: of the process, whose draws are its own.
        weight: of the loss of a step, where others make it as well and their batches may be larger.
    """

    def __init__(
        self,
        config: Config,
        tables: Tables,
        encoding: Encoding,
        inner: Callable[[Tables], Step],
        *,
        rate: Callable[[int], float],
        device: torch.device,
        rank: int = 0,
        weight: Callable[[int], float] | None = None,
    ) -> None:
        self.config = config
        self.tables = tables
        self.weight = weight
        self.encoder, self.messages = encoding
        self.device = device
        self.rank = rank
        self.rate = rate
        self.sampler = MultiLayerNeighborSampler(list(config.fanout or [-1] * config.num_layers))
        self.encoded = Encoded(tables, config.entity_dim)
        self.inner = inner(self.encoded)

    def plan(self, batch: Batch) -> BatchPlan:
        plan = self.inner.plan(batch)
        own = self.messages.edges_of(self._unheard(plan.ids, batch))
        draw = Draw(self.config.seed + self.rank, batch.step)
        inputs, _, blocks = self.sampler.sample_blocks(self.messages.graph, plan.ids, own, draw)
        assert isinstance(inputs, torch.Tensor), "one type of nodes"
        wanted = plan.wanted | {"entity": inputs.numpy()}
        return plan._replace(wanted=wanted, blocks=tuple(blocks), decoded=plan.wanted["entity"])

    def _unheard(self, entities: np.ndarray, batch: Batch) -> np.ndarray:
        """int64[.]: the triples that are no messages: those of the batch, and of the entities int64[U] that hear nobody in it."""
        assert batch.numbers is not None, "which triples of the split the positives are"
        if not self.config.neighbor_dropout:
            return batch.numbers
        return np.union1d(batch.numbers, self.messages.triples_into(self._alone(entities, batch.step)))

    def _alone(self, entities: np.ndarray, step: int) -> np.ndarray:
        """int64[.]: of the entities int64[U] of a step, those that `--neighbor_dropout` leaves with their attributes."""
        rng = np.random.default_rng((self.config.seed + self.rank, step))
        return np.asarray(np.sort(entities)[rng.random(len(entities)) < self.config.neighbor_dropout])

    def __call__(self, plan: BatchPlan, clock: Clock) -> tuple[dict[str, Update], Losses]:
        started = perf_counter()
        inputs, number = plan.wanted["entity"], plan.batch.step
        rows = self.tables.pull("entity", torch.from_numpy(inputs)).to(self.device).requires_grad_()
        weights = self.tables.pull(TABLE, torch.from_numpy(ONLY)).to(self.device)
        self.encoder.use(weights)
        blocks = [block.to(self.device) for block in plan.blocks]
        generator = torch.Generator().manual_seed(int(neighbour_key(self.config.seed + self.rank, number, 0, 0) >> np.uint64(1)))
        silent = None
        if self.config.neighbor_dropout:
            silent = torch.from_numpy(np.isin(inputs, self._alone(plan.ids, number))).to(self.device)
        first = self.encoder.begin(inputs, rows, silent)
        made = self.encoder(blocks, [self.messages.relations_of(block) for block in blocks], first, generator)
        self.encoded.hold(plan.ids, made.detach())
        clock.forward += perf_counter() - started
        assert plan.decoded is not None, "planned by this step"
        updates, losses = self.inner(plan._replace(wanted=plan.wanted | {"entity": plan.decoded}), clock)
        started = perf_counter()
        made.backward(updates["entity"].grads.to(made.device))
        assert rows.grad is not None
        grads = self.encoder.gradients()
        if self.config.max_grad_norm:
            grads.mul_(min(1.0, self.config.max_grad_norm / max(float(grads.norm()), 1e-30)))
        if self.config.weight_decay:
            grads.add_(weights, alpha=self.config.weight_decay)
        updates |= {"entity": Update(inputs, rows.grad), TABLE: Update(ONLY, grads, rate=self.rate(number))}
        if self.weight is not None and (weight := self.weight(number)) != 1:
            updates = {name: update.times(weight) for name, update in updates.items()}
        clock.backward += perf_counter() - started
        return updates, losses


class Encoded:
    """Tables in which the entities of one batch have the rows that an encoder made of them. All others are as they are."""

    def __init__(self, tables: Tables, width: int) -> None:
        self.tables, self.width = tables, width
        self._sorted = np.zeros(0, np.int64)
        self._rows = torch.zeros(0, width)

    def hold(self, ids: np.ndarray, rows: torch.Tensor) -> None:
        """From now on entities int64[U], each once, have these rows, float32[U, width]."""
        order = np.argsort(ids)
        self._sorted, self._order, self._rows = ids[order], order, rows

    def pull(self, name: str, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Tables."""
        if name != "entity":
            return self.tables.pull(name, ids, out)
        places = torch.from_numpy(self._order[np.searchsorted(self._sorted, ids.numpy())]).to(self._rows.device)
        if out is None:
            return self._rows.index_select(0, places)
        return torch.index_select(self._rows, 0, places, out=out)

    def local(self, name: str) -> torch.Tensor | None:
        """See Tables."""
        return None if name == "entity" else self.tables.local(name)

    def block(self, name: str, start: int, stop: int) -> torch.Tensor:
        """See Tables."""
        return self._rows[:0] if name == "entity" else self.tables.block(name, start, stop)

    def blocks(self, name: str, spans: Iterable[tuple[int, int]]) -> Iterator[torch.Tensor]:
        """See Tables."""
        return (self.block(name, *span) for span in spans)

    def shape(self, name: str) -> tuple[int, int]:
        """See Tables."""
        rows, width = self.tables.shape(name)
        return rows, self.width if name == "entity" else width

    def names(self) -> list[str]:
        """See Tables."""
        return [name for name in self.tables.names() if name != TABLE]

    def ahead(self, *wanted: Mapping[str, np.ndarray]) -> None:
        """See Tables."""
        self.tables.ahead(*wanted)

    def push(self, updates: Mapping[str, Update], lr: float) -> None:
        """See Tables."""
        self.tables.push(updates, lr)

    def flush(self) -> None:
        """See Tables."""
        self.tables.flush()
