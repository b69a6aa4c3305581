"""The agent of one machine: `python -m kgdist.runtime.agent`, started by the launcher over a channel.

It reads commands as lines of JSON on stdin and writes events as lines of JSON on stdout; the names of both are the methods of
`Agent` and the calls of `tell`. It owns the machine's servers and trainers. When stdin closes, or nothing has been heard from the
launcher for the lease, all of them end: nothing is left running.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from kgdist.errors import KgdistError
from kgdist.files import safe_join, write_json
from kgdist.log import log, setup
from kgdist.runtime.owner import Owner, Partner
from kgdist.version import __version__

TICK = 0.02  # seconds between two looks at the children
LEASE = 60.0  # seconds without a word from the launcher, until a job says how many
HANGS = 5.0  # seconds more, after which a loop that does not turn is ended by force


class Agent:
    """Carries commands out. A command is `{"do": name of a method below, ...its arguments}`."""

    def __init__(self, owner: Partner) -> None:
        from kgdist.runtime.site import Site

        self.owner = owner
        self.site: Site | None = None
        self.run_name = ""
        self.lease = LEASE
        self.ended = False
        self._heard = self._told = time.monotonic()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="kgdist-agent")
        self._work: list[Future[None]] = []
        self._missed: set[str] = set()  # files that could not be written the last time
        self.turns = 0  # of the loop; it hangs while this does not change

    def tell(self, **event: Any) -> None:
        """Send an event to the launcher."""
        self._told = time.monotonic()
        self.owner.send(**event)

    def run(self) -> int:
        """Serve until told to end; the exit code."""
        from kgdist.runtime.site import Failure

        self.tell(hello={"version": __version__, "pid": os.getpid(), "python": sys.version.split()[0]})
        code = 0
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
            if self.site is not None:
                self.site.close()
        return code

    def _turn(self) -> None:
        self.turns += 1
        message = self.owner.receive(TICK)
        while message is not None:
            self._heard = time.monotonic()
            self._do(message)
            message = self.owner.receive(0.0001)
        if self.site is not None:
            self.site.look()
        for future in [future for future in self._work if future.done()]:
            self._work.remove(future)
            future.result(timeout=0)
        now = time.monotonic()
        if now - self._heard > self.lease:
            log.error("nothing heard from the launcher for %.0f s; all processes of this machine end", self.lease)
            raise EOFError
        if now - self._told > min(0.5, self.lease / 5):
            self.tell(beat=True)

    def _wait_for_the_end(self) -> None:
        """Processes end at once; the launcher closes the channel when it has heard why."""
        if self.site is not None:
            self.site.close()
            self.site = None
        deadline = time.monotonic() + self.lease
        try:
            while time.monotonic() < deadline:
                self.turns += 1
                self.owner.receive(0.1)
        except EOFError:
            pass

    def _do(self, message: dict[str, Any]) -> None:
        name = str(message.pop("do", ""))
        if name not in COMMANDS:
            raise KgdistError(f"the launcher asks for {name!r}, which this agent does not know; is kgdist the same everywhere?")
        getattr(self, name)(**message)

    def _later(self, work: Callable[[], None]) -> None:
        """Do what takes long beside the loop, which must go on to show that this machine lives; one after another."""
        self._work.append(self._worker.submit(work))

    def settle(self, seconds: float) -> bool:
        """Wait until what was begun beside the loop has ended; whether it has."""
        return not wait(self._work, timeout=seconds).not_done

    # ---- commands

    def beat(self) -> None:
        """The launcher lives."""

    def check(self, plan: dict[str, Any], machine: int, lease: float, run: str, debug: bool, serves: bool = True) -> None:
        """Say what keeps the job `plan` from running here, and which checkpoints of `run` are here. `serves`: not another agent
        of this machine."""
        from kgdist.runtime.plan import Plan
        from kgdist.runtime.preflight import problems
        from kgdist.runtime.site import Site

        setup(debug=debug)
        self.lease = lease

        def work() -> None:
            job = Plan.from_json(plan)
            found = problems(job, machine, serves=serves)
            checkpoints = []
            if not found:
                self.site = Site(job, machine, self.tell)
                checkpoints = self.site.shard.checkpoints(run) if run else []
            self.tell(checked={"problems": found, "checkpoints": checkpoints})

        self._later(work)

    def open(self, run: str, resume: int | None, share: bool = False) -> None:
        """Take the run folder `run` (a new one if that is empty), fill the rows, start the servers; `share`: tell another agent
        of this machine where the rows are."""
        site = self.site
        assert site is not None

        def work() -> None:
            from kgdist import runs

            shard = site.shard
            self.run_name = run or runs.create(shard.folder("x").parent, site.config.run_name).name
            shard.fill(self.run_name, resume)
            if share:
                self.tell(shared=shard.share() | {"run": self.run_name})
            site.serve()
            self.tell(opened=self.run_name)

        self._later(work)

    def attach(self, run: str, **shared: Any) -> None:
        """Take the run folder and the rows of another agent of this machine."""
        site = self.site
        assert site is not None

        def work() -> None:
            site.shard.attach(shared)
            self.run_name = run
            self.tell(opened=run)

        self._later(work)

    def train(self) -> None:
        """Start the trainers."""
        assert self.site is not None
        self.site.train(self.run_name)

    def release(self, step: int) -> None:
        """Let trainers that wait at `step` go on."""
        assert self.site is not None
        self.site.release(step)

    def save(self, step: int, meta: dict[str, Any], best: bool) -> None:
        """Write a checkpoint, or the best rows; a failure is told and is not the end."""
        assert self.site is not None
        shard = self.site.shard
        self._try("saved", lambda: shard.save(self.run_name, step, meta, best=best))

    def keep(self, steps: list[int], best: list[int]) -> None:
        """Remove checkpoints but these."""
        assert self.site is not None
        shard = self.site.shard
        self._later(lambda: shard.keep(self.run_name, steps, best))

    def best(self, step: int, trial: bool) -> None:
        """Take the best rows, those of `step`, or only look whether they are whole; a failure is told and is not the end."""
        assert self.site is not None
        shard = self.site.shard
        self._try("loaded", lambda: shard.best(self.run_name, step, trial=trial))

    def _try(self, answer: str, work: Callable[[], None]) -> None:
        """Do it beside the loop, and tell what was wrong, or nothing."""

        def attempt() -> None:
            problem = ""
            try:
                work()
            except KgdistError as error:
                problem = str(error)
            self.tell(**{answer: {"problem": problem}})

        self._later(attempt)

    def task(self, what: dict[str, Any], ranks: list[int]) -> None:
        """Let trainers do something else than training."""
        assert self.site is not None
        self.site.task(what, ranks)

    def write(self, name: str, value: Any) -> None:
        """Write JSON into the run folder."""
        with self._harmless(name) as path:
            write_json(path, value)

    def append(self, name: str, line: str) -> None:
        """Add a line to a file of the run folder."""
        with self._harmless(name) as path, path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    @contextlib.contextmanager
    def _harmless(self, name: str) -> Iterator[Path]:
        """A file of the run folder that no training is worth ending for: on a full disk it is missed, with one warning."""
        assert self.site is not None
        path = safe_join(self.site.shard.folder(self.run_name), name)
        try:
            yield path
            self._missed.discard(name)
        except (OSError, KgdistError) as error:
            if name not in self._missed:
                log.warning("%s; training goes on", error if isinstance(error, KgdistError) else f"{path}: {error.strerror}")
            self._missed.add(name)

    def stop(self, leave: bool) -> None:
        """Let trainers end before their next step; `leave`: and not evaluate either."""
        if self.site is not None:
            self.site.stop(leave)

    def memory(self) -> None:
        """Say how much all processes of this machine hold."""
        self.tell(memory=self.site.memory() if self.site is not None else 0)

    def end(self) -> None:
        """Leave."""
        self.ended = True


COMMANDS = (
    *("beat", "check", "open", "attach", "train", "release", "save", "keep", "best", "task", "write", "append", "stop"),
    *("memory", "end"),
)


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


if __name__ == "__main__":
    main()
