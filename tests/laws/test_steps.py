"""The two steps are one: compiled loops and plain torch with autograd give the same updates and losses for any batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.types import Batch, Side
from kgdist.data.batches import Positives
from kgdist.kernels import jit
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import MODELS, make_model
from kgdist.options.config import Config
from kgdist.sampling.negatives import ChunkedNegatives
from kgdist.training.autograd_step import AutogradStep
from kgdist.training.fused_step import FusedStep
from kgdist.training.loop import make_step
from kgdist.training.losses import GENRES
from kgdist.training.step import Clock, Losses, Step, Update, agreement

NAMES = sorted({model.name for model in MODELS.values() if model.kernel is not None})
CPU = torch.device("cpu")
CONFIGS = st.fixed_dictionaries(
    {
        "loss_genre": st.sampled_from(GENRES),
        "margin": st.sampled_from([0.5, 3.0]),
        "pairwise": st.booleans(),
        "neg_adversarial_sampling": st.booleans(),
        "adversarial_temperature": st.sampled_from([0.5, 1.0, 2.0]),
        "regularization_coef": st.sampled_from([0.0, 1e-3, 0.5]),
        "regularization_norm": st.sampled_from([0, 1, 2, 3]),
        "neg_deg_sample": st.booleans(),
    }
)


def model_of(name: str, width: int, gamma: float) -> Model:
    """Widths are even where a model has halves."""
    width = width + width % 2 if name in ("ComplEx", "SimplE", "RotatE") else width
    relation = {"RotatE": width // 2, "TransR": max(1, width - 3), "PairRE": 2 * width}.get(name, width)
    return make_model(name, hidden_dim=width, entity_dim=width, relation_dim=relation, gamma=gamma)


def tables_of(model: Model, entities: int, relations: int, seed: int) -> MemoryTables:
    """Rows in [-1, 1], phases of less than a turn; none that is short where rows are divided by their length."""
    generator = torch.Generator().manual_seed(seed)
    tables = MemoryTables.create(model.tables(entities, relations), "adagrad")
    for name, rows in tables.rows.items():
        spread = model.init_range if model.name == "RotatE" and name == "relation" else 1.0
        rows.uniform_(-spread, spread, generator=generator)
        if model.name == "PairRE" and name == "entity":
            rows += 0.5 * rows.sign()
    return tables


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, int, int, int, list[tuple[int, int, bool]], bool]:
    """Entities, relations, negatives, seed, (batch size, step, all the same triple) of three steps, weights."""
    sizes = st.tuples(st.integers(1, 23), st.integers(0, 5), st.booleans())
    entities, relations = draw(st.sampled_from([1, 2, 9, 200])), draw(st.sampled_from([1, 3, 40]))
    steps = draw(st.lists(sizes, min_size=1, max_size=3))
    return entities, relations, draw(st.integers(1, 9)), draw(st.integers(0, 2**31)), steps, draw(st.booleans())


def batch_of(model: Model, config: Config, run: tuple, which: int) -> Batch:
    entities, relations, _, seed, steps, weighted = run
    size, number, same = steps[which]
    rng = np.random.default_rng(seed + which)
    heads, relation, tails = (rng.integers(top, size=size) for top in (entities, relations, entities))
    if same:
        heads[:], relation[:], tails[:] = heads[0], relation[0], heads[0]
    weights = rng.uniform(0, 2, size).astype(np.float32) if weighted else None
    draws = ChunkedNegatives(entities, config.neg_sample_size, config.neg_deg_sample, seed, sort=model.projects)
    return draws.batch(number, Positives(heads, relation, tails, weights))


def check(got: tuple[dict[str, Update], Losses], want: tuple[dict[str, Update], Losses]) -> None:
    """Ids as sets; gradients and squares by id. Raises AssertionError.

    What a positive and a negative push may cancel, so gradients agree within roundings of the largest push, which is about 1.
    """
    for part in ("positive", "negative", "total", "regularization"):
        assert getattr(got[1], part) == pytest.approx(getattr(want[1], part), rel=2e-5, abs=1e-6), part
    assert got[0].keys() == want[0].keys()
    for table, update in got[0].items():
        other = want[0][table]
        order, others = np.argsort(update.ids), np.argsort(other.ids)
        assert np.array_equal(update.ids[order], other.ids[others])
        assert len(np.unique(update.ids)) == len(update.ids)
        assert update.grads.shape == other.grads.shape
        pairs = [(update.grads, other.grads, 3e-6 * max(1.0, other.grads.abs().max().item()))]
        assert (update.squares is None) == (other.squares is None), table
        if update.squares is not None and other.squares is not None:
            largest = other.squares.max().item()  # the square of g + d differs by 2 g d, d as above
            pairs.append((update.squares, other.squares, 1e-5 * largest + 6e-6 * largest**0.5 + 1e-11))
        for mine, theirs, near in pairs:
            found, expected = mine[torch.from_numpy(order)], theirs[torch.from_numpy(others)]
            torch.testing.assert_close(found, expected, rtol=3e-4, atol=near)


def done(step: Step, batch: Batch) -> tuple[dict[str, Update], Losses]:
    """One step on `batch`."""
    return step(step.plan(batch), Clock())


def plainly(step: Step, batch: Batch) -> tuple[dict[str, Update], Losses]:
    """With no compiled loop at all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "WANTED", "torch")
        return done(step, batch)


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 40), st.sampled_from([2.0, 12.0]), CONFIGS, runs())
@settings(max_examples=60)
def test_updates_and_losses_agree(name: str, width: int, gamma: float, options: dict, run: tuple) -> None:
    """Ragged chunks, batches smaller than a chunk, repeated ids, and memory that a larger step used before."""
    model, config = model_of(name, width, gamma), Config(model_name=name, neg_sample_size=run[2], **options)
    tables, machines = tables_of(model, run[0], run[1], run[3]), 1 + 3 * (run[3] % 2)
    fused, plain = FusedStep(config, model, tables, machines), AutogradStep(config, model, tables, CPU, machines)
    for which in range(len(run[4])):
        batch = batch_of(model, config, run, which)
        check(done(fused, batch), plainly(plain, batch))


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_the_usual_shape(name: str, side: int) -> None:
    """Wide rows and whole chunks, where the loops run in full blocks."""
    model = model_of(name, 50 if name in ("RESCAL", "TransR", "PairRE") else 200, 12.0)
    config = Config(model_name=name, neg_sample_size=64, neg_adversarial_sampling=True, regularization_coef=1e-4)
    run = (500, 20, 64, 3, [(200, side, False)], False)
    tables = tables_of(model, 500, 20, 1)
    for rows in tables.rows.values():
        rows *= 0.2
    batch = batch_of(model, config, run, 0)
    assert batch.side is (Side.HEAD if side else Side.TAIL)
    fused, plain = FusedStep(config, model, tables), AutogradStep(config, model, tables, CPU)
    check(done(fused, batch), plainly(plain, batch))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_a_broken_row_shows_in_the_loss(name: str, bad: float) -> None:
    """Whatever part it plays in the batch: the trainer looks at the loss before it touches the rows."""
    model, config = model_of(name, 20, 4.0), Config(model_name=name, neg_sample_size=4, neg_adversarial_sampling=True)
    run = (30, 5, 4, 0, [(10, 0, False)], False)
    for part in ("heads", "tails", "negatives", "relations"):
        tables = tables_of(model, 30, 5, 2)
        batch = batch_of(model, config, run, 0)
        table = "relation" if part == "relations" else "entity"
        tables.rows[table][getattr(batch, part).flat[5], 1] = bad
        with np.errstate(invalid="ignore"):
            losses = done(FusedStep(config, model, tables), batch)[1]
        assert (name == "SimplE" and bad == math.inf) or not math.isfinite(losses.total), part


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_themselves_are_left_alone(name: str) -> None:
    model, config = model_of(name, 12, 4.0), Config(model_name=name, neg_sample_size=4, regularization_coef=0.1)
    tables = tables_of(model, 9, 3, 0)
    before = {key: array.copy() for key, array in tables.arrays().items()}
    done(FusedStep(config, model, tables), batch_of(model, config, (9, 3, 4, 0, [(10, 0, False)], False), 0))
    assert all(np.array_equal(array, before[key]) for key, array in tables.arrays().items())


@pytest.mark.parametrize("name", sorted({model.name for model in MODELS.values()}))
def test_the_fastest_step_that_does_what_is_asked_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = model_of(name, 6, 4.0), Config(model_name=name)
    tables = tables_of(model, 5, 2, 0)
    assert isinstance(make_step(config, model, tables, CPU), FusedStep if model.kernel is not None else AutogradStep)
    asynchronous = Config(model_name=name, async_update=True)
    assert isinstance(make_step(asynchronous, model, tables, CPU), AutogradStep)
    monkeypatch.setattr(jit, "WANTED", "torch")
    assert isinstance(make_step(config, model, tables, CPU), AutogradStep)


@pytest.mark.parametrize("base", [MODELS[name] for name in NAMES], ids=lambda base: base.name)
@pytest.mark.parametrize("method", ["query", "queries", "pair", "cross", "project"])
def test_a_model_with_a_rule_of_its_own_is_not_done_by_the_rule_of_its_base(base: type[Model], method: str) -> None:
    """Someone's variant of a built-in model trains by its own formula, and a mere renaming by the loops."""
    mine = type("Mine", (base,), {method: getattr(base, method)})
    renamed = type("Renamed", (base,), {"name": "Renamed"})
    own_child = type("Child", (mine,), {})
    tables = tables_of(model_of(base.name, 6, 4.0), 5, 2, 0)
    sizes = {"hidden_dim": 6, "entity_dim": 6, "relation_dim": 6, "gamma": 4.0}
    for kind, step in ((mine, AutogradStep), (own_child, AutogradStep), (renamed, FusedStep)):
        assert isinstance(make_step(Config(model_name=base.name), kind(**sizes), tables, CPU), step)


def test_a_rule_of_its_own_is_what_is_trained() -> None:
    """Of a variant that negates relations, by the gradient of the relation."""

    class Backwards(MODELS["TransE_l2"]):  # type: ignore[misc, valid-type]
        def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
            return super().query(anchor, -relation, side)

    config = Config(model_name="TransE_l2", neg_sample_size=4)
    model = model_of("TransE_l2", 8, 4.0)
    variant = Backwards(hidden_dim=8, entity_dim=8, relation_dim=8, gamma=4.0)
    tables = tables_of(model, 9, 1, 0)
    batch = batch_of(model, config, (9, 1, 4, 0, [(10, 0, False)], False), 0)
    found = done(make_step(config, variant, tables, CPU), batch)[0]["relation"].grads.clone()
    tables.rows["relation"].neg_()
    want = done(make_step(config, model, tables, CPU), batch)[0]["relation"].grads
    torch.testing.assert_close(found, -want, rtol=1e-4, atol=1e-6)


class Away(MemoryTables):
    """Tables whose rows must be pulled, as those of another machine."""

    def local(self, name: str) -> torch.Tensor | None:
        return None


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_read_in_place_are_the_rows_that_would_be_pulled(name: str) -> None:
    model = model_of(name, 12, 5.0)
    here = tables_of(model, 20, 6, seed=3)
    away = Away(here.rows, here.state, "adagrad")
    rng = np.random.default_rng(4)
    heads, relations, tails = (rng.integers(top, size=30) for top in (20, 6, 20))
    config = Config(model_name=name, neg_adversarial_sampling=True, regularization_coef=1e-3)
    for step in range(2):
        batch = ChunkedNegatives(20, 8, False, 1, sort=model.projects).batch(step, Positives(heads, relations, tails, None))
        found = [done(FusedStep(config, model, tables), batch) for tables in (here, away)]
        assert found[0][1] == found[1][1]
        for table, update in found[0][0].items():
            other = found[1][0][table]
            assert (update.ids == other.ids).all() and torch.equal(update.grads, other.grads)


def test_uses_count_as_they_would_in_a_batch_of_the_whole_graph() -> None:
    model = model_of("DistMult", 8, 5.0)
    tables = tables_of(model, 20, 3, 1)
    heads, tails = np.array([0, 0, 0, 4]), np.array([1, 2, 0, 5])  # entity 0 has four uses
    batch = ChunkedNegatives(20, 4, False, 1).batch(0, Positives(heads, np.zeros(4, np.int64), tails, None))
    for step in (FusedStep(Config(), model, tables), AutogradStep(Config(), model, tables, CPU)):
        plan = step.plan(batch)
        assert (agreement(plan, 1) == 1).all()
        for machines, share in ((2, (1 + 3 / 2) / 4), (3, (1 + 3 / 3) / 4), (10**6, 1 / 4)):
            found = dict(zip(plan.ids.tolist(), agreement(plan, machines).tolist(), strict=True))
            assert found.pop(0) == pytest.approx(share, rel=1e-5) and set(found.values()) == {1.0}
