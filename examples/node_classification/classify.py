"""R-GCN tells the classes of some entities of a knowledge graph, with its literals: `python classify.py FOLDER`."""

import argparse
import csv
from pathlib import Path

import numpy as np
import torch as th
import torch.nn as nn
import torch.nn.functional as F

import kgdist as dgl
import kgdist.nn as dglnn
from kgdist.attributes import open_attributes


def read_table(path):
    """The rows below the first line, which names the columns."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


class Task:
    """The triples of train.txt, valid.txt and test.txt as edges in both directions, and the labels of some entities.

    A relation and its inverse are two relations. Literals are nodes like others, after the entities, each different one once;
    or they are left out, and `attributes` has what kgdist-preprocess has made of them.
    """

    def __init__(self, folder, attributes=None):
        data = dgl.load_dataset(folder)
        self.entities = data.entities
        heads, relations, tails = np.concatenate([split.array for split in data.splits.values()]).T.astype(np.int64)
        self.num_nodes, self.num_relations, self.attributes = len(data.entities), len(data.relations), attributes
        if attributes is None:
            values, predicates, ends = {}, {}, []
            for entity, predicate, *value in read_table(folder / "literals.tsv"):
                relation = predicates.setdefault(predicate, self.num_relations + len(predicates))
                node = values.setdefault(tuple(value), self.num_nodes + len(values))
                ends.append((data.entities.id(entity), relation, node))
            heads, relations, tails = np.concatenate([np.stack([heads, relations, tails]), np.array(ends).T], axis=1)
            self.num_nodes += len(values)
            self.num_relations += len(predicates)
        self.g = dgl.graph((np.concatenate([heads, tails]), np.concatenate([tails, heads])), num_nodes=self.num_nodes)
        self.g.edata["etype"] = th.from_numpy(np.concatenate([relations, relations + self.num_relations]))
        self.num_relations *= 2
        self.names = {}
        self.train, self.test = (self.labelled(folder / f"labels_{part}.tsv") for part in ("train", "test"))

    def labelled(self, path):
        """int64[n], entities; int64[n], their classes."""
        entities, labels = zip(*read_table(path), strict=True)
        classes = [self.names.setdefault(label, len(self.names)) for label in labels]
        return th.from_numpy(self.entities.encode(list(entities)).astype(np.int64)), th.tensor(classes)

    def blocks(self, seeds):
        """The neighbourhoods of nodes int64[n], whole: two blocks, whose sources are below `dgl.NID`."""
        sampler = dgl.dataloading.MultiLayerFullNeighborSampler(2)
        ((_, _, blocks),) = dgl.dataloading.NodeDataLoader(self.g, seeds, sampler, batch_size=len(seeds))
        return blocks


class RGCN(nn.Module):
    """Two layers of Schlichtkrull et al. 2018 over what nodes begin with: their attributes, or else a row that is learnt.

    Nodes of fewer than `least` edges share one row, so that they are known by their neighbours and nothing is learnt by heart.
    """

    def __init__(self, task, hidden, num_bases, dropout, least):
        super().__init__()
        often = task.g.in_degrees() >= least
        self.row = th.where(often, often.cumsum(0), 0)
        self.rows = nn.Embedding(int(often.sum()) + 1, hidden)
        nn.init.normal_(self.rows.weight, std=0.1)
        self.attributes = task.attributes and dglnn.AttributeEmbedding(task.attributes, task.attributes.rows, hidden)
        self.etype, self.dropout = task.g.edata["etype"], dropout
        self.layers = nn.ModuleList(
            dglnn.RelGraphConv(hidden, out, task.num_relations, "basis", num_bases) for out in (hidden, len(task.names))
        )

    def forward(self, blocks):
        ids = blocks[0].srcdata[dgl.NID]
        x = self.rows(self.row[ids])
        if self.attributes is not None:
            made, known = self.attributes(ids.numpy())
            x = th.where(known[:, None], made, x)
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x, self.etype[block.edata[dgl.EID]], norm="mean")
            if number == 0:
                x = F.dropout(F.relu(x), self.dropout, self.training)
        return x


def classify(task, hidden=16, num_bases=30, dropout=0.5, least=0, lr=0.01, decay=5e-4, epochs=50, seed=0, told=lambda *_: None):
    """Train on the labels of one part; the accuracy on the other."""
    th.manual_seed(seed)
    net = RGCN(task, hidden, num_bases, dropout, least)
    optimizer = th.optim.Adam(net.parameters(), lr=lr, weight_decay=decay)
    (seeds, labels), (asked, answers) = task.train, task.test
    blocks = task.blocks(seeds)
    for epoch in range(epochs):
        loss = F.cross_entropy(net(blocks), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told(epoch, loss.item())
    net.eval()
    with th.no_grad():
        return (net(task.blocks(asked)).argmax(1) == answers).double().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="train.txt, valid.txt, test.txt, literals.tsv, labels_{train,test}.tsv")
    parser.add_argument("--attributes", type=Path, help="what kgdist-preprocess made of literals; they are nodes when not given")
    parser.add_argument("--least", type=int, default=0, help="edges of a node that has a row of its own")
    parser.add_argument("--decay", type=float, default=5e-4, help="weight decay")
    parser.add_argument("--num_epochs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    task = Task(args.folder, args.attributes and open_attributes(args.attributes)["_N"])
    print(task.g)

    def told(epoch, loss):
        if epoch % 10 == 9:
            print(f"Epoch {epoch}: loss {loss:.4f}")

    found = classify(task, least=args.least, decay=args.decay, epochs=args.num_epochs, seed=args.seed, told=told)
    print(f"Test Accuracy {found:.4f}")
