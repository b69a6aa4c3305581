"""A partition whose files are damaged but of their size: refused in one line, and no loop reads beyond an array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgdist.base.errors import CheckpointError
from kgdist.distributed.current import use
from kgdist.distributed.dist_graph import DistGraph
from kgdist.distributed.standalone import Standalone
from kgdist.partition.partition_graph import open_partition
from kgdist.sampling.neighbours import sample_neighbors
from tests.partition.typed_worlds import HOMOGENEOUS

KEPT = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(changes=st.dictionaries(st.integers(0, 20), st.integers(-(2**63), 2**63 - 1), min_size=1))
@KEPT
def test_starts_ascend_or_the_partition_is_refused(changes: dict[int, int], root: Path) -> None:
    file = root / "partition_1" / "edges.0.starts.npy"
    whole = file.read_bytes()
    starts = np.load(file)
    edges = starts[-1]
    for place, value in changes.items():
        starts[place % len(starts)] = value
    np.save(file, starts)
    sound = starts[0] == 0 and starts[-1] == edges and sorted(starts.tolist()) == starts.tolist()
    try:
        found = open_partition(root / "toy.json", 1)
        assert sound and found.starts[HOMOGENEOUS].tolist() == starts.tolist()
    except CheckpointError as error:
        assert not sound and "partition_1/edges.0.starts.npy: damaged, it does not ascend from 0 to " in str(error)
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize("node", [-1, 60, 2**31 - 1, -(2**31)])
def test_a_source_that_is_no_node_is_named_when_it_is_met(node: int, root: Path) -> None:
    file = root / "partition_1" / "edges.0.sources.npy"
    sources = np.load(file)
    sources[3] = node
    np.save(file, sources)
    use(Standalone())
    graph = DistGraph("toy", part_config=root / "toy.json")
    first = int(graph.get_partition_book().edge_starts(None)[1])
    asked: list[Any] = [lambda: graph.find_edges([first + 3]), lambda: sample_neighbors(graph, np.arange(60), -1)]
    for ask in asked:
        with pytest.raises(CheckpointError, match=f"from node {node}, and there are 60: the files of a partition are damaged"):
            ask()
    with pytest.raises(CheckpointError, match="edges.0.sources.npy: its content has changed"):
        open_partition(root / "toy.json", 1, verify=True)
    use(Standalone())


@pytest.mark.parametrize("parts", ["Infinity", "NaN", "1e400", "null", "-1", "[3]"])
def test_a_number_of_partitions_that_is_none_is_refused(parts: str, root: Path) -> None:
    file = root / "toy.json"
    file.write_text(file.read_text().replace('"num_parts": 3', f'"num_parts": {parts}'))
    with pytest.raises(Exception, match="toy.json: (does not describe partitions|there is no partition)") as error:
        open_partition(file, 0)
    assert "\n" not in str(error.value)
