"""Exact ranks: the blocked evaluator against plain loops in float64, for every model and protocol, whatever the blocks."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.types import RelationRows, Side
from kgdist.data.known import KnownTriples
from kgdist.evaluation.candidates import AllEntities, Pool, Skip
from kgdist.evaluation.counting import count_rivals
from kgdist.evaluation.evaluator import evaluate
from kgdist.evaluation.ranks import Ranks, metrics
from kgdist.kernels.comparators import COMPARATORS
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import make_model
from tests import formulas
from tests.patience import patience

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class World:
    """A small graph with a model on it."""

    model: Model
    tables: MemoryTables
    triples: np.ndarray  # int32[T,3]
    facts: np.ndarray  # int32[F,3], known triples, as a rule with `triples` among them

    @property
    def entities(self) -> int:
        return len(self.tables.rows["entity"])

    @property
    def known(self) -> KnownTriples:
        return KnownTriples.build([self.facts], self.entities, len(self.tables.rows["relation"]))

    def evaluate(
        self,
        *,
        filtered: bool,
        pool: Pool | None = None,
        threads: int = 1,
        queries: int = 1000,
        block: int = 2048,
        first: int = 0,
    ) -> Ranks:
        """`kgdist.evaluation.evaluator.evaluate` of this world."""
        known = self.known if filtered else None
        return evaluate(
            self.model,
            self.tables,
            self.triples,
            num_entities=self.entities,
            known=known,
            pool=pool,
            threads=threads,
            first=first,
            query_block=queries,
            candidate_block=block,
        )


def world(name: str, seed: int, *, entities: int = 9, relations: int = 3, triples: int = 8, values: str = "integers") -> World:
    """Random rows, some of them repeated; "integers" in -1..1 tie often, "floats" only where rows are equal."""
    rng = np.random.default_rng(seed)
    model = make_model(name, gamma=formulas.GAMMA, **formulas.sizes(name))
    rows = {}
    for table, shape in model.tables(entities, relations).items():
        numbers = rng.integers(-1, 2, shape) if values == "integers" else rng.normal(size=shape)
        rows[table] = torch.from_numpy(numbers.astype(np.float32))
    if name == "RotatE" and values == "integers":  # whole moduli: sums of roots that are equal on paper are not in floats
        half = rows["entity"].shape[1] // 2
        rows["entity"][:, :half:2] = rows["entity"][:, half + 1 :: 2] = rows["relation"][:] = 0
    rows["entity"] = rows["entity"][torch.from_numpy(rng.integers(0, max(1, entities * 2 // 3), entities))].clone()

    def some(count: int) -> np.ndarray:
        return np.stack([rng.integers(0, limit, count) for limit in (entities, relations, entities)], axis=1).astype(np.int32)

    asked = some(triples)
    return World(model, MemoryTables(rows, {}, "sgd"), asked, np.concatenate([asked[1:], some(4 * triples)]))  # asked[0] is news


def key(comparator: str, q: list[float], c: list[float]) -> float:
    """The order of one candidate, in plain Python floats added in order (`sum` does more than that since Python 3.12)."""
    total = 0.0
    if comparator == "modulus":
        half = len(q) // 2
        for k in range(half):
            re, im = q[k] - c[k], q[half + k] - c[half + k]
            total -= math.sqrt(re * re + im * im)
        return total
    for a, b in zip(q, c, strict=True):
        total += {"dot": a * b, "l1": -abs(a - b), "l2": -(a - b) * (a - b)}[comparator]
    return total


def contests(w: World, *, filtered: bool, pool: Pool | None = None) -> Iterator[tuple[float, list[float]]]:
    """Of every query the order of the true entity, and those of its rivals, one candidate at a time."""
    facts = set(map(tuple, w.facts.tolist()))
    rows = w.tables.rows["entity"]
    for side in (Side.HEAD, Side.TAIL):
        for number, (h, r, t) in enumerate(w.triples.tolist()):
            relation = RelationRows({n: x[r : r + 1] for n, x in w.tables.rows.items() if n != "entity"}, torch.zeros(1).long())
            seen = rows.double()
            if "projection" in relation.rows:
                matrix = relation.rows["projection"].view(rows.shape[1], -1)
                seen = (rows.double() @ matrix.double()).float().double()
            if w.model.name == "PairRE":
                lengths = rows.double().square().sum(1, keepdim=True).sqrt().clamp_min(1e-12)
                scales = relation.rows["relation"][0].double().view(2, -1)[side.pick(head=0, tail=1)]
                seen = (rows.double() / lengths * scales).float().double()
            anchor, true = side.pick(head=(t, h), tail=(h, t))
            query = w.model.queries(rows[anchor : anchor + 1], relation, side)[0].double().tolist()
            ids = list(range(w.entities))
            if pool is not None:
                batch = number // pool.batch
                own = w.triples[batch * pool.batch : (batch + 1) * pool.batch, side.pick(0, 2)]
                ids = pool.draw(w.tables, w.entities, batch, side, own).ids.tolist()
            target = key(w.model.compare, query, seen[true].tolist())
            rivals = []
            for c in ids:
                if c == true or (filtered and side.pick(head=(c, r, t), tail=(h, r, c)) in facts):
                    continue
                rivals.append(key(w.model.compare, query, seen[c].tolist()))
            yield target, rivals


def brute_force(w: World, *, filtered: bool, pool: Pool | None = None) -> list[tuple[int, int, int]]:
    """(greater, equal, candidates) of every query."""
    return [
        (sum(value > target for value in rivals), sum(value == target for value in rivals), len(rivals) + 1)
        for target, rivals in contests(w, filtered=filtered, pool=pool)
    ]


def as_rows(ranks: Ranks) -> list[tuple[int, int, int]]:
    return list(zip(ranks.greater.tolist(), ranks.equal.tolist(), ranks.candidates.tolist(), strict=True))


@pytest.mark.parametrize("values", ["integers", "floats"])
@pytest.mark.parametrize("name", formulas.NAMES)
@given(data=st.data())
def test_ranks_are_those_of_plain_loops(name: str, values: str, data: st.DataObject) -> None:
    w = world(
        name,
        data.draw(st.integers(0, 2**32)),
        entities=data.draw(st.integers(1, 14)),
        relations=data.draw(st.integers(1, 3)),
        triples=data.draw(st.integers(1, 9)),
        values=values,
    )
    filtered = data.draw(st.booleans())
    queries, block, first = (data.draw(st.integers(*limits)) for limits in ((1, 20), (1, 16), (0, w.entities - 1)))
    ranks = w.evaluate(filtered=filtered, queries=queries, block=block, first=first)
    assert as_rows(ranks) == brute_force(w, filtered=filtered)


@pytest.mark.parametrize("name", formulas.NAMES)
@given(data=st.data())
def test_ranks_among_a_sample_are_those_of_plain_loops_over_it(name: str, data: st.DataObject) -> None:
    w = world(
        name, data.draw(st.integers(0, 2**32)), entities=data.draw(st.integers(1, 14)), triples=data.draw(st.integers(1, 9))
    )
    in_batch = data.draw(st.booleans())
    filtered = not in_batch and data.draw(st.booleans())
    pool = Pool(data.draw(st.integers(1, w.entities)), in_batch, data.draw(st.integers(1, 10)), data.draw(st.integers(0, 5)))
    ranks = w.evaluate(filtered=filtered, pool=pool, block=data.draw(st.integers(1, 16)))
    assert as_rows(ranks) == brute_force(w, filtered=filtered, pool=pool)


@pytest.mark.parametrize(
    ("filtered", "pool"),
    [(True, None), (False, None), (True, Pool(5, batch=3)), (False, Pool(5, batch=3)), (False, Pool(4, in_batch=True, batch=3))],
)
@pytest.mark.parametrize("name", ["DistMult", "TransE_l1", "PairRE"])
def test_auc_is_the_mean_of_what_scikit_learn_finds_for_each_query(name: str, filtered: bool, pool: Pool | None) -> None:
    """Of the true entity as the one positive among its rivals, many of which tie."""
    score = pytest.importorskip("sklearn.metrics").roc_auc_score
    w = world(name, 8, entities=14, triples=40)
    expected = [
        score([1] + [0] * len(rivals), [target, *rivals])
        for target, rivals in contests(w, filtered=filtered, pool=pool)
        if rivals
    ]
    for threads, queries, block in ((1, 1000, 2048), (3, 7, 5)):
        ranks = w.evaluate(filtered=filtered, pool=pool, threads=threads, queries=queries, block=block)
        assert ranks.equal.any() and ranks.greater.any()
        assert metrics(ranks)["auc-roc"] == pytest.approx(np.mean(expected), rel=1e-12)


@pytest.mark.parametrize("name", formulas.NAMES)
def test_blocks_and_threads_change_nothing(name: str) -> None:
    w = world(name, 5, entities=300, triples=400, values="floats")
    expected = as_rows(w.evaluate(filtered=True))
    for threads, queries, block, first in ((2, 64, 100, 0), (3, 7, 300, 299), (1, 800, 33, 120)):
        assert as_rows(w.evaluate(filtered=True, threads=threads, queries=queries, block=block, first=first)) == expected
    pool = Pool(sampled=50, batch=16)
    assert as_rows(w.evaluate(filtered=True, pool=pool, threads=3, block=7)) == as_rows(w.evaluate(filtered=True, pool=pool))


def test_ranks_say_what_they_are_of() -> None:
    w = world("DistMult", 1, triples=5)
    ranks = w.evaluate(filtered=True)
    assert ranks.side.tolist() == [0] * 5 + [1] * 5
    triples = np.stack([ranks.head, ranks.relation, ranks.tail], axis=1)
    np.testing.assert_array_equal(triples, np.concatenate([w.triples, w.triples]))


@pytest.mark.parametrize("values", ["integers", "floats"])
@pytest.mark.parametrize("name", formulas.NAMES)
def test_equal_entities_tie(name: str, values: str) -> None:
    w = world(name, 3, entities=60, triples=100, values=values)
    w.tables.rows["entity"][30:] = w.tables.rows["entity"][:30].flip(0)
    ranks = w.evaluate(filtered=False, block=17)
    assert (ranks.equal >= 1).all()


def test_equal_entities_tie_even_where_their_projections_are_rounded_apart() -> None:
    rows = torch.randn(1, 8, generator=torch.Generator().manual_seed(0)).repeat(6, 1)

    def uneven(entities: torch.Tensor) -> torch.Tensor:
        """What a matrix product may do to equal rows in different places."""
        seen = entities * 0.3
        seen[1::2, 0] = torch.nextafter(seen[1::2, 0], torch.tensor(9.0))
        return seen

    everybody = AllEntities(MemoryTables({"entity": rows}, {}, "sgd"), 6, 2048)
    skip = Skip(np.array([0, 1]), np.array([0]))
    greater, equal = count_rivals(COMPARATORS["l1"], torch.zeros(1, 8), rows[:1], everybody, skip, project=uneven)
    assert (greater.tolist(), equal.tolist()) == ([0], [5])


@pytest.mark.parametrize("value", [0.0, 0.1])
@pytest.mark.parametrize("name", formulas.NAMES)
def test_a_collapsed_model_ranks_at_random(name: str, value: float) -> None:
    w = world(name, 4, entities=200, triples=300, values="floats")
    w.tables.rows["entity"][:] = value
    ranks = w.evaluate(filtered=True)
    assert (ranks.greater == 0).all() and (ranks.equal == ranks.candidates - 1).all()
    found = metrics(ranks)
    assert found["amri"] == pytest.approx(0)
    assert found["mrr"] == pytest.approx((2 / (ranks.candidates + 1)).mean())


def test_memory_stays_small_when_every_candidate_is_near() -> None:
    """In a process of its own: what counts is the peak of the resident memory, fragments of the heap included."""
    code = """
import resource
import numpy as np
import torch
from kgdist.evaluation.evaluator import evaluate
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import make_model

model = make_model("DistMult", hidden_dim=400, entity_dim=400, relation_dim=400, gamma=1.0)
tables = MemoryTables({"entity": torch.randn(6000, 400), "relation": torch.zeros(1, 400)}, {}, "sgd")  # every score is 0
triples = np.stack([np.arange(200), np.zeros(200), np.arange(200)], axis=1).astype(np.int32)
peaks = []
for count in (10, 200):
    ranks = evaluate(model, tables, triples[:count], num_entities=6000, known=None)
    assert (ranks.equal == 5999).all()
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
print(peaks[1] - peaks[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=patience(100), check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200  # MiB, for 2.4 million pairs of 3200 bytes


@pytest.mark.parametrize("name", ["TransE_l1", "TransE_l2", "RotatE", "DistMult", "TransR", "PairRE"])
def test_numbers_that_overflow_float32_are_ranked_by_float64(name: str) -> None:
    w = world(name, 6, entities=40, triples=30, values="floats")
    w.tables.rows["relation"][:] = 0.0 if name != "DistMult" else 1.0
    w.tables.rows["entity"] *= 1e25 if name != "TransE_l1" else 1e37
    assert as_rows(w.evaluate(filtered=True)) == brute_force(w, filtered=True)


def test_a_query_that_overflows_is_named() -> None:
    w = world("DistMult", 6)
    for rows in w.tables.rows.values():
        rows[:] = 1e30
    with pytest.raises(KgdistError, match=r"the embeddings of (head|tail) \d+ and relation \d+ are too large for float32"):
        w.evaluate(filtered=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pool", [None, Pool(sampled=9)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("table", ["entity", "relation", "projection"])
def test_a_row_that_is_not_finite_is_named(table: str, bad: float, pool: Pool | None, threads: int) -> None:
    w = world("TransR", 2)
    w.triples[0] = (3, 2, 4)
    row = {"entity": 3, "relation": 2, "projection": 2}[table]
    w.tables.rows[table][row, -1] = bad
    with pytest.raises(KgdistError, match=f"table {table}, row {row}: holds NaN or infinity"):
        w.evaluate(filtered=True, pool=pool, threads=threads)


def test_the_sample_is_uniform_and_without_repetition() -> None:
    w = world("DistMult", 1, entities=12)
    own = np.array([5, 5, 7])
    drawn = [Pool(sampled=4, seed=1).draw(w.tables, 12, batch, Side.TAIL, own).ids for batch in range(600)]
    assert all(len(set(ids.tolist())) == 4 for ids in drawn)
    times = np.bincount(np.concatenate(drawn), minlength=12)  # 200 expected, standard deviation 11.5
    assert (abs(times - 200) < 60).all()
    head, tail = (Pool(sampled=4).draw(w.tables, 12, 3, side, own).ids.tolist() for side in Side)
    assert head != tail
    assert Pool(sampled=4, in_batch=True).draw(w.tables, 12, 3, Side.TAIL, own).ids.tolist() == sorted([*tail, 5, 5, 7])


def test_a_sample_of_more_than_all_is_refused() -> None:
    with pytest.raises(OptionError, match="--neg_sample_size_eval: cannot draw 10 different entities"):
        world("DistMult", 1).evaluate(filtered=True, pool=Pool(sampled=10))


class Slow(MemoryTables):
    """Tables that press Ctrl-C while they are read."""

    reads = 0

    def block(self, name: str, start: int, stop: int) -> torch.Tensor:
        self.reads += 1
        if self.reads == 20:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.005)
        return super().block(name, start, stop)


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_it_at_once(threads: int) -> None:
    w = world("DistMult", 1, triples=400)
    w.tables = Slow(w.tables.rows, {}, "sgd")
    with pytest.raises(KeyboardInterrupt):
        w.evaluate(filtered=True, threads=threads, queries=2, block=1)  # 3600 blocks, 18 seconds
    assert w.tables.reads < 1000


def test_what_it_sets_for_its_threads_is_put_back() -> None:
    before, interval = torch.get_num_threads(), sys.getswitchinterval()
    try:
        torch.set_num_threads(2)
        sys.setswitchinterval(0.004)
        world("DistMult", 1).evaluate(filtered=True, threads=2)
        assert torch.get_num_threads() == 2
        assert sys.getswitchinterval() == pytest.approx(0.004)
    finally:
        torch.set_num_threads(before)
        sys.setswitchinterval(interval)
