"""All agents of a job, told together and heard together: the launcher's view of its machines.

What arrives is sorted here: answers that are waited for, news for whoever watches the course, lines for the user, and the end of
a machine, which is the end of the attempt.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kgdist.errors import KgdistError, PeersLost
from kgdist.log import log, say
from kgdist.runtime.channel import Heard
from kgdist.runtime.cluster import Machine
from kgdist.version import __version__

ANSWERS = ("hello", "checked", "opened", "ready", "saved", "loaded", "memory")
FIRST = 60.0  # seconds in which an agent says its first word
News = Callable[[int, str, Any], None]  # machine, kind, value


class Correspondent(Protocol):
    """A machine's agent as a fleet needs it: a Channel, or the two halves of `kgdist.runtime.manual`."""

    def send(self, message: dict[str, Any]) -> None:
        """Send a JSON object; returns at once."""

    def close(self, grace: float) -> None:
        """End it, after it has carried out what it was told; waits little longer than `grace` seconds."""


class AttemptFailed(PeersLost):
    """This attempt is over, because a process or a machine was lost; another one may begin at the last checkpoint."""


class Fleet:
    """The agents of `machines`, by number. Owns their channels.

    Args:
        timeout: seconds of silence after which a machine counts as lost.
        news: called with events that nobody waits for.
    """

    def __init__(
        self, machines: list[Machine], channels: Mapping[int, Correspondent], events: queue.Queue[Heard], timeout: float
    ) -> None:
        self.machines, self.events, self.timeout = machines, events, timeout
        self.channels = dict(channels)
        self.news: News = lambda machine, kind, value: None
        self.quiet = False
        self._heard = dict.fromkeys(channels, time.monotonic() + FIRST)
        self._told = 0.0
        self._answers: dict[str, dict[int, Any]] = {}

    def tell(self, do: str, machines: Iterable[int] | None = None, **arguments: Any) -> None:
        """Send a command to some machines, by default to all."""
        for number in self.channels if machines is None else machines:
            self.channels[number].send({"do": do, **arguments})

    def ask(
        self, kind: str, do: str | None, seconds: float | None, machines: Iterable[int] | None = None, **arguments: Any
    ) -> dict[int, Any]:
        """Send a command and wait for the answer `kind` of each machine told; machine -> value.

        Without `seconds` the wait is as long as the machines show that they live. Raises AttemptFailed.
        """
        asked = list(self.channels if machines is None else machines)
        self._answers.pop(kind, None)
        if do is not None:
            self.tell(do, asked, **arguments)
        return self.gather(kind, asked, seconds)

    def gather(self, kind: str, machines: list[int], seconds: float | None) -> dict[int, Any]:
        """Wait for the answer `kind` of each of `machines`. Raises AttemptFailed."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while missing := [number for number in machines if number not in self._answers.get(kind, {})]:
            self.pump(0.1)
            if deadline is not None and time.monotonic() > deadline:
                raise AttemptFailed(f"{self.name(missing[0])}: has not said {kind!r} within {seconds:.0f} s")
        return self._answers.pop(kind, {})

    def name(self, machine: int) -> str:
        """How messages call a machine."""
        return self.machines[machine].name

    def pump(self, seconds: float) -> None:
        """Hear what there is, waiting `seconds` at most for the first. Raises AttemptFailed, or KgdistError for what no other
        attempt can cure."""
        now = time.monotonic()
        if now - self._told > min(1.0, self.timeout / 5):
            self._told = now
            self.tell("beat")
        try:
            heard = self.events.get(timeout=seconds)
            while True:
                self._hear(heard)
                heard = self.events.get_nowait()
        except queue.Empty:
            pass
        for number, since in self._heard.items():
            if time.monotonic() - since > self.timeout:
                raise AttemptFailed(f"{self.name(number)}: silent for {self.timeout:g} s")

    def _hear(self, heard: Heard) -> None:
        number, kind, value = heard
        if number not in self.channels:
            return
        self._heard[number] = time.monotonic()
        if kind == "log":
            log.info("%s: %s", self.name(number), value)
        elif kind == "closed":
            reason = f": {value.last}" if value.last else ""
            raise AttemptFailed(f"{self.name(number)}: its agent {value.words}{reason}")
        else:
            for event, content in value.items():
                self._event(number, event, content)

    def _event(self, number: int, event: str, content: Any) -> None:
        if event == "failed":
            what = f"{self.name(number)}: {content['what']}"
            if content["recoverable"]:
                raise AttemptFailed(what)
            error = KgdistError(what)
            error.exit_code = content["code"]
            raise error
        if event == "say":
            if not self.quiet:
                say(f"machine_{number} {content}")
        elif event in ANSWERS:
            self._answers.setdefault(event, {})[number] = content
        elif event != "beat":
            self.news(number, event, content)

    def hello(self, seconds: float) -> None:
        """Wait until every agent has said that it is there. Raises KgdistError when it is another kgdist than this one."""
        answers = self.gather("hello", list(self.channels), seconds)
        wrong = {self.name(n): found["version"] for n, found in answers.items() if found["version"] != __version__}
        if wrong:
            listed = ", ".join(f"{name} has {version}" for name, version in wrong.items())
            raise KgdistError(f"kgdist must be the same everywhere: here it is {__version__}, but {listed}")

    def close(self, *, grace: float) -> None:
        """End every agent, at once or after it has carried out what it was told."""
        for number in self.channels:
            self._heard[number] = time.monotonic()
        threads = [threading.Thread(target=channel.close, args=(grace,)) for channel in self.channels.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=grace + 10)
        self.channels = {}
