"""Every push is applied once and every request answered, whatever the network loses or repeats. No sockets, no clocks.

`ClientSession` is one client's side towards one server, `Applied` the server's side towards all. The rules are Kafka's: pushes
are numbered 1, 2, 3, ... by (client, incarnation); the server applies the one after the last, confirms again what it has applied
before, and answers one that comes too early with GAP. A client keeps what is not confirmed, at most `window` pushes of it.

There is one way to recover. The client begins a new round: it says HELLO, is told in WELCOME which push was applied last, and
sends the rest again, in order. It does so when a connection was made, after GAP, and after a silence of `retry` seconds; replies
to earlier rounds start none, so a burst of GAPs cannot multiply. Times come in as `now`, seconds of any steady clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from kgdist.base.errors import PeersLost, ProtocolError
from kgdist.kvstore.messages import REQUESTS, Kind


class Entry(NamedTuple):
    """Something to send: a push or a request by its number, or HELLO of this round (no payload)."""

    number: int
    payload: Any = None
    is_push: bool = False
    order: int = 0  # among all entries of its session


class ClientSession:
    """The client's side.

    Args:
        window: pushes that may be unconfirmed at a time.
        retry: seconds of silence after which a new round is begun.
        patience: seconds of silence after which the server counts as lost; only time spent listening counts.
    """

    def __init__(self, window: int, *, retry: float, patience: float, now: float) -> None:
        self.window, self.retry, self.patience = window, retry, patience
        self.round = 0
        self.open = False
        self.pushed = 0  # number of the last push made
        self.acked = 0
        self._asked = 0  # number of the last request
        self._order = 0
        self._unacked: deque[Entry] = deque()
        self._pending: dict[int, Entry] = {}
        self._outbox: deque[Entry] = deque()
        self._known = 0  # acked when the round began; the server may have applied more since, never less
        self._heard = self._listened = self._begun = now

    def begin(self, now: float) -> None:
        """Start a round: all that was on its way may be lost."""
        self.round += 1
        self.open = False
        self._begun = now
        self._known = self.acked
        self._outbox = deque([Entry(self.round)])

    def room(self) -> bool:
        """Whether one more push may be made."""
        return len(self._unacked) < self.window

    def waiting(self) -> bool:
        """Whether anything is to come from the server."""
        return bool(self._unacked or self._pending or not self.open)

    def unconfirmed(self) -> int:
        """Pushes that are not confirmed yet."""
        return len(self._unacked)

    def push(self, payload: Any, now: float) -> int:
        """Take a push; returns its number. Raises ValueError when there is no room."""
        if not self.room():
            raise ValueError(f"{self.window} pushes are unconfirmed already")
        self.pushed += 1
        entry = self._enter(Entry(self.pushed, payload, True, self._order + 1), now)
        self._unacked.append(entry)
        return entry.number

    def request(self, payload: Any, now: float) -> int:
        """Take a request; returns its number."""
        self._asked += 1
        entry = self._enter(Entry(REQUESTS + self._asked, payload, False, self._order + 1), now)
        self._pending[entry.number] = entry
        return entry.number

    def _enter(self, entry: Entry, now: float) -> Entry:
        if not self.waiting():
            self._heard = self._listened = now  # it had nothing to say
        self._order = entry.order
        if self.open:
            self._outbox.append(entry)  # else it goes out after WELCOME, with the others
        return entry

    def next(self, place: int = 0) -> Entry | None:
        """What to send now, or, with those before it, at this place; None behind the last. Followed by `sent` when that went
        well."""
        return self._outbox[place] if place < len(self._outbox) else None

    def sent(self, count: int = 1) -> None:
        """The first so many are on their way."""
        for _ in range(count):
            self._outbox.popleft()

    def receive(self, kind: Kind, number: int, round_: int, now: float) -> list[Entry]:
        """What a reply settles: pushes that are confirmed, the request that is answered.

        Raises PeersLost when the server has forgotten pushes that it confirmed, ProtocolError for what no server of ours says.
        """
        self._heard = now
        if kind is Kind.WELCOME:
            return self._welcome(number) if round_ == self.round and not self.open else []
        if kind is Kind.ACK:
            return self._confirm(number)
        if kind in (Kind.GAP, Kind.WHO):
            if round_ == self.round and self.open:
                self.begin(now)
            return []
        if kind in (Kind.ROWS, Kind.ANSWER) or (kind is Kind.ERROR and number >= REQUESTS):
            entry = self._pending.pop(number, None)  # None: the answer to a repeated request, once more
            return [entry] if entry else []
        raise ProtocolError(f"a server does not say {kind.name}")

    def awaited(self, number: int, now: float) -> Entry | None:
        """The request that a piece of an answer is for, or None: it has been answered."""
        self._heard = now
        return self._pending.get(number)

    def _welcome(self, last: int) -> list[Entry]:
        if last < self._known:
            raise PeersLost(f"it confirmed update {self._known} and now knows of {last} only: it has gone back in time")
        done = self._confirm(last)
        self.open = True
        self._outbox = deque(sorted([*self._unacked, *self._pending.values()], key=lambda entry: entry.order))
        return done

    def _confirm(self, last: int) -> list[Entry]:
        if last > self.pushed:
            raise ProtocolError(f"update {last} is confirmed, but only {self.pushed} were sent: this incarnation was used before")
        self.acked = max(self.acked, last)
        done = []
        while self._unacked and self._unacked[0].number <= last:
            done.append(self._unacked.popleft())
        if done and self._outbox:  # it was applied before it could be sent again
            self._outbox = deque(e for e in self._outbox if not (e.is_push and e.number <= last))
        return done

    def tick(self, now: float) -> None:
        """To be called while listening, after all that has arrived was received: begins a round where one is due.

        Raises PeersLost after `patience`.
        """
        deaf = now - self._listened - self.retry
        self._listened = now
        if deaf > 0:  # nobody listened for so long: that was no silence
            self._heard += deaf
            self._begun += deaf
        if not self.waiting():
            self._heard = now
        elif now - self._heard > self.patience:
            raise PeersLost(f"not a word for {now - self._heard:.3g} seconds")
        elif now - max(self._heard, self._begun) > self.retry:
            self.begin(now)


class Verdict(Enum):
    """What becomes of a push."""

    APPLY = "apply"
    AGAIN = "again"  # applied before: confirm it once more
    GAP = "gap"  # one before it is missing


class Applied:
    """The server's side: the number of the last push applied, by (client, incarnation).

    It belongs to the rows: whoever saves or restores them does so with `state` and `load` of this.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], int] = {}
        self._newest: dict[int, int] = {}

    def last(self, client: int, incarnation: int) -> int:
        """0 before the first."""
        return self._last.get((client, incarnation), 0)

    def newest(self, client: int) -> int:
        """The newest incarnation that has said HELLO or pushed: -1 before the first. Older ones are dead."""
        return self._newest.get(client, -1)

    def greet(self, client: int, incarnation: int) -> bool:
        """A HELLO; False when a newer incarnation has taken its place."""
        if incarnation < self.newest(client):
            return False
        self._newest[client] = incarnation
        return True

    def judge(self, client: int, incarnation: int, number: int) -> Verdict:
        """What to do with this push. After APPLY comes `note`, once the rows are changed."""
        last = self.last(client, incarnation)
        return Verdict.APPLY if number == last + 1 else Verdict.AGAIN if number <= last else Verdict.GAP

    def note(self, client: int, incarnation: int, number: int) -> None:
        """The push has been applied."""
        self._last[client, incarnation] = number

    def state(self) -> list[list[int]]:
        """[client, incarnation, last] of all, for a checkpoint."""
        return [[client, incarnation, last] for (client, incarnation), last in sorted(self._last.items())]

    def load(self, state: Iterable[Iterable[int]]) -> None:
        """Take over what `state` gave."""
        self._last = {(client, incarnation): last for client, incarnation, last in state}
        self._newest = {}
        for client, incarnation in self._last:
            self._newest[client] = max(incarnation, self.newest(client))
