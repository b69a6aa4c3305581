"""exclusive() with real processes: one at a time, freed by death, and no endless wait for one that hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kgdist.base.errors import KgdistError
from kgdist.data.lock import exclusive
from tests.patience import patience

# Adds one to a number in a file, slowly: two at a time would lose additions.
ADDING = """
import sys, time
from pathlib import Path
from kgdist.data.lock import exclusive
for _ in range(int(sys.argv[3])):
    with exclusive(Path(sys.argv[1])):
        number = int(Path(sys.argv[2]).read_text())
        time.sleep(0.01)
        Path(sys.argv[2]).write_text(str(number + 1))
"""
HOLDING = """
import sys, time
from pathlib import Path
from kgdist.data.lock import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_processes_take_turns_and_leave_no_file(tmp_path: Path) -> None:
    lock, number = tmp_path / "lock", tmp_path / "number"
    number.write_text("0")
    command = [sys.executable, "-c", ADDING, str(lock), str(number), "5"]
    for process in [subprocess.Popen(command) for _ in range(4)]:
        assert process.wait(timeout=patience(60)) == 0
    assert number.read_text() == "20" and not lock.exists()


def test_a_lock_is_free_when_its_holder_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as lines:
        assert lines.readline() == b"held\n"
        hung = pytest.raises(KgdistError, match=r"lock: its holder has not moved for 0.3 s; end that process first")
        with hung, exclusive(tmp_path / "lock", patience=0.3):
            pytest.fail("two hold the lock")
        process.kill()
        process.wait(timeout=patience(60))
        with exclusive(tmp_path / "lock", patience=patience(60)):
            pass


def test_one_that_moves_is_waited_for(tmp_path: Path) -> None:
    """Four times as long as patience lasts for one that hangs."""
    order: list[str] = []
    held = threading.Event()

    def work() -> None:
        with exclusive(tmp_path / "lock", patience=patience(0.5)) as beat:
            held.set()
            for _ in range(40):
                time.sleep(patience(0.05))
                beat()
            order.append("first")

    thread = threading.Thread(target=work)
    thread.start()
    assert held.wait(timeout=patience(60))
    with exclusive(tmp_path / "lock", patience=patience(0.5)):
        order.append("second")
    thread.join(timeout=patience(60))
    assert order == ["first", "second"]


def test_an_error_inside_frees_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "lock"):
        _ = 1 / 0
    with exclusive(tmp_path / "lock", patience=0.1):
        pass


def test_a_place_without_a_folder_is_named(tmp_path: Path) -> None:
    absent = pytest.raises(KgdistError, match=r"none/lock: cannot be made \(No such file or directory\)")
    with absent, exclusive(tmp_path / "none" / "lock"):
        pytest.fail("held a lock that cannot be")
