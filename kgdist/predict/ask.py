"""DGL-KE's ways to ask: lists of heads, relations and tails, and how their triples are counted (--exec_mode)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kgdist.base.errors import OptionError
from kgdist.base.log import log
from kgdist.data.known import KnownTriples
from kgdist.predict.engine import Answers, Predictor

EACH = {"all": "all", "batch_head": "head", "batch_rel": "relation", "batch_tail": "tail"}  # mode -> whose best are asked for
SIDE_BY_SIDE = "triplet_wise"


def ask(
    predictor: Predictor, lists: Sequence[np.ndarray | None], mode: str, k: int, known: KnownTriples | None = None
) -> Iterator[Answers]:
    """The `k` best of the triples that `lists` of heads, relations and tails make (int[n] each; None: all there are).

    `mode` "all": of all combinations; "batch_head", "batch_rel", "batch_tail": for each head, relation or tail of the list, in
    its order; "triplet_wise": of the triples that stand side by side. Without those that are `known`. A `k` that is larger than
    what there is is made smaller, which is said in the log. Raises OptionError for lists that do not stand side by side.
    """
    counts = (predictor.num_entities, predictor.num_relations, predictor.num_entities)
    sizes = [count if ids is None else len(np.unique(ids)) for ids, count in zip(lists, counts, strict=True)]
    if mode == SIDE_BY_SIDE:
        heads, relations, tails = (ids for ids in lists if ids is not None)
        if not len(heads) == len(relations) == len(tails):
            lengths = f"{len(heads):,} heads, {len(relations):,} relations and {len(tails):,} tails"
            raise OptionError("--exec_mode", f"triplet_wise reads lists of one length side by side, but there are {lengths}")
        most = len(heads)
    else:
        own = {"head": 0, "relation": 1, "tail": 2}.get(EACH[mode])
        most = 1
        for place, size in enumerate(sizes):
            most *= 1 if place == own else size
    if k > most:
        log.info("--topK %d: %s", most, f"there are no more triples{'' if mode in ('all', SIDE_BY_SIDE) else ' for each'}")
    if mode == SIDE_BY_SIDE:
        yield predictor.best_of(heads, relations, tails, k, known=known)
    else:
        yield from predictor.best(lists[0], lists[1], lists[2], k, each=EACH[mode], known=known)
