"""The script of the tutorial "Distributed Node Classification". What its printing had lost is put back: the network's
initialisation (three calls), `super().__init__()`, the optimiser's step, and the labels of the validation."""

import os

import numpy as np
import torch as th
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

import kgdist as dgl
import kgdist.nn as dglnn

dgl.distributed.initialize("ip_config.txt")
if "RANK" in os.environ:  # standalone there is nobody to talk to
    th.distributed.init_process_group(backend="gloo")
g = dgl.distributed.DistGraph("ogbn-products", part_config="4part_data/ogbn-products.json")

train_nid = dgl.distributed.node_split(g.ndata["train_mask"])
valid_nid = dgl.distributed.node_split(g.ndata["val_mask"])


class SAGE(nn.Module):
    def __init__(self, in_feats, n_hidden, n_classes, n_layers):
        super().__init__()
        self.n_layers = n_layers
        self.n_hidden = n_hidden
        self.n_classes = n_classes
        self.layers = nn.ModuleList()
        self.layers.append(dglnn.SAGEConv(in_feats, n_hidden, "mean"))
        for i in range(1, n_layers - 1):
            self.layers.append(dglnn.SAGEConv(n_hidden, n_hidden, "mean"))
        self.layers.append(dglnn.SAGEConv(n_hidden, n_classes, "mean"))

    def forward(self, blocks, x):
        for l, (layer, block) in enumerate(zip(self.layers, blocks)):
            x = layer(block, x)
            if l != self.n_layers - 1:
                x = F.relu(x)
        return x


th.manual_seed(1)
num_hidden = 16
num_labels = len(th.unique(g.ndata["labels"][0 : g.number_of_nodes()]))
num_layers = 2
lr = 0.01
model = SAGE(g.ndata["feat"].shape[1], num_hidden, num_labels, num_layers)
loss_fcn = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=lr)
if "RANK" in os.environ:
    model = th.nn.parallel.DistributedDataParallel(model)

sampler = dgl.dataloading.MultiLayerNeighborSampler([25, 10])
train_dataloader = dgl.dataloading.NodeDataLoader(g, train_nid, sampler, batch_size=32, shuffle=True, drop_last=False)
valid_dataloader = dgl.dataloading.NodeDataLoader(g, valid_nid, sampler, batch_size=32, shuffle=False, drop_last=False)

for epoch in range(10):
    losses = []
    for step, (input_nodes, seeds, blocks) in enumerate(train_dataloader):
        batch_inputs = g.ndata["feat"][input_nodes]
        batch_labels = g.ndata["labels"][seeds]
        batch_pred = model(blocks, batch_inputs)
        loss = loss_fcn(batch_pred, batch_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    predictions = []
    labels = []
    with th.no_grad():
        for step, (input_nodes, seeds, blocks) in enumerate(valid_dataloader):
            inputs = g.ndata["feat"][input_nodes]
            labels.append(g.ndata["labels"][seeds].numpy())
            predictions.append(model(blocks, inputs).argmax(1).numpy())
        predictions = np.concatenate(predictions)
        labels = np.concatenate(labels)
        accuracy = (predictions == labels).mean()
        print(f"Epoch {epoch}: Validation Accuracy {accuracy}", flush=True)
assert accuracy > 0.6, accuracy
