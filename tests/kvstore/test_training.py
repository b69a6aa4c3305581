"""One trainer through the store, whatever lies elsewhere, trains bit for bit as with the tables in its own memory, when it asks
for rows after its pushes. Trainers look a batch ahead (`StoreTables.ahead`); what a pull then sees is told in test_store.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kgdist.data.dataset import Triples
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.layout import Layout
from kgdist.models.registry import model_of, settle
from kgdist.options.built_in import BUILT_IN
from kgdist.options.config import Config
from kgdist.runtime.job import trainer_of
from tests.kvstore.servers import Store
from tests.kvstore.test_store import PLACES, filled

STEPS = 40


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", BUILT_IN)
def test_the_store_changes_nothing(name: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreTables, "ahead", lambda *_: None)
    config, _ = settle(
        Config(
            model_name=name, hidden_dim=6, gamma=5.0, lr=0.2, batch_size=12, neg_sample_size=4,
            neg_adversarial_sampling=True, max_step=STEPS,
        )
    )  # fmt: skip
    shapes = model_of(config).tables(30, 6)
    rng = np.random.default_rng(0)
    triples = Triples(np.stack([rng.integers(top, size=50) for top in (30, 6, 30)], axis=1).astype(np.int32))
    bounds = {table: np.array([0, rows // 3, rows]) for table, (rows, _) in shapes.items()}
    where = dict(PLACES[place])
    widths = {table: width for table, (_, width) in shapes.items()}
    layout = Layout.build(widths, bounds, [2, 1], by_owner=where.pop("by_owner", False))
    running = Store(layout, config.optimizer, None, 5.0)
    try:
        twin, tables = filled(running, config.optimizer), running.client(**where)
        alone, remote = trainer_of(config, triples, twin, 0), trainer_of(config, triples, tables, 0)
        for step in range(STEPS):  # small enough that most rows come again in the next step
            assert alone.step(step)[0].total == remote.step(step)[0].total, step
            tables.flush()
        for table in shapes:
            assert torch.equal(torch.from_numpy(running.whole(table)), twin.rows[table]), table
    finally:
        running.close()
