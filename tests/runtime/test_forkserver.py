"""The process that forks workers: children come, end, are ended, are told of rightly and leave nothing, whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kgdist.kvstore.shared_memory import SharedArray
from kgdist.runtime.processes.child import Child, end
from kgdist.runtime.processes.forkserver import ForkServer
from tests.family import alive, descendants, parent, words_of
from tests.faults.commands import until
from tests.patience import patience

LIMIT = patience(30.0)


@pytest.fixture(scope="module")
def shared() -> Iterator[ForkServer]:
    """One for the tests that leave it as it was."""
    made = ForkServer(threads=1)
    with contextlib.closing(made):
        Child(made).close(time.monotonic() + LIMIT)  # it is there before the first test
        yield made


@pytest.fixture
def forks() -> Iterator[ForkServer]:
    made, before = ForkServer(threads=1), descendants(os.getpid())
    with contextlib.closing(made):
        yield made
    assert descendants(os.getpid()) == before


def born(child: Child) -> int:
    """Its number, once it is there."""
    until("it has begun", lambda: child.pid)
    return child.pid


def named(forks: ForkServer, *names: str) -> list[Child]:
    made = [Child(forks, name=name) for name in names]
    for child, name in zip(made, names, strict=True):
        until(
            "it has its name",
            lambda child=child, name=name: words_of(born(child)).split()[1:] == ["kgdist.runtime.processes.worker", name],
        )
    return made


def own(forks: ForkServer) -> int:
    """The number of the process that forks."""
    return forks.pids()[-1]


def test_children_are_called_what_they_are_and_share_one_parent(shared: ForkServer) -> None:
    server, trainer = named(shared, "server-12", "trainer-3-0")
    assert parent(server.pid) == parent(trainer.pid) == own(shared) and parent(own(shared)) == os.getpid()
    assert shared.pids() == [server.pid, trainer.pid, own(shared)]
    assert "kgdist.runtime.processes.worker" in words_of(own(shared))
    for child in (server, trainer):
        assert os.getsid(child.pid) == child.pid  # no terminal's signal reaches it
    end([server, trainer], time.monotonic() + LIMIT)
    assert [server.code, trainer.code] == [1, 1] and shared.pids() == [own(shared)]


def test_nothing_runs_in_it_that_would_not_outlive_a_fork(shared: ForkServer) -> None:
    (child,) = named(shared, "x")
    assert len(os.listdir(f"/proc/{own(shared)}/task")) == 1
    child.close(time.monotonic() + LIMIT)


def test_a_child_has_its_pipes_and_what_all_have_and_nothing_else() -> None:
    array = SharedArray.allocate((4,), "int64")
    forks = ForkServer([array.fd], threads=1)
    with contextlib.closing(forks):
        first, second = named(forks, "a", "b")
        memory = os.stat(array.fd).st_ino
        for child, other in ((first, second), (second, first)):
            places = Path(f"/proc/{child.pid}/fd")
            assert os.stat(places / str(array.fd)).st_ino == memory
            pipes = {os.stat(place).st_ino for place in places.iterdir()}
            theirs = {os.fstat(other.stdin.fileno()).st_ino, os.fstat(other.stdout.fileno()).st_ino}
            assert {os.fstat(child.stdin.fileno()).st_ino, os.fstat(child.stdout.fileno()).st_ino} <= pipes and not theirs & pipes
        end([first, second], time.monotonic() + LIMIT)
        kept = os.listdir(f"/proc/{own(forks)}/fd")
        (third,) = named(forks, "c")
        third.close(time.monotonic() + LIMIT)
        assert os.listdir(f"/proc/{own(forks)}/fd") == kept
    array.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_that_is_killed_is_told_of_and_another_one_comes_at_once(shared: ForkServer, stopped: bool) -> None:
    first, second = named(shared, "a", "b")
    if stopped:
        os.kill(first.pid, signal.SIGSTOP)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait(LIMIT) and first.code == -signal.SIGKILL
    assert list(first.events()) == [{"lost": "was killed by signal SIGKILL; the system may have run out of memory"}]
    assert second.code is None and alive(second.pid)
    (third,) = named(shared, "a")
    assert parent(third.pid) == parent(second.pid)
    second.kill()
    assert second.wait(LIMIT) and list(second.events()) == [{"lost": "was killed by signal SIGKILL"}]
    end([first, second, third], time.monotonic() + LIMIT)


def test_when_it_dies_its_children_do_and_the_next_child_has_another(forks: ForkServer) -> None:
    first, second = named(forks, "a", "b")
    before, pids = own(forks), [first.pid, second.pid]
    os.kill(before, signal.SIGKILL)
    for child in (first, second):
        assert child.wait(LIMIT) and child.code == -signal.SIGKILL
        assert [list(event) for event in child.events()] == [["lost"]]
    until("they are gone", lambda: not any(map(alive, pids)))
    (third,) = named(forks, "c")
    assert own(forks) != before
    end([first, second, third], time.monotonic() + LIMIT)


def test_threads_may_have_children_of_their_own(forks: ForkServer) -> None:
    """It outlives the thread that has asked for the first child; when it is killed, that is every thread's loss."""
    with ThreadPoolExecutor(1) as threads:
        (first,) = threads.submit(named, forks, "first").result(timeout=LIMIT)

    def live(number: int) -> tuple[int, int | None]:
        child = Child(forks, name=f"t-{number}")
        pid = born(child)
        if number % 2:
            child.kill()
            assert child.wait(LIMIT)
        child.close(time.monotonic() + LIMIT)
        return pid, child.code

    with ThreadPoolExecutor(4) as threads:
        ended = list(threads.map(live, range(12)))
    assert len({pid for pid, _ in ended}) == 12 and [code for _, code in ended] == [1, -signal.SIGKILL] * 6
    assert first.code is None and parent(first.pid) == own(forks)
    with ThreadPoolExecutor(4) as threads:
        children = list(threads.map(lambda number: named(forks, f"u-{number}")[0], range(4)))
        os.kill(own(forks), signal.SIGKILL)
        assert list(threads.map(lambda child: (child.wait(LIMIT), child.code), children)) == [(True, -signal.SIGKILL)] * 4
    until("they are gone", lambda: not any(alive(child.pid) for child in (first, *children)))
    end([first, *children], time.monotonic())


def test_one_that_dies_before_its_first_child_has_begun(forks: ForkServer) -> None:
    child = Child(forks)
    os.kill(own(forks), signal.SIGKILL)
    assert child.wait(LIMIT) and child.code == -signal.SIGKILL and child.pid == 0
    child.send({"role": "share"})  # nobody hears it
    child.close(time.monotonic() + LIMIT)


def test_a_stopped_one_and_its_children_are_ended_all_the_same(forks: ForkServer, caplog: pytest.LogCaptureFixture) -> None:
    (first,) = named(forks, "a")
    os.kill(own(forks), signal.SIGSTOP)
    late = Child(forks, name="late")
    pids = [first.pid, own(forks)]
    first.kill()
    until("it is killed", lambda: not alive(first.pid))
    begun = time.monotonic()
    end([late], time.monotonic())
    forks.close()
    assert not any(map(alive, pids)) and late.code == first.code == -signal.SIGKILL
    assert time.monotonic() - begun < patience(10) and not caplog.records
    end([first], time.monotonic())


def test_signals_reach_one_that_has_not_begun(forks: ForkServer) -> None:
    child = Child(forks, name="trial-0")
    child.send_signal(signal.SIGTERM)
    assert child.wait(LIMIT) and child.code == -signal.SIGTERM
    child.send_signal(signal.SIGTERM)  # to nobody
    child.close(time.monotonic() + LIMIT)


def test_what_cannot_be_imported_is_told_by_the_child(monkeypatch: pytest.MonkeyPatch, forks: ForkServer) -> None:
    monkeypatch.setenv("KGDIST_KERNELS", "fortran")
    child = Child(forks)
    assert child.wait(LIMIT)
    (event,) = child.events()
    assert "KGDIST_KERNELS=fortran: use numba or torch" in event["error"] and child.code == 1
    child.close(time.monotonic() + LIMIT)


def test_a_child_has_the_threads_that_it_is_to_have() -> None:
    """By the environment, which libraries read when they are loaded, before the fork."""
    forks = ForkServer(threads=3)
    with contextlib.closing(forks):
        (child,) = named(forks, "a")
        settings = dict(word.split("=", 1) for word in Path(f"/proc/{child.pid}/environ").read_text().split("\0") if "=" in word)
        assert settings["OMP_NUM_THREADS"] == settings["NUMBA_NUM_THREADS"] == "3"
        child.close(time.monotonic() + LIMIT)
