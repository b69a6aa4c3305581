"""A softmax over a sample stands for one over all: equal where each entity is sampled once, on average where they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kgdist.base.types import Side
from kgdist.data.batches import Batches, Positives
from kgdist.data.dataset import Triples
from kgdist.data.known import KnownTriples
from kgdist.sampling.negatives import ChunkedNegatives, Standing
from kgdist.training.losses import SOFTMAX, batch_loss

ENTITIES, DRAWS = 12, 10_000


def full(scores: torch.Tensor, true: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Over all entities, from its definition: float64[B,E], int64[B]."""
    labels = torch.full_like(scores, smoothing / scores.shape[1])
    labels[torch.arange(len(true)), true] += 1 - smoothing
    return (scores.logsumexp(1) - (labels * scores).sum(1)).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_every_entity_once_is_the_softmax_over_all(smoothing: float) -> None:
    scores = torch.randn(5, ENTITIES, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    true = torch.tensor([0, 3, 3, 11, 7])
    masked = torch.nn.functional.one_hot(true, ENTITIES).bool()
    sampled = batch_loss(
        scores[torch.arange(5), true], scores, genre=SOFTMAX, masked=masked, stands=torch.ones_like(scores), smoothing=smoothing
    ).total
    whole = full(scores, true, smoothing)
    assert sampled.item() == pytest.approx(whole.item())
    for one, other in zip(*(torch.autograd.grad(each, scores, retain_graph=True) for each in (sampled, whole)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("degree", [False, True])
def test_gradients_of_draws_are_those_over_all_on_average(degree: bool) -> None:
    """Within four standard errors, and without what candidates stand for far from them."""
    rng = np.random.default_rng(0)
    triples = np.stack([np.zeros(400), np.zeros(400), rng.choice(ENTITIES, 400, p=np.arange(1, 13) / 78)], 1).astype(np.int64)
    standing = Standing.of(triples, ENTITIES, degree=degree)
    scores = torch.randn(ENTITIES, generator=torch.Generator().manual_seed(3)).double()
    true, size = 5, 200
    leaf = scores.clone().requires_grad_()
    (want,) = torch.autograd.grad(full(leaf[None], torch.tensor([true]), 0.0), leaf)
    sums, squares, plain = np.zeros(ENTITIES), np.zeros(ENTITIES), np.zeros(ENTITIES)
    for number in range(DRAWS):
        draws = ChunkedNegatives(ENTITIES, size, degree, seed=number, standing=standing)
        others = triples[rng.integers(400, size=size)]
        others[0, 2] = true
        batch = draws.batch(0, Positives(*others.T, None))
        assert batch.side is Side.TAIL and batch.masked is not None and batch.stands is not None
        candidates, kept = batch.negatives[0], ~batch.masked[0]
        for stands, into in ((batch.stands[0].astype(float), "with"), (np.ones(len(candidates)), "without")):
            weights = np.bincount(candidates[kept], stands[kept], ENTITIES) * np.exp(scores.numpy())
            own = np.exp(scores[true].item())
            grad = weights / (weights.sum() + own)
            grad[true] += own / (weights.sum() + own) - 1
            if into == "with":
                sums += grad
                squares += grad**2
            else:
                plain += grad
    mean, plain = sums / DRAWS, plain / DRAWS
    errors = np.sqrt((squares / DRAWS - mean**2) / DRAWS)
    assert (np.abs(mean - want.numpy()) <= 4 * errors + 2e-4).all()  # 2e-4: the logarithm of an estimate is off by 1 / size
    assert (np.abs(plain - want.numpy()) - 4 * errors).max() > 0.01


@pytest.mark.parametrize("degree", [False, True])
def test_known_answers_and_the_own_entity_do_not_count(degree: bool) -> None:
    rng = np.random.default_rng(2)
    triples = np.stack([rng.integers(4, size=60), rng.integers(2, size=60), rng.integers(ENTITIES, size=60)], 1)
    known = KnownTriples.build([triples], ENTITIES, 2)
    facts = {tuple(row) for row in triples.tolist()}
    for step in range(4):
        draws = ChunkedNegatives(ENTITIES, 8, degree, seed=3, known=known)
        batch = draws.batch(step, Positives(*triples[:21].T, None))
        assert batch.masked is not None
        for i, (h, r, t) in enumerate(triples[:21].tolist()):
            for j, candidate in enumerate(batch.negatives[i // 8].tolist()):
                triple = batch.side.pick((candidate, r, t), (h, r, candidate))
                assert batch.masked[i, j] == (triple in facts)


@pytest.mark.parametrize("degree", [False, True])
def test_known_answers_of_hubs_do_not_count_either(degree: bool) -> None:
    """Of queries with more answers than there are candidates, and of others, in chunks of which the last is a short one."""
    chance = np.random.default_rng(1)
    hub = [(head, 0, 7) for head in range(60)] + [(7, 1, tail) for tail in range(0, 60, 2)]
    triples = np.array(hub + chance.integers(0, (60, 2, 60), (40, 3)).tolist(), np.int32)
    known, facts = KnownTriples.build([triples], 60, 2), {*map(tuple, triples.tolist())}
    draws, met = ChunkedNegatives(60, 8, degree, seed=3, known=known), set()
    for step in range(40):
        positives = Batches(Triples(triples, None), 20, seed=2).at(step)
        batch = draws.batch(step, positives)
        assert batch.masked is not None
        for n, (h, r, t) in enumerate(zip(batch.heads.tolist(), batch.relations.tolist(), batch.tails.tolist(), strict=True)):
            for place, entity in enumerate(batch.negatives[n // batch.chunk].tolist()):
                true = ((h, r, entity) if batch.side is Side.TAIL else (entity, r, t)) in facts
                assert batch.masked[n, place] == true
                met.add((true, (h if batch.side is Side.TAIL else t) == 7))
    assert len(met) == 4


@pytest.mark.parametrize("positives", [2, 3, 8, 11])
def test_a_chunk_that_few_positives_fill_stands_for_all_entities_on_average(positives: int) -> None:
    """The last of a batch, too, where there are more than a chunk holds."""
    rng, size = np.random.default_rng(positives), 8
    triples = np.stack([np.zeros(400), np.zeros(400), rng.choice(ENTITIES, 400, p=np.arange(1, 13) / 78)], 1).astype(np.int64)
    standing, sums = Standing.of(triples, ENTITIES, degree=True), []
    for number in range(4000):
        draws = ChunkedNegatives(ENTITIES, size, True, seed=number, standing=standing)
        batch = draws.batch(0, Positives(*triples[rng.integers(400, size=positives)].T, None))
        assert batch.masked is not None and batch.stands is not None
        last = (positives - 1) // size
        sums.append((batch.stands[last] * ~batch.masked[last * size :]).sum(1).mean())
    assert abs(np.mean(sums) - (ENTITIES - 1)) < 4 * np.std(sums) / np.sqrt(len(sums))
