"""Neighbours drawn and numbered, beside the same in plain torch: `make bench-sampling`.

A graph of communities, made from a seed; batches of seeds, drawn once, go through our loader and through the twin in turn, in one
process and one thread. Times are those of a core, so that others who use the machine disturb less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from communities import BATCH, BATCHES, FANOUTS, graph_of
from roofs import machine

from kgdist.graphs.in_memory import Graph
from kgdist.sampling import MultiLayerNeighborSampler, NodeDataLoader

HERE = Path(__file__).parent

Layer = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]  # sources' ids, places of sources and destinations, edge ids


class Torch:
    """The same batches in plain torch, vectorised: Floyd's draw a column at a time where a node has more than the fan-out, all
    edges at once where it has not, and numbers from a table of all nodes that is made once and wiped by what was written."""

    def __init__(self, g: Graph) -> None:
        edges = g.in_edges_of()
        self.starts, self.sources = torch.from_numpy(edges.starts.copy()), torch.from_numpy(edges.sources.astype(np.int64))
        self.ids = torch.arange(g.num_edges()) if edges.ids is None else torch.from_numpy(edges.ids.copy())
        self.number = torch.full((g.num_nodes(),), -1)
        self.scratch = torch.empty(g.num_nodes(), dtype=torch.int64)

    def hop(self, seeds: torch.Tensor, fanout: int, replace: bool) -> Layer:
        """What seeds draw, numbered with the seeds first."""
        start = self.starts[seeds]
        degree = self.starts[seeds + 1] - start
        if replace:
            some = torch.nonzero(degree).squeeze(1)
            chosen = (torch.rand(len(some), fanout) * degree[some, None]).long()
            places = (start[some, None] + chosen).flatten()
            destinations = some.repeat_interleave(fanout)
        else:
            many, few = torch.nonzero(degree > fanout).squeeze(1), torch.nonzero(degree <= fanout).squeeze(1)
            chosen = torch.empty(len(many), fanout, dtype=torch.int64)
            drawn = torch.rand(fanout, len(many))
            for column in range(fanout):
                last = degree[many] - fanout + column
                number = (drawn[column] * (last + 1)).long()
                chosen[:, column] = torch.where((chosen[:, :column] == number[:, None]).any(1), last, number)
            counts = degree[few]
            within = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
            places = torch.cat([(start[many, None] + chosen).flatten(), start[few].repeat_interleave(counts) + within])
            destinations = torch.cat([many.repeat_interleave(fanout), few.repeat_interleave(counts)])
        ends = self.sources[places]
        self.number[seeds] = torch.arange(len(seeds))
        new = ends[self.number[ends] < 0]
        order = torch.arange(len(new))
        self.scratch[new] = order  # of a node that occurs often, one occurrence stays
        new = new[self.scratch[new] == order]
        self.number[new] = torch.arange(len(seeds), len(seeds) + len(new))
        nodes = torch.cat([seeds, new])
        sources = self.number[ends]
        self.number[nodes] = -1
        return nodes, sources, destinations, self.ids[places]

    def batch(self, seeds: torch.Tensor, replace: bool) -> list[Layer]:
        """A layer for each fan-out."""
        layers: list[Layer] = []
        for fanout in reversed(FANOUTS):
            layers.insert(0, self.hop(seeds, fanout, replace))
            seeds = layers[0][0]
        return layers


def timed(batches: Iterator[Any], edges: Callable[[Any], int]) -> tuple[float, int]:
    """Seconds of a core a batch, the first of each left out, and the edges of one on average."""
    next(batches)
    began, total, count = time.process_time(), 0, 0
    for batch in batches:
        total += edges(batch)
        count += 1
    return (time.process_time() - began) / count, total // count


def measure(g: Graph, rounds: int) -> list[str]:
    """Rows of the table, ours and the twin's in turn."""
    twin = Torch(g)
    seeds = torch.from_numpy(np.random.default_rng(1).permutation(g.num_nodes())[: BATCH * BATCHES])
    lines = []
    for replace in (False, True):
        loader = NodeDataLoader(
            g, seeds, MultiLayerNeighborSampler(FANOUTS, replace=replace), batch_size=BATCH, seed=0, num_workers=0
        )
        found: dict[str, list[tuple[float, int]]] = {"kgdist": [], "plain torch": []}
        for _ in range(rounds):
            found["kgdist"].append(timed(iter(loader), lambda batch: sum(block.num_edges() for block in batch[2])))
            layers = (twin.batch(part, replace) for part in seeds.split(BATCH))
            found["plain torch"].append(timed(layers, lambda batch: sum(len(layer[3]) for layer in batch)))
        seconds = {name: statistics.median(each[0] for each in rows) for name, rows in found.items()}
        for name, rows in found.items():
            ratio = statistics.median(theirs[0] / own[0] for own, theirs in zip(found[name], found["plain torch"], strict=True))
            cells = [name, "yes" if replace else "no", f"{BATCH / seconds[name]:,.0f}", f"{rows[0][1] / seconds[name] / 1e6:.1f}"]
            lines.append("| " + " | ".join([*cells, f"{rows[0][1]:,}", f"{ratio:.2f}"]) + " |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    g = graph_of(options.data, options.nodes, options.edges)
    began = time.process_time()
    g.in_edges_of()
    sorting = time.process_time() - began
    text = "\n".join(
        [
            "# Neighbours",
            "",
            f"A graph of {options.nodes:,} nodes and {options.edges:,} edges in memory, made from a seed: communities,",
            f"degrees by a power law, ids shuffled. {BATCHES} batches of {BATCH} seeds, fan-outs {FANOUTS} (the last next to",
            "the seeds), through `NodeDataLoader` without workers, and through plain torch, in turn; one thread, seconds of a",
            f"core, medians of {options.rounds} rounds. `times`: how many times as fast as plain torch in the same round.",
            f"Bringing the edges into order, which is done once, took {sorting:.1f} s.",
            "",
            "| | replacement | seeds/s | million edges/s | edges a batch | times |",
            "|---|---|---:|---:|---:|---:|",
            *measure(g, options.rounds),
            "",
            f"Command: `make bench-sampling`. Machine: {machine()}.",
            "",
        ]
    )
    (HERE / "results" / "sampling.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
