"""R-GCN's layer beside PyG's two, on a block of FB15k-237 with inverse relations: `make bench-encoders`.

A step is a forward pass over the block and a backward pass to all weights and rows. Layers take turns in one process; the
memory is that of a process of its own, which takes two steps.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch_geometric.nn as pyg
from datasets import prepare
from roofs import machine

import kgdist
import kgdist.nn as dglnn
from kgdist.data.dataset import load_dataset

HERE = Path(__file__).parent
WIDTH, BASES, BLOCKS = 64, 30, 16
SEEDS = 2048  # whose in-edges are the block; FastRGCNConv takes 16 KB an edge for its matrices, and again for their gradients
OURS, PYG, FAST = "RelGraphConv", "PyG's RGCNConv", "PyG's FastRGCNConv"
KINDS = {"free matrices": (None, None), f"{BASES} bases": ("basis", BASES), f"{BLOCKS} blocks": ("bdd", BLOCKS)}


class World(NamedTuple):
    """A block, as its own layers and as PyG's take it."""

    block: Any
    ends: torch.Tensor  # int64[2, E], places among the sources, of which the destinations are the first
    relations: torch.Tensor  # int64[E]
    num_rels: int


def world(data: Path) -> World:
    """FB15k-237's training triples, each also the other way round by the inverse relation."""
    prepare("FB15k-237", data)
    dataset = load_dataset(path=data, name="FB15k-237")
    head, relation, tail = np.asarray(dataset.train.array, np.int64).T
    count = len(dataset.relations)
    ends = torch.from_numpy(np.stack([np.append(head, tail), np.append(tail, head)]))
    relations = torch.from_numpy(np.append(relation, relation + count))
    whole = kgdist.graph((ends[0], ends[1]), num_nodes=len(dataset.entities))
    seeds = torch.randperm(whole.num_nodes(), generator=torch.Generator().manual_seed(0))[:SEEDS]
    block = kgdist.to_block(kgdist.sampling.in_subgraph(whole, seeds), seeds)
    return World(block, torch.stack(block.edges()), relations[block.edata[kgdist.EID]], 2 * count)


def layer_of(name: str, kind: str, num_rels: int) -> torch.nn.Module:
    """A layer of WIDTH to WIDTH features."""
    torch.manual_seed(0)
    regularizer, number = KINDS[kind]
    if name == OURS:
        return dglnn.RelGraphConv(WIDTH, WIDTH, num_rels, regularizer, number)
    many = {"num_bases": number if regularizer == "basis" else None, "num_blocks": number if regularizer == "bdd" else None}
    return (pyg.RGCNConv if name == PYG else pyg.FastRGCNConv)(WIDTH, WIDTH, num_rels, **many)


def step_of(name: str, kind: str, place: World) -> Callable[[], torch.Tensor]:
    """A step; it gives what the layer made."""
    layer = layer_of(name, kind, place.num_rels)
    x = torch.randn(place.block.num_src_nodes(), WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    own = x if name == OURS else (x, x[:SEEDS])  # PyG is told the rows of destinations

    def step() -> torch.Tensor:
        where: tuple[Any, ...] = (place.block, x, place.relations, "mean") if name == OURS else (own, place.ends, place.relations)
        made: torch.Tensor = layer(*where)
        made.square().mean().backward()
        return made.detach()

    return step


def resident(name: str) -> int:
    """Bytes, of a line of /proc/self/status."""
    (found,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found) << 10


def taken(name: str, kind: str, data: Path) -> int:
    """Bytes that two steps take at most beyond the block, in a process of its own."""
    words = [sys.executable, __file__, "--data", str(data), "--memory", json.dumps([name, kind])]
    return int(subprocess.run(words, capture_output=True, text=True, timeout=600, check=True).stdout)


def alike(kind: str, place: World) -> float:
    """The largest difference of our layer from PyG's with the same weights, over the largest number."""
    ours, theirs = layer_of(OURS, kind, place.num_rels), layer_of(PYG, kind, place.num_rels)
    assert isinstance(ours, dglnn.RelGraphConv)
    weights = ours.W if KINDS[kind][0] == "bdd" else ours.W.squeeze(1)
    theirs.weight.data.copy_(weights.data)
    theirs.root.data.copy_(ours.loop_weight.data)
    if ours.coeff is not None:
        theirs.comp.data.copy_(ours.coeff.data)
    x = torch.randn(place.block.num_src_nodes(), WIDTH)
    with torch.no_grad():
        one, other = ours(place.block, x, place.relations, "mean"), theirs((x, x[:SEEDS]), place.ends, place.relations)
    return float((one - other).abs().max() / other.abs().max())


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    place = world(options.data)
    if options.memory:
        step, before = step_of(*json.loads(options.memory), place), resident("VmRSS")
        step()
        step()
        print(resident("VmHWM") - before)
        return
    edges = place.ends.shape[1]
    pairs = len(np.unique(place.relations.numpy() * SEEDS + place.ends[1].numpy()))
    table = [["", "", "ms, 1 thread", "ms, 2 threads", "times as fast", "MB", "differs by"]]
    for kind in KINDS:
        seconds: dict[tuple[str, int], float] = {}
        for threads in (1, 2):
            torch.set_num_threads(threads)
            steps = {name: step_of(name, kind, place) for name in (OURS, PYG, FAST)}
            found: dict[str, list[float]] = {name: [] for name in steps}
            for number in range(options.rounds + 1):
                for name, step in steps.items():
                    began = time.perf_counter()
                    step()
                    if number:  # the first one loads what it needs
                        found[name].append(time.perf_counter() - began)
            seconds |= {(name, threads): statistics.median(times) for name, times in found.items()}
        for name in (OURS, PYG, FAST):
            one, two = seconds[name, 1], seconds[name, 2]
            cells = [f"{1000 * one:,.0f}", f"{1000 * two:,.0f}", f"{seconds[PYG, 1] / one:.1f}, {seconds[PYG, 2] / two:.1f}"]
            memory = f"{taken(name, kind, options.data) / 1e6:,.0f}"
            table.append([kind, name, *cells, memory, f"{alike(kind, place):.0e}" if name == OURS else ""])
            print(table[-1], flush=True)
    text = "\n".join(
        [
            "# Relational layers",
            "",
            f"R-GCN's layer, {WIDTH} to {WIDTH} features, on all edges to {SEEDS:,} entities of FB15k-237, by its training",
            f"triples and their inverses: {place.block.num_src_nodes():,} sources, {edges:,} edges, {place.num_rels} relations,",
            f"{pairs:,} different pairs of relation and destination ({pairs / edges:.2f} of the edges). Forward and backward to",
            f"all weights and rows; layers in turn, medians of {options.rounds} rounds. `times as fast`: as PyG's RGCNConv, with",
            "one thread and with two. `MB`: what two steps take beyond the block in a process of their own. `differs by`: from",
            "PyG's RGCNConv with the same weights, over the largest number.",
            "",
            *("| " + " | ".join(row) + " |" for row in [table[0], ["---", "---", *["---:"] * 5], *table[1:]]),
            "",
            f"Command: `make bench-encoders`. Machine: {machine()}, PyG {sys.modules['torch_geometric'].__version__}.",
            "",
        ]
    )
    (HERE / "results" / "encoders.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
