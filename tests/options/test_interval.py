"""How often checkpoints come: what may be asked for, and what that means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import OptionError
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import from_json, to_json
from kgdist.options.interval import Interval, Rhythm, cleaned

ROW = OPTIONS["checkpoint_interval"]


@given(st.integers(0, 999_999_999))
def test_steps(steps: int) -> None:
    text = str(steps)
    assert ROW.read(text) == ROW.check(steps) == text and Interval.parse(text) == Interval(steps=steps)
    due = [step for step in range(1, 30) if Rhythm(Interval.parse(text)).due(step)]
    assert due == [step for step in range(1, 30) if steps and step % steps == 0]


@given(st.floats(1e-8, 1e6))
def test_minutes_survive_every_way_through_text(minutes: float) -> None:
    text = ROW.read(f"{minutes:.9f}m")
    assert ROW.read(text) == text == cleaned(text)
    assert Interval.parse(text).seconds == pytest.approx(60 * minutes, abs=1e-6) and Interval.parse(text).steps == 0
    config = Config(checkpoint_interval=text)
    assert from_json(to_json(config)) == config


@pytest.mark.parametrize(
    "value", ["0m", "-1", "1h", "m", "1e3", "10 m", "0.0m", "1.5", "nanm", "9" * 30, -1, 1.5, True, None, "", "x" * 200]
)
def test_what_is_no_interval_is_refused_in_one_line(value: object) -> None:
    with pytest.raises(OptionError, match="--checkpoint_interval: must ") as refused:
        ROW.check(value)
    assert len(str(refused.value)) < 200


def test_a_checkpoint_that_takes_long_puts_the_next_one_off() -> None:
    rhythm = Rhythm(Interval(seconds=1e-9))
    assert rhythm.by_clock() and rhythm.due(7)
    rhythm.written(1e-12)
    assert rhythm.by_clock()
    rhythm.written(1000.0)
    assert not rhythm.by_clock() and not rhythm.due(7)
    rhythm.begin()
    assert rhythm.by_clock()
    assert not Rhythm(Interval(seconds=1e9)).by_clock() and not Rhythm(Interval()).by_clock()
