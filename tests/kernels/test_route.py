"""Ids by owner and back: held against plain loops over dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kgdist.kernels.route import (
    FINE,
    FINITE,
    GRADIENTS,
    OUTSIDE,
    SQUARES,
    TWICE,
    gather_bfloat,
    gather_parts,
    look_up,
    owners,
    route,
    scatter_rows,
    shifted,
    vetted,
    widen,
    within,
)


def starts_of(sizes: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6), picks=st.lists(st.integers(0, 1 << 30), max_size=40),
       own=st.integers(0, 5))  # fmt: skip
def test_every_position_finds_its_row_again(sizes: list[int], picks: list[int], own: int) -> None:
    starts = starts_of(sizes)
    ids = np.array([p % starts[-1] for p in picks] if starts[-1] else [], np.int64)
    low, high = (int(starts[own]), int(starts[own + 1])) if own < len(sizes) else (0, 0)
    found = route(ids, starts, low, high)
    assert owners(starts, ids).tolist() == [max(s for s in range(len(sizes)) if starts[s] <= i < starts[s + 1]) for i in ids]
    elsewhere = {i for i in ids.tolist() if not low <= i < high}
    assert sorted(found.ids.tolist()) == sorted(elsewhere)
    assert all(low <= ids[p] < high for p in found.here()) and len(found.here()) == sum(low <= i < high for i in ids)
    for server in range(len(sizes)):
        mine = found.ids[found.offsets[server] : found.offsets[server + 1]]
        assert all(starts[server] <= row < starts[server + 1] for row in mine)
        positions = found.of(server)
        assert (found.ids[found.slots[positions]] == ids[positions]).all() and (np.diff(positions) > 0).all()
        assert set(ids[positions].tolist()) == set(mine.tolist())
    assert sorted(found.places.tolist()) == list(range(len(ids)))


@pytest.mark.parametrize("wrong", [-1, 9, 1 << 62, -(1 << 62)])
def test_an_id_that_nobody_owns_is_refused(wrong: int) -> None:
    ids, starts = np.array([3, wrong, 4]), starts_of([4, 5])
    with pytest.raises(IndexError, match=f"row {wrong} in a table of rows 0 to 8"):
        route(ids, starts)
    with pytest.raises(IndexError, match=f"row {wrong} in"):
        owners(starts, ids)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@given(
    ids=st.lists(st.integers(-3, 12), max_size=8), low=st.integers(-2, 5), high=st.integers(0, 12), base=st.integers(-4, 1 << 40)
)
def test_ids_are_shifted_where_all_are_inside(kind: type, ids: list[int], low: int, high: int, base: int) -> None:
    found = shifted(np.array(ids, kind), low, high, base)
    if all(low <= i < high for i in ids):
        assert found is not None and found.dtype == np.int64 and found.tolist() == [i - base for i in ids]
    else:
        assert found is None


def test_rows_are_scattered() -> None:
    random = np.random.default_rng(0)
    source, out = random.normal(size=(9, 33)).astype(np.float32), np.zeros((20, 33), np.float32)
    rows, places = random.integers(0, 9, 12), random.permutation(20)[:12]
    scatter_rows(source, rows, places, out)
    expected = np.zeros_like(out)
    for row, place in zip(rows, places, strict=True):
        expected[place] = source[row]
    np.testing.assert_array_equal(out, expected)
    bits = np.empty(source.shape, np.uint16)
    gather_bfloat(source, np.arange(9), bits)
    scatter_rows(bits, rows, places, out)
    np.testing.assert_array_equal(out[places], widen(bits)[rows])
    assert not out[np.setdiff1d(np.arange(20), places)].any()


def test_rounding_is_that_of_torch() -> None:
    special = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45, 1.00390625, 1.01171875, 1.0039063]
    random = np.random.default_rng(1).integers(0, 1 << 32, 4000 - len(special), dtype=np.uint32).view(np.float32)
    table = np.concatenate([np.array(special, np.float32), random]).reshape(100, 40)
    rows, out = np.arange(99, -1, -1), np.empty((100, 40), np.uint16)
    gather_bfloat(table, rows, out)
    expected = torch.from_numpy(table[rows]).bfloat16().float().numpy()
    np.testing.assert_array_equal(widen(out), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 17, 999])
def test_what_is_not_finite_is_seen(bad: float, place: int) -> None:
    values = np.full((20, 50), FINITE, np.float32)
    assert within(values, FINITE) and within(-values, FINITE) and within(np.empty((0, 3), np.float32), FINITE)
    values.reshape(-1)[place] = bad
    assert not within(values, FINITE)


@given(hnp.arrays(np.float32, st.integers(0, 40)), st.floats(0, float(FINITE), width=32), st.booleans())
def test_limits_are_those_of_plain_comparison(values: np.ndarray, most: float, signed: bool) -> None:
    low = -most if signed else 0.0
    whole = values + np.float32(0)  # no negative zero, which is a number below zero to `signed`
    assert within(whole, np.float32(most), signed=signed) == bool(((whole >= low) & (whole <= most)).all())


@pytest.mark.parametrize("bfloat", [False, True])
@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5), width=st.integers(1, 20), seed=st.integers(0, 99))
def test_rows_are_gathered_group_by_group(bfloat: bool, sizes: list[int], width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    table, bounds = random.standard_normal((9, width), np.float32), starts_of(sizes)
    places, order = random.integers(0, 9, bounds[-1]), random.permutation(len(sizes))  # of the groups in the memory
    at = np.empty(len(sizes), np.int64)
    at[order] = starts_of([sizes[g] * width for g in order])[:-1]
    out = np.zeros(int(bounds[-1]) * width, np.uint16 if bfloat else np.float32)
    gather_parts(table, places, bounds, at, out)
    rows = np.concatenate([places[bounds[g] : bounds[g + 1]] for g in order]).astype(np.int64)
    expected = np.empty((len(rows), width), out.dtype)
    if bfloat:
        gather_bfloat(table, rows, expected)
    else:
        expected[:] = table[rows]
    np.testing.assert_array_equal(out, expected.ravel())


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("bfloat", [False, True])
@given(ids=st.lists(st.integers(3, 14), max_size=9), width=st.sampled_from([1, 2, 5]), aligned=st.booleans())
def test_rows_are_looked_up_where_all_are_here(kind: type, bfloat: bool, ids: list[int], width: int, aligned: bool) -> None:
    memory = np.random.default_rng(0).standard_normal(8 * width + 1, np.float32)
    table = memory[aligned : 8 * width + aligned].reshape(8, width)  # rows 4 to 11, of which 5 to 10 are served
    out = np.zeros(len(ids) * width, np.uint16 if bfloat else np.float32)
    found = look_up(table, np.array(ids, kind), 5, 11, 4, out)
    assert found == all(5 <= each < 11 for each in ids)
    if found:
        rows = table[np.array(ids, np.int64) - 4]
        given_back = widen(out.reshape(len(ids), width)) if bfloat else out.reshape(len(ids), width)
        np.testing.assert_allclose(given_back, rows, rtol=2.0**-8 if bfloat else 0)
    else:
        assert not out.any()


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("ids", "grads", "squares", "verdict"),
    [
        ([5, 10, 7], [1.0, -8.0, 8.0], [0.0, 2.0, 1.0], FINE),
        ([5, 10, 7], [1.0, -8.0, 8.0], None, FINE),
        ([], [], [], FINE),
        ([5, 11, 7], [1.0, -8.0, 8.0], None, OUTSIDE),
        ([4, 10, 7], [np.nan] * 3, None, OUTSIDE),
        ([7, 10, 7], [1.0, 1.0, 1.0], None, TWICE),
        ([5, 10, 7], [1.0, -8.5, 1.0], None, GRADIENTS),
        ([5, 10, 7], [1.0, np.nan, 1.0], [1.0, 1.0, 1.0], GRADIENTS),
        ([5, 10, 7], [1.0, 1.0, 1.0], [1.0, -1.0, 1.0], SQUARES),
        ([5, 10, 7], [1.0, 1.0, 1.0], [1.0, 2.5, 1.0], SQUARES),
        ([5, 10, 7], [1.0, 1.0, 1.0], [1.0, np.inf, 1.0], SQUARES),
    ],
)
def test_an_update_is_vetted_before_anything_changes(
    kind: type, ids: list[int], grads: list[float], squares: list[float] | None, verdict: int,
) -> None:  # fmt: skip
    given_squares = None if squares is None else np.array(squares, np.float32)
    rows_of = np.array(grads, np.float32).reshape(-1, 1)
    found, rows = vetted(np.array(ids, kind), 5, 11, 4, rows_of, np.float32(8), given_squares, np.float32(2))
    assert found == verdict
    if verdict == FINE:
        assert rows.dtype == np.int64 and rows.tolist() == [each - 4 for each in ids]
    for many in (1, 50, 3000):
        different = np.random.default_rng(many).permutation(many).astype(kind)
        more = np.zeros((many, 2), np.float32)
        assert vetted(different, 0, many, 0, more, np.float32(1), None, np.float32(1))[0] == FINE
        if many > 1:
            different[-1] = different[0]
            assert vetted(different, 0, many, 0, more, np.float32(1), None, np.float32(1))[0] == TWICE
