"""The pass over candidates: queries meet all of them, and the best of each query are those of comparing all in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kgdist.evaluation.candidates import Candidates, Project, Sample, Skip
from kgdist.kernels.comparators import Comparator, largest
from kgdist.kernels.top import Exact, Top

WIDEST = 32  # times as many candidates as usual, at most, in the blocks of few queries


def sweep(
    comparator: Comparator,
    queries: torch.Tensor,
    candidates: Candidates,
    k: int,
    skip: Skip,
    bar: Callable[[], np.ndarray],
    exact: Exact,
    project: Project | None,
    *,
    blocks: tuple[int, int],
    check: Callable[[], None],
) -> tuple[np.ndarray, np.ndarray]:
    """(entities int64[P,K], order keys float64[P,K]) for queries float64[P,Q]; -1 and minus infinity where there are no more.

    They are those of comparing all in float64: queries meet candidates block by block in float32 (`Comparator.order`), a running
    selection keeps what may be among the K best (`kgdist.kernels.top`), and the few that are left are compared in float64.

    `skip`: positions of candidates that are left out. `bar` tells float64[P], below which nothing counts. `exact` compares in
    float64. `project`: what happens to candidates first, if anything. `blocks`: queries and candidates of a usual block.
    `check` is called once per block, and may raise to end the work.
    """
    count, rounded = len(candidates), queries.float()
    sizes, most = comparator.size(rounded), None if project else candidates.largest
    names = candidates.ids if isinstance(candidates, Sample) else None
    top = Top(len(queries), min(k, count), lambda rows, at: exact(rows, at if names is None else names[at]))
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
