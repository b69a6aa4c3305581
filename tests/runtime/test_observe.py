"""A file system that does not answer is told of by who works on it."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from kgdist.runtime import observe
from kgdist.runtime.observe import watched
from tests.patience import patience


def test_what_does_nothing_for_too_long_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(observe, "NAMED", 0.05)
    with caplog.at_level(logging.WARNING, "kgdist"), watched(Path("/run/folder")):
        deadline = time.monotonic() + patience(30)
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
    (line,) = caplog.messages
    assert line.startswith("/run/folder: nothing was written for 0.05 s; the file system does not answer")


def test_what_gets_on_is_left_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    begun = time.monotonic()
    monkeypatch.setattr(observe, "NAMED", patience(1.5))
    with caplog.at_level(logging.WARNING, "kgdist"), watched(Path("/run/folder")) as moved:
        while time.monotonic() < begun + patience(2.5):
            moved(1)
            time.sleep(0.01)
    assert not caplog.messages
