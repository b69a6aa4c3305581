"""A self-sufficient partition suffices: its core entities have, by any encoder, the rows that the whole graph gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kgdist.data.dataset import Dataset
from kgdist.models.encoders.encode import encode
from kgdist.models.encoders.encoder import Encoder
from kgdist.models.encoders.message_graph import MessageGraph
from kgdist.options.config import Config
from kgdist.options.of_encoders import ENCODERS
from kgdist.partition.edges import divide_triples
from kgdist.partition.edges_folder import EdgePartition
from kgdist.partition.edges_write import write_edges
from kgdist.partition.expansion import EdgeSizes, Expansion, Reach
from tests.partition.worlds import dataset

ENTITIES, RELATIONS, PARTS = 90, 3, 3
METHODS = ("hdrf", "dbh", "random", "metis")


def chain_of_rings() -> np.ndarray:
    """int32[T, 3], entities in no particular order: a sparse graph in which three hops are far from all of it."""
    rng = np.random.default_rng(4)
    name = rng.permutation(ENTITIES)
    heads = np.arange(ENTITIES)
    tails = np.where(heads % 10 == 9, heads - 9, heads + 1)
    bridges = np.stack([np.arange(9, ENTITIES - 1, 10), np.arange(10, ENTITIES, 10)])
    ends = name[np.concatenate([np.stack([heads, tails]), bridges, bridges[:, :2]], axis=1)]  # two triples twice
    return np.stack([ends[0], rng.integers(RELATIONS, size=ends.shape[1]), ends[1]], axis=1).astype(np.int32)


def rows_of(encoder: Encoder, triples: np.ndarray, first: torch.Tensor, *, inverse: bool = True) -> torch.Tensor:
    return encode(encoder, MessageGraph.of(triples, len(first), RELATIONS, inverse=inverse), first)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    triples = chain_of_rings()
    return dataset(tmp_path_factory.mktemp("rings"), triples, triples[:2], triples[2:4], entities=ENTITIES, relations=RELATIONS)


def options(name: str, layers: int) -> Config:
    return Config(encoder=name, num_layers=layers, encoder_dim=8, hidden_dim=8, num_bases=2, num_heads=2)


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_core_entities_are_what_they_are_in_the_whole_graph(graph: Dataset, tmp_path: Path, method: str, hops: int) -> None:
    triples = graph.train.array
    out = np.empty(len(triples), np.uint8)
    divide_triples(triples, ENTITIES, RELATIONS, PARTS, out, method=method)
    expansion = Expansion(triples, out, ENTITIES, PARTS, Reach(hops, (), True, 0))
    folders = write_edges(graph, expansion, EdgeSizes.of(expansion), tmp_path / "parts", method=method)
    first = torch.randn(ENTITIES, 8, generator=torch.Generator().manual_seed(1))
    smaller = False
    for name in ENCODERS:
        encoder = Encoder(options(name, hops), 2 * RELATIONS)
        whole = rows_of(encoder, triples, first)
        for folder in folders:
            part = EdgePartition.open(folder)
            own = np.concatenate([part.core.array, part.support.array])
            entities = torch.from_numpy(part.entities.astype(np.int64))
            found = rows_of(encoder, own, first[entities])
            core = slice(0, part.num_core)
            torch.testing.assert_close(found[core], whole[entities[core]], rtol=1e-5, atol=1e-5)
            smaller |= len(own) < len(triples)
    assert smaller or method == "random"


@pytest.mark.parametrize("inverse", [True, False])
@pytest.mark.parametrize(("hops", "layers"), [(1, 1), (2, 2), (2, 1), (3, 2), (8, 1)])
@pytest.mark.parametrize("method", ["hdrf", "random"])
def test_so_are_others_that_are_whole(graph: Dataset, tmp_path: Path, method: str, hops: int, layers: int, inverse: bool) -> None:
    """Among these negatives are drawn. They are all that the hops promise, and all there are where no triple is missing."""
    triples = graph.train.array
    out = np.empty(len(triples), np.uint8)
    divide_triples(triples, ENTITIES, RELATIONS, PARTS, out, method=method)
    expansion = Expansion(triples, out, ENTITIES, PARTS, Reach(hops, (), inverse, 0))
    folders = write_edges(graph, expansion, EdgeSizes.of(expansion), tmp_path / "parts", method=method)
    first = torch.randn(ENTITIES, 8, generator=torch.Generator().manual_seed(1))
    config = options("compgcn", layers).replace(no_inverse=not inverse)
    encoder = Encoder(config, (1 + inverse) * RELATIONS)
    whole = rows_of(encoder, triples, first, inverse=inverse)
    for folder in folders:
        part = EdgePartition.open(folder)
        own = np.concatenate([part.core.array, part.support.array])
        entities = torch.from_numpy(part.entities.astype(np.int64))
        found, there = rows_of(encoder, own, first[entities], inverse=inverse), part.whole(layers)
        assert there[: part.hops[1 + hops - layers]].all()
        torch.testing.assert_close(found[there], whole[entities[there]], rtol=1e-5, atol=1e-5)
        assert there.all() or len(own) < len(triples)


def test_with_fanouts_core_entities_alone_are_whole(graph: Dataset, tmp_path: Path) -> None:
    triples = graph.train.array
    out = np.empty(len(triples), np.uint8)
    divide_triples(triples, ENTITIES, RELATIONS, PARTS, out, method="hdrf")
    expansion = Expansion(triples, out, ENTITIES, PARTS, Reach(1, (1,), True, 0))
    for folder in write_edges(graph, expansion, EdgeSizes.of(expansion), tmp_path / "parts", method="hdrf"):
        part = EdgePartition.open(folder)
        assert np.array_equal(part.whole(1), np.arange(len(part.entities)) < part.num_core)


@pytest.mark.parametrize("name", ENCODERS)
def test_no_support_edge_can_be_spared(graph: Dataset, tmp_path: Path, name: str) -> None:
    """Each that is left out changes a core entity; through one layer, so that no ReLU can hide it."""
    triples = graph.train.array
    out = np.empty(len(triples), np.uint8)
    divide_triples(triples, ENTITIES, RELATIONS, PARTS, out, method="dbh")
    expansion = Expansion(triples, out, ENTITIES, PARTS, Reach(1, (), True, 0))
    folder = write_edges(graph, expansion, EdgeSizes.of(expansion), tmp_path / "parts", method="dbh")[0]
    part = EdgePartition.open(folder)
    encoder = Encoder(options(name, 1), 2 * RELATIONS)
    first = torch.randn(len(part.entities), 8, generator=torch.Generator().manual_seed(1))
    own, support = np.asarray(part.core.array), np.asarray(part.support.array)
    _, which, counts = np.unique(support, axis=0, return_inverse=True, return_counts=True)
    once = np.flatnonzero(counts[which.ravel()] == 1)
    whole = rows_of(encoder, np.concatenate([own, support]), first)[: part.num_core]
    assert len(once) > 5
    for edge in once[:6]:
        fewer = rows_of(encoder, np.concatenate([own, np.delete(support, edge, axis=0)]), first)[: part.num_core]
        assert (fewer - whole).abs().max() > 1e-4
