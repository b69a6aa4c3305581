"""Disks that freeze or fill up, networks that swallow, and machines that are slow."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator

from tests.faults.matrix.trial import STEPS, Never, T, Trial, case, press
from tests.faults.rig import PORT

NAMED = 30.0  # seconds after which a file system that does not answer is named
LOOP, SMALL = {1: ("loop", 64)}, ("tmpfs", 64)


@case(
    "disk-frozen-ctrl-c",
    "file system of a machine frozen at a checkpoint; Ctrl-C once when it is named",
    "named 30 s; launcher gone 10 s, exit 3 with the last checkpoint; --resume sweeps",
)
def disk_frozen_ctrl_c(t: Trial) -> None:
    with t.machines(disks=LOOP):
        with t.job("--test", half=False) as job:
            t.begun()
            t.blow(t.rig.disks[1].freeze)
            t.sees(r"machine_1 .*has written nothing for", NAMED + 10)
            seen = t.seen
            t.blow(lambda: press(job))
            t.leaves(3, 10.0)
            t.check(t.said("the last checkpoint is of step"), "the last checkpoint is not named")
            t.seen = seen
            t.rig.disks[1].thaw()  # what sits in the kernel until then can end
        t.resumes()


@case(
    "disk-frozen-long",
    "the same for longer than --stall_timeout 10, thawed when the attempt has failed",
    "seen stall + T + 5 s, training 60 s after the thaw",
)
def disk_frozen_long(t: Trial) -> None:
    with t.two("--test", disks=LOOP, stall_timeout="10", max_restarts="20") as job:
        t.blow(t.rig.disks[1].freeze)
        t.sees(r"attempt \d+ of", 10 + T + 5 + 5)
        seen = t.seen
        t.rig.disks[1].thaw()
        t.blow()
        t.trains(60.0, resumed=True)
        t.ends()
        t.seen = seen
        t.check(job.process.returncode == 0, "it ended otherwise")


@case("disk-frozen-short", "the same for 3 s", "unnoticed")
def disk_frozen_short(t: Trial) -> None:
    with t.two("--test", disks=LOOP) as job:
        before = max(job.checkpoints(1))
        t.blow(t.rig.disks[1].freeze)
        time.sleep(3.0)
        t.rig.disks[1].thaw()
        t.wait("another checkpoint", lambda: max(job.checkpoints(1)) > before or job.process.poll() is not None)
        t.ends()
        t.check(not t.said("attempt"), "the job went back")


@case("disk-full", "disk of a machine full at checkpoints", "warning, training goes on, the last checkpoint stays")
def disk_full(t: Trial) -> None:
    with t.two("--test", disks={1: SMALL}) as job:
        kept = max(job.checkpoints(0) & job.checkpoints(1))
        t.blow(lambda: t.rig.disks[1].fill(1000))
        t.sees(r"machine_1 .*training goes on", 60.0)
        t.check(kept <= max(job.checkpoints(0) & job.checkpoints(1)), "the last checkpoint is gone")
        t.rig.disks[1].empty()
        t.ends()
        t.check(not t.said("attempt"), "the job went back")


@case("disk-full-end", "disk of the first machine full at the end, room after a while", "waits, says how much, saves")
def disk_full_end(t: Trial) -> None:
    with t.machines(disks={0: SMALL}), t.job("--test", max_step="600", checkpoint_interval="300") as job:
        t.wait("a checkpoint", lambda: job.checkpoints(0) & job.checkpoints(1))
        t.blow(lambda: t.rig.disks[0].fill(1000))
        t.sees("kept in memory", 60.0)
        t.check(not t.said(r"0\.00 GB"), "does not say how much room it needs")
        t.check(len(job.pids("trainer|server")) == 4, "not all processes wait")
        t.rig.disks[0].empty()
        t.ends(test=False)
        t.check(list(t.rig.places[0].glob("*/toy_*_entity.npy")), "no embeddings")


@case("port-dropped-3", "data port of a machine swallowed 3 s (ssh up)", "slower; ledger exact")
def port_dropped_short(t: Trial) -> None:
    _unreachable(t, 3.0, PORT, noticed=False)


@case("port-dropped-14", "data port of a machine swallowed 14 s (ssh up)", "seen 2 T + 5 s, training 60 s")
def port_dropped_long(t: Trial) -> None:
    _unreachable(t, 14.0, PORT, noticed=True)


@case("machine-dropped-2", "all packets of a machine swallowed 2 s", "unnoticed")
def machine_dropped_short(t: Trial) -> None:
    _unreachable(t, 2.0, None, noticed=False)


@case("machine-dropped-12", "all packets of a machine swallowed 12 s", "seen T + 5 s, training 60 s after they pass")
def machine_dropped_long(t: Trial) -> None:
    _unreachable(t, 12.0, None, noticed=True)


def _unreachable(t: Trial, seconds: float, port: int | None, *, noticed: bool) -> None:
    """Let packets vanish for so long."""
    with t.two("--test", net=True):
        there = t.rig.nodes[1]
        healed = threading.Timer(seconds, there.lose, (0,))
        t.blow(there.lose if port is None else lambda: there.lose(100, port))
        healed.start()
        try:
            if noticed:
                t.sees("attempt 2 of", (2 * T if port else T) + 5)
                t.trains(seconds + 60.0, resumed=True)
            else:
                t.trains(seconds + 10.0)
        finally:
            healed.join(timeout=60)
        t.ends()
        if not noticed:
            t.check(not t.said("attempt"), "the job went back")


@contextlib.contextmanager
def half_speed(pid: int) -> Iterator[None]:
    """Stop and continue a process, 20 ms each, while the block runs."""
    over = threading.Event()

    def work() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.wait(timeout=0.02):
                os.kill(pid, signal.SIGSTOP)
                over.wait(timeout=0.02)
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _rate(t: Trial, machine: int, seconds: float) -> float:
    """Steps a second that a machine tells of from now on."""
    begun = time.monotonic()
    time.sleep(seconds)
    found = []
    for at, line in zip(t.running.times, t.running.lines, strict=False):
        if at > begun and (step := re.match(rf"machine_{machine} .*\[Train\]\((\d+)/\d+\) average pos_loss", line)):
            found.append((at, int(step[1])))
    if len(found) < 3:
        raise Never(f"machine_{machine} told of {len(found)} steps in {seconds:g} s")
    return (found[-1][1] - found[0][1]) / (found[-1][0] - found[0][0])


@case(
    "straggler",
    "one of two trainers at half speed (STOP/CONT 20 ms), default meetings",
    "others walk at its pace, as the docs say",
)
def straggler(t: Trial) -> None:
    _straggle(t, least=0.4)


@case("straggler-free", f"the same, --force_sync_interval {STEPS * 1000}", "others at 90 %")
def straggler_free(t: Trial) -> None:
    _straggle(t, least=0.9, force_sync_interval=str(STEPS * 1000))


def _straggle(t: Trial, *, least: float, **options: str) -> None:
    """The rate of the other trainer against its rate before."""
    given = {"max_step": "1000000", "checkpoint_interval": "1000000", "log_interval": "20"} | options
    with t.machines(), t.job(**given) as job:
        t.first_words()
        alone = _rate(t, 0, 6.0)
        trainer = min(job.pids("trainer-1-0"))
        with half_speed(trainer):
            beside = _rate(t, 0, 8.0)
        t.notes.append(f"the other: {alone:.0f} to {beside:.0f} steps/s, {beside / alone:.0%}")
        t.check(beside >= least * alone, f"the other trainer at {beside / alone:.0%}, at least {least:.0%}")
        t.blow(lambda: press(job))
        t.leaves(130, 10.0)
