"""A graph that was partitioned and opened again, in one process and by the servers of several machines, is the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kgdist
from kgdist.base.errors import CheckpointError, UsageError
from kgdist.distributed import current
from kgdist.distributed.current import use
from kgdist.distributed.dist_graph import DistGraph
from kgdist.distributed.embedding import DistEmbedding
from kgdist.distributed.splits import node_split
from kgdist.distributed.standalone import Standalone
from kgdist.distributed.storage import Storage
from kgdist.distributed.tensor import DistTensor
from kgdist.graphs.in_memory import Graph, heterograph
from kgdist.graphs.structure import Draw, Question
from kgdist.partition.partition_graph import load_partition_book, open_partition, partition_graph
from tests.distributed.machines import machines

PLAIN, WIDE = ("a", "r", "a"), ("a", "s", "b")
NODES, EDGES = {"a": 40, "b": 9}, {PLAIN: 130, WIDE: 50}


def made() -> Graph:
    """Two types of nodes, with loops and repeated edges, and features of several dtypes."""
    rng = np.random.default_rng(0)
    ends = {etype: tuple(rng.integers(0, NODES[etype[end]], count) for end in (0, 2)) for etype, count in EDGES.items()}
    graph = heterograph(ends, NODES)
    for ntype, count in NODES.items():
        graph.nodes[ntype].data["x"] = torch.arange(count * 3).reshape(count, 3).to(torch.bfloat16)
        graph.nodes[ntype].data["mask"] = torch.from_numpy(rng.random(count) < 0.5)
    for etype, count in EDGES.items():
        graph.edges[etype].data["w"] = torch.from_numpy(rng.random(count).astype(np.float32))
    return graph


@contextlib.contextmanager
def opened(parts: int, servers: bool, config: Path) -> Iterator[Storage]:
    with contextlib.ExitStack() as stack:
        storage: Any = stack.enter_context(machines([2, *[1] * (parts - 1)])) if servers else Standalone()
        use(storage)
        stack.callback(use, Standalone())
        yield storage


@pytest.mark.parametrize(("parts", "servers"), [(1, False), (2, False), (5, False), (2, True), (3, True)])
def test_a_graph_that_was_partitioned_is_the_graph(parts: int, servers: bool, tmp_path: Path) -> None:
    whole = made()
    nmap, emap = partition_graph(whole, "g", parts, tmp_path, part_method="random", return_mapping=True)
    with opened(parts, servers, tmp_path):
        graph = DistGraph("g", part_config=tmp_path / "g.json")
        assert {each: graph.num_nodes(each) for each in NODES} == NODES and {e: graph.num_edges(e) for e in EDGES} == EDGES
        assert graph.get_partition_book().num_partitions() == parts
        for ntype in NODES:
            assert torch.equal(graph.nodes[ntype].data["x"][:], whole.nodes[ntype].data["x"][nmap[ntype].long()])
            assert torch.equal(graph.nodes[ntype].data["mask"][:], whole.nodes[ntype].data["mask"][nmap[ntype].long()])
        new = {}
        for ntype, count in NODES.items():
            assert torch.equal(graph.original_nodes(ntype=ntype), nmap[ntype].long())
            some = torch.tensor([count - 1, 0, 3, 3, -1])
            assert torch.equal(graph.original_nodes(some, ntype), nmap[ntype].long()[some])
            assert len(graph.original_nodes([], ntype)) == 0
            with pytest.raises(UsageError, match=f"row {count} is not there"):
                graph.original_nodes([count], ntype)
        for etype, count in EDGES.items():
            assert torch.equal(graph.original_edges(etype=etype), emap[etype].long())
            some = torch.randperm(count)[:7]
            assert torch.equal(graph.original_edges(some, etype), emap[etype].long()[some])
            sources, destinations = graph.find_edges(torch.arange(count), etype)
            new[etype] = sources.numpy(), destinations.numpy()
            originals = nmap[etype[0]][sources], nmap[etype[2]][destinations]
            for found, expected in zip(originals, whole.edges_of(etype), strict=True):
                assert found.tolist() == np.asarray(expected)[emap[etype].long().numpy()].tolist()
            assert torch.equal(graph.edges[etype].data["w"][:], whole.edges[etype].data["w"][emap[etype].long()])
            u, v, ids = graph.edges(form="all", etype=etype)
            assert (u.tolist(), v.tolist(), ids.tolist()) == (sources.tolist(), destinations.tolist(), list(range(count)))
            sorted_ids = np.lexsort((destinations.numpy(), sources.numpy())).tolist()
            assert graph.edges("eid", "srcdst", etype).tolist() == sorted_ids
            assert torch.equal(kgdist.distributed.find_edges(graph, [1, 0], etype)[0], sources[[1, 0]])
        renumbered = heterograph(new, NODES)
        for etype in EDGES:
            renumbered.edges[etype].data["w"] = graph.edges[etype].data["w"][:]
        for out in (False, True):
            questions = [
                Question(etype, np.arange(NODES[etype[0 if out else 2]]), fanout, prob=prob, out=out)
                for etype in EDGES
                for fanout, prob in ((-1, None), (2, None), (2, "w"))
            ]
            answers = zip(
                graph.neighbours(questions, Draw(3, 1, 0)), renumbered.neighbours(questions, Draw(3, 1, 0)), strict=True
            )
            for ours, theirs in answers:
                assert all(np.array_equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
        for etype in EDGES:
            assert graph.in_degrees(etype=etype).tolist() == renumbered.in_degrees(etype=etype).tolist()  # type: ignore[union-attr]
            assert graph.out_degrees(etype=etype).tolist() == renumbered.out_degrees(etype=etype).tolist()  # type: ignore[union-attr]
        mask = graph.nodes["a"].data["mask"]
        assert node_split(mask).tolist() == torch.nonzero(mask[:]).flatten().tolist()


def test_what_was_saved_is_read_on_other_partitions(tmp_path: Path) -> None:
    whole, rows = made(), torch.randn(NODES["a"], 4)
    maps = {
        parts: partition_graph(whole, "g", parts, tmp_path / str(parts), return_mapping=True)[0]["a"].long()
        for parts in (1, 3, 4)
    }
    for parts, servers in ((3, False), (1, False), (4, False), (3, True)):
        with opened(parts, servers, tmp_path):
            graph = DistGraph("g", part_config=tmp_path / str(parts) / "g.json")
            policy = graph.get_node_partition_policy("a")
            embedding = DistEmbedding(NODES["a"], 4, part_policy=policy)
            if (tmp_path / "rows").exists():
                embedding.load(tmp_path / "rows")
                assert torch.equal(embedding.weight[:], rows[maps[parts]])
            embedding.weight[:] = rows[maps[parts]]
            embedding.save(tmp_path / "rows")


def test_a_partition_says_what_it_has(tmp_path: Path) -> None:
    partition_graph(made(), "g", 3, tmp_path)
    found = [open_partition(tmp_path / "g.json", part) for part in range(3)]
    for each in found:
        assert each.num_nodes() == sum(each.num_nodes(ntype) for ntype in NODES)
        assert each.number_of_nodes("b") == len(each.node_ids["b"]) and each.number_of_edges("r") == len(each.edge_ids[PLAIN])
    assert sum(each.num_nodes("a") for each in found) == NODES["a"] and sum(each.num_edges() for each in found) == 180
    own = f"{found[1].num_nodes()} nodes, {found[1].num_edges()} edges"
    assert repr(found[1]) == f"LocalPartition('g', partition 1 of 3: {own}; {str(tmp_path / 'partition_1')!r})"


@pytest.mark.parametrize(("parts", "servers"), [(2, False), (2, True)])
def test_names_of_types_may_have_colons(parts: int, servers: bool, tmp_path: Path) -> None:
    whole = heterograph({("a:x", "r:s", "b"): (np.arange(8), np.arange(8) % 5)}, {"a:x": 8, "b": 5})
    whole.edges["r:s"].data["w"] = torch.arange(8)
    _, emap = partition_graph(whole, "g", parts, tmp_path, return_mapping=True)
    with opened(parts, servers, tmp_path):
        graph = DistGraph("g", part_config=tmp_path / "g.json")
        assert torch.equal(
            graph.edges["r:s"].data["w"][:], emap.long() if isinstance(emap, torch.Tensor) else emap["a:x", "r:s", "b"]
        )
        embedding = DistEmbedding(8, 2, part_policy=graph.get_edge_partition_policy("r:s"))
        rows = torch.randn(8, 2)
        embedding.weight[:] = rows
        embedding.save(tmp_path / "rows")
        embedding.weight[:] = 0
        embedding.load(tmp_path / "rows")
        assert torch.equal(embedding.weight[:], rows)


def test_what_is_written_stays_when_a_graph_is_opened_again(tmp_path: Path) -> None:
    partition_graph(made(), "g", 2, tmp_path)
    use(Standalone())
    DistGraph("g", part_config=tmp_path / "g.json").nodes["b"].data["x"][0] = -1
    assert DistGraph("g", part_config=tmp_path / "g.json").nodes["b"].data["x"][0].tolist() == [[-1, -1, -1]]
    use(Standalone())
    assert DistGraph("g", part_config=tmp_path / "g.json").nodes["b"].data["x"][0].tolist() != [[-1, -1, -1]]
    use(Standalone())


def test_graphs_that_are_not_there_are_refused(tmp_path: Path) -> None:
    partition_graph(made(), "g", 2, tmp_path)
    use(Standalone())
    with pytest.raises(UsageError, match="give part_config="):
        DistGraph("g")
    with pytest.raises(UsageError, match="has the partitions of graph 'g', not of 'h'"):
        DistGraph("h", part_config=tmp_path / "g.json")
    with pytest.raises(CheckpointError, match="nothing.json: no such file"):
        DistGraph("g", part_config=tmp_path / "nothing.json")
    (tmp_path / "partition_1").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="partition_1: no such folder"):
        DistGraph("g", part_config=tmp_path / "g.json")


def test_a_book_that_is_given_must_be_that_of_the_partitions(tmp_path: Path) -> None:
    for parts in (2, 3):
        partition_graph(made(), "g", parts, tmp_path / str(parts))
    config = tmp_path / "2" / "g.json"
    use(Standalone())
    book = load_partition_book(config, 1)[0]
    assert DistGraph("g", book, config).get_partition_book() == book
    with pytest.raises(UsageError, match="gpb is a book of other partitions"):
        DistGraph("g", load_partition_book(tmp_path / "3" / "g.json", 0)[0], config)
    with pytest.raises(UsageError, match="name the file, part_config="):
        DistGraph("g", str(config))  # type: ignore[arg-type]
    use(Standalone())


def test_a_launched_script_must_initialize_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "_current", [])
    monkeypatch.setenv("KGDIST_ROLE", "trainer")
    with pytest.raises(UsageError, match="initialize\\(\\) first"):
        DistGraph("g")
    with pytest.raises(UsageError, match="initialize\\(\\) first"):
        DistTensor((3,), torch.float32)


def test_a_graph_that_was_divided_again_takes_the_place_of_the_one_before_which_stays_what_it_was(tmp_path: Path) -> None:
    whole = made()
    maps = {parts: partition_graph(whole, "g", parts, tmp_path / str(parts), return_mapping=True)[0] for parts in (2, 3)}
    use(Standalone())
    graphs = {parts: DistGraph("g", part_config=tmp_path / str(parts) / "g.json") for parts in maps}
    tensor = DistTensor((NODES["a"], 2), torch.float32)
    assert tensor.part_policy == graphs[3].get_node_partition_policy("a")
    graphs[2].nodes["a"].data["x"][0] = torch.ones(3, dtype=torch.bfloat16)
    assert graphs[2].nodes["a"].data["x"][0].tolist() == [[1.0, 1.0, 1.0]]
    for parts, graph in graphs.items():
        expected = whole.in_degrees(etype=WIDE)[maps[parts]["b"].long()]
        assert torch.equal(graph.in_degrees(etype=WIDE), expected)
        rows = slice(1 if parts == 2 else 0, None)
        assert torch.equal(graph.nodes["a"].data["x"][:][rows], whole.nodes["a"].data["x"][maps[parts]["a"].long()][rows])
    again = DistGraph("g", part_config=tmp_path / "2" / "g.json")
    assert torch.equal(again.nodes["a"].data["x"][:], graphs[2].nodes["a"].data["x"][:])
    assert DistTensor((NODES["a"], 2), torch.float32).part_policy == again.get_node_partition_policy("a")
    assert "'g'" in str(again.get_node_partition_policy("a"))
    use(Standalone())
