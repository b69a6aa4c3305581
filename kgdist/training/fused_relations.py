"""The relation side of the fused step: queries from rows, scores of positives and candidates, and the way back.

One class for each shape that relations have: a vector, a matrix (RESCAL), a vector and a projection of the entities (TransR), two
vectors that scale the ends (PairRE).
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from kgdist.base.types import Side
from kgdist.kernels import scaled
from kgdist.kernels.dropout import Dropout
from kgdist.kernels.gradients import Penalty
from kgdist.kernels.matrices import Matrices, Projections, chunk_groups
from kgdist.kernels.pairs import Pairs
from kgdist.kernels.query import VectorQuery
from kgdist.kernels.rows import add_rows
from kgdist.kvstore.tables import Tables, Update
from kgdist.models.base import Model
from kgdist.training.step import BatchPlan, Scratch

CACHED = 1 << 16  # floats of the matrices that are worked on together, which stay in a core's cache with their gradients


class Relations(abc.ABC):
    """The relations of one batch after another: `begin` it, and then each of the other methods in the order they stand here."""

    unit: ClassVar[bool] = False  # entities count as rows of length 1

    def __init__(self, model: Model, tables: Tables, buffers: Scratch, dropout: Dropout) -> None:
        self.model, self.tables, self.buffers, self.dropout = model, tables, buffers, dropout
        self.width = model.entity_dim  # of a query

    def begin(self, plan: BatchPlan, entities: np.ndarray, penalty: Penalty, square: float = 0.0) -> None:
        """The batch of `plan`, whose entity rows are float32[U,D]. `penalty` of relations' rows; `square` times the squares of
        both queries of each positive are part of the loss."""
        self.batch, self.entities, self.penalty, self.square = plan.batch, entities, penalty, square
        self.ids, self.index, self.side = plan.relation_ids, plan.relation_places, plan.side
        places = plan.parts(plan.places)
        given = (places.tails, places.heads), (places.heads, places.tails)
        self.anchors, self.true = self.batch.side.pick(*given)  # int64[B], rows of the given ends and of the missing ones
        self.more: torch.Tensor | None = None  # float32[V,R], gradients of relations' rows as they are seen, from elsewhere

    @abc.abstractmethod
    def queries(self, out: np.ndarray) -> None:
        """Fills float32[B,Q]."""

    def positives(self, queries: np.ndarray, out: np.ndarray) -> None:
        """Fills float32[B], the comparator's scores of the positives."""
        self.pairs = Pairs(self.model.comparator.name, queries, self.entities, self.true)
        self.pairs.forward(out)

    def scores(self, q: torch.Tensor, candidates: torch.Tensor, out: torch.Tensor) -> None:
        """float32[C,P,Q], float32[C,N,D]; fills float32[C,P,N]."""
        self.met = q, candidates
        self.model.comparator.scores(q, candidates, out)

    def slopes(self, scores: torch.Tensor, grad: torch.Tensor, out_q: torch.Tensor, out_c: torch.Tensor) -> None:
        """The way back from `scores` and their gradient; fills float32[C,P,Q] and float32[C,N,D]."""
        self.model.comparator.slopes(*self.met, scores, grad, out_q, out_c)

    @abc.abstractmethod
    def backward(self, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray) -> None:
        """The way back from positives, float32[B] scores and their gradient, and from queries float32[B,Q]; adds to
        float32[U,D]."""

    @abc.abstractmethod
    def updates(self) -> tuple[dict[str, Update], float]:
        """By table, and the value of the regularisation."""

    def pull(self, name: str) -> np.ndarray:
        """float32[V,width]."""
        out = self.buffers.take(name, len(self.ids), self.tables.shape(name)[1])
        return self.tables.pull(name, torch.from_numpy(self.ids), out).numpy()

    def look(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Rows float32[V,width] as this step sees them, after dropout."""
        if not self.dropout:
            return rows
        seen = self.buffers.take("seen_" + name, *rows.shape).numpy()
        seen[:] = rows
        self.dropout.apply(seen, self.ids, self.batch.step)
        return seen

    def unlook(self, grads: np.ndarray, ids: np.ndarray) -> None:
        """Gradients of rows as they are seen, float32[n,width], into those of rows `ids` int64[n] as they are."""
        self.dropout.apply(grads, ids, self.batch.step)

    def opposite(self, query: Callable[[np.ndarray], object], backward: Callable[[np.ndarray], object]) -> float:
        """The part of the loss that is the square of the query for the end that is given: what it is, and its way back, each of
        float32[B,Q]."""
        found = self.buffers.take("opposite", len(self.batch), self.width).numpy()
        query(found)
        value = self.square * float(np.square(found).sum(dtype=np.float64))
        found *= np.float32(2 * self.square)
        backward(found)
        return value

    def grads(self, name: str) -> torch.Tensor:
        """float32[V,width], not cleared."""
        return self.buffers.take("grad_" + name, len(self.ids), self.tables.shape(name)[1])

    def gathered(self, rows: np.ndarray, grad_uses: np.ndarray) -> tuple[Update, float]:
        """Gradients by use float32[B,R] of relation vectors float32[V,R], as they are seen, by row; and the value of their
        regularisation."""
        squares, grads = np.zeros(len(self.ids), np.float32), self.grads("relation").zero_()
        if self.dropout:
            self.unlook(grad_uses, self.ids[self.index])
        norm = self.penalty.gather(rows, self.index, grad_uses, grads.numpy(), squares)
        if self.more is not None:
            self.unlook(self.more.numpy(), self.ids)
            grads += self.more
            squares += self.more.square().mean(1).numpy()
        return Update(self.ids, grads, torch.from_numpy(squares)), norm


class VectorRelations(Relations):
    """A row per relation, and a gradient for each use of it."""

    def queries(self, out: np.ndarray) -> None:
        self.rows = self.pull("relation")
        self.seen = self.look("relation", self.rows)
        self.query = self._query(self.side, self.anchors)
        self.query.forward(out)

    def _query(self, side: Side, anchors: np.ndarray) -> VectorQuery:
        assert self.model.kernel is not None
        given = self.entities, anchors, self.seen, self.index
        return VectorQuery(self.model.kernel, side, *given, scale=self.model.phase_scale)

    def backward(self, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray) -> None:
        self.pairs.backward(scores, grad, grad_queries, grad_entities)
        self.uses, self.norm = self.buffers.take("grad_uses", len(self.batch), self.rows.shape[1]).numpy(), 0.0
        self.query.backward(grad_queries, grad_entities, self.uses)
        if self.square:
            other = self._query(self.side.other, self.true)
            more = self.buffers.take("opposite_uses", *self.uses.shape).numpy()
            self.norm = self.opposite(other.forward, lambda found: other.backward(found, grad_entities, more))
            self.uses += more

    def updates(self) -> tuple[dict[str, Update], float]:
        relation, norm = self.gathered(self.rows, self.uses)
        return {"relation": relation}, norm + self.norm


class MatrixRelations(Relations):
    """A matrix per relation, and one gradient for all the uses of it: h^T M for a missing tail, M t for a missing head.

    Matrices are most of what a step moves (RESCAL at dim 100: 11 MB of 16), so they are read where they lie if that is here, and
    the way back takes a few relations at a time, all of it while they are in the cache.
    """

    def queries(self, out: np.ndarray) -> None:
        table = None if self.dropout else self.tables.local("relation")
        self.rows = table.numpy() if table is not None else self.pull("relation")
        self.which = self.ids if table is not None else np.arange(len(self.ids))
        self.seen = self.look("relation", self.rows)
        self.matrices = self._matrices(self.side)
        self.matrices.forward(self.entities, self.anchors, out)

    def _matrices(self, side: Side) -> Matrices:
        shaped = self.seen.reshape(-1, self.model.relation_dim, self.model.entity_dim)
        return Matrices(shaped, self.index, self.which, transpose=side is Side.HEAD)

    def backward(self, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray) -> None:
        self.pairs.backward(scores, grad, grad_queries, grad_entities)
        grads, count = self.grads("relation").numpy(), len(self.ids)
        self.squares, self.norm = np.empty(count, np.float32), 0.0
        uses = np.bincount(self.index, minlength=count).astype(np.float32)
        whole = grads.reshape(count, *self.matrices.matrices.shape[1:])
        passes = [(self.matrices, self.anchors, grad_queries)]
        if self.square:
            other = self._matrices(self.side.other)
            ask = partial(other.forward, self.entities, self.true)
            self.norm = self.opposite(ask, lambda found: passes.append((other, self.true, found)))
        step = max(1, CACHED // grads.shape[1])
        for part in (slice(start, min(start + step, count)) for start in range(0, count, step)):
            if self.more is not None:
                grads[part] = self.more[part].numpy()
            fresh = self.more is None  # else there may be relations without a triple
            for matrices, anchors, grad_q in passes:
                matrices.backward(self.entities, anchors, grad_q, grad_entities, whole, fresh=fresh, part=part)
                fresh = False
            if self.dropout:
                self.unlook(grads[part], self.ids[part])
            rows = self.rows, grads[part], self.squares[part]
            self.norm += self.penalty.rows(*rows, places=self.which[part], counts=uses[part])

    def updates(self) -> tuple[dict[str, Update], float]:
        return {"relation": Update(self.ids, self.grads("relation"), torch.from_numpy(self.squares))}, self.norm


class ProjectedRelations(Relations):
    """A vector and a matrix per relation: h M + r for a missing tail, t M - r for a missing head.

    Entities are compared as the relation projects them. Batches are sorted by relation. Projections are not regularised (DGL-KE).
    """

    def __init__(self, model: Model, tables: Tables, buffers: Scratch, dropout: Dropout) -> None:
        super().__init__(model, tables, buffers, dropout)
        self.width = model.relation_dim

    def queries(self, out: np.ndarray) -> None:
        self.rows = self.pull("relation")
        self.sign = np.float32(self.side.pick(-1.0, 1.0))
        shape = len(self.ids), self.model.entity_dim, self.model.relation_dim
        self.matrices = Matrices(self.pull("projection").reshape(shape), self.index)
        self.grad_matrices = self.grads("projection").view(shape)
        self.matrices.forward(self.entities, self.anchors, out)
        out += self.sign * self.look("relation", self.rows)[self.index]

    def positives(self, queries: np.ndarray, out: np.ndarray) -> None:
        seen = np.empty((len(self.batch), queries.shape[1]), np.float32)
        self.matrices.forward(self.entities, self.true, seen)
        self.pairs = Pairs(self.model.comparator.name, queries, seen, np.arange(len(seen)))
        self.pairs.forward(out)

    def scores(self, q: torch.Tensor, candidates: torch.Tensor, out: torch.Tensor) -> None:
        groups = chunk_groups(self.index, self.batch.chunk)
        seen = self.buffers.take("seen", len(groups), candidates.shape[1], q.shape[2])
        matrices = torch.from_numpy(self.matrices.matrices)
        self.projections = Projections(groups, q.view(-1, q.shape[2]), candidates, matrices, seen)
        self.projections.forward(out.view(-1, out.shape[2]))

    def slopes(self, scores: torch.Tensor, grad: torch.Tensor, out_q: torch.Tensor, out_c: torch.Tensor) -> None:
        self.projections.backward(grad.view(-1, grad.shape[2]), out_q.view(-1, out_q.shape[2]), out_c, self.grad_matrices)

    def backward(self, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray) -> None:
        grad_true, grad_matrices = np.zeros_like(grad_queries), self.grad_matrices.numpy()
        self.pairs.backward(scores, grad, grad_queries, grad_true)
        self.matrices.backward(self.entities, self.anchors, grad_queries, grad_entities, grad_matrices)
        self.matrices.backward(self.entities, self.true, grad_true, grad_entities, grad_matrices)
        self.uses = self.sign * grad_queries

    def updates(self) -> tuple[dict[str, Update], float]:
        relation, norm = self.gathered(self.rows, self.uses)
        return {"relation": relation, "projection": Update(self.ids, self.grads("projection"), None)}, norm


class ScaledRelations(Relations):
    """Two vectors per relation, which scale heads and tails of length 1 number by number; one gradient for all uses of a row.

    No candidate is ever projected: the loops scale each as they compare it.
    """

    unit = True

    def queries(self, out: np.ndarray) -> None:
        self.rows, side = self.pull("relation"), self.side
        heads, tails = (np.ascontiguousarray(half) for half in np.split(self.look("relation", self.rows), 2, axis=1))
        given, self.scales = side.pick((tails, heads), (heads, tails))  # float32[V,D], of anchors and of candidates
        self.anchored = VectorQuery("diagonal", side, self.entities, self.anchors, given, self.index)
        self.sought = VectorQuery("diagonal", side, self.entities, self.true, self.scales, self.index)
        self.anchored.forward(out)

    def positives(self, queries: np.ndarray, out: np.ndarray) -> None:
        seen = self.buffers.take("seen", *queries.shape).numpy()
        self.sought.forward(seen)
        self.pairs = Pairs(self.model.comparator.name, queries, seen, np.arange(len(seen)))
        self.pairs.forward(out)

    def scores(self, q: torch.Tensor, candidates: torch.Tensor, out: torch.Tensor) -> None:
        parts = [self.index[start : start + q.shape[1]] for start in range(0, len(self.index), q.shape[1])]
        self.chunks = list(zip(q.numpy(), parts, candidates.numpy(), strict=True))
        for (asked, index, rows), scores in zip(self.chunks, out.numpy(), strict=True):
            scaled.forward(asked, self.scales, index, rows, scores)

    def slopes(self, scores: torch.Tensor, grad: torch.Tensor, out_q: torch.Tensor, out_c: torch.Tensor) -> None:
        uses = self.buffers.take("grad_scales", *out_q.shape)
        for (asked, index, rows), *each in zip(
            self.chunks, grad.numpy(), out_q.numpy(), uses.numpy(), out_c.numpy(), strict=True
        ):
            slope, to_q, to_scales, to_rows = each
            scaled.backward(asked, self.scales, index, rows, slope, to_q[: len(index)], to_scales[: len(index)], to_rows)
        self.uses = uses.view(-1, out_q.shape[2])[: len(self.index)].numpy()

    def backward(self, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray) -> None:
        grad_true, uses = np.zeros_like(grad_queries), np.empty_like(grad_queries)
        self.pairs.backward(scores, grad, grad_queries, grad_true)
        self.sought.backward(grad_true, grad_entities, uses)
        self.uses += uses
        self.anchored.backward(grad_queries, grad_entities, uses)
        grads, ends = self.grads("relation").zero_(), self.side.pick((self.uses, uses), (uses, self.uses))
        add_rows(grads, torch.from_numpy(self.index), torch.from_numpy(np.concatenate(ends, axis=1)))
        self.unlook(grads.numpy(), self.ids)

    def updates(self) -> tuple[dict[str, Update], float]:
        grads, squares = self.grads("relation"), np.empty(len(self.ids), np.float32)
        uses = np.bincount(self.index, minlength=len(self.ids)).astype(np.float32)
        norm = self.penalty.rows(self.rows, grads.numpy(), squares, counts=uses)
        return {"relation": Update(self.ids, grads, torch.from_numpy(squares))}, norm


KINDS: dict[str, type[Relations]] = {"bilinear": MatrixRelations, "projected": ProjectedRelations, "scaled": ScaledRelations}
