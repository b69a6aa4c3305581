"""The step in plain torch with autograd: any model, any device. `fused_step` is held against it."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch

from kgdist.base.types import Batch, RelationRows
from kgdist.kernels.gradients import Penalty
from kgdist.kvstore.tables import Tables, Update
from kgdist.models.base import Model
from kgdist.options.config import Config
from kgdist.sampling.negatives import masked
from kgdist.training.losses import batch_loss
from kgdist.training.step import BatchPlan, Clock, Losses, Parts, agreement, parts_of


class AutogradStep:
    """A step of any model that is written in torch (`kgdist.training.step.Step`).

    Args:
        device: where scores are computed; rows are copied there and gradients back if the tables live elsewhere.
    """

    def __init__(self, config: Config, model: Model, tables: Tables, device: torch.device, machines: int = 1) -> None:
        self.config = config
        self.machines = machines
        self.model = model
        self.tables = tables
        self.device = device
        self.relation_tables = [name for name in tables.names() if name != "entity"]
        self.penalty = Penalty(config.regularization_coef, config.regularization_norm)
        self._pinned: dict[str, torch.Tensor] = {}

    def plan(self, batch: Batch) -> BatchPlan:
        ids, places = np.unique(np.concatenate(parts_of(batch).all()), return_inverse=True)
        relation_ids, relation_places = np.unique(batch.relations, return_inverse=True)
        wanted = {"entity": ids} | dict.fromkeys(self.relation_tables, relation_ids)
        return BatchPlan(batch, ids, places, relation_ids, relation_places, wanted)

    def __call__(self, plan: BatchPlan, clock: Clock) -> tuple[dict[str, Update], Losses]:
        started, ids, relation_ids = perf_counter(), plan.ids, plan.relation_ids
        rows = self._pull("entity", ids)  # float32[U, D]
        relation = self._relations(relation_ids, plan.relation_places)
        places = plan.parts(self._to_device(plan.places))
        uses = Parts(*(rows.index_select(0, part).requires_grad_() for part in places.all()))
        losses = self._forward(plan.batch, uses, relation)
        forward = perf_counter()

        losses[0].backward()  # type: ignore[no-untyped-call]
        grads, squares, norm = _entity_gradients(rows, places, uses, self.penalty, self._share(plan))
        updates = {"entity": Update(ids, grads, squares)}
        for name in relation.rows:
            grads, relation_squares, relation_norm = _relation_gradients(name, relation, self.penalty)
            updates[name] = Update(relation_ids, grads, relation_squares)
            norm += relation_norm
        total, positive, negative = (value.item() for value in losses)
        ended = perf_counter()
        clock.forward += forward - started
        clock.backward += ended - forward
        return updates, Losses(positive, negative, total + norm, norm)

    def _share(self, plan: BatchPlan) -> torch.Tensor | None:
        return self._to_device(agreement(plan, self.machines)) if self.machines > 1 else None

    def _pull(self, name: str, ids: np.ndarray) -> torch.Tensor:
        return self.tables.pull(name, torch.from_numpy(ids), self._staging(name, len(ids))).to(self.device, non_blocking=True)

    def _staging(self, name: str, rows: int) -> torch.Tensor | None:
        """float32[rows, width] of page-locked memory for rows on their way to a GPU, which copies from there by itself.

        Free again at the next step, for each waits for its losses. None where rows need no such way.
        """
        if self.device.type != "cuda" or self.tables.block(name, 0, 0).device.type != "cpu":
            return None
        width = self.tables.shape(name)[1]
        if name not in self._pinned or len(self._pinned[name]) < rows * width:
            self._pinned[name] = torch.empty(rows * width * 5 // 4, pin_memory=True)
        return self._pinned[name][: rows * width].view(rows, width)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _relations(self, ids: np.ndarray, places: np.ndarray) -> RelationRows:
        """Rows that gradients are collected on: one per triple for vectors, one per relation for matrices."""
        index = self._to_device(places)
        rows = {name: self._pull(name, ids) for name in self.relation_tables}
        uses = {name: rows[name].index_select(0, index).requires_grad_() for name in self.model.vectors}
        for name in rows.keys() - uses.keys():
            rows[name].requires_grad_()
        return RelationRows(rows, index, uses)

    def _forward(
        self, batch: Batch, uses: Parts[torch.Tensor], relation: RelationRows
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        model, config = self.model, self.config
        anchors, true = batch.side.pick(head=(uses.tails, uses.heads), tail=(uses.heads, uses.tails))
        queries = model.queries(anchors, relation, batch.side)
        positive = model.pair(queries, true, relation, batch.side)
        chunks = len(batch.negatives)
        negatives = (part for part in (uses.in_batch, uses.drawn) if len(part))
        candidates = torch.cat([part.view(chunks, -1, part.shape[1]) for part in negatives], dim=1)
        negative = model.cross(queries, candidates, relation, batch.chunk, batch.side)
        if model.score_limit is not None:
            positive = positive.clamp(-model.score_limit, model.score_limit)
            negative = negative.clamp(-model.score_limit, model.score_limit)
        mask = masked(batch)
        loss = batch_loss(
            positive,
            negative,
            genre=config.loss_genre,
            margin=config.margin,
            pairwise=config.pairwise,
            temperature=config.adversarial_temperature if config.neg_adversarial_sampling else None,
            weights=self._to_device(batch.weights) if batch.weights is not None else None,
            masked=self._to_device(mask) if mask is not None else None,
        )
        return loss.total, loss.positive.detach(), loss.negative.detach()


def _entity_gradients(
    rows: torch.Tensor, places: Parts[torch.Tensor], uses: Parts[torch.Tensor], penalty: Penalty, share: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Sum the gradients of all parts by row: gradients, squares and the penalty.

    In DGL-KE's groups, all uses of a row but draws count as one use, or as float32[U] `share` of its square, and each draw of
    it as another.
    """
    found = Parts(*(use.grad if use.grad is not None else torch.zeros_like(use) for use in uses.all()))
    grads = torch.zeros_like(rows)
    for part, grad in zip(places.all()[:-1], found.all()[:-1], strict=True):
        grads.index_add_(0, part, grad)
    positives = torch.cat([places.heads, places.tails])
    own = torch.zeros(len(rows), dtype=rows.dtype, device=rows.device).index_fill_(0, positives, 1.0)
    squares, own_norm = penalty.add(rows, grads, own)
    if share is not None:
        squares = squares * share
    drawn_squares, drawn_norm = penalty.add(uses.drawn.detach(), found.drawn)
    grads, squares = grads.index_add_(0, places.drawn, found.drawn), squares.index_add_(0, places.drawn, drawn_squares)
    return grads, squares, own_norm + drawn_norm


def _relation_gradients(name: str, relation: RelationRows, penalty: Penalty) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """Sum the gradients of a relation table by row. Further tables, as TransR's projections, are not regularised (DGL-KE)."""
    rows, use = relation.rows[name], relation.uses.get(name)
    leaf = rows if use is None else use
    grads = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
    if name != "relation":
        return grads if use is None else torch.zeros_like(rows).index_add_(0, relation.index, grads), None, 0.0
    counts = torch.bincount(relation.index, minlength=len(rows)).to(rows.dtype) if use is None else None
    squares, norm = penalty.add(leaf.detach(), grads, counts)
    if use is None:
        return grads, squares, norm
    sums = torch.zeros_like(rows).index_add_(0, relation.index, grads)
    return sums, rows.new_zeros(len(rows)).index_add_(0, relation.index, squares), norm
