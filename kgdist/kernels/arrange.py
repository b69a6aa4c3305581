# mypy: disable-error-code="no-untyped-def"
"""Edges arranged by destination under new ids, and marks on what they reach; compiled. Used by kgdist.partition.

Edges come piece by piece as ends int64[m], in original ids; `number_*` int32[n] are the new ids. No index is checked here but by
`count_in`, which therefore comes first.
"""

from __future__ import annotations

from kgdist.kernels.jit import strict


@strict
def count_in(sources, destinations, num_sources, number_destinations, degrees):
    """Adds each edge to degrees int64[n], at the new id of its destination. Returns the place of one with an id out of range, or
    -1."""
    n = len(number_destinations)
    for i in range(len(sources)):
        source, destination = sources[i], destinations[i]
        if source < 0 or source >= num_sources or destination < 0 or destination >= n:
            return i
        degrees[number_destinations[destination]] += 1
    return -1


@strict
def deal(sources, destinations, number_sources, number_destinations, first, cursor, arranged, ids):
    """Writes each edge to the row of its destination: arranged int[E] the new id of its source, ids int[E] its own, which is
    first + its place in the piece. cursor int64[n], by new ids, moves on."""
    for i in range(len(sources)):
        destination = number_destinations[destinations[i]]
        at = cursor[destination]
        cursor[destination] = at + 1
        arranged[at] = number_sources[sources[i]]
        ids[at] = first + i


@strict
def mark(sources, seen):
    """Sets seen uint8[n] of each of sources int32[m]."""
    for i in range(len(sources)):
        seen[sources[i]] = 1


@strict
def mark_rows(starts, sources, rows, seen):
    """As `mark`, of the edges of some rows int64[m] of compressed in-edges."""
    for i in range(len(rows)):
        for j in range(starts[rows[i]], starts[rows[i] + 1]):
            seen[sources[j]] = 1
