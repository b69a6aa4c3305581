"""Trainings on one machine: killed workers, signals, a full disk."""

from __future__ import annotations

import os
import signal
import time

from tests.faults.matrix.trial import Trial, case

SAVED = "saved, exit 130, 10 s"


@case("one-nothing", "one machine: nothing (unfailed run)", "exit 0")
def nothing(t: Trial) -> None:
    with t.one("--test"):
        t.ends()


@case(
    "one-worker-killed",
    "one machine: one of two worker processes kill -9, then --resume",
    "all that the parent's memory holds is saved, exit 1",
)
def worker_killed(t: Trial) -> None:
    with t.machines(machines=1):
        with t.job("--num_proc", "2", "--test") as job:
            t.wait("a checkpoint", lambda: job.checkpoints(0))
            time.sleep(0.5)
            before = max(job.checkpoints(0))
            worker = max(job.pids("processes.worker"))
            t.blow(lambda: os.kill(worker, signal.SIGKILL))
            t.sees("killed by signal SIGKILL", 2.0)
            t.leaves(1, 15.0)
            newest = max(job.checkpoints(0))
            t.check(newest > before, f"saved at step {newest} at last, as before the blow")
            t.notes.append(f"saved at step {newest}")
        t.resumes("--num_proc", "2")


@case("one-hangup", "one machine: SIGHUP (terminal closed), then --resume", SAVED)
def hangup(t: Trial) -> None:
    _signalled(t, signal.SIGHUP)


@case("one-terminated", "one machine: SIGTERM, then --resume", SAVED)
def terminated(t: Trial) -> None:
    _signalled(t, signal.SIGTERM)


@case("one-ctrl-c", "one machine: Ctrl-C once, then --resume", SAVED)
def ctrl_c(t: Trial) -> None:
    _signalled(t, signal.SIGINT)


def _signalled(t: Trial, number: signal.Signals) -> None:
    """Leave by a signal; what was done is saved, and can be gone on with."""
    with t.machines(machines=1):
        with t.job("--num_proc", "2", "--test") as job:
            t.wait("a checkpoint", lambda: job.checkpoints(0))
            time.sleep(0.5)
            before = max(job.checkpoints(0))
            t.blow(lambda: os.kill(job.process.pid, number))
            t.leaves(130, 10.0)
            newest = max(job.checkpoints(0))
            t.check(newest >= before and t.said("interrupted at step"), "nothing was saved")
            t.notes.append(f"saved at step {newest}")
        t.resumes("--num_proc", "2")


@case("one-disk-full-end", "one machine: disk full at the end, room after a while", "waits, says how much, saves")
def disk_full_end(t: Trial) -> None:
    with (
        t.machines(machines=1, disks={0: ("tmpfs", 64)}),
        t.job("--num_proc", "2", "--test", max_step="600", checkpoint_interval="300") as job,
    ):
        t.wait("a checkpoint", lambda: job.checkpoints(0))
        t.blow(lambda: t.rig.disks[0].fill(1000))
        t.sees("kept in memory", 60.0)
        t.check(not t.said(r"0\.00 GB"), "does not say how much room it needs")
        t.rig.disks[0].empty()
        t.ends(test=False)
        t.check(list(t.rig.places[0].glob("*/toy_*_entity.npy")), "no embeddings")
