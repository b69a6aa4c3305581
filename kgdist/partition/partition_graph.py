"""partition_graph: a graph of one type or several divided, with its data, by the names and meanings of DGL's; and what was
written opened again by <graph_name>.json, which lies beside the folders and names them.

    graph_name, num_parts, part_method, objtype, halo_hops, num_trainers_per_machine
    num_nodes, num_edges       of all types
    ntypes, etypes             name -> number; an edge type's is its three names with colons between
    node_map, edge_map         name -> [first, after the last] of each partition, within the type
    sizes                      nodes, edges, halo, cut and balance of each partition, counted from what was written
    part-0, part-1, ...        where the partition lies, from here
    format, graph              as in each partition.json: the digest says whether they belong together
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from kgdist.base.errors import CheckpointError, OptionError, UsageError
from kgdist.base.files import PathLike, read_json, safe_join, write_json
from kgdist.base.integers import integer
from kgdist.base.log import tell
from kgdist.graphs.schema import check_graph
from kgdist.partition.assign import divide
from kgdist.partition.balance import Balance
from kgdist.partition.graph import degrees
from kgdist.partition.manifest import Manifest, check_belongs, folder_of, numbered, version_of
from kgdist.partition.typed_book import SEPARATOR, EdgeType, PartitionBook
from kgdist.partition.typed_folder import GraphInCommon, LocalPartition
from kgdist.partition.typed_graph import Joined, Typed, classes_of
from kgdist.partition.typed_sizes import TypedSizes
from kgdist.partition.typed_write import Plan, data_of, write_graph
from kgdist.partition.write import check_replaced

METHODS, OBJECTIVES = ("metis", "streaming", "random"), ("cut", "vol")
MOST_PARTS = 65535
LONGEST_NAME = 128  # bytes: a file system has names of 255, and files in the making have longer ones than their own
_NAME = re.compile(r"\w[\w.+-]*( [\w.+-]+)*")
Maps = tuple[torch.Tensor, torch.Tensor] | tuple[dict[str, torch.Tensor], dict[EdgeType, torch.Tensor]]
Data = dict[str, torch.Tensor]


class Loaded(NamedTuple):
    """What `load_partition` returns, in the order of DGL's."""

    graph: LocalPartition
    node_feats: Data  # "ntype/name" -> a row for each own node
    edge_feats: Data  # "source:name:destination/name" -> a row for each own edge
    book: PartitionBook
    graph_name: str
    ntypes: list[str]
    etypes: list[EdgeType]


class LoadedBook(NamedTuple):
    """What `load_partition_book` returns, in the order of DGL's."""

    book: PartitionBook
    graph_name: str
    ntypes: list[str]
    etypes: list[EdgeType]


def partition_graph(
    g: Typed,
    graph_name: str,
    num_parts: int,
    out_path: PathLike,
    num_hops: int = 1,
    part_method: str = "metis",
    balance_ntypes: Any = None,
    balance_edges: bool = False,
    return_mapping: bool = False,
    num_trainers_per_machine: int = 1,
    objtype: str = "cut",
    graph_formats: str | Sequence[str] | None = None,
    use_graphbolt: bool = False,
    *,
    seed: int = 0,
    scratch: Path | None = None,
) -> Maps | None:
    """Divide a graph among machines, and write a folder for each below `out_path`, and <graph_name>.json beside them.

    Nodes get new ids, so that each partition owns one contiguous range of every type; an edge lives with its destination, and its
    new id is its place among all edges sorted by destination. The answer depends on the graph, the arguments and the seed alone.

    Args:
        num_hops: how far the halo goes: nodes of other partitions from which in-edges lead to own nodes in so many steps.
        part_method: metis; streaming, nearly as good, faster and in a tenth of the memory; random.
        balance_ntypes: classes int or bool[n], each of which is evened out, such as a training mask; a dictionary by type for a
            graph of several types, whose types are classes in any case.
        balance_edges: also even out the in-edges, of each class where there are several.
        return_mapping: return (node map, edge map): the original id of each new id, int64; dictionaries by type where there are
            several.
        num_trainers_per_machine: divide the nodes of each partition further; `trainer_id` of nodes and edges says how.
        objtype: cut, or vol: METIS keeps small the number of nodes that partitions get from one another.
        graph_formats: in-edges ("csc") are what is written; only a list without them is refused.
        seed: another one gives another answer.
        scratch: a folder for edges in the making, where they may not fit into memory.

    Raises OptionError and UsageError for arguments that cannot be, KgdistError where METIS fails or the disk is full.
    """
    check_graph(g, "edges_of", "num_nodes", "num_edges")
    root, plan = _path("out_path", out_path), Plan(graph_name, part_method, objtype, seed, num_hops, num_trainers_per_machine)
    formats = [graph_formats] if isinstance(graph_formats, str) else graph_formats
    if part_method not in METHODS:
        raise OptionError("part_method", f"must be one of {', '.join(METHODS)}, not {part_method!r}")
    plan, num_parts = _checked(plan, num_parts, g.num_nodes())
    if not isinstance(balance_edges, bool | np.bool_):
        raise OptionError("balance_edges", f"must be true or false, not {balance_edges!r}")
    if use_graphbolt or (formats is not None and "csc" not in formats):
        option = "use_graphbolt" if use_graphbolt else "graph_formats"
        raise OptionError(option, "partitions are written in kgdist's own format, in-edges by destination (csc); leave it out")
    check_place(root, graph_name)
    classes = classes_of(g, balance_ntypes)
    data_of(g, plan.trainers)  # what cannot be kept is said now, and not when all is divided
    joined = Joined(g)
    fine = num_parts * plan.trainers
    assigned = np.zeros(joined.num_nodes, np.int32)
    if fine > 1:
        found = degrees(joined, joined.num_nodes, 1)
        even = Balance.of_classes(found, classes, fine, edges=balance_edges)
        assigned = divide(joined, found, even, fine, method=part_method, seed=plan.seed, volume=objtype == "vol")
        del found, even
    del joined
    config = write_partitions(g, assigned, num_parts, root, plan, classes=classes, scratch=scratch)
    return mapping(config) if return_mapping else None


def write_partitions(
    g: Typed,
    assigned: np.ndarray,
    parts: int,
    root: Path,
    plan: Plan,
    *,
    classes: np.ndarray | None = None,
    scratch: Path | None = None,
) -> Path:
    """Write the folders and <graph_name>.json of a graph whose nodes are assigned already, print their sizes, and return the
    path of the file. The arguments are those of `write_graph`; raises as that, and OptionError as `partition_graph`."""
    plan, parts = _checked(plan, parts, g.num_nodes())
    check_place(root, plan.name)
    common = write_graph(g, assigned, parts, root, plan, classes=classes, scratch=scratch)
    config = root / f"{plan.name}.json"
    write_json(config, description(common))
    tell(f"{plan.name}: {g.num_nodes():,} nodes and {g.num_edges():,} edges in {root}")
    tell(TypedSizes.from_json(common.sizes).table())
    return config


def _path(option: str, value: Any) -> Path:
    if not isinstance(value, str | Path | os.PathLike):
        raise OptionError(option, f"must be a path, not {value!r}")
    return Path(value)


def _checked(plan: Plan, parts: int, nodes: int) -> tuple[Plan, int]:
    """The plan and the number of parts with Python's integers for any. Raises OptionError for what cannot be."""
    if not isinstance(plan.name, str) or not _NAME.fullmatch(plan.name) or len(plan.name.encode()) > LONGEST_NAME:
        wanted = f"use at most {LONGEST_NAME} letters, digits, and . _ + -"
        raise OptionError("graph_name", f"{str(plan.name)[:60]!r} is to be the name of a file: {wanted}")
    parts = integer("num_parts", parts, 1)
    plan = plan._replace(
        seed=integer("seed", plan.seed, 0),
        hops=integer("num_hops", plan.hops, 0),
        trainers=integer("num_trainers_per_machine", plan.trainers, 1),
    )
    if parts * plan.trainers > min(MOST_PARTS, max(1, nodes)):
        most = f"{MOST_PARTS} is the most" if nodes > MOST_PARTS else "some would be empty"
        raise OptionError("num_parts", f"{parts * plan.trainers} parts of {nodes} nodes: {most}; take fewer")
    if plan.objective not in OBJECTIVES:
        raise OptionError("objtype", f"must be one of {', '.join(OBJECTIVES)}, not {plan.objective!r}")
    if plan.objective == "vol" and plan.method != "metis":
        raise OptionError("objtype", f"{plan.method} knows cut only; take part_method metis for vol")
    return plan, parts


def check_place(root: Path, name: str) -> None:
    """Raises OptionError where partitions of another graph, or what is not one of ours, would be replaced."""
    check_replaced(root, GraphInCommon, "out_path")
    for folder in numbered(root):
        if version_of(folder) == GraphInCommon.FORMAT:
            other = Manifest.read(folder, GraphInCommon).common.name
            if other != name:
                raise OptionError("out_path", f"{folder} is a partition of the graph {other!r}: name another folder for {name!r}")
    file = root / f"{name}.json"
    if file.exists():
        try:
            ours = "part-0" in read_json(file)
        except (CheckpointError, TypeError):
            ours = False
        if not ours:
            raise OptionError(
                "out_path", f"{file} exists already, and is not the description of partitions: remove it, or name another folder"
            )


def description(common: GraphInCommon) -> dict[str, Any]:
    """What <graph_name>.json says."""
    book = common.book
    etypes = {SEPARATOR.join(etype): starts for etype, starts in book.edges.items()}
    if len(etypes) != len(book.edges):
        raise UsageError(f"two edge types are written alike with {SEPARATOR} between their names: rename one of them")
    return {
        "format": GraphInCommon.FORMAT,
        "graph": common.graph,
        "graph_name": common.name,
        "num_parts": book.parts,
        "num_nodes": book.num_nodes(),
        "num_edges": book.num_edges(),
        "part_method": common.method,
        "objtype": common.objective,
        "halo_hops": common.hops,
        "num_trainers_per_machine": common.trainers,
        "ntypes": {ntype: number for number, ntype in enumerate(book.ntypes)},
        "etypes": {etype: number for number, etype in enumerate(etypes)},
        "node_map": {ntype: list(map(list, pairwise(starts.tolist()))) for ntype, starts in book.nodes.items()},
        "edge_map": {etype: list(map(list, pairwise(starts.tolist()))) for etype, starts in etypes.items()},
        "sizes": common.sizes,
        **{f"part-{part}": {"folder": folder_of("", part).name} for part in range(book.parts)},
    }


# ---- what was written


def open_partition(part_config: PathLike, part_id: int, *, verify: bool = False) -> LocalPartition:
    """The partition that <graph_name>.json calls part-<part_id>, mapped; with `verify` every byte is compared with its sha256.

    Raises CheckpointError for a file that is missing, damaged, or of another graph or partition; UsageError for no such number.
    """
    file, part_id = _path("part_config", part_config), integer("part_id", part_id)
    value = read_json(file)
    try:
        graph, parts = str(value["graph"]), int(value["num_parts"])
        names = [str(value[f"part-{part}"]["folder"]) for part in range(parts)]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{file}: does not describe partitions of kgdist ({type(error).__name__}: {error})") from error
    if not 0 <= part_id < parts:
        raise UsageError(f"{file}: there is no partition {part_id}: there are {parts}, counted from 0")
    found = LocalPartition.open(safe_join(file.parent, names[part_id]), verify=verify)
    check_belongs(found.folder, (found.graph, found.part), (graph, part_id), file)
    if description(found.manifest.common) != value:
        raise CheckpointError(f"{file}: says other things than {found.folder}; make or copy the partitions again")
    return found


def open_partitions(part_config: PathLike, *, verify: bool = False) -> list[LocalPartition]:
    """All of them, in order. Raises as `open_partition`."""
    first = open_partition(part_config, 0, verify=verify)
    return [first, *(open_partition(part_config, part, verify=verify) for part in range(1, first.parts))]


def load_partition(part_config: PathLike, part_id: int, load_feats: bool = True) -> Loaded:
    """A partition: its structure and data, mapped, and the book. Raises as `open_partition`."""
    found = open_partition(part_config, part_id)
    data = _by_key(found) if load_feats else ({}, {})
    return Loaded(found, *data, found.book, found.name, found.book.ntypes, found.book.canonical_etypes)


def load_partition_book(part_config: PathLike, part_id: int) -> LoadedBook:
    """Which partition owns what. Raises as `open_partition`."""
    found = open_partition(part_config, part_id)
    return LoadedBook(found.book, found.name, found.book.ntypes, found.book.canonical_etypes)


def load_partition_feats(
    part_config: PathLike, part_id: int, load_nodes: bool = True, load_edges: bool = True
) -> tuple[Data | None, Data | None]:
    """(node data, edge data) of a partition, mapped, by "ntype/name" and "source:name:destination/name"."""
    nodes, edges = _by_key(open_partition(part_config, part_id))
    return nodes if load_nodes else None, edges if load_edges else None


def _by_key(found: LocalPartition) -> tuple[Data, Data]:
    nodes = {f"{ntype}/{name}": rows for ntype, each in found.node_features.items() for name, rows in each.items()}
    edges = {
        f"{SEPARATOR.join(etype)}/{name}": rows for etype, each in found.edge_features.items() for name, rows in each.items()
    }
    return nodes, edges


def mapping(part_config: PathLike) -> Maps:
    """(node map, edge map), int64: the original id of each new id; dictionaries by type where there are several."""
    partitions = open_partitions(part_config)
    book = partitions[0].book
    nodes = {ntype: _joined([each.node_ids[ntype] for each in partitions]) for ntype in book.ntypes}
    edges = {etype: _joined([each.edge_ids[etype] for each in partitions]) for etype in book.canonical_etypes}
    if len(nodes) == len(edges) == 1:
        return next(iter(nodes.values())), next(iter(edges.values()))
    return nodes, edges


def _joined(pieces: Sequence[np.ndarray]) -> torch.Tensor:
    joined = np.empty(sum(map(len, pieces)), np.int64)
    np.concatenate(pieces, out=joined)
    return torch.from_numpy(joined)
