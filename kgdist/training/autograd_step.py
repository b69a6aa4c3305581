"""The step in plain torch with autograd: any model, any device. `fused_step` is held against it."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from torch.nn.functional import softplus

from kgdist.base.types import Batch, RelationRows
from kgdist.kernels.full import Rule, leave_out
from kgdist.kernels.gradients import Penalty
from kgdist.kvstore.tables import Tables, Update
from kgdist.models.base import Model
from kgdist.options.config import Config
from kgdist.training.losses import Loss, batch_loss, full_rule, shares
from kgdist.training.regularizer import Regularizer
from kgdist.training.relation_loss import relation_loss
from kgdist.training.step import (
    BatchPlan,
    Clock,
    Losses,
    Parts,
    agreement,
    dropouts,
    parts_of,
    relation_rows,
    uses_by_positives,
)

FULL = 1 << 24  # scores against all entities that are held at a time
Back = tuple[torch.Tensor, torch.Tensor | None]  # where to go back from, and the gradient there; None: of a number, 1


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
        self.regularizer = Regularizer(config, model)
        self.dropout = dropouts(config)
        self._pinned: dict[str, torch.Tensor] = {}

    def plan(self, batch: Batch) -> BatchPlan:
        ids, places = np.unique(np.concatenate(parts_of(batch).all()), return_inverse=True)
        relation_ids, relation_places, side = relation_rows(self.config, self.model, self.tables, batch, _unique)
        wanted = {"entity": ids} | dict.fromkeys(self.relation_tables, relation_ids)
        return BatchPlan(batch, ids, places, relation_ids, relation_places, wanted, side=side)

    def __call__(self, plan: BatchPlan, clock: Clock) -> tuple[dict[str, Update], Losses]:
        started, ids, relation_ids, size = perf_counter(), plan.ids, plan.relation_ids, len(plan.batch)
        rows = self._pull("entity", ids)  # float32[U, D]
        relation = self._relations(relation_ids, plan.relation_places)
        places = plan.parts(self._to_device(plan.places))
        uses = Parts(*(rows.index_select(0, part).requires_grad_() for part in places.all()))
        seen, seen_relation = self._seen(plan, uses, places, relation)
        loss, squares, back, everybody = self._forward(plan, seen, seen_relation)
        forward = perf_counter()

        back = [(loss.total + squares, None), *back]
        total = loss.total.item() + self._of_relations(plan, seen, seen_relation, back)
        torch.autograd.backward([each for each, _ in back], [grad for _, grad in back])
        counts = self._to_device(uses_by_positives(plan)) if self.regularizer.by_use else None
        penalties = self.regularizer.entities(size), self.regularizer.draws()
        grads, entity_squares, norm = _entity_gradients(rows, places, uses, penalties, counts, self._share(plan))
        updates = {"entity": Update(ids, grads, entity_squares)}
        if everybody is not None:
            updates["entity"] = Update(np.arange(len(everybody)), everybody.index_add_(0, self._to_device(ids), grads))
        for name in relation.rows:
            grads, relation_squares, relation_norm = _relation_gradients(name, relation, self.regularizer.relations(size))
            updates[name] = Update(relation_ids, grads, relation_squares)
            norm += relation_norm
        norm += squares.item()
        ended = perf_counter()
        clock.forward += forward - started
        clock.backward += ended - forward
        return updates, Losses(loss.positive.item(), loss.negative.item(), total + norm, norm)

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
        """Rows that gradients are collected on: one per triple for vectors, one per relation for matrices, and for all where they
        are told apart."""
        index = self._to_device(places)
        rows = {name: self._pull(name, ids) for name in self.relation_tables}
        uses = {name: rows[name].index_select(0, index).requires_grad_() for name in self.model.vectors}
        for name in rows.keys() if self.config.relation_loss else rows.keys() - uses.keys():
            rows[name].requires_grad_()
        return RelationRows(rows, index, uses)

    def _seen(
        self, plan: BatchPlan, uses: Parts[torch.Tensor], places: Parts[torch.Tensor], relation: RelationRows
    ) -> tuple[Parts[torch.Tensor], RelationRows]:
        """Rows as the step sees them, after dropout."""
        entities, relations = self.dropout["entity"], self.dropout["relation"]
        if entities:
            mask = self._to_device(entities.mask(plan.ids, uses.heads.shape[1], plan.batch.step))
            uses = Parts(*(use * mask.index_select(0, part) for use, part in zip(uses.all(), places.all(), strict=True)))
        if relations:
            rows, own = dict(relation.rows), dict(relation.uses)
            mask = self._to_device(relations.mask(plan.relation_ids, rows["relation"].shape[1], plan.batch.step))
            rows["relation"] = rows["relation"] * mask
            if "relation" in own:
                own["relation"] = own["relation"] * mask.index_select(0, relation.index)
            relation = RelationRows(rows, relation.index, own)
        return uses, relation

    def _forward(
        self, plan: BatchPlan, uses: Parts[torch.Tensor], relation: RelationRows
    ) -> tuple[Loss, torch.Tensor, list[Back], torch.Tensor | None]:
        """The loss, the regularisation of queries, what else there is to go back from, and the gradients of all entities where
        they are candidates."""
        model, config, batch, side = self.model, self.config, plan.batch, plan.side
        anchors, true = batch.side.pick(head=(uses.tails, uses.heads), tail=(uses.heads, uses.tails))
        queries = model.queries(anchors, relation, side)
        positive = model.pair(queries, true, relation, side)
        squares, coef = positive.new_zeros(()), self.regularizer.queries(len(batch))
        if coef:
            squares = coef * (queries.square().sum() + model.queries(true, relation, side.other).square().sum())
        if batch.queries is not None:
            loss, back, everybody = self._against_all(batch, queries, positive)
            return loss, squares, [back], everybody
        chunks = len(batch.negatives)
        negatives = (part for part in (uses.in_batch, uses.drawn) if len(part))
        candidates = torch.cat([part.view(chunks, -1, part.shape[1]) for part in negatives], dim=1)
        negative = model.cross(queries, candidates, relation, batch.chunk, side)
        if model.score_limit is not None:
            positive = positive.clamp(-model.score_limit, model.score_limit)
            negative = negative.clamp(-model.score_limit, model.score_limit)
        stands = None
        if batch.stands is not None:
            stands = self._to_device(batch.stands).repeat_interleave(batch.chunk, 0)[: len(batch)]
        loss = batch_loss(
            positive,
            negative,
            genre=config.loss_genre,
            margin=config.margin,
            pairwise=config.pairwise,
            temperature=config.adversarial_temperature if config.neg_adversarial_sampling else None,
            weights=self._to_device(batch.weights) if batch.weights is not None else None,
            masked=self._to_device(batch.masked) if batch.masked is not None else None,
            stands=stands,
            smoothing=config.label_smoothing,
        )
        return loss, squares, [], None

    def _against_all(self, batch: Batch, queries: torch.Tensor, positive: torch.Tensor) -> tuple[Loss, Back, torch.Tensor]:
        """The loss of queries against every entity, a few of them at a time; from where to go back to them, and the gradients of
        all entities, float32[E, D]."""
        assert batch.queries is not None
        rule, share = full_rule(self.config, self.model), shares(batch, self.config)
        true = positive.clamp(-rule.limit, rule.limit)
        zero, weights = true.new_zeros(()), self._to_device(share.queries)
        taken = -(1 - rule.smoothing) * (self._to_device(share.positives) * true).sum()
        table = self.tables.block("entity", 0, self.tables.shape("entity")[0]).to(self.device)
        mask = None
        if self.dropout["entity"]:
            mask = self._to_device(self.dropout["entity"].mask(np.arange(len(table)), table.shape[1], batch.step))
        candidates = (table if mask is None else table * mask).detach().requires_grad_()
        first = queries.index_select(0, self._to_device(batch.queries[:-1]))
        asked, total, step = first.detach().requires_grad_(), zero, max(1, FULL // len(table))
        for start in range(0, len(asked), step):
            part, counts = slice(start, start + step), None
            scores = self.model.comparator.cross(asked[part].unsqueeze(0), candidates.unsqueeze(0)).squeeze(0)
            if batch.excluded is not None:
                mine = np.ones(scores.shape, bool)
                leave_out(batch.excluded.part(part), 0, np.False_, mine)
                counts = self._to_device(mine)
            loss = (weights[part] * _losses(scores, counts, rule)).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        assert candidates.grad is not None
        everybody = candidates.grad if mask is None else candidates.grad * mask
        return Loss(taken + total, zero, zero), (first, asked.grad), everybody

    def _of_relations(self, plan: BatchPlan, uses: Parts[torch.Tensor], relation: RelationRows, back: list[Back]) -> float:
        """The loss of the true relation among all, where it is asked for; what there is to go back from joins `back`."""
        if not self.config.relation_loss:
            return 0.0
        batch, rows = plan.batch, relation.rows["relation"]
        anchors, true = batch.side.pick(head=(uses.tails, uses.heads), tail=(uses.heads, uses.tails))
        heads, tails = plan.side.pick(head=(true, anchors), tail=(anchors, true))
        grads = torch.zeros_like(heads), torch.zeros_like(tails), torch.zeros_like(rows)
        weights = self._to_device(batch.weights) if batch.weights is not None else None
        value = relation_loss(self.model, heads, tails, rows, relation.index, weights, grads, self.config.relation_loss)
        back += zip((heads, tails, rows), grads, strict=True)
        return value


def _losses(scores: torch.Tensor, counts: torch.Tensor | None, rule: Rule) -> torch.Tensor:
    """float[G], the loss of G queries but for the scores of their answers: float[G, E] scores against all, bool[G, E] which
    entities count (None: all). What a rule does not ask for costs nothing: on a GPU a step is as long as its operations are many.
    """
    if rule.offset:
        scores = scores + rule.offset
    if rule.limit < float("inf"):
        scores = scores.clamp(-rule.limit, rule.limit)
    values = scores if rule.softmax else softplus(scores)
    if counts is not None:
        values = values.masked_fill(~counts, float("-inf") if rule.softmax else 0.0)
    values = values.logsumexp(1) if rule.softmax else values.sum(1)
    if not rule.smoothing:
        return values
    plain = scores if counts is None else scores.masked_fill(~counts, 0.0)
    alike = counts.sum(1) if rule.softmax and counts is not None else scores.shape[1]
    return values - rule.smoothing * plain.sum(1) / alike


def _unique(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different ids of int64[n], ascending, and which of them each is."""
    found, places = np.unique(ids, return_inverse=True)
    return found, places


def _entity_gradients(
    rows: torch.Tensor,
    places: Parts[torch.Tensor],
    uses: Parts[torch.Tensor],
    penalties: tuple[Penalty, Penalty],
    counts: torch.Tensor | None,
    share: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Sum the gradients of all parts by row: gradients, squares and the penalties, of positives and of draws.

    In DGL-KE's groups, all uses of a row but draws count as one use, or as float32[U] `share` of its square, and each draw of
    it as another. The penalty of positives counts float32[U] times, or once where a row is one of theirs.
    """
    found = Parts(*(use.grad if use.grad is not None else torch.zeros_like(use) for use in uses.all()))
    grads = torch.zeros_like(rows)
    for part, grad in zip(places.all()[:-1], found.all()[:-1], strict=True):
        grads.index_add_(0, part, grad)
    positives = torch.cat([places.heads, places.tails])
    own = torch.zeros(len(rows), dtype=rows.dtype, device=rows.device).index_fill_(0, positives, 1.0)
    squares, own_norm = penalties[0].add(rows, grads, own if counts is None else counts)
    if share is not None:
        squares = squares * share
    drawn_squares, drawn_norm = penalties[1].add(uses.drawn.detach(), found.drawn)
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
    squares = rows.new_zeros(len(rows)).index_add_(0, relation.index, squares)
    if rows.grad is not None:  # they were told apart
        sums, squares = sums + rows.grad, squares + rows.grad.square().mean(1)
    return sums, squares, norm
