"""What is compiled before a server serves is all that it can be asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patience

# A fresh process, in which nothing else has asked for a loop: prints the loops that questions of every kind ask for afterwards.
CODE = """
import gc
import numpy as np
from kgdist.distributed.joining import compiled
from kgdist.graphs.structure import Draw, InEdges, Question

def loops():
    from numba.core.dispatcher import Dispatcher
    made = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {(each.py_func.__module__, each.py_func.__name__, args) for each in made for args in each.overloads}

compiled()
before = loops()
for wide in (np.int32, np.int64):
    edges = InEdges(np.array([0, 2, 3]), np.array([5, 1, 0], wide), None, 100, 7)
    for dtype in (None, np.bool_, np.uint8, np.float16, np.float32, np.float64):
        for fanout, replace in ((-1, False), (1, False), (2, True), (9, False)):
            for exclude in (None, np.array([101])):
                question = Question(("a", "b", "c"), np.array([7, 8, 7]), fanout, replace, "w", False, exclude)
                weights = None if dtype is None else np.ones(3, dtype)
                edges.neighbours(question, Draw(1, 2, 3), 4, weights)
    edges.find_edges(np.array([100])), edges.degrees(np.array([7]))
print(len(before) > 5, sorted(loops() - before))
"""


@pytest.mark.slow
def test_no_question_asks_for_a_loop_that_is_not_there() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=root, capture_output=True, text=True, timeout=patience(180), env=os.environ
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True []"), done.stderr
