"""Row-sparse Adagrad and gathering against the formula in float64, row by row; rows at the very end of a table, too, where a loop
that looks ahead could look too far."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels import jit
from kgdist.kernels.route import FINITE
from kgdist.kernels.rows import AHEAD, adagrad_rows, add_rows, gather_rows
from kgdist.kvstore.optim import MOST_GRADIENT, MOST_RATE, MOST_SQUARES, OPTIMIZERS

PAGE = mmap.PAGESIZE


@pytest.fixture(params=["numba", "torch"], autouse=True, scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test of this file runs with either twin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "WANTED", request.param)
        yield request.param


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 70), st.sampled_from([0.0, 1e-20, 1.0, 1e15]), st.booleans())
@settings(max_examples=60)
def test_two_steps_of_the_formula(seed: int, rows: int, width: int, scale: float, strided: bool) -> None:
    make = torch.Generator().manual_seed(seed)
    table, state = torch.randn(rows, width, generator=make), torch.zeros(rows)
    want_table, want_state = table.double(), state.double()
    for _ in range(2):
        ids = torch.randperm(rows, generator=make)[: int(torch.randint(rows + 1, (), generator=make))]
        grads = torch.randn(len(ids), width, generator=make) * scale
        if strided:
            grads = grads.T.contiguous().T
        adagrad_rows(table, state, ids, grads, 0.25)
        for row, gradient in zip(ids.tolist(), grads.double(), strict=True):
            want_state[row] += gradient.square().mean()
            want_table[row] -= 0.25 * gradient / (want_state[row].sqrt() + 1e-10)
    torch.testing.assert_close(state.double(), want_state, rtol=2e-6, atol=1e-37)
    torch.testing.assert_close(table.double(), want_table, rtol=2e-6, atol=4e-6)
    assert table.isfinite().all()


def test_squares_may_be_given() -> None:
    """They go into the state in place of the mean square of the gradient."""
    table, state = torch.zeros(4, 3), torch.ones(4)
    adagrad_rows(table, state, torch.tensor([3, 1]), torch.ones(2, 3), 1.0, squares=torch.tensor([8.0, 3.0]))
    assert state.tolist() == [1.0, 4.0, 1.0, 9.0]
    torch.testing.assert_close(table, torch.tensor([[0.0] * 3, [-0.5] * 3, [0.0] * 3, [-1 / 3] * 3]))


@given(st.integers(1, 20), st.integers(1, 40), st.lists(st.integers(0, 10**6), max_size=50))
@settings(max_examples=40)
def test_added_rows(rows: int, width: int, numbers: list[int]) -> None:
    """An id may come again; wide tables, parts of them, and other numbers than float32 are the same."""
    ids = torch.tensor([number % rows for number in numbers], dtype=torch.int64)
    more = torch.arange(len(ids) * width, dtype=torch.float32).view(len(ids), width) / 7
    wide = torch.ones(rows, 2 * width)
    expected = np.ones((rows, width), np.float32)
    np.add.at(expected, ids.numpy(), more.numpy())
    narrow = torch.ones(rows, width)
    for table, added in ((narrow, more), (wide[:, :width], more), (torch.ones(rows, width).double(), more.double())):
        add_rows(table, ids, added)
        torch.testing.assert_close(table.float(), torch.from_numpy(expected))
    assert (wide[:, width:] == 1).all()


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("squares", [False, True])
def test_some_of_the_gradients_are_the_same_as_a_copy_of_them(name: str, squares: bool) -> None:
    rule, generator = OPTIMIZERS[name](), torch.Generator().manual_seed(3)
    grads, given = torch.randn(9, 5, generator=generator), torch.rand(9, generator=generator) if squares else None
    ids, places = torch.tensor([4, 0, 6]), torch.tensor([8, 2, 5])
    found = []
    for where in (places, None):
        rows = torch.ones(7, 5)
        state = {key: torch.full((7, width), 0.5) for key, width in rule.widths(5).items()}
        picked = grads if where is not None else grads[places]
        other = given if where is not None or given is None else given[places]
        rule.apply(rows, state, ids, picked, 0.1, other, where)
        found.append([rows, *state.values()])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))
    with pytest.raises(IndexError):
        adagrad_rows(torch.ones(7, 5), torch.ones(7), ids, grads, 0.1, places=torch.tensor([8, 2, 9]))


def test_other_rows_are_not_touched() -> None:
    table, state = torch.randn(10, 7), torch.rand(10)
    before = table.clone(), state.clone()
    adagrad_rows(table, state, torch.tensor([9, 0, 4]), torch.ones(3, 7), 0.1)
    others = torch.tensor([1, 2, 3, 5, 6, 7, 8])
    assert torch.equal(table[others], before[0][others])
    assert torch.equal(state[others], before[1][others])
    assert (table[[0, 4, 9]] < before[0][[0, 4, 9]]).all()


def test_part_of_a_larger_table() -> None:
    """A table with gaps between its rows is updated where it lies."""
    whole, state = torch.zeros(6, 10), torch.zeros(6)
    adagrad_rows(whole[:, :4], state, torch.tensor([2]), torch.ones(1, 4), 1.0)
    assert torch.equal(whole[2], torch.tensor([-1.0] * 4 + [0.0] * 6))
    assert float(whole.sum()) == -4


def test_threads_may_share_a_table() -> None:
    """Threads with rows of their own do not disturb each other."""
    table, state = torch.zeros(4000, 16), torch.zeros(4000)

    def work(first: int) -> None:
        ids = torch.arange(first, 4000, 4)
        for _ in range(20):
            adagrad_rows(table, state, ids, torch.ones(len(ids), 16), 0.5)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (state == 20).all()
    expected = -0.5 * sum(n**-0.5 for n in range(1, 21))
    torch.testing.assert_close(table, torch.full_like(table, expected))


@pytest.mark.parametrize("bad", [-1, 10, 2**40])
def test_ids_outside_are_refused_before_anything_is_written(bad: int) -> None:
    table, state = torch.zeros(10, 3), torch.zeros(10)
    with pytest.raises(IndexError, match="table of 10 rows"):
        adagrad_rows(table, state, torch.tensor([3, bad]), torch.ones(2, 3), 0.1)
    with pytest.raises(IndexError, match="table of 10 rows"):
        gather_rows(table, torch.tensor([3, bad]))
    with pytest.raises(IndexError, match="table of 10 rows"):
        add_rows(table, torch.tensor([3, bad]), torch.ones(2, 3))
    assert not table.any()
    assert not state.any()


def test_shapes_that_disagree_are_refused() -> None:
    table, state, ids = torch.zeros(10, 3), torch.zeros(10), torch.tensor([1, 2])
    for states, grads in ((state[:9], torch.ones(2, 3)), (state, torch.ones(3, 3)), (state, torch.ones(2, 4))):
        with pytest.raises(ValueError, match="do not fit"):
            adagrad_rows(table, states, ids, grads, 0.1)
    with pytest.raises(ValueError, match="do not fit"):
        adagrad_rows(table, state, ids, torch.ones(2, 3), 0.1, squares=torch.ones(3))


@given(st.integers(1, 20), st.integers(1, 40), st.lists(st.integers(0, 10**6), max_size=50))
@settings(max_examples=40)
def test_gathered_rows(rows: int, width: int, numbers: list[int]) -> None:
    table = torch.arange(rows * width, dtype=torch.float32).view(rows, width)
    ids = torch.tensor([number % rows for number in numbers], dtype=torch.int64)
    got = gather_rows(table, ids)
    assert torch.equal(got, table[ids])
    out = torch.full((len(ids), width), -1.0)
    assert gather_rows(table, ids, out) is out
    assert torch.equal(out, got)
    got.fill_(-5)
    assert (table >= 0).all()  # it was a copy
    assert torch.equal(gather_rows(table.double(), ids), table[ids].double())


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@given(st.data())
@settings(max_examples=100)
def test_within_the_limits_nothing_becomes_infinite(name: str, data: st.DataObject) -> None:
    """Finite rows, and states that begin at anything their own rule can have left, stay finite whatever a step brings."""
    tiny, top, squares = 1e-45, float(MOST_GRADIENT), float(MOST_SQUARES)

    def some(count: int, *corners: float) -> torch.Tensor:
        numbers = st.sampled_from(corners) | st.floats(min(corners), max(corners), width=32)
        return torch.tensor(data.draw(st.lists(numbers, min_size=count, max_size=count)), dtype=torch.float32)

    rule = OPTIMIZERS[name]()
    table = some(4, -float(FINITE), -1.0, 0.0, float(FINITE)).view(2, 2)
    state = {key: torch.zeros(2, width) for key, width in rule.widths(2).items()}
    if "sum" in state:
        state["sum"][:] = some(1, 0.0, tiny, 1.0, float(FINITE))
    for _ in range(3):
        grads, given = some(4, -top, -1.0, -tiny, 0.0, tiny, 1.0, top).view(2, 2), some(2, 0.0, tiny, 1.0, squares)
        lr = data.draw(st.sampled_from([MOST_RATE, -MOST_RATE, tiny, 0.1]))
        rule.apply(table, state, torch.tensor([1, 0]), grads, lr, data.draw(st.sampled_from([None, given])))
        assert table.isfinite().all() and all(part.isfinite().all() for part in state.values())


@pytest.fixture(params=[1, 4, 15, 16, 17, 33, 64, 100, 256])
def table(request: pytest.FixtureRequest) -> Iterator[torch.Tensor]:
    """float32[n, width] that ends where memory ends: reading or writing one number more kills the process."""
    width = int(request.param)
    size = 8 * PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes, libc.mprotect.argtypes = (
        [ctypes.c_void_p, ctypes.c_size_t],
        [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int],
    )
    start = libc.mmap(None, size + PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert start not in (None, ctypes.c_void_p(-1).value)
    assert libc.mprotect(start + size, PAGE, 0) == 0
    rows = size // (4 * width)
    whole = np.ctypeslib.as_array((ctypes.c_float * (rows * width)).from_address(start + size - 4 * rows * width))
    whole[:] = np.arange(len(whole))
    yield torch.from_numpy(whole).view(rows, width)
    assert libc.munmap(start, size + PAGE) == 0


def test_the_last_rows(table: torch.Tensor) -> None:
    last = len(table) - 1
    for count in range(2 * AHEAD + 2):
        ids = torch.arange(last, last - count, -1)
        assert torch.equal(gather_rows(table, ids), table[ids])
        twice = torch.cat([ids, ids.flip(0)])
        assert torch.equal(gather_rows(table, twice), table[twice])
        want = table.clone()
        want[ids] -= 0.5
        adagrad_rows(table, torch.zeros(len(table)), ids, torch.ones(count, table.shape[1]), 0.5)
        assert torch.equal(table, want)
