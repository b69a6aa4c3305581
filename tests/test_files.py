"""Files that are whole or absent: the rights they get."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kgdist.files import atomic_write
from tests.patience import patience

WRITE = "import sys; from kgdist.files import write_json; write_json(sys.argv[1], {}); write_json(sys.argv[2], {}, private=True)"


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
