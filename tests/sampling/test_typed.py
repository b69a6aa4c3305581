"""Typed negatives: who is drawn, how often, and that a softmax over them stands for one over all of the chunk's relations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.types import Side
from kgdist.data.batches import Positives
from kgdist.data.domains import Domains
from kgdist.data.known import KnownTriples
from kgdist.sampling.negatives import ChunkedNegatives, Standing

ENTITIES, RELATIONS = 30, 6


def graph(seed: int, size: int = 60) -> np.ndarray:
    """Relation r has the heads 0..4r and tails from 10 on; relation 0 has one head."""
    rng = np.random.default_rng(seed)
    relations = rng.integers(RELATIONS, size=size)
    return np.stack([rng.integers(4 * relations + 1), relations, 10 + rng.integers(2 * relations + 2)], axis=1).astype(np.int64)


@given(seed=st.integers(0, 99), size=st.integers(1, 16), count=st.integers(1, 60), step=st.integers(0, 1), own=st.booleans())
def test_each_relation_draws_among_its_own(seed: int, size: int, count: int, step: int, own: bool) -> None:
    """As many as it has positives, at least; one with fewer than two takes all; a positive's own entity never counts."""
    triples = graph(seed)
    domains, pool = Domains.of(triples, RELATIONS), None
    if own:  # a machine's own entities, or some list of them
        pool = np.arange(1, ENTITIES, 2)
        domains = domains.within(np.isin(np.arange(ENTITIES), pool))
    number = ENTITIES if pool is None else len(pool)
    sampler = ChunkedNegatives(number, size, False, seed, among=pool, domains=domains)
    batch = sampler.batch(step, Positives(*triples[:count].T, None, np.arange(count)))
    assert (np.diff(batch.relations) >= 0).all() and batch.masked is not None and batch.numbers is not None
    assert np.array_equal(triples[batch.numbers, 1], batch.relations)
    everybody = set(range(ENTITIES)) if pool is None else set(pool.tolist())
    inside = [set(domains.entities(batch.side, r).tolist()) for r in range(RELATIONS)]
    inside = [each if len(each) > 1 else everybody for each in inside]
    true = batch.side.pick(batch.heads, batch.tails)
    assert np.array_equal(batch.masked, batch.negatives[np.arange(count) // size] == true[:, None])
    for chunk, row in enumerate(batch.negatives):
        groups, counts = np.unique(batch.relations[chunk * size : (chunk + 1) * size], return_counts=True)
        ends = np.cumsum(counts) * size // counts.sum()
        for relation, positives, begin, end in zip(groups.tolist(), counts, np.append(0, ends), ends, strict=False):
            assert end - begin >= positives and set(row[begin:end].tolist()) <= inside[relation]


def test_draws_are_even_and_follow_from_the_step() -> None:
    triples = np.stack([np.arange(7), np.zeros(7), np.arange(7) + 10], axis=1).astype(np.int64)
    sampler = ChunkedNegatives(ENTITIES, 70, False, 1, domains=Domains.of(triples, 1))
    found = [sampler.batch(step, Positives(*triples.T, None)).negatives.ravel() for step in range(0, 200, 2)]
    counts = np.bincount(np.concatenate(found), minlength=ENTITIES)
    assert counts[:10].sum() + counts[17:].sum() == 0
    expected = counts.sum() / 7
    assert ((counts[10:17] - expected) ** 2 / expected).sum() < 27  # chi-square with 6 degrees of freedom: p of about .0002
    assert np.array_equal(found[3], sampler.batch(6, Positives(*triples.T, None)).negatives.ravel())
    assert not np.array_equal(found[3], found[4])


@pytest.mark.parametrize("known", [False, True])
def test_a_sum_over_draws_is_that_over_the_entities_of_a_chunks_relations(known: bool) -> None:
    """On average over draws, within four standard errors, of any numbers that entities have: the softmax is made of such sums."""
    triples, size, draws = graph(4), 24, 3000
    domains, values = Domains.of(triples, RELATIONS), np.random.default_rng(0).random(ENTITIES)
    filters = KnownTriples.build([triples], ENTITIES, RELATIONS) if known else None
    facts = {tuple(triple) for triple in triples.tolist()}
    sums = np.zeros((draws, 40))
    for number in range(draws):
        standing = Standing.of(triples, ENTITIES, degree=False)
        sampler = ChunkedNegatives(ENTITIES, size, False, number, standing=standing, domains=domains, known=filters)
        batch = sampler.batch(1, Positives(*triples[:40].T, None))
        assert batch.side is Side.HEAD and batch.stands is not None and batch.masked is not None
        chunk = np.arange(40) // size
        sums[number] = (batch.stands[chunk] * values[batch.negatives[chunk]] * ~batch.masked).sum(1)
    inside = [set(domains.entities(Side.HEAD, r).tolist()) for r in range(RELATIONS)]
    inside = [each if len(each) > 1 else set(range(ENTITIES)) for each in inside]
    for i, (h, r, t) in enumerate(zip(batch.heads.tolist(), batch.relations.tolist(), batch.tails.tolist(), strict=True)):
        there = set().union(*(inside[other] for other in batch.relations[i // size * size :][:size].tolist()))
        others = [e for e in there if e != h and not (known and (e, r, t) in facts)]
        error = sums[:, i].std() / draws**0.5
        assert abs(sums[:, i].mean() - values[others].sum()) <= 4 * error + 1e-6
