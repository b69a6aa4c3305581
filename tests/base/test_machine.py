"""How many cores and how much memory there are to use."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kgdist.base import machine
from kgdist.base.machine import free_memory, memory_limit, usable_cores

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory by its own rules")


def usual_memory() -> dict[str, str]:
    """This process's environment, without what sets how the C library keeps memory."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}


def allowed() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.parametrize("words", [None, "", "max 100000", "100000", "a b", "100000 0", "6400000 100000"])
def test_without_a_smaller_quota_all_allowed_cores_count(words: str | None, tmp_path: Path) -> None:
    if words is not None:
        (tmp_path / "cpu.max").write_text(words)
    assert usable_cores(tmp_path / "cpu.max") == min(64, allowed()) or allowed() > 64


@pytest.mark.parametrize(
    ("words", "cores"), [("100000 100000", 1), ("199999 100000", 1), ("20000 100000", 1), ("200000 100000", 2)]
)
def test_a_quota_counts_in_whole_cores(words: str, cores: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(words)
    assert usable_cores(tmp_path / "cpu.max") == min(cores, allowed())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins nothing")
def test_cores_that_are_not_allowed_do_not_count(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cores(tmp_path / "none") == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with 8,000,000 KiB free; the folder for what Linux says of the container."""
    (tmp_path / "meminfo").write_text("MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\nActive(anon):  1 kB\n")
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    return tmp_path


def test_without_a_limit_the_machine_says_what_is_free(container: Path) -> None:
    assert (free_memory(), memory_limit()) == (8_192_000_000, None)
    (container / "memory.max").write_text("max\n")
    (container / "memory.current").write_text("5000\n")
    assert (free_memory(), memory_limit()) == (8_192_000_000, None)
    for words in ("", "MemAvailable: many kB\n"):
        (container / "meminfo").write_text(words)
        assert free_memory() is None
    (container / "meminfo").unlink()
    assert free_memory() is None


@pytest.mark.parametrize(
    ("limit", "taken", "files", "free"),
    [
        (3_000, 1_000, (0, 0), 2_000),
        (3_000, 2_900, (1_500, 500), 2_100),  # what is kept of files is given back
        (3_000, 3_100, (0, 50), 0),
        (3_000, 100, (200, 0), 3_000),  # read at another moment
        (1 << 60, 1_000, (0, 0), 8_192_000_000),  # the machine has less
    ],
)
def test_a_container_may_leave_less(container: Path, limit: int, taken: int, files: tuple[int, int], free: int) -> None:
    (container / "memory.max").write_text(f"{limit}\n")
    (container / "memory.current").write_text(f"{taken}\n")
    (container / "memory.stat").write_text("anon 7\nactive_file {}\ninactive_file {}\nshmem 9\n".format(*files))
    assert (free_memory(), memory_limit()) == (free, limit)
    (container / "meminfo").unlink()
    assert free_memory() == (free if free < 8_192_000_000 else limit - taken)


@glibc
def test_what_was_freed_below_what_is_kept_is_given_back() -> None:
    code = """
import ctypes, resource
from pathlib import Path
from kgdist.base.machine import give_back_freed_memory
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
blocks = [library.malloc(60_000) for _ in range(2000)]  # 120 MB of blocks that are too small for pages of their own
for block in blocks:
    ctypes.memset(ctypes.c_void_p(block), 1, 60_000)
for block in blocks[:-1]:
    library.free(ctypes.c_void_p(block))
before = resident()
give_back_freed_memory()
print(before - resident())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=usual_memory(), capture_output=True, text=True, check=True, timeout=60
    )
    assert float(done.stdout) > 80


@glibc
@pytest.mark.parametrize(
    ("calls", "theirs", "allowed"), [(True, None, {1, 2}), (True, "4", {3, 4}), (False, None, {5, 6, 7, 8, 9})]
)
def test_threads_share_few_places_of_memory(calls: bool, theirs: str | None, allowed: set[int], tmp_path: Path) -> None:
    """`theirs`: what the user has set, which stands; without the call each of nine threads has its own, or eight places."""
    code = f"""
import ctypes, sys, threading
from kgdist.base.machine import few_arenas
if {calls}:
    few_arenas()
library, together = ctypes.CDLL(None), threading.Barrier(9)
library.fopen.restype = ctypes.c_void_p
def take():
    together.wait()
    library.malloc(1000)
    together.wait()
threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads:
    thread.start()
take()
file = ctypes.c_void_p(library.fopen(sys.argv[1].encode(), b"w"))
library.malloc_info(0, file)
library.fclose(file)
"""
    environment = usual_memory() | ({} if theirs is None else {"MALLOC_ARENA_MAX": theirs})
    told = tmp_path / "told.xml"
    subprocess.run([sys.executable, "-c", code, str(told)], env=environment, check=True, timeout=60)
    assert told.read_text().count("<heap nr=") in allowed
