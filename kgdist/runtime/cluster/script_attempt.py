"""One attempt at a user's script on several machines, seen from the launcher: its processes, what trainers do together, its end.

When one process fails the others notice, and fail in turn; so the first bad news is not always the reason. What was killed goes
before what has raised an error, and errors that only say that somebody else is gone wait for somebody to be.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Any, NamedTuple

from kgdist.base.errors import KgdistError, ProtocolError, UsageError
from kgdist.base.log import complain, log, say
from kgdist.kvstore.wire import NONE, secured
from kgdist.options.tools import LaunchOptions
from kgdist.runtime.cluster.agreement import Agreement, Call, Shared
from kgdist.runtime.cluster.attempt import Attempt, Connect, endure
from kgdist.runtime.cluster.fleet import AttemptFailed
from kgdist.runtime.cluster.script_plan import SERVER, TRAINER, ScriptPlan, argv_of
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.processes.child import ending
from kgdist.runtime.protocol import CREATE, fits

GRACE = 0.4  # seconds in which what has happened at the same time is heard
TOGETHER = ("barrier", "create", "initialize")
# Words of errors that follow from the end of another process.
AFTERWARDS = re.compile(r"PeersLost|closed by peer|reset by peer|Connection (closed|refused|reset)|Broken pipe|timed? ?out", re.I)


class Fall(NamedTuple):
    """The end of a process that should not have ended so."""

    rank: int  # the smaller, the more likely it is the reason
    error: KgdistError


class ScriptAttempt(Attempt[ScriptPlan, int]):
    """One attempt at a script; its end is an exit code."""

    def __init__(self, plan: ScriptPlan, interrupts: Interrupts) -> None:
        super().__init__(plan, interrupts)
        self.config = plan.config
        self.agreement = Agreement(plan.trainers, plan.named)
        self._left: set[tuple[str, int]] = {(TRAINER, rank) for rank in range(plan.trainers)}  # processes that have not ended
        self._serving = False  # there are servers, or will be
        self._served: set[int] = set()  # machines whose servers can be reached
        self._making: tuple[Shared, list[Call]] | None = None
        self._starting: list[Call] = []  # of trainers that wait for the servers
        self._falls: list[Fall] = []
        self._fell = 0.0
        self._waited = self._told = 0.0  # since when trainers wait for others, and when that was said

    def again(self) -> ScriptAttempt:
        return ScriptAttempt(self.plan.again(), self.interrupts)

    def run(self) -> int:
        with self.interrupts.immediate():
            self._begin()
            self._work()
        return 0

    def _begin(self) -> None:
        """Ask everything, and start the trainers."""
        self._same_graph({n: answer["graph"] for n, answer in self.preflight().items()})
        port = self.fleet.ask("port", "port", 60.0, [0])[0]
        self.fleet.tell("launch", address=self.plan.machines[0].address, port=port)
        self.began = True

    def _work(self) -> None:
        """Until all trainers have ended."""
        while self._falls or any(role == TRAINER for role, _ in self._left):
            self._pump()
        if self._serving:
            self._dismiss()
        self.fleet.tell("end")

    def _same_graph(self, found: dict[int, str]) -> None:
        """Refuse machines that have partitions of different graphs, by their digests. Raises UsageError."""
        for n in sorted(found):
            if found[n] != found[0]:
                what = f"{self.fleet.name(n)} has another one than {self.fleet.name(0)}; send it again with kgdist-copy"
                raise UsageError(f"--part_config {self.config.part_config}: {what}")

    def _dismiss(self) -> None:
        """Let the servers leave. The work is done, so one that does not is no reason to fail."""
        self.fleet.tell("leave")
        until = time.monotonic() + self.config.peer_timeout
        while self._left and time.monotonic() < until:
            self.fleet.pump(0.05)
        for fall in self._falls:
            log.warning("%s", fall.error)
        for role, rank in sorted(self._left):
            log.warning("%s %d has not left within %g s, and is ended", role, rank, self.config.peer_timeout)

    def _pump(self) -> None:
        """Hear, and judge what was heard. Raises KgdistError."""
        self.fleet.pump(0.05)
        now = time.monotonic()
        if self._falls:
            worst = min(self._falls, key=lambda fall: fall.rank)
            if now - self._fell > (GRACE if worst.rank < 2 else self.config.peer_timeout):
                raise self._explained(worst)
        elif missing := self.agreement.missing:
            who = ", ".join(self.plan.named(rank) for rank in missing)
            if now - self._waited > self.config.stall_timeout:
                limit = f"{self.config.stall_timeout:g} s (--stall_timeout)"
                raise KgdistError(f"{self.agreement.waiting} and has waited {limit} for {who}")
            if now - self._told > 2 * self.config.peer_timeout:
                self._told = now
                log.info("%s and waits for %s", self.agreement.waiting, who)
        else:
            self._waited = self._told = now

    def _explained(self, worst: Fall) -> KgdistError:
        """An error that follows from the end of another process says which one has ended, if that was no failure itself."""
        if worst.rank < 2 or not self.agreement.gone:
            return worst.error
        ended = f"{self.plan.named(min(self.agreement.gone))} had ended before"
        return AttemptFailed(f"{worst.error}; {ended}: let all make as many steps, see even_batches, or use model.join()")

    def _fall(self, rank: int, error: KgdistError) -> None:
        if not self._falls:
            self._fell = time.monotonic()
        self._falls.append(Fall(rank, error))

    # ---- what agents say

    def news(self, machine: int, kind: str, value: Any) -> None:
        if kind == "line":
            text = f"machine_{machine} {value['who']}: {value['text']}"
            (complain if value["error"] else say)(text)
        elif kind == "exit":
            self._exit(machine, value)
        elif kind == "call":
            try:
                self._call(Call(value["rank"], value["number"], value["what"], value["value"]))
            except ProtocolError:
                raise
            except KgdistError as error:
                self._fall(1, error)
        elif kind == "made":
            self._made(machine, value["number"], value["problem"])
        elif kind == "served":
            self._served.add(machine)
            self._start()
        elif kind == "interrupt":
            raise KeyboardInterrupt

    def _exit(self, machine: int, value: dict[str, Any]) -> None:
        role, rank, code = value["who"], value["rank"], value["code"]
        who = f"{self.fleet.name(machine)}: {role} {rank}"
        if not value["early"]:
            self._left.discard((role, rank))
        try:
            if role == TRAINER and not code:
                self.agreement.end(rank)
        except KgdistError as error:
            self._fall(1, error)
        if not code:
            return
        why = f": {value['why']}" if value["why"] else ""
        if code < 0:
            self._fall(0, AttemptFailed(f"{who} {ending(code)}", machine))
        else:
            how = "failed" if value["early"] else ending(code)
            usage = code == UsageError.exit_code  # as argparse has it, too
            after = not usage and AFTERWARDS.search(value["why"]) is not None
            kind = UsageError if usage else AttemptFailed if after else KgdistError
            self._fall(2 if after else 1, kind(f"{who} {how}{why}"))

    def _call(self, call: Call) -> None:
        if call.what == "drop":
            if (table := self.agreement.drop(str(call.value.get("name")))) is not None:
                self.fleet.tell("drop", number=table.number)
            return
        if call.what not in TOGETHER or (call.what == "create" and not self._whole(call.value)):
            raise ProtocolError(f"{self.plan.named(call.rank)} calls for {call.what!r} in words that are not ours")
        if call.what == "initialize" and not self._serving:  # its first call: this script needs servers
            self._serving = True
            self._left |= {(SERVER, number) for number in range(len(self.plan.addresses))}
            self.fleet.tell("serve")
        if (calls := self.agreement.ask(call)) is None:
            return
        if call.what == "create":
            self._create(calls)
        elif call.what == "initialize":
            self._starting = calls
            self._start()
        else:
            self._reply(calls, problem=self.agreement.problem(calls))

    def _start(self) -> None:
        """Let trainers go on when all of them have called, and all servers are there."""
        if self._starting and len(self._served) == len(self.plan.machines):
            calls, self._starting = self._starting, []
            self._reply(calls)

    def _whole(self, value: dict[str, Any]) -> bool:
        arrays = value.get("arrays")
        return (
            fits(value, CREATE)
            and len(value["bounds"]) in (0, len(self.plan.machines) + 1)
            and all(fits(array, (str, [int])) for array in (arrays.values() if isinstance(arrays, dict) else ()))
        )

    def _create(self, calls: list[Call]) -> None:
        table, problem = self.agreement.create(calls)
        there = len(table.made) == len(self.plan.machines)
        if problem or there:
            self._reply(calls, table, problem)
            return
        self._making = (table, calls)
        self.fleet.tell("make", number=table.number, value=calls[0].value)

    def _made(self, machine: int, number: int, problem: str) -> None:
        if self._making is None or self._making[0].number != number:
            return
        table, calls = self._making
        table.made.add(machine)
        if problem:
            self._making = None
            del self.agreement.tables[table.call.value["name"]]
            self.fleet.tell("drop", number=number)
            self._reply(calls, table, f"{self.fleet.name(machine)}: {problem}")
        elif len(table.made) == len(self.plan.machines):
            self._reply(calls, table)

    def _reply(self, calls: list[Call], table: Shared | None = None, problem: str = "") -> None:
        told = [[call.rank, call.number] for call in calls]
        self.fleet.tell("reply", calls=told, table=0 if table is None else table.number, problem=problem)


def plan_of_script(config: LaunchOptions, machines: list[Machine]) -> ScriptPlan:
    """The plan of a new job. Raises KgdistError."""
    argv = argv_of(config)
    security = secured(config.transport_security, [machine.address for machine in machines])
    if security == NONE:
        log.warning("--transport_security none: whoever reaches the servers' ports can read and change the tensors")
    return ScriptPlan(config, machines, uuid.uuid4().hex[:16], 0, "", argv, security=security)


def launch_script(plan: ScriptPlan, connect: Connect, interrupts: Interrupts) -> int:
    """Run a script; its exit code. Raises KgdistError, PeersLost (exit code 3), KeyboardInterrupt."""
    return endure(ScriptAttempt(plan, interrupts), connect, interrupts)
