"""The step by compiled loops, without autograd: built-in models, float32, on a CPU. `autograd_step` is its plain twin.

It is a composition of pieces that are tested alone: rows and unique ids (`kernels.rows`, `kernels.unique`), a query
(`kernels.query`, `bilinear`), a comparator (`kernels.compare`, `pairs` for the positives), the loss with its gradient
(`kernels.loss`), and gradients by use gathered by row (`kernels.uses`). Entity rows lie in one array: first the unique ones of
the positives, then one for each negative drawn, so that the negatives' rows and gradients are what the comparator reads and
writes, without a copy.
"""

from __future__ import annotations

from time import perf_counter
from typing import Protocol

import numpy as np
import torch

from kgdist.config import Config
from kgdist.kernels import bilinear, gemm, loss, pairs, uses
from kgdist.kernels.penalty import Penalty
from kgdist.kernels.query import VectorQuery
from kgdist.kernels.unique import unique
from kgdist.kvstore.tables import Tables
from kgdist.models.base import Model
from kgdist.sampling.negatives import masked
from kgdist.step import Clock, Losses, Update
from kgdist.types import Batch

UNLIMITED = np.float32(np.inf)


class Buffers:
    """Memory that is taken anew each step but allocated once, by name; contents are left as they are."""

    def __init__(self) -> None:
        self._flat: dict[str, torch.Tensor] = {}

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """float32[*shape], contiguous."""
        size = int(np.prod(shape))
        if name not in self._flat or len(self._flat[name]) < size:
            self._flat[name] = torch.empty(size + size // 8)
        return self._flat[name][:size].view(shape)


class Relations(Protocol):
    """The relation side of one step: queries forward, gradients backward, then the updates of its tables."""

    def forward(self, out: np.ndarray) -> None:
        """Fills the queries float32[B,Q]."""

    def backward(self, grad: np.ndarray, grad_entities: np.ndarray) -> None:
        """Adds to float32[U,D] what the queries' gradient float32[B,Q] gives."""

    def updates(self, penalty: Penalty) -> tuple[dict[str, Update], float]:
        """By table, and the value of the regularisation."""


class VectorRelations:
    """A row per relation, and a gradient for each use of it."""

    def __init__(
        self, model: Model, tables: Tables, buffers: Buffers, batch: Batch, entities: np.ndarray, anchors: np.ndarray
    ) -> None:  # fmt: skip
        assert model.kernel is not None
        self.ids, self.index = unique(batch.relations)
        width = tables.shape("relation")[1]
        self.rows = tables.pull("relation", torch.from_numpy(self.ids), buffers.take("relations", len(self.ids), width)).numpy()
        self.uses = buffers.take("grad_uses", len(batch), width).numpy()
        self.grads = buffers.take("grad_relations", *self.rows.shape)
        scale = model.phase_scale
        self.query = VectorQuery(model.kernel, batch.side, entities, anchors, self.rows, self.index, scale=scale)
        self.forward = self.query.forward

    def backward(self, grad: np.ndarray, grad_entities: np.ndarray) -> None:
        """See Relations."""
        self.query.backward(grad, grad_entities, self.uses)

    def updates(self, penalty: Penalty) -> tuple[dict[str, Update], float]:
        """See Relations."""
        squares = np.zeros(len(self.ids), np.float32)
        grads = self.grads.zero_().numpy()
        norm = uses.gather(self.rows, self.index, self.uses, *penalty.arguments(), grads, squares)
        return {"relation": Update(self.ids, self.grads, torch.from_numpy(squares))}, norm


class MatrixRelations:
    """A matrix per relation, and one gradient for all the uses of it."""

    def __init__(
        self, model: Model, tables: Tables, buffers: Buffers, batch: Batch, entities: np.ndarray, anchors: np.ndarray
    ) -> None:  # fmt: skip
        self.ids, self.index = unique(batch.relations)
        shape = len(self.ids), tables.shape("relation")[1]
        self.rows = tables.pull("relation", torch.from_numpy(self.ids), buffers.take("relations", *shape)).numpy()
        self.grads = buffers.take("grad_relations", *shape)
        self.query = bilinear.MatrixQuery(batch.side, entities, anchors, self.rows, self.index)
        self.forward = self.query.forward

    def backward(self, grad: np.ndarray, grad_entities: np.ndarray) -> None:
        """See Relations."""
        self.query.backward(grad, grad_entities, self.grads.numpy())

    def updates(self, penalty: Penalty) -> tuple[dict[str, Update], float]:
        """See Relations."""
        counts = np.bincount(self.index, minlength=len(self.ids)).astype(np.float32)
        squares = np.empty(len(self.ids), np.float32)
        norm = uses.rows(self.rows, self.grads.numpy(), counts, *penalty.arguments(), squares)
        return {"relation": Update(self.ids, self.grads, torch.from_numpy(squares))}, norm


class FusedStep:
    """See kgdist.step.Step. The model must have a `kernel`."""

    def __init__(self, config: Config, model: Model, tables: Tables) -> None:
        self.config = config
        self.model = model
        self.tables = tables
        self.penalty = Penalty(config.regularization_coef, config.regularization_norm)
        self.buffers = Buffers()

    def __call__(self, batch: Batch, clock: Clock) -> tuple[dict[str, Update], Losses]:
        """See kgdist.step.Step."""
        started, size, take, name = perf_counter(), len(batch), self.buffers.take, self.model.comparator.name
        chunks, n = batch.negatives.shape
        near, far = batch.negatives[:, : batch.in_batch].ravel(), batch.negatives[:, batch.in_batch :].ravel()
        ids, places = unique(np.concatenate([batch.heads, batch.tails, near, far]))
        heads, tails, own, drawn = np.split(places, [size, 2 * size, 2 * size + len(near)])
        first = int(places[: 2 * size].max()) + 1  # rows of the positives; those of the draws follow
        width = self.tables.shape("entity")[1]
        sampled = perf_counter()

        rows = take("rows", first + len(far), width)
        self.tables.pull("entity", torch.from_numpy(np.concatenate([ids[:first], far])), rows)
        anchors, true = batch.side.pick(head=(tails, heads), tail=(heads, tails))
        kind = VectorRelations if self.model.vectors else MatrixRelations
        relations: Relations = kind(self.model, self.tables, self.buffers, batch, rows.numpy(), anchors)
        queries = take("queries", chunks * batch.chunk, width)
        queries[size:] = 0
        relations.forward(queries.numpy()[:size])
        positive = np.empty(size, np.float32)
        pairs.forward(name, queries.numpy(), rows.numpy(), true, positive)
        candidates = rows[first:].view(chunks, -1, width)
        if batch.in_batch:
            candidates = torch.cat([rows[torch.from_numpy(own)].view(chunks, -1, width), candidates], 1)
        q = queries.view(chunks, batch.chunk, width)
        with gemm.products(batch.chunk, width):
            scores = self.model.comparator.scores(q, candidates, take("scores", chunks, batch.chunk, n))
            grad_positive, grad_scores, losses = self._loss(batch, positive, scores.view(-1, n))
            forward = perf_counter()

            grads, grad_queries = take("grads", *rows.shape), take("grad_queries", *queries.shape)
            grads[:first] = 0
            grad_candidates = take("grad_candidates", chunks, n, width) if batch.in_batch else grads[first:].view_as(candidates)
            slopes = grad_scores.view_as(scores), grad_queries.view_as(q), grad_candidates
            self.model.comparator.slopes(q, candidates, scores, *slopes)
        if batch.in_batch:
            grads.index_add_(0, torch.from_numpy(own), grad_candidates[:, : batch.in_batch].reshape(-1, width))
            grads[first:].view(chunks, -1, width).copy_(grad_candidates[:, batch.in_batch :])
        arrays = positive, grad_positive, grad_queries.numpy(), grads.numpy()
        pairs.backward(name, queries.numpy(), rows.numpy(), true, *arrays)
        relations.backward(grad_queries.numpy()[:size], grads.numpy())
        updates, norm = relations.updates(self.penalty)
        squares = np.empty(len(ids), np.float32)
        given = rows.numpy(), grads.numpy(), *self.penalty.arguments()
        norm += self._settle(first, drawn, *given, squares)
        updates["entity"] = Update(ids, grads[: len(ids)], torch.from_numpy(squares))
        losses = Losses(losses.positive, losses.negative, losses.total + norm, norm)
        ended = perf_counter()
        clock.sample += sampled - started
        clock.forward += forward - sampled
        clock.backward += ended - forward
        return updates, losses

    def _settle(
        self, first: int, drawn: np.ndarray, rows: np.ndarray, grads: np.ndarray, coef: np.float32, p: int, squares: np.ndarray
    ) -> float:
        """All uses of a row by positives are one use; each draw is one (DGL-KE). Returns the value of the regularisation."""
        norm = uses.rows(rows[:first], grads[:first], np.empty(0, np.float32), coef, p, squares)
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
