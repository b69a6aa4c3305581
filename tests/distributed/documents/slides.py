"""The slides "Distributed training in DGL": the overview's script with gradients averaged by hand, and each component's slide."""

import os

import numpy as np
import torch as th
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

import kgdist as dgl
import kgdist.nn as dglnn

ip_config, num_workers = "ip_config.txt", 0


def initializer(shape, dtype):
    arr = th.zeros(shape, dtype=dtype)
    arr.uniform_(-1, 1)
    return arr


dgl.distributed.initialize(ip_config, num_workers=num_workers)
launched = "RANK" in os.environ
if launched:
    th.distributed.init_process_group(backend="gloo")
g = dgl.distributed.DistGraph("ogbn-products", part_config="4part_data/ogbn-products.json")

# ---- DistTensor
print(g.number_of_nodes())
assert g.ndata["train_mask"][0].shape == (1,)
tensor = dgl.distributed.DistTensor((g.number_of_nodes(), 10), th.float32, "test")
rank = g.rank()
if rank == 0:
    tensor[0:100] = th.ones(100, 10)
g.barrier()
data = tensor[0:100]
assert (data == 1).all() and (tensor[100:200] == 0).all()
g.ndata["feat2"] = tensor
data = g.ndata["feat2"][[1, 2, 3]]
g.ndata["feat2"][[3, 4, 5]] = data
again = dgl.distributed.DistTensor((g.number_of_nodes(), 10), th.float32, "test")
assert (again[0:6] == 1).all()

# ---- DistEmbedding
emb = dgl.distributed.DistEmbedding(g.number_of_nodes(), 10, "emb")
data = emb(np.arange(100))
assert data.shape == (100, 10) and (data == 0).all()
g.barrier()
optimizer = dgl.distributed.SparseAdagrad([emb], lr=0.001)
if rank == 0:
    feats = emb([0, 1, 2, 3])
    loss = th.sum(feats + 1)
    loss.backward()
    optimizer.step()
g.barrier()
with th.no_grad():
    assert th.allclose(emb([0, 1, 2, 3]), th.full((4, 10), -0.001)) and (emb([4, 5]) == 0).all()
random = dgl.distributed.DistEmbedding(g.number_of_nodes(), 10, init_func=initializer)
with th.no_grad():
    some = random(list(range(50)))
    assert some.abs().max() <= 1 and some.std() > 0.3

# ---- the overview
train_nid = dgl.distributed.node_split(g.ndata["train_mask"], g.get_partition_book())
sampler = dgl.dataloading.MultiLayerNeighborSampler([10, 25])
train_dataloader = dgl.dataloading.NodeDataLoader(g, train_nid, sampler, batch_size=64, shuffle=True, drop_last=False)


class SAGE(nn.Module):
    def __init__(self, in_feats, num_hidden, n_classes, activation, dropout):
        super().__init__()
        self.layers = nn.ModuleList([dglnn.SAGEConv(in_feats, num_hidden, "mean"), dglnn.SAGEConv(num_hidden, n_classes, "mean")])
        self.activation, self.dropout = activation, nn.Dropout(dropout)

    def forward(self, blocks, x):
        x = self.dropout(self.activation(self.layers[0](blocks[0], x)))
        return self.layers[1](blocks[1], x)


def load_subtensor(g, input_nodes, seeds):
    return g.ndata["feat"][input_nodes], g.ndata["labels"][seeds]


th.manual_seed(0)
model = SAGE(g.ndata["feat"].shape[1], 16, 4, F.relu, 0.1)
loss_fcn = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=0.02)
for epoch in range(4):
    for step, (_, _, blocks) in enumerate(train_dataloader):
        batch_inputs, batch_labels = load_subtensor(g, blocks[0].srcdata[dgl.NID], blocks[-1].dstdata[dgl.NID])
        batch_pred = model(blocks, batch_inputs)
        loss = loss_fcn(batch_pred, batch_labels)
        optimizer.zero_grad()
        loss.backward()
        # Aggregate gradients in multiple nodes.
        if launched:
            for param in model.parameters():
                if param.requires_grad and param.grad is not None:
                    th.distributed.all_reduce(param.grad.data, op=th.distributed.ReduceOp.SUM)
                    param.grad.data /= dgl.distributed.get_num_clients()
        optimizer.step()
total = sum(float(param.detach().sum()) for param in model.parameters())
if launched:
    sums = th.tensor([total, -total])
    th.distributed.all_reduce(sums, op=th.distributed.ReduceOp.MAX)
    assert abs(float(sums[0] + sums[1])) < 1e-4, "all trainers have the same model"
print("loss", loss.item())
