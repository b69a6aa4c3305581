"""Classes of nodes by trainers of two machines that share gradients: the rows "two machines" of `make bench-nodes`.

The graph is in two partitions of METIS; kgdist-launch starts a server and a trainer for each on this host. A trainer has half of
the nodes to train on, one batch an epoch, so both together do what one process does; and it tells the classes of its own share of
the validation and test nodes, through blocks as well.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accuracy_nodes import ROWS, Net, layers_of, optimizer_of, prepared
from dist_accuracy import machines
from node_sets import read_nodes
from torch.nn.parallel import DistributedDataParallel

import kgdist
from kgdist import distributed
from kgdist.sampling import MultiLayerFullNeighborSampler, NodeDataLoader

PARTS, NAME = 2, "nodes"
SPLITS = ("train", "valid", "test")


def partitioned(name: str, model: str, data: Path, folder: Path, seed: int) -> int:
    """Write the partitions of a task; how many classes there are."""
    task = read_nodes(data / "nodecls", name, seed)
    g = prepared(task, model)
    g.ndata["x"], g.ndata["label"] = task.graph.ndata["x"], task.labels
    for split, ids in zip(SPLITS, (task.train, task.valid, task.test), strict=True):
        g.ndata[split] = torch.zeros(g.num_nodes(), dtype=torch.bool).index_fill(0, ids, True)
    distributed.partition_graph(g, NAME, PARTS, folder, balance_ntypes=g.ndata["train"].long())
    return task.classes


def train(row_name: str, classes: int, seed: int) -> float:
    """What every trainer does; the accuracy."""
    (row,) = (each for each in ROWS if each.name == row_name)
    recipe = row.recipe
    g = distributed.DistGraph(NAME)
    torch.manual_seed(seed)
    net = Net(layers_of(row.model, g.ndata["x"].shape[1], recipe, classes), recipe, F.elu if row.model == "GAT" else F.relu)
    shared = DistributedDataParallel(net)
    torch.manual_seed(2 * seed + g.rank())  # for dropout

    def loader(split: str) -> Any:
        ids = distributed.node_split(g.ndata[split], g.get_partition_book(), force_even=True)
        return NodeDataLoader(g, ids, MultiLayerFullNeighborSampler(2), batch_size=max(1, len(ids)), seed=seed)

    def call(blocks: Any) -> Any:
        def one(number: int, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
            block = blocks[number]
            weights = {"edge_weight": g.edata["weight"][block.edata[kgdist.EID]]} if row.model == "GCN" else {}
            found: torch.Tensor = layer(block, x, **weights)
            return found

        return one

    loaders = {split: loader(split) for split in SPLITS}
    optimizer = optimizer_of(net, recipe)
    best, accuracy = (-1.0, 0.0), 0.0
    for _ in range(recipe.epochs):
        net.train()
        for inputs, seeds, blocks in loaders["train"]:
            loss = F.cross_entropy(shared(g.ndata["x"][inputs], call(blocks)), g.ndata["label"][seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        told = {}
        for split in SPLITS[1:]:
            found = torch.zeros(3, dtype=torch.float64)  # nodes, right ones, loss
            with torch.no_grad():
                for inputs, seeds, blocks in loaders[split]:
                    scores, labels = net(g.ndata["x"][inputs], call(blocks)), g.ndata["label"][seeds]
                    found += torch.tensor(
                        [len(seeds), (scores.argmax(1) == labels).sum(), F.cross_entropy(scores, labels, reduction="sum")]
                    )
            dist.all_reduce(found)
            told[split] = (found[1:] / found[0]).tolist()
        now = told["valid"][0], -told["valid"][1]
        if now > best:
            best, accuracy = now, told["test"][0]
    return accuracy


def train_on_machines(name: str, data: Path) -> list[float]:
    """The accuracies of all seeds of a row."""
    (row,) = (each for each in ROWS if each.name == name)
    found = []
    for seed in range(row.seeds):
        with tempfile.TemporaryDirectory(prefix="kgdist-nodes-") as made:
            folder = Path(made)
            classes = partitioned(row.data, row.model, data, folder, seed)
            shutil.copy(machines(folder, PARTS), folder / "ip_config.txt")
            script = f"{sys.executable} {Path(__file__).resolve()} --row {name} --classes {classes} --seed {seed}"
            flags = ["--backend", "local", "--workspace", made, "--num_trainers", "1", "--part_config", f"{folder}/{NAME}.json"]
            words = [sys.executable, "-m", "kgdist.cli.launch", *flags, "--ip_config", str(folder / "ip_config.txt"), script]
            subprocess.run(words, cwd=folder, check=True, timeout=1200, env=os.environ | {"OMP_NUM_THREADS": "1"})
            found.append(float((folder / "accuracy").read_text()))
    return found


def main() -> None:
    """A trainer, or a server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    distributed.initialize()
    dist.init_process_group("gloo")
    accuracy = train(options.row, options.classes, options.seed)
    if distributed.rank() == 0:
        Path("accuracy").write_text(str(accuracy))


if __name__ == "__main__":
    main()
