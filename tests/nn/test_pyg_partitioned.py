"""PyG's loaders over a partitioned graph, opened in one process: batches are parts of the graph that was divided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.loader import LinkLoader, NodeLoader

import kgdist
import kgdist.nn as kgnn
from kgdist.base.errors import UsageError
from kgdist.distributed import current
from kgdist.distributed.standalone import Standalone
from kgdist.graphs.planted import planted_partition


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    current.use(Standalone())
    yield
    current.use(Standalone())


@pytest.mark.parametrize("parts", [1, 3])
def test_all_neighbours_make_what_the_whole_graph_makes(parts: int, tmp_path: Path) -> None:
    whole = planted_partition(num_nodes=90, num_edges=400, num_features=5)
    whole.edata["who"] = torch.arange(400)
    nmap, emap = kgdist.distributed.partition_graph(whole, "g", parts, tmp_path, part_method="random", return_mapping=True)
    g = kgdist.distributed.DistGraph("g", part_config=tmp_path / "g.json")
    model = pyg.GraphSAGE(5, 8, 2, 3).eval()
    expected = model(whole.ndata["feat"], torch.stack(whole.edges()))
    loader = NodeLoader(
        kgnn.pyg_stores(g),
        kgnn.PyGNeighborSampler(g, [-1, -1]),
        input_nodes=torch.arange(90),
        batch_size=40,
        transform=kgnn.with_edge_data(g, "who"),
    )
    for batch in loader:
        assert torch.equal(batch.who, emap[batch.e_id])
        original = nmap[batch.n_id]
        assert torch.equal(batch.feat, whole.ndata["feat"][original]) and torch.equal(
            batch.labels, whole.ndata["labels"][original]
        )
        ends = torch.stack(whole.find_edges(batch.who))
        assert torch.equal(original[batch.edge_index], ends)
        made = model(batch.feat, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(made, expected[original[: batch.batch_size]], rtol=1e-4, atol=1e-5)


def test_several_types_and_pairs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = kgdist.heterograph(
        {
            ("author", "writes", "paper"): (torch.randint(20, (60,)), torch.randint(30, (60,))),
            ("paper", "cites", "paper"): (torch.randint(30, (80,)), torch.randint(30, (80,))),
        },
        {"author": 20, "paper": 30},
    )
    whole.nodes["paper"].data["x"] = torch.randn(30, 3)
    kgdist.distributed.partition_graph(whole, "g", 2, tmp_path, part_method="random")
    g = kgdist.distributed.DistGraph("g", part_config=tmp_path / "g.json")
    stores, sampler = kgnn.pyg_stores(g), kgnn.PyGNeighborSampler(g, {"writes": [3, 3], "cites": [2, 0]})
    seen = 0
    for batch in NodeLoader(stores, sampler, input_nodes=("paper", torch.arange(30)), batch_size=12):
        seen += batch["paper"].batch_size
        assert torch.equal(batch["paper"].x, g.nodes["paper"].data["x"][batch["paper"].n_id])
        for etype in g.canonical_etypes:
            local = batch[etype].edge_index
            ends = torch.stack([batch[etype[0]].n_id[local[0]], batch[etype[2]].n_id[local[1]]])
            assert torch.equal(ends, torch.stack(g.find_edges(batch[etype].e_id, etype)))
    assert seen == 30
    (pairs,) = LinkLoader(stores, sampler, edge_label_index=("author", "writes", "paper"), batch_size=60)
    found = pairs["writes"].edge_label_index
    ends = torch.stack([pairs["author"].n_id[found[0]], pairs["paper"].n_id[found[1]]])
    assert torch.equal(ends, torch.stack(g.find_edges(torch.arange(60), "writes")))


def test_new_features_of_a_partitioned_graph_are_distributed_tensors(tmp_path: Path) -> None:
    kgdist.distributed.partition_graph(planted_partition(num_nodes=50, num_edges=100), "g", 2, tmp_path, part_method="random")
    g = kgdist.distributed.DistGraph("g", part_config=tmp_path / "g.json")
    store, _ = kgnn.pyg_stores(g)
    store[None, "labels", torch.tensor([3, 40])] = torch.tensor([9, 8])
    assert g.ndata["labels"][[3, 40]].tolist() == [9, 8]
    with pytest.raises(UsageError, match="put a DistTensor there"):
        store[None, "new", None] = torch.ones(50)
