"""The step against all entities, by compiled loops: a query's softmax, or its binary losses, over every entity there is.

It is the fused step with another middle: rows of the positives, queries and the way back to them are as there; what negatives are
to that is here `kernels.full`, tile by tile, by threads that own ranges of the entities. All answers of a query share it, and the
first of them alone carries what all candidates have to say to the query. Its plain twin is in `autograd_step`.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch

from kgdist.kernels.full import Asked, Everybody, Rule
from kgdist.kernels.rows import add_rows, gather_rows
from kgdist.kvstore.tables import MemoryTables, Tables, Update
from kgdist.models.base import Model
from kgdist.options.config import Config
from kgdist.training.fused_step import FusedStep
from kgdist.training.losses import Share, full_rule, shares
from kgdist.training.step import BatchPlan, Clock, Losses


class FullStep(FusedStep):
    """A step of a model that has a `kernel` and does not project (`kgdist.training.step.Step`), whose batches are of
    `kgdist.data.queries`. Its tables are in memory."""

    def __init__(self, config: Config, model: Model, tables: Tables) -> None:
        super().__init__(config, model, tables)
        assert isinstance(tables, MemoryTables)
        self.rule, self.all = full_rule(config, model), np.arange(tables.shape("entity")[0])
        threads = min(config.num_thread, len(self.all))  # each has entities of its own
        self.everybody = Everybody(model.comparator, self.rule, threads=threads, dropout=self.dropout["entity"])
        self.crew = self.everybody.crew
        tables.crew = self.crew
        # Of this thread: those that torch would have beside the crew wait spinning, which at dim 200 cost a tenth of a step.
        torch.set_num_threads(1)

    def __call__(self, plan: BatchPlan, clock: Clock) -> tuple[dict[str, Update], Losses]:
        started, batch = perf_counter(), plan.batch
        assert batch.queries is not None
        entities, _, asked, raw = self._begin(plan)
        share = shares(batch, self.config)
        loss, grad_positive, true = _positives(raw, share, self.rule)
        first = torch.from_numpy(batch.queries[:-1])
        rows = gather_rows(torch.from_numpy(asked), first)
        table = self.tables.local("entity")
        assert table is not None, "rows of another machine"
        grads = self.buffers.take("everybody", *table.shape)
        grad_rows = self.buffers.take("grad_rows", *rows.shape)
        given = Asked(rows, np.maximum.reduceat(true, batch.queries[:-1]), share.queries, batch.excluded)
        loss += self.everybody(table, given, batch.step, grad_rows, grads)
        forward = perf_counter()

        grad_asked = self._queries("grad_queries", batch)[1]
        grad_asked[:] = 0
        grad_asked[batch.queries[:-1]] = grad_rows.numpy()
        updates, more, norm = self._end(plan, entities, asked, raw, grad_positive, grad_asked)
        own, entity_norm = entities.update(self.regularizer, 1)
        add_rows(grads, torch.from_numpy(own.ids), own.grads)
        updates["entity"] = Update(self.all, grads)
        norm += entity_norm
        ended = perf_counter()
        clock.forward += forward - started
        clock.backward += ended - forward
        return updates, Losses(total=loss + more + norm, regularization=norm)


def _positives(raw: np.ndarray, share: Share, rule: Rule) -> tuple[float, np.ndarray, np.ndarray]:
    """What positives of scores float32[B] take from the loss, the gradient of that, and their scores as they count."""
    scores = raw + np.float32(rule.offset)
    true = np.clip(scores, -np.float32(rule.limit), np.float32(rule.limit))
    part = share.positives * np.float32(1 - rule.smoothing)
    grad = np.where(np.abs(scores) <= rule.limit, -part, 0).astype(np.float32)
    return -float((part.astype(np.float64) * true).sum()), grad, true
