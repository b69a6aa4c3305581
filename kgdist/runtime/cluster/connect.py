"""How the agents of a job are started: as children of this process, over SSH, by hand, or where a
cluster of Ray has room; all machines at once."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator

from kgdist.base.errors import KgdistError, UsageError
from kgdist.options.cluster import ReachOptions
from kgdist.runtime.channels.channel import Channel, Heard, LocalChannel
from kgdist.runtime.cluster.fleet import Fleet
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.ip_config import Machine

AT_ONCE = 64  # machines
BEAT = 5.0  # seconds between two signs of life for those that are reached already
PATIENCE = 120.0  # seconds for all machines to be reached; each step of it has a shorter deadline of its own


@contextlib.contextmanager
def connecting(config: ReachOptions, machines: list[Machine], interrupts: Interrupts) -> Iterator[Callable[[], Fleet]]:
    """While the block runs, the function it is given starts an agent on every machine, or waits for them; for each attempt."""
    if config.backend == "manual":
        from kgdist.runtime.cluster.manual import Reception

        with Reception(config, machines, interrupts) as reception:
            yield reception.connect
    elif config.backend == "ray":
        from kgdist.runtime.ray_agents import RayCluster

        with interrupts.immediate():
            cluster = RayCluster(config, machines)
            cluster.begin()
        with cluster:
            yield cluster.connect
    else:
        yield lambda: connect(config, machines)


def connect(config: ReachOptions, machines: list[Machine]) -> Fleet:
    """Agents on all machines that can be reached; the fleet says which cannot, and why."""
    events: queue.Queue[Heard] = queue.Queue()
    reach = _ssh(config, events) if config.backend == "ssh" else _here(events)
    reached = _Reached(reach, machines)
    try:
        problems = reached.wait(PATIENCE)
    except BaseException:  # Ctrl-C: whoever is still on the way finds nobody here
        reached.close()
        raise
    return Fleet(machines, reached.channels, events, config.peer_timeout, problems)


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
                    self._problems.setdefault(machine.number, error)
                    self._lock.notify()
                continue
            with self._lock:
                late = self._closed.is_set() or machine.number in self._problems
                if not late:
                    self.channels[machine.number] = channel
                    self._lock.notify()
            if late:
                channel.close(grace=0.5)

    def wait(self, seconds: float) -> dict[int, str]:
        """Until all are reached, or have failed to be: machine -> why. Raises what is no KgdistError."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            with self._lock:
                if self._lock.wait_for(self._settled, timeout=min(left, BEAT)):
                    break
                reached = list(self.channels.values())
            for channel in reached:  # an agent that hears nothing while others are waited for would end
                channel.send({"do": "beat"})
        with self._lock:
            for machine in self._machines:  # not even the resolver waits that long
                if machine.number not in self.channels:
                    late = UsageError(f"{machine.name}: not reached within {seconds:.0f} s")
                    self._problems.setdefault(machine.number, late)
        for error in self._problems.values():
            if not isinstance(error, KgdistError):
                raise error
        return {machine: str(error) for machine, error in self._problems.items()}

    def _settled(self) -> bool:
        return len(self.channels) + len(self._problems) == len(self._machines)

    def close(self) -> None:
        """End what was reached, and what still will be."""
        with self._lock:
            self._closed.set()
            channels = list(self.channels.values())
        for channel in channels:
            channel.close(grace=0.5)


def _here(events: queue.Queue[Heard]) -> Callable[[Machine], Channel]:
    return lambda machine: LocalChannel(machine.number, machine.name, events)


def _ssh(config: ReachOptions, events: queue.Queue[Heard]) -> Callable[[Machine], Channel]:
    from kgdist.runtime.channels.ssh import SshChannel
    from kgdist.runtime.channels.ssh_config import SshOptions

    options = SshOptions.of(config)
    return lambda machine: SshChannel.open(machine, options, events)
