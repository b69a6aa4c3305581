"""One training step against DGL-KE's update written out in float64: groups of uses, regularisation, row Adagrad."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kgdist.base.errors import KgdistError
from kgdist.base.types import Batch, Side
from kgdist.data.batches import Batches
from kgdist.data.dataset import Triples
from kgdist.kvstore.tables import MemoryTables, Update, initialise
from kgdist.models.registry import make_model
from kgdist.options.config import Config
from kgdist.sampling.negatives import ChunkedNegatives
from kgdist.training.loop import Trainer
from kgdist.training.step import BatchPlan
from tests import formulas

ENTITIES, RELATIONS = 9, 3  # few enough that a batch uses rows several times


def trainer(name: str, **options: object) -> Trainer:
    model = make_model(name, gamma=formulas.GAMMA, **formulas.sizes(name))
    config = Config(model_name=name, **{"batch_size": 7, "neg_sample_size": 3, "lr": 0.1, **options})  # type: ignore[arg-type]
    tables = MemoryTables.create(model.tables(ENTITIES, RELATIONS), config.optimizer)
    for stream, table in enumerate(tables.names()):
        initialise(tables.rows[table], "uniform", 0.8, seed=5, stream=stream)
        for state in tables.state[table].values():
            state.fill_(0.01)
    rng = np.random.default_rng(0)
    array = np.stack([rng.integers(top, size=20) for top in (ENTITIES, RELATIONS, ENTITIES)], axis=1).astype(np.int32)
    batches = Batches(Triples(array, rng.uniform(0.5, 2, 20).astype(np.float32)), config.batch_size, seed=1)
    negatives = ChunkedNegatives(ENTITIES, config.neg_sample_size, config.neg_deg_sample, 1, sort=model.projects)
    draw = lambda number: negatives.batch(number, batches.at(number))  # noqa: E731
    return Trainer(config, model, tables, draw, device=torch.device("cpu"), total=10)


def plain_loss(
    name: str,
    batch: Batch,
    heads: torch.Tensor,
    relations: list[torch.Tensor],
    tails: torch.Tensor,
    drawn: torch.Tensor,
    projections: list[torch.Tensor] | None,
) -> torch.Tensor:
    """Self-adversarial Logsigmoid loss of a batch, triple by triple. drawn: [C, N, D]; the others by triple."""
    total = torch.zeros((), dtype=torch.float64)
    true = batch.side.pick(batch.heads, batch.tails)
    ends = batch.side.pick(heads, tails)
    size = len(batch)
    for i in range(size):
        chunk = i // batch.chunk
        projection = projections[i] if projections is not None else None
        candidates = [*drawn[chunk]]
        for column in range(batch.in_batch):
            entity = batch.negatives[chunk, column]
            if entity != true[i]:
                row = next(j for j in range(chunk * batch.chunk, size) if true[j] == entity)
                candidates.append(ends[row])
        scores = torch.stack(
            [
                formulas.score(name, *batch.side.pick((c, relations[i], tails[i]), (heads[i], relations[i], c)), projection)
                for c in candidates
            ]
        )
        positive = formulas.score(name, heads[i], relations[i], tails[i], projection)
        if name == "SimplE":
            scores, positive = scores.clamp(-20, 20), positive.clamp(-20, 20)
        shares = torch.softmax(scores.detach(), 0)
        against = (shares * torch.nn.functional.softplus(scores)).sum()
        assert batch.weights is not None
        total = total + float(batch.weights[i]) * (torch.nn.functional.softplus(-positive) + against) / size / 2
    return total


@pytest.mark.parametrize("number", [0, 1, 2])  # tails, heads, and the short last batch of the epoch
@pytest.mark.parametrize("degree", [False, True])
@pytest.mark.parametrize("name", [name for name in formulas.NAMES if name not in ("RESCAL", "TransR", "PairRE", "TransE")])
def test_a_step_is_the_references_update(name: str, degree: bool, number: int) -> None:
    coef, p = 0.01, 3
    given = {"neg_adversarial_sampling": True, "regularization_coef": coef, "regularization_norm": p, "neg_deg_sample": degree}
    subject = trainer(name, **given)
    tables = subject.tables
    assert isinstance(tables, MemoryTables)
    before = {key: torch.from_numpy(array.copy()).double() for key, array in tables.arrays().items()}
    batch = subject.batch(number)
    assert len(batch) == (7 if number < 2 else 6) and batch.side is (Side.HEAD if number == 1 else Side.TAIL)
    losses, count = subject.step(number)
    assert count == len(batch)

    entity = before["entity"].clone().requires_grad_()  # uses by positives: one leaf per row
    draws = batch.negatives[:, batch.in_batch :]
    drawn = before["entity"][torch.from_numpy(draws)].clone().requires_grad_()  # one leaf per draw
    uses = [before["relation"][r].clone().requires_grad_() for r in batch.relations]  # one leaf per triple
    loss = plain_loss(name, batch, entity[batch.heads], uses, entity[batch.tails], drawn, None)
    own = torch.from_numpy(np.unique(np.concatenate([batch.heads, batch.tails])))
    penalty = (
        coef * (entity[own].abs() ** p).sum() + coef * (drawn.abs() ** p).sum() + sum(coef * (u.abs() ** p).sum() for u in uses)
    )
    (loss + penalty).backward()
    assert losses.regularization == pytest.approx(penalty.item(), rel=1e-4)
    assert losses.total == pytest.approx((loss + penalty).item(), rel=1e-4)

    for table, groups in {
        "entity": [(torch.arange(ENTITIES), entity.grad), (torch.from_numpy(draws.ravel()), drawn.grad.flatten(0, 1))],
        "relation": [(torch.from_numpy(batch.relations), torch.stack([u.grad for u in uses]))],
    }.items():
        rows, state = before[table], before[f"{table}.sum"].view(-1)
        for ids, grads in groups:
            state = state.index_add(0, ids, grads.square().mean(1))
        for ids, grads in groups:  # all of them with the state after all of them
            rows = rows.index_add(0, ids, -0.1 * grads / (state[ids].sqrt() + 1e-10)[:, None])
        torch.testing.assert_close(tables.rows[table].double(), rows, rtol=1e-3, atol=2e-5)
        torch.testing.assert_close(tables.state[table]["sum"].view(-1).double(), state, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["RESCAL", "TransR", "PairRE"])
def test_a_step_that_reads_relations_once_follows_the_gradient_of_the_batch(name: str) -> None:
    """One use per row: the sum of the gradients of all triples and candidates."""
    subject = trainer(name, neg_adversarial_sampling=True, regularization_coef=0.0, optimizer="sgd")
    tables = subject.tables
    assert isinstance(tables, MemoryTables)
    leaves = {key: torch.from_numpy(array.copy()).double().requires_grad_() for key, array in tables.arrays().items()}
    batch = subject.batch(0)
    subject.step(0)
    entity = leaves["entity"]
    relations = [leaves["relation"][r] for r in batch.relations]
    projections = [leaves["projection"][r] for r in batch.relations] if name == "TransR" else None
    loss = plain_loss(
        name, batch, entity[batch.heads], relations, entity[batch.tails], entity[torch.from_numpy(batch.negatives)], projections
    )
    loss.backward()
    for key, leaf in leaves.items():
        assert leaf.grad is not None and leaf.grad.abs().max() > 1e-4
        torch.testing.assert_close(tables.rows[key].double(), leaf.detach() - 0.1 * leaf.grad, rtol=1e-3, atol=1e-5)


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    subject = trainer("DistMult")
    assert isinstance(subject.tables, MemoryTables)
    subject.tables.rows["entity"].fill_(float("inf"))
    with pytest.raises(KgdistError, match=r"the loss became nan at step 1; lower --lr"):
        subject.step(0)


@pytest.mark.parametrize("together", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("start", [0, 4])
def test_rows_are_asked_for_in_time_and_lack_few_own_updates(together: int, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step's once, in order, before its step; behind all own pushes but the last few; and some steps' together."""
    made = trainer("DistMult", pull_ahead=together)
    pushed, planned, asked, calls = list[int](), list[int](), list[int](), list[int]()
    push, plan = made.tables.push, made._plan

    def ahead(*wanted: object) -> None:
        calls.append(len(wanted))
        asked.extend([len(pushed)] * len(wanted))

    def count(updates: dict[str, Update], lr: float) -> None:
        pushed.append(1)
        push(updates, lr)

    def listed(number: int) -> BatchPlan:
        planned.append(number)
        return plan(number)

    monkeypatch.setattr(made.tables, "ahead", ahead)
    monkeypatch.setattr(made.tables, "push", count)
    monkeypatch.setattr(made, "_plan", listed)
    for number in range(start, 10):
        made.step(number)
        assert len(asked) >= min(number + 2, 10) - start
    assert planned == list(range(start, 10))
    assert all(0 <= own - at <= together for own, at in enumerate(asked))
    assert calls[0] == 2 and set(calls[1:-1]) <= {together} and calls[-1] <= max(2, together)
