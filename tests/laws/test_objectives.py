"""Objectives against their definitions in float64, triple by triple, with autograd: losses over sampled candidates and over all,
inverse relations, smoothing, weights, regularisers, dropout and the loss of relations; compiled steps and plain ones alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.types import Batch, RelationRows, Side
from kgdist.data.batches import Positives
from kgdist.data.dataset import Triples
from kgdist.data.known import KnownTriples
from kgdist.data.queries import Queries
from kgdist.kernels import jit
from kgdist.kernels.dropout import Dropout
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import MODELS, make_model
from kgdist.options.config import Config
from kgdist.sampling.negatives import ChunkedNegatives, Standing
from kgdist.training.autograd_step import AutogradStep
from kgdist.training.full_step import FullStep
from kgdist.training.fused_step import FusedStep
from kgdist.training.step import Clock, Losses, Step, Update
from tests import formulas

CPU = torch.device("cpu")
ENTITIES, RELATIONS = 11, 3
NAMES = sorted({model.name for model in MODELS.values()})
FULL = [name for name in NAMES if not MODELS[name].projects]
ASKING = [name for name in NAMES if MODELS[name].relation_query is not Model.relation_query]


def model_of(name: str, *, reciprocal: bool) -> Model:
    model = make_model(name, **formulas.sizes(name), gamma=formulas.GAMMA)
    if reciprocal:
        model.use_inverses()
    return model


def tables_of(model: Model, seed: int) -> MemoryTables:
    """Rows in [-1, 1]; none that is short where rows are divided by their length."""
    generator = torch.Generator().manual_seed(seed)
    tables = MemoryTables.create(model.shapes(ENTITIES, RELATIONS), "adagrad")
    for name, rows in tables.rows.items():
        spread = model.init_range if model.angles and name == "relation" else 1.0
        rows.uniform_(-spread, spread, generator=generator)
        if model.name == "PairRE" and name == "entity":
            rows += 0.5 * rows.sign()
    return tables


def ends(triples: np.ndarray, side: Side) -> list[tuple[int, int, int]]:
    """(anchor, relation, true entity) of int[T, 3] triples, whose `side` is missing."""
    return [(t, r, h) if side is Side.HEAD else (h, r, t) for h, r, t in triples.tolist()]


class Plain:
    """The objective of one batch from its definition."""

    def __init__(self, model: Model, config: Config, tables: MemoryTables, batch: Batch, known: np.ndarray | None = None) -> None:
        self.model, self.config, self.batch, self.known = model, config, batch, known
        self.rows, self.side = self.asked(batch.relations, batch.side)
        if batch.inverse is not None:
            self.rows = [row + 1 if other else row for row, other in zip(self.rows, batch.inverse, strict=True)]
        self.leaves = {name: rows.double().requires_grad_() for name, rows in tables.rows.items()}
        self.seen = dict(self.leaves)
        for number, (name, share) in enumerate((("entity", config.entity_dropout), ("relation", config.relation_dropout))):
            count, width = tables.rows[name].shape
            mask = Dropout(share, config.seed, number).mask(np.arange(count), width, batch.step)
            self.seen[name] = self.leaves[name] * torch.from_numpy(mask).double()

    def asked(self, relations: np.ndarray, side: Side) -> tuple[list[int], Side]:
        """The row of each relation that is asked for `side`, and the side that it is then asked for."""
        if not self.model.reciprocal:
            return relations.tolist(), side
        return [2 * relation + (side is Side.HEAD) for relation in relations.tolist()], Side.TAIL

    def score(self, anchor: int, row: int, candidate: int) -> torch.Tensor:
        """Of a candidate for the missing side."""
        rows = self.seen["entity"]
        head, tail = (anchor, candidate) if self.side is Side.TAIL else (candidate, anchor)
        projection = self.seen["projection"][row] if "projection" in self.seen else None
        found = formulas.score(self.model.name, rows[head], self.seen["relation"][row], rows[tail], projection)
        return found if self.model.score_limit is None else found.clamp(-self.model.score_limit, self.model.score_limit)

    def triples(self) -> list[tuple[int, int, int]]:
        """(anchor, row of the relation, true entity) of each positive."""
        batch = self.batch
        return ends(np.stack([batch.heads, np.array(self.rows), batch.tails], axis=1), batch.side)

    def true(self, anchor: int, row: int) -> set[int]:
        """All entities that are known to answer."""
        assert self.known is not None
        found = set()
        for side in Side if self.model.reciprocal else [self.side]:
            rows = self.asked(self.known[:, 1], side)[0]
            turned = ends(self.known, side)
            found |= {each[2] for each, one in zip(turned, rows, strict=True) if (each[0], one) == (anchor, row)}
        return found

    def loss(self) -> torch.Tensor:
        """All terms."""
        weights = np.ones(len(self.batch)) if self.batch.weights is None else self.batch.weights.astype(float)
        values = self.against_all(weights) if self.batch.queries is not None else self.sampled(weights)
        return values + self.regularisation() + self.of_relations(weights)

    def sampled(self, weights: np.ndarray) -> torch.Tensor:
        """The softmax over drawn candidates, each for as many as it stands for."""
        batch, smooth, total = self.batch, self.config.label_smoothing, torch.zeros((), dtype=torch.float64)
        for i, (anchor, row, true) in enumerate(self.triples()):
            chunk = i // batch.chunk
            scores, counts = [self.score(anchor, row, true)], [1.0]
            for j, candidate in enumerate(batch.negatives[chunk].tolist()):
                if batch.masked is None or not batch.masked[i, j]:
                    scores.append(self.score(anchor, row, candidate))
                    counts.append(float(batch.stands[chunk, j]) if batch.stands is not None else 1.0)
            s, n = torch.stack(scores), torch.tensor(counts, dtype=torch.float64)
            mean = (n * s).sum() / n.sum()
            total = total + weights[i] * ((n * s.exp()).sum().log() - (1 - smooth) * s[0] - smooth * mean) / len(batch)
        return total

    def against_all(self, weights: np.ndarray) -> torch.Tensor:
        """Softmax or binary losses against all entities but those that are excluded."""
        batch, config, total = self.batch, self.config, torch.zeros((), dtype=torch.float64)
        assert batch.queries is not None
        triples = self.triples()
        for start, stop in zip(batch.queries, batch.queries[1:], strict=False):
            anchor, row, _ = triples[start]
            answers, out = [triples[i][2] for i in range(start, stop)], set()
            if self.known is not None:
                out = self.true(anchor, row) - set(answers)
            s = {c: self.score(anchor, row, c) for c in range(ENTITIES) if c not in out}
            if config.k_vs_all:
                total = total + weights[start:stop].mean() * self.example(s, answers) / (len(batch.queries) - 1)
            else:
                for i, answer in zip(range(start, stop), answers, strict=True):
                    total = total + weights[i] * self.example(s, [answer]) / len(batch)
        return total

    def example(self, s: dict[int, torch.Tensor], answers: list[int]) -> torch.Tensor:
        """The loss of scores by entity when `answers` are true."""
        smooth, scores = self.config.label_smoothing, torch.stack(list(s.values()))
        if self.config.loss_genre == "Softmax":
            labels = {c: smooth / len(s) + (1 - smooth) * answers.count(c) / len(answers) for c in s}
            return scores.logsumexp(0) - sum(labels[c] * s[c] for c in s)
        labels = {c: smooth / ENTITIES + (1 - smooth) * (c in answers) for c in s}  # an entity that stands twice answers once
        return sum(torch.nn.functional.softplus(s[c]) - labels[c] * s[c] for c in s)

    def regularisation(self) -> torch.Tensor:
        """As a mean over positives; lp of the different entities, and of relations as often as they are used."""
        config, model, batch, rows = self.config, self.model, self.batch, self.rows
        own, size = config.relation_regularization_coef, len(batch)
        coef, of_relations = config.regularization_coef, config.regularization_coef if own is None else own
        entity, relation = self.leaves["entity"], self.leaves["relation"]
        if config.regularizer == "lp":
            p = config.regularization_norm
            if not p:
                return torch.zeros((), dtype=torch.float64)
            used = sorted({*batch.heads.tolist(), *batch.tails.tolist()})
            drawn = batch.negatives.ravel().tolist()
            total = coef * sum((entity[e].abs() ** p).sum() for e in [*used, *drawn])
            return total + of_relations * sum((relation[r].abs() ** p).sum() for r in rows)
        total = torch.zeros((), dtype=torch.float64)
        for i, (anchor, _, true) in enumerate(self.triples()):
            total = total + coef * (self.power("entity", entity[anchor]) + self.power("entity", entity[true]))
            if config.regularizer == "dura":
                given = RelationRows({"relation": self.seen["relation"][rows[i]][None]}, torch.zeros(1, dtype=torch.int64))
                for end, asked in ((anchor, self.side), (true, self.side.other)):
                    total = total + of_relations * model.queries(self.seen["entity"][end][None], given, asked).square().sum()
            elif not model.angles:
                total = total + of_relations * self.power("relation", relation[rows[i]])
        return total / size

    def power(self, table: str, row: torch.Tensor) -> torch.Tensor:
        """The regulariser of a row."""
        if self.config.regularizer != "n3":
            return row.square().sum()
        if table in self.model.moduli:
            half = len(row) // 2
            return torch.complex(row[:half], row[half:]).abs().pow(3).sum()
        return row.abs().pow(3).sum()

    def of_relations(self, weights: np.ndarray) -> torch.Tensor:
        """The softmax of the true relation among all rows."""
        total, batch, rows = torch.zeros((), dtype=torch.float64), self.batch, self.seen["entity"]
        if not self.config.relation_loss:
            return total
        for i, (anchor, own, true) in enumerate(self.triples()):
            head, tail = (anchor, true) if self.side is Side.TAIL else (true, anchor)
            every = self.seen["relation"]
            scores = [formulas.score(self.model.name, rows[head], row, rows[tail]) for row in every]
            s = torch.stack(scores)
            total = total + weights[i] * (s.logsumexp(0) - s[own]) / len(batch)
        return total * self.config.relation_loss


def triples_of(rng: np.random.Generator, weighted: bool) -> Triples:
    """Few heads and relations, so that queries have several answers; some triples twice."""
    array = np.stack([rng.integers(4, size=30), rng.integers(RELATIONS, size=30), rng.integers(ENTITIES, size=30)], 1)
    weights = rng.uniform(0.2, 2, 30).astype(np.float32) if weighted else None
    return Triples(array.astype(np.int32), weights)


def done(step: Step, batch: Batch) -> tuple[dict[str, Update], Losses]:
    return step(step.plan(batch), Clock())


def check(found: tuple[dict[str, Update], Losses], plain: Plain) -> None:
    """Losses and gradients agree. Raises AssertionError."""
    loss = plain.loss()
    assert found[1].total == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
    for name, grad in zip(plain.leaves, torch.autograd.grad(loss, list(plain.leaves.values()), allow_unused=True), strict=True):
        want = torch.zeros_like(plain.leaves[name]) if grad is None else grad
        got = torch.zeros_like(want)
        update = found[0][name]
        got.index_add_(0, torch.from_numpy(update.ids), update.grads.double())
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6 * max(1.0, want.abs().max().item()), msg=name)


OBJECTIVES = st.fixed_dictionaries(
    {
        "label_smoothing": st.sampled_from([0.0, 0.1, 0.5]),
        "regularizer": st.sampled_from(["lp", "n3", "f2"]),
        "regularization_coef": st.sampled_from([0.0, 0.05]),
        "relation_regularization_coef": st.sampled_from([None, 0.3]),
        "entity_dropout": st.sampled_from([0.0, 0.4]),
        "relation_dropout": st.sampled_from([0.0, 0.4]),
    }
)


def options(name: str, draw: dict[str, Any], **more: Any) -> Config:
    """`draw` as far as the model has it."""
    model, given = MODELS[name], {**draw, **more}
    if given.pop("dura", False) and model.compare == "dot" and not model.projects:
        given["regularizer"] = "dura"
    if name not in ASKING:
        given.pop("relation_loss", None)
    return Config(model_name=name, **given)


@pytest.mark.parametrize("name", FULL)
@given(OBJECTIVES, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0, 1, 3]), st.integers(0, 999))
@settings(max_examples=25)
def test_against_all(
    name: str, draw: dict, softmax: bool, k_vs_all: bool, reciprocal: bool, more: bool, answers: int, seed: int
) -> None:
    config = options(
        name, draw, candidates="all", loss_genre="Softmax" if softmax else "BCE", k_vs_all=k_vs_all, answers=answers,
        reciprocal=reciprocal, dura=more, relation_loss=0.7 if more else 0.0, batch_size=5, num_thread=1 + seed % 3,
    )  # fmt: skip
    model, triples = model_of(name, reciprocal=reciprocal), triples_of(np.random.default_rng(seed), seed % 2 == 0)
    tables = tables_of(model, seed)
    known = seed % 5 < 2
    batch = Queries(triples, 5, answers=answers, seed=seed, known=known, inverses=reciprocal).batch(seed % 7)
    for step in (FullStep(config, model, tables), AutogradStep(config, model, tables, CPU)):
        check(done(step, batch), Plain(model, config, tables, batch, triples.array if known else None))


@pytest.mark.parametrize("name", NAMES)
@given(OBJECTIVES, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 999))
@settings(max_examples=25)
def test_sampled_softmax(name: str, draw: dict, degree: bool, reciprocal: bool, more: bool, known: bool, seed: int) -> None:
    config = options(
        name, draw, loss_genre="Softmax", reciprocal=reciprocal, dura=more, relation_loss=0.7 if more else 0.0, neg_sample_size=4
    )
    model, triples = model_of(name, reciprocal=reciprocal), triples_of(np.random.default_rng(seed), seed % 2 == 0)
    tables, which = tables_of(model, seed), np.random.default_rng(seed).permutation(30)[: 1 + seed % 9]
    standing = Standing.of(triples.array, ENTITIES, degree=degree)
    everything = KnownTriples.build([triples.array], ENTITIES, RELATIONS) if known else None
    draws = ChunkedNegatives(ENTITIES, 4, degree, seed, sort=model.projects, standing=standing, known=everything)
    heads, relations, tails = triples.array[which].astype(np.int64).T.copy()
    weights = None if triples.weights is None else triples.weights[which]
    batch = draws.batch(seed, Positives(heads, relations, tails, weights, which))
    steps: list[Step] = [AutogradStep(config, model, tables, CPU)]
    if model.kernel is not None:
        steps.append(FusedStep(config, model, tables))
    for step in steps:
        found = done(step, batch)
        if degree and config.regularizer == "lp":  # whose draws are the drawn ones alone
            continue
        check(found, Plain(model, config, tables, batch))


@pytest.mark.parametrize("name", FULL)
def test_plain_torch_gives_what_compiled_loops_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = options(name, {}, candidates="all", loss_genre="Softmax", regularizer="n3", regularization_coef=0.1)
    model, triples = model_of(name, reciprocal=False), triples_of(np.random.default_rng(3), False)
    tables, batch = tables_of(model, 3), Queries(triples, 8, answers=4, seed=3).batch(1)
    compiled = done(FullStep(config, model, tables), batch)
    monkeypatch.setattr(jit, "WANTED", "torch")
    plain = done(AutogradStep(config, model, tables, CPU), batch)
    assert compiled[1].total == pytest.approx(plain[1].total, rel=1e-5)
    for table, update in plain[0].items():
        other = compiled[0][table]
        torch.testing.assert_close(other.grads[np.argsort(other.ids)], update.grads, rtol=1e-4, atol=1e-6)
