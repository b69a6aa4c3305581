"""The graph of communities, made from a seed, that partitions and samplers are measured with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kgdist.graphs.in_memory import Graph, graph

GROUPS, MIXING = 1000, 0.25  # communities, and the share of triples that ignore them
RELATIONS = 100
FANOUTS, BATCH, BATCHES = [25, 10], 1024, 40  # of the samplers


def synthetic(file: Path, entities: int, triples: int, seed: int = 1, mixing: float = MIXING, exponent: float = 3) -> None:
    """Write int32[triples, 3] of a graph whose entities have unequal degrees, by a power law, and one community each."""
    rng = np.random.default_rng(seed)
    weight = rng.pareto(exponent - 1, entities) + 1
    if exponent < 3:  # Chung and Lu's bound: no entity is expected in more triples with another than one
        weight = np.minimum(weight, np.sqrt(weight.sum()))
    group = np.sort(rng.integers(0, GROUPS, entities))
    ends = np.cumsum(weight)
    first = np.searchsorted(group, np.arange(GROUPS + 1))
    low, high = np.append(0, ends)[first[:-1]], np.append(0, ends)[first[1:]]  # the weights of each community
    heads = np.searchsorted(ends, rng.random(triples) * ends[-1])
    inside = low[group[heads]] + rng.random(triples) * (high - low)[group[heads]]
    anywhere = rng.random(triples) * ends[-1]
    tails = np.searchsorted(ends, np.where(rng.random(triples) < mixing, anywhere, inside)).clip(max=entities - 1)
    shuffle = rng.permutation(entities).astype(np.int32)  # ids tell nothing of communities
    rows = np.stack([shuffle[heads], rng.integers(0, RELATIONS, triples, dtype=np.int32), shuffle[tails]], axis=1)
    np.save(file, rows, allow_pickle=False)


def triples_of(data: Path, entities: int, triples: int, mixing: float = MIXING, exponent: float = 3) -> Path:
    """The file of `synthetic`, made when it is first asked for."""
    data.mkdir(parents=True, exist_ok=True)
    other = "" if (mixing, exponent) == (MIXING, 3) else f"-{mixing:g}-{exponent:g}"
    file = data / f"communities-{entities}-{triples}{other}.npy"
    if not file.exists():
        synthetic(file, entities, triples, mixing=mixing, exponent=exponent)
    return file


def graph_of(data: Path, nodes: int, edges: int) -> Graph:
    """The same without its relations."""
    triples = np.load(triples_of(data, nodes, edges), mmap_mode="r", allow_pickle=False)
    return graph((triples[:, 0].copy(), triples[:, 2].copy()), num_nodes=nodes)
