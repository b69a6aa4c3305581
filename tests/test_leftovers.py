"""The check that runs after every test sees what it is there for: it is tried on one leftover of each kind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.conftest import Leftovers
from tests.patience import patience

on_linux = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system has no /proc to look into")


@on_linux
def test_a_process_is_seen_until_it_ends(temporary_files: Path) -> None:
    before = Leftovers(temporary_files)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert list(Leftovers(temporary_files).new_since(before)["process"]) == [process.pid]
        process.communicate(b"\n", timeout=patience(60))
    assert Leftovers(temporary_files).new_since(before) == {}


@on_linux
def test_a_grandchild_whose_parent_is_gone_is_seen(temporary_files: Path) -> None:
    before = Leftovers(temporary_files)
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '60'], stdout=2).pid)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=patience(60), check=True)
    pid = int(done.stdout)
    try:
        assert list(Leftovers(temporary_files).new_since(before)["process"]) == [pid]
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, os.WUNTRACED)  # it is ours now


def test_a_thread_is_seen_until_it_ends(temporary_files: Path) -> None:
    before, end = Leftovers(temporary_files), threading.Event()
    thread = threading.Thread(target=end.wait, args=(20,), name="forgotten")
    thread.start()
    assert Leftovers(temporary_files).new_since(before) == {"thread": {thread.ident: "forgotten"}}
    end.set()
    thread.join(timeout=patience(60))
    assert Leftovers(temporary_files).new_since(before) == {}


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no anonymous files")
def test_shared_memory_is_seen_until_it_is_closed(temporary_files: Path) -> None:
    before = Leftovers(temporary_files)
    fd = os.memfd_create("kgdist")
    assert list(Leftovers(temporary_files).new_since(before)) == ["shared memory"]
    os.close(fd)
    assert Leftovers(temporary_files).new_since(before) == {}


def test_a_temporary_file_is_seen_also_of_another_process(temporary_files: Path) -> None:
    before = Leftovers(temporary_files)
    code = "import tempfile; print(tempfile.mkdtemp())"
    made = Path(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60), check=True
        ).stdout.strip()
    )
    handle, own = tempfile.mkstemp()
    os.close(handle)
    assert set(Leftovers(temporary_files).new_since(before)["temporary file"]) == {made.name, Path(own).name}
    made.rmdir()
    os.unlink(own)
