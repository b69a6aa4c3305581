"""What an agent does beside its loop is done in order, told when it is over, and never waited for."""

from __future__ import annotations

import threading
import time

import pytest

from kgdist.base.errors import KgdistError
from kgdist.runtime.agent.beside import Beside
from kgdist.runtime.processes.pipes import Bell
from tests.patience import patience

LIMIT = patience(30.0)


def test_work_is_done_in_order_and_what_follows_is_the_loops() -> None:
    beside, done, threads = Beside(Bell()), [], []
    for number in range(50):

        def work(number: int = number) -> None:
            done.append(number)

        beside.later("written", f"file {number}", work, lambda: threads.append(threading.current_thread()))
    assert beside.settle(LIMIT)
    assert done == list(range(50)) and threads == []
    beside.look()
    assert threads == [threading.current_thread()] * 50 and beside.doing[:2] == ("", "")


def test_it_is_known_what_hangs_and_how_far_it_has_come() -> None:
    beside, disk = Beside(Bell()), threading.Event()

    def work() -> None:
        beside.moved(1000)
        disk.wait(timeout=LIMIT)
        beside.moved(1)

    before = beside.doing[2]
    beside.later("written", "checkpoint of step 400", work)
    deadline = time.monotonic() + LIMIT
    while beside.doing[2] < before + 1000 and time.monotonic() < deadline:
        time.sleep(0.01)
    found = beside.doing
    assert found[:2] == ("written", "checkpoint of step 400") and not beside.settle(0.1) and beside.doing == found
    disk.set()
    assert beside.settle(LIMIT) and beside.doing[2] == found[2] + 1


def test_what_went_wrong_is_the_loops_and_the_rest_is_done() -> None:
    beside, done = Beside(Bell()), []

    def fail() -> None:
        raise KgdistError("no room")

    beside.later("written", "one", fail, lambda: done.append("one"))
    beside.later("written", "two", lambda: done.append("two"))
    assert beside.settle(LIMIT)
    with pytest.raises(KgdistError, match="no room"):
        beside.look()
    beside.look()
    assert done == ["two"]
