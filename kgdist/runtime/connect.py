"""How the agents of a job are started: as children of this process, over SSH, or by hand; all machines at once."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

from kgdist.config import Config
from kgdist.errors import KgdistError, UsageError
from kgdist.log import log
from kgdist.runtime.channel import Channel, Heard, LocalChannel
from kgdist.runtime.cluster import Machine
from kgdist.runtime.fleet import Fleet
from kgdist.runtime.interrupt import Interrupts

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
    found: dict[int, Channel] = {}
    problems: list[KgdistError] = []
    with ThreadPoolExecutor(min(len(machines), 64), "kgdist-connect") as pool:
        futures = {pool.submit(reach, machine): machine for machine in machines}
        wait(futures, timeout=PATIENCE)
        for future, machine in futures.items():
            try:
                found[machine.number] = future.result(timeout=0)
            except KgdistError as error:
                problems.append(error)
            except TimeoutError:  # not even the resolver waits that long
                problems.append(UsageError(f"{machine.name}: not reached within {PATIENCE:.0f} s"))
    if problems:
        for channel in found.values():
            channel.close(grace=0.5)
        for problem in problems[:-1]:
            log.error("%s", problem)
        count = f"{len(problems)} of {len(machines)} machines cannot be reached" if len(problems) > 1 else "nothing was started"
        raise UsageError(f"{problems[-1]} ({count})")
    return Fleet(machines, found, events, config.peer_timeout)


def _here(events: queue.Queue[Heard]) -> Callable[[Machine], Channel]:
    return lambda machine: LocalChannel(machine.number, machine.name, events)


def _ssh(config: Config, events: queue.Queue[Heard]) -> Callable[[Machine], Channel]:
    from kgdist.runtime.ssh import SshChannel
    from kgdist.runtime.ssh_config import SshOptions

    options = SshOptions.of(config)
    return lambda machine: SshChannel.open(machine, options, events)
