"""The step by compiled loops, without autograd: built-in models, float32, on a CPU. `autograd_step` is its plain twin.

It is a composition of pieces that are tested alone: rows and unique ids (`kernels.rows`, `kernels.unique`), a query
(`kernels.query`, `matrices`), a comparator (`kernels.compare`, `pairs` for the positives), the loss with its gradient
(`kernels.loss`), and gradients by use gathered by row (`kernels.gradients`).
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch

from kgdist.base.types import Batch
from kgdist.kernels import loss
from kgdist.kernels.gradients import Penalty
from kgdist.kernels.unique import unique
from kgdist.kvstore.tables import Tables, Update
from kgdist.models.base import Model
from kgdist.options.config import Config
from kgdist.sampling.negatives import masked
from kgdist.training.fused_entities import Buffers, Entities
from kgdist.training.fused_relations import KINDS, VectorRelations
from kgdist.training.step import Clock, Losses, Plan, parts_of

UNLIMITED = np.float32(np.inf)


class FusedStep:
    """A step of a model that has a `kernel` (`kgdist.training.step.Step`)."""

    def __init__(self, config: Config, model: Model, tables: Tables, machines: int = 1) -> None:
        self.config = config
        self.machines = machines
        self.model = model
        self.tables = tables
        self.penalty = Penalty(config.regularization_coef, config.regularization_norm)
        self.buffers = Buffers()
        self.relation_tables = [name for name in tables.names() if name != "entity"]
        self.relations = KINDS.get(str(model.kernel), VectorRelations)(model, tables, self.buffers, self.penalty)
        self.width = self.relations.width  # of a query

    def plan(self, batch: Batch) -> Plan:
        parts = parts_of(batch)
        ids, places = unique(np.concatenate(parts.all()))
        first = int(places[: 2 * len(batch)].max()) + 1  # rows of the positives; those of the draws follow
        relation_ids, index = unique(batch.relations)
        wanted = {"entity": np.concatenate([ids[:first], parts.drawn])} | dict.fromkeys(self.relation_tables, relation_ids)
        return Plan(batch, ids, places, relation_ids, index, wanted)

    def __call__(self, plan: Plan, clock: Clock) -> tuple[dict[str, Update], Losses]:
        started, batch, take, relations = perf_counter(), plan.batch, self.buffers.take, self.relations
        entities = Entities(plan, self.tables, self.buffers, unit=relations.unit)
        relations.begin(plan, entities.seen.numpy())
        q, asked = self._queries("queries", batch)
        q.view(-1, self.width)[len(batch) :] = 0
        relations.queries(asked)
        positive, scores = np.empty(len(batch), np.float32), take("scores", *q.shape[:2], batch.negatives.shape[1])
        relations.positives(asked, positive)
        relations.scores(q, entities.candidates(), scores)
        grad_positive, grad_scores, losses = self._loss(batch, positive, scores.view(-1, scores.shape[2]))
        forward = perf_counter()

        (grad_q, grad_asked), grad_candidates = self._queries("grad_queries", batch), entities.grad_candidates()
        relations.slopes(scores, grad_scores.view_as(scores), grad_q, grad_candidates)
        entities.add(grad_candidates)
        relations.backward(positive, grad_positive, grad_asked, entities.grads.numpy())
        updates, norm = relations.updates()
        updates["entity"], entity_norm = entities.update(self.penalty, self.machines)
        norm += entity_norm
        ended = perf_counter()
        clock.forward += forward - started
        clock.backward += ended - forward
        return updates, Losses(losses.positive, losses.negative, losses.total + norm, norm)

    def _queries(self, name: str, batch: Batch) -> tuple[torch.Tensor, np.ndarray]:
        """Memory for queries by chunk, float32[C,P,Q], and for those that exist, float32[B,Q]."""
        q = self.buffers.take(name, len(batch.negatives), batch.chunk, self.width)
        return q, q.view(-1, self.width)[: len(batch)].numpy()

    def _loss(self, batch: Batch, positive: np.ndarray, scores: torch.Tensor) -> tuple[np.ndarray, torch.Tensor, Losses]:
        """Gradients of the scores float32[B] and float32[>= B,N], and the losses."""
        config, model, size = self.config, self.model, len(batch)
        mask = masked(batch)
        keep = ~mask if mask is not None else np.empty((0, scores.shape[1]), np.bool_)
        weights = batch.weights if batch.weights is not None else np.empty(0, np.float32)
        limit = np.float32(model.score_limit) if model.score_limit is not None else UNLIMITED
        temperature = np.float32(config.adversarial_temperature if config.neg_adversarial_sampling else -1.0)
        rule = loss.Rule(np.float32(model.offset), limit, config.loss_genre == "Hinge", np.float32(config.margin), temperature)
        grad, out = np.empty(size, np.float32), self.buffers.take("grad_scores", *scores.shape)
        given = positive, scores.numpy(), keep, weights, rule, grad, out.numpy()
        if config.pairwise:
            return grad, out, Losses(total=loss.pairwise(*given) / size)
        true, false = (each / size for each in loss.pointwise(*given))
        return grad, out, Losses(true, false, (true + false) / 2)
