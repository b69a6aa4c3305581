"""A model of PyG on PyG's own loader, over a graph of ours: `python train.py`, or with --part_config over a partitioned one."""

import argparse
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GraphSAGE

import kgdist
from kgdist.graphs.planted import planted_partition
from kgdist.nn import PyGNeighborSampler, pyg_stores

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--graph_name", default="planted")
parser.add_argument("--part_config", help="<graph_name>.json of a partitioned graph, as examples/graphsage writes it")
parser.add_argument("--num_nodes", type=int, default=4000, help="of the graph that is made where none is named")
parser.add_argument("--num_epochs", type=int, default=10)
args = parser.parse_args()
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if args.part_config:
    kgdist.distributed.initialize()
    g = kgdist.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    ids = {part: kgdist.distributed.node_split(g.ndata[f"{part}_mask"]) for part in ("train", "test")}
else:
    g = planted_partition(num_nodes=args.num_nodes, num_edges=10 * args.num_nodes)
    ids = {part: g.ndata[f"{part}_mask"].nonzero().flatten() for part in ("train", "test")}
several = kgdist.distributed.get_num_clients() > 1
if several:
    torch.distributed.init_process_group("gloo")


def loader(part):
    # In PyG's order: the first number is the hop next to the seeds.
    sampler = PyGNeighborSampler(g, [10, 10])
    return NodeLoader(pyg_stores(g), sampler, input_nodes=ids[part], batch_size=256, shuffle=part == "train")


model = GraphSAGE(g.ndata["feat"].shape[1], 64, num_layers=2, out_channels=int(g.ndata["labels"][:].max()) + 1).to(device)
net = DistributedDataParallel(model) if several else model
optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
for epoch in range(args.num_epochs):
    net.train()
    with Join([net]) if several else nullcontext():  # shares of nodes may differ by one, and so may the numbers of batches
        for batch in loader("train"):
            batch = batch.to(device)
            loss = F.cross_entropy(net(batch.feat, batch.edge_index)[: batch.batch_size], batch.labels[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"Epoch {epoch}: loss {loss.item():.4f}")

model.eval()
told = torch.zeros(2)
with torch.no_grad():
    for batch in loader("test"):
        batch = batch.to(device)
        predicted = model(batch.feat, batch.edge_index)[: batch.batch_size].argmax(1)
        told += torch.tensor([(predicted == batch.labels[: batch.batch_size]).sum(), batch.batch_size])
if several:
    torch.distributed.all_reduce(told)
    torch.distributed.destroy_process_group()
print(f"Test Accuracy {told[0] / told[1]:.4f}")
