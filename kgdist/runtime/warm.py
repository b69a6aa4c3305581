"""Compiling the kernels of a training once, before its workers start, so that each finds them in the cache.

The kernels are those that two small steps of the very training run, one for each side: what a step consists of is no concern of
this file.
"""

from __future__ import annotations

import contextlib

import numpy as np

from kgdist.base.errors import KgdistError
from kgdist.data.dataset import Triples
from kgdist.kvstore.tables import MemoryTables
from kgdist.options.config import Config
from kgdist.runtime.job import model_of, trainer_of

TRIPLES = 8
ENTITIES = 4


def warm_up(config: Config, *, weighted: bool) -> None:
    """Train two steps on a graph of four entities, which is thrown away; `weighted`: its triples have weights.

    Takes milliseconds when the kernels are in the cache. Does nothing where GPUs do the work.
    """
    if config.gpu[0] >= 0:
        return
    short = {"batch_size": TRIPLES, "neg_sample_size": ENTITIES, "max_step": 2, "max_epoch": None}
    small = config.replace(**short, num_proc=1, lr=1e-6, adversarial_temperature=1.0)
    ids = np.arange(TRIPLES, dtype=np.int32)
    array = np.stack([ids % ENTITIES, np.zeros_like(ids), (ids + 1) % ENTITIES], axis=1)  # int32[TRIPLES, 3]
    triples = Triples(array, np.ones(TRIPLES, np.float32) if weighted else None)
    tables = MemoryTables.create(model_of(small).tables(ENTITIES, 1), small.optimizer)
    for rows in tables.rows.values():
        rows.fill_(0.1)
    trainer = trainer_of(small, triples, tables, 0)
    with contextlib.suppress(KgdistError):  # options of which no training can come: the training will say so
        for step in range(2):
            trainer.step(step)
