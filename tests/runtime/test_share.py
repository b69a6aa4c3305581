"""What a worker trains on beside others: which entities it has, which of them are negatives, and what its batch counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgdist.cli import partition as partition_command
from kgdist.data.batches import Batches
from kgdist.data.dataset import Triples
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import model_of, settle
from kgdist.options.config import Config
from kgdist.partition.edges_folder import EdgePartition
from kgdist.runtime.job import Seat, shapes_of, weights_of
from kgdist.runtime.share import Share
from kgdist.training.step import Clock

ENTITIES, ALONE = 60, 3  # of which so many have no triples to train on
CONFIG = {"encoder": "sage", "model_name": "DistMult", "hidden_dim": 8, "encoder_dim": 8, "batch_size": 16, "neg_sample_size": 8}


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a ring of entities in two partitions, of which neither is the whole graph."""
    root = tmp_path_factory.mktemp("space")
    ring = range(ENTITIES - ALONE)
    lines = [f"e{n}\tr{n % 2}\te{(n + 1) % len(ring)}\n" for n in ring]
    (root / "train.tsv").write_text("".join(lines))
    for split in ("valid", "test"):
        (root / f"{split}.tsv").write_text("".join(f"e1\tr0\tnew{n}\n" for n in range(ALONE)))
    words = ["--dataset", "ring", "--format", "raw_udd_hrt", "--data_path", str(root), "--quiet", "-k", "2", "--edges"]
    files = ["--data_files", "train.tsv", "valid.tsv", "test.tsv"]
    assert partition_command.main([*words, *files, "--expand", "3", "--out", str(root / "parts" / "ring")]) == 0
    return root


def shares(space: Path, config: Config) -> list[tuple[Share, Any]]:
    """Of both workers, and who they think are the others."""
    parts = [EdgePartition.open(space / "parts" / "ring" / f"partition_{n}") for n in range(2)]
    cores = [torch.from_numpy(part.entities[: part.num_core].astype(np.int64)) for part in parts]
    found = []
    for rank in range(2):
        peers: Any = SimpleNamespace(rank=rank, world=2, same=lambda text: True, each=lambda values: cores)
        found.append((Share.of(config, peers), peers))
    return found


@pytest.mark.parametrize("negatives", ["global", "local"])
def test_whoever_has_a_row_is_a_negative(space: Path, negatives: str) -> None:
    """All entities that the partition suffices for, and those without triples: what no worker ever held against an answer would
    stand before it."""
    given = CONFIG | {"path": str(space), "data_path": "parts", "dataset": "ring", "negatives": negatives}
    config, _ = settle(Config(**given), set(given))
    met_by_any = np.zeros(ENTITIES, bool)
    for share, peers in shares(space, config):
        reached = len(share.part.entities)
        assert share.part.num_core < share.part.whole(2).sum() < reached < ENTITIES - ALONE
        alone = share.entities[reached : reached + ALONE]
        assert set(alone.tolist()).isdisjoint(np.concatenate(share.cores)) and len(set(share.entities.tolist())) == len(
            share.entities
        )
        assert len(share.entities) == (reached + ALONE if peers.rank else ENTITIES)
        tables = MemoryTables.create(shapes_of(config, model_of(config), len(share.entities), share.relations), "sgd")
        encoding = share.encoding(config)
        tables.add(weights_of(encoding))
        trainer = share.trainer(config, share.seat(config, peers), tables, encoding, peers)
        met = np.zeros(ENTITIES, bool)
        for step in range(200):
            met[share.entities[trainer.batch(step).negatives]] = True
        expected = np.zeros(ENTITIES, bool)
        expected[share.part.entities[: share.part.num_core] if negatives == "local" else alone] = True
        if negatives == "global":
            expected[share.part.entities[share.part.whole(2)]] = True
        assert np.array_equal(met, expected)
        met_by_any |= met
    assert met_by_any.all() == (negatives == "global")


@pytest.mark.parametrize("negatives", ["global", "local"])
def test_a_drawn_entity_stands_for_as_many_with_every_worker(space: Path, negatives: str) -> None:
    given = CONFIG | {
        "path": str(space),
        "data_path": "parts",
        "dataset": "ring",
        "negatives": negatives,
        "loss_genre": "Softmax",
    }
    config, _ = settle(Config(**given), set(given))
    for share, peers in shares(space, config):
        tables = MemoryTables.create(shapes_of(config, model_of(config), len(share.entities), share.relations), "sgd")
        encoding = share.encoding(config)
        tables.add(weights_of(encoding))
        batch = share.trainer(config, share.seat(config, peers), tables, encoding, peers).batch(0)
        assert batch.stands is not None and np.allclose(batch.stands, ENTITIES / config.neg_sample_size)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(1, 20), st.integers(0, 50))
def test_a_mean_of_means_is_that_of_all_positives(triples: list[int], size: int, step: int) -> None:
    """Whatever numbers the workers have, and wherever their epochs end."""
    values = [np.random.default_rng(n).normal(size=(count, 1)) for n, count in enumerate(triples)]
    batches = [Batches(Triples(np.zeros((count, 3), np.int32), None), size, seed=0).at(step).numbers for count in triples]
    means, numbers = [], []
    for machine, (own, batch) in enumerate(zip(values, batches, strict=True)):
        seat = Seat(machine, len(triples), len(triples) * max(triples), (0, 1), tuple(triples))
        means.append(seat.weight(size, step) * own[batch].mean())
        numbers.append(own[batch])
    assert np.mean(means) == pytest.approx(np.concatenate(numbers).mean())
    assert Seat(0, 3, 30, (0, 1)).weight(size, step) == 1  # whose steps are nobody else's


def test_what_a_step_counts_is_in_all_that_it_changes(space: Path) -> None:
    given = CONFIG | {"path": str(space), "data_path": "parts", "dataset": "ring", "dropout": 0.0}
    config, _ = settle(Config(**given), set(given))
    ((share, peers), _) = shares(space, config)
    tables = MemoryTables.create(shapes_of(config, model_of(config), len(share.entities), share.relations), "sgd")
    encoding = share.encoding(config)
    tables.add(weights_of(encoding))
    for rows in tables.rows.values():
        rows.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(5))
    counts = tuple(share.part.manifest.common.sizes["core"])
    step = -(-counts[0] // config.batch_size) - 1  # a short one, and not that of the other worker
    found = []
    for shared in (counts, ()):
        seat = Seat(0, 2, 2 * max(counts), (0, share.part.num_core), shared)
        trainer = share.trainer(config, seat, tables, encoding, peers)
        updates, _ = trainer._step(trainer._plan(step), Clock())
        found.append({name: update.times(1) for name, update in updates.items()})
    weight = Seat(0, 2, 2 * max(counts), (0, 1), counts).weight(config.batch_size, step)
    assert weight != 1 and found[0].keys() == found[1].keys() == {"entity", "relation", "encoder"}
    for name, update in found[0].items():
        torch.testing.assert_close(update.grads, found[1][name].times(weight).grads)
        if update.squares is not None:
            torch.testing.assert_close(update.squares, found[1][name].times(weight).squares)
