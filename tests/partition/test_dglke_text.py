"""Text partitions: what is written is what DGL-KE's rules say, what is read is what was written, and strange files are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import CheckpointError, DataError
from kgdist.data.dataset import Dataset
from kgdist.partition.dglke_text import read_text, write_text
from tests.partition.worlds import communities, dataset, graphs


def numbers(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()]


@settings(max_examples=15)
@given(graph=graphs(), parts=st.integers(1, 4), seed=st.integers(0, 99))
def test_text_partitions_hold_the_graph_and_lead_back(
    graph: tuple[int, int, np.ndarray], parts: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entities, relations, train = graph
    root = tmp_path_factory.mktemp("text")
    world = dataset(root / "graph", train, entities=entities, relations=relations)
    assigned = np.random.default_rng(seed).integers(0, parts, entities).astype(np.int32)
    back: list[tuple[int, ...]] = []
    for part, folder in enumerate(write_text(world, assigned, parts, root)):
        local, rows = numbers(folder / "local_to_global.txt"), (folder / "train.txt").read_text().splitlines()
        own = [(local[h], r, local[t]) for h, r, t in (map(int, row.split("\t")) for row in rows)]
        assert all(assigned[tail] == part for _, _, tail in own)
        inner = {entity for entity in range(entities) if assigned[entity] == part}
        assert local == sorted(inner | {head for head, _, _ in own})
        assert numbers(folder / "partition_book.txt") == assigned.tolist()
        assert numbers(folder / "relation_count.txt") == [relations]
        back += own
    assert sorted(back) == sorted(map(tuple, train.tolist()))
    again, count = read_text(world, root)
    assert count == parts and again.dtype == np.int32 and (again == assigned).all()


@pytest.fixture
def world(tmp_path: Path) -> Dataset:
    """A data set whose two text partitions lie in tmp_path."""
    made = dataset(tmp_path / "graph", communities(entities=20, degree=3, groups=2), entities=20, relations=5)
    write_text(made, (np.arange(20) % 2).astype(np.int32), 2, tmp_path)
    return made


def lines(change: Callable[[list[str]], list[str]]) -> Callable[[str], str]:
    return lambda text: "".join(f"{line}\n" for line in change(text.splitlines()))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train.txt", lines(lambda rows: rows[:-1]), "not the triples of toy"),
        ("train.txt", lines(lambda rows: [*rows, rows[0]]), "not the triples of toy"),
        ("train.txt", lines(lambda rows: ["0\t0\t99", *rows[1:]]), "train.txt:1: tail id 99 is out of range"),
        ("train.txt", lines(lambda rows: ["0\t0", *rows[1:]]), "train.txt:1: "),
        ("local_to_global.txt", lines(lambda ids: ids[::-1]), "local_to_global.txt: must ascend"),
        ("local_to_global.txt", lines(lambda ids: [*ids[:-1], "20"]), "entity 20 is out of range"),
        ("local_to_global.txt", lines(lambda ids: [*ids[:-1], "x"]), "expected one whole number a line"),
        ("partition_book.txt", lines(lambda parts: parts[:-1]), "partition_book.txt: "),
        ("partition_book.txt", lines(lambda parts: ["2", *parts[1:]]), "partition_book.txt"),
        ("partition_book.txt", lines(lambda parts: parts[::-1]), "partition_book.txt"),
        ("relation_count.txt", lambda text: "6\n", "relation_count.txt: toy has 5 relations"),
        ("relation_count.txt", lambda text: "", "relation_count.txt: has 0 lines, expected 1"),
    ],
)
@pytest.mark.parametrize("part", [0, 1])
def test_a_file_that_does_not_fit_is_named(
    world: Dataset, tmp_path: Path, part: int, name: str, change: Callable[[str], str], message: str
) -> None:
    file = tmp_path / f"partition_{part}" / name
    file.write_text(change(file.read_text()))
    with pytest.raises(DataError) as caught:
        read_text(world, tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_order_of_triples_is_free(world: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "partition_1" / "train.txt"
    file.write_text("".join(sorted(file.read_text().splitlines(keepends=True))))
    assert read_text(world, tmp_path)[1] == 2


def test_missing_text_partitions_are_told(world: Dataset, tmp_path: Path) -> None:
    (tmp_path / "partition_0").rename(tmp_path / "partition_2")
    for root in (tmp_path, tmp_path / "graph"):
        with pytest.raises(CheckpointError, match="has no text partitions"):
            read_text(world, root)
