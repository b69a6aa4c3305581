"""The step by compiled loops, without autograd: built-in models, float32, on a CPU. `autograd_step` is its plain twin.

It is a composition of pieces that are tested alone: rows and unique ids (`kernels.rows`, `kernels.unique`), a query
(`kernels.query`, `bilinear`), a comparator (`kernels.compare`, `pairs` for the positives), the loss with its gradient
(`kernels.loss`), and gradients by use gathered by row (`kernels.uses`). Entity rows lie in one array: first the unique ones of
the positives, then one for each negative drawn, so that the negatives' rows and gradients are what the comparator reads and
writes, without a copy.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch

from kgdist.base.types import Batch
from kgdist.kernels import loss, uses
from kgdist.kernels.penalty import Penalty
from kgdist.kernels.unique import unique
from kgdist.kvstore.tables import Tables, Update
from kgdist.models.base import Model
from kgdist.options.config import Config
from kgdist.sampling.negatives import masked
from kgdist.training.fused_relations import Buffers, MatrixRelations, ProjectedRelations, Relations, VectorRelations
from kgdist.training.step import Clock, Losses, Plan, agreement

UNLIMITED = np.float32(np.inf)


class FusedStep:
    """See kgdist.training.step.Step. The model must have a `kernel`."""

    def __init__(self, config: Config, model: Model, tables: Tables, machines: int = 1) -> None:
        self.config = config
        self.machines = machines
        self.model = model
        self.tables = tables
        self.penalty = Penalty(config.regularization_coef, config.regularization_norm)
        self.buffers = Buffers()
        self.relation_tables = [name for name in tables.names() if name != "entity"]
        self.relations: type[Relations] = VectorRelations
        self.width = model.entity_dim  # of a query
        if model.projects:
            self.relations, self.width = ProjectedRelations, model.relation_dim
        elif not model.vectors:
            self.relations = MatrixRelations

    def plan(self, batch: Batch) -> Plan:
        """See kgdist.training.step.Step."""
        size = len(batch)
        near, far = batch.negatives[:, : batch.in_batch].ravel(), batch.negatives[:, batch.in_batch :].ravel()
        ids, places = unique(np.concatenate([batch.heads, batch.tails, near, far]))
        first = int(places[: 2 * size].max()) + 1  # rows of the positives; those of the draws follow
        relation_ids, index = unique(batch.relations)
        wanted = {"entity": np.concatenate([ids[:first], far])} | dict.fromkeys(self.relation_tables, relation_ids)
        return Plan(batch, ids, places, relation_ids, index, wanted)

    def __call__(self, plan: Plan, clock: Clock) -> tuple[dict[str, Update], Losses]:
        """See kgdist.training.step.Step."""
        started, batch, take = perf_counter(), plan.batch, self.buffers.take
        size, (chunks, n), ids = len(batch), batch.negatives.shape, plan.ids
        near = chunks * batch.in_batch
        heads, tails, own, drawn = np.split(plan.places, [size, 2 * size, 2 * size + near])
        pulled = plan.wanted["entity"]
        first = len(pulled) - len(drawn)
        width = self.tables.shape("entity")[1]
        rows = take("rows", len(pulled), width)
        self.tables.pull("entity", torch.from_numpy(pulled), rows)
        anchors, true = batch.side.pick(head=(tails, heads), tail=(heads, tails))
        relations = self.relations(self.model, self.tables, self.buffers, plan, rows.numpy(), anchors, true, self.penalty)
        queries = take("queries", chunks * batch.chunk, self.width)
        queries[size:] = 0
        relations.queries(queries.numpy()[:size])
        positive = np.empty(size, np.float32)
        relations.positives(queries.numpy()[:size], positive)
        candidates = rows[first:].view(chunks, -1, width)
        if batch.in_batch:
            candidates = torch.cat([rows[torch.from_numpy(own)].view(chunks, -1, width), candidates], 1)
        q, scores = queries.view(chunks, batch.chunk, -1), take("scores", chunks, batch.chunk, n)
        relations.scores(q, candidates, scores)
        grad_positive, grad_scores, losses = self._loss(batch, positive, scores.view(-1, n))
        forward = perf_counter()

        grads, grad_queries = take("grads", *rows.shape), take("grad_queries", *queries.shape)
        grads[:first] = 0
        grad_candidates = take("grad_candidates", chunks, n, width) if batch.in_batch else grads[first:].view_as(candidates)
        relations.slopes(q, candidates, scores, grad_scores.view_as(scores), grad_queries.view_as(q), grad_candidates)
        if batch.in_batch:
            grads.index_add_(0, torch.from_numpy(own), grad_candidates[:, : batch.in_batch].reshape(-1, width))
            grads[first:].view(chunks, -1, width).copy_(grad_candidates[:, batch.in_batch :])
        relations.backward(queries.numpy()[:size], positive, grad_positive, grad_queries.numpy()[:size], grads.numpy())
        updates, norm = relations.updates()
        squares = np.empty(len(ids), np.float32)
        given = rows.numpy(), grads.numpy(), *self.penalty.arguments()
        norm += self._settle(first, drawn, *given, squares, agreement(plan, self.machines) if self.machines > 1 else None)
        updates["entity"] = Update(ids, grads[: len(ids)], torch.from_numpy(squares))
        losses = Losses(losses.positive, losses.negative, losses.total + norm, norm)
        ended = perf_counter()
        clock.forward += forward - started
        clock.backward += ended - forward
        return updates, losses

    def _settle(
        self, first: int, drawn: np.ndarray, rows: np.ndarray, grads: np.ndarray, coef: np.float32, p: int, squares: np.ndarray,
        share: np.ndarray | None,
    ) -> float:  # fmt: skip
        """All uses of a row by positives are one use, or a `share` of it; each draw is one (DGL-KE). Returns the value of the
        regularisation."""
        norm = uses.rows(rows[:first], np.empty(0, np.int64), grads[:first], np.empty(0, np.float32), coef, p, squares)
        if share is not None:
            squares[:first] *= share[:first]
        return float(norm + uses.settle(rows[first:], drawn, first, coef, p, grads, squares))

    def _loss(self, batch: Batch, positive: np.ndarray, scores: torch.Tensor) -> tuple[np.ndarray, torch.Tensor, Losses]:
        """Gradients of the scores float32[B] and float32[>= B,N], and the losses."""
        config, model, size = self.config, self.model, len(batch)
        mask = masked(batch)
        keep = ~mask if mask is not None else np.empty((0, scores.shape[1]), np.bool_)
        weights = batch.weights if batch.weights is not None else np.empty(0, np.float32)
        limit = np.float32(model.score_limit) if model.score_limit is not None else UNLIMITED
        kind = np.float32(model.offset), limit, config.loss_genre == "Hinge", np.float32(config.margin)
        grad, out = np.empty(size, np.float32), self.buffers.take("grad_scores", *scores.shape)
        if config.pairwise:
            value = loss.pairwise(positive, scores.numpy(), keep, weights, *kind, grad, out.numpy())
            return grad, out, Losses(total=value / size)
        temperature = np.float32(config.adversarial_temperature if config.neg_adversarial_sampling else -1.0)
        share = np.empty(scores.shape[1], np.float32)
        sums = loss.pointwise(positive, scores.numpy(), keep, weights, *kind, temperature, grad, out.numpy(), share)
        true, false = sums[0] / size, sums[1] / size
        return grad, out, Losses(true, false, (true + false) / 2)
