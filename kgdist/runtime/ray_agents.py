"""Backend ray: a cluster of Ray says where the machines of a job are, and an actor of each owns its agent.

An attempt has a placement group, a bundle for each machine; an actor in each starts the agent as any launcher would, and passes
its pipes on. When an actor dies, or its node, its raylet or this launcher, the agent's stdin ends, and it ends all that it has
started: Ray itself kills neither grandchildren nor what a killed process leaves. The next attempt is placed anew.

Ray's connections are not encrypted: what goes over them holds no secrets (see kgdist.kvstore.wire).
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from dataclasses import replace
from typing import Any

from kgdist.base.errors import PeersLost, UsageError, counted
from kgdist.base.log import log
from kgdist.options.cluster import ReachOptions
from kgdist.runtime.channels.channel import AGENT, PATIENCE, TICK, Channel, Heard, Piped
from kgdist.runtime.cluster.fleet import Fleet
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.ray_session import Hear, first_line, ray_of

AT_ONCE = 8  # calls that an actor answers at the same time: two that read, one that writes, and what comes in between
REACHED = 120.0  # seconds for all actors to be there, once there is a place for them
BUSY = 60.0  # seconds that a job waits for CPUs that others use, where the cluster is large enough
SAYS = 5.0  # seconds after which it is said what is waited for
STRATEGIES = {"strict_spread": "STRICT_SPREAD", "spread": "SPREAD"}

Ending = tuple[int | None, str]


class Keeper:
    """The actor: owns an agent's process."""

    def __init__(self) -> None:
        self._piped = Piped(AGENT, 1)
        threading.Thread(target=self._watch, args=(os.getppid(),), daemon=True).start()

    def _watch(self, raylet: int) -> None:
        """End with the raylet that has started this process, which Ray does not always do."""
        while os.getppid() == raylet:
            time.sleep(1.0)
        os._exit(1)

    def address(self) -> str:
        """Where its node is reached."""
        import ray

        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def read(self, stream: int) -> tuple[bytes | None, Ending | None]:
        """See Channel._read; and how the process had ended before."""
        ending = self._piped.ending()
        return self._piped.read(stream), ending

    def write(self, data: bytes) -> int:
        """See Channel._write; -1 where none will ever be taken."""
        try:
            return self._piped.write(data)
        except (OSError, ValueError):
            return -1

    def end_input(self) -> None:
        """Close the agent's stdin."""
        self._piped.end_input()

    def ending(self) -> Ending | None:
        """See Channel._ending."""
        return self._piped.ending()

    def stop(self, force: bool) -> None:
        """Ask the agent to end, or make it."""
        self._piped.stop(force=force)


class RayChannel(Channel):
    """An agent whose pipes an actor passes on."""

    def __init__(self, number: int, name: str, events: queue.Queue[Heard], ray: Any, actor: Any) -> None:
        super().__init__(number, name, events, patience=PATIENCE)
        self._ray, self._actor = ray, actor
        self._calls: dict[str, Any] = {}  # under way: what one brings must not be lost because it comes late
        self._ended: Ending | None = None
        self._silent = False  # its stdout has ended
        self._begin()

    def _ask(self, key: str, method: str, *arguments: Any) -> Any:
        """What the actor's method gives; None while it does not: the same call is then waited for the next time. Raises OSError
        when the actor is lost."""
        try:
            if key not in self._calls:
                self._calls[key] = getattr(self._actor, method).remote(*arguments)
            done, _ = self._ray.wait([self._calls[key]], timeout=2 * TICK)
            return self._ray.get(self._calls.pop(key)) if done else None
        except self._ray.exceptions.RayError as error:
            self._calls.pop(key, None)
            self._ended = self._ended or (None, f"was lost: its actor has ended ({first_line(error)})")
            raise ConnectionError(str(error)) from error

    def _read(self, stream: int) -> bytes | None:
        try:
            answer = self._ask(f"read {stream}", "read", stream)
        except OSError:
            return b""
        data, ended = (None, None) if answer is None else answer
        self._ended = self._ended or ended
        self._silent |= stream == 1 and data == b""
        return data

    def _write(self, data: memoryview) -> int:
        taken = self._ask("write", "write", bytes(data))
        if taken is not None and taken < 0:
            raise BrokenPipeError("the agent reads no more")
        return taken or 0

    def _end_input(self) -> None:
        self._actor.end_input.remote()

    def _ending(self) -> Ending | None:
        if self._ended is None and self._silent:  # nothing tells of it any more
            with contextlib.suppress(OSError):
                self._ended = self._ask("ending", "ending")
        return self._ended

    def _stop(self, *, force: bool) -> None:
        with contextlib.suppress(Exception):
            self._actor.stop.remote(force)

    def _release(self) -> None:
        with contextlib.suppress(Exception):  # Ray may have ended
            self._ray.kill(self._actor)


class RayCluster:
    """Places the machines of a job on the cluster, for each attempt anew, while the block runs.

    Args:
        machines: as many as there are partitions; where they are is not known yet.

    """

    def __init__(self, config: ReachOptions, machines: list[Machine]) -> None:
        self.config, self.machines, self.cores = config, machines, config.cores
        self._kept = contextlib.ExitStack()
        self._group: Any = None

    def begin(self, hear: Hear | None = None) -> None:
        """Reach the cluster, of whose processes `hear` gets what they print. Raises what `ray_of` raises."""
        flag = f"--backend {self.config.backend}"
        self._ray = self._kept.enter_context(ray_of(flag, self.config.ray_address or "auto", hear))

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self._kept.close()

    def connect(self) -> Fleet:
        """Agents on all machines, wherever Ray has placed them. Raises UsageError where it cannot."""
        ray = self._ray
        self._leave()
        self._place()
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actors = []
        for machine in self.machines:
            where = strategy(self._group, placement_group_bundle_index=machine.number)
            made = ray.remote(Keeper).options(num_cpus=self.cores, max_concurrency=AT_ONCE, scheduling_strategy=where)
            actors.append(made.remote())
        addresses, problems = self._addresses([actor.address.remote() for actor in actors])
        machines = [replace(machine, address=addresses.get(machine.number, "")) for machine in self.machines]
        events: queue.Queue[Heard] = queue.Queue()
        channels = {n: RayChannel(n, machines[n].name, events, ray, actors[n]) for n in addresses}
        return Fleet(machines, channels, events, self.config.peer_timeout, problems)

    def _addresses(self, asked: list[Any]) -> tuple[dict[int, str], dict[int, str]]:
        """Where each actor is, by its number; and why one is not."""
        exceptions, deadline = self._ray.exceptions, time.monotonic() + REACHED
        found, problems = {}, {}
        for number, call in enumerate(asked):
            try:
                while not self._ray.wait([call], timeout=SAYS)[0] and time.monotonic() < deadline:
                    self._check_home()
                found[number] = self._ray.get(call, timeout=0.1)
            except exceptions.GetTimeoutError:
                problems[number] = f"machine_{number}: Ray has started no actor within {REACHED:.0f} s; see `ray status`"
            except exceptions.RayError as error:
                last = str(error).strip().splitlines()[-1]
                problems[number] = f"machine_{number}: no actor starts ({last}); is kgdist installed on every node?"
        return found, problems

    def find_room(self) -> None:
        """Wait until there is room for all machines, and leave it to whoever places them. Raises UsageError as `_place`."""
        self._place()
        self._leave()

    def _place(self) -> None:
        """Have a bundle for each machine. Raises UsageError where there is none in time."""
        self.check()
        bundles = [{"CPU": self.cores} for _ in self.machines]
        self._group = self._ray.util.placement_group(bundles, strategy=STRATEGIES[self.config.ray_placement])
        began, told = time.monotonic(), False
        while not self._group.wait(1):
            waited = time.monotonic() - began
            if waited > self.patience:
                raise UsageError(f"--backend {self.config.backend}: {self.no_place}")
            if waited > SAYS and not told:
                told = True
                log.info("waiting up to %g s for Ray: %s", self.patience, self._missing())

    @property
    def patience(self) -> float:
        """Seconds that a place is waited for."""
        return max(self.config.ray_wait, BUSY)

    @property
    def no_place(self) -> str:
        """What is said when it was waited for in vain."""
        return f"no place within {self.patience:g} s: {self._missing()}"

    def _missing(self) -> str:
        return self._lacking() or f"{self._wanted()}, which others use"

    def _check_home(self) -> None:
        """Raise PeersLost where the node of this launcher is no more: whatever it asks Ray for then never comes."""
        own = self._ray.get_runtime_context().get_node_id()
        if not any(node["NodeID"] == own and node["Alive"] for node in self._ray.nodes()):
            raise PeersLost(f"--backend {self.config.backend}: the node of Ray on this machine was lost; `ray status` says more")

    def check(self) -> None:
        """Raise UsageError for a cluster that is too small and is not waited for; PeersLost where this machine has left it."""
        self._check_home()
        lacking = self._lacking()
        if lacking and not self.config.ray_wait:
            more = "add nodes, or give --ray_wait where the cluster grows by itself"
            same = "; --ray_placement spread puts several on one node" * (self.config.ray_placement == "strict_spread")
            raise UsageError(f"--backend {self.config.backend}: {lacking}; {more}{same}")

    def _wanted(self) -> str:
        apart = ", each on a node of its own" if self.config.ray_placement == "strict_spread" else ""
        return f"{counted(len(self.machines), 'machine')} with {counted(self.cores, 'CPU')}{apart}"

    def _lacking(self) -> str:
        """What the whole cluster has too little of, in words; empty if it is large enough."""
        cpus = [int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]]
        each = self.config.ray_placement == "strict_spread"
        room = sum(min(1, has // self.cores) if each else has // self.cores for has in cpus)
        return f"the cluster has room for {room} of {self._wanted()}" if room < len(self.machines) else ""

    def _leave(self) -> None:
        """Give up the places of the attempt before, and what is left in them."""
        if self._group is not None:
            with contextlib.suppress(Exception):
                self._ray.util.remove_placement_group(self._group)
            self._group = None
