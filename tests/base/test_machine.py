"""How many cores there are to use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kgdist.base.machine import usable_cores


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
