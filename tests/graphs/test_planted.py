"""The graph with planted classes has what it says: classes, edges both ways, masks that are a division."""

from __future__ import annotations

import pytest
import torch

from kgdist.base.errors import UsageError
from kgdist.graphs.planted import planted_partition


@pytest.mark.parametrize("mixing", [0.0, 0.5, 1.0])
def test_edges_are_both_ways_and_mostly_within_a_class(mixing: float) -> None:
    g = planted_partition(num_nodes=300, num_edges=8000, num_classes=3, mixing=mixing)
    sources, destinations = g.edges()
    assert torch.equal(sources.roll(4000), destinations)
    labels = g.ndata["labels"]
    assert labels.bincount().tolist() == [100, 100, 100]
    within = (labels[sources] == labels[destinations]).double().mean().item()
    assert abs(within - (1 - mixing * 2 / 3)) < 0.03
    masks = torch.stack([g.ndata[f"{part}_mask"] for part in ("train", "val", "test")])
    assert masks.sum(0).tolist() == [1] * 300 and masks.sum(1).tolist() == [30, 60, 210]


def test_features_are_the_class_and_noise_and_all_follows_from_the_seed() -> None:
    g, again = planted_partition(noise=0.0), planted_partition(noise=0.0)
    assert len(g.ndata["feat"].unique(dim=0)) == 4
    assert all(torch.equal(column, again.ndata[name]) for name, column in g.ndata.items())
    assert torch.equal(torch.stack(g.edges()), torch.stack(again.edges()))
    assert not torch.equal(torch.stack(g.edges()), torch.stack(planted_partition(seed=1).edges()))


@pytest.mark.parametrize("given", [{"num_edges": 3}, {"num_nodes": 3}])
def test_what_cannot_be_is_said(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="an even number of edges, and a node for each class"):
        planted_partition(**given)
