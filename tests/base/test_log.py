"""Words to the user: in order, never waited for in the background, and counted where nobody reads them."""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator

import pytest

from kgdist.base import log, writer
from kgdist.base.errors import KgdistError
from kgdist.base.log import bar
from kgdist.base.writer import Writer
from tests.faults.commands import until

LINES = 30_000  # of 60 bytes: more than a pipe and the memory of a writer take together


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def everything(fd: int) -> bytes:
    """What can be read until nobody writes any more."""
    found = b""
    with contextlib.suppress(OSError):  # a terminal that nobody writes to any more
        while piece := os.read(fd, 1 << 16):
            found += piece
    return found


def numbered(number: int) -> bytes:
    return b"line %7d %s\n" % (number, b"." * 46)


def test_lines_that_nobody_reads_are_counted_and_the_others_stay_in_order() -> None:
    with pipe() as (ours, theirs):
        words = Writer(theirs)
        for number in range(LINES):
            words.put(numbered(number))
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append(everything(ours)))
        reader.start()
        until("all that has waited is read", lambda: not words._size)
        words.put(b"the last line\n")
        words.close()
        os.close(theirs)
        reader.join(10)
    lines = read[0].decode().splitlines()
    dropped = [
        int(found[1].replace(",", "")) for line in lines if (found := re.match(r".*\(([\d,]+) lines were dropped: nobo", line))
    ]
    numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
    assert len(dropped) == 1 and dropped[0] > 0 and len(numbers) + dropped[0] == LINES
    assert numbers == list(range(len(numbers))) and lines[-1] == "the last line"


def test_the_end_does_not_wait_for_a_reader_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "STILL", 0.2)
    with pipe() as (ours, theirs):
        words = Writer(theirs)
        for number in range(LINES):
            words.put(numbered(number))
        words.close()
        assert words._thread.is_alive()  # still in its write
        os.close(theirs)
        lines = everything(ours).splitlines(keepends=True)
        words._thread.join(30)
        assert not words._thread.is_alive() and lines[:1000] == [numbered(number) for number in range(1000)]


def test_a_terminal_that_another_program_has_made_non_blocking() -> None:
    with pipe() as (ours, theirs):
        os.set_blocking(theirs, False)
        words = Writer(theirs)
        for number in range(5000):
            words.put(numbered(number))
        reader = threading.Thread(target=lambda: read.append(everything(ours)))
        read: list[bytes] = []
        reader.start()
        words.close()
        os.close(theirs)
        reader.join(10)
    assert read[0] == b"".join(map(numbered, range(5000)))


def test_words_on_one_terminal_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Result lines, log lines and a bar between them, which is drawn below all."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(everything(ours)))
    reader.start()
    try:
        with os.fdopen(theirs, "w") as terminal, os.fdopen(os.dup(theirs), "w") as another:
            monkeypatch.setattr(sys, "stdout", terminal)
            monkeypatch.setattr(sys, "stderr", another)
            log.setup()
            with log.background(), bar(total=200, desc="work") as shown:
                shown.delay = 0
                for number in range(100):
                    shown.update(2)
                    shown.refresh()
                    log.say(f"said {number}")
                    log.log.info("logged %d", number)
    finally:
        reader.join(10)
        os.close(ours)
        monkeypatch.undo()
        log.setup()
    shown_lines = [line.split("\r")[-1] for line in read[0].decode().replace("\r\n", "\n").split("\n")]
    expected = [line for number in range(100) for line in (f"said {number}", f"INFO: logged {number}")]
    assert [line for line in shown_lines if "said" in line or "logged" in line] == expected
    assert "work: 100%" in read[0].decode()


def test_a_process_among_others_names_itself(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        log.setup(quiet=True, who="worker 5%")
        log.log.warning("%s is full", "the disk")
        log.log.info("nobody hears of it")
    finally:
        log.setup()
    assert capsys.readouterr().err == "WARNING: worker 5%: the disk is full\n"


def test_background_words_of_a_program_that_has_set_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings come as logging itself would write them; streams without a file are written to; a closed one is no error."""
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(log.log, "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with log.background():
        log.say("said")
        log.log.warning("a warning")
        log.log.info("nobody asked for this")
        out.close()
        log.say("lost")
    assert err.getvalue() == "a warning\n" and log.log.handlers == []


def test_in_the_foreground_words_are_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(KgdistError, match=r"the output cannot be written \(No space left on device\)"):
            log.say("an answer")
        with log.background():
            log.say("a word")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
