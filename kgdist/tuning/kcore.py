"""k-cores of a graph: the largest subgraph in which every entity has k ends of triples, found in passes over the triples.

In memory are a few numbers for an entity, never who its neighbours are. An entity counts once for each of its triples, whatever
their relations are, and twice for a loop.
"""

from __future__ import annotations

import numpy as np

from kgdist.graphs.structure import readonly
from kgdist.kernels import cores as loops
from kgdist.kernels.vertex_cuts import incident


def core_numbers(triples: np.ndarray, num_entities: int, least: int = 0) -> np.ndarray:
    """int32[num_entities]: the largest k in whose core each entity is, 0 for one without triples; of int32[T, 3].

    For k = 1, 2, ... entities of fewer triples go until none does: a pass for each layer of them; for k = 2, whose layers are as
    many as a tree is deep, two passes. It ends at the first core of no more than `least` triples, whose entities are not told
    apart.
    """
    triples, counts = readonly(triples), np.zeros(num_entities, np.int64)
    incident(triples, True, counts)
    state = np.full(num_entities, loops.KEPT, np.uint8)
    found = np.zeros(num_entities, np.int32)
    left, k = len(triples), 0
    while left > least:
        k += 1
        if k == 2:
            before = state == loops.KEPT
            left -= loops.strip(triples, state, counts, np.zeros(num_entities, np.int64))
            found[before & (state == loops.GONE)] = 1
        while (leaving := (state == loops.KEPT) & (counts < k)).any():
            found[leaving] = k - 1
            state[leaving] = loops.LEAVING
            left -= loops.peel(triples, state, counts)
            state[leaving] = loops.GONE
    found[state == loops.KEPT] = k
    return found


def core_sizes(triples: np.ndarray, cores: np.ndarray) -> np.ndarray:
    """int64[kmax + 1]: of int32[T, 3], how many triples each k-core has; `cores` int32[n] are the entities' core numbers."""
    counts = np.zeros(int(cores.max(initial=0)) + 1, np.int64)
    loops.tally(readonly(triples), cores, counts)
    return counts[::-1].cumsum()[::-1]
