"""Partitions of a graph read again: each node and edge is in exactly one, where it belongs, with its data.

Memory: a byte for each node or edge of the largest type, and pieces of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.files import PathLike
from kgdist.base.log import bar, tell
from kgdist.graphs.schema import check_graph
from kgdist.partition.graph import PIECE
from kgdist.partition.partition_graph import open_partitions
from kgdist.partition.typed_book import EdgeType
from kgdist.partition.typed_folder import LocalPartition
from kgdist.partition.typed_graph import STORED, Column, Typed
from kgdist.partition.typed_sizes import TypedSizes, halo, recount
from kgdist.partition.typed_write import TRAINER, columns

Parts = Sequence[LocalPartition]


def verify_partitions(part_config: PathLike, g: Typed | None = None) -> TypedSizes:
    """Read all partitions that <graph_name>.json names, and compare them with one another, and with the graph `g` if it is given:
    every file's sha256; that each node and edge is in exactly one; sources, in-edges, halos and sizes; with `g` also the ends of
    each edge and all data, through the original ids. Returns the sizes, counted anew.

    Raises CheckpointError naming the first thing that is wrong.
    """
    if g is not None:
        check_graph(g, "edges_of", "num_nodes", "num_edges")
    parts = open_partitions(part_config, verify=True)
    book, folders = parts[0].book, [each.folder for each in parts]
    for ntype in book.ntypes:
        _once([each.node_ids[ntype] for each in parts], book.num_nodes(ntype), parts, f"node of type {ntype}")
    for etype in book.canonical_etypes:
        _once([each.edge_ids[etype] for each in parts], book.num_edges(etype), parts, f"edge of type {':'.join(etype)}")
        for each in parts:
            _sound(each, etype, book.num_nodes(etype[0]))
    for each in bar(parts, desc="comparing halos", unit=" partition"):
        expected = halo(book, folders, each.part, each.manifest.common.hops)
        for t, ntype in enumerate(book.ntypes):
            if not np.array_equal(each.halo[ntype], expected[t]):
                raise CheckpointError(f"{each.folder / f'halo.{t}.npy'}: not the nodes that edges lead from to its own")
    sizes, told = recount(book, folders).to_json(), parts[0].manifest.common.sizes
    for what in ("nodes", "halo", "edges", "cut", "balance"):
        if sizes[what] != told.get(what):
            raise CheckpointError(f"{folders[0].parent}: partition.json names other sizes ({what})")
    if g is not None:
        _same(parts, g)
    tell(f"verified: every node and edge of {parts[0].name} is in exactly one of {len(parts)} partitions, {part_config}")
    return TypedSizes.from_json(told)


def _once(ids: Sequence[np.ndarray], count: int, parts: Parts, noun: str) -> None:
    """Raises CheckpointError unless `ids`, of all partitions together, are 0..count-1, each of them once."""
    seen = np.zeros(count, bool)
    for own, each in zip(ids, parts, strict=True):
        for start in range(0, len(own), PIECE):
            piece = own[start : start + PIECE].astype(np.int64)
            strange = (piece < 0) | (piece >= count)
            if strange.any():
                raise CheckpointError(f"{each.folder}: owns {noun} {piece[strange][0]}, and there are {count}")
            again = seen[piece]
            again[1:] |= np.diff(np.sort(piece)) == 0  # within the piece
            seen[piece] = True
            if again.any():
                raise CheckpointError(f"{each.folder}: owns a {noun} that is owned twice")
    if not seen.all():
        raise CheckpointError(f"{parts[0].folder.parent}: no partition owns {noun} {int(seen.argmin())}")


def _sound(each: LocalPartition, etype: EdgeType, count: int) -> None:
    """Raises CheckpointError for in-edges that are none."""
    e = each.book.canonical_etypes.index(etype)
    sources = each.sources[etype]
    for start in range(0, len(sources), PIECE):
        piece = sources[start : start + PIECE]
        if piece.min() < 0 or piece.max() >= count:
            raise CheckpointError(f"{each.folder / f'edges.{e}.sources.npy'}: has a node that is not in 0..{count - 1}")


def _same(parts: Parts, g: Typed) -> None:
    """Raises CheckpointError unless the partitions are those of `g`."""
    book, root = parts[0].book, parts[0].folder.parent
    if list(g.ntypes) != book.ntypes or list(g.canonical_etypes) != book.canonical_etypes:
        raise CheckpointError(f"{root}: partitions of a graph with other types")
    counts = [book.num_nodes(ntype) == g.num_nodes(ntype) for ntype in book.ntypes]
    counts += [book.num_edges(etype) == g.num_edges(etype) for etype in book.canonical_etypes]
    if not all(counts):
        raise CheckpointError(f"{root}: partitions of a graph with other numbers of nodes or edges")
    original = {ntype: np.concatenate([each.node_ids[ntype] for each in parts]) for ntype in book.ntypes}
    for ntype in book.ntypes:
        found = [each.node_features[ntype] for each in parts]
        _same_data(parts, found, g.nodes[ntype].data, g.num_nodes(ntype), [each.node_ids[ntype] for each in parts], ntype)
    for etype in book.canonical_etypes:
        ids, name = [each.edge_ids[etype] for each in parts], ":".join(etype)
        ends = g.edges_of(etype)
        for each in bar(parts, desc="comparing edges", unit=" partition"):
            _same_edges(each, etype, original, ends)
        _same_data(parts, [each.edge_features[etype] for each in parts], g.edges[etype].data, g.num_edges(etype), ids, name)


def _same_edges(
    each: LocalPartition, etype: EdgeType, original: Mapping[str, np.ndarray], ends: tuple[np.ndarray, np.ndarray]
) -> None:
    first, starts, sources, ids = each.range(etype[2])[0], each.starts[etype], each.sources[etype], each.edge_ids[etype]
    for low, high in pairwise([*range(0, len(sources), PIECE), len(sources)]):
        edges = ids[low:high].astype(np.int64)
        rows = np.searchsorted(starts, np.arange(low, high), side="right") - 1
        there = original[etype[0]][sources[low:high]], original[etype[2]][first + rows]
        for mine, theirs in zip(there, ends, strict=True):
            if not np.array_equal(mine, theirs[edges]):
                edge = int(edges[(mine != theirs[edges]).argmax()])
                raise CheckpointError(f"{each.folder}: edge {edge} of type {':'.join(etype)} joins other nodes than the graph's")


def _same_data(
    parts: Parts, found: Sequence[Mapping[str, Any]], data: Mapping[str, Any], count: int, ids: Sequence[np.ndarray], kind: str
) -> None:
    wanted = columns(data, count)
    made = {TRAINER} if parts[0].manifest.common.trainers > 1 else set()
    if set(found[0]) - made != set(wanted):
        raise CheckpointError(f"{parts[0].folder}: has other data of {kind} than the graph: {', '.join(found[0]) or 'none'}")
    for name, column in wanted.items():
        for each, features, own in zip(parts, found, ids, strict=True):
            there = Column.of(name, features[name], len(own))
            if (there.dtype, there.shape) != (column.dtype, column.shape):
                raise CheckpointError(f"{each.folder}: {name!r} of {kind} has another dtype or shape than the graph's")
            step = max(1, (1 << 22) // max(1, column.row_bytes))
            for low in range(0, len(own), step):
                places = np.arange(low, min(len(own), low + step))
                theirs = np.ascontiguousarray(column.take(own[places].astype(np.int64)), STORED[column.dtype])
                if np.ascontiguousarray(there.take(places)).tobytes() != theirs.tobytes():  # bytes: NaN is like itself
                    raise CheckpointError(f"{each.folder}: {name!r} of {kind} is not the graph's, among rows {low} and following")
