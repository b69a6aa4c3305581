"""Tables: what is pulled is what was pushed, in one process and over shared memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.kernels.shares import Crew
from kgdist.kvstore import tables as memory
from kgdist.kvstore.optim import OPTIMIZERS, State
from kgdist.kvstore.tables import AsyncTables, MemoryTables, initialise
from tests.kvstore.servers import push
from tests.patience import patience

SHAPES = {"entity": (7, 4), "relation": (3, 2)}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_push_steps_the_optimiser_on_the_rows_named(optimizer: str, shared: bool) -> None:
    tables = MemoryTables.create(SHAPES, optimizer, shared=shared)
    ids, grads = torch.tensor([5, 2]), torch.randn(2, 4)
    push(tables, "entity", ids, grads, 0.1)
    rows = tables.pull("entity", torch.arange(7))
    assert rows[ids].ne(0).all() and not rows[[0, 1, 3, 4, 6]].any()
    assert not tables.block("relation", 0, 3).any()
    assert tables.names() == ["entity", "relation"] and tables.shape("relation") == (3, 2)
    tables.close()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_threads_that_share_an_update_make_the_same_one(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SHARED", 1)
    found = []
    ids, grads = torch.tensor([5, 2, 6, 0]), torch.randn(4, 4)
    for crew in (Crew(1), Crew(3)):
        tables = MemoryTables.create(SHAPES, optimizer)
        tables.crew, parts = crew, []
        monkeypatch.setattr(tables._rules["entity"], "apply", partial(counted, tables._rules["entity"].apply, parts))
        for _ in range(2):
            push(tables, "entity", ids, grads.clone(), 0.1)
        assert sorted(parts) == [1, 1, 1, 1, 2, 2] if crew.threads > 1 else parts == [4, 4]
        found.append(tables.arrays())
        crew.close()
    for key, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][key])


def counted(
    apply: Callable[..., None], parts: list[int], rows: torch.Tensor, state: State, ids: torch.Tensor, *more: Any
) -> None:
    """What `apply` does, having noted how many rows it is asked for."""
    parts.append(len(ids))
    apply(rows, state, ids, *more)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_arrays_carry_everything(optimizer: str) -> None:
    first = MemoryTables.create(SHAPES, optimizer)
    initialise(first.rows["entity"], "uniform", 0.5, seed=1, stream=0)
    push(first, "entity", torch.tensor([1, 3]), torch.randn(2, 4), 0.1)
    second = MemoryTables.create(SHAPES, optimizer)
    second.load({key: array.copy() for key, array in first.arrays().items()})
    grads = torch.randn(2, 4)
    for tables in (first, second):
        push(tables, "entity", torch.tensor([3, 6]), grads.clone(), 0.1)
    for key, array in first.arrays().items():
        np.testing.assert_array_equal(array, second.arrays()[key])


def test_another_process_sees_and_changes_the_same_rows() -> None:
    tables = MemoryTables.create(SHAPES, "adagrad_row", shared=True)
    handles = tables.handles()
    script = (
        "import json, sys, torch\n"
        "from kgdist.kvstore.tables import MemoryTables\n"
        "tables = MemoryTables.attach(json.loads(sys.argv[1]), 'adagrad_row')\n"
        "tables.apply('entity', torch.tensor([6]), torch.ones(1, 4), 0.5)\n"
    )
    fds = [handle["fd"] for handle in handles.values()]
    subprocess.run([sys.executable, "-c", script, json.dumps(handles)], pass_fds=fds, check=True, timeout=patience(60))
    torch.testing.assert_close(tables.rows["entity"][6], torch.full((4,), -0.5))
    assert tables.state["entity"]["sum"][6].item() == 1.0
    tables.close()


def test_async_updates_are_all_applied_after_a_flush() -> None:
    plain, delayed = (MemoryTables.create(SHAPES, "adagrad_row") for _ in range(2))
    behind = AsyncTables(delayed)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        grads = torch.randn(7, 4, generator=generator)
        push(plain, "entity", torch.arange(7), grads.clone(), 0.1)
        push(behind, "entity", torch.arange(7), grads.clone(), 0.1)
    behind.flush()
    assert torch.equal(plain.rows["entity"], delayed.rows["entity"])


@pytest.mark.parametrize("kind", ["uniform", "normal", "xavier"])
def test_first_values_depend_on_seed_and_row_alone(kind: str) -> None:
    rows, more, other = torch.zeros(500, 8), torch.zeros(600, 8), torch.zeros(500, 8)
    initialise(rows, kind, 0.5, seed=3, stream=0)
    initialise(more, kind, 0.5, seed=3, stream=0)
    initialise(other, kind, 0.5, seed=4, stream=0)
    if kind != "xavier":  # whose range depends on the number of rows
        assert torch.equal(rows, more[:500])
    parts = [torch.zeros(200, 8), torch.zeros(300, 8)]  # of two machines
    for part, first in zip(parts, (0, 200), strict=True):
        initialise(part, kind, 0.5, seed=3, stream=0, first=first, total=500)
    assert torch.equal(torch.cat(parts), rows)
    assert not torch.equal(rows, other)
    limit = {"uniform": 0.5, "normal": 0.5 / 3 * 6, "xavier": (6 / 508) ** 0.5}[kind]
    spread = {"uniform": 0.5 / 3**0.5, "normal": 0.5 / 3, "xavier": limit / 3**0.5}[kind]
    assert rows.abs().max() <= limit
    assert rows.std().item() == pytest.approx(spread, rel=0.05)
    assert abs(rows.mean().item()) < 0.02
