"""Writing the embeddings of a run whose rows come from many machines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kgdist.runs import rundir


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (500, 100), (4096, 32)])
def test_rows_in_any_order_become_an_array_and_its_way_to_the_disk_is_told(
    rows: int, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "SPAN", 1 << 16)
    chance, told = np.random.default_rng(0), list[int]()
    whole = chance.random((rows, width), np.float32)
    places = np.array_split(chance.permutation(rows), 3)
    rundir.save_rows(tmp_path / "rows.npy", (rows, width), ((where, whole[where]) for where in places), told.append)
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), whole)
    size = (tmp_path / "rows.npy").stat().st_size
    assert sum(told) == 2 * size and max(told) <= 1 << 16
    assert [path.name for path in tmp_path.iterdir()] == ["rows.npy"]


def test_what_comes_to_nothing_leaves_the_array_before(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones(3))

    def broken() -> object:
        yield np.arange(2), np.zeros((2, 2), np.float32)
        raise OSError(5, "Input/output error")

    with pytest.raises(Exception, match="rows.npy: cannot be written .Input/output error.; the previous file is unchanged"):
        rundir.save_rows(tmp_path / "rows.npy", (4, 2), broken())  # type: ignore[arg-type]
    assert np.load(tmp_path / "rows.npy").tolist() == [1, 1, 1] and len(list(tmp_path.iterdir())) == 1
