"""Triples divided: each has a part, parts are even, and few entities are in several."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import KgdistError
from kgdist.kernels import vertex_cuts as loops
from kgdist.partition import edges, graph
from kgdist.partition.edges import divide_triples, scratch
from tests.partition.worlds import communities, graphs

METHODS = ("hdrf", "dbh", "random", "metis")


def divided(triples: np.ndarray, entities: int, parts: int, method: str, seed: int = 0) -> np.ndarray:
    out = np.full(len(triples), loops.OPEN)
    divide_triples(triples, entities, 1 + int(triples[:, 1].max()), parts, out, method=method, seed=seed)
    return out


def replication(triples: np.ndarray, out: np.ndarray) -> float:
    """By sets: how many parts an entity with triples is in, on average."""
    there = {(int(entity), int(part)) for (head, _, tail), part in zip(triples, out, strict=True) for entity in (head, tail)}
    return len(there) / len({entity for entity, _ in there})


@settings(max_examples=40)
@given(graphs(), st.integers(1, 5), st.sampled_from(METHODS[:3]), st.integers(0, 3))
def test_every_triple_has_one_part(world: tuple[int, int, np.ndarray], parts: int, method: str, seed: int) -> None:
    entities, _, triples = world
    out = divided(triples, entities, parts, method, seed)
    assert (out < parts).all() and (out == divided(triples, entities, parts, method, seed)).all()
    if method == "hdrf":
        assert np.bincount(out).max() <= max(-(-len(triples) // parts), edges.SLACK * len(triples) / parts)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [2, 5])
def test_methods_cut_better_than_chance_and_evenly(method: str, parts: int) -> None:
    triples = communities(degree=12)
    out = divided(triples, 400, parts, method)
    chance = replication(triples, np.random.default_rng(1).integers(0, parts, len(triples)))
    assert replication(triples, out) < {"hdrf": 0.75, "dbh": 0.98, "random": 1.01, "metis": 0.8}[method] * chance
    assert graph.uneven(np.bincount(out, minlength=parts).tolist()) <= {"hdrf": 1.02, "metis": 1.11}.get(method, 1.3)
    if method in ("dbh", "random"):
        assert (out != divided(triples, 400, parts, method, seed=1)).any()


def test_a_triple_goes_with_its_tail_by_metis() -> None:
    triples = communities()
    out = divided(triples, 400, 3, "metis")
    homes = {int(tail): part for tail, part in zip(triples[:, 2], out, strict=True)}
    assert all(homes[int(tail)] == part for tail, part in zip(triples[:, 2], out, strict=True))


def test_dbh_hashes_the_end_of_fewer_triples() -> None:
    spokes = np.array([(0, 0, i) for i in range(1, 200)], np.int32)
    out = divided(spokes, 200, 4, "dbh")
    assert len(set(out.tolist())) == 4  # a hub is replicated, and what hangs on it is not
    assert replication(spokes, out) == pytest.approx((4 + 199) / 200)


def place(triples: np.ndarray, ends: np.ndarray, parts: int, limit: int) -> list[int]:
    """HDRF as in the paper's section 3, with whole degrees."""
    replicas: dict[int, set[int]] = {}
    size, found = [0] * parts, []
    for head, _, tail in triples.tolist():
        share = ends[head] / max(1, ends[head] + ends[tail])

        def score(part: int, head: int = head, tail: int = tail, share: float = share) -> float:
            here = loops.BALANCE * (max(size) - size[part]) / (1 + max(size) - min(size))
            here += (1 + (1 - share)) * (part in replicas.get(head, ()))
            return float(here + (1 + share) * (part in replicas.get(tail, ())))

        part = max((part for part in range(parts) if size[part] < limit), key=score)
        for entity in (head, tail):
            replicas.setdefault(entity, set()).add(part)
        size[part] += 1
        found.append(part)
    return found


@given(graphs(), st.integers(2, 5), st.booleans())
def test_scores_are_those_of_hdrf(world: tuple[int, int, np.ndarray], parts: int, tight: bool) -> None:
    entities, relations, triples = world
    ends = graph.degrees(triples, entities, relations).ends
    limit = -(-len(triples) // parts) if tight else len(triples)
    out, size = np.full(len(triples), loops.OPEN), np.zeros(parts, np.int64)
    loops.place(triples, ends, limit, np.zeros(entities, np.uint64), size, out)
    assert out.tolist() == place(triples, ends, parts, limit)
    assert size.tolist() == np.bincount(out, minlength=parts).tolist()


@given(graphs(), st.integers(2, 4))
def test_homes_have_room_and_attract(world: tuple[int, int, np.ndarray], parts: int) -> None:
    entities, relations, triples = world
    ends = graph.degrees(triples, entities, relations).ends
    home = np.arange(entities).astype(np.uint8) % parts
    votes = np.zeros((entities, parts), np.int32)
    loops.vote(triples, home, votes)
    expected = np.zeros_like(votes)
    for head, _, tail in triples.tolist():
        if head != tail:
            expected[head, home[tail]] += 1
            expected[tail, home[head]] += 1
    assert (votes == expected).all()
    load = np.bincount(home, weights=ends, minlength=parts).astype(np.int64)
    limit, before = int(load.max()), home.copy()
    moved = loops.move(ends, votes, limit, load, home)
    assert moved == (home != before).sum() and load.max() <= limit
    assert load.tolist() == np.bincount(home, weights=ends, minlength=parts).tolist()


def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    triples = communities(entities=80)
    whole = [divided(triples, 80, 3, method) for method in ("hdrf", "dbh", "metis")]
    monkeypatch.setattr(graph, "PIECE", 100)
    monkeypatch.setattr(edges, "PIECE", 100)
    for method, expected in zip(("hdrf", "dbh", "metis"), whole, strict=True):
        assert (divided(triples, 80, 3, method) == expected).all()
    assert (divided(triples, 80, 3, "random") < 3).all()


def test_64_parts_are_the_bits_of_a_word() -> None:
    triples = communities(degree=20)
    for method in ("hdrf", "random"):
        assert set(divided(triples, 400, 64, method).tolist()) == set(range(64))


def test_ids_out_of_range_are_refused() -> None:
    with pytest.raises(KgdistError, match="an id out of range"):
        divided(np.array([(0, 0, 9)], np.int32), 5, 2, "hdrf")


def test_scratch_is_an_array_that_goes() -> None:
    with scratch(1000) as array:
        array[:] = 7
        assert array.dtype == np.uint8 and array.sum() == 7000
