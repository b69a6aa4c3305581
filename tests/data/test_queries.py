"""Queries against every entity: an epoch asks for every triple once from each side, however many answers a visit takes."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.types import Side
from kgdist.data.dataset import Triples
from kgdist.data.queries import Queries


def graph(seed: int, size: int) -> Triples:
    """Of few entities, so that queries have several answers; some triples stand twice."""
    rng = np.random.default_rng(seed)
    return Triples(
        np.stack([rng.integers(5, size=size), rng.integers(3, size=size), rng.integers(8, size=size)], 1).astype(np.int32), None
    )


@given(st.integers(0, 99), st.integers(1, 60), st.integers(1, 9), st.sampled_from([0, 1, 2, 4]), st.booleans(), st.integers(0, 2))
def test_an_epoch_asks_for_every_triple_once_from_each_side(
    seed: int, size: int, batch_size: int, answers: int, inverses: bool, epoch: int
) -> None:
    triples = graph(seed, size)
    queries = Queries(triples, batch_size, answers=answers, seed=seed, known=True, inverses=inverses)
    asked: Counter[tuple[int, Side]] = Counter()
    for number in range(queries.steps_per_epoch):
        batch = queries.batch(epoch * queries.steps_per_epoch + number)
        assert batch.numbers is not None and batch.queries is not None and batch.excluded is not None
        other = batch.inverse if batch.inverse is not None else np.full(len(batch), batch.side is Side.HEAD)
        asked.update((n, Side.HEAD if is_other else Side.TAIL) for n, is_other in zip(batch.numbers, other, strict=True))
        heads, relations, tails = triples.array[batch.numbers].T
        if inverses:
            assert batch.side is Side.TAIL
            heads, tails = np.where(other, tails, heads), np.where(other, heads, tails)
        for stands, want in ((batch.heads, heads), (batch.relations, relations), (batch.tails, tails)):
            np.testing.assert_array_equal(stands, want)
        assert 1 <= len(batch.queries) - 1 <= batch_size and batch.queries[-1] == len(batch)
        anchors, true = batch.side.pick((batch.tails, batch.heads), (batch.heads, batch.tails))
        for which, (start, stop) in enumerate(zip(batch.queries, batch.queries[1:], strict=False)):
            assert 1 <= stop - start <= (answers or size)
            assert len({(anchors[i], relations[i], other[i]) for i in range(start, stop)}) == 1
            own = set(true[start:stop].tolist())
            given_, missing = (2, 0) if other[start] else (0, 2)
            rows = triples.array[(triples.array[:, given_] == anchors[start]) & (triples.array[:, 1] == relations[start])]
            assert excluded(batch.excluded, which) == set(rows[:, missing].tolist()) - own
    assert asked == Counter((n, side) for n in range(size) for side in Side)


def excluded(them, query: int) -> set[int]:  # type: ignore[no-untyped-def]
    """The entities that do not count for a query."""
    which = them.lists[query]
    listed = them.entities[them.starts[which] : them.starts[which + 1]].tolist()
    return set(listed) - set(them.own[them.own_starts[query] : them.own_starts[query + 1]].tolist())


def test_relations_with_inverses_are_asked_from_both_sides_in_a_step() -> None:
    queries = Queries(graph(1, 2000), 20, answers=1, seed=3, inverses=True)
    of_heads = [np.mean(queries.batch(step).inverse) for step in range(50)]
    assert 0.4 < np.mean(of_heads) < 0.6 and min(of_heads) > 0 and max(of_heads) < 1
