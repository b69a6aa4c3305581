"""One attempt at a job on several machines, seen from the launcher: what a training and a script have in common.

Agents are started, everything is asked before anything starts, and when a process or a machine is lost that no one can replace,
the attempt is over; another one may begin where there is something to go on from.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

from kgdist.base.errors import KgdistError, PeersLost, UsageError, counted
from kgdist.base.log import log
from kgdist.kvstore.wire import CURVE, secured
from kgdist.runtime.cluster.fleet import AttemptFailed, Fleet
from kgdist.runtime.cluster.plan import Plan
from kgdist.runtime.interrupt import Interrupts

Connect = Callable[[], Fleet]
Job = TypeVar("Job", bound=Plan)
End = TypeVar("End")  # what a job that has come to its end gives
GRACE = 15.0  # seconds that agents have to end their processes
ANSWER = 60.0  # seconds in which an agent says what it is asked about itself


class Attempt(ABC, Generic[Job, End]):
    """One attempt at a job, from connecting to the end.

    Attributes:
        plan: of the job; complete once the machines have been asked.
        began: processes were started that do the work.
        progressed: there is something newer to go on from than where it began.
        run_name: of the run folder that is gone on with, empty for none.
    """

    def __init__(self, plan: Job, interrupts: Interrupts) -> None:
        self.plan, self.interrupts = plan, interrupts
        self.began = self.progressed = False
        self.run_name = ""
        self.fleet: Fleet

    @abstractmethod
    def run(self) -> End:
        """All of it. Raises AttemptFailed, KgdistError; KeyboardInterrupt, where there is nothing to save."""

    @abstractmethod
    def again(self) -> Attempt[Job, End]:
        """The next one."""

    @property
    def hint(self) -> str:
        """How the user can go on from here, after a line that says what has happened."""
        return ""

    def news(self, machine: int, kind: str, value: Any) -> None:
        """Take an event that nobody waits for."""

    @contextlib.contextmanager
    def connected(self, connect: Connect) -> Iterator[None]:
        """Have the agents while the block runs; they are gone after it."""
        try:
            with self.interrupts.immediate():
                self.fleet = connect()
        except UsageError as error:
            raise self._later(error) from error
        self.fleet.news, self.fleet.quiet = self.news, self.plan.config.quiet
        self.fleet.stall, self.fleet.leaving = self.plan.config.stall_timeout, lambda: self.interrupts.asked
        calm = False
        try:
            yield
            calm = True
        finally:
            self.fleet.close(grace=GRACE if calm else 1.0)

    def _later(self, error: UsageError) -> KgdistError:
        """What keeps a job from starting may pass once it has run: machines come back, ports become free."""
        return AttemptFailed(str(error)) if self.plan.attempt else error

    def preflight(self, *, copied: bool = True) -> dict[int, Any]:
        """What every machine has found: all are asked, each as far as it gets, before any problem is told. Raises UsageError.

        Nobody is asked for a partition that has not been `copied`.

        In a later attempt the first problem ends it: what keeps one machine away need not keep the others busy.
        """
        fleet, later = self.fleet, self.plan.attempt > 0
        found = dict(fleet.unreached)
        if not (found and later):
            found |= fleet.hello(ANSWER)
        if not (found and later):
            self._place(found)
        answers: dict[int, Any] = {}
        if not (found and later):
            asked = {"plan": self.plan.to_json(), "run": self.run_name, "copied": copied}
            asked |= {"lease": self.plan.config.peer_timeout, "debug": self.plan.config.debug}
            for n in fleet.channels:
                fleet.tell("check", [n], machine=n, **asked)
            answers = fleet.survey("checked", None, found)
        listed = {n: [why] for n, why in found.items()}
        listed |= {n: [f"{fleet.name(n)}: {line}" for line in answer["problems"]] for n, answer in answers.items()}
        lines = [line for _, lines in sorted(listed.items()) for line in lines]
        if not lines:
            return answers
        for line in lines[:-1]:
            log.error("%s", line)
        raise self._later(UsageError(f"{lines[-1]} ({counted(len(lines), 'problem')}; nothing was started)"))

    def _place(self, problems: dict[int, str]) -> None:
        """Let machines say what the plan lacks: ports, where the user has named none, and keys. In `problems` it is said why one
        does not."""
        fleet = self.fleet
        security = secured(self.plan.config.transport_security, [machine.address for machine in fleet.machines])
        for machine in fleet.machines:
            if machine.number in fleet.channels:
                ports = 0 if machine.port else machine.servers
                fleet.tell("place", [machine.number], ports=ports, secure=security == CURVE)
        answers = fleet.survey("placed", ANSWER, problems)
        keys = {number: answer["key"] for number, answer in answers.items()}
        fleet.machines = [
            machine if machine.port or machine.number not in answers else replace(machine, port=answers[machine.number]["port"])
            for machine in fleet.machines
        ]
        public = [keys.get(machine.number, "") for machine in fleet.machines] if security == CURVE else []
        self.plan = self.plan.placed(fleet.machines, public, security)


def endure(attempt: Attempt[Job, End], connect: Connect, interrupts: Interrupts) -> End:
    """One attempt after another until one comes to its end, which is returned.

    Raises KgdistError; PeersLost (exit code 3) when a machine was lost and could not be replaced.
    """
    restarts = attempt.plan.config.max_restarts
    failures = 0  # one after another, of attempts that did not even begin
    lost = 0  # one after another, of attempts that made no progress
    while True:
        try:
            with attempt.connected(connect):
                return attempt.run()
        except KeyboardInterrupt:
            if attempt.hint:
                log.warning("what was not saved is lost%s", attempt.hint)
            raise
        except AttemptFailed as error:
            lost = 1 if attempt.progressed else lost + 1
            if interrupts.asked or lost > restarts or not (attempt.began or attempt.plan.attempt):
                raise PeersLost(f"{error}{attempt.hint}") from error
            number, left = attempt.plan.attempt + 2, restarts - lost
            log.warning("%s; attempt %d of %d follows", error, number, number + left)
            failures = 0 if attempt.began else failures + 1
            pause = min(2.0 * failures, attempt.plan.config.peer_timeout)
            attempt = attempt.again()
            with interrupts.immediate():
                time.sleep(pause)  # machines come back
