"""Graphs of other packages: there and back they are the same, and what is no graph is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import kgdist
from kgdist.base.errors import UsageError
from kgdist.graphs.convert import from_networkx, from_pyg, from_scipy, to_networkx, to_pyg, to_scipy
from kgdist.graphs.in_memory import Graph
from kgdist.partition.partition_graph import partition_graph
from kgdist.partition.typed_verify import verify_partitions
from kgdist.sampling import MultiLayerNeighborSampler, NodeDataLoader, sample_neighbors, to_block
from tests.graphs.worlds import LIKES, random_graph, typed_graph


def ends(g: Graph, etype: object = None) -> list[list[int]]:
    return [side.tolist() for side in g.edges_of(etype)]


def test_scipy() -> None:
    pytest.importorskip("scipy")
    import scipy.sparse

    g = random_graph()
    matrix = to_scipy(g)
    assert matrix.toarray().sum() == 500
    assert matrix.toarray()[5, 7] >= 20  # repeated edges are counted
    assert ends(from_scipy(matrix)) == ends(g)
    assert to_scipy(typed_graph(), "likes").shape == (30, 12)
    weighted = from_scipy(scipy.sparse.csr_matrix(np.array([[0, 2.5], [0, 0]])), eweight_name="w")
    assert (weighted.num_nodes(), ends(weighted), weighted.edata["w"].tolist()) == (2, [[0], [1]], [2.5])
    with pytest.raises(UsageError, match=r"not the shape \(2, 3\)"):
        from_scipy(scipy.sparse.csr_matrix((2, 3)))


def test_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    g = random_graph()
    g.ndata["x"], g.edata["w"] = torch.arange(60) * 0.5, torch.arange(500)
    back = from_networkx(to_networkx(g), ["x"], ["w"])
    assert back.num_nodes() == 60
    assert sorted(zip(*ends(back), back.edata["w"].tolist(), strict=True)) == sorted(zip(*ends(g), range(500), strict=True))
    assert back.ndata["x"].tolist() == g.ndata["x"].tolist()
    path = networkx.Graph([("a", "b"), ("b", "c")])
    assert sorted(zip(*ends(from_networkx(path)), strict=True)) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    path.nodes["a"]["x"] = 1
    with pytest.raises(UsageError, match="attribute 'x': number 1 of 3 lacks it"):
        from_networkx(path, ["x"])


def test_pyg() -> None:
    pytest.importorskip("torch_geometric")
    g = random_graph()
    g.ndata["x"], g.ndata["train_mask"], g.edata["edge_attr"] = torch.rand(60, 3), torch.arange(60) < 9, torch.rand(500, 2)
    back = from_pyg(to_pyg(g))
    assert (back.num_nodes(), ends(back)) == (60, ends(g))
    assert set(back.ndata) == {"x", "train_mask"}
    assert torch.equal(back.ndata["x"], g.ndata["x"])
    assert torch.equal(back.edata["edge_attr"], g.edata["edge_attr"])
    typed = typed_graph()
    typed.ndata["x"] = {"person": torch.rand(30, 2), "thing": torch.rand(12, 5)}
    typed.edata["w"] = {"likes": torch.rand(200)}
    back = from_pyg(to_pyg(typed))
    assert (back.ntypes, back.canonical_etypes) == (typed.ntypes, typed.canonical_etypes)
    assert all(back.num_nodes(ntype) == typed.num_nodes(ntype) for ntype in typed.ntypes)
    assert all(ends(back, etype) == ends(typed, etype) for etype in typed.canonical_etypes)
    assert torch.equal(back.nodes["thing"].data["x"], typed.nodes["thing"].data["x"])
    assert torch.equal(back.edges[LIKES].data["w"], typed.edges[LIKES].data["w"])


def test_a_graph_of_another_package_is_told_how_it_becomes_one(tmp_path: Path) -> None:
    networkx, scipy, pyg = (pytest.importorskip(name) for name in ("networkx", "scipy.sparse", "torch_geometric.data"))
    for other, maker in (
        (networkx.path_graph(3), "from_networkx"),
        (scipy.eye(3), "from_scipy"),
        (pyg.Data(edge_index=torch.tensor([[0], [1]])), "from_pyg"),
        (pyg.HeteroData(), "from_pyg"),
    ):
        for ask in (
            lambda g: sample_neighbors(g, [1], 2),
            lambda g: NodeDataLoader(g, [1], MultiLayerNeighborSampler([2])),
            lambda g: partition_graph(g, "g", 2, tmp_path),
            lambda g: verify_partitions(tmp_path, g),
            to_block,
        ):
            with pytest.raises(UsageError, match=rf"^a graph is needed, not a .*: make one by kgdist.{maker}\(g\)$"):
                ask(other)
        assert hasattr(kgdist, maker)
