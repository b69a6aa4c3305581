"""All agents of a job, told together and heard together: the launcher's view of its machines.

What arrives is sorted here: answers that are waited for, news for whoever watches the course, lines for the user, and the end of
a machine, which is the end of the attempt.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kgdist.base.errors import KgdistError, PeersLost, ProtocolError
from kgdist.base.log import log, say
from kgdist.runtime.channels.channel import Heard
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.protocol import ANSWERS, DOING, NAMED, STALL, Doing, cleaned, event_of, fits
from kgdist.version import __version__

HURRY = 4.0  # seconds that a machine may do nothing, or say nothing, once the user wants to leave
TURN = 0.05  # seconds of hearing before whoever pumps may look at other things
HANGS = 300.0  # seconds without a pump after which the machines are told no longer that this launcher lives
LEVELS = {"INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}  # of lines of an agent's log
FIRST = 60.0  # seconds in which an agent says its first word
News = Callable[[int, str, Any], None]  # machine, kind, value


class Correspondent(Protocol):
    """A machine's agent as a fleet needs it: a Channel, or one of `kgdist.runtime.cluster.manual`."""

    def send(self, message: dict[str, Any]) -> None:
        """Send a JSON object; returns at once."""

    def close(self, grace: float) -> None:
        """End it, after it has carried out what it was told; waits little longer than `grace` seconds."""


class AttemptFailed(PeersLost):
    """This attempt is over, because a process or a machine was lost; another one may begin at the last checkpoint.

    `machine`: which one, where it is known.
    """

    def __init__(self, message: str, machine: int | None = None) -> None:
        super().__init__(message)
        self.machine = machine


class MachineFailed(KgdistError):
    """A machine could not do what it was told, and no other attempt can cure it."""

    def __init__(self, message: str, machine: int, code: int) -> None:
        super().__init__(message)
        self.machine, self.exit_code = machine, code


class Fleet:
    """The agents of `machines`, by number. Owns their channels.

    Args:
        timeout: seconds of silence after which a machine counts as lost.
        unreached: machine -> why it has no channel.

    Attributes:
        news: called with events that nobody waits for.
        stall: seconds after which a machine that lives, but does nothing of what it is at, counts as lost.
        leaving: whether the user wants to leave: then nothing that stands still is waited for much longer.
    """

    def __init__(
        self,
        machines: list[Machine],
        channels: Mapping[int, Correspondent],
        events: queue.Queue[Heard],
        timeout: float,
        unreached: Mapping[int, str] | None = None,
    ) -> None:
        self.machines, self.events, self.timeout = machines, events, timeout
        self.channels = dict(channels)
        self.unreached = dict(unreached or {})
        self._dropped: list[Correspondent] = []
        self.news: News = lambda machine, kind, value: None
        self.quiet = False
        self.stall = STALL
        self.leaving: Callable[[], bool] = lambda: False
        self._left: float | None = None  # when the user wanted to leave
        now = time.monotonic()
        self._heard = dict.fromkeys(channels, now + FIRST)
        self._doing: dict[int, tuple[Doing, float]] = dict.fromkeys(channels, (("", "", 0), now))  # and since when
        self._expected: dict[int, float] = {}  # machine -> since when its answer is waited for
        self._named: set[int] = set()
        self._answers: dict[str, dict[int, Any]] = {}
        self._pumped = now
        self._over = threading.Event()
        threading.Thread(target=self._beat, name="kgdist-beat", daemon=True).start()

    def _beat(self) -> None:
        """Let the machines know that this launcher lives; the body of a thread, so that nothing it waits for can end the job."""
        while not self._over.wait(timeout=min(1.0, self.timeout / 5)):
            if time.monotonic() - self._pumped < HANGS:
                self.tell("beat")

    def tell(self, do: str, machines: Iterable[int] | None = None, **arguments: Any) -> None:
        """Send a command to some machines, by default to all."""
        channels = self.channels
        for number in channels if machines is None else machines:
            channels[number].send({"do": do, **arguments})

    def ask(
        self, kind: str, do: str | None, seconds: float | None, machines: Iterable[int] | None = None, **arguments: Any
    ) -> dict[int, Any]:
        """Send a command and wait for the answer `kind` of each machine told; machine -> value.

        Without `seconds` the wait is as long as the machines get on with it, see `pump`. Raises AttemptFailed.
        """
        asked = list(self.channels if machines is None else machines)
        self._answers.pop(kind, None)
        if do is not None:
            self.tell(do, asked, **arguments)
        return self.gather(kind, asked, seconds)

    def gather(self, kind: str, machines: list[int], seconds: float | None) -> dict[int, Any]:
        """Wait for the answer `kind` of each of `machines`. Raises AttemptFailed."""
        deadline = None if seconds is None else time.monotonic() + seconds
        self._expected = dict.fromkeys(machines, time.monotonic()) if seconds is None else {}
        while missing := [number for number in machines if number not in self._answers.get(kind, {})]:
            self._expected = {number: since for number, since in self._expected.items() if number in missing}
            self.pump(0.1)
            if deadline is not None and time.monotonic() > deadline:
                raise AttemptFailed(f"{self.name(missing[0])}: has not said {kind!r} within {seconds:.0f} s", missing[0])
        self._expected = {}
        return self._answers.pop(kind, {})

    def survey(self, kind: str, seconds: float | None, problems: dict[int, str]) -> dict[int, Any]:
        """As `gather`, of all machines; one that is lost or fails meanwhile is dropped, and in `problems` it is said why."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                found = self.gather(kind, list(self.channels), left)
                return {number: answer for number, answer in found.items() if number in self.channels}
            except (AttemptFailed, MachineFailed) as error:
                if error.machine is None:
                    raise
                problems[error.machine] = str(error)
                self.drop(error.machine)

    def drop(self, machine: int) -> None:
        """Hear and tell it no more; it is ended with the others."""
        self._dropped.append(self.channels[machine])
        self.channels = {number: channel for number, channel in self.channels.items() if number != machine}
        del self._heard[machine]

    def name(self, machine: int) -> str:
        """How messages call a machine."""
        return self.machines[machine].name

    def pump(self, seconds: float) -> None:
        """Hear some of what there is, waiting `seconds` at most for the first. Raises KgdistError for what no other attempt can
        cure, and AttemptFailed for the rest: also for a machine that is silent, or that lives but does nothing."""
        self._pumped = time.monotonic()
        present = until = None  # when what was heard last was said: what came after it is not known yet
        try:
            heard = self.events.get(timeout=seconds)
            until = time.monotonic() + TURN
            while True:
                self._hear(heard)
                present = heard.at
                if time.monotonic() > until:
                    break
                heard = self.events.get_nowait()
        except queue.Empty:
            present = None
        self._judge(time.monotonic() if present is None else present)

    def _judge(self, now: float) -> None:
        """See how long every machine has been silent, and how long it has done nothing of what it is at."""
        if self._left is None and self.leaving():
            self._left = time.monotonic()
        hurry = -math.inf if self._left is None else now - self._left  # seconds since the user wants to leave
        for number in self.channels:
            name = self.name(number)
            silent = now - self._heard[number]
            limit = min(self.timeout, HURRY) if hurry > HURRY else self.timeout
            if silent > limit:
                raise AttemptFailed(f"{name}: silent for {limit:g} s", number)
            (verb, what, _), since = self._doing[number]
            if number in self._expected:
                since = max(since, self._expected[number])
            elif not what:
                continue
            still = now - since
            how = f"has {verb} nothing for {still:.0f} s ({what})" if what else f"has not answered for {still:.0f} s"
            if still > NAMED and number not in self._named:
                self._named.add(number)
                log.warning("%s %s%s", name, how, "; is its file system answering?" * (verb in ("read", "written")))
            # Of what a trainer does its agent is judge before: after the stall timeout.
            if still > self.stall + self.timeout or min(still, hurry) > HURRY:
                raise AttemptFailed(f"{name}: {how}", number)

    def _hear(self, heard: Heard) -> None:
        number, kind, value, at = heard
        if number not in self.channels:
            return
        before = self._heard[number]
        self._heard[number] = at if before > time.monotonic() else max(before, at)  # its first word ends the grace of FIRST
        if kind == "log":
            level, _, text = value.partition(": ")
            log.log(LEVELS.get(level, logging.INFO), "%s: %s", self.name(number), cleaned(text if level in LEVELS else value))
        elif kind == "closed":
            reason = f": {value.last}" if value.last else ""
            raise AttemptFailed(f"{self.name(number)}: its agent {cleaned(value.words + reason)}", number)
        else:
            for event, content in value.items():
                try:
                    self._event(number, event, event_of(event, content))
                except (ProtocolError, LookupError, TypeError, ValueError) as error:
                    what = error if isinstance(error, ProtocolError) else f"says {event!r}, which makes no sense ({error!r})"
                    raise MachineFailed(f"{self.name(number)}: its agent {what}", number, 1) from error

    def _event(self, number: int, event: str, content: Any) -> None:
        if event == "beat":
            verb, what, count = content if fits(content, DOING) else ("", "", 0)
            if self._doing[number][0] != (verb, what, count):
                self._doing[number] = (verb, what, count), time.monotonic()
                self._named.discard(number)
            return
        if event == "failed":
            what = f"{self.name(number)}: {content['what']}"
            if content["recoverable"]:
                raise AttemptFailed(what, number)
            raise MachineFailed(what, number, content["code"])
        if event == "say":
            if not self.quiet:
                say(f"machine_{number} {content}")
        elif event in ANSWERS:
            self._answers.setdefault(event, {})[number] = content
        else:
            self.news(number, event, content)

    def hello(self, seconds: float) -> dict[int, str]:
        """Wait until every agent has said that it is there. Those that do not, or are of another kgdist than this one, are
        dropped: machine -> why."""
        problems: dict[int, str] = {}
        for number, found in self.survey("hello", seconds, problems).items():
            if found["version"] != __version__:
                different = f"has kgdist {found['version']}, and here it is {__version__}"
                problems[number] = f"{self.name(number)}: {different}; kgdist must be the same everywhere"
                self.drop(number)
        return problems

    def close(self, *, grace: float) -> None:
        """End every agent, at once or after it has carried out what it was told."""
        self._over.set()
        channels = [*self.channels.values(), *self._dropped]
        threads = [threading.Thread(target=channel.close, args=(grace,)) for channel in channels]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=grace + 10)
        self.channels, self._dropped = {}, []
