"""Makes a graph, divides it, and writes its partitions to data/: `python make_graph.py --num_parts 2`."""

import argparse

import kgdist as dgl
from kgdist.graphs.planted import planted_partition

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--num_parts", type=int, default=2)
parser.add_argument("--num_nodes", type=int, default=20_000)
args = parser.parse_args()

# A graph of your own: dgl.graph((sources, destinations)), and its data as below.
g = planted_partition(num_nodes=args.num_nodes, num_edges=10 * args.num_nodes)
print(g, g.ndata)

dgl.distributed.partition_graph(
    g,
    graph_name="planted",
    num_parts=args.num_parts,
    out_path="data",
    balance_ntypes=g.ndata["train_mask"],
    balance_edges=True,
)
