"""Partitions that are written once for several files of tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kgdist.partition.partition_graph import partition_graph
from tests.partition.typed_worlds import HOMOGENEOUS, communities


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a graph in three partitions, with data."""
    world = communities(nodes=60, degree=4)
    world.nodes["_N"].data["feat"] = torch.randn(60, 2)
    world.edges[HOMOGENEOUS].data["w"] = torch.rand(240)
    partition_graph(world, "toy", 3, tmp_path)
    return tmp_path
