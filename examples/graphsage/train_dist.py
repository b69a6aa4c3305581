"""GraphSAGE tells the classes of nodes: `python train_dist.py` here, or the same under kgdist-launch on several machines."""

import argparse

import numpy as np
import torch as th
import torch.nn as nn
import torch.nn.functional as F

import kgdist as dgl
import kgdist.nn as dglnn


class SAGE(nn.Module):
    def __init__(self, in_feats, n_hidden, n_classes, n_layers):
        super().__init__()
        self.n_layers = n_layers
        widths = [in_feats] + [n_hidden] * (n_layers - 1) + [n_classes]
        self.layers = nn.ModuleList(dglnn.SAGEConv(widths[i], widths[i + 1], "mean") for i in range(n_layers))

    def forward(self, blocks, x):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if i != self.n_layers - 1:
                x = F.relu(x)
        return x


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--graph_name", default="planted")
parser.add_argument("--part_config", default="data/planted.json")
parser.add_argument("--ip_config", default="ip_config.txt")
parser.add_argument("--num_epochs", type=int, default=5)
parser.add_argument("--batch_size", type=int, default=256)
parser.add_argument("--num_hidden", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.003)
args = parser.parse_args()

# A server stays in this call; a trainer goes on. Without kgdist-launch there is one trainer, and no server.
dgl.distributed.initialize(args.ip_config)
th.manual_seed(0)
g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
device = th.device("cuda" if th.cuda.is_available() else "cpu")

# Each trainer has its share of the nodes, most of them of its own machine.
book = g.get_partition_book()
train_nid = dgl.distributed.node_split(g.ndata["train_mask"], book)
valid_nid = dgl.distributed.node_split(g.ndata["val_mask"], book)
test_nid = dgl.distributed.node_split(g.ndata["test_mask"], book)

# The last fan-out is that of the hop next to the seeds.
sampler = dgl.dataloading.MultiLayerNeighborSampler([25, 10])
train_dataloader = dgl.dataloading.NodeDataLoader(
    g, train_nid, sampler, batch_size=args.batch_size, shuffle=True, drop_last=False
)
valid_dataloader = dgl.dataloading.NodeDataLoader(g, valid_nid, sampler, batch_size=1024)
test_dataloader = dgl.dataloading.NodeDataLoader(g, test_nid, sampler, batch_size=1024)

n_classes = len(th.unique(g.ndata["labels"][0 : g.number_of_nodes()]))
model = SAGE(g.ndata["feat"].shape[1], args.num_hidden, n_classes, 2).to(device)
net = model
if dgl.distributed.get_num_clients() > 1:
    th.distributed.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(model)
loss_fcn = nn.CrossEntropyLoss()
optimizer = th.optim.Adam(net.parameters(), lr=args.lr)


def accuracy(dataloader):
    """Of the nodes of all trainers."""
    right = np.zeros(2)
    with th.no_grad():
        for input_nodes, seeds, blocks in dataloader:
            blocks = [block.to(device) for block in blocks]
            predicted = model(blocks, g.ndata["feat"][input_nodes].to(device)).argmax(1).cpu()
            right += (predicted == g.ndata["labels"][seeds]).sum().item(), len(seeds)
    told = th.from_numpy(right)
    if dgl.distributed.get_num_clients() > 1:
        th.distributed.all_reduce(told)
    return (told[0] / told[1]).item()


for epoch in range(args.num_epochs):
    losses = []
    for input_nodes, seeds, blocks in train_dataloader:
        blocks = [block.to(device) for block in blocks]
        batch_inputs = g.ndata["feat"][input_nodes].to(device)
        batch_labels = g.ndata["labels"][seeds].to(device)
        loss = loss_fcn(net(blocks, batch_inputs), batch_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    valid = accuracy(valid_dataloader)
    if g.rank() == 0:
        print(f"Epoch {epoch}: loss {np.mean(losses):.4f}, Validation Accuracy {valid:.4f}")

test = accuracy(test_dataloader)
if g.rank() == 0:
    print(f"Test Accuracy {test:.4f}")
if dgl.distributed.get_num_clients() > 1:
    th.distributed.destroy_process_group()
