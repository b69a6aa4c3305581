"""The first half of the tutorial "Distributed Node Classification": masks and labels as node data, and partitions."""

import sys

import torch as th

import kgdist as dgl

nodes, edges, classes = 600, 4000, 4
th.manual_seed(0)
labels = th.randint(classes, (nodes,))
same = th.rand(edges) < 0.8  # most edges join nodes of one class, so that there is something to learn
sources = th.randint(nodes, (edges,))
by_class = [th.nonzero(labels == c).flatten() for c in range(classes)]
destinations = th.tensor(
    [
        int(by_class[int(labels[u])][int(th.randint(len(by_class[int(labels[u])]), (1,)))])
        if alike
        else int(th.randint(nodes, (1,)))
        for u, alike in zip(sources, same)
    ]
)
graph = dgl.graph((sources, destinations), num_nodes=nodes)
graph.ndata["labels"] = labels
graph.ndata["feat"] = th.nn.functional.one_hot(labels, classes).float() + th.randn(nodes, classes)

order = th.randperm(nodes)
train_nid, val_nid, test_nid = order[:300], order[300:450], order[450:]
train_mask = th.zeros((graph.number_of_nodes(),), dtype=th.bool)
train_mask[train_nid] = True
val_mask = th.zeros((graph.number_of_nodes(),), dtype=th.bool)
val_mask[val_nid] = True
test_mask = th.zeros((graph.number_of_nodes(),), dtype=th.bool)
test_mask[test_nid] = True
graph.ndata["train_mask"] = train_mask
graph.ndata["val_mask"] = val_mask
graph.ndata["test_mask"] = test_mask

nmap, emap = dgl.distributed.partition_graph(
    graph,
    graph_name="ogbn-products",
    num_parts=int(sys.argv[1]),
    out_path="4part_data",
    balance_ntypes=graph.ndata["train_mask"],
    balance_edges=True,
    return_mapping=True,
)
node_emb = labels[nmap]  # of the shuffled ids
orig_node_emb = th.zeros(node_emb.shape, dtype=node_emb.dtype)
orig_node_emb[nmap] = node_emb
assert th.equal(orig_node_emb, labels) and sorted(emap.tolist()) == list(range(edges))
