"""Speed of the best relations between two entities: `make bench-relations`.

The ten best relations of pairs of entities at FB15k's size, random rows, on one thread: by the score function's query for
relations, which meets all of them in one product, and triple by triple, as for score functions that have none. Both in each
round, and both give the same ids and scores, bit for bit. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from unittest.mock import PropertyMock, patch

import numpy as np
import torch
from roofs import machine

from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import make_model
from kgdist.predict.engine import Found, Predictor

HERE = Path(__file__).parent
ENTITIES, RELATIONS, K = 14_951, 1_345, 10
SIZES = {"ComplEx": 400, "DistMult": 400, "TransE_l1": 400, "TransE_l2": 400, "SimplE": 400, "RESCAL": 100}


def asked(name: str, dim: int, pairs: tuple[int, int], rounds: int) -> str:
    """A row of the table; `pairs` for the one way and for the other."""
    model = make_model(name, hidden_dim=dim, entity_dim=dim, relation_dim=dim, gamma=12.0)
    random, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    shapes = model.tables(ENTITIES, RELATIONS).items()
    tables = MemoryTables({table: torch.empty(s).uniform_(-1, 1, generator=random) for table, s in shapes}, {}, "sgd")
    predictor, (heads, tails) = Predictor(model, tables, ENTITIES, RELATIONS), rng.integers(0, ENTITIES, (2, max(pairs)))
    predictor.top_relations(heads[:50], tails[:50], K)  # loads the loops

    def one_way(count: int) -> tuple[float, Found]:
        started = time.perf_counter()
        found = predictor.top_relations(heads[:count], tails[:count], K)
        return (time.perf_counter() - started) / count, found

    taken = []
    for _ in range(rounds):
        fast, by_query = one_way(pairs[0])
        with patch.object(Model, "asks_relations", PropertyMock(return_value=False)):
            slow, one_by_one = one_way(pairs[1])
        assert all((a[: pairs[1]] == b).all() for a, b in zip(by_query, one_by_one, strict=True))
        taken.append((fast, slow, slow / fast))
    fast, slow, times = (statistics.median(column) for column in zip(*taken, strict=True))
    line = f"| {name} | {dim} | {1e3 * fast:.2f} | {1e3 * slow:.1f} | {times:.0f} |"
    print(line, flush=True)
    return line


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, nargs=2, default=(2000, 200), metavar="N")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = [asked(name, dim, tuple(options.pairs), options.rounds) for name, dim in SIZES.items()]
    lines = [
        "# The best relations between two entities",
        "",
        f"The {K} best of {RELATIONS:,} relations for pairs of {ENTITIES:,} entities (FB15k's size), random rows, on one thread:",
        "milliseconds a pair by the query for relations, which all of them meet in one product, and triple by triple. Both give",
        f"the same ids and scores, bit for bit. Medians of {options.rounds} interleaved rounds.",
        "",
        "| model | dim | ms by query | ms by triples | times |",
        "|---|---:|---:|---:|---:|",
        *table,
        "",
        f"Command: `make bench-relations`. Machine: {machine()}.",
        "",
    ]
    (HERE / "results" / "relations.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
