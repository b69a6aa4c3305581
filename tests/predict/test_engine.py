"""The best answers against sorting the scores of all triples, each from its written-out formula in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import KgdistError
from kgdist.base.types import Side
from kgdist.data.known import KnownTriples
from kgdist.kernels import jit
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import make_model
from kgdist.predict import relations
from kgdist.predict.engine import Answers, Predictor
from tests import formulas

ENTITIES, RELATIONS = 23, 4
Triple = tuple[int, int, int]


class Weighted(Model):
    """A score function of one's own: sum over i of h_i tanh(r_i) t_(i+1)."""

    name, compare = "Weighted", "dot"

    def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        return (anchor * relation.tanh()).roll(1, -1) if side is Side.TAIL else anchor.roll(-1, -1) * relation.tanh()


class World:
    """A model with random tables, and the scores of all its triples."""

    def __init__(self, name: str, seed: int = 1, *, whole: bool = False) -> None:
        if name == "Weighted":
            self.model: Model = Weighted(hidden_dim=6, entity_dim=6, relation_dim=6, gamma=formulas.GAMMA)
        else:
            self.model = make_model(name, gamma=formulas.GAMMA, **formulas.sizes(name))
        random = torch.Generator().manual_seed(seed)
        self.rows, self.whole = {}, whole
        for table, shape in self.model.tables(ENTITIES, RELATIONS).items():
            self.rows[table] = torch.empty(shape).uniform_(-1, 1, generator=random)
            if whole:  # small whole numbers: every sum is exact, many are equal
                self.rows[table] = torch.randint(-1, 2, shape, generator=random).float()
        self.tables = MemoryTables(self.rows, {}, "sgd")
        doubles = {table: rows.double() for table, rows in self.rows.items()}
        self.score = {}
        for h, r, t in product(range(ENTITIES), range(RELATIONS), range(ENTITIES)):
            head, relation, tail = doubles["entity"][h], doubles["relation"][r], doubles["entity"][t]
            if name == "Weighted":
                value = (head * relation.tanh() * tail.roll(-1)).sum()
            else:
                projection = doubles["projection"][r] if "projection" in doubles else None
                value = formulas.score(name, head, relation, tail, projection)
            self.score[h, r, t] = float(value)

    def ask(self, **options: int) -> Predictor:
        return Predictor(self.model, self.tables, ENTITIES, RELATIONS, **options)

    def sorted(self, triples: Sequence[Triple], k: int) -> list[Triple]:
        """The k best, equal ones (but for the last digits) by ids."""
        return sorted(triples, key=lambda each: (-round(self.score[each], 9), each))[:k]

    def kind(self, triple: Triple) -> Triple:
        """The triple, or one of the two that must score the same."""
        h, r, t = triple
        return (min(h, t), r, max(h, t)) if self.model.name == "DistMult" and not self.whole else triple

    def same(self, blocks: Iterator[Answers] | list[Answers], expected: list[list[Triple]]) -> None:
        """The answers are the expected triples in order, and have their scores.

        Two triples that DistMult, which is symmetric, makes equal may differ in their last digit: either may come first.
        """
        answers = list(blocks)
        joined = Answers(*(np.concatenate([each[i] for each in answers]) for i in range(5)))
        triples = list(zip(joined.heads.tolist(), joined.relations.tolist(), joined.tails.tolist(), strict=True))
        assert np.allclose(joined.scores, [self.score[each] for each in triples], rtol=1e-9, atol=1e-9)
        assert [self.kind(each) for each in triples] == [self.kind(triple) for group in expected for triple in group]
        assert len(set(zip(joined.questions.tolist(), triples, strict=True))) == len(triples)
        assert joined.questions.tolist() == [number for number, group in enumerate(expected) for _ in group]
        better = np.diff(joined.scores) > 0
        assert not better[np.diff(joined.questions) == 0].any()


LISTS = {"head": [3, 0, 7, 3, 19], "relation": [2, 0], "tail": [22, 5, 1, 8, 9, 10]}
FORMATS = ("h_r_t", "h_r_*", "h_*_t", "*_r_t", "h_*_*", "*_r_*", "*_*_t")


@functools.cache
def world_of(name: str, seed: int = 1, *, whole: bool = False) -> World:
    """One that nobody changes, for the scores of all triples take longer than any search."""
    return World(name, seed, whole=whole)


@pytest.fixture(params=["numba", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "WANTED", request.param)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", [*formulas.NAMES, "Weighted"])
def test_every_model_format_and_mode_is_a_sort_of_all_scores(name: str, format: str) -> None:
    world = world_of(name)
    lists = {key: LISTS[key] if letter != "*" else None for key, letter in zip(LISTS, format.split("_"), strict=True)}
    every = {"head": range(ENTITIES), "relation": range(RELATIONS), "tail": range(ENTITIES)}
    asked = {key: every[key] if ids is None else ids for key, ids in lists.items()}
    given = [None if ids is None else np.array(ids) for ids in lists.values()]
    for each in ("all", "head", "relation", "tail"):
        keys = [None] if each == "all" else asked[each]
        expected = []
        for key in keys:
            sets = [[key] if each == name and key is not None else sorted(set(ids)) for name, ids in asked.items()]
            expected.append(world.sorted(list(product(*sets)), 5))
        world.same(world.ask().best(*given, 5, each=each), expected)


@given(
    st.sampled_from(["TransE_l2", "TransE_l1", "DistMult", "TransR", "RESCAL"]),
    st.integers(0, 2**32),
    st.sampled_from(["all", "head", "relation", "tail"]),
    st.integers(1, 700),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 30),
)
@settings(max_examples=25)
def test_neither_blocks_nor_threads_nor_ties_change_an_answer(
    name: str, seed: int, each: str, k: int, threads: int, queries: int, candidates: int
) -> None:
    world = world_of(name, seed % 3, whole=True)
    rng = np.random.default_rng(seed)
    lists = [rng.integers(0, count, rng.integers(1, 12)) for count in (ENTITIES, RELATIONS, ENTITIES)]
    sets = [sorted(set(ids.tolist())) for ids in lists]
    at = {"all": None, "head": 0, "relation": 1, "tail": 2}[each]
    expected = []
    for key in [None] if at is None else lists[at].tolist():
        expected.append(world.sorted(list(product(*([key] if place == at else ids for place, ids in enumerate(sets)))), k))
    asked = world.ask(threads=threads, query_block=queries, candidate_block=candidates)
    world.same(asked.best(*lists, k, each=each), expected)


@pytest.mark.parametrize("name", ["RotatE", "TransR", "DistMult"])
@pytest.mark.parametrize("asked", [*Side, "both"])
def test_queries_side_by_side_leave_out_what_is_known(kernels: None, name: str, asked: Side | str) -> None:
    world = world_of(name)
    rng = np.random.default_rng(0)
    triples = np.stack([rng.integers(0, n, 300) for n in (ENTITIES, RELATIONS, ENTITIES)], axis=1)
    known = KnownTriples.build([triples], ENTITIES, RELATIONS)
    listed = set(map(tuple, triples.tolist()))
    anchors, relations = rng.integers(0, ENTITIES, 40), rng.integers(0, RELATIONS, 40)
    headless = rng.random(40) < 0.4 if isinstance(asked, str) else np.full(40, asked is Side.HEAD)
    sides = [Side.HEAD if missing else Side.TAIL for missing in headless.tolist()]
    given = headless if isinstance(asked, str) else asked
    for among in (None, np.array([9, 2, 2, 20])):
        found = world.ask(query_block=7, candidate_block=10).top(given, anchors, relations, 6, among=among, known=known)
        for row, (side, anchor, relation) in enumerate(zip(sides, anchors.tolist(), relations.tolist(), strict=True)):
            each = range(ENTITIES) if among is None else sorted(set(among.tolist()))
            possible = [side.pick((e, relation, anchor), (anchor, relation, e)) for e in each]
            best = world.sorted([triple for triple in possible if triple not in listed], found.ids.shape[1])
            ids = [side.pick(triple[0], triple[2]) for triple in best]
            assert found.ids[row].tolist() == ids + [-1] * (found.ids.shape[1] - len(ids))
            assert np.allclose(found.scores[row, : len(ids)], [world.score[triple] for triple in best])
            assert (found.scores[row, len(ids) :] == -np.inf).all()


def test_ends_for_another_number_of_queries_are_refused(kernels: None) -> None:
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match=r"^side: 2 for 1 queries$"):
        world_of("DistMult").ask().top(np.array([True, False]), one, one, 3)


@pytest.mark.parametrize("name", formulas.NAMES)
def test_relations_between_two_entities(name: str) -> None:
    world = world_of(name)
    heads, tails = np.array([0, 5, 5]), np.array([7, 5, 9])
    known = KnownTriples.build([np.array([[0, 1, 7], [5, 3, 9], [5, 2, 1]])], ENTITIES, RELATIONS)
    found = world.ask(query_block=2).top_relations(heads, tails, 9, known=known)
    for row, (h, t) in enumerate(zip(heads.tolist(), tails.tolist(), strict=True)):
        possible = [(h, r, t) for r in range(RELATIONS) if (h, r, t) not in {(0, 1, 7), (5, 3, 9)}]
        best = world.sorted(possible, RELATIONS)
        assert found.ids[row, : len(best)].tolist() == [r for _, r, _ in best]
        assert np.allclose(found.scores[row, : len(best)], [world.score[triple] for triple in best])
    assert found.ids.shape == (3, RELATIONS) and (found.ids[[0, 2], -1] == -1).all() and (found.ids[1] >= 0).all()


@given(
    st.sampled_from(["TransE_l2", "TransE_l1", "DistMult", "ComplEx", "SimplE", "RESCAL", "RotatE"]),
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 9),
    st.booleans(),
)
@settings(max_examples=40)
def test_neither_ties_nor_blocks_change_the_best_relations(
    name: str, seed: int, k: int, threads: int, queries: int, whole: bool
) -> None:
    world, rng = world_of(name, seed % 3, whole=whole and name != "RotatE"), np.random.default_rng(seed)
    heads, tails = rng.integers(0, ENTITIES, (2, 12))
    among = rng.integers(0, RELATIONS, rng.integers(1, 6)) if seed % 2 else None
    triples = np.stack([rng.integers(0, n, 400) for n in (ENTITIES, RELATIONS, ENTITIES)], axis=1)
    known = KnownTriples.build([triples], ENTITIES, RELATIONS) if seed % 3 else None
    left_out = set(map(tuple, triples.tolist())) if known is not None else set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relations, "RELATIONS", 1 + seed % 3)
        found = world.ask(threads=threads, query_block=queries).top_relations(heads, tails, k, among=among, known=known)
    each = sorted({*(range(RELATIONS) if among is None else among.tolist())})
    for row, (h, t) in enumerate(zip(heads.tolist(), tails.tolist(), strict=True)):
        best = world.sorted([(h, r, t) for r in each if (h, r, t) not in left_out], min(k, len(each)))
        blanks = min(k, len(each)) - len(best)
        assert found.ids[row].tolist() == [r for _, r, _ in best] + [-1] * blanks
        assert np.allclose(found.scores[row, : len(best)], [world.score[each] for each in best], rtol=1e-9, atol=1e-9)
        assert (found.scores[row, len(best) :] == -np.inf).all()


@pytest.mark.parametrize("name", formulas.NAMES)
def test_triples_side_by_side(name: str) -> None:
    world, rng = world_of(name), np.random.default_rng(3)
    columns = [rng.integers(0, n, 50) for n in (ENTITIES, RELATIONS, ENTITIES)]
    triples = list(zip(*(column.tolist() for column in columns), strict=True))
    assert np.allclose(world.ask(query_block=8).score(*columns), [world.score[each] for each in triples], rtol=1e-9, atol=1e-9)
    world.same([world.ask().best_of(*columns, 12)], [world.sorted(triples, 12)])


def test_nothing_asked_is_nothing_answered() -> None:
    predictor, nobody = world_of("RotatE").ask(), np.zeros(0, np.int64)
    for lists, each in (((nobody, None, None), "head"), ((np.array([1]), nobody, None), "all"), ((None, None, nobody), "head")):
        (block,) = predictor.best(*lists, 5, each=each)
        assert [len(column) for column in block] == [0] * 5
    assert predictor.top(Side.TAIL, nobody, nobody, 3).ids.shape == (0, 3)
    assert predictor.top_relations(nobody, nobody, 9).ids.shape == (0, RELATIONS)
    assert predictor.score(nobody, nobody, nobody).shape == (0,)
    assert len(predictor.best_of(nobody, nobody, nobody, 2).heads) == 0


def test_a_collapsed_model_is_answered_by_id() -> None:
    world = World("TransE_l1", whole=True)
    world.rows["entity"][:] = 1.0
    found = world.ask(candidate_block=4).top(Side.TAIL, np.zeros(3), np.zeros(3), 5)
    assert found.ids.tolist() == [[0, 1, 2, 3, 4]] * 3 and len(set(found.scores.ravel().tolist())) == 1


def test_huge_numbers_are_compared_exactly() -> None:
    world = World("DistMult")
    for rows in world.rows.values():
        rows *= 1e13  # products overflow float32
    found = world.ask().top(Side.TAIL, np.array([1]), np.array([2]), 3)
    assert [(1, 2, t) for t in found.ids[0].tolist()] == world.sorted([(1, 2, t) for t in range(ENTITIES)], 3)
    assert math.isclose(found.scores[0, 0], 1e39 * world.score[1, 2, int(found.ids[0, 0])], rel_tol=1e-5)


def test_what_cannot_be_is_refused() -> None:
    world = World("DistMult")
    with pytest.raises(IndexError, match="id 23 is out of range, allowed: 0 to 22"):
        world.ask().top(Side.TAIL, np.array([0, 23]), np.array([0, 0]), 1)
    with pytest.raises(IndexError, match="id -1"):
        world.ask().score(np.array([0]), np.array([-1]), np.array([0]))
    world.rows["entity"][4, 2] = torch.nan
    with pytest.raises(KgdistError, match="table entity, row 4"):
        world.ask(threads=2, query_block=1).top(Side.TAIL, np.array([0, 1]), np.array([0, 0]), 1)
