"""What a partition needs besides its own triples, so that messages to its entities are whole within some hops.

Core vertices are the ends of a partition's own (core) triples. Each hop adds the edges into the entities that the last one
reached: triples whose tail they are and, with inverse relations, those whose head they are. What is added and no core triple is
support. With fan-outs an entity draws so many of the edges into it, evenly, at the hop where it is reached; a draw depends on the
seed, the hop and the entity, so all partitions draw alike.

Nothing is kept for each triple: a hop is one pass over them, for all partitions at once, and the bits of a word per entity say
which partitions have reached it. With fan-outs up to 8 bytes more for each edge drawn, 24 for each entity and hop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.log import bar
from kgdist.kernels import neighbours as drawing
from kgdist.kernels import vertex_cuts as loops
from kgdist.kernels.random import neighbour_key
from kgdist.partition.graph import PIECE, pieces, uneven

MUCH = 0.8  # of all triples in one partition: it is hardly smaller than the graph


@dataclass(frozen=True)
class Reach:
    """How far partitions see."""

    hops: int  # as many as an encoder has layers
    fanout: tuple[int, ...]  # edges that an entity draws, the last one at the core, as samplers have it; -1: all; (): all at all
    inverse: bool  # messages go both ways along a triple
    seed: int

    def at(self, hop: int) -> int:
        """The fan-out at a hop, counted from 0 at the core; -1: all."""
        return self.fanout[-1 - hop] if self.fanout else -1


class Part(NamedTuple):
    """One piece of the triples, and who has them."""

    start: int  # the number of the first
    triples: np.ndarray  # int32[m, 3]
    core: np.ndarray  # uint8[m], the partition that trains on each
    needed: np.ndarray  # uint64[m], bit p: partition p passes messages along it


class Expansion:
    """Of the triples int32[T, 3] divided by assigned uint8[T] into `parts`.

    Attributes:
        within: uint64[entities] for 0, 1, ..., hops: bit p is set where partition p reaches the entity within so many.
    """

    def __init__(self, triples: np.ndarray, assigned: np.ndarray, num_entities: int, parts: int, reach: Reach) -> None:
        self.triples, self.assigned, self.parts, self.reach = triples, assigned, parts, reach
        core = np.zeros(num_entities, np.uint64)
        for at, piece in enumerate(pieces(triples, "core entities")):
            loops.mark(piece, assigned[at * PIECE :][: len(piece)], core)
        self.within = [core]
        starts = np.zeros(num_entities + 1, np.int64)
        if any(reach.at(hop) >= 0 for hop in range(reach.hops)):
            for piece in pieces(triples, "counting edges"):
                loops.incident(piece, reach.inverse, starts[1:])
            np.cumsum(starts, out=starts)
        self._hops = list[_Hop]()
        for number in range(reach.hops):
            last = self.within[-1]
            fresh = last & ~self.within[-2] if number else last
            hop = _Hop.of(fresh, starts, reach, number)
            grown, (cursor, upto) = last.copy(), hop.begin()
            for piece in pieces(triples, f"hop {number + 1}"):
                needed = np.zeros(len(piece), np.uint64)
                loops.reach(piece, reach.inverse, fresh, cursor, upto, hop.places, grown, needed)
            self.within.append(grown)
            self._hops.append(hop)

    def __iter__(self) -> Iterator[Part]:
        """The triples piece by piece, with what partitions need of them."""
        begun = [hop.begin() for hop in self._hops]
        idle = np.zeros_like(self.within[0])  # what is reached is known
        with bar(total=len(self.triples), desc="support", unit=" triples") as progress:
            for start in range(0, len(self.triples), PIECE):
                piece = self.triples[start : start + PIECE]
                needed = np.zeros(len(piece), np.uint64)
                for hop, (cursor, upto) in zip(self._hops, begun, strict=True):
                    loops.reach(piece, self.reach.inverse, hop.fresh, cursor, upto, hop.places, idle, needed)
                yield Part(start, piece, self.assigned[start : start + PIECE], needed)
                progress.update(len(piece))

    def entities(self, part: int) -> list[np.ndarray]:
        """int32[.] for 0, 1, ..., hops: the entities that partition `part` reaches in so many and no fewer, ascending."""
        bit, found = np.uint64(1 << part), list[np.ndarray]()
        before = np.zeros_like(self.within[0])
        for within in self.within:
            found.append(np.flatnonzero(within & ~before & bit).astype(np.int32))
            before = within
        return found


class _Hop(NamedTuple):
    fresh: np.ndarray  # uint64[entities], the partitions that have reached each at the last hop
    starts: np.ndarray  # int64[entities], the number of the first edge into each, with a fan-out; else empty
    first: np.ndarray  # int64[entities], where its draws begin; else empty
    places: np.ndarray  # int64[.], numbers of the edges drawn, and -1 at the end; else empty

    @classmethod
    def of(cls, fresh: np.ndarray, starts: np.ndarray, reach: Reach, number: int) -> _Hop:
        """`starts` int64[entities + 1]: edges into each entity."""
        nothing, fanout = np.zeros(0, np.int64), reach.at(number)
        if fanout < 0:
            return cls(fresh, nothing, nothing, nothing)
        nodes = np.flatnonzero(fresh)
        counts = np.empty(len(nodes), np.int64)
        drawing.count(starts, nodes, 0, fanout, False, counts)
        places = np.empty(int(counts.sum()) + 1, np.int64)
        drawing.draw(starts, nodes, 0, False, neighbour_key(reach.seed, 0, number, 0), counts, places)
        places[-1] = -1
        first = np.full(len(fresh), len(places) - 1)
        first[nodes] = np.cumsum(counts) - counts
        return cls(fresh, starts[:-1], first, places)

    def begin(self) -> tuple[np.ndarray, np.ndarray]:
        """cursor and upto of `vertex_cuts.reach`, for a pass over the triples."""
        return self.starts.copy(), self.first.copy()


@dataclass(frozen=True)
class EdgeSizes:
    """One number for each partition, and how often entities stand in several."""

    core: list[int]  # triples that it trains on
    support: list[int]  # triples that only carry messages
    vertices: list[list[int]]  # entities by hop: core entities first
    replication: float  # partitions that an entity with triples is a core entity of, on average

    @classmethod
    def of(cls, expansion: Expansion) -> EdgeSizes:
        """Count, in one more pass."""
        core, support = np.zeros(expansion.parts, np.int64), np.zeros(expansion.parts, np.int64)
        for piece in expansion:
            core += np.bincount(piece.core, minlength=expansion.parts)
            for part in range(expansion.parts):
                support[part] += np.count_nonzero(needs(piece, part))
        vertices = [[len(each) for each in expansion.entities(part)] for part in range(expansion.parts)]
        met = max(1, int(np.count_nonzero(expansion.within[0])))
        return cls(core.tolist(), support.tolist(), vertices, round(sum(reached[0] for reached in vertices) / met, 4))

    @property
    def shares(self) -> list[float]:
        """Of all triples, those that each partition has, core and support."""
        return [(core + support) / max(1, sum(self.core)) for core, support in zip(self.core, self.support, strict=True)]

    def warnings(self) -> list[str]:
        """What to say of partitions that have nothing to train on, or are hardly smaller than the graph."""
        found = []
        if min(self.core) == 0:
            found.append("a partition has no core triples: it would have nothing to train; take fewer partitions")
        if len(self.core) > 1 and max(self.shares) > MUCH:
            part, share = int(np.argmax(self.shares)), max(self.shares)
            found.append(
                f"partition {part} has {100 * share:.0f} % of all triples, core and support: more partitions save no memory; "
                "--fanout, or fewer hops (--expand), makes them smaller"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the ratios."""
        return {**asdict(self), "balance": uneven(self.core), "expansion": self.expansion}

    @property
    def expansion(self) -> float:
        """Triples of all partitions divided by those of the graph."""
        return round(sum(self.shares), 4)

    def table(self) -> str:
        """For people."""
        hops = [f"hop {hop}" for hop in range(1, len(self.vertices[0]))]
        rows = [["partition", "core triples", "support", "of all", "core entities", *hops]]
        for part, (core, support, share) in enumerate(zip(self.core, self.support, self.shares, strict=True)):
            reached = (f"{count:,}" for count in self.vertices[part])
            rows.append([str(part), f"{core:,}", f"{support:,}", f"{100 * share:.1f} %", *reached])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines.append(f"replication: an entity is a core entity of {self.replication:.3f} partitions on average")
        times = f"partitions have {self.expansion:.2f} times the triples of the graph"
        lines.append(f"expansion: {times}; largest partition / average: {uneven(self.core):.3f} of core triples")
        return "\n".join(lines)


def needs(piece: Part, part: int) -> np.ndarray:
    """bool[m]: the triples that are support of partition `part`."""
    support: np.ndarray = (piece.needed & np.uint64(1 << part)).astype(bool) & (piece.core != part)
    return support
