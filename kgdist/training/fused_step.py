"""The step by compiled loops, without autograd: built-in models, float32, on a CPU. `autograd_step` is its plain twin.

It is a composition of pieces that are tested alone: rows and unique ids (`kernels.rows`, `kernels.hashing`), a query
(`kernels.query`, `matrices`), a comparator (`kernels.comparators`, `pairs` for the positives), the loss with its gradient
(`kernels.loss`), and gradients by use gathered by row (`kernels.gradients`).
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch

from kgdist.base.types import Batch
from kgdist.kernels import loss, scaled
from kgdist.kernels.dropout import Dropout
from kgdist.kernels.gradients import ONCE
from kgdist.kernels.hashing import unique
from kgdist.kernels.rows import add_rows, gather_rows
from kgdist.kernels.shares import ALONE, Crew
from kgdist.kvstore.tables import Tables, Update
from kgdist.models.base import Model
from kgdist.options.config import Config
from kgdist.training.fused_relations import KINDS, VectorRelations
from kgdist.training.losses import SOFTMAX, rule_of
from kgdist.training.regularizer import Regularizer
from kgdist.training.relation_loss import relation_loss
from kgdist.training.step import (
    BatchPlan,
    Clock,
    Losses,
    Scratch,
    agreement,
    dropouts,
    parts_of,
    relation_rows,
    uses_by_positives,
)


class FusedStep:
    """A step of a model that has a `kernel` (`kgdist.training.step.Step`)."""

    crew: Crew = ALONE  # threads that share the loss of relations

    def __init__(self, config: Config, model: Model, tables: Tables, machines: int = 1) -> None:
        self.config = config
        self.machines = machines
        self.model = model
        self.tables = tables
        self.regularizer = Regularizer(config, model)
        self.buffers = Scratch()
        self.relation_tables = [name for name in tables.names() if name != "entity"]
        self.dropout = dropouts(config)
        kind = KINDS.get(str(model.kernel), VectorRelations)
        self.relations = kind(model, tables, self.buffers, self.dropout["relation"])
        self.width = self.relations.width  # of a query

    def plan(self, batch: Batch) -> BatchPlan:
        parts = parts_of(batch)
        ids, places = unique(np.concatenate(parts.all()))
        first = int(places[: 2 * len(batch)].max()) + 1  # rows of the positives; those of the draws follow
        relation_ids, index, side = relation_rows(self.config, self.model, self.tables, batch, unique)
        wanted = {"entity": np.concatenate([ids[:first], parts.drawn])} | dict.fromkeys(self.relation_tables, relation_ids)
        return BatchPlan(batch, ids, places, relation_ids, index, wanted, side=side)

    def __call__(self, plan: BatchPlan, clock: Clock) -> tuple[dict[str, Update], Losses]:
        started, batch, take, relations = perf_counter(), plan.batch, self.buffers.take, self.relations
        entities, q, asked, positive = self._begin(plan)
        scores = take("scores", *q.shape[:2], batch.negatives.shape[1])
        relations.scores(q, entities.candidates(), scores)
        grad_positive, grad_scores, losses = self._loss(batch, positive, scores.view(-1, scores.shape[2]))
        forward = perf_counter()

        (grad_q, grad_asked), grad_candidates = self._queries("grad_queries", batch), entities.grad_candidates()
        relations.slopes(scores, grad_scores.view_as(scores), grad_q, grad_candidates)
        entities.add(grad_candidates)
        updates, more, norm = self._end(plan, entities, asked, positive, grad_positive, grad_asked)
        updates["entity"], entity_norm = entities.update(self.regularizer, self.machines)
        norm += entity_norm
        ended = perf_counter()
        clock.forward += forward - started
        clock.backward += ended - forward
        return updates, Losses(losses.positive, losses.negative, losses.total + more + norm, norm)

    def _begin(self, plan: BatchPlan) -> tuple[Entities, torch.Tensor, np.ndarray, np.ndarray]:
        """The rows of the batch; its queries by chunk, float32[C,P,Q], and those that exist, float32[B,Q]; its positives' scores,
        float32[B]."""
        batch, relations, regularizer = plan.batch, self.relations, self.regularizer
        entities = Entities(plan, self.tables, self.buffers, unit=relations.unit, dropout=self.dropout["entity"])
        size = len(batch)
        relations.begin(plan, entities.seen.numpy(), regularizer.relations(size), regularizer.queries(size))
        q, asked = self._queries("queries", batch)
        q.view(-1, self.width)[size:] = 0
        relations.queries(asked)
        positive = np.empty(size, np.float32)
        relations.positives(asked, positive)
        return entities, q, asked, positive

    def _end(
        self,
        plan: BatchPlan,
        entities: Entities,
        asked: np.ndarray,
        positive: np.ndarray,
        grad_positive: np.ndarray,
        grad_asked: np.ndarray,
    ) -> tuple[dict[str, Update], float, float]:
        """The way back from queries and positives, whose gradients are float32[B,Q] and float32[B]; entities get theirs.

        Returns the updates of relations, the loss of relations, and the value of the regularisation of relations and queries.
        """
        more, norm, relations = 0.0, 0.0, self.relations
        if self.config.relation_loss:
            more = self._of_relations(plan, entities)
        if relations.square:
            norm += relations.square * float(np.square(asked).sum(dtype=np.float64))
            grad_asked += np.float32(2 * relations.square) * asked
        relations.backward(positive, grad_positive, grad_asked, entities.grads.numpy())
        updates, relation_norm = relations.updates()
        return updates, more, norm + relation_norm

    def _of_relations(self, plan: BatchPlan, entities: Entities) -> float:
        """The loss of the true relation among all; its gradients go where the step's others go."""
        relations, weights = self.relations, plan.batch.weights
        ends = plan.side.pick((relations.true, relations.anchors), (relations.anchors, relations.true))
        heads, tails = (torch.from_numpy(each) for each in ends)
        seen = torch.from_numpy(relations.look("relation", relations.pull("relation")))
        rows = gather_rows(entities.seen, heads), gather_rows(entities.seen, tails), seen
        grads = torch.zeros_like(rows[0]), torch.zeros_like(rows[1]), torch.zeros_like(seen)
        true, given = torch.from_numpy(plan.relation_places), None if weights is None else torch.from_numpy(weights)
        value = relation_loss(self.model, *rows, true, given, grads, self.config.relation_loss, self.crew)
        add_rows(entities.grads, heads, grads[0])
        add_rows(entities.grads, tails, grads[1])
        relations.more = grads[2]
        return value

    def _queries(self, name: str, batch: Batch) -> tuple[torch.Tensor, np.ndarray]:
        """Memory for queries by chunk, float32[C,P,Q], and for those that exist, float32[B,Q]."""
        q = self.buffers.take(name, len(batch.negatives), batch.chunk, self.width)
        return q, q.view(-1, self.width)[: len(batch)].numpy()

    def _loss(self, batch: Batch, positive: np.ndarray, scores: torch.Tensor) -> tuple[np.ndarray, torch.Tensor, Losses]:
        """Gradients of the scores float32[B] and float32[>= B,N], and the losses."""
        config, size = self.config, len(batch)
        keep = ~batch.masked if batch.masked is not None else np.empty((0, scores.shape[1]), np.bool_)
        weights = batch.weights if batch.weights is not None else np.empty(0, np.float32)
        rule = rule_of(config, self.model)
        grad, out = np.empty(size, np.float32), self.buffers.take("grad_scores", *scores.shape)
        given = positive, scores.numpy(), keep, weights, rule
        if config.loss_genre == SOFTMAX:
            stands = batch.stands if batch.stands is not None else np.empty((0, scores.shape[1]), np.float32)
            counted = np.float32(config.label_smoothing), np.log(stands), stands, batch.chunk
            return grad, out, Losses(total=loss.softmax(*given, *counted, grad, out.numpy()) / size)
        if config.pairwise:
            return grad, out, Losses(total=loss.pairwise(*given, grad, out.numpy()) / size)
        true, false = (each / size for each in loss.pointwise(*given, grad, out.numpy()))
        return grad, out, Losses(true, false, (true + false) / 2)


class Entities:
    """The entities of one batch.

    Rows lie in one array: the different ones of the positives, then one for each negative drawn, so that the negatives' rows
    and gradients are what the comparator reads and writes, without a copy.

    Args:
        unit: they count as rows of length 1.
        dropout: of which they are seen.

    Attributes:
        rows: float32[., D].
        seen: float32[., D], the same as they are seen: without what is dropped, of length 1.
        grads: float32[., D], those of the positives 0, the others whatever they were.
    """

    def __init__(self, plan: BatchPlan, tables: Tables, buffers: Scratch, *, unit: bool, dropout: Dropout) -> None:
        self.plan, self.places, self.buffers, self.dropout = plan, plan.parts(plan.places), buffers, dropout
        pulled = plan.wanted["entity"]
        self.first = len(pulled) - len(self.places.drawn)  # row of a draw
        self.rows = buffers.take("rows", len(pulled), tables.shape("entity")[1])
        tables.pull("entity", torch.from_numpy(pulled), self.rows)
        self.seen, self.lengths, self.ids = self.rows, None, pulled
        if dropout:
            self.seen = buffers.take("dropped", *self.rows.shape).copy_(self.rows)
            dropout.apply(self.seen.numpy(), self.ids, plan.batch.step)
        if unit:
            given, self.seen = self.seen, buffers.take("units", *self.rows.shape)
            self.lengths = np.empty(len(self.rows), np.float32)
            scaled.unit(given.numpy(), self.seen.numpy(), self.lengths)
        self.grads = buffers.take("grads", *self.rows.shape)
        self.grads[: self.first] = 0

    def _drawn(self, array: torch.Tensor) -> torch.Tensor:
        """float32[C, ., D], what belongs to the draws."""
        return array[self.first :].view(len(self.plan.batch.negatives), -1, array.shape[1])

    def candidates(self) -> torch.Tensor:
        """float32[C, N, D]."""
        drawn = self._drawn(self.seen)
        if not self.plan.batch.in_batch:
            return drawn
        own = self.seen[torch.from_numpy(self.places.in_batch)]
        return torch.cat([own.view(len(drawn), -1, own.shape[1]), drawn], 1)

    def grad_candidates(self) -> torch.Tensor:
        """float32[C, N, D] to be filled, and then given to `add`."""
        if not self.plan.batch.in_batch:
            return self._drawn(self.grads)
        return self.buffers.take("grad_candidates", *self.plan.batch.negatives.shape, self.grads.shape[1])

    def add(self, grad_candidates: torch.Tensor) -> None:
        """Take over the candidates' gradients."""
        if near := self.plan.batch.in_batch:
            own = grad_candidates[:, :near].reshape(-1, self.grads.shape[1])
            add_rows(self.grads, torch.from_numpy(self.places.in_batch), own)
            self._drawn(self.grads).copy_(grad_candidates[:, near:])

    def update(self, regularizer: Regularizer, machines: int) -> tuple[Update, float]:
        """Gradients and squares by entity, and the value of the regularisation.

        All uses of a row by positives are one use, or a share of it (`agreement`); each draw is one (DGL-KE).
        """
        if self.lengths is not None:
            scaled.unit_back(self.seen.numpy(), self.lengths, self.grads.numpy())
        self.dropout.apply(self.grads.numpy(), self.ids, self.plan.batch.step)
        first, ids, rows, grads = self.first, self.plan.ids, self.rows.numpy(), self.grads.numpy()
        squares = np.empty(len(ids), np.float32)
        counts = uses_by_positives(self.plan)[:first] if regularizer.by_use else ONCE
        norm = regularizer.entities(len(self.plan.batch)).rows(rows[:first], grads[:first], squares, counts=counts)
        if machines > 1:
            squares[:first] *= agreement(self.plan, machines)[:first]
        norm += regularizer.draws().settle(rows[first:], self.places.drawn, first, grads, squares)
        return Update(ids, self.grads[: len(ids)], torch.from_numpy(squares)), norm
