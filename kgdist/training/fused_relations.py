"""The relation side of the fused step: queries from rows, scores of positives and candidates, and the way back.

One class for each shape that relations have: a vector, a matrix (RESCAL), a vector and a projection of the entities (TransR).
"""

from __future__ import annotations

import abc
import math

import numpy as np
import torch

from kgdist.base.types import Side
from kgdist.kernels import pairs, projected, uses
from kgdist.kernels.bilinear import Matrices
from kgdist.kernels.penalty import Penalty
from kgdist.kernels.query import VectorQuery
from kgdist.kvstore.tables import Tables, Update
from kgdist.models.base import Model
from kgdist.training.step import Plan

CACHED = 1 << 16  # floats of the matrices that are worked on together, which stay in a core's cache with their gradients


class Buffers:
    """Memory that is taken anew each step but allocated once, by name; contents are left as they are."""

    def __init__(self) -> None:
        self._flat: dict[str, torch.Tensor] = {}

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """float32[*shape], contiguous."""
        size = math.prod(shape)
        if name not in self._flat or len(self._flat[name]) < size:
            self._flat[name] = torch.empty(size + size // 8)
        return self._flat[name][:size].view(shape)


class Relations(abc.ABC):
    """The relations of one batch.

    Args:
        entities: float32[U,D], rows of the batch.
        anchors, true: int64[B], the rows of the given ends and of the missing ones.
    """

    def __init__(
        self, model: Model, tables: Tables, buffers: Buffers, plan: Plan, entities: np.ndarray, anchors: np.ndarray,
        true: np.ndarray, penalty: Penalty,
    ) -> None:  # fmt: skip
        self.model, self.tables, self.buffers, self.batch = model, tables, buffers, plan.batch
        self.entities, self.anchors, self.true, self.penalty = entities, anchors, true, penalty
        self.ids, self.index = plan.relation_ids, plan.relation_places

    def pull(self, name: str) -> np.ndarray:
        """float32[V,width]."""
        out = self.buffers.take(name, len(self.ids), self.tables.shape(name)[1])
        return self.tables.pull(name, torch.from_numpy(self.ids), out).numpy()

    def grads(self, name: str) -> torch.Tensor:
        """float32[V,width], not cleared."""
        return self.buffers.take("grad_" + name, len(self.ids), self.tables.shape(name)[1])

    def gathered(self, rows: np.ndarray, grad_uses: np.ndarray) -> tuple[Update, float]:
        """Gradients by use float32[B,R] of relation vectors float32[V,R] by row, and the value of their regularisation."""
        squares, grads = np.zeros(len(self.ids), np.float32), self.grads("relation").zero_()
        norm = uses.gather(rows, self.index, grad_uses, *self.penalty.arguments(), grads.numpy(), squares)
        return Update(self.ids, grads, torch.from_numpy(squares)), norm

    @abc.abstractmethod
    def queries(self, out: np.ndarray) -> None:
        """Fills float32[B,Q]."""

    def positives(self, queries: np.ndarray, out: np.ndarray) -> None:
        """Fills float32[B], the comparator's scores of the positives."""
        pairs.forward(self.model.comparator.name, queries, self.entities, self.true, out)

    def scores(self, q: torch.Tensor, candidates: torch.Tensor, out: torch.Tensor) -> None:
        """float32[C,P,Q], float32[C,N,D]; fills float32[C,P,N]."""
        self.model.comparator.scores(q, candidates, out)

    def slopes(
        self, q: torch.Tensor, candidates: torch.Tensor, scores: torch.Tensor, grad: torch.Tensor, out_q: torch.Tensor,
        out_c: torch.Tensor,
    ) -> None:  # fmt: skip
        """The way back from `scores`; fills float32[C,P,Q] and float32[C,N,D]."""
        self.model.comparator.slopes(q, candidates, scores, grad, out_q, out_c)

    @abc.abstractmethod
    def backward(
        self, queries: np.ndarray, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray
    ) -> None:  # fmt: skip
        """The way back from positives float32[B] and queries float32[B,Q]; adds to float32[U,D]."""

    def positives_backward(
        self, queries: np.ndarray, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray
    ) -> None:  # fmt: skip
        """Adds what the positives give to both gradients."""
        given = self.entities, self.true, scores, grad
        pairs.backward(self.model.comparator.name, queries, *given, grad_queries, grad_entities)

    @abc.abstractmethod
    def updates(self) -> tuple[dict[str, Update], float]:
        """By table, and the value of the regularisation."""


class VectorRelations(Relations):
    """A row per relation, and a gradient for each use of it."""

    def queries(self, out: np.ndarray) -> None:
        """See Relations."""
        assert self.model.kernel is not None
        self.rows = self.pull("relation")
        given = self.entities, self.anchors, self.rows, self.index
        self.query = VectorQuery(self.model.kernel, self.batch.side, *given, scale=self.model.phase_scale)
        self.query.forward(out)

    def backward(
        self, queries: np.ndarray, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray
    ) -> None:  # fmt: skip
        """See Relations."""
        self.positives_backward(queries, scores, grad, grad_queries, grad_entities)
        self.uses = self.buffers.take("grad_uses", len(self.batch), self.rows.shape[1]).numpy()
        self.query.backward(grad_queries, grad_entities, self.uses)

    def updates(self) -> tuple[dict[str, Update], float]:
        """See Relations."""
        relation, norm = self.gathered(self.rows, self.uses)
        return {"relation": relation}, norm


class MatrixRelations(Relations):
    """A matrix per relation, and one gradient for all the uses of it.

    Matrices are most of what a step moves (RESCAL at dim 100: 11 MB of 16), so they are read where they lie if that is here, and
    the way back takes a few relations at a time, all of it while they are in the cache.
    """

    def queries(self, out: np.ndarray) -> None:
        """See Relations; h^T M for a missing tail, M t for a missing head."""
        table, self.transpose = self.tables.local("relation"), self.batch.side is Side.HEAD
        self.rows = table.numpy() if table is not None else self.pull("relation")
        self.which = self.ids if table is not None else np.arange(len(self.ids))
        shape = -1, self.model.relation_dim, self.model.entity_dim
        self.matrices = Matrices(self.rows.reshape(shape), self.index, self.which)
        self.matrices.forward(self.entities, self.anchors, out, transpose=self.transpose)

    def backward(
        self, queries: np.ndarray, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray
    ) -> None:  # fmt: skip
        """See Relations."""
        self.positives_backward(queries, scores, grad, grad_queries, grad_entities)
        grads, count = self.grads("relation").numpy(), len(self.ids)
        self.squares, self.norm = np.empty(count, np.float32), 0.0
        uses_of = np.bincount(self.index, minlength=count).astype(np.float32)
        given = self.entities, self.anchors, grad_queries, grad_entities, grads.reshape(count, *self.matrices.matrices.shape[1:])
        step = max(1, CACHED // grads.shape[1])
        for part in (slice(start, min(start + step, count)) for start in range(0, count, step)):
            self.matrices.backward(*given, transpose=self.transpose, fresh=True, part=part)
            rows = self.rows, self.which[part], grads[part], uses_of[part]
            self.norm += uses.rows(*rows, *self.penalty.arguments(), self.squares[part])

    def updates(self) -> tuple[dict[str, Update], float]:
        """See Relations."""
        return {"relation": Update(self.ids, self.grads("relation"), torch.from_numpy(self.squares))}, self.norm


class ProjectedRelations(Relations):
    """A vector and a matrix per relation; entities are compared as the relation projects them. Batches are sorted by relation."""

    def queries(self, out: np.ndarray) -> None:
        """See Relations; h M + r for a missing tail, t M - r for a missing head."""
        self.rows = self.pull("relation")
        self.sign = np.float32(self.batch.side.pick(-1.0, 1.0))
        matrices = self.pull("projection").reshape(len(self.ids), self.model.entity_dim, self.model.relation_dim)
        self.matrices, self.grad_matrices = Matrices(matrices, self.index), self.grads("projection").view(matrices.shape)
        self.matrices.forward(self.entities, self.anchors, out)
        out += self.sign * self.rows[self.index]
        self.parts = projected.groups(self.index, self.batch.chunk)

    def positives(self, queries: np.ndarray, out: np.ndarray) -> None:
        """See Relations."""
        self.seen_true, self.each = np.empty((len(self.batch), queries.shape[1]), np.float32), np.arange(len(self.batch))
        self.matrices.forward(self.entities, self.true, self.seen_true)
        pairs.forward(self.model.comparator.name, queries, self.seen_true, self.each, out)

    def scores(self, q: torch.Tensor, candidates: torch.Tensor, out: torch.Tensor) -> None:
        """See Relations."""
        self.seen = self.buffers.take("seen", len(self.parts), candidates.shape[1], q.shape[2])
        given = q.view(-1, q.shape[2]), candidates, torch.from_numpy(self.matrices.matrices)
        projected.scores(self.parts, *given, self.seen, out.view(-1, out.shape[2]))

    def slopes(
        self, q: torch.Tensor, candidates: torch.Tensor, scores: torch.Tensor, grad: torch.Tensor, out_q: torch.Tensor,
        out_c: torch.Tensor,
    ) -> None:  # fmt: skip
        """See Relations."""
        given = q.view(-1, q.shape[2]), candidates, torch.from_numpy(self.matrices.matrices), self.seen
        out = grad.view(-1, grad.shape[2]), out_q.view(-1, q.shape[2]), out_c, self.grad_matrices
        projected.slopes(self.parts, *given, *out)

    def backward(
        self, queries: np.ndarray, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray
    ) -> None:  # fmt: skip
        """See Relations."""
        grad_true, grad_matrices = np.zeros_like(self.seen_true), self.grad_matrices.numpy()
        given = self.seen_true, self.each, scores, grad, grad_queries
        pairs.backward(self.model.comparator.name, queries, *given, grad_true)
        self.matrices.backward(self.entities, self.anchors, grad_queries, grad_entities, grad_matrices)
        self.matrices.backward(self.entities, self.true, grad_true, grad_entities, grad_matrices)
        self.uses = self.sign * grad_queries

    def updates(self) -> tuple[dict[str, Update], float]:
        """See Relations; projections are not regularised (DGL-KE)."""
        relation, norm = self.gathered(self.rows, self.uses)
        return {"relation": relation, "projection": Update(self.ids, self.grads("projection"), None)}, norm
