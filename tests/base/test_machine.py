"""How many cores and how much memory there are to use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kgdist.base import machine
from kgdist.base.machine import free_memory, memory_limit, usable_cores


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
