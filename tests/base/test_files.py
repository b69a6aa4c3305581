"""Files that are whole or absent: the rights they get, and disks without room for them."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kgdist.base.errors import KgdistError
from kgdist.base.files import atomic_write, load_npy, save_npy, write_npy
from tests.patience import patience

WRITE = (
    "import sys; from kgdist.base.files import write_json; write_json(sys.argv[1], {}); write_json(sys.argv[2], {}, private=True)"
)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077, 0o002])
def test_files_get_the_rights_that_the_user_wants(mask: int, tmp_path: Path) -> None:
    paths = [str(tmp_path / "shared"), str(tmp_path / "private")]
    subprocess.run([sys.executable, "-c", WRITE, *paths], check=True, timeout=patience(60), umask=mask)
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in paths] == [0o666 & ~mask, 0o600]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no /proc to ask")
def test_no_other_thread_makes_a_file_that_all_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask belongs to the whole process, so it must not be changed even for a moment."""

    def changed(mask: int) -> int:
        raise AssertionError("the mask of all threads was changed")

    monkeypatch.setattr(os, "umask", changed)
    with atomic_write(tmp_path / "file") as file:
        file.write(b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


@pytest.mark.parametrize("room", [64, 200, 700, 1087, 5000])
@pytest.mark.parametrize("write", [save_npy, write_npy])
def test_an_array_that_finds_no_room_for_its_last_bytes_is_an_error(
    room: int, write: Callable[[Path, np.ndarray], None], tmp_path: Path
) -> None:
    """Also where these would wait in a buffer of C's, which NumPy closes without a look."""
    array = np.arange(room // 4, dtype=np.float32)  # as many bytes as there are, and the header besides
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(KgdistError, match=r"rows.npy: cannot be written \(File too large\)"):
            write(tmp_path / "rows.npy", array)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    write(tmp_path / "rows.npy", array)
    np.testing.assert_array_equal(load_npy(tmp_path / "rows.npy"), array)
