"""Which part each triple goes to, so that few entities have replicas in several (a vertex cut).

hdrf     entities get homes, in passes where each goes to where most of its triples lead, as far as there is room (restreaming,
         Nishimura, Ugander 2013); triples whose ends have one home go there, the others by HDRF (Petroni et al., CIKM 2015), as
         clusters come before scores in 2PS (Mayer et al., ICDE 2022). Reads the triples a dozen times; memory: 20 + 4 k bytes an
         entity, whatever the number of triples. Parts differ by 2 % at most.
dbh      to the part that a hash gives to the end of fewer triples (Xie et al., NIPS 2014)
random   shuffled
metis    entities by METIS, a triple to the part of its tail

The answer depends on the triples, the method and the seed alone.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import numpy as np

from kgdist.base.log import log
from kgdist.kernels import vertex_cuts as loops
from kgdist.kernels.random import uniform_ids
from kgdist.partition.assign import assign
from kgdist.partition.graph import PIECE, degrees, pieces

PASSES = 8  # over the triples for homes
SETTLED = 0.01  # passes end when fewer of the entities move, or no fewer than in the last: there is nothing to find
HOMES, SLACK = 1.05, 1.02  # the largest home, and the largest part, divided by the average


@contextlib.contextmanager
def scratch(triples: int) -> Iterator[np.ndarray]:
    """uint8[triples] in a temporary file, so that memory does not grow with the triples."""
    with tempfile.TemporaryFile() as file:
        yield np.memmap(file, np.uint8, "w+", shape=(triples,))


def divide_triples(
    triples: np.ndarray,
    num_entities: int,
    num_relations: int,
    parts: int,
    out: np.ndarray,
    *,
    method: str,
    balance: str = "triples",
    seed: int = 0,
) -> None:
    """The part of each of `triples` int32[T, 3], written to out uint8[T]; 1 <= parts <= 64. `balance` is for metis alone.

    Raises KgdistError for an id out of range, OptionError and KgdistError where METIS cannot be had or fails.
    """
    if parts == 1:
        out[:] = 0
    elif method == "metis":
        assigned = assign(triples, num_entities, num_relations, parts, method=method, balance=balance, seed=seed)
        for at, piece in enumerate(pieces(triples, "a triple goes with its tail")):
            out[at * PIECE :][: len(piece)] = assigned[piece[:, 2]]
    elif method == "random":
        for at, piece in enumerate(pieces(triples, "dealing out triples")):
            out[at * PIECE :][: len(piece)] = uniform_ids(seed, at, 0, len(piece), parts)
    else:
        ends = degrees(triples, num_entities, num_relations).ends
        home = uniform_ids(seed, 0, 0, num_entities, parts).astype(np.uint8)
        if method == "dbh":
            for at, piece in enumerate(pieces(triples, "hashing the ends")):
                heads, tails = piece[:, 0], piece[:, 2]
                out[at * PIECE :][: len(piece)] = home[np.where(ends[heads] < ends[tails], heads, tails)]
        else:
            settle_homes(triples, ends, home, parts)
            _hdrf(triples, ends, home, parts, out)


def settle_homes(triples: np.ndarray, ends: np.ndarray, home: np.ndarray, parts: int) -> None:
    """Move entities, home uint8[entities] in place, to where most of their triples lead. `ends` int64[entities]."""
    load = np.bincount(home, weights=ends, minlength=parts).astype(np.int64)
    limit, before = int(HOMES * load.sum() / parts), len(home)
    votes = np.empty((len(home), parts), np.int32)
    for turn in range(PASSES):
        votes[:] = 0
        for piece in pieces(triples, f"homes of entities, pass {turn + 1}"):
            loops.vote(piece, home, votes)
        moved = int(loops.move(ends, votes, limit, load, home))
        log.debug("%d of %d entities have moved", moved, len(home))
        if moved < SETTLED * len(home) or (turn and moved >= before):
            break
        before = moved


def _hdrf(triples: np.ndarray, ends: np.ndarray, home: np.ndarray, parts: int, out: np.ndarray) -> None:
    limit = max(-(-len(triples) // parts), int(SLACK * len(triples) / parts))
    replicas, size = np.zeros(len(ends), np.uint64), np.zeros(parts, np.int64)
    for at, piece in enumerate(pieces(triples, "triples within a home")):
        loops.keep(piece, home, limit, replicas, size, out[at * PIECE :][: len(piece)])
    for at, piece in enumerate(pieces(triples, "triples between homes")):
        loops.place(piece, ends, limit, replicas, size, out[at * PIECE :][: len(piece)])
