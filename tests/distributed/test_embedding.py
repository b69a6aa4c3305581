"""Embeddings: what a trainer reads is a leaf of autograd, and a step of a sparse optimiser is torch's where no id repeats."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.base.errors import CheckpointError, Diverged, UsageError
from kgdist.distributed.current import storage
from kgdist.distributed.embedding import DistEmbedding
from kgdist.distributed.sparse import SparseAdagrad, SparseAdam, SparseSGD
from kgdist.distributed.storage import Storage
from tests.distributed.places import PLACES

NODES, EDGES = (4, 0, 7, 1), (5, 9, 0, 6)
COUNT, DIM = sum(NODES), 3


@pytest.fixture(params=PLACES)
def there(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with PLACES[request.param](NODES, EDGES) as place:
        yield place


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.linspace(0.5, 2, shape[0] * shape[1], dtype=dtype).reshape(shape)


def rows(embedding: DistEmbedding) -> torch.Tensor:
    storage().flush()
    return embedding.weight[:]


@pytest.mark.parametrize(
    "ids", [[0, 1, 5, 11], np.array([0, 1, 5, 11]), torch.tensor([0, 1, 5, 11])], ids=["list", "array", "tensor"]
)
def test_one_step_of_adagrad_moves_its_rows_by_the_rate_and_no_others(there: Storage, ids: Any) -> None:
    embedding = DistEmbedding(COUNT, DIM, "test")
    optimizer = SparseAdagrad([embedding], lr=0.001)
    torch.sum(embedding(ids) + 1).backward()
    assert not rows(embedding).any(), "nothing moves before the step"
    optimizer.step()
    expected = torch.zeros(COUNT, DIM)
    expected[[0, 1, 5, 11]] = -0.001
    assert torch.allclose(rows(embedding), expected, rtol=1e-6, atol=0)
    optimizer.step()
    assert torch.allclose(rows(embedding), expected, rtol=1e-6, atol=0), "a gradient is used once"


OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "SGD": (lambda e: SparseSGD(e, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "Adagrad": (lambda e: SparseAdagrad(e, 0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
    "Adagrad, its eps": (lambda e: SparseAdagrad(e, 0.1, eps=0.5), lambda p: torch.optim.Adagrad(p, 0.1, eps=0.5)),
    "Adam": (lambda e: SparseAdam(e, 0.1), lambda p: torch.optim.SparseAdam(p, 0.1)),
    "Adam, its betas": (lambda e: SparseAdam(e, 0.1, (0.5, 0.9)), lambda p: torch.optim.SparseAdam(p, 0.1, (0.5, 0.9))),
}


@pytest.mark.parametrize("which", OPTIMIZERS)
def test_steps_are_those_of_torch_where_no_id_repeats(there: Storage, which: str) -> None:
    ours, theirs = OPTIMIZERS[which]
    embedding = DistEmbedding(COUNT, DIM, init_func=filled)
    twin = torch.nn.Embedding(COUNT, DIM, sparse=which != "SGD" and "Adagrad" not in which)
    twin.weight.data = embedding.weight[:]
    optimizer, other = ours([embedding]), theirs(list(twin.parameters()))
    ids = torch.tensor([11, 0, 3, 7, 4])
    factors = torch.arange(15.0).reshape(5, 3) - 6.5
    for step in range(4):
        for read, rule in ((embedding, optimizer), (twin, other)):
            rule.zero_grad()
            (read(ids).square() * (factors + step)).sum().backward()
            rule.step()
    assert torch.allclose(rows(embedding), twin.weight.data, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("duplicates", ["mean", "sum"])
def test_ids_that_repeat_make_one_update(there: Storage, duplicates: str) -> None:
    embedding = DistEmbedding(COUNT, 1)
    optimizer = SparseSGD([embedding], 1.0, duplicates=duplicates)
    factors = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    (embedding([5, 2, 5, 5]) * factors).sum().backward()
    (embedding([2]) * 10).sum().backward()  # two passes, one step
    optimizer.step()
    total = {5: (1 + 4 + 8, 3), 2: (2 + 10, 2)}
    for row, (value, count) in total.items():
        assert rows(embedding)[row].item() == pytest.approx(-value / (count if duplicates == "mean" else 1))


def test_mean_is_the_default_and_adagrad_sees_one_gradient(there: Storage) -> None:
    embedding = DistEmbedding(COUNT, DIM)
    optimizer = SparseAdagrad([embedding], lr=0.5)
    (embedding([3, 3]) + 1).sum().backward()
    optimizer.step()
    assert torch.allclose(rows(embedding)[3], torch.full((DIM,), -0.5))


def test_nothing_is_kept_while_gradients_are_off(there: Storage) -> None:
    embedding = DistEmbedding(COUNT, DIM)
    with torch.no_grad():
        assert not embedding([0, 1]).requires_grad
    read = embedding([0, 1])
    assert read.is_leaf and read.requires_grad
    kept = weakref.ref(read)
    del read
    gc.collect()
    assert kept() is None, "rows that nobody uses are forgotten"


def test_gradients_that_are_not_wanted_are_forgotten(there: Storage) -> None:
    embedding = DistEmbedding(COUNT, DIM)
    optimizer = SparseSGD([embedding], 1.0)
    embedding([0, 1]).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert not rows(embedding).any()


def test_a_pass_that_comes_after_a_step_is_of_the_next_one(there: Storage) -> None:
    embedding = DistEmbedding(COUNT, 1)
    optimizer = SparseSGD([embedding], 1.0)
    early, late = embedding([0]), embedding([1])
    early.sum().backward()
    optimizer.step()
    assert rows(embedding)[:2].flatten().tolist() == [-1, 0]
    late.sum().backward()
    optimizer.step()
    assert rows(embedding)[:2].flatten().tolist() == [-1, -1]


def test_two_passes_over_one_leaf_are_summed_and_used_once(there: Storage) -> None:
    embedding = DistEmbedding(COUNT, 1)
    optimizer = SparseSGD([embedding], 1.0)
    read = embedding([4])
    for factor in (1.0, 2.0):
        (read * factor).sum().backward()
    optimizer.step()
    (read * 4.0).sum().backward()
    optimizer.step()
    assert rows(embedding)[4].item() == -7


def test_the_rate_may_change(there: Storage) -> None:
    embedding = DistEmbedding(COUNT, 1)
    optimizer = SparseSGD([embedding], 1.0)
    for lr in (1.0, 0.25):
        optimizer.lr = lr
        embedding([4]).sum().backward()
        optimizer.step()
    assert rows(embedding)[4].item() == -1.25


def test_a_name_means_the_same_rows_and_state(there: Storage) -> None:
    first = DistEmbedding(COUNT, 1, "shared", init_func=filled)
    second = DistEmbedding(COUNT, 1, "shared")
    assert torch.equal(first.weight[:], second.weight[:])
    before = first.weight[7].item()
    for embedding in (first, second):
        optimizer = SparseAdagrad([embedding], lr=1.0)
        (embedding([7]) + 1).sum().backward()
        optimizer.step()
    assert rows(first)[7].item() == pytest.approx(before - 1 - 0.5**0.5)
    with pytest.raises(UsageError, match="'shared' is there already"):
        DistEmbedding(COUNT, 2, "shared")


def test_rows_have_one_optimiser_the_newest(there: Storage) -> None:
    embedding = DistEmbedding(COUNT, 1, "emb", init_func=filled)
    old, same, new = SparseAdagrad([embedding], 1.0), SparseAdagrad([embedding], 0.5), SparseAdagrad([embedding], 1.0, eps=1e-3)
    for optimizer in (old, same):
        embedding([4]).sum().backward()
        before = rows(embedding)
        with pytest.raises(UsageError, match="'emb'.*another optimiser was made for it; .* take steps of the newer one"):
            optimizer.step()
        assert torch.equal(rows(embedding), before)
    embedding([4]).sum().backward()
    new.step()
    assert not torch.equal(rows(embedding), before)
    one, other = SparseSGD([embedding], 1.0), SparseSGD([embedding], 2.0)  # of one rule and settings: they may take turns
    for optimizer in (one, other, one):
        embedding([4]).sum().backward()
        before = rows(embedding)
        optimizer.step()
        assert (before - rows(embedding))[4].item() == optimizer.lr


def test_an_embedding_is_no_module(there: Storage) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.linear = DistEmbedding(COUNT, DIM), torch.nn.Linear(DIM, 1)

    assert len(list(Net().parameters())) == 2


def test_gradients_that_are_no_numbers_are_refused(there: Storage) -> None:
    embedding = DistEmbedding(COUNT, 1, "emb")
    optimizer = SparseSGD([embedding], 1.0)
    (embedding([4]) * float("nan")).sum().backward()
    with pytest.raises(Diverged, match="DistEmbedding 'emb': a gradient is infinite or no number"):
        optimizer.step()
    assert not rows(embedding).any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"params": []}, "give it a list of DistEmbeddings"),
        ({"params": [torch.nn.Parameter(torch.zeros(2))]}, "parameters of a model are for an optimiser of torch"),
        ({"lr": -1}, "numbers from 0 on"),
        ({"lr": float("nan")}, "numbers from 0 on"),
        ({"eps": -1}, "numbers from 0 on"),
        ({"duplicates": "max"}, "'mean' or 'sum', not 'max'"),
    ],
)
def test_optimizers_that_cannot_be_are_refused(there: Storage, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SparseAdagrad(**{"params": [DistEmbedding(COUNT, 1)], "lr": 0.1} | wrong)
    embedding = DistEmbedding(COUNT, 1)
    with pytest.raises(UsageError, match="twice"):
        SparseAdagrad([embedding, embedding], 0.1)
    with pytest.raises(UsageError, match="at least one number"):
        DistEmbedding(COUNT, 0)
    with pytest.raises(UsageError, match=f"row {COUNT} is not there"):
        embedding([COUNT])


def trained(duplicates: str = "mean") -> tuple[DistEmbedding, SparseAdagrad]:
    embedding = DistEmbedding(COUNT, DIM, init_func=filled)
    optimizer = SparseAdagrad([embedding], 0.5, duplicates=duplicates)
    (embedding([0, 3, 11]) * torch.arange(9.0).reshape(3, 3)).sum().backward()
    optimizer.step()
    return embedding, optimizer


def test_what_is_saved_can_be_read_and_gone_on_with(there: Storage, tmp_path: Path) -> None:
    (one, rule), (other, other_rule) = trained(), (fresh := DistEmbedding(COUNT, DIM), SparseAdagrad([fresh], 0.5))
    for _ in range(2):  # the second time what is there goes
        one.save(tmp_path / "rows")
        rule.save(tmp_path / "state")
    other.load(tmp_path / "rows")
    other_rule.load(tmp_path / "state")
    assert torch.equal(rows(one), rows(other))
    for embedding, optimizer in ((one, rule), (other, other_rule)):
        (embedding([0, 5]) + 1).sum().backward()
        optimizer.step()
    assert torch.equal(rows(one), rows(other))


def test_folders_of_something_else_are_refused(there: Storage, tmp_path: Path) -> None:
    embedding, optimizer = trained()
    embedding.save(tmp_path / "rows")
    with pytest.raises(CheckpointError, match="is not the folder of a SparseAdagrad"):
        optimizer.load(tmp_path / "rows")
    with pytest.raises(CheckpointError, match="it has .*'width': 3.* to be loaded is .*'width': 2"):
        DistEmbedding(COUNT, 2).load(tmp_path / "rows")
    with pytest.raises(CheckpointError, match="no such file"):
        embedding.load(tmp_path / "nothing")
    said = tmp_path / "rows" / "tables.json"
    kept = said.read_text()
    said.write_text(kept.replace('"graph": "g"', '"graph": "other"'))
    with pytest.raises(CheckpointError, match="it has .*'graph': 'other', 'of': 'node~_N'.* to be loaded is .*'graph': 'g'"):
        embedding.load(tmp_path / "rows")
    said.write_text(kept)
    with pytest.raises(UsageError, match="something else is there"):
        embedding.save(tmp_path)
    ids = np.load(tmp_path / "rows" / "weight.ids.npy", allow_pickle=False)
    ids[0] = ids[1]
    np.save(tmp_path / "rows" / "weight.ids.npy", ids)
    with pytest.raises(CheckpointError, match="an id appears twice"):
        embedding.load(tmp_path / "rows")
