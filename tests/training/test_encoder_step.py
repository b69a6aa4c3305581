"""The step with an encoder is the gradient of the whole: rows of neighbours, encoder, query, comparator, loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from kgdist.attributes.attribute_folder import NumbersOfRows
from kgdist.data.batches import Batches
from kgdist.data.dataset import Triples
from kgdist.graphs.structure import EID
from kgdist.kvstore.tables import MemoryTables, Update
from kgdist.models.encoders.encoder import TABLE, Encoding
from kgdist.models.registry import model_of, settle
from kgdist.nn import AttributeEmbedding
from kgdist.options.config import Config
from kgdist.options.of_encoders import ENCODERS
from kgdist.runtime.job import shapes_of, trainer_of, weights_of
from kgdist.sampling.negatives import ChunkedNegatives
from kgdist.training.autograd_step import AutogradStep
from kgdist.training.encoder_step import EncoderStep
from kgdist.training.fused_step import FusedStep
from kgdist.training.losses import batch_loss
from kgdist.training.step import Clock, parts_of

ENTITIES, RELATIONS = 30, 3


def options(encoder: str, model: str, **more: object) -> Config:
    asked = {"encoder": encoder, "model_name": model, "hidden_dim": 8, "encoder_dim": 12, "num_bases": 2, "batch_size": 7}
    config = Config(**asked, neg_sample_size=4, gamma=4.0, regularization_coef=0.0, dropout=0.0, max_grad_norm=0.0, max_step=40)
    config = config.replace(**more)
    return settle(config, {"seed"})[0]


def parts(
    config: Config, attributes: AttributeEmbedding | None = None, twice: bool = False
) -> tuple[Triples, MemoryTables, Encoding]:
    rng = np.random.default_rng(2)
    columns = [rng.integers(top, size=90) for top in (ENTITIES, RELATIONS, ENTITIES)]
    array = np.stack(columns, axis=1).astype(np.int32)
    triples = Triples(np.concatenate([array, array]) if twice else array, None)
    tables = MemoryTables.create(shapes_of(config, model_of(config), ENTITIES, RELATIONS), "sgd")
    encoding = Encoding.of(config, triples.array, ENTITIES, RELATIONS)
    assert encoding is not None
    encoding.encoder.attributes = attributes
    tables.add(weights_of(encoding))
    for rows in tables.rows.values():
        rows.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(5))
    tables.rows[TABLE].copy_(encoding.encoder.weights())
    return triples, tables, encoding


def step_of(config: Config, tables: MemoryTables, encoding: Encoding, triples: Triples) -> EncoderStep:
    step = trainer_of(config, triples, tables, 0, encoding=encoding)._step
    assert isinstance(step, EncoderStep)
    return step


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("model", ["DistMult", "RotatE", "TransR"])
def test_updates_are_the_gradient_of_the_whole(encoder: str, model: str) -> None:
    config = options(encoder, model)
    triples, tables, encoding = parts(config)
    step = step_of(config, tables, encoding, triples)
    assert isinstance(step.inner, FusedStep)
    batches = Batches(triples, config.batch_size, seed=1)
    draws = ChunkedNegatives(ENTITIES, config.neg_sample_size, False, 1, sort=model == "TransR")
    for number in range(3):
        batch = draws.batch(number, batches.at(number))
        plan = step.plan(batch)
        updates, losses = step(plan, Clock())

        # All of it by autograd.
        rows = tables.rows["entity"].clone().requires_grad_()
        fresh = encoding.encoder
        fresh.use(tables.rows[TABLE].clone())
        blocks = plan.blocks
        made = fresh(
            blocks, [encoding.messages.relations_of(block) for block in blocks], rows[torch.from_numpy(plan.wanted["entity"])]
        )
        scored = model_of(config)
        plain = AutogradStep(config, scored, step.encoded, torch.device("cpu"))
        where = {int(entity): place for place, entity in enumerate(plan.ids)}
        heads, tails, _, drawn = (made[[where[int(i)] for i in ids]] for ids in parts_of(batch).all())
        relation_ids, places = np.unique(batch.relations, return_inverse=True)
        relation = plain._relations(relation_ids, places)
        anchors, true = batch.side.pick(head=(tails, heads), tail=(heads, tails))
        queries = scored.queries(anchors, relation, batch.side)
        positive = scored.pair(queries, true, relation, batch.side)
        candidates = drawn.view(len(batch.negatives), -1, config.entity_dim)
        negative = scored.cross(queries, candidates, relation, batch.chunk, batch.side)
        loss = batch_loss(positive, negative, genre=config.loss_genre, margin=1.0, pairwise=False, temperature=None)
        loss.total.backward()

        assert losses.total == pytest.approx(loss.total.item(), rel=1e-5)
        assert rows.grad is not None
        found = torch.zeros_like(rows).index_add_(0, torch.from_numpy(updates["entity"].ids), updates["entity"].grads)
        torch.testing.assert_close(found, rows.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(updates[TABLE].grads, fresh.gradients(), rtol=1e-4, atol=1e-6)
        assert updates[TABLE].grads.any() and found.any()


def test_a_gradient_that_is_too_long_is_made_shorter() -> None:
    def pushed(most: float) -> torch.Tensor:
        config = options("rgcn", "DistMult", max_grad_norm=most)
        triples, tables, encoding = parts(config)
        step = step_of(config, tables, encoding, triples)
        batch = ChunkedNegatives(ENTITIES, 4, False, 1).batch(0, Batches(triples, 7, seed=1).at(0))
        updates, _ = step(step.plan(batch), Clock())
        return updates[TABLE].grads.clone()

    whole = pushed(0.0)
    length = float(whole.norm())
    torch.testing.assert_close(pushed(length / 4), whole / 4)
    assert torch.equal(pushed(2 * length), whole)


@pytest.mark.parametrize("twice", [False, True])
def test_the_triples_of_a_batch_are_no_messages_of_theirs(twice: bool) -> None:
    config = options("sage", "DistMult", batch_size=30)
    triples, tables, encoding = parts(config, twice=twice)
    rows = [tuple(row) for row in triples.array.tolist()]
    trainer = trainer_of(config, triples, tables, 0, encoding=encoding)
    for number in range(6):
        batch = trainer.batch(number)
        assert batch.numbers is not None
        assert np.array_equal(triples.array[batch.numbers], np.stack([batch.heads, batch.relations, batch.tails], axis=1))
        own = {int(edge) for edge in encoding.messages.edges_of(batch.numbers)}
        travelled = [set(block.edata[EID].tolist()) for block in trainer._step.plan(batch).blocks]
        assert len(own) >= 2 * len({rows[number] for number in batch.numbers}) * (1 + twice)
        assert all(edges and not edges & own for edges in travelled)
        asked = {rows[number] for number in batch.numbers}
        assert not any(asked & {rows[edge % len(triples)] for edge in edges} for edges in travelled)


@pytest.mark.parametrize("no_inverse", [False, True])
def test_with_neighbor_dropout_some_entities_are_as_if_they_had_no_triples(no_inverse: bool) -> None:
    config = options("sage", "DistMult", batch_size=3, neighbor_dropout=0.4, no_inverse=no_inverse)
    triples, tables, encoding = parts(config)
    trainer = trainer_of(config, triples, tables, 0, encoding=encoding)
    shares = []
    for number in range(12):
        plan = trainer._plan(number)
        own = {int(edge) % len(triples) for edge in encoding.messages.edges_of(plan.batch.numbers)}  # type: ignore[arg-type]
        travelled = [{edge % len(triples) for edge in block.edata[EID].tolist()} for block in plan.blocks]
        into = {
            entity: {t for t in range(len(triples)) if entity in triples.array[t, [2] if no_inverse else [0, 2]]} - own
            for entity in plan.ids.tolist()
        }
        alone = {entity for entity, all_of in into.items() if not all_of & travelled[-1]}
        for entity in plan.ids.tolist():  # who is not alone lacks those of them only, at every hop
            lost = into[entity] - travelled[-1]
            assert entity in alone or all(alone & set(triples.array[t, [2] if no_inverse else [0, 2]].tolist()) for t in lost)
        for entity in alone:
            assert not into[entity] & set.union(*travelled)
        shares.append(len(alone) / len(plan.ids))
        again = trainer._plan(number)
        assert [block.edata[EID].tolist() for block in again.blocks] == [block.edata[EID].tolist() for block in plan.blocks]
    assert 0.25 < np.mean(shares) < 0.6 and len(set(shares)) > 3


def test_rows_beside_attributes() -> None:
    """`--own_rows` adds both; those that are to be known by their attributes alone in a step have no row then."""
    config = options("sage", "DistMult", batch_size=3, neighbor_dropout=0.4)
    has = np.arange(ENTITIES) % 3 > 0
    rows = np.where(has, np.arange(ENTITIES), -1)
    numbers = NumbersOfRows(2, has, np.random.default_rng(3).normal(size=(ENTITIES, 2)).astype(np.float32))
    triples, tables, encoding = parts(config, AttributeEmbedding({"size": numbers}, rows, config.encoder_dim))
    encoder = encoding.encoder
    encoder.own_rows = True
    own, everyone = tables.rows["entity"], np.arange(ENTITIES)
    made, known = encoder.attributes(everyone)
    silent = torch.arange(ENTITIES) % 2 == 0
    torch.testing.assert_close(encoder.begin(everyone, own), own + made)
    kept = ~silent | ~known
    torch.testing.assert_close(encoder.begin(everyone, own, silent), own * kept[:, None] + made)
    encoder.own_rows = False
    torch.testing.assert_close(encoder.begin(everyone, own, silent), torch.where(known[:, None], made, own))
    encoder.own_rows = True

    trainer = trainer_of(config, triples, tables, 0, encoding=encoding)
    step = trainer._step
    assert isinstance(step, EncoderStep)
    met = set()
    for number in range(6):
        plan = trainer._plan(number)
        alone = np.isin(plan.wanted["entity"], step._alone(plan.ids, number)) & has[plan.wanted["entity"]]
        updates, _ = step(plan, Clock())
        moved = updates["entity"].grads.any(1).numpy()
        assert not moved[alone].any() and moved[~alone & np.isin(plan.wanted["entity"], plan.ids)].all()
        met |= set(alone.tolist())
    assert met == {True, False}


def test_fan_outs_bound_what_is_drawn_and_a_step_draws_anew() -> None:
    config = options("sage", "DistMult", fanout=(2, 1))
    triples, tables, encoding = parts(config)
    trainer = trainer_of(config, triples, tables, 0, encoding=encoding)
    plans = [trainer._plan(number) for number in (0, 0, 13)]  # 13 steps are an epoch
    assert plans[0].blocks[0].in_degrees().max() == 2 and plans[0].blocks[1].in_degrees().max() == 1
    edges = [plan.blocks[1].edata[EID].tolist() for plan in plans]
    assert edges[0] == edges[1] != edges[2]


def test_weights_decay_and_have_a_rate_of_their_own() -> None:
    config = options("sage", "DistMult", weight_decay=0.5, lr=0.3, encoder_lr=0.07, lr_schedule="linear")
    triples, tables, encoding = parts(config)
    told: list[dict[str, float]] = []
    real = tables.push

    def push(updates: Mapping[str, Update], lr: float) -> None:
        told.append({name: lr if each.rate is None else each.rate for name, each in updates.items()})
        real(updates, lr)

    tables.push = push  # type: ignore[method-assign]
    trainer = trainer_of(config, triples, tables, 0, encoding=encoding)
    before = {name: rows.clone() for name, rows in tables.rows.items()}
    for number in (0, 20):
        trainer.step(number)
    # One push a step: where it fails, rows and weights stay those of the step before.
    assert told == [{TABLE: 0.07, "entity": 0.3, "relation": 0.3}, {TABLE: 0.035, "entity": 0.15, "relation": 0.15}]
    assert not any(torch.equal(rows, before[name]) for name, rows in tables.rows.items())
    plain = options("sage", "DistMult")
    steps = []
    for each in (config, plain):
        triples, tables, encoding = parts(each)
        step = step_of(each, tables, encoding, triples)
        found, _ = step(step.plan(ChunkedNegatives(ENTITIES, 4, False, 1).batch(0, Batches(triples, 7, seed=1).at(0))), Clock())
        steps.append(found[TABLE].grads)
    torch.testing.assert_close(steps[0] - steps[1], 0.5 * tables.rows[TABLE])


def test_rows_elsewhere_are_pulled_by_the_plan(tmp_path: Path) -> None:
    """What travels ahead is what the step pulls."""
    config = options("rgcn", "ComplEx", neg_deg_sample=True)
    triples, tables, encoding = parts(config)
    asked: list[np.ndarray] = []
    real = tables.pull

    def pull(name: str, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if name == "entity":
            asked.append(ids.numpy())
        return real(name, ids, out)

    tables.pull = pull  # type: ignore[method-assign]
    trainer = trainer_of(config, triples, tables, 0, encoding=encoding)
    plan = trainer._plan(0)
    trainer._step(plan, Clock())
    assert len(asked) == 1 and np.array_equal(asked[0], plan.wanted["entity"])
