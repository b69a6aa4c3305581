"""How the agents of a job are started: as children of this process, over SSH, or by hand; all machines at once."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

from kgdist.config import Config
from kgdist.errors import KgdistError, UsageError
from kgdist.log import log
from kgdist.runtime.channel import Channel, Heard, LocalChannel
from kgdist.runtime.cluster import Machine
from kgdist.runtime.fleet import Fleet
from kgdist.runtime.interrupt import Interrupts

AT_ONCE = 64  # machines
PATIENCE = 120.0  # seconds for all machines to be reached; each step of it has a shorter deadline of its own


@contextlib.contextmanager
def connecting(config: Config, machines: list[Machine], interrupts: Interrupts) -> Iterator[Callable[[], Fleet]]:
    """While the block runs, the function it is given starts an agent on every machine, or waits for them; for each attempt."""
    if config.backend == "manual":
        from kgdist.runtime.manual import Reception

        with Reception(config, machines, interrupts) as reception:
            yield reception.connect
    else:
        yield lambda: connect(config, machines)


def connect(config: Config, machines: list[Machine]) -> Fleet:
    """An agent on every machine. Raises KgdistError when one cannot be had; all problems are told, and none is left running."""
    events: queue.Queue[Heard] = queue.Queue()
    reach = _ssh(config, events) if config.backend == "ssh" else _here(events)
    reached = _Reached(reach, machines)
    try:
        problems = reached.wait(PATIENCE)
    except BaseException:  # Ctrl-C: whoever is still on the way finds nobody here
        reached.close()
        raise
    if problems:
        reached.close()
        for problem in problems[:-1]:
            log.error("%s", problem)
        count = f"{len(problems)} of {len(machines)} machines cannot be reached" if len(problems) > 1 else "nothing was started"
        raise UsageError(f"{problems[-1]} ({count})")
    return Fleet(machines, reached.channels, events, config.peer_timeout)


class _Reached:
    """Channels to machines, opened by threads that nobody has to wait for."""

    def __init__(self, reach: Callable[[Machine], Channel], machines: list[Machine]) -> None:
        self.channels: dict[int, Channel] = {}
        self._reach, self._machines = reach, machines
        self._problems: dict[int, Exception] = {}
        self._closed = threading.Event()
        self._lock = threading.Condition()
        self._todo = iter(machines)
        for number in range(min(len(machines), AT_ONCE)):
            threading.Thread(target=self._work, name=f"kgdist-connect-{number}", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                machine = next(self._todo, None)
            if machine is None or self._closed.is_set():
                return
            try:
                channel = self._reach(machine)
            except Exception as error:  # whatever it is, the launcher tells it
                with self._lock:
                    self._problems[machine.number] = error
                    self._lock.notify()
                continue
            with self._lock:
                self.channels[machine.number] = channel
                self._lock.notify()
                late = self._closed.is_set()
            if late:
                channel.close(grace=0.5)

    def wait(self, seconds: float) -> list[KgdistError]:
        """Until all are reached, or have failed to be; the problems. Raises what is no KgdistError."""
        with self._lock:
            self._lock.wait_for(lambda: len(self.channels) + len(self._problems) == len(self._machines), timeout=seconds)
            found = dict(self._problems)
            missing = [m for m in self._machines if m.number not in self.channels and m.number not in found]
        for machine in missing:  # not even the resolver waits that long
            found[machine.number] = UsageError(f"{machine.name}: not reached within {seconds:.0f} s")
        problems = []
        for _, error in sorted(found.items()):
            if not isinstance(error, KgdistError):
                raise error
            problems.append(error)
        return problems

    def close(self) -> None:
        """End what was reached, and what still will be."""
        with self._lock:
            self._closed.set()
            channels = list(self.channels.values())
        for channel in channels:
            channel.close(grace=0.5)


def _here(events: queue.Queue[Heard]) -> Callable[[Machine], Channel]:
    return lambda machine: LocalChannel(machine.number, machine.name, events)


def _ssh(config: Config, events: queue.Queue[Heard]) -> Callable[[Machine], Channel]:
    from kgdist.runtime.ssh import SshChannel
    from kgdist.runtime.ssh_config import SshOptions

    options = SshOptions.of(config)
    return lambda machine: SshChannel.open(machine, options, events)
