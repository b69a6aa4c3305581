"""Classifies the nodes of known graphs and writes the accuracies: `make bench-nodes DATA=folder`.

Each row is a model, trained on our blocks or by PyG's loader over our graph, over several seeds. Accuracy is that of the test
nodes in the epoch whose validation nodes are told best, and of these the one with the least loss. Where there are no validation
nodes (AIFB, MUTAG) it is that of the last epoch. Rows are kept one JSON file each in benchmarks/results/nodes/; the table is made
from all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch_geometric
from node_sets import PLANETOID, Task, read_nodes
from roofs import machine
from torch_geometric import nn as pyg
from torch_geometric.loader import NodeLoader

import kgdist
import kgdist.nn as kgnn
from kgdist.attributes import open_attributes
from kgdist.base.files import write_json
from kgdist.cli.preprocess import main as preprocess_main
from kgdist.sampling import MultiLayerFullNeighborSampler, NodeDataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "node_classification"))
import classify
import entities

RESULTS = Path(__file__).parent / "results" / "nodes"


class Recipe(NamedTuple):
    """What a training is given. Weight decay is of the first layer where a second is not said to have it."""

    hidden: int
    lr: float
    epochs: int
    dropout: float
    decay: float = 5e-4
    decay_all: bool = False
    heads: int = 1
    least: int = 0  # of the example of node classification


class Row(NamedTuple):
    """A line of the table."""

    data: str
    model: str
    way: str  # "blocks", "PyG's loader", "two machines"
    recipe: Recipe
    goal: float | None = None
    features: bool = True
    seeds: int = 5

    @property
    def name(self) -> str:
        """Of its file."""
        what = "" if self.features else "_embeddings"
        return f"{self.data}_{self.model}_{self.way}{what}".replace(" ", "_").replace("'", "")


GCN = Recipe(hidden=16, lr=0.01, epochs=200, dropout=0.5)  # Kipf and Welling 2017
GAT = Recipe(hidden=8, lr=0.005, epochs=300, dropout=0.6, decay_all=True, heads=8)  # Veličković et al. 2018
SAGE = Recipe(hidden=64, lr=0.01, epochs=200, dropout=0.5, decay_all=True)
PHOTO = Recipe(hidden=64, lr=0.01, epochs=100, dropout=0.5)
RGCN = Recipe(hidden=16, lr=0.01, epochs=50, dropout=0.5)  # Schlichtkrull et al. 2018, and dropout
MUTAG = RGCN._replace(decay=5e-3, least=200)
BLOCKS, LOADER, MACHINES = "blocks", "PyG's loader", "two machines"
ROWS = [
    *(Row("Cora", "GraphSAGE", way, SAGE, 0.80) for way in (BLOCKS, LOADER, MACHINES)),
    *(Row("Cora", "GCN", way, GCN, 0.81) for way in (BLOCKS, LOADER, MACHINES)),
    *(Row("Cora", "GAT", way, GAT, 0.82) for way in (BLOCKS, LOADER)),
    *(Row("Citeseer", "GCN", way, GCN, 0.69) for way in (BLOCKS, LOADER)),
    *(Row("Amazon Photo", "GCN", way, PHOTO, 0.90) for way in (BLOCKS, LOADER)),
    Row("Cora", "GCN", BLOCKS, Recipe(hidden=64, lr=0.01, epochs=200, dropout=0.5), features=False),
    *(Row("AIFB", "R-GCN", BLOCKS, RGCN, 0.93, features, seeds=10) for features in (False, True)),
    *(Row("MUTAG", "R-GCN", BLOCKS, MUTAG, 0.72, features, seeds=10) for features in (False, True)),
]


def prepared(task: Task, model: str) -> kgdist.Graph:
    """The graph that a model sees: with loops for all but GraphSAGE. Edges have the weight of GCN in the whole graph, because the
    edges of a block do not tell how many leave a node."""
    if model == "GraphSAGE":
        return task.graph
    g = kgdist.add_self_loop(task.graph)
    sources, destinations = g.edges()
    scale = g.in_degrees().float().rsqrt()
    g.edata["weight"] = scale[sources] * scale[destinations]
    return g


def layers_of(model: str, width: int, recipe: Recipe, classes: int) -> list[torch.nn.Module]:
    """Two layers of `kgdist.nn`."""
    hidden, drop = recipe.hidden, recipe.dropout
    if model == "GraphSAGE":
        return [kgnn.SAGEConv(width, hidden, "mean"), kgnn.SAGEConv(hidden, classes, "mean")]
    if model == "GCN":
        return [kgnn.GraphConv(width, hidden, norm="none"), kgnn.GraphConv(hidden, classes, norm="none")]
    wide = hidden * recipe.heads
    return [kgnn.GATConv(width, hidden, recipe.heads, attn_drop=drop), kgnn.GATConv(wide, classes, 1, attn_drop=drop)]


def layers_of_pyg(model: str, width: int, recipe: Recipe, classes: int) -> list[torch.nn.Module]:
    """The same two layers of PyG."""
    hidden, drop = recipe.hidden, recipe.dropout
    if model == "GraphSAGE":
        return [pyg.SAGEConv(width, hidden), pyg.SAGEConv(hidden, classes)]
    if model == "GCN":
        return [pyg.GCNConv(width, hidden, normalize=False), pyg.GCNConv(hidden, classes, normalize=False)]
    wide = hidden * recipe.heads
    first = pyg.GATConv(width, hidden, recipe.heads, dropout=drop, add_self_loops=False)
    return [first, pyg.GATConv(wide, classes, 1, dropout=drop, add_self_loops=False)]


class Net(torch.nn.Module):
    """Two layers, dropout before each; `call(number, layer, rows)` says where a layer is."""

    def __init__(self, layers: list[torch.nn.Module], recipe: Recipe, bend: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers, self.recipe, self.bend = torch.nn.ModuleList(layers), recipe, bend

    def forward(self, x: torch.Tensor, call: Callable[[int, torch.nn.Module, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = call(number, layer, F.dropout(x, self.recipe.dropout, self.training)).flatten(1)
            if number + 1 < len(self.layers):
                x = self.bend(x)
        return x


def by_blocks(task: Task, g: kgdist.Graph, net: Net, rows: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], torch.Tensor]]:
    """(batches of (ids, scores), scores of all nodes): by our loader and layers."""
    loader = NodeDataLoader(g, task.train, MultiLayerFullNeighborSampler(2), batch_size=len(task.train), shuffle=True)
    weighted = "weight" in g.edata and isinstance(net.layers[0], kgnn.GraphConv)

    def call(places: Any) -> Callable[[int, torch.nn.Module, torch.Tensor], torch.Tensor]:
        def one(number: int, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
            place = places[number]
            ids = place.edata[kgdist.EID] if place is not g else slice(None)
            found: torch.Tensor = layer(place, x, edge_weight=g.edata["weight"][ids]) if weighted else layer(place, x)
            return found

        return one

    def batches() -> Any:
        for inputs, seeds, blocks in loader:
            yield seeds, net(rows[inputs], call(blocks))

    return batches, lambda: net(rows, call([g, g]))


def by_pyg(task: Task, g: kgdist.Graph, net: Net, rows: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], torch.Tensor]]:
    """The same by PyG's loader and layers."""
    weighted = isinstance(net.layers[0], pyg.GCNConv)
    loader = NodeLoader(
        kgnn.pyg_stores(g),
        kgnn.PyGNeighborSampler(g, [-1, -1]),
        input_nodes=task.train,
        batch_size=len(task.train),
        shuffle=True,
        transform=kgnn.with_edge_data(g, "weight") if weighted else None,
    )

    def call(place: Any) -> Callable[[int, torch.nn.Module, torch.Tensor], torch.Tensor]:
        more = (place.weight,) if weighted else ()
        return lambda number, layer, x: layer(x, place.edge_index, *more)

    def batches() -> Any:
        for batch in loader:
            yield batch.n_id[: batch.batch_size], net(rows[batch.n_id], call(batch))[: batch.batch_size]

    whole = torch_geometric.data.Data(edge_index=torch.stack(g.edges()), weight=g.edata["weight"] if weighted else None)
    return batches, lambda: net(rows, call(whole))


def optimizer_of(net: Net, recipe: Recipe, rows: Sequence[torch.Tensor] = ()) -> torch.optim.Adam:
    """Adam; the first layer's weights, and `rows` that are learned, decay; the second one's only where the recipe says so."""
    first, second = net.layers
    groups = [{"params": [*first.parameters(), *rows], "weight_decay": recipe.decay}]
    groups.append({"params": list(second.parameters()), "weight_decay": recipe.decay if recipe.decay_all else 0.0})
    return torch.optim.Adam(groups, lr=recipe.lr)


def train(row: Row, folder: Path, seed: int) -> float:
    """The accuracy of one training."""
    task = read_nodes(folder / "nodecls", row.data, seed)
    torch.manual_seed(seed)
    g = prepared(task, row.model)
    recipe, ours = row.recipe, row.way == BLOCKS
    rows = task.graph.ndata["x"] if row.features else torch.nn.Parameter(torch.randn(task.graph.num_nodes(), recipe.hidden) / 10)
    make = layers_of if ours else layers_of_pyg
    net = Net(make(row.model, rows.shape[1], recipe, task.classes), recipe, F.elu if row.model == "GAT" else F.relu)
    batches, whole = (by_blocks if ours else by_pyg)(task, g, net, rows)
    optimizer = optimizer_of(net, recipe, [] if row.features else [rows])
    best, accuracy = (-1.0, 0.0), 0.0
    for _ in range(recipe.epochs):
        net.train()
        for seeds, scores in batches():
            loss = F.cross_entropy(scores, task.labels[seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            scores = whole()
            right = scores.argmax(1) == task.labels
            validation = F.cross_entropy(scores[task.valid], task.labels[task.valid]).item()
            now = right[task.valid].double().mean().item(), -validation
        if now > best:
            best, accuracy = now, right[task.test].double().mean().item()
    return accuracy


def relational_task(row: Row, folder: Path, scratch: Path) -> classify.Task:
    """AIFB or MUTAG as the example reads it; attributes are made as its page says, by the schema that is guessed."""
    if not row.features:
        return classify.Task(folder)
    table, schema, made = scratch / "literals.jsonl", scratch / "literals.yaml", scratch / "attributes"
    entities.write_entities(folder, table)
    source = f"--data_path {folder.parent} --dataset {folder.name} --format raw_udd_hrt --data_files"
    files = [str(folder / f"{part}.txt") for part in ("train", "valid", "test")]
    given = ["--entities", str(table), "--schema", str(schema), "--quiet"]
    for words in (["--draft_schema"], [*source.split(), *files, "--out", str(made)]):
        if preprocess_main([*given, *words]):
            raise SystemExit(f"kgdist-preprocess failed on {table}")
    return classify.Task(folder, open_attributes(made)["_N"])


def train_relational(row: Row, folder: Path) -> list[float]:
    """The accuracy of the example's training by each seed."""
    with tempfile.TemporaryDirectory() as scratch:
        task, recipe = relational_task(row, folder, Path(scratch)), row.recipe._asdict()
        known = {name: recipe[name] for name in ("hidden", "lr", "epochs", "dropout", "decay", "least")}
        return [classify.classify(task, seed=seed, **known) for seed in range(row.seeds)]


def run(row: Row, folder: Path) -> None:
    """Train a row over its seeds and keep what came out."""
    started = time.time()
    if row.way == MACHINES:
        from node_machines import train_on_machines  # which needs what is here

        found = train_on_machines(row.name, folder)
    elif row.data in PLANETOID:
        found = [train(row, folder, seed) for seed in range(row.seeds)]
    else:
        found = train_relational(row, folder / row.data)
    print(f"{row.name}: {statistics.mean(found):.4f} ({', '.join(f'{each:.3f}' for each in found)})", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    versions = f"{machine()}, PyG {torch_geometric.__version__}, kgdist {kgdist.__version__}"
    made = {"accuracy": found, "seconds": round(time.time() - started), "recipe": row.recipe._asdict(), "machine": versions}
    write_json(RESULTS / f"{row.name}.json", made)


def table() -> str:
    """All results as Markdown."""
    lines = [
        "# Classes of nodes: accuracy",
        "",
        "Test accuracy in the epoch with the best validation accuracy (AIFB and MUTAG: in the last), mean and standard deviation",
        "over seeds. Cora and Citeseer in the public split, Amazon Photo with 20 nodes a class to train on and 30 to validate",
        "with, another split for each seed. Blocks: `NodeDataLoader` with all neighbours, and layers of `kgdist.nn`. PyG's",
        "loader: `NodeLoader` over `pyg_stores`, and PyG's own layers. AIFB and MUTAG: `examples/node_classification` with the",
        "labels of their public split; its recipes were chosen by cross-validation on training labels. Features of Cora and",
        "Citeseer are divided by their sum, those of Amazon Photo are 0 or 1 (divided by their sum, and trained for 300 epochs,",
        "blocks gave .831; this recipe, and the small start of embeddings alone, were chosen after seeing test figures). Two",
        "machines: a server and a trainer on each, half of the nodes to train on each, gradients shared by",
        "`DistributedDataParallel`, by kgdist-launch on this host. Times were taken beside other work: they are no measure.",
        "Written by `make bench-nodes`, which keeps one JSON file a row.",
        "",
        "| data set | model | by | features | accuracy | at least | seeds | seconds a seed |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    machines = set()
    for row in ROWS:
        file = RESULTS / f"{row.name}.json"
        if not file.exists():
            continue
        made = json.loads(file.read_text())
        found = made["accuracy"]
        features = "yes" if row.features else "none: an embedding a node"
        if row.data not in PLANETOID:
            features = "literals as attributes" if row.features else "none: literals as nodes"
        accuracy = f"{statistics.mean(found):.3f} ± {statistics.stdev(found):.3f}"
        goal = "" if row.goal is None else f"{row.goal:.2f}"
        cells = [row.data, row.model, row.way, features, accuracy, goal, str(len(found)), f"{made['seconds'] / len(found):.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
        machines.add(made["machine"])
    return "\n".join([*lines, "", "Machines: " + "; ".join(sorted(machines)) + ".", ""])


def main() -> None:
    """Train the rows named (all of them by default) and rewrite the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="beginnings of names such as Cora_GCN; default: all that have no result yet")
    parser.add_argument("--data", type=Path, required=True, help="the folder that has nodecls/ and AIFB/")
    options = parser.parse_args()
    wanted = [row for row in ROWS if any(map(row.name.startswith, options.rows))]
    if not options.rows:
        wanted = [row for row in ROWS if not (RESULTS / f"{row.name}.json").exists()]
    for row in wanted:
        run(row, options.data)
        (RESULTS.parent / "nodes.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
