"""The guide's section "Distributed APIs": two optimisers, low-level sampling through DistDataLoader, loaders, splits."""

import os

import numpy as np
import torch as th

import kgdist as dgl
import kgdist.nn as dglnn


def initializer(shape, dtype):
    arr = th.zeros(shape, dtype=dtype)
    arr.uniform_(-1, 1)
    return arr


dgl.distributed.initialize("ip_config.txt", num_workers=1)
launched = "RANK" in os.environ
if launched:
    th.distributed.init_process_group(backend="gloo")
g = dgl.distributed.DistGraph("ogbn-products", part_config="4part_data/ogbn-products.json")
train_nids = dgl.distributed.node_split(g.ndata["train_mask"])

tensor = dgl.distributed.DistTensor((g.number_of_nodes(), 10), th.float32, name="test")
g.ndata["feat_test"] = tensor
data = g.ndata["feat_test"][[1, 2, 3]]
g.ndata["feat_test"][[3, 4, 5]] = data

emb = dgl.distributed.DistEmbedding(g.number_of_nodes(), 10, init_func=initializer)
assert not isinstance(emb, th.nn.Module)
model = dglnn.SAGEConv(10, 4, "mean")
lr1, lr2 = 0.1, 0.01
sparse_optimizer = dgl.distributed.SparseAdagrad([emb], lr=lr1)
optimizer = th.optim.Adam(model.parameters(), lr=lr2)
loss_fn = th.nn.CrossEntropyLoss()


def sample_blocks(seeds):
    seeds = th.LongTensor(np.asarray(seeds))
    blocks = []
    for fanout in [10, 25]:
        frontier = dgl.sampling.sample_neighbors(g, seeds, fanout, replace=True)
        block = dgl.to_block(frontier, seeds)
        seeds = block.srcdata[dgl.NID]
        blocks.insert(0, block)
    return blocks


dataloader = dgl.distributed.DistDataLoader(dataset=train_nids, batch_size=50, collate_fn=sample_blocks, shuffle=True)
seen = 0
for blocks in dataloader:
    nids = blocks[-1].srcdata[dgl.NID]
    feats = emb(nids)
    pred = model(blocks[-1], feats)
    loss = loss_fn(pred, g.ndata["labels"][blocks[-1].dstdata[dgl.NID]])
    loss.backward()
    if launched:
        for param in model.parameters():
            th.distributed.all_reduce(param.grad.data)
            param.grad.data /= dgl.distributed.get_num_clients()
    optimizer.step()
    sparse_optimizer.step()
    optimizer.zero_grad()
    sparse_optimizer.zero_grad()
    seen += blocks[-1].number_of_dst_nodes()
assert seen == len(train_nids)

sampler = dgl.sampling.MultiLayerNeighborSampler([10, 25])
dataloader = dgl.sampling.NodeDataLoader(g, train_nids, sampler, batch_size=50, shuffle=True)
for batch in dataloader:
    input_nodes, seeds, blocks = batch
eids = dgl.distributed.edge_split(th.ones(g.number_of_edges(), dtype=th.bool), g.get_partition_book())
for input_nodes, pair_graph, blocks in dgl.sampling.EdgeDataLoader(g, eids[:200], sampler, batch_size=100):
    assert th.equal(pair_graph.ndata[dgl.NID], blocks[-1].dstdata[dgl.NID])
print("done", seen)
