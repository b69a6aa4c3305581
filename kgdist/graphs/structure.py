"""In-edges of one type in compressed rows, and the question that samplers ask of a graph: which neighbours do these nodes draw?

A graph in memory, a partition on disk and a graph on many machines answer the same `Question` with the same bits, for a draw is a
hash of what it is for: (seed, step, hop, number of the edge type, node).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from kgdist.base.errors import CheckpointError, UsageError
from kgdist.kernels import neighbours as loops
from kgdist.kernels.random import neighbour_key

EType = tuple[str, str, str]  # (type of the sources, name, type of the destinations)
NID = EID = "_ID"  # the name under which nodes and edges of a part carry their ids in the whole graph
NTYPE = ETYPE = "_TYPE"  # and those of a graph whose types were made one, the number of their type
MOST_DRAWN = 2**31  # edges with replacement, of one type and hop
WIDE = 2**31  # from so many nodes on, their ids take 8 bytes

NOTHING = np.zeros(0, np.int64)
_EVEN = np.zeros(0, np.uint8)  # the weights of edges that all weigh the same


class Draw(NamedTuple):
    """What random numbers are for: equal ones give equal neighbours, whoever draws them."""

    seed: int
    step: int = 0
    hop: int = 0


class Question(NamedTuple):
    """Which edges of one type lead to each node, or from it."""

    etype: EType
    nodes: np.ndarray  # int64[n], ids in the whole graph: destinations, or sources where `out`
    fanout: int  # how many a node draws, those of no more give all; -1: all
    replace: bool = False
    prob: str | None = None  # the edge feature that says which are drawn: floats are weights, bool or uint8 a mask
    out: bool = False
    exclude: np.ndarray | None = None  # int64[x], ids of edges of this type that are not to be drawn


class Answer(NamedTuple):
    """The edges drawn, in the order of the nodes asked for."""

    counts: np.ndarray  # int64[n], the edges of each node
    ends: np.ndarray  # int64[m], the node at the other end
    edges: np.ndarray  # int64[m], ids of edges


class Neighbourhood(Protocol):
    """What samplers need of a graph, wherever it lies."""

    @property
    def ntypes(self) -> list[str]:
        """Names of the node types."""

    @property
    def canonical_etypes(self) -> list[EType]:
        """The edge types; an edge type's number is its place here."""

    def num_nodes(self, ntype: str | None = None) -> int:
        """Of one type, or altogether."""

    def num_edges(self, etype: Any = None) -> int:
        """Of one type, or altogether."""

    def neighbours(self, questions: Sequence[Question], draw: Draw) -> list[Answer]:
        """An answer for each; all questions of a hop come together, so that those to other machines travel together."""


def readonly(array: np.ndarray) -> np.ndarray:
    """The same memory, not to be written here. Loops are compiled for it once, whether files are mapped or not."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


class InEdges:
    """The edges of one type by destination; made by source, they are out-edges.

    The rows are nodes low, low + 1, ...: all of a type, or a partition's own range. Edges lie at places, a row's side by side.

    Args:
        starts: int64[rows + 1], ascending from 0 to E; where a row's places begin.
        sources: int32[E] or int64[E], the node at the other end of each, an id in the whole graph.
        ids: int64[E], the edge at each place, each of 0..E-1 once; None where the edge at place p is first + p.
        first: the id of the edge at place 0, where there are no ids.
        low: the id of the first row's node.
        below: how many nodes there are at the other ends, where that is not known to be so: files may be damaged. Then nothing
            that is drawn or found names another one.

    The arrays are not copied, so files can stay mapped; nothing looks at all of them here.
    """

    def __init__(
        self,
        starts: np.ndarray,
        sources: np.ndarray,
        ids: np.ndarray | None = None,
        first: int = 0,
        low: int = 0,
        below: int | None = None,
    ) -> None:
        if starts.dtype != np.int64 or sources.dtype not in (np.int32, np.int64) or (ids is not None and ids.dtype != np.int64):
            raise TypeError(f"starts and ids are int64, sources int32 or int64: not {starts.dtype}, {sources.dtype}")
        if len(starts) == 0 or starts[0] != 0 or starts[-1] != len(sources) or (ids is not None and len(ids) != len(sources)):
            raise ValueError(f"{len(starts)} starts to {starts[-1:]} do not fit {len(sources)} sources")
        self.starts, self.sources = readonly(starts), readonly(sources)
        self.ids = None if ids is None else readonly(ids)
        self.first, self.low, self.below = first, low, below
        self._ids = readonly(NOTHING) if self.ids is None else self.ids

    @property
    def num_rows(self) -> int:
        """How many nodes have their edges here."""
        return len(self.starts) - 1

    @property
    def num_edges(self) -> int:
        """How many edges are here."""
        return len(self.sources)

    def neighbours(self, question: Question, draw: Draw, number: int, weights: np.ndarray | None = None) -> Answer:
        """The edges that the nodes of a question draw, as its fan-out, replacement and exclusions say.

        Args:
            number: of the edge type, in the whole graph.
            weights: the feature that `question.prob` names, [E], of the edge at each place (by id, where there are ids).

        Raises UsageError for a node that is not here, and for a weight that is negative or no number.
        """
        nodes = np.ascontiguousarray(question.nodes, np.int64)
        counts = np.empty(len(nodes), np.int64)
        replace = question.replace and question.fanout >= 0
        if question.fanout > MOST_DRAWN or (replace and len(nodes) * question.fanout > MOST_DRAWN):  # asked by a peer, too
            raise UsageError(
                f"a fan-out of {question.fanout} for {len(nodes):,} nodes: {MOST_DRAWN:,} edges at most, or -1 for all"
            )
        key = neighbour_key(draw.seed, draw.step, draw.hop, number)
        place = -1
        if weights is None and (question.exclude is None or not len(question.exclude)):
            bad = loops.count(self.starts, nodes, self.low, question.fanout, replace, counts)
            if bad < 0:
                places = np.empty(counts.sum() + 1, np.int64)
                loops.draw(self.starts, nodes, self.low, replace, key, counts, places)
        else:
            by_weight = weights is not None and weights.dtype.kind == "f"
            excluded, shift = NOTHING, np.uint64(0)
            if question.exclude is not None and len(question.exclude):
                excluded, shift = loops.without(np.ascontiguousarray(question.exclude, np.int64))
            which = self.first, self._ids, self._weights(weights), excluded, shift, nodes, self.low
            bad, place = loops.count_open(self.starts, *which, question.fanout, replace, counts)
            if bad < 0 and place < 0:
                places = np.empty(counts.sum() + 1, np.int64)
                loops.draw_open(self.starts, *which, by_weight, replace, key, counts, places)
        if bad >= 0:
            raise unknown_id("node", int(nodes[bad]), self.low, self.low + self.num_rows)
        if place >= 0:
            raise UsageError(f"edge {self.edge_at(place)}: its {question.prob!r} is not a weight: give numbers >= 0")
        places = places[:-1]
        ends, edges = np.empty(len(places), np.int64), places
        loops.gather(self.sources, self._ids, self.first, places, ends, edges)
        self._check_ends(ends)
        return Answer(counts, ends, edges)

    def _weights(self, weights: np.ndarray | None) -> np.ndarray:
        if weights is None:
            return readonly(_EVEN)
        if weights.shape != (self.num_edges,):
            raise UsageError(f"weights of edges are one number each: {self.num_edges} of them, not an array of {weights.shape}")
        if weights.dtype.kind == "f":
            return readonly(weights.astype(np.float32) if weights.dtype == np.float16 else weights)
        if weights.dtype not in (np.bool_, np.uint8):
            raise UsageError(f"edges are drawn by floats, which are weights, or by bool or uint8, a mask: not by {weights.dtype}")
        return readonly(weights.view(np.uint8))

    def edge_at(self, place: int | np.signedinteger) -> int:
        """The id of the edge at a place."""
        return int(self._ids[place]) if len(self._ids) else int(place) + self.first

    def degrees(self, nodes: np.ndarray) -> np.ndarray:
        """int64[n], the edges of each of these nodes. Raises UsageError for one that is not here."""
        rows = np.asarray(nodes, np.int64) - self.low
        check_ids("node", rows, self.num_rows, self.low)
        degrees: np.ndarray = self.starts[rows + 1] - self.starts[rows]
        return degrees

    def find_edges(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sources and destinations int64[n] of edges whose id is their place. Raises UsageError for one that is not here."""
        if self.ids is not None:
            raise ValueError("edges that have ids of their own are looked up where they came from")
        places = np.asarray(edges, np.int64) - self.first
        check_ids("edge", places, self.num_edges, self.first)
        rows = np.searchsorted(self.starts, places, side="right") - 1
        ends = self.sources[places].astype(np.int64)
        self._check_ends(ends)
        return ends, rows + self.low

    def _check_ends(self, ends: np.ndarray) -> None:
        """Raises CheckpointError for an end that is no node."""
        if self.below is None or not len(ends) or int(ends.view(np.uint64).max()) < self.below:  # negative ones are the largest
            return
        strange = int(ends[(ends < 0) | (ends >= self.below)][0])
        message = f"an edge leads from node {strange}, and there are {self.below}: the files of a partition are damaged"
        raise CheckpointError(f"{message}; verify_partitions names the file")


def unknown_id(noun: str, found: int, low: int, high: int, kind: str = "") -> UsageError:
    """What to say about an id that is not one of low..high-1; `kind` says of which type."""
    return UsageError(
        f"there is no {noun} {found}{kind}: they are numbered {low} to {high - 1}"
        if high > low
        else f"there is no {noun} {found}{kind}: there are none"
    )


def check_ids(noun: str, ids: np.ndarray, count: int, low: int = 0, kind: str = "") -> None:
    """Raises UsageError, with the first id, when one of `ids` int64[n] is not in 0..count-1; they are said with `low` added."""
    if len(ids) and (ids.min() < 0 or ids.max() >= count):
        bad = (ids < 0) | (ids >= count)
        raise unknown_id(noun, int(ids[bad.argmax()]) + low, low, low + count, kind)


def compressed(sources: np.ndarray, destinations: np.ndarray, num_sources: int, num_destinations: int) -> InEdges:
    """The in-edges of edges that are given by their ends, int[E] each, in the order of their ids; the edges of a node in theirs.

    Raises UsageError for a destination that is no node; sources are taken as they are.
    """
    starts, places = np.zeros(num_destinations + 1, np.int64), np.empty(len(sources), np.int64)
    bad = loops.compress(readonly(destinations), starts, places)
    if bad >= 0:
        raise unknown_id("destination node", int(destinations[bad]), 0, num_destinations)
    narrow = np.int32 if num_sources < WIDE else np.int64
    ordered = bool((np.diff(places) == 1).all())  # sorted by destination already: an edge's id is its place
    return InEdges(starts, sources[places].astype(narrow, copy=False), None if ordered else places)
