"""`make soak`: a job on two machines whose processes are killed at random for some minutes, held against a calm one.

Every few seconds a trainer, a server or an agent is killed, by a seed; now and then the next one while the job still recovers
from the one before. Then the job is stopped, resumed to its end and tested, and the same number of steps is trained in peace.
Fails when the two differ, when anything is left, or when the launcher grows; writes benchmarks/results/soak.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import zmq

import kgdist
from tests.faults.jobs import ROOT, Job, alive, workspace

RESULT = ROOT / "benchmarks" / "results" / "soak.md"
ROLES = {"trainer": 0.5, "server": 0.25, "agent": 0.25}  # how often each is killed
OPTIONS = {
    "hidden_dim": "100", "batch_size": "256", "neg_sample_size": "64", "gamma": "12", "lr": "0.1", "log_interval": "20",
    "checkpoint_interval": "200", "peer_timeout": "15", "max_restarts": "1000", "local_update": "owner",
}  # fmt: skip
CLOSE = 0.02  # how far the two MRRs may be apart
LONGEST = 60.0  # seconds to be training again; a machine that is busy with other work may take twice as long
GROWTH = 1.0  # MB a minute of the launcher


@dataclass
class Event:
    """One kill, and what became of it, in seconds after it; None where the next kill came first."""

    at: float
    role: str
    machine: int
    seen: float | None = None
    again: float | None = None


class Watch:
    """The lines of a job from now on, for `Event`."""

    def __init__(self, job: Job, role: str) -> None:
        self.job, self.first, self.begun, self.role = job, len(job.lines), time.monotonic(), role

    def _after(self, pattern: str, start: int) -> int | None:
        return next((n for n in range(start, len(self.job.lines)) if re.search(pattern, self.job.lines[n])), None)

    def look(self, event: Event) -> bool:
        """Note what has happened; whether the job trains again."""
        died = "silent|is started again|attempt" if self.role != "trainer" else r"is started again at step|attempt"
        if (seen := self._after(died, self.first)) is None:
            return False
        event.seen = self.job.times[seen] - self.begun
        resumed = seen
        if "attempt" in self.job.lines[seen]:
            if (resumed := self._after(r"^resumed |^run folder", seen)) is None:
                return False
            machines: tuple[int, ...] = (0, 1)
        else:
            machines = (event.machine,)
        found = [self._after(rf"^machine_{n} .*\[Train\]\(\d+/", resumed) for n in machines]
        if None in found:
            return False
        event.again = max(self.job.times[n] for n in found if n is not None) - self.begun
        return True


def resident(pid: int) -> int:
    """Bytes that a process holds, 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def storm(job: Job, seconds: float, seed: int, events: list[Event], memory: list[tuple[float, int]]) -> None:
    """Kill for so long."""
    chance, begun = random.Random(seed), time.monotonic()
    while (now := time.monotonic() - begun) < seconds:
        role = chance.choices(list(ROLES), list(ROLES.values()))[0]
        machine, impatient, pause = chance.randrange(2), chance.random() < 0.2, chance.uniform(2, 6)
        pid = job.agent(machine) if role == "agent" else next(iter(job.pids(rf"{role}-{machine}")), None)
        if pid is None or not alive(pid):
            time.sleep(0.1)
            continue
        watch = Watch(job, role)
        os.kill(pid, signal.SIGKILL)
        event = Event(now, role, machine)
        events.append(event)
        deadline = time.monotonic() + (chance.uniform(0.5, 4) if impatient else 2 * LONGEST)
        while not watch.look(event) and time.monotonic() < deadline:
            assert job.process.poll() is None, job.text
            job.pids()
            time.sleep(0.05)
        if not impatient:
            assert event.again is not None, f"not training again {2 * LONGEST:.0f} s after a {role} was killed:\n{job.text}"
            time.sleep(pause)
        memory.append((time.monotonic() - begun, resident(job.process.pid)))


def run(folder: Path, minutes: float, seed: int) -> str:
    """Both jobs; the report. Raises AssertionError."""
    workspace(folder, entities=2000, relations=10, triples=40000, held_out=0.02)
    ports = [int(line.split()[1]) for line in (folder / "ip_config.txt").read_text().splitlines()]
    before, events, memory = set(os.listdir("/dev/shm")), list[Event](), list[tuple[float, int]]()
    with Job(folder, max_step="100000000", **OPTIONS) as job:
        job.saved(seconds=300)
        storm(job, minutes * 60, seed, events, memory)
        job.saved(seconds=300)
        job.process.send_signal(signal.SIGINT)
        text = job.end(130, 60)
    attempts = len(re.findall(r"; attempt \d+ of", text))
    (run_name,) = re.findall(r"--resume (\S+)", text.splitlines()[-1])
    done = max(int(n) for n in re.findall(r"^machine_\d .*\[Train\]\((\d+)/", text, re.MULTILINE)) + 1000
    with Job(folder, "--resume", run_name, "--test", max_step=str(done), **OPTIONS) as job:
        shaken = mrr(job.end(0, 1800))
    with Job(folder, "--test", max_step=str(done), **OPTIONS) as job:
        calm = mrr(job.end(0, 3600))
    left = [port for port in ports if listening(port)]
    assert not left and set(os.listdir("/dev/shm")) <= before, f"left: ports {left}, /dev/shm {os.listdir('/dev/shm')}"
    late = [(at / 60, size / 1e6) for at, size in memory if at > min(60, minutes * 20)]
    slope = float(np.polyfit(*np.array(late).T, 1)[0]) if len(late) > 2 else 0.0
    assert abs(shaken - calm) < CLOSE and slope < GROWTH, f"MRR {shaken} against {calm}; the launcher grows {slope} MB a minute"
    return report(events, minutes, seed, attempts, done, shaken, calm, slope)


def mrr(text: str) -> float:
    """Of the test."""
    return float(re.findall(r"Test average MRR : ([0-9.]+)", text)[0])


def listening(port: int) -> bool:
    """Whether anybody listens there."""
    return any(f":{port:04X} " in line and " 0A " in line for line in Path("/proc/net/tcp").read_text().splitlines())


def report(
    events: list[Event], minutes: float, seed: int, attempts: int, steps: int, shaken: float, calm: float, slope: float
) -> str:
    """As markdown."""
    lines = [
        "# Soak",
        "",
        f"{minutes:g} minutes, {len(events)} kills (seed {seed}); {attempts} times the job went back to its last checkpoint. Two",
        "machines on this host, one server and one trainer each, `--local_update owner`, 2,000 entities, 38,400 triples,",
        f"TransE_l2, a checkpoint every {OPTIONS['checkpoint_interval']} steps. `training again` is when every trainer concerned",
        f"told of {OPTIONS['log_interval']} more steps. Written by `make soak`.",
        "",
        "| killed | times | seen: median, most | training again: median, most |",
        "|---|---:|---:|---:|",
    ]
    for role in ROLES:
        mine = [event for event in events if event.role == role]
        spans = []
        for found in ([e.seen for e in mine if e.seen is not None], [e.again for e in mine if e.again is not None]):
            spans.append(f"{statistics.median(found):.2f} s, {max(found):.2f} s" if found else "")
        lines.append(f"| {role} | {len(mine)} | {spans[0]} | {spans[1]} |")
    lines += [
        "",
        f"After {steps:,} steps of each trainer the test MRR is {shaken:.4f}; in peace, with equal steps, {calm:.4f}. The",
        f"launcher's memory grew by {slope:.2f} MB a minute. No process, port or shared memory was left.",
        "",
        "| at | killed | machine | seen | training again |",
        "|---:|---|---:|---:|---:|",
    ]
    for e in events:
        seen, again = ("next kill first" if value is None else f"{value:.2f} s" for value in (e.seen, e.again))
        lines.append(f"| {e.at:.0f} s | {e.role} | {e.machine} | {seen} | {again} |")
    versions = f"kgdist {kgdist.__version__}, torch {torch.__version__.split('+')[0]}, libzmq {zmq.zmq_version()}"
    machine = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, load average {os.getloadavg()[2]:.0f} with other work"
    machine += f", Python {platform.python_version()}"
    return "\n".join([*lines, "", f"Machine: {machine}, {versions}.", ""])


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="to work in, empty; by default one that is removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kgdist-soak-") as folder:
        text = run(options.folder or Path(folder), options.minutes, options.seed)
    print(text)
    if options.minutes >= 10:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
