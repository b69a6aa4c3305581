"""What the launcher makes of what its machines say, and of those that say nothing: with machines that are lists."""

from __future__ import annotations

import queue
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import KgdistError
from kgdist.runtime.channels.channel import Heard
from kgdist.runtime.cluster.fleet import AttemptFailed, Fleet
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.protocol import EVENTS, cleaned
from tests.patience import patience

LIMIT = patience(60.0)


class Recorder:
    """A machine that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    def close(self, grace: float) -> None:
        pass


class Machines:
    """A fleet of two, and what they say."""

    def __init__(self, timeout: float = 15.0) -> None:
        self.events: queue.Queue[Heard] = queue.Queue()
        self.channels = [Recorder(), Recorder()]
        machines = [Machine("127.0.0.1", 30000 + n, 1, n) for n in range(2)]
        self.fleet = Fleet(machines, dict(enumerate(self.channels)), self.events, timeout)

    def says(self, number: int, *, at: float | None = None, **message: Any) -> None:
        self.events.put(Heard(number, "message", message, time.monotonic() if at is None else at))

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *error: object) -> None:
        self.fleet.close(grace=0)


def test_signs_of_life_go_out_while_the_launcher_is_busy() -> None:
    with Machines(timeout=0.5) as machines:
        deadline = time.monotonic() + LIMIT
        while len(machines.channels[1].told) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)  # in a print, in a computation
        assert machines.channels[1].told[:3] == [{"do": "beat"}] * 3


def test_a_machine_that_has_spoken_has_no_more_time_than_the_others() -> None:
    """The grace of its beginning ends with its first word."""
    with Machines(timeout=5.0) as machines:
        machines.fleet.pump(0.01)  # nobody has said anything yet
        for number in range(2):
            machines.says(number, at=time.monotonic() - 6 * number, beat=["", "", 1])
        with pytest.raises(AttemptFailed, match=r"machine_1 .*: silent for 5 s"):
            machines.fleet.pump(0.01)


def test_a_flood_of_lines_is_heard_in_turns_and_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the launcher's work is done between; nobody counts as silent whose words are still waiting."""
    monkeypatch.setattr("kgdist.runtime.cluster.fleet.TURN", -1.0)  # over after one word
    with Machines(timeout=5.0) as machines:
        fleet, begin = machines.fleet, time.monotonic() - 1000
        fleet._heard = dict.fromkeys(fleet._heard, begin)
        for number in range(500):
            machines.says(0, at=begin + number * 0.01, beat=["", "", number])
        machines.says(1, at=begin + 4.9, beat=["", "", 1])
        fleet.pump(0.01)
        assert machines.events.qsize() == 500
        with pytest.raises(AttemptFailed, match=r"machine_0 .*: silent for 5 s"):  # when all is heard: that was long ago
            for _ in range(501):
                fleet.pump(0.01)
        assert machines.events.qsize() == 0


def test_a_machine_that_stands_still_is_named_and_lost(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgdist.base.log.log.propagate", True)
    with Machines(timeout=10.0) as machines:
        fleet = machines.fleet
        fleet.stall = 300.0
        for number in (0, 1):
            machines.says(number, beat=["written", "checkpoint of step 400", 7])
        fleet.pump(0.01)
        now = fleet._doing[1][1]

        def later(seconds: float) -> None:
            fleet._heard = dict.fromkeys(fleet._heard, now + seconds)
            fleet._doing[0] = fleet._doing[0][0], now + seconds
            fleet._judge(now + seconds)

        later(29)
        assert caplog.text == ""
        later(32)
        later(33)
        (told,) = {record.getMessage() for record in caplog.records}  # and not again after 33 s
        assert told.startswith("machine_1 (127.0.0.1) has written nothing for 32 s (checkpoint of step 400)")
        assert told.endswith("is its file system answering?")
        later(309)
        with pytest.raises(AttemptFailed, match=r"machine_1 .*: has written nothing for 311 s \(checkpoint of step 400\)"):
            later(311)


def test_nobody_who_wants_to_leave_waits_long() -> None:
    with Machines(timeout=100.0) as machines:
        fleet, now = machines.fleet, time.monotonic()
        machines.says(1, beat=["written", "metrics.jsonl", 7])
        fleet.pump(0.01)
        fleet._judge(now + 30)
        fleet.leaving = lambda: True
        fleet._judge(now + 3)
        machines.says(1, at=now + 59, beat=["written", "metrics.jsonl", 7])  # it lives, and gets nothing done
        fleet.pump(0.01)
        with pytest.raises(AttemptFailed, match=r"machine_1 .*: has written nothing for \d+ s \(metrics.jsonl\)"):
            fleet._judge(now + 60)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(["what", "steps"]), inner, max_size=3)
    ),
)


@given(st.sampled_from([*EVENTS, "nonsense"]), json)
def test_whatever_a_machine_says_is_understood_or_one_line(word: str, value: Any) -> None:
    machines = Machines()
    machines.fleet.quiet = True
    machines.fleet._over.set()
    machines.says(1, **{word: value})
    try:
        machines.fleet.pump(0.01)
    except KgdistError as error:
        assert "machine_1" in str(error) and str(error).isprintable()


def test_what_reaches_the_terminal_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;pwned\x07 \u202e"
    with Machines() as machines:
        machines.says(0, say=evil)
        machines.fleet.pump(0.01)
        machines.says(1, failed={"what": evil, "recoverable": True, "code": 1})
        with pytest.raises(AttemptFailed) as failed:
            machines.fleet.pump(0.01)
    printed = capsys.readouterr().out
    assert "pwned" in printed and "\x1b" not in printed and "\u202e" not in printed
    assert "pwned" in str(failed.value) and str(failed.value).isprintable()
    assert cleaned({"a": ["\x1b", 1, None]}) == {"a": ["\\x1b", 1, None]}
