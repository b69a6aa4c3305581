"""The rows of all entities, layer by layer, are those of the whole graph at once; and the weights are one row of a table."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kgdist.base.errors import OptionError
from kgdist.graphs.structure import NID
from kgdist.models.encoders import encode as encoding
from kgdist.models.encoders.encoder import LAYERS, Encoder, Encoding
from kgdist.options.config import Config
from kgdist.options.of_encoders import ENCODERS
from kgdist.sampling.samplers import MultiLayerFullNeighborSampler

ENTITIES, RELATIONS = 23, 4


def config_of(encoder: str, layers: int = 2, **more: object) -> Config:
    return Config(encoder=encoder, num_layers=layers, encoder_dim=8, hidden_dim=12, num_bases=2, seed=3).replace(**more)


def made_of(config: Config, triples: int = 60) -> Encoding:
    rng = np.random.default_rng(1)
    array = np.stack([rng.integers(ENTITIES - 1, size=triples), rng.integers(RELATIONS, size=triples),
                      rng.integers(ENTITIES - 1, size=triples)], axis=1)  # fmt: skip
    made = Encoding.of(config, array.astype(np.int32), ENTITIES, RELATIONS)  # the last entity is in no triple
    assert made is not None
    return made


def test_every_encoder_that_can_be_named_is_there() -> None:
    assert set(LAYERS) == set(ENCODERS)
    assert Encoding.of(Config(), np.zeros((1, 3), np.int32), 1, 1) is None


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_layer_by_layer_is_the_whole_graph_at_once(name: str, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, messages = made_of(config_of(name, layers))
    rows = torch.randn(ENTITIES, 8, generator=torch.Generator().manual_seed(2))
    order = torch.randperm(ENTITIES, generator=torch.Generator().manual_seed(4))
    inputs, _, blocks = MultiLayerFullNeighborSampler(layers).sample_blocks(messages.graph, order)
    assert isinstance(inputs, torch.Tensor)
    want = encoder(blocks, [messages.relations_of(block) for block in blocks], rows[inputs]).detach()
    for at_once in (1, 30, 1 << 20):
        monkeypatch.setattr(encoding, "EDGES_AT_ONCE", at_once)
        told: list[int] = []
        found = encoding.encode(encoder, messages, rows, told.append)
        assert found.shape == (ENTITIES, 12) and sum(told) == layers * ENTITIES
        torch.testing.assert_close(found[order], want, rtol=1e-5, atol=1e-6)
        assert len(told) == layers * len(encoding.spans(np.r_[0, np.cumsum(messages.graph.in_degrees().numpy())], at_once))


def test_a_triple_is_an_edge_and_its_inverse() -> None:
    triples = np.array([[0, 1, 2], [2, 0, 2], [0, 1, 2]], np.int32)
    for inverse in (True, False):
        made = Encoding.of(config_of("rgcn", no_inverse=not inverse), triples, 3, 2)
        assert made is not None
        messages = made.messages
        heads, tails = messages.graph.edges_of()
        assert heads.tolist() == [0, 2, 0, 2, 2, 2][: 6 if inverse else 3]
        assert tails.tolist() == [2, 2, 2, 0, 2, 0][: 6 if inverse else 3]
        assert messages.relations.tolist() == [1, 0, 1, 3, 2, 3][: 6 if inverse else 3]
        assert messages.edges_of(np.array([2])).tolist() == ([0, 2, 3, 5] if inverse else [0, 2])  # triple 0 is the same
        assert messages.edges_of(np.array([1])).tolist() == ([1, 4] if inverse else [1])
        _, _, (block,) = MultiLayerFullNeighborSampler(1).sample_blocks(messages.graph, torch.tensor([2]))
        sources = block.srcdata[NID][block.edge_index[0]].tolist()
        pairs = sorted(zip(sources, messages.relations_of(block).tolist(), strict=True))
        assert pairs == ([(0, 1), (0, 1), (2, 0), (2, 2)] if inverse else [(0, 1), (0, 1), (2, 0)])


@pytest.mark.parametrize("name", ENCODERS)
def test_the_weights_are_one_row(name: str) -> None:
    """Drawn by --seed, the same wherever; used without a copy; and their gradients come in the same order."""
    config = config_of(name)
    encoder, messages = made_of(config)
    row = encoder.weights()
    assert row.shape == (1, sum(each.numel() for each in encoder.parameters())) and row.isfinite().all()
    assert torch.equal(row, Encoder(config, messages.num_relations).weights())
    assert not torch.equal(row, Encoder(config.replace(seed=4), messages.num_relations).weights())
    rows = torch.ones(ENTITIES, 8)
    before = encoding.encode(encoder, messages, rows)
    encoder.use(row * 2)
    assert torch.equal(encoder.weights(), row * 2) and not torch.equal(encoding.encode(encoder, messages, rows), before)
    assert not encoder.gradients().any()
    sum((number * each.sum() for number, each in enumerate(encoder.parameters())), torch.zeros(())).backward()
    want = torch.cat([torch.full((each.numel(),), float(number)) for number, each in enumerate(encoder.parameters())])
    assert torch.equal(encoder.gradients(), want[None])


def test_dropout_is_drawn_by_the_generator_and_by_nothing_else() -> None:
    encoder, messages = made_of(config_of("sage", dropout=0.5))
    inputs, _, blocks = MultiLayerFullNeighborSampler(2).sample_blocks(messages.graph, torch.arange(ENTITIES))
    assert isinstance(inputs, torch.Tensor)
    rows, kinds = torch.ones(len(inputs), 8), [messages.relations_of(block) for block in blocks]
    drawn = [encoder(blocks, kinds, rows, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert torch.equal(encoder(blocks, kinds, rows), encoder(blocks, kinds, rows))


def test_sizes_that_a_layer_cannot_have_are_refused() -> None:
    with pytest.raises(OptionError, match="--num_heads: 5 heads cannot divide 8 numbers evenly"):
        made_of(config_of("gat", num_heads=5))
    with pytest.raises(OptionError, match="--num_bases: no 3 equal blocks can be made of 8 and 8 numbers"):
        made_of(config_of("rgcn", num_bases=3, relation_blocks=True))
    made_of(config_of("rgcn", num_bases=4, relation_blocks=True))
    made_of(config_of("rgcn", num_bases=0))


def test_weights_go_where_the_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in CPU memory, and rows may be on a GPU: a network wants both in one place. Here it is one without any memory."""
    made = Encoding.of(Config(encoder="sage", num_layers=1), np.array([[0, 0, 1]]), 3, 1)
    assert made is not None
    used: list[torch.Tensor] = []
    monkeypatch.setattr(made.encoder, "use", used.append)
    monkeypatch.setattr(encoding, "encode", lambda encoder, messages, rows, heard: rows)
    weights = made.encoder.weights()
    for device in ("cpu", "meta"):
        rows = torch.empty(3, 64, device=device)
        assert encoding.encode_tables(made, rows, weights).device == used[-1].device == rows.device
        assert used[-1] is not weights and used[-1].shape == weights.shape
