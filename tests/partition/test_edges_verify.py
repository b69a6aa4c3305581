"""Self-sufficient partitions written, opened and read again; what is wrong is noticed although each file is as it was written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import CheckpointError, OptionError
from kgdist.data.dataset import Dataset
from kgdist.partition.edges import divide_triples
from kgdist.partition.edges_folder import EdgePartition, EdgesInCommon
from kgdist.partition.edges_verify import open_edges, verify_edges
from kgdist.partition.edges_write import write_edges
from kgdist.partition.expansion import EdgeSizes, Expansion, Reach
from kgdist.partition.manifest import Manifest, digest_of, files_of
from tests.partition.worlds import communities, dataset, graphs, partitioned

FULL = Reach(2, (), True, 0)


def cut(data: Dataset, root: Path, parts: int, reach: Reach = FULL, method: str = "hdrf") -> list[Path]:
    """The folders of `data` in self-sufficient partitions below `root`."""
    train, assigned = data.train.array, np.zeros(len(data.train), np.uint8)
    divide_triples(train, len(data.entities), len(data.relations), parts, assigned, method=method)
    made = Expansion(train, assigned, len(data.entities), parts, reach)
    return write_edges(data, made, EdgeSizes.of(made), root, method=method, source={"format": "udd_hrt"})


@pytest.fixture
def toy(tmp_path: Path) -> Dataset:
    triples = communities(entities=90, degree=3, groups=3, mixing=0.02)
    weights = np.arange(1, len(triples) + 1).astype(np.float32)
    return dataset(tmp_path / "data", triples, triples[:9], triples[9:15], entities=95, relations=5, weights=weights)


@pytest.mark.parametrize("reach", [FULL, Reach(1, (), False, 0), Reach(2, (3, 2), True, 5), Reach(0, (), True, 0)])
def test_what_is_written_is_what_is_opened(toy: Dataset, tmp_path: Path, reach: Reach) -> None:
    folders = cut(toy, tmp_path / "parts", 3, reach)
    opened, sizes = verify_edges(tmp_path / "parts", toy)
    train, numbers = toy.train, list[int]()
    for part, each in enumerate(opened):
        assert each.folder == folders[part] and each.part == part and each.graph == opened[0].graph
        assert len(each.hops) == reach.hops + 2 and each.hops[-1] == len(each.entities) and each.num_core == each.hops[1]
        for ids, triples in ((each.core_ids, each.core), (each.support_ids, each.support)):
            rows = triples.array.copy()
            rows[:, ::2] = each.entities[rows[:, ::2]]
            assert (rows == train.array[ids]).all()
            assert triples.weights is not None and train.weights is not None and (triples.weights == train.weights[ids]).all()
        assert set(np.unique(each.core.array[:, ::2])) == set(range(each.num_core))  # core entities come first
        assert {split: triples.array.tolist() for split, triples in each.splits.items()} == {
            "valid": train.array[:9].tolist(),
            "test": train.array[9:15].tolist(),
        }
        numbers += each.core_ids.tolist()
    assert sorted(numbers) == list(range(len(train)))
    assert list(opened[0].vocabularies()[0]) == list(toy.entities)
    with pytest.raises(CheckpointError, match="the names are in partition_0 only"):
        opened[1].vocabularies()
    common = opened[0].manifest.common
    assert common.reach == reach and common.sizes == sizes.to_json() and EdgesInCommon.from_json(common.to_json()) == common


def reseal(root: Path, sizes: Callable[[dict[str, object]], None] = lambda _: None) -> None:
    """Make partition.json of all folders say what is there now."""
    opened = sorted(root.glob("partition_*"))
    found = [Manifest.read(folder, EdgesInCommon) for folder in opened]
    files = [files_of(folder) for folder in opened]
    common = dataclasses.replace(found[0].common, contents=tuple(map(digest_of, files)))
    sizes(common.sizes)
    for part, folder in enumerate(opened):
        Manifest(part, common, files[part]).write(folder)


def change(file: Path, how: Callable[[np.ndarray], np.ndarray]) -> None:
    np.save(file, how(np.load(file)))


def drop(folder: Path, name: str, row: int) -> None:
    """A triple less."""
    for file in sorted(folder.glob(f"{name}*.npy")):
        change(file, lambda array: np.delete(array, row, axis=0))

    def fewer(sizes: dict[str, object]) -> None:
        counts = sizes[name]
        assert isinstance(counts, list)
        counts[int(folder.name[-1])] -= 1

    reseal(folder.parent, fewer)


@pytest.mark.parametrize("row", [0, 7, -1])
def test_a_support_edge_less_is_noticed(toy: Dataset, tmp_path: Path, row: int) -> None:
    folder = cut(toy, tmp_path / "parts", 3)[1]
    number = int(np.load(folder / "support.ids.npy")[row])
    drop(folder, "support", row)
    open_edges(tmp_path / "parts", verify=True)  # every file is as partition.json says
    with pytest.raises(CheckpointError, match=rf"partition_1/support.ids.npy: triple {number} of the train split"):
        verify_edges(tmp_path / "parts", toy)


@settings(max_examples=10, deadline=None)
@given(world=graphs(), parts=st.integers(2, 3), hops=st.integers(1, 2), inverse=st.booleans(), data=st.data())
def test_any_support_edge_less_is_noticed(tmp_path_factory, world, parts, hops, inverse, data) -> None:  # type: ignore[no-untyped-def]
    entities, relations, triples = world
    root = tmp_path_factory.mktemp("law")
    toy = dataset(root / "data", triples, entities=entities, relations=relations)
    folders = cut(toy, root / "parts", parts, Reach(hops, (), inverse, 0))
    verify_edges(root / "parts", toy)
    counts = [len(np.load(folder / "support.ids.npy")) for folder in folders]
    if sum(counts):
        part = data.draw(st.sampled_from([part for part, count in enumerate(counts) if count]))
        drop(folders[part], "support", data.draw(st.integers(0, counts[part] - 1)))
        with pytest.raises(CheckpointError, match="messages to its core entities need"):
            verify_edges(root / "parts", toy)


def test_what_is_not_the_data_set_is_noticed(toy: Dataset, tmp_path: Path) -> None:
    root = tmp_path / "parts"

    def refused(file: str, how: Callable[[np.ndarray], np.ndarray], message: str) -> None:
        cut(toy, root, 3)
        change(root / "partition_2" / file, how)
        reseal(root)
        with pytest.raises(CheckpointError, match=message):
            verify_edges(root, toy)

    refused("core.npy", lambda rows: rows[::-1], "core.npy: other triples than the data set's")
    refused("support.npy", lambda rows: rows + np.array([0, 1, 0], np.int32), "support.npy: other triples")
    refused("core.npy", lambda rows: rows + np.array([999, 0, 0], np.int32), "core.npy: has a local id that is not in 0..")
    refused("core.weights.npy", lambda weights: weights + 1, "core.weights.npy: other weights")
    refused("core.ids.npy", lambda ids: ids[::-1], "core.ids.npy: its numbers must ascend")
    refused("support.ids.npy", lambda ids: ids + 10**6, "support.ids.npy: its numbers must ascend")
    refused("entities.npy", lambda ids: ids[::-1], "entities.npy: not the entities that its core triples reach in 2 hops")
    refused("valid.npy", lambda rows: rows[::-1], "valid.npy: not the triples of the data set")
    cut(toy, root, 3)
    taken = root / "partition_0" / "core.ids.npy"
    change(root / "partition_2" / "core.ids.npy", lambda ids: np.sort(np.append(ids[:-1], np.load(taken)[0])))
    reseal(root)
    with pytest.raises(CheckpointError, match="has a triple that another partition trains on, too"):
        verify_edges(root, toy)
    cut(toy, root, 3)
    drop(root / "partition_1", "core", 0)
    with pytest.raises(CheckpointError, match="damaged"):  # a triple of no partition: the counts do not add up
        verify_edges(root, toy)


def test_other_folders_are_not_taken_for_it(toy: Dataset, tmp_path: Path) -> None:
    root = tmp_path / "parts"
    with pytest.raises(CheckpointError, match="has no folders partition_0"):
        open_edges(root)
    with pytest.raises(CheckpointError, match="no such folder; kgdist-partition --edges makes it"):
        EdgePartition.open(root / "partition_0")
    cut(toy, root, 3)
    assert len(cut(toy, root, 2)) == 2 and not (root / "partition_2").exists()  # replaced by its own kind
    with pytest.raises(
        OptionError, match="is a partition of triples with all that encoders need of others, which is not replaced"
    ):
        partitioned(toy, root, 2)
    partitioned(toy, tmp_path / "others", 2)
    with pytest.raises(CheckpointError, match="a partition of triples, which kgdist-dist-train trains on; wanted"):
        open_edges(tmp_path / "others")
    other = dataset(tmp_path / "more", toy.train.array[1:], entities=95, relations=5)
    with pytest.raises(CheckpointError, match="partitions of another graph than this toy"):
        verify_edges(root, other)


def test_partition_json_is_not_believed(toy: Dataset, tmp_path: Path) -> None:
    folder = cut(toy, tmp_path / "parts", 2)[0]
    common = Manifest.read(folder, EdgesInCommon).common
    for name, value in (
        ("reach", {"hops": 2, "fanout": [1], "inverse": True, "seed": 0}),
        ("sizes", {**common.sizes, "core": [1, 2]}),
        ("sizes", {**common.sizes, "core": [-1, common.splits["train"] + 1]}),
        ("sizes", {**common.sizes, "vertices": [[1], [2]]}),
        ("sizes", {**common.sizes, "support": [1]}),
        ("numbered", [1]),
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            EdgesInCommon.from_json({**common.to_json(), name: value})
