"""Terminals that take no output, on several machines and on one."""

from __future__ import annotations

from tests.faults.matrix.trial import Trial, case

HEAD = ("bash", "-o", "pipefail", "-c", '"$@" | head -n 5', "sh")
CLOSED = ("bash", "-c", '"$@" >&-', "sh")
FULL = ("bash", "-c", '"$@" >/dev/full', "sh")
CONTRACT = "trains on, saves, exit 0"


@case("terminal-unread", "nobody reads what the launcher prints (Ctrl-S), to the end", CONTRACT)
def unread(t: Trial) -> None:
    with t.two("--test", log_interval="2") as job:
        t.blow(job.reading.clear)
        t.ends()
        job.reading.set()
        job._reader.join(timeout=10)
        t.check(not t.said("attempt"), "the job went back")


@case("terminal-head", "stdout of the launcher is | head -n 5", CONTRACT)
def head(t: Trial) -> None:
    _silent(t, HEAD)


@case("terminal-closed", "stdout of the launcher is closed", CONTRACT)
def closed(t: Trial) -> None:
    _silent(t, CLOSED)


@case("terminal-full", "stdout of the launcher is /dev/full", CONTRACT)
def full(t: Trial) -> None:
    _silent(t, FULL)


def _silent(t: Trial, shell: tuple[str, ...]) -> None:
    with t.machines(), t.job("--test", inside=shell, log_interval="10"):
        t.ends()
        t.check(not t.said("Traceback"), "a traceback")
        t.check(not t.said("attempt"), "the job went back")


@case("one-unread", "one machine: nobody reads what it prints, to the end", CONTRACT)
def one_unread(t: Trial) -> None:
    with t.one("--test", log_interval="2") as job:
        t.blow(job.reading.clear)
        t.ends()
        job.reading.set()


@case("one-head", "one machine: | head -n 5", CONTRACT)
def one_head(t: Trial) -> None:
    _one_silent(t, HEAD)


@case("one-closed", "one machine: stdout closed", CONTRACT)
def one_closed(t: Trial) -> None:
    _one_silent(t, CLOSED)


@case("one-full", "one machine: stdout is /dev/full", CONTRACT)
def one_full(t: Trial) -> None:
    _one_silent(t, FULL)


def _one_silent(t: Trial, shell: tuple[str, ...]) -> None:
    with t.one("--test", inside=shell, log_interval="10"):
        t.ends()
        t.check(not t.said("Traceback"), "a traceback")
