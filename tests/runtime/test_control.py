"""The shared numbers between training processes and the process that runs them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kgdist.base.errors import WorkerError
from kgdist.runtime.processes import control
from kgdist.runtime.processes.control import ARRIVED, BEAT, DONE, POSITIVES, SharedControl, WorkerControl
from kgdist.runtime.processes.workers import Attendance
from kgdist.training.step import Losses
from tests.patience import patience


@contextlib.contextmanager
def two() -> Iterator[SharedControl]:
    """Not a fixture: pytest would hold the memory beyond the test."""
    made = SharedControl.create(2)
    try:
        yield made
    finally:
        made.close()


def of(shared: SharedControl, rank: int, said: Callable[[str], None] = print) -> WorkerControl:
    return WorkerControl(SharedControl.attach(shared.handles()), rank, lambda step: step % 5 == 0, said)


def begin(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_reports_add_up_in_the_process_own_slots() -> None:
    with two() as shared:
        first, second = of(shared, 0), of(shared, 1)
        first.report(1, 16, Losses(1.0, 2.0, 3.0, 4.0))
        first.report(2, 8, Losses(0.5, 0.25, 0.125, 0.0))
        second.report(7, 3, Losses(10.0, 0.0, 0.0, 0.0))
        assert shared.workers[:, DONE].tolist() == [2, 7]
        assert shared.workers[:, POSITIVES].tolist() == [24, 3]
        np.testing.assert_array_equal(shared.sums, [[1.5, 2.25, 3.125, 4.0], [10.0, 0.0, 0.0, 0.0]])


def test_lines_and_meetings_are_passed_on() -> None:
    with two() as shared:
        said: list[str] = []
        worker = of(shared, 0, said.append)
        worker.say("a line")
        assert said == ["a line"] and [step for step in range(1, 12) if worker.meeting(step)] == [5, 10]


@pytest.mark.parametrize("how", ["release", "stop"])
def test_a_process_waits_until_it_may_go_on(how: str) -> None:
    with two() as shared:
        worker = of(shared, 1)
        assert not worker.stopping()
        thread = begin(lambda: worker.meet(5))
        deadline = time.monotonic() + patience(60)
        while shared.workers[1, ARRIVED] != 5 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert shared.workers[:, ARRIVED].tolist() == [0, 5]
        shared.release(4)  # of an earlier step: not for this one
        thread.join(0.1)
        assert thread.is_alive()
        shared.release(5) if how == "release" else shared.stop()
        thread.join(patience(60))
        assert not thread.is_alive() and worker.stopping() == (how == "stop")


def test_a_silent_coordinator_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with two() as shared:
        monkeypatch.setattr(control, "PATIENCE", 0.3)
        begun = time.monotonic()
        with pytest.raises(WorkerError, match="coordinating process has been silent"):
            of(shared, 0).meet(5)
        assert time.monotonic() - begun >= 0.3


def test_a_coordinator_that_shows_life_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with two() as shared:
        monkeypatch.setattr(control, "PATIENCE", patience(1.0))
        thread = begin(lambda: of(shared, 0).meet(5))
        for _ in range(40):  # twice the patience, a sign of life every twentieth of it
            shared.header[BEAT] += 1
            time.sleep(patience(0.05))
        assert thread.is_alive()
        shared.release(5)
        thread.join(patience(60))
        assert not thread.is_alive()


def test_the_beat_ends_when_told() -> None:
    with two() as shared:
        ended = threading.Event()
        thread = begin(lambda: shared.beat(ended))
        deadline = time.monotonic() + patience(60)
        while not shared.header[BEAT] and time.monotonic() < deadline:
            time.sleep(0.01)
        ended.set()
        thread.join(patience(60))
        assert shared.header[BEAT] > 0 and not thread.is_alive()


def test_time_in_which_who_looks_stood_still_is_held_against_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z and fg: all processes stood still, and nobody has moved when the first one looks again."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with two() as shared:
        crew = Attendance(shared)
        for seconds, wanted in ((3.0, []), (10_000.0, []), (4.0, []), (4.0, []), (4.0, [0, 1])):
            now[0] += seconds
            assert crew.hung(12.0) == wanted
        crew.excuse()
        now[0] += 3.0
        assert crew.hung(12.0) == []
        now[0] += 10_000.0
        crew.excuse()  # what took so long was no standing still
        for wanted in ([], [], [], [0, 1]):
            now[0] += 4.0
            assert crew.hung(12.0) == wanted


def test_a_worker_that_stood_still_waits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [0.0], [10_000.0, 1.0, 1.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with two() as shared:
        worker = of(shared, 0)

        def idle() -> None:
            if not pauses:
                shared.release(5)
                return
            now[0] += pauses.pop(0)

        monkeypatch.setattr(worker, "idle", idle)
        worker.meet(5)
        assert not pauses
