"""Compiled queries against the models' own `query` in float64 with autograd."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.types import Side
from kgdist.kernels.query import KINDS, VectorQuery, _turn
from kgdist.models.base import Model
from kgdist.models.registry import MODELS, make_model

F = np.float32
BY_KIND = {kind: next(name for name, model in MODELS.items() if model.kernel == kind) for kind in KINDS}


def model_of(kind: str, width: int, gamma: float) -> Model:
    relation = width // 2 if kind == "rotate" else width
    return make_model(BY_KIND[kind], hidden_dim=relation, entity_dim=width, relation_dim=relation, gamma=gamma)


@st.composite
def uses(draw: st.DrawFn) -> tuple[int, Callable[..., np.ndarray], np.ndarray, np.ndarray, int, int]:
    """Half a width, a source of numbers, int64[B] anchors among U rows, int64[B] relations among V, U, V."""
    size, rows, relations = draw(st.integers(0, 20)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    half = draw(st.one_of(st.integers(1, 40), st.sampled_from([64, 100, 128, 255, 256])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scales = np.array(draw(st.sampled_from([[1.0], [1.0, 0.0], [1e12, 1.0], [1e-15, 1.0]])))

    def numbers(*shape: int) -> np.ndarray:
        return (rng.normal(0, 1, shape) * rng.choice(scales, (shape[0], 1))).astype(F)

    return half, numbers, rng.integers(rows, size=size), rng.integers(relations, size=size), rows, relations


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("kind", KINDS)
@given(uses(), st.booleans())
@settings(max_examples=40)
def test_values_and_gradients_are_those_of_the_model(kind: str, side: Side, given: tuple, odd: bool) -> None:
    half, numbers, anchors, index, count, relation_count = given
    width = half if kind in ("translate", "diagonal") and odd else 2 * half
    model = model_of(kind, width, 4.0)
    entities = numbers(count, width)
    if kind == "rotate":  # phases of some turns, and of none
        relations = np.random.default_rng(half).uniform(-3, 3, (relation_count, half)) * model.init_range * (count % 2)
        relations = relations.astype(F)
    else:
        relations = numbers(relation_count, width)
    query = VectorQuery(kind, side, entities, anchors, relations, index, scale=model.phase_scale)
    got, upstream = np.full((len(anchors), width), np.nan, F), numbers(max(1, len(anchors)), width)[: len(anchors)]
    query.forward(got)
    before = numbers(count, width)
    grad_entities, grad_uses = before.copy(), np.full((len(anchors), relations.shape[1]), np.nan, F)
    query.backward(upstream, grad_entities, grad_uses)

    leaf = torch.from_numpy(entities).double().requires_grad_()
    use = torch.from_numpy(relations[index]).double().requires_grad_()
    want = model.query(leaf[torch.from_numpy(anchors)], use, side)
    want_entities, want_uses = torch.autograd.grad(want, (leaf, use), torch.from_numpy(upstream).double())

    def near(got: np.ndarray, want: torch.Tensor, size: np.ndarray) -> None:
        """Within some roundings of numbers of this size."""
        assert (np.abs(got - want.detach().numpy()) <= 3e-6 * size + 1e-37).all()

    def largest(array: np.ndarray) -> np.ndarray:
        return np.abs(array.astype(float)).max(1, initial=0.0, keepdims=True)

    strength = {"translate": np.ones(1), "rotate": np.ones(1)}.get(kind, largest(relations)[index])
    extra = largest(relations)[index] if kind == "translate" else 0.0
    near(got, want, strength * largest(entities)[anchors] + extra)
    sums = np.abs(before).astype(float)
    np.add.at(sums, anchors, strength * largest(upstream) + 0 * upstream)
    near(grad_entities, want_entities + torch.from_numpy(before), sums)
    push = {"translate": np.ones(1), "rotate": largest(entities)[anchors] * model.phase_scale}.get(
        kind, largest(entities)[anchors]
    )
    near(grad_uses, want_uses, push * largest(upstream))


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("kind", KINDS)
def test_broken_rows_show_in_their_own_queries_alone(kind: str, side: Side) -> None:
    model = model_of(kind, 40, 4.0)
    entities, relations = np.ones((3, 40), F), np.ones((2, model.relation_dim), F)
    anchors, index = np.array([0, 1, 2, 1]), np.array([0, 0, 0, 1])
    for array, row, hit in ((entities, 1, [1, 3]), (relations, 1, [3])):
        for bad in (np.nan, np.inf):
            broken = array.copy()
            broken[row, 3] = bad
            given = (broken, anchors, relations, index) if array is entities else (entities, anchors, broken, index)
            out = np.zeros((4, 40), F)
            with np.errstate(invalid="ignore"):
                VectorQuery(kind, side, *given, scale=1.0).forward(out)
            assert sorted(set(np.nonzero(~np.isfinite(out))[0])) == hit


@pytest.mark.parametrize("width", [1, 5, 16, 200])
def test_cosines_and_sines_of_all_phases(width: int) -> None:
    """From none through every quarter to many turns, and no phase at all."""
    rng = np.random.default_rng(width)
    scales = np.array([1e-30, 1e-3, 1.0, 4.0, 100.0, 1e4, 1e6])
    quarters = np.arange(-9, 10)[:, None] * (np.pi / 4) + np.zeros(width)
    phases = np.concatenate([rng.normal(0, 1, (7, width)) * scales[:, None], quarters, np.zeros((1, width))]).astype(F)
    out = np.full((len(phases), 2 * width), np.nan, F)
    _turn(F(1), phases, out)
    assert np.abs(out[:, :width] - np.cos(phases.astype(float))).max() < 2e-7
    assert np.abs(out[:, width:] - np.sin(phases.astype(float))).max() < 2e-7
    for bad in (np.nan, np.inf, -np.inf):
        _turn(F(1), np.full((1, width), bad, F), out[:1])
        assert np.isnan(out[0]).all()
