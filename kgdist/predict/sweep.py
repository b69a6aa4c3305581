"""One pass of some queries over all candidates: the K best of each, as comparing all of them in float64 would find them.

Queries meet candidates block by block in float32 (`Comparator.order`), a running selection keeps what may be among the K best
(`kgdist.kernels.top`), and the few that are left are compared in float64, row by row. Whose queries these are, and what becomes
of the answers, is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from kgdist.evaluation.candidates import Candidates, Sample, Skip
from kgdist.evaluation.scorer import Scorer
from kgdist.kernels.compare import largest
from kgdist.kernels.top import Top

WIDEST = 32  # times as many candidates as usual, at most, in the blocks of few queries


def sweep(
    scorer: Scorer,
    queries: torch.Tensor,
    candidates: Candidates,
    k: int,
    skip: Skip,
    bar: Callable[[], np.ndarray],
    *,
    relation: np.ndarray | None,
    blocks: tuple[int, int],
    check: Callable[[], None],
) -> tuple[np.ndarray, np.ndarray]:
    """(entities int64[P,K], order keys float64[P,K]) for queries float64[P,Q]; -1 and minus infinity where there are no more.

    `skip`: positions of candidates that are left out. `bar` tells float64[P], below which nothing is of interest. `relation`
    int64[1]: the one that projects the candidates, if the model does. `blocks`: queries and candidates of a usual block.
    `check` is called once per block, and may raise to end the work.
    """
    comparator, count = scorer.model.comparator, len(candidates)
    project = None if relation is None else scorer.projection(relation)
    rounded = queries.float()
    sizes, most = comparator.size(rounded), None if project else candidates.largest
    names = candidates.ids if isinstance(candidates, Sample) else None
    compare = partial(scorer.compare, queries, relation=relation)
    top = Top(len(queries), min(k, count), lambda rows, at: compare(rows, at if names is None else names[at]))
    block = blocks[1] * min(WIDEST, max(1, blocks[0] // len(queries)))
    reach = None
    for start, rows in candidates.blocks(block):
        check()
        seen = project(rows) if project else rows
        if reach is None or most is None:
            bound = comparator.bound(queries.shape[1], sizes, largest(comparator.size(seen)) if most is None else most)
            reach = 2 * bound.double()  # twice, for a query was rounded, too, and so was a projection, each less than the bound
        top.raise_bar(bar())
        top.add(comparator.order(rounded, seen), start, reach, skip.offsets, skip.positions)
    _, places, keys = top.best()
    return places if names is None else np.where(places < 0, -1, names[places]), keys
