"""Queries against every entity, compiled: any tiles, slabs and threads give what float64 gives, however far apart scores are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.types import Excluded
from kgdist.kernels import full
from kgdist.kernels.comparators import COMPARATORS
from kgdist.kernels.dropout import Dropout
from kgdist.kernels.full import Asked, Everybody, Rule

F = np.float32
NONE = Dropout(0.0, 0, 0)


def of_matrix(out: np.ndarray, rng: np.random.Generator) -> Excluded:
    """What says bool[queries, entities]: every two queries share a list, each with its own answers."""
    lists = rng.permutation(len(out)) // 2
    known = [np.flatnonzero(out[lists == n].any(0)) for n in range(lists.max() + 1)]
    own = [np.setdiff1d(known[number], np.flatnonzero(row)) for number, row in zip(lists, out, strict=True)]
    parts = ((np.cumsum([0, *map(len, rows)]), np.concatenate(rows).astype(np.int32)) for rows in (known, own))
    return Excluded(lists, *next(parts), *next(parts))


def matrix_of(excluded: Excluded, entities: int) -> np.ndarray:
    """bool[queries, entities], by sets."""
    out = np.zeros((len(excluded.lists), entities), bool)
    for i, number in enumerate(excluded.lists):
        known = excluded.entities[excluded.starts[number] : excluded.starts[number + 1]]
        own = excluded.own[excluded.own_starts[i] : excluded.own_starts[i + 1]]
        out[i, sorted(set(known.tolist()) - set(own.tolist()))] = True
    assert np.array_equal(out.sum(1), excluded.counts())
    return out


def case(seed: int, entities: int, queries: int, width: int, spread: float) -> tuple[torch.Tensor, Asked]:
    """Rows, and queries that exclude some entities."""
    rng = np.random.default_rng(seed)
    table, rows = (torch.from_numpy(rng.normal(0, spread, (n, width)).astype(F)) for n in (entities, queries))
    out = rng.random((queries, entities)) < 0.2 * (seed % 2)
    out[:, 0] = False  # somebody is left
    excluded = of_matrix(out, rng) if seed % 2 else None
    true = rng.normal(0, spread, queries).astype(F)
    return table, Asked(rows, true, rng.uniform(0.1, 2, queries).astype(F), excluded)


def plain(name: str, rule: Rule, table: torch.Tensor, asked: Asked) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Value and gradients by autograd in float64."""
    q, c = (each.double().requires_grad_() for each in (asked.rows, table))
    scores = (COMPARATORS[name].cross(q[None], c[None])[0] + rule.offset).clamp(-rule.limit, rule.limit)
    counts = torch.ones(scores.shape, dtype=torch.bool)
    if asked.excluded is not None:
        counts = torch.from_numpy(~matrix_of(asked.excluded, len(table)))
    mean = scores.masked_fill(~counts, 0.0).sum(1) / (counts.sum(1) if rule.softmax else len(table))
    if rule.softmax:
        values = scores.masked_fill(~counts, -math.inf).logsumexp(1)
    else:
        values = torch.nn.functional.softplus(scores).masked_fill(~counts, 0.0).sum(1)
    total = (torch.from_numpy(asked.weights).double() * (values - rule.smoothing * mean)).sum()
    return total.item(), *torch.autograd.grad(total, (q, c))


def found(
    name: str, rule: Rule, table: torch.Tensor, asked: Asked, threads: int = 1, dropout: Dropout = NONE
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """The same by the loops; what is written was NaN before."""
    grad_q, grad_c = torch.full_like(asked.rows, math.nan), torch.full_like(table, math.nan)
    value = Everybody(COMPARATORS[name], rule, threads=threads, dropout=dropout)(table, asked, 3, grad_q, grad_c)
    return value, grad_q, grad_c


RULES = st.builds(
    Rule, softmax=st.booleans(), offset=st.sampled_from([0.0, 4.0]), limit=st.sampled_from([math.inf, 2.0]),
    smoothing=st.sampled_from([0.0, 0.2]),
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(COMPARATORS))
@given(RULES, st.integers(0, 999), st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.sampled_from([64, 10**6]))
@settings(max_examples=40)
def test_any_slabs_tiles_and_threads_give_what_float64_gives(
    name: str, rule: Rule, seed: int, entities: int, queries: int, threads: int, kept: int
) -> None:
    table, asked = case(seed, entities, queries, 6, 0.5)
    want = plain(name, rule, table, asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(full, "KEPT", kept)
        patch.setattr(full, "LEAST", 1 + seed % 7)
        patch.setattr(full, "TILE", 1)
        got = found(name, rule, table, asked, threads)
    usual = found(name, rule, table, asked)
    assert got[0] == pytest.approx(want[0], rel=2e-6, abs=1e-6)
    assert got[0] == pytest.approx(usual[0], rel=1e-6, abs=1e-6)
    for mine, theirs, again in zip(got[1:], want[1:], usual[1:], strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(mine, again, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("far", [-5000.0, -70.0, 0.0, 70.0, 5000.0])
@pytest.mark.parametrize("low", [False, True])
def test_scores_far_from_the_true_one_lose_nothing(far: float, low: bool) -> None:
    """Exponentials are taken against the true entity's score, which may be far below others, or above all that count."""
    table = torch.tensor([[far], [far - 1], [far - 3]])
    excluded = of_matrix(np.array([[False] * len(table), [True] + [False] * (len(table) - 1)]), np.random.default_rng(0))
    asked = Asked(torch.ones(2, 1), np.zeros(2, F), np.array([1.0, 0.5], F), excluded)
    comparator = COMPARATORS["dot"].in_bfloat16() if low else COMPARATORS["dot"]
    grad_q, grad_c = torch.empty(2, 1), torch.empty(3, 1)
    value = Everybody(comparator, Rule(True, 0.0, math.inf, 0.0), threads=1, dropout=NONE)(table, asked, 0, grad_q, grad_c)
    want = plain("dot", Rule(True, 0.0, math.inf, 0.0), table, asked)
    if far > -80 and not (
        low and far > 1000
    ):  # below, what is left of the others beside the true entity is next to nothing, and may be nothing
        assert value == pytest.approx(want[0], rel=2e-2 if low else 1e-5, abs=0.02 if low else 1e-5)
        torch.testing.assert_close(grad_c.double(), want[2], rtol=3e-2 if low else 1e-4, atol=0.05 if low else 1e-5)
    assert math.isfinite(value) and bool(grad_c.isfinite().all())


@pytest.mark.parametrize("softmax", [True, False])
def test_bfloat16_is_near(softmax: bool) -> None:
    table, asked = case(1, 500, 60, 40, 0.3)
    rule = Rule(softmax, 0.0, math.inf, 0.0)
    grad_q, grad_c = torch.empty_like(asked.rows), torch.empty_like(table)
    value = Everybody(COMPARATORS["dot"].in_bfloat16(), rule, threads=2, dropout=NONE)(table, asked, 0, grad_q, grad_c)
    want = plain("dot", rule, table, asked)
    assert value == pytest.approx(want[0], rel=2e-3)
    for mine, theirs in ((grad_q, want[1]), (grad_c, want[2])):
        assert (mine - theirs).norm() < 1e-2 * theirs.norm()


@pytest.mark.parametrize("name", sorted(COMPARATORS))
def test_dropout_hides_the_same_numbers_from_both_passes(name: str) -> None:
    table, asked = case(4, 30, 5, 6, 0.5)
    dropout, rule = Dropout(0.4, 7, 0), Rule(True, 0.0, math.inf, 0.0)
    mask = torch.from_numpy(dropout.mask(np.arange(30), 6, 3))
    got, want = found(name, rule, table, asked, 2, dropout), plain(name, rule, table * mask, asked)
    assert got[0] == pytest.approx(want[0], rel=2e-6)
    torch.testing.assert_close(got[1].double(), want[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got[2].double(), want[2] * mask, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_broken_row_shows_in_the_value(bad: float, softmax: bool, smoothing: float) -> None:
    table, asked = case(2, 30, 5, 6, 0.5)
    table[17, 2] = bad
    with np.errstate(invalid="ignore"):
        value = found("dot", Rule(softmax, 0.0, math.inf, smoothing), table, asked)[0]
    assert not math.isfinite(value)
