"""One of several workers that push to tables of their own, as a process: python -m tests.training.peer OUT."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from kgdist.kvstore.tables import MemoryTables, Update
from kgdist.training.peers import Peers, PeerTables

ENTITIES, RELATIONS, WIDTH, STEPS = 11, 4, 3, 5
SHAPES = {"entity": (ENTITIES, WIDTH), "relation": (RELATIONS, WIDTH), "only": (1, WIDTH), "encoder": (1, 2 * WIDTH)}
RATES = {"encoder": 0.3}  # that are not the push's
SQUARED = ("relation", "only")  # whose updates hold squares; "only" as of a graph of one relation


def entities_of(rank: int) -> np.ndarray:
    """int64[n], those that a worker has, in an order of its own; the first one has all."""
    order = np.random.default_rng(rank).permutation(ENTITIES)
    return order if rank == 0 else order[: 6 + rank]


def updates_of(rank: int, step: int) -> dict[str, Update]:
    """What a worker finds in a step, by the numbers of the graph; the last one finds nothing in every other step."""
    rng = np.random.default_rng((rank, step))
    found = {}
    for name, (rows, width) in SHAPES.items():
        own = entities_of(rank) if name == "entity" else np.arange(rows)
        most = 0 if rank == 2 and step % 2 and rows > 1 else len(own)
        ids = np.sort(rng.choice(own, size=rng.integers(min(1, most), most + 1), replace=False)) if rows > 1 else own
        grads = torch.from_numpy(rng.standard_normal((len(ids), width)).astype(np.float32))
        squares = torch.from_numpy(rng.random(len(ids), np.float32)) if name in SQUARED else None
        found[name] = Update(ids.astype(np.int64), grads, squares, RATES.get(name))
    return found


def main(out: Path) -> None:
    """Push, and leave the rows."""
    peers = Peers(60.0)
    mine = entities_of(peers.rank)
    shapes = SHAPES | {"entity": (len(mine), WIDTH)}
    tables = MemoryTables.create(shapes, "adagrad")
    shared = PeerTables(tables, peers, mine, ENTITIES)
    place = {entity: number for number, entity in enumerate(mine.tolist())}
    for step in range(STEPS):
        found = updates_of(peers.rank, step)
        own = np.array([place[entity] for entity in found["entity"].ids.tolist()], np.int64)
        shared.push(found | {"entity": Update(own, found["entity"].grads)}, 0.1)
    assert peers.sums(peers.rank, 1) == [sum(range(peers.world)), peers.world]
    assert peers.same("all") and peers.same(f"{peers.rank}") == (peers.world == 1)
    assert peers.texts("é" * peers.rank) == ["é" * rank for rank in range(peers.world)]
    pieces = peers.each(torch.arange(peers.rank))
    assert [piece.tolist() for piece in pieces] == [list(range(rank)) for rank in range(peers.world)]
    given = np.arange(10.0) if peers.rank == 0 else np.zeros(10)
    peers.spread(given)
    assert given.tolist() == list(range(10))
    if peers.rank == 0:
        with peers.waiting():
            pass
        peers.tell(2)
    else:
        assert peers.hear() == 2
    np.savez(out / f"{peers.rank}.npz", **tables.arrays())
    peers.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
