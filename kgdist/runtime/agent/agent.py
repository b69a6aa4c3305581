"""The agent of one machine: `main` in a process of its own, started by the launcher over a channel.

It reads commands on stdin and writes events on stdout (`kgdist.runtime.protocol`); a command is the method of `Agent` that bears
its name. It owns the machine's servers and trainers. When stdin closes, or nothing has been heard from the
launcher for the lease, all of them end: nothing is left running.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgdist.base.errors import KgdistError, ProtocolError
from kgdist.base.files import safe_join, write_json
from kgdist.base.log import log, setup
from kgdist.runtime.agent.beside import Beside
from kgdist.runtime.agent.site import Failure, Site, Tell
from kgdist.runtime.processes.child import Owner, Partner
from kgdist.runtime.protocol import Doing, command_of
from kgdist.version import __version__

if TYPE_CHECKING:
    from kgdist.kvstore.wire import Keys
    from kgdist.runtime.agent.script_site import ScriptSite
    from kgdist.runtime.agent.training_site import TrainingSite

TICK = 0.05  # seconds between two looks at the children's numbers; their words are heard at once
LEASE = 60.0  # seconds without a word from the launcher, until a job says how many
HANGS = 5.0  # seconds more, after which a loop that does not turn is ended by force


class Agent:
    """Carries commands out."""

    def __init__(self, owner: Partner) -> None:
        self.owner = owner
        self._site: Site | None = None
        self._keys: Keys | None = None  # of this machine, for this attempt
        self.run_name = ""
        self.lease = LEASE
        self.ended = False
        self._heard = time.monotonic()
        self._beside = Beside(owner.bell)
        self._missed: set[str] = set()  # files that could not be written the last time
        self._over = threading.Event()
        self.turns = 0  # of the loop; it hangs while this does not change

    @property
    def site(self) -> Site:
        """What runs here. Raises ProtocolError before there is a job."""
        if self._site is None:
            raise ProtocolError("the launcher asks for something before it has said what the job is")
        return self._site

    @property
    def training(self) -> TrainingSite:
        """The same, if it is a training. Raises ProtocolError."""
        from kgdist.runtime.agent.training_site import TrainingSite

        if not isinstance(site := self.site, TrainingSite):
            raise ProtocolError("the launcher asks a script for what only trainings do")
        return site

    @property
    def script(self) -> ScriptSite:
        """The same, if it is a script. Raises ProtocolError."""
        from kgdist.runtime.agent.script_site import ScriptSite

        if not isinstance(site := self.site, ScriptSite):
            raise ProtocolError("the launcher asks a training for what only scripts do")
        return site

    def tell(self, **event: Any) -> None:
        """Send an event to the launcher."""
        self.owner.send(**event)

    def _show_life(self) -> None:
        """Tell the launcher every moment that this machine lives, and how far it has come; the body of a thread, so that nothing
        that the loop waits for can look like a lost machine. A loop that hangs is `guard`'s business."""
        with contextlib.suppress(EOFError):  # the loop hears of it, too
            while not self._over.wait(timeout=min(0.5, self.lease / 5)):
                self.tell(beat=self._doing())

    def _doing(self) -> Doing:
        """What the disk has to do comes before what trainers do, which may go on meanwhile."""
        doing = self._beside.doing
        return doing if doing[0] or self._site is None else self._site.doing

    def run(self) -> int:
        """Serve until told to end; the exit code."""
        self.tell(hello={"version": __version__, "pid": os.getpid(), "python": sys.version.split()[0]})
        code = 0
        threading.Thread(target=self._show_life, name="kgdist-beat", daemon=True).start()
        try:
            while not self.ended:
                self._turn()
        except EOFError:
            code = 1  # the launcher is gone
        except Failure as failure:
            code = failure.code
            self.tell(failed={"what": str(failure), "recoverable": failure.recoverable, "code": code})
            self._wait_for_the_end()
        except KgdistError as error:
            code = error.exit_code
            self.tell(failed={"what": str(error), "recoverable": code == 3, "code": code})
            self._wait_for_the_end()
        finally:
            if self._site is not None:
                self._site.close()
            self._over.set()
        return code

    def _turn(self) -> None:
        self.turns += 1
        waiting = select.poll()  # select.select knows no descriptors above 1023
        for descriptor in (self.owner.bell, *(self._site.outputs() if self._site is not None else ())):
            waiting.register(descriptor, select.POLLIN)
        waiting.poll(TICK * 1000)
        self.owner.bell.quiet()
        message = self.owner.receive(0.0001)
        while message is not None:
            self._heard = time.monotonic()
            self._do(message)
            message = self.owner.receive(0.0001)
        if self._site is not None:
            self._site.look()
        self._beside.look()
        if time.monotonic() - self._heard > self.lease:
            log.error("nothing heard from the launcher for %.0f s; all processes of this machine end", self.lease)
            raise EOFError

    def _wait_for_the_end(self) -> None:
        """Processes end at once; the launcher closes the channel when it has heard why."""
        if self._site is not None:
            self._site.close()
            self._site = None
        deadline = time.monotonic() + self.lease
        try:
            while time.monotonic() < deadline:
                self.turns += 1
                self.owner.receive(0.1)
        except EOFError:
            pass

    def _do(self, message: dict[str, Any]) -> None:
        name, fields = command_of(message)
        getattr(self, name)(**fields)

    def settle(self, seconds: float) -> bool:
        """Wait until what was begun beside the loop has ended; whether it has."""
        return self._beside.settle(seconds)

    # ---- commands

    def beat(self) -> None:
        """The launcher lives."""

    def place(self, ports: int, secure: bool) -> None:
        """Say where servers can listen, and by which key they are known. The secret stays here."""

        def work() -> None:
            from kgdist.kvstore.wire import Keys
            from kgdist.runtime.ports import free_ports

            self._keys = Keys.make() if secure else None
            self.tell(placed={"port": free_ports(ports) if ports else 0, "key": self._keys.public if self._keys else ""})

        self._beside.later("looked for", "free ports", work)

    def check(self, plan: dict[str, Any], machine: int, lease: float, run: str, debug: bool, copied: bool) -> None:
        """Say what keeps the job `plan` from running here, and which checkpoints of `run` are here. `copied`: the partition is
        here."""
        setup(debug=debug)
        self.lease = lease

        def work() -> None:
            site = site_of(plan, machine, self.tell, self._keys)
            checkpoints = []
            if not (found := site.problems(copied=copied, moved=self._beside.moved)):
                self._site = site
                checkpoints = site.checkpoints(run, self._beside.moved) if run else []
            self.tell(checked={"problems": found, "checkpoints": checkpoints, "graph": site.graph})

        self._beside.later("read", f"the checkpoints of {run}" if run else "partition", work)

    def open(self, run: str, resume: int | None) -> None:
        """Take the run folder `run` (a new one if that is empty), fill the rows, start the servers."""
        site = self.training

        def work() -> None:
            from kgdist.runs import rundir

            shard = site.shard
            self.run_name = run or rundir.create(shard.folder("x").parent, site.config.run_name, shard.taken()).name
            shard.claim(self.run_name)
            shard.fill(self.run_name, resume, self._beside.moved)

        def then() -> None:  # in the loop: children end with the thread that has started them
            site.serve()
            self.tell(opened=self.run_name)

        what = "rows" if resume is None else f"checkpoint of step {resume}"
        self._beside.later("filled" if resume is None else "read", what, work, then)

    def bring(self, table: str, rows: str, values: str) -> None:
        """Let rows start at what the user brings."""
        self.training.shard.bring(table, rows, values)
        self.tell(brought=True)

    def train(self, lowered: int) -> None:
        """Start the trainers; the rate was `lowered` so often."""
        self.training.train(self.run_name, lowered)

    def release(self, step: int, lowered: int) -> None:
        """Let trainers that wait at `step` go on; the rate was `lowered` so often."""
        self.training.release(step, lowered)

    def save(self, step: int, meta: dict[str, Any], best: bool) -> None:
        """Write a checkpoint, or the best rows; a failure is told and is not the end."""
        shard = self.training.shard
        what = f"{'best rows' if best else 'checkpoint'} of step {step}"
        work = partial(shard.save, self.run_name, step, meta, best=best, moved=self._beside.moved)
        self._try("saved", "written", what, work)

    def send(self, rows: bool) -> None:
        """Keep the files of the run folder in the storage; a failure is told and is not the end."""
        shard = self.training.shard
        self._try("sent", "written", "the run", partial(shard.send, self.run_name, rows=rows, moved=self._beside.moved))

    def keep(self, steps: list[int], best: list[int]) -> None:
        """Remove checkpoints but these."""
        shard = self.training.shard
        self._beside.later("written", "what is left of old checkpoints", partial(shard.keep, self.run_name, steps, best))

    def best(self, step: int, trial: bool) -> None:
        """Take the best rows, those of `step`, or only look whether they are whole; a failure is told and is not the end."""
        shard = self.training.shard
        work = partial(shard.best, self.run_name, step, trial=trial, moved=self._beside.moved)
        self._try("loaded", "read", f"best rows of step {step}", work)

    def _try(self, answer: str, verb: str, what: str, work: Callable[[], None]) -> None:
        """Do it beside the loop, and tell what was wrong, or nothing."""

        def attempt() -> None:
            problem = ""
            try:
                work()
            except KgdistError as error:
                problem = str(error)
            self.tell(**{answer: {"problem": problem}})

        self._beside.later(verb, what, attempt)

    def task(self, what: dict[str, Any], ranks: list[int]) -> None:
        """Let trainers do something else than training."""
        self.training.task(what, ranks)

    def write(self, name: str, value: Any) -> None:
        """Write JSON into the run folder."""
        self._harmless(name, lambda path: write_json(path, value))

    def append(self, name: str, line: str) -> None:
        """Add a line to a file of the run folder."""

        def write(path: Path) -> None:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

        self._harmless(name, write)

    def _harmless(self, name: str, write: Callable[[Path], None]) -> None:
        """A file of the run folder that no training is worth ending for: on a full disk it is missed, with one warning."""
        path = safe_join(self.training.shard.folder(self.run_name), name)

        def work() -> None:
            try:
                write(path)
                self._missed.discard(name)
            except (OSError, KgdistError) as error:
                if name not in self._missed:
                    log.warning("%s; training goes on", error if isinstance(error, KgdistError) else f"{path}: {error.strerror}")
                self._missed.add(name)

        self._beside.later("written", name, work)

    def stop(self, leave: bool) -> None:
        """Let trainers end before their next step; `leave`: and not evaluate either."""
        if self._site is not None:
            self._site.stop(leave)

    def memory(self) -> None:
        """Say how much all processes of this machine hold."""
        self.tell(memory=self._site.memory() if self._site is not None else 0)

    def port(self) -> None:
        """Say which port is free."""
        self.tell(port=self.script.port())

    def launch(self, address: str, port: int) -> None:
        """Start the trainers of a script."""
        self.script.launch(address, port)

    def serve(self) -> None:
        """Start its servers."""
        self.script.serve()

    def make(self, number: int, value: dict[str, Any]) -> None:
        """Allocate this machine's part of a table."""
        self.script.make(number, value)

    def drop(self, number: int) -> None:
        """Give a table up."""
        self.script.drop(number)

    def reply(self, calls: list[tuple[int, int]], table: int, problem: str) -> None:
        """Answer trainers who have called."""
        self.script.reply(calls, table, problem)

    def leave(self) -> None:
        """Let the servers of a script end."""
        self.script.leave()

    def end(self) -> None:
        """Leave."""
        self.ended = True


def site_of(plan: dict[str, Any], number: int, tell: Tell, keys: Keys | None) -> Site:
    """Machine `number` of the job `plan`. Raises KgdistError."""
    if plan.get("kind") == "script":
        from kgdist.runtime.agent.script_site import ScriptSite
        from kgdist.runtime.cluster.script_plan import ScriptPlan

        return ScriptSite(ScriptPlan.from_json(plan), number, tell, keys)
    from kgdist.runtime.agent.training_site import TrainingSite
    from kgdist.runtime.cluster.training_plan import TrainingPlan

    return TrainingSite(TrainingPlan.from_json(plan), number, tell, keys)


def guard(agent: Agent) -> None:
    """End this process, and with it its children, when the agent's loop hangs: in a pipe that a frozen launcher does not read,
    in a file system that does not answer. The body of a thread; only seconds in which this process runs count."""
    turns, idle = -1, 0
    while True:
        time.sleep(1.0)
        turns, idle = agent.turns, 0 if agent.turns != turns else idle + 1
        if idle > agent.lease + HANGS:
            os._exit(1)


def main() -> None:
    """Serve one launcher."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what Ctrl-C means
    faulthandler.register(signal.SIGUSR1)
    setup()
    owner = Owner()
    code = 1
    try:
        agent = Agent(owner)
        threading.Thread(target=guard, args=(agent,), name="kgdist-guard", daemon=True).start()
        code = agent.run()
    except Exception as error:  # whatever it is, the launcher must hear of it
        log.error("%s: %s", type(error).__name__, error, exc_info=True)
        with contextlib.suppress(EOFError):
            owner.send(failed={"what": f"{type(error).__name__}: {error}", "recoverable": False, "code": 1})
    sys.stderr.flush()
    os._exit(code)  # a thread sits in a read that no one will end
