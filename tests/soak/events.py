"""What happens to a job in the soak: faults and attacks, chosen by a seed, and what became of each."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.family import alive, parent
from tests.faults.jobs import ROOT
from tests.faults.rig import MarkedJob, Rig
from tests.soak.ledger import Books

T, STALL = 5.0, 10.0  # --peer_timeout and --stall_timeout
LONG = 2 * T + 5  # seconds that nothing survives unnoticed
PATIENCE = 120.0  # seconds in which a job trains again, also on a machine that is busy with other work
# what -> how often
WEIGHTS = {
    "trainer killed": 4,
    "server killed": 2,
    "agent killed": 2,
    "trainer stopped for a while": 2,
    "server stopped for a while": 2,
    "agent stopped for a while": 2,
    "trainer stopped for long": 1,
    "server stopped for long": 1,
    "agent stopped for long": 1,
    "packets swallowed for a while": 3,
    "packets swallowed for long": 1,
    "strangers at a server's port": 3,
    "disk frozen for a while": 2,
    "disk frozen for long": 1,
    "terminal takes no output": 2,
}


@dataclass
class Event:
    """One of them, in seconds; `again` is None where the next one came first."""

    at: float
    what: str
    machine: int
    lasted: float = 0.0
    noticed: str = ""
    again: float | None = None


@dataclass
class Storm:
    """The job, the ledger beside it, and what happens to them.

    Attributes:
        memory: (seconds, bytes of the launcher, most bytes of a server) now and then.
        strangers: connections of the floods.
    """

    rig: Rig
    job: MarkedJob
    books: Books | None
    seed: int
    events: list[Event] = field(default_factory=list)
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    strangers: int = 0

    def __post_init__(self) -> None:
        self.chance, self.begun = random.Random(self.seed), time.monotonic()
        possible = dict(WEIGHTS)
        if not self.rig.nodes:
            possible = {what: w for what, w in possible.items() if not what.startswith(("packets", "strangers"))}
        if not self.rig.disks:
            possible = {what: w for what, w in possible.items() if not what.startswith("disk")}
        self.possible = possible
        self.deck: list[str] = []

    def rage(self, seconds: float) -> None:
        """Let it happen for so long. Raises AssertionError."""
        while (now := time.monotonic() - self.begun) < seconds:
            if not self.deck:  # each as often as its weight says, in an order of chance
                self.deck = [what for what, times in self.possible.items() for _ in range(times)]
                self.chance.shuffle(self.deck)
            what = self.deck.pop()
            event = Event(now, what, self.chance.randrange(2))
            impatient = self.chance.random() < 0.15
            self._happen(event)
            self.events.append(event)
            limit = self.chance.uniform(0.5, 4) if impatient else PATIENCE
            ended, first = time.monotonic(), len(self.job.lines)
            self._until(lambda e=event, t=ended, n=first: self._trains(e, t, n), limit)
            assert impatient or event.again is not None, f"no training {limit:.0f} s after: {what}\n{self.job.text}"
            print(f"{event.at:5.0f} s  {event.what}, machine {event.machine}: {event.noticed or 'unnoticed'}", flush=True)
            self._until(lambda: False, self.chance.uniform(0.5, 3))

    def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Look after everything until that is so, for so long at most."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.job.process.poll() is None, f"the job has ended:\n{self.job.text}"
            if self.books is not None:
                self.books.look()
            self._weigh()
            if true():
                return True
            time.sleep(0.05)
        return False

    def _weigh(self) -> None:
        now = time.monotonic() - self.begun
        if not self.memory or now - self.memory[-1][0] > 2.0:
            servers = [resident(pid) for pid in self.job.pids(r"server-\d")]
            self.memory.append((now, resident(self.job.process.pid), max(servers, default=0)))

    def _said(self, pattern: str, first: int) -> int | None:
        lines = self.job.lines
        return next((n for n in range(first, len(lines)) if re.search(pattern, lines[n])), None)

    def _trains(self, event: Event, ended: float, first: int) -> bool:
        """Whether both machines have told of steps since the event ended, and since the job went back, if it did."""
        start = self.start
        attempts = [n for n in range(start, len(self.job.lines)) if re.search(r"; attempt \d+ of", self.job.lines[n])]
        if attempts:
            event.noticed = "the job went back"
            resumed = self._said("^resumed |^run folder", attempts[-1])
            if resumed is None:
                return False
            first = max(first, resumed)
        elif self._said("is started again", start) is not None:
            event.noticed = "trainer started again"
        for machine in range(2):
            if self._said(rf"^machine_{machine} .*\[Train\]\(\d+/", first) is None:
                return False
        event.again = time.monotonic() - ended
        return True

    def _happen(self, event: Event) -> None:
        self.start, begun = len(self.job.lines), time.monotonic()
        what, _, how = event.what.partition(" ")
        if what in ("trainer", "server", "agent"):
            self._process(what, event, how)
        elif what == "packets":
            node = self.rig.nodes[event.machine]
            node.lose()
            try:
                self._hold(LONG if how.endswith("long") else self.chance.uniform(0.3, 2.0))
            finally:
                node.lose(0)
        elif what == "strangers":
            self._flood(event.machine)
        elif what == "disk":
            disk = self.rig.disks[1]
            disk.freeze()
            try:
                self._hold(60.0 if how.endswith("long") else self.chance.uniform(1.0, 4.0), back=True)
            finally:
                disk.thaw()
        else:
            self.job.reading.clear()
            try:
                self._hold(self.chance.uniform(1.0, 3 * T))
            finally:
                self.job.reading.set()
        event.lasted = time.monotonic() - begun

    def _hold(self, seconds: float, *, back: bool = False) -> None:
        """Let it be for so long, or, with `back`, until the job has noticed."""
        noticed = r"; attempt \d+ of|is started again"
        self._until(lambda: back and self._said(noticed, self.start) is not None, seconds)

    def _process(self, role: str, event: Event, how: str) -> None:
        """Kill or stop a process of the job, and one of the ledger."""
        number = signal.SIGKILL if how == "killed" else signal.SIGSTOP
        if not self._until(lambda: self._pid(role, event.machine) is not None, PATIENCE):
            raise AssertionError(f"machine {event.machine} has no {role}:\n{self.job.text}")
        pid, self.start = self._pid(role, event.machine), len(self.job.lines)
        beside = self.books.strike(role, event.machine, number) if self.books is not None and role != "agent" else None
        with contextlib.suppress(ProcessLookupError, TypeError):  # it may end at this moment
            os.kill(pid, number)  # type: ignore[arg-type]
        if number == signal.SIGSTOP:
            try:
                self._hold(60.0 if how.endswith("long") else self.chance.uniform(0.2, 2.5), back=True)
            finally:
                for stopped in (pid, beside):
                    with contextlib.suppress(ProcessLookupError, TypeError):
                        os.kill(stopped, signal.SIGCONT)  # type: ignore[arg-type]

    def _pid(self, role: str, machine: int) -> int | None:
        """A process of the job: an agent has started what forked its machine's trainer and server."""
        trainer = next((pid for pid in self.job.pids(f"trainer-{machine}-") if alive(pid)), None)
        if role == "trainer" or trainer is None:
            return trainer
        agent = parent(parent(trainer))  # between them is the process that has forked it
        if role == "agent" or agent is None:
            return agent
        return next((pid for pid in self.job.pids(r"server-\d") if parent(parent(pid)) == agent), None)

    def _flood(self, machine: int) -> None:
        """Strangers at the server of a machine and, beside it, at that of the ledger."""
        node, other = self.rig.nodes[machine], self.rig.nodes[1 - machine]
        seconds = self.chance.uniform(2.0, 6.0)
        ports = [int(line.split()[1]) for line in (self.rig.folder / "ip_config.txt").read_text().splitlines()]
        floods = []
        for port in (ports[machine], *([self.books.machines[machine][1][1]] if self.books is not None else [])):
            words = [node.address, str(port), f"{seconds:.1f}", str(self.chance.randrange(1 << 30))]
            floods.append(
                subprocess.Popen(
                    [*other.inside, sys.executable, "-m", "tests.soak.flood", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
                )
            )
        try:
            self._until(lambda: all(flood.poll() is not None for flood in floods), seconds + 30)
        finally:
            for flood in floods:
                if flood.poll() is None:
                    flood.kill()
                said = flood.communicate(timeout=10)[0]
                assert flood.returncode in (0, -signal.SIGKILL), "the strangers failed"
                self.strangers += int(said or 0)


def resident(pid: int) -> int:
    """Bytes that a process holds, 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
