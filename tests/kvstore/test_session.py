"""The ledger is exact whatever a network does: messages lost, repeated, overtaken, connections cut, processes restarted.

Nothing here does IO or waits, so thousands of schedules are played in seconds. A push is a number; the server writes down what it
applies, so that order and repetition are seen and not only a sum.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import PeersLost, ProtocolError
from kgdist.kvstore.messages import REQUESTS, Kind
from kgdist.kvstore.session import Applied, ClientSession, Entry, Verdict

RETRY, PATIENCE, WINDOW = 1.0, 1e9, 3
Up = tuple[int, int, int, Entry]  # client, incarnation, round, entry
Down = tuple[int, int, Kind, int, int]  # client, incarnation, kind, number, round


class World:
    """Some clients, one server, and a network that does what the schedule says."""

    def __init__(self, clients: int = 2) -> None:
        self.now = 0.0
        self.sessions = [self.fresh() for _ in range(clients)]
        self.incarnations = [0] * clients
        self.applied = Applied()
        self.ledger: dict[tuple[int, int], list[int]] = defaultdict(list)  # pushes in the order in which they were applied
        self.sent: dict[tuple[int, int], int] = {}
        self.acked: dict[tuple[int, int], int] = {}
        self.answered: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.asked: dict[tuple[int, int], int] = defaultdict(int)
        self.up: list[Up] = []
        self.down: list[Down] = []

    def fresh(self) -> ClientSession:
        session = ClientSession(WINDOW, retry=RETRY, patience=PATIENCE, now=self.now)
        session.begin(self.now)
        return session

    def push(self, client: int) -> None:
        if self.sessions[client].room():
            key = client, self.incarnations[client]
            number = self.sessions[client].push(f"gradient {self.sent.get(key, 0) + 1}", self.now)
            assert number == self.sent.get(key, 0) + 1
            self.sent[key] = number

    def ask(self, client: int) -> None:
        self.asked[client, self.incarnations[client]] = self.sessions[client].request("rows", self.now) - REQUESTS

    def send(self, client: int) -> None:
        session = self.sessions[client]
        if (entry := session.next()) is not None:
            session.sent()
            self.up.append((client, self.incarnations[client], session.round, entry))

    def serve(self, place: int = 0) -> None:
        if not self.up:
            return
        client, incarnation, round_, entry = self.up.pop(place % len(self.up))
        me = client, incarnation
        if entry.payload is None:
            if self.applied.greet(*me):
                self.down.append((*me, Kind.WELCOME, self.applied.last(*me), round_))
        elif not entry.is_push:
            self.down.append((*me, Kind.ROWS, entry.number, round_))
        else:
            assert entry.payload == f"gradient {entry.number}"
            verdict = self.applied.judge(*me, entry.number)
            if verdict is Verdict.APPLY:
                self.ledger[me].append(entry.number)
                self.applied.note(*me, entry.number)
            kind = Kind.GAP if verdict is Verdict.GAP else Kind.ACK
            self.down.append((*me, kind, self.applied.last(*me), round_))

    def hear(self, place: int = 0) -> None:
        if not self.down:
            return
        client, incarnation, kind, number, round_ = self.down.pop(place % len(self.down))
        if incarnation == self.incarnations[client]:
            key = client, incarnation
            session = self.sessions[client]
            self.answered[key] += [e.number - REQUESTS for e in session.receive(kind, number, round_, self.now) if not e.is_push]
            self.acked[key] = session.acked

    def lose(self, place: int) -> None:
        for queue in (self.up, self.down):
            if queue:
                queue.pop(place % len(queue))

    def repeat(self, place: int) -> None:
        if self.up:
            self.up.append(self.up[place % len(self.up)])
        if self.down:
            self.down.append(self.down[place % len(self.down)])

    def cut(self, client: int) -> None:
        self.up = [m for m in self.up if m[0] != client]
        self.down = [m for m in self.down if m[0] != client]
        self.sessions[client].begin(self.now)

    def kill(self, client: int) -> None:
        self.incarnations[client] += 1
        self.sessions[client] = self.fresh()

    def restart_server(self) -> None:
        state = self.applied.state()
        self.applied = Applied()
        self.applied.load(state)

    def wait(self, tenths: int) -> None:
        self.now += tenths / 10
        for session in self.sessions:
            session.tick(self.now)

    def check(self) -> None:
        for key, numbers in self.ledger.items():
            assert numbers == list(range(1, len(numbers) + 1))
            assert self.acked.get(key, 0) <= len(numbers) == self.applied.last(*key) <= self.sent[key]

    def settle(self) -> None:
        """The network becomes a good one: all that is alive must come to its end."""
        self.up, self.down = [], []
        for _ in range(60):
            self.wait(3)
            for client in range(len(self.sessions)):
                self.send(client)
            while self.up or self.down:
                self.serve()
                self.hear()
                for client in range(len(self.sessions)):
                    self.send(client)
        self.check()
        for client, session in enumerate(self.sessions):
            key = client, self.incarnations[client]
            assert not session.waiting() and session.room() and session.next() is None
            assert self.acked.get(key, 0) == self.sent.get(key, 0) == len(self.ledger[key])
            assert sorted(self.answered[key]) == list(range(1, self.asked[key] + 1))


ACTIONS: list[tuple[int, Callable[[World, int], None]]] = [
    (20, lambda world, n: world.push(n % 2)),
    (5, lambda world, n: world.ask(n % 2)),
    (25, lambda world, n: world.send(n % 2)),
    (20, lambda world, n: world.serve()),
    (20, lambda world, n: world.hear()),
    (3, lambda world, n: world.serve(n)),
    (3, lambda world, n: world.hear(n)),
    (3, lambda world, n: world.lose(n)),
    (3, lambda world, n: world.repeat(n)),
    (8, lambda world, n: world.wait(n % 8)),
    (1, lambda world, n: world.cut(n % 2)),
    (1, lambda world, n: world.kill(n % 2)),
    (1, lambda world, n: world.restart_server()),
]


def play(schedule: list[tuple[int, int]]) -> World:
    world = World()
    for action, n in schedule:
        ACTIONS[action][1](world, n)
        world.check()
    world.settle()
    return world


@given(st.lists(st.tuples(st.integers(0, len(ACTIONS) - 1), st.integers(0, 30)), max_size=120))
def test_the_ledger_is_exact_under_any_schedule(schedule: list[tuple[int, int]]) -> None:
    play(schedule)


def schedules(count: int) -> Iterator[list[tuple[int, int]]]:
    chance, weights = random.Random(0), [weight for weight, _ in ACTIONS]
    for _ in range(count):
        yield [(action, chance.randrange(31)) for action in chance.choices(range(len(ACTIONS)), weights, k=120)]


def test_the_ledger_is_exact_under_thousands_of_schedules() -> None:
    worlds = [play(schedule) for schedule in schedules(4000)]
    assert sum(len(numbers) for world in worlds for numbers in world.ledger.values()) > 30_000  # they let work be done
    assert sum(map(sum, (world.incarnations for world in worlds))) > 2000


@pytest.mark.parametrize(
    "wrong",
    [
        lambda applied, c, i, n: Verdict.APPLY,
        lambda applied, c, i, n: Verdict.APPLY if n > applied.last(c, i) else Verdict.AGAIN,
        lambda applied, c, i, n: Verdict.APPLY if n >= applied.last(c, i) else Verdict.AGAIN,
    ],
)
def test_the_schedules_find_a_server_that_judges_wrongly(wrong: Callable[..., Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Applied, "judge", wrong)
    with pytest.raises(AssertionError):
        for schedule in schedules(100):
            play(schedule)


def opened(now: float = 0.0, **changes: float) -> ClientSession:
    session = ClientSession(WINDOW, retry=1.0, patience=4.0, now=now)
    session.begin(now)
    assert session.next() == Entry(1)
    session.sent()
    session.receive(Kind.WELCOME, 0, 1, now)
    return session


def drain(session: ClientSession) -> list[int]:
    found = []
    while (entry := session.next()) is not None:
        found.append(entry.number)
        session.sent()
    return found


def test_nothing_is_sent_before_the_welcome() -> None:
    session = ClientSession(WINDOW, retry=1.0, patience=4.0, now=0.0)
    session.begin(0.0)
    session.push("a", 0.0)
    session.request("b", 0.0)
    assert [session.next(), session.sent(), session.next()] == [Entry(1), None, None]
    session.receive(Kind.WELCOME, 0, 1, 0.0)
    assert drain(session) == [1, REQUESTS + 1]


def test_the_window_is_a_bound() -> None:
    session = opened()
    for _ in range(WINDOW):
        session.push("a", 0.0)
    assert not session.room() and session.unconfirmed() == WINDOW
    with pytest.raises(ValueError, match="3 pushes are unconfirmed"):
        session.push("a", 0.0)
    assert [e.number for e in session.receive(Kind.ACK, 2, 1, 0.0)] == [1, 2]
    assert session.room() and session.unconfirmed() == 1


def test_a_burst_of_gaps_begins_one_round() -> None:
    session = opened()
    for _ in range(3):
        session.push("a", 0.0)
    drain(session)
    for _ in range(2):
        session.receive(Kind.GAP, 0, 1, 0.0)
    assert session.round == 2 and drain(session) == [2]
    session.receive(Kind.WELCOME, 1, 1, 0.0)  # of the round before
    assert not session.open
    session.receive(Kind.WELCOME, 1, 2, 0.0)
    assert drain(session) == [2, 3]


def test_what_is_confirmed_is_not_sent_again() -> None:
    session = opened()
    for _ in range(3):
        session.push("a", 0.0)
    drain(session)
    session.begin(0.0)
    session.receive(Kind.WELCOME, 0, 2, 0.0)
    session.receive(Kind.ACK, 2, 1, 0.0)  # late, of the round before
    session.sent()
    assert drain(session) == [3] or session.next() is None


def test_silence_begins_a_round_and_ends_in_a_loss() -> None:
    session = opened()
    session.request("rows", 0.0)
    drain(session)
    rounds = []
    with pytest.raises(PeersLost, match="not a word for 4"):
        for tenth in range(1, 60):
            session.tick(tenth / 10)
            rounds.append(session.round)
    assert rounds[9] == 1 and rounds[10] == 2 and 3 <= rounds[-1] <= 4


def test_time_in_which_nobody_listened_is_no_silence() -> None:
    session = opened()
    session.push("a", 0.0)
    drain(session)
    session.tick(100.0)
    assert session.round == 1
    session.tick(100.9)
    session.tick(101.2)
    assert session.round == 2


def test_a_listener_that_comes_by_rarely_gives_up_as_well() -> None:
    session = opened()
    session.push("a", 0.0)
    with pytest.raises(PeersLost):
        for turn in range(1, 20):
            session.tick(10.0 * turn)
            drain(session)
    assert session.round > 2


def test_an_idle_session_waits_for_nothing() -> None:
    session = opened()
    for second in range(100):
        session.tick(float(second))
    assert session.round == 1 and not session.waiting()


def test_a_server_that_went_back_in_time_is_lost() -> None:
    session = opened()
    for _ in range(2):
        session.push("a", 0.0)
    session.receive(Kind.ACK, 2, 1, 0.0)
    session.begin(0.0)
    with pytest.raises(PeersLost, match="confirmed update 2 and now knows of 1 only"):
        session.receive(Kind.WELCOME, 1, 2, 0.0)


def test_an_incarnation_that_was_used_before_is_seen() -> None:
    session = ClientSession(WINDOW, retry=1.0, patience=4.0, now=0.0)
    session.begin(0.0)
    with pytest.raises(ProtocolError, match="used before"):
        session.receive(Kind.WELCOME, 7, 1, 0.0)


@pytest.mark.parametrize("kind", [Kind.PULL, Kind.HELLO, Kind.PUSH])
def test_a_server_that_talks_like_a_client_is_refused(kind: Kind) -> None:
    with pytest.raises(ProtocolError, match=f"does not say {kind.name}"):
        opened().receive(kind, 0, 1, 0.0)


def test_an_older_incarnation_is_dead_also_after_a_restart() -> None:
    applied = Applied()
    assert applied.greet(4, 0) and applied.greet(4, 2) and not applied.greet(4, 1)
    applied.note(4, 2, 5)
    again = Applied()
    again.load(applied.state())
    assert applied.state() == [[4, 2, 5]] == again.state()
    assert not again.greet(4, 1) and again.greet(4, 2) and again.last(4, 2) == 5 and again.last(4, 1) == 0
