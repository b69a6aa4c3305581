"""Which cores a worker gets, on machines that are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.runtime.processes import numa
from kgdist.runtime.processes.numa import cores, nodes, share

TWO = [{0, 1, 2, 3}, {4, 5, 6, 7}]
EIGHT = set(range(8))


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cores_are_read_as_linux_writes_them(wanted: set[int]) -> None:
    runs: list[list[int]] = []
    for core in sorted(wanted):
        if runs and runs[-1][-1] == core - 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    assert cores(",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) + "\n") == wanted


def test_nodes_are_taken_in_turn() -> None:
    assert [share(rank, TWO, EIGHT) for rank in range(5)] == [TWO[0], TWO[1], TWO[0], TWO[1], TWO[0]]


def test_only_cores_that_are_allowed_are_given() -> None:
    assert [share(rank, TWO, {3, 4, 5}) for rank in range(2)] == [{3}, {4, 5}]


@pytest.mark.parametrize(
    ("machine", "allowed"), [([], EIGHT), ([EIGHT], EIGHT), (TWO, {1, 2}), ([EIGHT, set()], EIGHT), (TWO, set())]
)
def test_nothing_is_done_where_there_is_no_choice_of_nodes(machine: list[set[int]], allowed: set[int]) -> None:
    assert share(0, machine, allowed) is None


def test_the_system_is_read(tmp_path: Path) -> None:
    for name, text in (("node10", "4-7\n"), ("node2", "0-1,3\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    (tmp_path / "online").write_text("2,10")
    assert nodes(tmp_path) == [{0, 1, 3}, {4, 5, 6, 7}]
    (tmp_path / "node2" / "cpulist").write_text("all of them")
    assert nodes(tmp_path) in ([], [{4, 5, 6, 7}])
    assert nodes(tmp_path / "not there") == []


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins nothing")
def test_pinning_counts_for_the_calling_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    before, seen = os.sched_getaffinity(0), []
    one = min(before)
    monkeypatch.setattr(numa, "nodes", lambda: [{one}, before - {one} or {one}])

    def work() -> None:
        numa.pin(0)
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [{one}] and os.sched_getaffinity(0) == before
