"""What an entity begins with is the mean over its attributes, by hand and by dense matrices; the missing are not there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kgdist.nn as dglnn
from kgdist.attributes.attribute_folder import NumbersOfRows, OnesOfRows

ROWS, ENTITIES, DIM = 9, 12, 5


def ones(width: int, most: int, seed: int) -> OnesOfRows:
    """Up to `most` ones a row, some rows without any."""
    rng = np.random.default_rng(seed)
    columns = [np.sort(rng.choice(width, rng.integers(most + 1), replace=False)) for _ in range(ROWS)]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in columns])])
    return OnesOfRows(width, starts, np.concatenate(columns).astype(np.int32))


def numbers(width: int, seed: int) -> NumbersOfRows:
    rng = np.random.default_rng(seed)
    present = rng.random(ROWS) < 0.6
    return NumbersOfRows(width, present, rng.normal(size=(ROWS, width)).astype(np.float32) * present[:, None])


ATTRIBUTES = {"born": ones(4, 1, 1), "types": ones(7, 4, 2), "words": numbers(3, 3), "nothing": ones(2, 0, 4)}
WHERE = np.array([3, -1, 0, 1, 2, -1, 4, 5, 8, 7, 6, -1])  # entity -> row


def dense(entity: int) -> dict[str, np.ndarray]:
    """The features of an entity by attribute; a row of several ones counts as their mean."""
    found = {}
    if (row := WHERE[entity]) >= 0:
        for name, each in ATTRIBUTES.items():
            if isinstance(each, NumbersOfRows):
                if each.present[row]:
                    found[name] = each.values[row]
            elif len(columns := each.indices[each.starts[row] : each.starts[row + 1]]):
                found[name] = np.bincount(columns, minlength=each.width).astype(np.float32) / len(columns)
    return found


def test_the_mean_over_the_attributes_that_are_there() -> None:
    made = dglnn.AttributeEmbedding(ATTRIBUTES, WHERE, DIM)
    assert [tuple(matrix.shape) for matrix in made.matrices] == [(4, 5), (7, 5), (3, 5), (2, 5)]
    entities = np.array([4, 1, 4, *range(ENTITIES)])
    found, known = made(entities)
    twins = [matrix.detach().clone().requires_grad_() for matrix in made.matrices]
    want = []
    for entity in entities:
        terms = [torch.from_numpy(row) @ twin for (name, twin) in zip(ATTRIBUTES, twins, strict=True)
                 for key, row in dense(entity).items() if key == name]  # fmt: skip
        want.append(torch.stack(terms).mean(0) if terms else torch.zeros(DIM))
    torch.testing.assert_close(found, torch.stack(want))
    assert known.tolist() == [bool(dense(entity)) for entity in entities]
    assert 0 < known[3:].sum() < ENTITIES and not known[4]  # entity 1 has no row
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (found * weights).sum().backward()
    (torch.stack(want) * weights).sum().backward()
    for matrix, twin in zip(made.matrices, twins, strict=True):
        torch.testing.assert_close(matrix.grad, twin.grad if twin.grad is not None else torch.zeros_like(twin))
    assert not made.matrices[3].grad.any()


@pytest.mark.parametrize("entities", [[], [1, 5]])
def test_of_nobody_and_of_entities_without_any(entities: list[int]) -> None:
    found, known = dglnn.AttributeEmbedding(ATTRIBUTES, WHERE, DIM)(np.array(entities, np.int64))
    assert found.shape == (len(entities), DIM) and not found.any() and not known.any()


def test_without_attributes_all_have_none() -> None:
    found, known = dglnn.AttributeEmbedding({}, WHERE, DIM)(np.arange(3))
    assert found.shape == (3, DIM) and not known.any()
