"""Degree against rank: are entities that training saw often found more easily? Pure; the counts come from elsewhere."""

from __future__ import annotations

import numpy as np

from kgdist.evaluation.ranks import Ranks


def degree_bins(ranks: Ranks, degree: np.ndarray) -> list[dict[str, float]]:
    """Ranks by the degree of the entity that was asked for: for each power of two its queries, rank quartiles and MRR.

    `degree` int64[B], in training triples. Bins without a query are left out.
    """
    rank = ranks.rank()
    bins = np.where(degree > 0, np.floor(np.log2(np.maximum(degree, 1))), -1).astype(np.int64)
    found = []
    for number in np.unique(bins):
        here = rank[bins == number]
        low, middle, high = np.quantile(here, (0.25, 0.5, 0.75))
        lowest, highest = (2**number, 2 ** (number + 1) - 1) if number >= 0 else (0, 0)
        found.append(
            {
                "lowest": float(lowest),
                "highest": float(highest),
                "queries": float(len(here)),
                "low": float(low),
                "median": float(middle),
                "high": float(high),
                "mrr": float((1 / here).mean()),
            }
        )
    return found
