"""GraphSAGE learns from nothing but edges, and a line through what it has learnt tells classes: `python train.py`."""

import argparse
from itertools import pairwise

import torch as th
import torch.nn as nn
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import kgdist as dgl
import kgdist.nn as dglnn
from kgdist.graphs.planted import planted_partition

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--num_nodes", type=int, default=4000)
parser.add_argument("--num_epochs", type=int, default=5)
parser.add_argument("--batch_size", type=int, default=512)
parser.add_argument("--lr", type=float, default=0.003)
args = parser.parse_args()
th.manual_seed(0)
device = th.device("cuda" if th.cuda.is_available() else "cpu")

# A tenth of the edges is held out, both directions of each. Nobody looks at labels before the end.
whole = planted_partition(num_nodes=args.num_nodes, num_edges=10 * args.num_nodes)
half = whole.num_edges() // 2
order = th.randperm(half)
held, kept = order[: half // 10], order[half // 10 :]
sources, destinations = whole.edges()
g = dgl.graph((sources[kept], destinations[kept]), num_nodes=whole.num_nodes())
g = dgl.add_reverse_edges(g, exclude_self=False)
count = g.num_edges()


class Encoder(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.layers = nn.ModuleList(dglnn.SAGEConv(a, b, "mean") for a, b in pairwise(widths))

    def forward(self, blocks, x):
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            x = F.relu(x) if number + 1 < len(self.layers) else x
        return x


# No message travels by the edges of a batch, nor by their reverse ones: that would tell what is to be guessed.
loader = dgl.dataloading.EdgeDataLoader(
    g,
    th.arange(count),
    dgl.dataloading.MultiLayerNeighborSampler([10, 10]),
    exclude="reverse_id",
    reverse_eids=th.arange(count).roll(count // 2),
    negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    batch_size=args.batch_size,
    shuffle=True,
)
features = whole.ndata["feat"]
model = Encoder([features.shape[1], 64, 32]).to(device)
optimizer = th.optim.Adam(model.parameters(), lr=args.lr)


def scores(rows, u, v):
    return (rows[u] * rows[v]).sum(1)


for epoch in range(args.num_epochs):
    total = 0.0
    for input_nodes, positive, negative, blocks in loader:
        rows = model([block.to(device) for block in blocks], features[input_nodes].to(device))
        found = [scores(rows, *(ends.to(device) for ends in pairs.edges())) for pairs in (positive, negative)]
        told = th.cat([th.ones_like(found[0]), th.zeros_like(found[1])])
        loss = F.binary_cross_entropy_with_logits(th.cat(found), told)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"Epoch {epoch}: loss {total / len(loader):.4f}")

with th.no_grad():
    rows = model([g, g], features.to(device)) if device.type == "cpu" else model.cpu()([g, g], features)
    true = scores(rows, sources[held], destinations[held])
    false = scores(rows, sources[held], th.randint(g.num_nodes(), (len(held),)))
auc = roc_auc_score([1] * len(true) + [0] * len(false), th.cat([true, false]).numpy())
print(f"held-out edges beside random pairs: AUC {auc:.3f}")
train, test = whole.ndata["train_mask"], whole.ndata["test_mask"]
for name, given in (("features", features), ("what edges have taught", rows)):
    line = LogisticRegression(max_iter=1000).fit(given[train].numpy(), whole.ndata["labels"][train].numpy())
    print(f"classes by {name}: accuracy {line.score(given[test].numpy(), whole.ndata['labels'][test].numpy()):.3f}")
