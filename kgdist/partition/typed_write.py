"""Writes the partitions of a graph: new ids, edges sorted by destination in one pass of counting, data row by row; all or none.

Memory, besides the graph: 8 bytes a node, and of one edge type after the other 8 bytes an edge (on disk, where `scratch` says so)
and 8 a destination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import KgdistError, UsageError
from kgdist.base.files import check_room, load_npy, write_npy
from kgdist.base.log import bar
from kgdist.kernels import arrange as loops
from kgdist.partition.graph import PIECE
from kgdist.partition.manifest import Manifest, digest_of, files_of, folder_of
from kgdist.partition.typed_book import EdgeType, PartitionBook
from kgdist.partition.typed_folder import Described, GraphInCommon, whole
from kgdist.partition.typed_graph import STORED, Column, Typed
from kgdist.partition.typed_sizes import TypedSizes, recount, write_halos
from kgdist.partition.write import staged

TRAINER = "trainer_id"  # data that says which trainer of all machines a node or edge is for
AT_ONCE = 1 << 22  # bytes of rows that are gathered together


@dataclass(frozen=True)
class Nodes:
    """The nodes of one type under new ids."""

    starts: np.ndarray  # int64[k + 1], where each partition's begin
    ids: np.ndarray  # int32[n], the original id of each new id
    number: np.ndarray  # int32[n], the new id of each original id

    @classmethod
    def of(cls, assigned: np.ndarray, parts: int) -> Nodes:
        """Those of a partition keep their order. `assigned` int32[n]."""
        starts = np.zeros(parts + 1, np.int64)
        np.cumsum(np.bincount(assigned, minlength=parts), out=starts[1:])
        ids = np.argsort(assigned.astype(np.uint16), kind="stable").astype(np.int32)  # 16 bits are sorted by counting
        number = np.empty(len(ids), np.int32)
        number[ids] = np.arange(len(ids), dtype=np.int32)
        return cls(starts, ids, number)


class Arranged(NamedTuple):
    """The edges of one type by destination, under new ids."""

    starts: np.ndarray  # int64[n + 1], by new id of the destination
    sources: np.ndarray  # int[E], new ids
    ids: np.ndarray  # int[E], original ids


class Plan(NamedTuple):
    """What is said of a partitioning."""

    name: str
    method: str
    objective: str
    seed: int
    hops: int
    trainers: int


def write_graph(
    graph: Typed,
    assigned: np.ndarray,
    parts: int,
    root: Path,
    plan: Plan,
    *,
    classes: np.ndarray | None = None,
    scratch: Path | None = None,
) -> GraphInCommon:
    """Write folders partition_<p> in `root`, all or none; what was there before is replaced. Returns what they have in common.

    Args:
        assigned: int32[nodes], counted through all types, in 0..parts * trainers - 1; a machine's trainers follow one another.
        classes: int[nodes], whose balance is counted, too.
        scratch: a folder for edges in the making, where they may not fit into memory.

    Raises OptionError for folders in the way, UsageError for data that cannot be kept, KgdistError where nothing can be written.
    """
    nodes, first = dict[str, Nodes](), 0
    on_nodes, on_edges = data_of(graph, plan.trainers)
    for ntype in graph.ntypes:
        own = assigned[first : first + graph.num_nodes(ntype)]
        nodes[ntype] = Nodes.of(own // plan.trainers, parts)
        if plan.trainers > 1:
            on_nodes[ntype][TRAINER] = Column("int64", (), own.astype(np.int64).take)
        first += len(own)
    _check_disk(graph, on_nodes, on_edges, root)
    with staged(root, parts, kind=GraphInCommon, option="out_path") as folders:
        starts = dict[EdgeType, np.ndarray]()
        for t, (ntype, each) in enumerate(nodes.items()):
            for part, folder in enumerate(folders):
                write_npy(folder / f"nodes.{t}.ids.npy", each.ids[slice(*each.starts[part : part + 2])])
            _write_columns(folders, f"nodes.{t}", on_nodes[ntype], ntype)
        for e, etype in enumerate(graph.canonical_etypes):
            sources, destinations = graph.edges_of(etype)
            arranged = arrange(sources, destinations, nodes[etype[0]], nodes[etype[2]], etype, scratch)
            rows = nodes[etype[2]].starts
            starts[etype] = arranged.starts[rows]
            for part, folder in enumerate(folders):
                row, place = slice(rows[part], rows[part + 1] + 1), slice(*starts[etype][part : part + 2])
                write_npy(folder / f"edges.{e}.starts.npy", arranged.starts[row] - arranged.starts[row.start])
                write_npy(folder / f"edges.{e}.sources.npy", arranged.sources[place])
                write_npy(folder / f"edges.{e}.ids.npy", arranged.ids[place])
            del arranged
            if plan.trainers > 1:
                on_edges[etype][TRAINER] = Column("int64", (), _of_ends(on_nodes[etype[2]][TRAINER], destinations))
            _write_columns(folders, f"edges.{e}", on_edges[etype], ":".join(etype))
        book = PartitionBook({ntype: each.starts for ntype, each in nodes.items()}, starts)
        write_halos(book, folders, plan.hops)
        sizes = recount(book, folders, classes)
        return _seal(folders, plan, book, on_nodes, on_edges, sizes)


def _seal(
    folders: Sequence[Path],
    plan: Plan,
    book: PartitionBook,
    on_nodes: Mapping[str, Mapping[str, Column]],
    on_edges: Mapping[EdgeType, Mapping[str, Column]],
    sizes: TypedSizes,
) -> GraphInCommon:
    """Write partition.json of each."""
    files = [files_of(folder) for folder in bar(folders, desc="hashing the partitions", unit=" folder")]
    common = GraphInCommon(
        *plan,
        book,
        {ntype: _described(on_nodes[ntype]) for ntype in on_nodes},
        {etype: _described(on_edges[etype]) for etype in on_edges},
        sizes.to_json(),
        tuple(map(digest_of, files)),
    )
    for part, folder in enumerate(folders):
        Manifest(part, common, files[part]).write(folder)
    return common


def data_of(graph: Typed, trainers: int) -> tuple[dict[str, dict[str, Column]], dict[EdgeType, dict[str, Column]]]:
    """The data of nodes and of edges by type and name; nothing is read. Raises UsageError for what cannot be kept."""
    on_nodes = {ntype: columns(graph.nodes[ntype].data, graph.num_nodes(ntype)) for ntype in graph.ntypes}
    on_edges = {etype: columns(graph.edges[etype].data, graph.num_edges(etype)) for etype in graph.canonical_etypes}
    if trainers > 1 and any(TRAINER in found for found in (*on_nodes.values(), *on_edges.values())):
        raise UsageError(f"{TRAINER!r} is the name of data that num_trainers_per_machine makes: call yours otherwise")
    return on_nodes, on_edges


def columns(data: Mapping[str, Any], rows: int) -> dict[str, Column]:
    """The data of nodes or edges of one type. Raises UsageError for what cannot be kept."""
    return {str(name): Column.of(str(name), values, rows) for name, values in data.items()}


def _described(found: Mapping[str, Column]) -> Described:
    return {name: (column.dtype, column.shape) for name, column in found.items()}


def _of_ends(column: Column, ends: np.ndarray) -> Any:
    return lambda ids: column.take(ends[ids].astype(np.int64))


def arrange(
    sources: np.ndarray,
    destinations: np.ndarray,
    from_nodes: Nodes,
    to_nodes: Nodes,
    etype: EdgeType,
    scratch: Path | None = None,
) -> Arranged:
    """The edges of a type, int[E] each, sorted by the new ids of their destinations; those of a node keep their order.

    Raises UsageError for an end that is no node.
    """
    count, spans = len(sources), range(0, len(sources), PIECE)
    starts = np.zeros(len(to_nodes.ids) + 1, np.int64)
    for start in bar(spans, desc="counting in-edges", unit=" piece"):
        piece = _piece(sources, start), _piece(destinations, start)
        bad = loops.count_in(*piece, len(from_nodes.ids), to_nodes.number, starts[1:])
        if bad >= 0:
            ends = " -> ".join(str(int(each[bad])) for each in piece)
            raise UsageError(f"edge {start + bad} of type {':'.join(etype)}, {ends}: there is no such node")
    np.cumsum(starts, out=starts)
    arranged, ids = (
        _room(scratch, name, whole(below), count) for name, below in (("sources", len(from_nodes.ids)), ("ids", count))
    )
    cursor = starts[:-1].copy()
    for start in bar(spans, desc="sorting edges", unit=" piece"):
        piece = _piece(sources, start), _piece(destinations, start)
        loops.deal(*piece, from_nodes.number, to_nodes.number, start, cursor, arranged, ids)
    return Arranged(starts, arranged, ids)


def _piece(ends: np.ndarray, start: int) -> np.ndarray:
    """int64[m], not to be written, so that loops are compiled once for all arrays."""
    piece = np.ascontiguousarray(ends[start : start + PIECE], np.int64).view()
    piece.flags.writeable = False
    return piece


def _room(scratch: Path | None, name: str, dtype: np.dtype, count: int) -> np.ndarray:
    if scratch is None or count == 0:
        return np.empty(count, dtype)
    try:
        return np.asarray(np.memmap(scratch / f"{name}.bin", dtype, "w+", shape=(count,)))
    except OSError as error:
        raise KgdistError(f"{scratch}: cannot be written ({error.strerror or error}); name another out_path") from error


def _write_columns(folders: Sequence[Path], stem: str, found: Mapping[str, Column], kind: str) -> None:
    """The data of nodes or edges of a type, in the order of their ids files."""
    for number, column in enumerate(bar(list(found.values()), desc=f"writing data of {kind}", unit=" column")):
        for folder in folders:
            ids = load_npy(folder / f"{stem}.ids.npy", mmap=True)
            write_rows(folder / f"{stem}.feature.{number}.npy", column, ids)


def write_rows(path: Path, column: Column, ids: np.ndarray) -> None:
    """Write the rows `ids` int[n] of a column as `.npy`, some megabytes at a time. Raises KgdistError (disk full)."""
    dtype, rows = STORED[column.dtype], max(1, AT_ONCE // max(1, column.row_bytes))
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (len(ids), *column.shape)}
    try:
        with open(path, "wb", buffering=0) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, len(ids), rows):
                piece = np.ascontiguousarray(column.take(ids[start : start + rows].astype(np.int64)), dtype)
                left = piece.reshape(-1).view(np.uint8).data
                while len(left):
                    left = left[file.write(left) :]
    except OSError as error:
        raise KgdistError(f"{path}: cannot be written ({error.strerror or error})") from error


def _check_disk(
    graph: Typed, on_nodes: Mapping[str, Mapping[str, Column]], on_edges: Mapping[EdgeType, Mapping[str, Column]], root: Path
) -> None:
    need = sum(graph.num_nodes(t) * (4 + sum(c.row_bytes for c in found.values())) for t, found in on_nodes.items())
    need += sum(graph.num_edges(e) * (8 + sum(c.row_bytes for c in found.values())) for e, found in on_edges.items())
    need += sum(8 * graph.num_nodes(destination) for _, _, destination in graph.canonical_etypes)
    check_room(folder_of(root, 0), int(1.05 * need))
