"""A graph whose partitions lie on several machines, or all in this process: what a trainer can ask of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.base.files import PathLike
from kgdist.distributed.current import storage
from kgdist.distributed.long_questions import Wanted, ask_about, ask_neighbours, too_many
from kgdist.distributed.policy import PartitionPolicy
from kgdist.distributed.rows import row_ids
from kgdist.distributed.storage import OpenedGraph, Spec
from kgdist.distributed.tensor import DistTensor
from kgdist.graphs.frames import EdgeView, Frame, Frames, NodeView, looked_at
from kgdist.graphs.ids import as_array
from kgdist.graphs.in_memory import Graph
from kgdist.graphs.schema import Schema
from kgdist.graphs.structure import EID, Answer, Draw, EType, InEdges, Question, check_ids
from kgdist.partition.typed_book import PartitionBook
from kgdist.sampling.neighbours import in_subgraph, sample_neighbors


class Scheme(NamedTuple):
    """What the numbers of a node or edge are."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class DistFrame(Frame):
    """The tensors of one node type or edge type, by name. What is put here need not bear that name itself."""

    def __init__(self, policy: PartitionPolicy, features: Mapping[str, Spec]) -> None:
        super().__init__(policy.get_size(), str(policy))
        self._policy = policy
        self._columns.update({name: DistTensor.of(spec) for name, spec in features.items()})  # type: ignore[misc]

    def __setitem__(self, name: str, values: Any) -> None:
        if not isinstance(values, DistTensor):
            kind = type(values).__name__
            raise UsageError(f"{name!r} of the {self.what}: put a DistTensor there, and write the rows of a {kind} into it")
        if values.part_policy != self._policy:
            raise UsageError(f"{name!r} of the {self.what}: {values!r} has other rows")
        self._columns[name] = values  # type: ignore[assignment]


class DistGraph:
    """A partitioned graph, by its name; nodes and edges have the ids that partitioning gave them, each type from 0 on.

    A process that was not started by kgdist-launch reads all partitions itself, from the JSON file `part_config`. In a launched
    script the launcher has named that file, and all trainers open the graph together. Several graphs can be open.

    `ndata` and `edata` hold DistTensors: the features that were partitioned with the graph, and what is assigned. Of a graph of
    several types they give, by name, a dict of types; `nodes[type].data` and `edges[type].data` are those of one type.

    `gpb` is a partition book that the caller has of it, and takes for granted: one of other partitions is refused.

    Raises UsageError where there is no such graph, DataError for partitions that are missing or of different graphs.
    """

    def __init__(self, graph_name: str, gpb: PartitionBook | None = None, part_config: PathLike | None = None) -> None:
        if not (gpb is None or isinstance(gpb, PartitionBook)):
            raise UsageError(f"DistGraph({graph_name!r}, {gpb!r}): second is a partition book; name the file, part_config=...")
        opened = storage().open_graph(graph_name, part_config)
        if gpb not in (None, opened.book):
            raise UsageError(f"DistGraph({graph_name!r}): gpb is a book of other partitions; leave it out, the graph has its own")
        self.graph_name = graph_name
        self._opened: OpenedGraph = opened
        self.schema = Schema(list(opened.nodes), opened.edges)
        self._on_nodes = {each: DistFrame(policy, opened.node_features.get(each, {})) for each, policy in opened.nodes.items()}
        self._on_edges = {each: DistFrame(policy, opened.edge_features.get(each, {})) for each, policy in opened.edges.items()}

    def __repr__(self) -> str:
        edges = {each: policy.get_size() for each, policy in self._opened.edges.items()}
        return f"DistGraph({self.graph_name!r}, nodes={self._sizes()}, edges={edges})"

    @property
    def ntypes(self) -> list[str]:
        """Node types."""
        return self.schema.ntypes

    @property
    def canonical_etypes(self) -> list[EType]:
        """Edge types."""
        return self.schema.etypes

    @property
    def etypes(self) -> list[str]:
        """The middle names of the edge types."""
        return [relation for _, relation, _ in self.schema.etypes]

    def to_canonical_etype(self, etype: Any) -> EType:
        """An edge type by its middle name. Raises UsageError where there is none, or more than one."""
        return self.schema.etype(etype)

    def get_ntype_id(self, ntype: str | None) -> int:
        """Its place in `ntypes`."""
        return self.ntypes.index(self.schema.ntype(ntype))

    def get_etype_id(self, etype: Any) -> int:
        """Its place in `canonical_etypes`."""
        return self.schema.numbers[self.schema.etype(etype)]

    def num_nodes(self, ntype: str | None = None) -> int:
        """Of one type, or altogether."""
        return sum(self._opened.nodes[each].get_size() for each in (self.ntypes if ntype is None else [self.schema.ntype(ntype)]))

    def num_edges(self, etype: Any = None) -> int:
        """Of one type, or altogether."""
        chosen = self.canonical_etypes if etype is None else [self.schema.etype(etype)]
        return sum(self._opened.edges[each].get_size() for each in chosen)

    number_of_nodes, number_of_edges = num_nodes, num_edges

    @property
    def nodes(self) -> NodeView:
        """`nodes[type].data`, and `nodes(type)`: all ids of a type."""
        return NodeView(self._on_nodes, self.schema.ntype)

    @property
    def edges(self) -> EdgeView:
        """`edges[type].data`, and `edges(form, order, etype)`: all edges of a type, asked of their owners: see `EdgeView`."""
        return EdgeView(self._on_edges, self.schema.etype, lambda etype: self.find_edges(slice(None), etype))

    @property
    def ndata(self) -> Frame | Frames[str]:
        """DistTensors of nodes by name; of several types, a dict of types by name."""
        return looked_at(self._on_nodes, self.schema.ntype)

    @property
    def edata(self) -> Frame | Frames[EType]:
        """The same of edges."""
        return looked_at(self._on_edges, self.schema.etype)

    def node_attr_schemes(self, ntype: str | None = None) -> dict[str, Scheme]:
        """Shape of a row and dtype of what the nodes of a type have."""
        return _schemes(self._on_nodes[self.schema.ntype(ntype)])

    def edge_attr_schemes(self, etype: str | EType | None = None) -> dict[str, Scheme]:
        """The same of edges."""
        return _schemes(self._on_edges[self.to_canonical_etype(etype)])

    @property
    def device(self) -> torch.device:
        """Where ids and rows come to: the CPU."""
        return torch.device("cpu")

    @property
    def idtype(self) -> torch.dtype:
        """Of ids."""
        return torch.int64

    def rank(self) -> int:
        """This trainer's number."""
        return storage().placement.rank

    def barrier(self) -> None:
        """Wait until all trainers are here."""
        storage().barrier()

    def get_partition_book(self) -> Any:
        """Which partition owns what."""
        return self._opened.book

    def get_node_partition_policy(self, ntype: str | None = None) -> PartitionPolicy:
        """Whose rows tensors of these nodes have."""
        return self._opened.nodes[self.schema.ntype(ntype)]

    def get_edge_partition_policy(self, etype: str | EType | None = None) -> PartitionPolicy:
        """Whose rows tensors of these edges have."""
        return self._opened.edges[self.to_canonical_etype(etype)]

    def find_edges(self, edges: Any, etype: str | EType | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """int64[n], int64[n]: sources and destinations of edges, in their order."""
        canonical = self.to_canonical_etype(etype)
        return self._asked("find_edges", canonical, self._opened.edges[canonical], edges, 2)  # type: ignore[return-value]

    def original_nodes(self, nodes: Any = None, ntype: str | None = None) -> torch.Tensor:
        """int64[n]: the ids that nodes of a type had before the graph was partitioned, by default of all. Those of a knowledge
        graph are the ids of its entities."""
        return self._originals(self._opened.nodes[self.schema.ntype(ntype)], nodes)

    def original_edges(self, edges: Any = None, etype: str | EType | None = None) -> torch.Tensor:
        """The same of edges; those of a knowledge graph are the rows of its training triples."""
        return self._originals(self._opened.edges[self.to_canonical_etype(etype)], edges)

    def in_degrees(self, v: Any = None, etype: str | EType | None = None) -> torch.Tensor | int:
        """int64[n]: edges of a type that end in each of some nodes, by default of all; of one node its number."""
        canonical = self.to_canonical_etype(etype)
        (degrees,) = self._asked("in_degrees", canonical, self._opened.nodes[canonical[2]], slice(None) if v is None else v, 1)
        return int(degrees) if _is_one(v) else degrees

    def out_degrees(self, u: Any = None, etype: str | EType | None = None) -> torch.Tensor | int:
        """int64[n]: edges of a type that begin in each of some nodes, by default of all. Edges live with their destinations, so
        all owners are asked."""
        canonical = self.to_canonical_etype(etype)
        nodes = _ids(slice(None) if u is None else u, self._opened.nodes[canonical[0]])
        arguments = {"graph": self._opened.key, "etype": self.get_etype_id(canonical)}
        policy = self._opened.edges[canonical]
        answers = [ask_about(policy, part, "out_degrees", arguments, nodes) for part in self._last_own(range(policy.parts))]
        degrees = torch.from_numpy(np.sum([answer()[0] for answer in answers], axis=0, dtype=np.int64))
        return int(degrees) if _is_one(u) else degrees

    def neighbours(self, questions: Sequence[Question], draw: Draw) -> list[Answer]:
        """See kgdist.graphs.structure.Neighbours. Own nodes are drawn here, others by their owners, meanwhile, and each owner is
        asked for all at once; out-edges, of which every owner has some, are all drawn here, and so are in-edges where more are
        to be left out than an owner can be told."""
        answers: dict[int, Answer] = {}
        told, asked = [], []
        for number, question in enumerate(questions):
            etype = self.to_canonical_etype(question.etype)
            if question.out or too_many(self._opened.edges[etype], question.exclude):
                answers[number] = self._drawn_here(question, draw)
                continue
            asked.append(number)
            row = {"etype": self.get_etype_id(etype), "table": self._table(etype, question.prob)}
            told.append(row | {"fanout": question.fanout, "replace": question.replace})
        nodes = [_asking(questions[number].nodes, self._opened.nodes[questions[number].etype[2]]) for number in asked]
        owners = [self._opened.nodes[questions[number].etype[2]].owners(each) for number, each in zip(asked, nodes, strict=True)]
        waits = {}
        for part in self._last_own(sorted({int(part) for each in owners for part in np.unique(each)})):
            places = [np.flatnonzero(each == part) for each in owners]
            arguments = {"graph": self._opened.key, "draw": [int(each) for each in draw]}
            wanted = [
                Wanted(row, each[where], self._own_among(questions[number], part))
                for number, row, each, where in zip(asked, told, nodes, places, strict=True)
            ]
            waits[part] = places, ask_neighbours(part, arguments, wanted)
        found: list[list[tuple[np.ndarray, Answer]]] = [[] for _ in asked]
        for places, answer in waits.values():
            for given, where, own in zip(found, places, answer(), strict=True):
                given.append((where, own))
        for number, each, parts in zip(asked, nodes, found, strict=True):
            answers[number] = together(len(each), parts)
        return [answers[number] for number in range(len(questions))]

    def _own_among(self, question: Question, part: int) -> np.ndarray:
        """Those of the edges to leave out that a partition owns."""
        if question.exclude is None:
            return np.empty(0, np.int64)
        own: np.ndarray = question.exclude[self._opened.edges[question.etype].owners(question.exclude) == part]
        return own

    def _table(self, etype: EType, name: str | None) -> str | None:
        """Which table has the weights that a question names."""
        if name is None:
            return None
        frame = self._on_edges[etype]
        if name not in frame:
            there = ", ".join(frame) or "none"
            raise UsageError(f"edges of type {':'.join(etype)} have no data {name!r}: they have {there}")
        return str(frame[name].name)  # type: ignore[attr-defined]

    def _drawn_here(self, question: Question, draw: Draw) -> Answer:
        """What some nodes draw, of all their edges that their owners tell. Costs 8 bytes for each id between the lowest and the
        highest of the nodes."""
        etype = self.to_canonical_etype(question.etype)
        nodes = _asking(question.nodes, self._opened.nodes[etype[0 if question.out else 2]])
        if not len(nodes):
            return Answer(nodes, nodes, nodes)
        different = np.unique(nodes)
        (counts, ends, edges), weights = (self._all_out if question.out else self._all_in)(etype, different, question.prob)
        low = int(different[0])
        starts = np.zeros(int(different[-1]) - low + 2, np.int64)
        starts[different - low + 1] = counts
        candidates = InEdges(np.cumsum(starts), ends, None, 0, low)
        gone = None if question.exclude is None else np.flatnonzero(np.isin(edges, question.exclude))
        asked = question._replace(nodes=nodes, exclude=gone)
        drawn = candidates.neighbours(asked, draw, self.get_etype_id(etype), weights)
        return Answer(drawn.counts, drawn.ends, edges[drawn.edges])

    def _all_out(self, etype: EType, nodes: np.ndarray, prob: str | None) -> tuple[Answer, np.ndarray | None]:
        """All edges of a type that begin in int64[n] different nodes, those of a node by their ids; and their weights."""
        arguments = {"graph": self._opened.key, "etype": self.get_etype_id(etype), "table": self._table(etype, prob)}
        policy = self._opened.edges[etype]
        waits = [ask_about(policy, part, "out_edges", arguments, nodes) for part in self._last_own(range(policy.parts))]
        given = [answer() for answer in waits]
        owner = np.concatenate([np.repeat(np.arange(len(nodes)), counts) for counts, *_ in given])
        ends, edges, *weights = (np.concatenate(arrays) for arrays in list(zip(*given, strict=True))[1:])
        order = np.lexsort((edges, owner))
        answer = Answer(np.bincount(owner, minlength=len(nodes)), ends[order], edges[order])
        return answer, weights[0][order] if weights else None

    def _all_in(self, etype: EType, nodes: np.ndarray, prob: str | None) -> tuple[Answer, np.ndarray | None]:
        """The same of edges that end there."""
        table = self._table(etype, prob)
        (answer,) = self.neighbours([Question(etype, nodes, -1)], Draw(0))
        return answer, None if table is None else as_array(storage().read(table, answer.edges))

    def in_subgraph(self, nodes: Any) -> Graph:
        """All edges into `nodes` (a dict of them by type where there are several); `edata["_ID"]` are their ids."""
        return in_subgraph(self, nodes)

    def sample_neighbors(self, nodes: Any, fanout: Any, **more: Any) -> Graph:
        """See kgdist.sampling.neighbours."""
        return sample_neighbors(self, nodes, fanout, **more)

    def edge_subgraph(self, edges: Any, relabel_nodes: bool = True) -> Graph:
        """The graph of some edges (ids, or a dict of them by type), as Graph.edge_subgraph makes it, without features."""
        chosen = edges if isinstance(edges, Mapping) else {None: edges}
        ids = {self.schema.etype(each): _ids(some, self.get_edge_partition_policy(each)) for each, some in chosen.items()}
        ids = {each: ids.get(each, np.empty(0, np.int64)) for each in self.canonical_etypes}
        ends = {each: tuple(end.numpy() for end in self.find_edges(some, each)) for each, some in ids.items()}
        whole = Graph(ends, self._sizes())  # type: ignore[arg-type]
        made = whole.edge_subgraph({each: np.arange(len(some)) for each, some in ids.items()}, relabel_nodes)
        for each, some in ids.items():
            made.edges[each].data[EID] = torch.from_numpy(some)
        return made

    def _sizes(self) -> dict[str, int]:
        return {each: policy.get_size() for each, policy in self._opened.nodes.items()}

    def _originals(self, policy: PartitionPolicy, ids: Any) -> torch.Tensor:
        told = {"kind": policy.kind, "type": policy.type_name}
        return self._put("originals", told, policy, slice(None) if ids is None else ids, 1, local=True)[0]

    def _asked(self, what: str, etype: EType, policy: PartitionPolicy, ids: Any, arrays: int) -> tuple[torch.Tensor, ...]:
        """Ask the owner of each id about edges of a type."""
        return self._put(what, {"etype": self.get_etype_id(etype)}, policy, ids, arrays)

    def _put(
        self, what: str, told: Mapping[str, Any], policy: PartitionPolicy, ids: Any, arrays: int, *, local: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Ask the owner of each id, and put the answers, one number an id in each array, into the order of the ids. `local`: they
        are told as places among the owner's."""
        wanted = _ids(ids, policy)
        owners = policy.owners(wanted)
        arguments = {"graph": self._opened.key, **told}
        places = {part: np.flatnonzero(owners == part) for part in self._last_own(np.unique(owners).tolist())}
        first = {part: policy.range(part)[0] if local else 0 for part in places}
        answers = {part: ask_about(policy, part, what, arguments, wanted[where] - first[part]) for part, where in places.items()}
        found = [np.empty(len(wanted), np.int64) for _ in range(arrays)]
        for part, answer in answers.items():
            for array, given in zip(found, answer(), strict=True):
                array[places[part]] = given
        return tuple(torch.from_numpy(array) for array in found)

    def _last_own(self, parts: Sequence[int]) -> list[int]:
        """What this machine owns is answered while others are on their way to answer."""
        own = next(iter(self._opened.nodes.values())).part
        return sorted(parts, key=lambda part: part == own)


def find_edges(g: DistGraph, edge_ids: Any, etype: str | EType | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """See DistGraph.find_edges."""
    return g.find_edges(edge_ids, etype)


def _ids(ids: Any, policy: PartitionPolicy) -> np.ndarray:
    return np.asarray(row_ids(ids, policy.get_size(), str(policy)), np.int64)


def _asking(nodes: np.ndarray, policy: PartitionPolicy) -> np.ndarray:
    """The nodes of a question: they become those of a block, so that none is counted from the end."""
    ids = np.ascontiguousarray(nodes, np.int64)
    check_ids("node", ids, policy.get_size(), kind=f" among the {policy}")
    return ids


def _is_one(ids: Any) -> bool:
    return not (ids is None or isinstance(ids, slice)) and np.ndim(ids) == 0


def _schemes(data: Mapping[str, Any]) -> dict[str, Scheme]:
    return {name: Scheme(tuple(tensor.shape[1:]), tensor.dtype) for name, tensor in data.items()}


def together(count: int, parts: Sequence[tuple[np.ndarray, Answer]]) -> Answer:
    """One answer of those that owners gave for the nodes at these places of `count`."""
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    counts = np.zeros(count, np.int64)
    for places, answer in parts:
        counts[places] = answer.counts
    starts = np.cumsum(counts) - counts
    ends, edges = np.empty(counts.sum(), np.int64), np.empty(counts.sum(), np.int64)
    for places, answer in parts:
        first = np.cumsum(answer.counts) - answer.counts
        where = np.repeat(starts[places] - first, answer.counts) + np.arange(len(answer.ends))
        ends[where], edges[where] = answer.ends, answer.edges
    return Answer(counts, ends, edges)
