"""Laws that hold for every score function: one score on both sides, and the gradients of the plain formula."""

from __future__ import annotations

import pytest
import torch

from kgdist.base.types import RelationRows, Side
from kgdist.models.base import Model
from kgdist.models.registry import make_model
from tests import formulas


def rows_of(model: Model, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Random tables: 12 entities, 4 relations."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=generator).to(dtype)
        for name, shape in model.tables(12, 4).items()
    }


def model_named(name: str) -> Model:
    return make_model(name, gamma=formulas.GAMMA, **formulas.sizes(name))


def relation_rows(tables: dict[str, torch.Tensor], relations: torch.Tensor) -> RelationRows:
    unique, index = torch.unique(relations, return_inverse=True)
    return RelationRows({name: rows[unique] for name, rows in tables.items() if name != "entity"}, index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("name", formulas.NAMES)
def test_true_entity_among_candidates_scores_as_the_positive_and_as_the_formula(
    name: str, side: Side, dtype: torch.dtype
) -> None:
    model = model_named(name)
    tables = rows_of(model, dtype, seed=1)
    heads, relations, tails = torch.tensor([[0, 1, 2, 3, 4, 0, 7], [1, 0, 3, 1, 1, 2, 3], [5, 6, 2, 0, 4, 5, 9]])
    relation = relation_rows(tables, relations)
    entity = tables["entity"]
    queries = model.queries(side.pick(head=entity[tails], tail=entity[heads]), relation, side)
    positive = model.pair(queries, entity[side.pick(head=heads, tail=tails)], relation, side)
    chunk = 3  # 7 positives: the last chunk is ragged
    scores = model.cross(queries, entity.expand(3, -1, -1), relation, chunk, side)
    assert scores.shape == (7, 12)
    tolerance = {"rtol": 1e-4, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(scores[torch.arange(7), side.pick(head=heads, tail=tails)], positive, **tolerance)
    for i, (h, r, t) in enumerate(zip(heads.tolist(), relations.tolist(), tails.tolist(), strict=True)):
        for candidate in range(12):
            triple = side.pick(head=(candidate, r, t), tail=(h, r, candidate))
            projection = tables["projection"][r] if "projection" in tables else None
            expected = formulas.score(name, entity[triple[0]], tables["relation"][r], entity[triple[2]], projection)
            torch.testing.assert_close(scores[i, candidate], expected, **tolerance)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("name", formulas.NAMES)
def test_gradients_are_those_of_the_formula_in_float64(name: str, side: Side) -> None:
    model = model_named(name)
    tables = rows_of(model, torch.float32, seed=2)
    heads, relations, tails = torch.tensor([[0, 1, 2, 3, 4], [1, 0, 3, 1, 1], [5, 6, 7, 0, 8]])
    upstream = torch.empty(5, 13).uniform_(-1, 1, generator=torch.Generator().manual_seed(3))

    leaves = {key: value.clone().requires_grad_() for key, value in tables.items()}
    entity, relation = leaves["entity"], relation_rows(leaves, relations)
    queries = model.queries(side.pick(head=entity[tails], tail=entity[heads]), relation, side)
    positive = model.pair(queries, entity[side.pick(head=heads, tail=tails)], relation, side)
    negative = model.cross(queries, entity.expand(2, -1, -1).contiguous(), relation, 3, side)
    (torch.cat([positive[:, None], negative], 1) * upstream).sum().backward()

    plain = {key: value.double().requires_grad_() for key, value in tables.items()}
    total = torch.zeros((), dtype=torch.float64)
    for i, (h, r, t) in enumerate(zip(heads.tolist(), relations.tolist(), tails.tolist(), strict=True)):
        triples = [(h, t)] + [side.pick(head=(c, t), tail=(h, c)) for c in range(12)]
        for column, (head, tail) in enumerate(triples):
            projection = plain["projection"][r] if "projection" in plain else None
            value = formulas.score(name, plain["entity"][head], plain["relation"][r], plain["entity"][tail], projection)
            total = total + value * upstream[i, column].double()
    total.backward()
    for key, leaf in leaves.items():
        expected = plain[key].grad
        assert leaf.grad is not None and expected is not None
        torch.testing.assert_close(leaf.grad.double(), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["TransE_l1", "TransE_l2", "RotatE", "TransR", "PairRE"])
def test_a_zero_distance_has_a_finite_gradient(name: str) -> None:
    model = model_named(name)
    entity = torch.zeros(3, model.entity_dim, requires_grad=True)
    rows = {key: torch.zeros(1, shape[1], requires_grad=True) for key, shape in model.tables(3, 1).items() if key != "entity"}
    relation = RelationRows(rows, torch.zeros(3, dtype=torch.int64))
    queries = model.queries(entity, relation, Side.TAIL)
    (
        model.pair(queries, entity, relation, Side.TAIL).sum() + model.cross(queries, entity[None], relation, 3, Side.TAIL).sum()
    ).backward()
    assert entity.grad is not None and bool(entity.grad.isfinite().all())
