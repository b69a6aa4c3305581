"""What a training on many machines costs, term by term, and what it then reaches: arithmetic alone, nothing is measured here.

A step of a trainer costs four threads something: its own, that of its libzmq, the servers' Python and the servers' libzmq. Each
cost is a sum of terms that a processor can be seen to pay: for the step, for each connection that is looked after, for each
envelope there and back, for each message in it, for each row, for each number of a row. `fit` finds what each costs from
measurements, none below nothing; `needs` says how many of each a step takes on so many machines; `speed` what the machines reach,
and what keeps them from more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

ENDS = ("trainer", "trainer_io", "servers", "servers_io")  # whose cores
TERMS = (
    *("step", "connection", "envelope", "message", "row", "number, fp32", "number, bf16"),
    *("envelope, CURVE", "byte, CURVE"),
)
OF_TRAINERS = TERMS[:2]  # a server knows nothing of steps, and its one socket has the same connections always
WORDS = {  # how the page calls them
    **{"step": "the step", "connection": "connections", "envelope": "messages", "message": "messages", "row": "rows"},
    **{"number, fp32": "bytes", "number, bf16": "bytes", "envelope, CURVE": "encryption", "byte, CURVE": "encryption"},
}
SIZES = {"fp32": 4, "bf16": 2}  # bytes of a number on the wire
PULLED, PUSHED = 4, 4 + 4  # bytes of a row besides its numbers: its id, its square
SHARES = (np.arange(1345) + 30.0) ** -1.95  # of FB15k's relations, about
SHARES /= SHARES.sum()


@dataclass(frozen=True)
class Traffic:
    """What a step has to do with other machines, on average."""

    connections: float  # machines that are connected
    envelopes: float  # there and back: what a machine is asked and told at one moment
    messages: float  # in them: pulls and pushes
    pulled: float  # rows
    pushed: float
    dim: int
    dtype: str = "fp32"
    curve: bool = False

    @property
    def bytes(self) -> float:
        """Both ways together, without headers."""
        row = self.dim * SIZES[self.dtype]
        return self.pulled * (row + PULLED) + self.pushed * (row + PUSHED)

    def terms(self) -> np.ndarray:
        """float64[TERMS], how many of each."""
        rows = self.pulled + self.pushed
        numbers = [rows * self.dim * (self.dtype == dtype) for dtype in SIZES]
        encrypted = [self.envelopes * self.curve, self.bytes * self.curve]
        return np.array([1.0, self.connections, self.envelopes, self.messages, rows, *numbers, *encrypted])


def least_squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float64[n, m], float64[n] -> float64[m], the x >= 0 with the least |ax - b| (Lawson and Hanson)."""
    x, free = np.zeros(a.shape[1]), np.zeros(a.shape[1], bool)
    for _ in range(10 * a.shape[1]):
        slope = np.where(free, -np.inf, a.T @ (b - a @ x))
        if slope.max() <= 1e-10 * np.abs(a.T @ b).max():
            break
        free[slope.argmax()] = True
        while True:
            full = np.zeros_like(x)
            full[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            low = free & (full <= 0)
            if not low.any():
                break
            x += np.min(x[low] / (x[low] - full[low])) * (full - x)  # as far as none falls below nothing
            free &= x > 1e-12 * x.max()
            x[~free] = 0
        x = full
    return x


def fit(traffic: Sequence[Traffic], found: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """End -> float64[TERMS], milliseconds of a core for one of each, from what was measured (end -> ms a step).

    Relative errors are made small, so a step of a tenth of a millisecond counts as much as one of forty.
    """
    terms = np.stack([each.terms() for each in traffic])
    scale = np.maximum(terms.max(0), 1e-300)  # so that sizes of units are nothing to the arithmetic
    costs = {}
    for end in ENDS:
        seen = np.array([term not in OF_TRAINERS or end.startswith("trainer") for term in TERMS])
        took = np.array([each[end] for each in found])
        costs[end] = np.zeros(len(TERMS))
        costs[end][seen] = least_squares((terms / scale)[:, seen] / took[:, None], np.ones(len(took))) / scale[seen]
    return costs


def different(draws: float, among: float) -> float:
    """How many different ones so many draws from so many hold, on average."""
    return float(-among * np.expm1(draws * np.log1p(-1 / among))) if among > 1 else min(draws, among)


@lru_cache(maxsize=1024)
def different_relations(triples: int) -> float:
    """The same of the relations of so many triples."""
    return float(-np.expm1(triples * np.log1p(-SHARES)).sum())


@dataclass(frozen=True)
class Job:
    """A training on equal machines; options as in kgdist-dist-train."""

    machines: int
    cores: int = 16
    gigabits: float = 100.0
    batch: int = 1000
    dim: int = 400
    dtype: str = "fp32"
    curve: bool = True
    pull_ahead: int = 1
    local: bool = False  # --negatives local
    cut: float = 0.33  # of the triples, were there infinitely many machines
    entities: float = 86e6
    interval: int = 100  # --force_sync_interval


def needs(job: Job) -> Traffic:
    """What a step of one of its trainers has to do with other machines.

    A batch has `batch` heads, tails and negatives. Tails are here; heads are elsewhere where the triple is cut; negatives are
    drawn from all entities, or from those here; relations are dealt out evenly.
    """
    others = job.machines - 1

    def rows(steps: int) -> float:
        """Different ones that so many steps together need from elsewhere."""
        entities = job.batch * steps * (job.cut + (not job.local))
        away = others / job.machines
        return away * (different(entities, job.entities) + different_relations(job.batch * steps))

    asked, pushed = rows(job.pull_ahead), rows(1)
    pulls = different(asked, others) / job.pull_ahead if others else 0.0
    pushes = different(pushed, others) if others else 0.0
    return Traffic(others, pulls, pulls + pushes, asked / job.pull_ahead, pushed, job.dim, job.dtype, job.curve)


@dataclass(frozen=True)
class Costs:
    """Milliseconds: of cores, but for meetings, where they pass."""

    ends: Mapping[str, np.ndarray]  # see fit
    arithmetic: tuple[float, float]  # of a step whose rows are all here: for itself, for each triple
    here: float  # the part of it that a row takes to be looked up and updated: not spent where it lies elsewhere
    spread: float  # of such steps: standard deviation over mean
    meeting: tuple[float, float]  # for itself, for each machine

    def shares(self, job: Job) -> dict[str, dict[str, float]]:
        """End -> term -> milliseconds of a core, a step."""
        traffic = needs(job)
        terms = traffic.terms() * (job.machines > 1)
        found = {end: dict(zip(TERMS, (terms * self.ends[end]).tolist(), strict=True)) for end in ENDS}
        saved = self.here * (traffic.pulled + traffic.pushed) / 2
        found["trainer"]["arithmetic"] = self.arithmetic[0] + self.arithmetic[1] * job.batch - saved
        return found


@dataclass(frozen=True)
class Speed:
    """What a job reaches, and how."""

    rate: float  # triples/s of all machines
    trainers: int  # of each machine
    servers: int
    limit: str  # what is at its end
    most: str  # what takes most of that
    met: float  # of the time, for meetings
    late: float  # of the time, for the slowest


def slowest(among: int) -> float:
    """By how many standard deviations the largest of so many normal numbers lies above their mean, about (Blom)."""
    return NormalDist().inv_cdf((among - 0.375) / (among + 0.25)) if among > 1 else 0.0


def speed(job: Job, costs: Costs, trainers: int, servers: int) -> Speed:
    """With so many trainers and servers a machine. Rows are asked for early enough, so nothing but work takes time, and
    meetings."""
    shares = costs.shares(job)
    spent = {end: sum(shares[end].values()) / 1000 for end in ENDS}  # seconds a step
    traffic = needs(job)
    most = {  # steps/s of a trainer, were there nothing else
        "trainers": (1 / spent["trainer"], ENDS[:1]),
        "cores": (job.cores / (trainers * sum(spent.values())), ENDS),
    }
    if job.machines > 1:
        most["libzmq of trainers"] = 1 / spent["trainer_io"], ENDS[1:2]
        most["servers"] = servers / (trainers * spent["servers"]), ENDS[2:3]
        most["libzmq of servers"] = servers / (trainers * spent["servers_io"]), ENDS[3:]
        # One way: what its own trainers pull, and others push to it; the other way as much.
        most["network"] = job.gigabits * 1e9 / 8 / (trainers * traffic.bytes), ()
    limit = min(most, key=lambda name: most[name][0])
    pace, ends = most[limit]
    sums: dict[str, float] = {}
    for end in ends:
        for term, value in shares[end].items():
            word = WORDS.get(term, term)
            sums[word] = sums.get(word, 0.0) + value
    together = job.machines * trainers
    meeting = (costs.meeting[0] + costs.meeting[1] * job.machines) / 1000 if job.machines > 1 else 0.0
    lag = slowest(together) * costs.spread * job.interval**0.5 / pace
    whole = job.interval / pace + meeting + lag
    if meeting + lag > whole / 2:
        limit, sums = "meetings", {}
    busiest = max(sums, key=lambda name: sums[name]) if sums else ""
    rate = job.interval / whole * job.batch * together
    return Speed(rate, trainers, servers, limit, busiest, meeting / whole, lag / whole)


def best(job: Job, costs: Costs, trainers: Sequence[int] = (), servers: Sequence[int] = (1, 2, 4, 8, 16)) -> Speed:
    """At the best division of the cores; of those within a hundredth of it, that with the fewest processes."""
    found = [speed(job, costs, t, s) for s in servers for t in trainers or range(1, job.cores + 1)]
    most = max(each.rate for each in found)
    return min((each for each in found if each.rate > 0.99 * most), key=lambda each: each.trainers + each.servers)
