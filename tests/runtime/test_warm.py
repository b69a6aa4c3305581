"""What is compiled before the workers start is all that a step needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patience

# Fresh processes, in which nothing else has asked for a kernel, forked by one that has imported all: each prints the kernels that
# real steps ask for after the warm-up.
CODE = """
import gc, json, os, sys
import numpy as np
from kgdist.options.config import Config
from kgdist.data.dataset import Triples
from kgdist.kvstore.tables import MemoryTables, initialise
from kgdist.models.registry import settle
from kgdist.models.registry import model_of
from kgdist.runtime.job import trainer_of
from kgdist.runtime.job import warm_up

def compiled():
    from numba.core.dispatcher import Dispatcher
    kernels = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {(each.py_func.__module__, each.py_func.__name__, args) for each in kernels for args in each.overloads}

def steps(given):
    flags = dict(hidden_dim=20, batch_size=32, neg_sample_size=16, max_step=4, neg_adversarial_sampling=True)
    config, _ = settle(Config(**flags, **given))
    weighted = config.has_edge_importance
    warm_up(config, weighted=weighted)
    before = compiled()
    rng = np.random.default_rng(0)
    array = rng.integers(0, 30, (90, 3)).astype(np.int32)
    tables = MemoryTables.create(model_of(config).tables(30, 30), config.optimizer)
    for stream, rows in enumerate(tables.rows.values()):
        initialise(rows, config.init, 0.1, seed=0, stream=stream)
    filling = compiled()
    trainer = trainer_of(config, Triples(array, np.ones(90, np.float32) if weighted else None), tables, 0)
    for step in range(4):
        trainer.step(step)
    return len(before) > 3, sorted(compiled() - filling)

assert not compiled()
for given in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        print(given["model_name"], *steps(given), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, given
"""

OPTIONS: dict[str, dict[str, object]] = {
    "TransE_l1": {},
    "DistMult": {"neg_deg_sample": True, "has_edge_importance": True},
    "RotatE": {"neg_deg_sample": True, "regularization_coef": 0.0},
    "TransR": {"optimizer": "adagrad"},
    "TransE_l2": {"loss_genre": "Hinge"},
}


@pytest.mark.slow
def test_a_step_asks_for_no_kernel_that_is_not_warm() -> None:
    given = [{"model_name": model, **options} for model, options in OPTIONS.items()]
    env = os.environ | {"PYTHONPATH": os.fspath(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(given)],
        env=env,
        capture_output=True,
        text=True,
        timeout=patience(200),
        check=False,
    )
    assert (done.stdout, done.returncode) == ("".join(f"{model} True []\n" for model in OPTIONS), 0), done.stderr
