"""Dropout by hashes: shares, means, and that a mask is a function of (seed, step, table, id) alone."""

from __future__ import annotations

import numpy as np
import pytest

from kgdist.kernels.dropout import Dropout


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_so_many_are_dropped_and_the_mean_stays(share: float) -> None:
    mask = Dropout(share, 3, 0).mask(np.arange(4000), 50, 7)
    kept = mask[mask > 0]
    assert abs((mask == 0).mean() - share) < 4 * (share * (1 - share) / mask.size) ** 0.5 + 2**-16
    assert np.ptp(kept) == 0 and kept[0] == pytest.approx(1 / (1 - share), rel=1e-3)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 50])
def test_a_row_has_its_mask_in_whatever_company(width: int) -> None:
    dropout = Dropout(0.3, 5, 1)
    whole = dropout.mask(np.arange(100), width, 2)
    ids = np.array([93, 2, 2, 40])
    assert np.array_equal(dropout.mask(ids, width, 2), whole[ids])
    rows = np.random.default_rng(0).normal(size=(4, width)).astype(np.float32)
    seen = rows.copy()
    dropout.apply(seen, ids, 2)
    np.testing.assert_array_equal(seen, rows * whole[ids])


def test_steps_seeds_and_tables_draw_others() -> None:
    ids = np.arange(200)
    masks = [Dropout(0.5, seed, table).mask(ids, 20, step) for seed, table, step in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    for number, one in enumerate(masks):
        for other in masks[:number]:
            assert 0.45 < (one == other).mean() < 0.55
    neighbours = (masks[0][1:] == masks[0][:-1]).mean(), (masks[0][:, 1:] == masks[0][:, :-1]).mean()
    assert all(0.45 < share < 0.55 for share in neighbours)


def test_without_a_share_nothing_is_touched() -> None:
    rows = np.array([[np.nan, 1.0]], np.float32)
    Dropout(0.0, 0, 0).apply(rows, np.array([0]), 0)
    assert not Dropout(0.0, 0, 0) and np.isnan(rows[0, 0])
