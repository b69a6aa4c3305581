"""GraphSAGE with embeddings as users write it, on a small graph in two partitions: what tests break in many ways."""

from __future__ import annotations

from pathlib import Path

import torch

from kgdist.graphs.in_memory import graph, heterograph
from kgdist.partition.partition_graph import partition_graph

NODES, EDGES = 240, 1500

# Up to the graph. `say` names the process, as in tests.faults.scripts; what is called GRAPH is replaced.
OPEN = """
import os, signal, sys, time
import torch
import kgdist as dgl
from kgdist.base.errors import KgdistError

def say(*words):
    print(os.environ["KGDIST_ROLE"], os.environ["RANK"], *words, flush=True)

def initializer(shape, dtype):
    return torch.full(shape, 0.5, dtype=dtype)

dgl.distributed.initialize("ip_config.txt")
rank = dgl.distributed.rank()
g = dgl.distributed.DistGraph("g", part_config="g.json")
"""

# Training, which tells of every epoch. WORKERS and EPOCHS are said before.
TRAIN = """
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")

class Sage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([dgl.nn.SAGEConv(12, 16, "mean"), dgl.nn.SAGEConv(16, 4, "mean")])

    def forward(self, blocks, x):
        for layer, block in zip(self.layers, blocks):
            x = torch.relu(layer(block, x))
        return x

emb = dgl.distributed.DistEmbedding(g.num_nodes(), 4, "emb", initializer)
sparse = dgl.distributed.SparseAdagrad([emb], lr=0.1)
model = torch.nn.parallel.DistributedDataParallel(Sage())
dense = torch.optim.Adam(model.parameters(), lr=0.01)
nodes = dgl.distributed.node_split(g.ndata["train_mask"], g.get_partition_book())
sampler = dgl.dataloading.MultiLayerNeighborSampler([5, 5])
loader = dgl.dataloading.NodeDataLoader(g, nodes, sampler, batch_size=16, shuffle=True, seed=1, num_workers=WORKERS)
for epoch in range(EPOCHS):
    for inputs, seeds, blocks in loader:
        x = torch.cat([g.ndata["x"][inputs], emb(inputs)], 1)
        loss = torch.nn.functional.cross_entropy(model(blocks, x), g.ndata["y"][seeds])
        dense.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
        assert torch.isfinite(loss)
    say("epoch", epoch)
g.barrier()
say("done")
"""


def training(*, workers: int = 0, epochs: int = 3) -> str:
    """The whole script."""
    return f"{OPEN}\nWORKERS, EPOCHS = {workers}, {epochs}\n{TRAIN}"


def partitioned(folder: Path, *, name: str = "g", typed: bool = False, parts: int = 2, seed: int = 0) -> None:
    """Write the graph of that script, or one of two types of nodes of which two types of edges are called `cites`."""
    torch.manual_seed(seed)

    def ends() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(0, NODES, (EDGES,)), torch.randint(0, NODES, (EDGES,))

    if typed:
        counts = {"paper": NODES, "author": NODES}
        kinds = [("paper", "cites", "paper"), ("author", "cites", "paper"), ("author", "writes", "paper")]
        made = heterograph({kind: ends() for kind in kinds}, counts)
    else:
        made = graph(ends(), num_nodes=NODES)
        made.ndata["x"] = torch.randn(NODES, 8)
        made.ndata["y"] = torch.randint(0, 4, (NODES,))
        made.ndata["train_mask"] = torch.arange(NODES) % 2 == 0
    partition_graph(made, name, parts, folder, part_method="random")
