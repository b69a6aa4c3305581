"""One case of the kill matrix while it runs: a job, a blow, and what is to be seen after it and when."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.jobs import Job
from tests.faults.rig import MarkedJob, Rig, rig

T = 5.0  # --peer_timeout of every case
STALL = 8.0  # --stall_timeout of those that are about it
STEPS = 2400
TOY = {
    "hidden_dim": "100", "batch_size": "256", "neg_sample_size": "64", "gamma": "12", "lr": "0.1", "log_interval": "50",
    "checkpoint_interval": "400", "peer_timeout": f"{T:g}", "max_step": str(STEPS),
}  # fmt: skip
CLOSE = 0.02  # how far the MRR of a case may be from that of an unfailed run
NEVER = 100.0  # seconds after which what has not happened counts as never


class Never(Exception):
    """Something that had to happen did not, for so long that it never will."""


@dataclass
class Case:
    """One row of the table. `run` raises Never, or notes in the trial what is not as it should be."""

    name: str
    event: str
    contract: str
    run: Callable[[Trial], None]


CASES: list[Case] = []


def case(name: str, event: str, contract: str) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Add a function to the matrix."""

    def add(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
        CASES.append(Case(name, event, contract, function))
        return function

    return add


@dataclass
class Trial:
    """What a case is given, and what it finds; times are in seconds after the blow.

    Attributes:
        slack: how much longer than the contract says things may take here.
        calm: MRR of an unfailed run; None in that run itself.
        gone: seconds after the launcher's end (or the blow that ends all) until nothing was left.
    """

    folder: Path
    data: Path
    slack: float
    calm: float | None = None
    seen: float | None = None
    again: float | None = None
    code: int | None = None
    mrr: float | None = None
    gone: float | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def machines(self, **shape: Any) -> Iterator[Rig]:
        """Two machines, see `rig`."""
        with rig(self.folder, self.data, **shape) as self.rig:
            yield self.rig

    @contextlib.contextmanager
    def job(self, *words: str, half: bool = True, **options: Any) -> Iterator[MarkedJob]:
        """A job on them while the block runs; after it nothing may be left. Without `half` a half-written checkpoint may."""
        given = (
            TOY | options
            if self.rig.servers
            else {name: value for name, value in TOY.items() if name != "peer_timeout"} | options
        )
        with self.rig.job(*words, **given) as self.running:
            job = self.running
            try:
                yield job
                self._nothing_left(half)
            finally:
                clock = job.times[0] if job.times else 0.0
                self.log += [f"{at - clock:8.2f} {line}" for at, line in zip(job.times, job.lines, strict=False)]

    @contextlib.contextmanager
    def two(
        self, *words: str, net: bool = False, disks: dict[int, tuple[str, int]] | None = None, **more: Any
    ) -> Iterator[MarkedJob]:
        """A job on two machines of its own that has come past its first checkpoint."""
        with self.machines(net=net, disks=disks), self.job(*words, **more) as job:
            self.begun()
            yield job

    def begun(self) -> None:
        """Wait until both machines have a checkpoint and have told of steps."""
        self.wait("a checkpoint", lambda: self.running.checkpoints(0) & self.running.checkpoints(1))
        self.first_words()

    @contextlib.contextmanager
    def one(self, *words: str, disks: dict[int, tuple[str, int]] | None = None, **more: Any) -> Iterator[MarkedJob]:
        """A training of two processes on one machine that has come past its first checkpoint."""
        with self.machines(machines=1, disks=disks), self.job("--num_proc", "2", *words, **more) as job:
            self.wait("a checkpoint", lambda: job.checkpoints(0))
            yield job

    def first_words(self) -> None:
        """Wait until every machine has told of steps of its own."""
        for machine in range(2):
            self.wait(
                "steps", lambda m=machine: any(re.match(rf"machine_{m} .*\[Train\]\(\d", line) for line in self.running.lines)
            )

    def wait(self, what: str, true: Callable[[], object], seconds: float = NEVER) -> float:
        """Wait for that; seconds it took. Raises Never."""
        begun = time.monotonic()
        while not true():
            if time.monotonic() - begun > seconds * min(self.slack, 2.0):
                raise Never(f"{what}: not within {seconds * min(self.slack, 2.0):.0f} s")
            time.sleep(0.02)
        return time.monotonic() - begun

    # ---- the blow and what follows

    def blow(self, function: Callable[[], object] = lambda: None) -> None:
        """Strike; times count from here."""
        self.at, self.line = time.monotonic(), len(self.running.lines)
        function()

    def kill(self, role: str, how: signal.Signals = signal.SIGKILL) -> int:
        """The blow is a signal to the process of that role."""
        found = sorted(self.running.pids(role))
        if not found:
            raise Never(f"no {role} is running")
        self.blow(lambda: os.kill(found[0], how))
        return found[0]

    def find(self, pattern: str, start: int) -> int | None:
        """The number of the first line with the pattern, from `start` on."""
        lines = self.running.lines
        return next((n for n in range(start, min(len(lines), len(self.running.times))) if re.search(pattern, lines[n])), None)

    def late(self, what: str, took: float, within: float) -> None:
        """Note what took longer than it may."""
        if took > within * self.slack:
            self.problems.append(f"{what} after {took:.1f} s, at most {within * self.slack:g}")

    def sees(self, pattern: str, within: float) -> None:
        """The launcher says so, at most so many seconds after the blow."""
        self.wait(f"said {pattern!r}", lambda: self.find(pattern, self.line) is not None or self._ended())
        found = self.find(pattern, self.line)
        if found is None:
            raise Never(f"not said {pattern!r} before it ended with {self.running.process.returncode}")
        self.seen, self.line = self.running.times[found] - self.at, found
        self.late("seen", self.seen, within)

    def trains(self, within: float, machines: tuple[int, ...] = (0, 1), *, resumed: bool = False) -> None:
        """These machines tell of steps again, if need be from a checkpoint, at most so many seconds after the blow."""
        start = self.line
        if resumed:
            self.wait("resumed", lambda: self.find("^resumed |^run folder", start) is not None or self._ended())
            if (found := self.find("^resumed |^run folder", start)) is None:
                raise Never(f"not resumed before it ended with {self.running.process.returncode}")
            start = found
        lines = []
        for n in machines:
            pattern = rf"^machine_{n} .*\[Train\]\(\d+/"
            self.wait(f"machine_{n} trains again", lambda p=pattern: self.find(p, start) is not None or self._ended())
            if (found := self.find(pattern, start)) is None:
                raise Never(f"machine_{n} did not train again before the job ended with {self.running.process.returncode}")
            lines.append(found)
        self.again = self.running.times[max(lines)] - self.at
        self.late("training again", self.again, within)

    def back(self, sees: str, within: float) -> None:
        """The job notices, goes back to its last checkpoint and ends well."""
        self.sees(sees, within)
        self.trains(60.0, resumed=True)
        self.ends()

    def _ended(self) -> bool:
        """Whether it has, and all it said has been read."""
        return self.running.process.poll() is not None and not self.running._reader.is_alive()

    def leaves(self, code: int, within: float) -> None:
        """The launcher ends with that exit code, at most so many seconds after the blow."""
        self.wait("the end of the launcher", lambda: self.running.process.poll() is not None)
        took = time.monotonic() - self.at
        self.again = took
        self.code = self.running.process.returncode
        self.late("left", took, within)
        self.check(self.code == code, f"exit code {self.code}, not {code}")

    def ends(self, code: int = 0, *, test: bool = True) -> None:
        """It comes to its end, and its model is as good as ever."""
        self.wait("the end of the job", lambda: self.running.process.poll() is not None)
        self.code = self.running.process.returncode
        self.check(self.code == code, f"exit code {self.code}, not {code}")
        if test and not code:
            self.compare()

    def resumes(self, *words: str) -> None:
        """The run goes on from what was saved, and comes to a good end; the exit code stays that of the job before."""
        (run,) = self.rig.places[0].iterdir()
        code = self.code
        with self.job("--resume", run.name if self.rig.servers else str(run), "--test", *words):
            self.ends()
        self.code = code if not self.code else self.code

    def compare(self) -> None:
        """The MRR of the test against that of the unfailed run."""
        try:
            (found,) = self.rig.places[0].glob("*/test.json")
            self.mrr = float(json.loads(found.read_text())["all"]["realistic"]["mrr"])
        except (ValueError, OSError):
            self.problems.append("no test was made")
            return
        if self.calm is not None:
            self.check(abs(self.mrr - self.calm) <= CLOSE, f"MRR {self.mrr:.4f}, unfailed {self.calm:.4f}")

    def check(self, true: object, problem: str) -> None:
        """Note a problem unless it is true."""
        if not true:
            self.problems.append(problem)

    def said(self, pattern: str) -> bool:
        """Whether the launcher has said so since the job began."""
        return any(re.search(pattern, line) for line in self.running.lines)

    def _nothing_left(self, half: bool) -> None:
        begun = time.monotonic()
        while (left := self.rig.left(half=half)) and time.monotonic() - begun < 10.0 * self.slack:
            time.sleep(0.05)
        if left:
            self.problems.append(f"left: {left}")
        if self.gone is None:
            self.gone = time.monotonic() - begun


def press(job: Job, *keys: signal.Signals) -> None:
    """Send signals to the launcher."""
    for key in keys or (signal.SIGINT,):
        os.kill(job.process.pid, key)
        time.sleep(0.15)
