"""Ranks of relations against counting the scores of all triples, each from its written-out formula in float64."""

from __future__ import annotations

import numpy as np
import pytest

from kgdist.data.known import KnownTriples
from kgdist.evaluation.relations import relation_ranks
from tests import formulas
from tests.predict.test_engine import ENTITIES, RELATIONS, world_of


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", [*formulas.NAMES, "Weighted"])
def test_ranks_are_those_of_all_scores(name: str, whole: bool) -> None:
    world = world_of(name, whole=whole)
    rng = np.random.default_rng(0)
    facts = rng.integers(0, (5, RELATIONS, 5), (60, 3)).astype(np.int32)  # of few entities, for many relations between two
    triples, known = facts[:25], {*map(tuple, facts.tolist())}
    index = KnownTriples.among([facts], ENTITIES, RELATIONS, (np.unique(triples[:, 0]), None, np.unique(triples[:, 2])))
    for filter_ in (None, index):
        found = relation_ranks(world.model, world.tables, triples, num_relations=RELATIONS, known=filter_, threads=2)
        for row, (h, r, t) in enumerate(triples.tolist()):
            rivals = [s for s in range(RELATIONS) if s != r and (filter_ is None or (h, s, t) not in known)]
            scores = [world.score[h, s, t] - world.score[h, r, t] for s in rivals]
            greater, equal = sum(s > 1e-9 for s in scores), sum(abs(s) <= 1e-9 for s in scores)
            assert (found.greater[row], found.equal[row], found.candidates[row]) == (greater, equal, len(rivals) + 1)
