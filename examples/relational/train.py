"""R-GCN tells which group people are in, by relations alone: `python train.py`.

People write papers, mostly about the topics of their group, and know anybody. Of half of the people it is known which group they
are in.
"""

import argparse

import torch as th
import torch.nn as nn
import torch.nn.functional as F

import kgdist as dgl
import kgdist.nn as dglnn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--num_people", type=int, default=400)
parser.add_argument("--num_epochs", type=int, default=30)
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()
th.manual_seed(0)

CLASSES, TOPICS = 4, 20
counts = {"person": args.num_people, "paper": 3 * args.num_people, "topic": TOPICS}
labels = th.randint(CLASSES, (counts["person"],))
author = th.arange(counts["paper"]) % counts["person"]
topic = labels[author] * (TOPICS // CLASSES) + th.randint(TOPICS // CLASSES, author.shape)
strays = th.rand(author.shape) < 0.3
topic[strays] = th.randint(TOPICS, (int(strays.sum()),))
friend = th.randint(counts["person"], (2, 2 * counts["person"]))

# Each relation and its inverse are types of edges, so that messages travel both ways.
g = dgl.heterograph(
    {
        ("person", "writes", "paper"): (author, th.arange(counts["paper"])),
        ("paper", "written by", "person"): (th.arange(counts["paper"]), author),
        ("paper", "is about", "topic"): (th.arange(counts["paper"]), topic),
        ("topic", "is topic of", "paper"): (topic, th.arange(counts["paper"])),
        ("person", "knows", "person"): (friend[0], friend[1]),
    },
    counts,
)
print(g)


class RGCN(nn.Module):
    """Schlichtkrull et al. 2018: the mean over each relation has weights of its own, and so has a node itself."""

    def __init__(self, hidden):
        super().__init__()
        # What a topic is will be learnt; people and papers are all alike but for what leads to them.
        self.topics = nn.Embedding(TOPICS, hidden)
        self.alike = nn.ParameterDict({ntype: nn.Parameter(th.zeros(hidden)) for ntype in ("person", "paper")})
        widths = [(hidden, hidden), (hidden, CLASSES)]
        self.relations = nn.ModuleList(
            dglnn.HeteroGraphConv(
                {name: dglnn.GraphConv(a, b, norm="right", bias=False, allow_zero_in_degree=True) for name in g.etypes}
            )
            for a, b in widths
        )
        self.own = nn.ModuleList(nn.ModuleDict({ntype: nn.Linear(a, b) for ntype in g.ntypes}) for a, b in widths)

    def forward(self, blocks):
        x = {ntype: row.expand(blocks[0].num_src_nodes(ntype), -1) for ntype, row in self.alike.items()}
        x["topic"] = self.topics(blocks[0].srcnodes["topic"].data[dgl.NID])
        for number, block in enumerate(blocks):
            made = self.relations[number](block, x)
            for ntype in made:
                made[ntype] = made[ntype] + self.own[number][ntype](x[ntype][: block.num_dst_nodes(ntype)])
            x = {ntype: F.relu(rows) for ntype, rows in made.items()} if number + 1 < len(blocks) else made
        return x["person"]


order = th.randperm(counts["person"])
train, test = order[: len(order) // 2], order[len(order) // 2 :]
sampler = dgl.dataloading.MultiLayerFullNeighborSampler(2)
model = RGCN(16)
optimizer = th.optim.Adam(model.parameters(), lr=args.lr)
loader = dgl.dataloading.NodeDataLoader(g, {"person": train}, sampler, batch_size=64, shuffle=True)
for epoch in range(args.num_epochs):
    for _, seeds, blocks in loader:
        loss = F.cross_entropy(model(blocks), labels[seeds["person"]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 10 == 9:
        print(f"Epoch {epoch}: loss {loss.item():.4f}")

((_, seeds, blocks),) = dgl.dataloading.NodeDataLoader(g, {"person": test}, sampler, batch_size=len(test))
with th.no_grad():
    right = (model(blocks).argmax(1) == labels[seeds["person"]]).float().mean()
print(f"Test Accuracy {right:.4f}")
