"""What the owner of a partition answers: about the rows of its tables, and about its part of a graph.

An answer is computed from arguments (plain JSON) and arrays, and is arrays. The same functions answer a question of this process
and one that came from another machine, so they believe nothing: UsageError says what is wrong with a question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.graphs.ids import as_array
from kgdist.graphs.structure import Draw, EType, InEdges, Question
from kgdist.kvstore.asking import Service

Arguments = dict[str, Any]
Arrays = list[np.ndarray]


class OwnRows(NamedTuple):
    """Those rows of a table that a partition owns."""

    first: int  # the number of the first
    rows: torch.Tensor


class OwnPart(Protocol):
    """A partition of a graph, as its owner sees it."""

    canonical_etypes: list[EType]

    def own_edges(self, etype: EType) -> InEdges:
        """The edges of one type into its own nodes."""

    def originals(self, kind: str, type_name: str) -> np.ndarray:
        """int64[n]: the ids that its nodes or edges of a type had before the graph was partitioned."""


class Owner:
    """Answers for one partition of each graph.

    Args:
        rows: by the name of a table, its own rows; None where there is no such table.
        graphs: by name, its own part.
    """

    def __init__(self, rows: Callable[[str], OwnRows | None], graphs: Mapping[str, OwnPart]) -> None:
        self._rows, self._graphs = rows, graphs
        self._out: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}  # sources sorted, and their places

    def services(self) -> dict[str, Service]:
        """By name."""
        return {
            "count_nonzero": self.count_nonzero,
            "nonzero": self.nonzero,
            "find_edges": self.find_edges,
            "in_degrees": self.in_degrees,
            "out_degrees": self.out_degrees,
            "neighbours": self.neighbours,
            "out_edges": self.out_edges,
            "originals": self.originals,
        }

    def count_nonzero(self, arguments: Arguments, arrays: Arrays) -> Arrays:
        """`table` -> int64[1]: how many of its numbers are not zero."""
        return [np.array([int(torch.count_nonzero(self._own_rows(arguments).rows))], np.int64)]

    def nonzero(self, arguments: Arguments, arrays: Arrays) -> Arrays:
        """`table`, int64[n] -> int64[n]: the numbers of these rows among its rows that are not zero, which are counted from 0 in
        their order."""
        own = self._own_rows(arguments)
        chosen = np.flatnonzero(own.rows.flatten(1).any(1).numpy() if own.rows.ndim > 1 else own.rows.numpy())
        (places,) = arrays
        return [chosen[_inside(places, 0, len(chosen), f"rows of {arguments['table']!r} that are not zero")] + own.first]

    def find_edges(self, arguments: Arguments, arrays: Arrays) -> Arrays:
        """`graph`, `etype` (its number), int64[n] edges -> int64[n] sources, int64[n] destinations."""
        return list(self._own_edges(arguments).find_edges(arrays[0]))

    def in_degrees(self, arguments: Arguments, arrays: Arrays) -> Arrays:
        """`graph`, `etype`, int64[n] nodes -> int64[n]."""
        return [self._own_edges(arguments).degrees(arrays[0])]

    def out_degrees(self, arguments: Arguments, arrays: Arrays) -> Arrays:
        """`graph`, `etype`, int64[n] nodes of any owner -> int64[n]: edges of this partition that begin in each."""
        sources, _ = self._sorted_sources(arguments)
        return [np.searchsorted(sources, arrays[0], "right") - np.searchsorted(sources, arrays[0], "left")]

    def neighbours(self, arguments: Arguments, arrays: Arrays) -> Arrays:
        """`graph`, `draw`, `questions` (each: `etype`, `fanout`, `replace`, and the `table` of weights or None), of each int64[n]
        nodes and int64[x] edges to leave out -> for each int64[n] counts, int64[m] ends, int64[m] edges."""
        draw = Draw(*(int(part) for part in arguments["draw"]))
        found: Arrays = []
        for question, nodes, exclude in zip(arguments["questions"], arrays[::2], arrays[1::2], strict=True):
            told = {"graph": arguments.get("graph"), **question}
            weights, number = self._weights(question.get("table")), int(question["etype"])
            etype = self._part(told).canonical_etypes[number]
            how = int(question["fanout"]), bool(question["replace"]), question.get("table"), False, exclude
            found += self._own_edges(told).neighbours(Question(etype, nodes, *how), draw, number, weights)
        return found

    def out_edges(self, arguments: Arguments, arrays: Arrays) -> Arrays:
        """`graph`, `etype`, `table` of weights or None, int64[n] nodes of any owner -> int64[n] counts, int64[m] ends, int64[m]
        edges, and weights[m] where there is a table: all edges of this partition that begin in each."""
        edges = self._own_edges(arguments)
        sources, order = self._sorted_sources(arguments)
        low, high = np.searchsorted(sources, arrays[0], "left"), np.searchsorted(sources, arrays[0], "right")
        counts = high - low
        places = order[np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())].astype(np.int64)
        ends = edges.find_edges(places + edges.first)[1]
        weights = self._weights(arguments.get("table"))
        return [counts, ends, places + edges.first, *([] if weights is None else [weights[places]])]

    def _weights(self, table: str | None) -> np.ndarray | None:
        return None if table is None else as_array(self._own_rows({"table": table}).rows)

    def originals(self, arguments: Arguments, arrays: Arrays) -> Arrays:
        """`graph`, `kind`, `type`, and where not all are wanted int64[n] places among its own -> int64[n]: ids before the graph
        was partitioned."""
        ids = self._part(arguments).originals(str(arguments.get("kind")), str(arguments.get("type")))
        for places in arrays[:1]:
            ids = ids[_inside(places, 0, len(ids), f"places of {arguments.get('type')!r}")]
        return [np.asarray(ids, np.int64)]

    def _sorted_sources(self, arguments: Arguments) -> tuple[np.ndarray, np.ndarray]:
        """The sources of all own edges of a type, ascending, and the place of each: made when out-edges are first asked for,
        which costs twice the bytes of the sources, and kept."""
        edges = self._own_edges(arguments)
        key = str(arguments["graph"]), int(arguments["etype"])
        if key not in self._out:
            order = np.argsort(edges.sources, kind="stable").astype(edges.sources.dtype)
            self._out[key] = edges.sources[order], order
        return self._out[key]

    def _own_rows(self, arguments: Arguments) -> OwnRows:
        own = self._rows(str(arguments.get("table")))
        if own is None:
            raise UsageError(f"there is no table {arguments.get('table')!r}")
        return own

    def _part(self, arguments: Arguments) -> OwnPart:
        part = self._graphs.get(str(arguments.get("graph")))
        if part is None:
            raise UsageError(f"there is no graph {arguments.get('graph')!r}")
        return part

    def _own_edges(self, arguments: Arguments) -> InEdges:
        part, number = self._part(arguments), arguments.get("etype")
        if not isinstance(number, int) or not 0 <= number < len(part.canonical_etypes):
            raise UsageError(f"there is no edge type of number {number!r}")
        return part.own_edges(part.canonical_etypes[number])


def _inside(ids: np.ndarray, first: int, count: int, what: str) -> np.ndarray:
    """int64[n] - first. Raises UsageError unless all are of these `count`."""
    local = ids - first
    if len(local) and not 0 <= int(local.min()) <= int(local.max()) < count:
        raise UsageError(f"{what} {int(ids.min())} to {int(ids.max())} were asked for; here are {first} to {first + count - 1}")
    return local
