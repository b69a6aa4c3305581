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
from kgdist.base.files import atomic_write, load_npy, locked, save_npy, sweep, whole_folders, write_npy
from tests.patience import patience

WRITE = (
    "import sys; from kgdist.base.files import write_json; write_json(sys.argv[1], {}); write_json(sys.argv[2], {}, private=True)"
)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077, 0o002])
def test_files_get_the_rights_that_the_user_wants(mask: int, tmp_path: Path) -> None:
    paths = [str(tmp_path / "shared"), str(tmp_path / "private")]
    subprocess.run([sys.executable, "-c", WRITE, *paths], check=True, timeout=patience(60), umask=mask)
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in paths] == [0o666 & ~mask, 0o600]


def test_no_other_thread_makes_a_file_that_all_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask belongs to the whole process, so it must not be changed even for a moment."""

    def changed(mask: int) -> int:
        raise AssertionError("the mask of all threads was changed")

    monkeypatch.setattr(os, "umask", changed)
    with atomic_write(tmp_path / "file") as file:
        file.write(b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


HALF = """
import os, signal, sys
from pathlib import Path
from kgdist.base.files import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(bytes(1000))
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_of_a_file_goes_when_that_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    assert subprocess.run([sys.executable, "-c", HALF, path], timeout=patience(60)).returncode == -9
    (half,) = tmp_path.iterdir()
    assert half.stat().st_size == 1000
    save_npy(tmp_path / "other.npy", np.zeros(3))
    assert half.exists()
    save_npy(path, np.zeros(3))
    assert sorted(found.name for found in tmp_path.iterdir()) == ["other.npy", "rows.npy"]


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


# Replaces the folders a and b, and dies at the n-th of these calls (renames, and the removal of what is replaced).
REPLACING = """
import os, shutil, sys
from pathlib import Path
from kgdist.base import files
calls = iter(range(int(sys.argv[2])))
def mortal(function):
    def call(*arguments, **options):
        if next(calls, None) is None:
            os.kill(os.getpid(), 9)
        return function(*arguments, **options)
    return call
Path.rename, shutil.rmtree = mortal(Path.rename), mortal(shutil.rmtree)
targets = [Path(sys.argv[1], name) for name in "ab"]
with files.whole_folders(targets, replaced=targets) as made:
    for folder in made:
        (folder / "file").write_text("new")
"""


def contents(root: Path) -> dict[str, str]:
    return {str(file.relative_to(root)): file.read_text() for file in sorted(root.rglob("*")) if file.is_file()}


def folders(root: Path, text: str) -> list[Path]:
    for name in "ab":
        (root / name).mkdir()
        (root / name / "file").write_text(text)
    return [root / name for name in "ab"]


@pytest.mark.parametrize("calls", range(9))
def test_folders_are_old_or_new_after_a_kill_at_any_moment(calls: int, tmp_path: Path) -> None:
    folders(tmp_path, "old")
    command = [sys.executable, "-c", REPLACING, str(tmp_path), str(calls)]
    assert subprocess.run(command, timeout=patience(60)).returncode == (-9 if calls < 8 else 0)
    sweep(tmp_path)
    left = contents(tmp_path)
    assert sorted(left) == ["a/file", "b/file"] and set(left.values()) <= {"old", "new"}
    assert len(list(tmp_path.iterdir())) == 2


def test_an_error_leaves_the_old_folders(tmp_path: Path) -> None:
    targets = folders(tmp_path, "old")
    with pytest.raises(ZeroDivisionError), whole_folders(targets, replaced=targets) as made:
        (made[0] / "file").write_text("new")
        _ = 1 / 0
    with pytest.raises(FileExistsError), whole_folders([tmp_path / "c", tmp_path / "b"]) as made:
        (made[0] / "file").write_text("new")
        (made[1] / "file").write_text("new")
    assert contents(tmp_path) == {"a/file": "old", "b/file": "old"} and len(list(tmp_path.iterdir())) == 2


HOLDING = """
import sys, time
from kgdist.base.files import locked
with locked(sys.argv[1], 1):
    print("held", flush=True)
    time.sleep(60)
"""
# Adds one to a number in a file, slowly: two at a time would lose additions.
ADDING = """
import sys, time
from pathlib import Path
from kgdist.base.files import locked
for _ in range(5):
    with locked(sys.argv[1], float(sys.argv[3])):
        number = int(Path(sys.argv[2]).read_text())
        time.sleep(0.01)
        Path(sys.argv[2]).write_text(str(number + 1))
"""


def test_holders_of_a_lock_take_turns(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    command = [sys.executable, "-c", ADDING, str(tmp_path / "lock"), str(number), str(patience(60))]
    for process in [subprocess.Popen(command) for _ in range(4)]:
        assert process.wait(timeout=patience(60)) == 0
    assert number.read_text() == "20"


def test_a_lock_is_free_when_its_holder_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as lines:
        assert lines.readline() == b"held\n"
        held = pytest.raises(KgdistError, match=r"lock: another process has held it for 0.3 s; end that process first")
        with held, locked(tmp_path / "lock", 0.3):
            pytest.fail("two hold the lock")
        process.kill()
        process.wait(timeout=patience(60))
        with locked(tmp_path / "lock", patience(60)):
            pass


def test_an_error_inside_a_lock_frees_it_and_a_place_that_cannot_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock", 0.1):
        _ = 1 / 0
    with locked(tmp_path / "lock", 0.1):
        pass
    with pytest.raises(KgdistError, match="lock/lock: cannot be made"), locked(tmp_path / "lock" / "lock", 0.1):
        pytest.fail("held a lock that cannot be")
