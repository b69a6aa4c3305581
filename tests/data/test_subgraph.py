"""The part of a data set that some entities span, read again from what is written: what sets say, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kgdist.data import subgraph as subgraphs
from kgdist.data.dataset import Dataset, load_dataset
from kgdist.data.subgraph import FILES, FORMAT, Subgraph
from tests.cli.graphs import random_splits, write

Named = list[tuple[str, str, str]]


def named(dataset: Dataset, split: str) -> Named:
    entities, relations = dataset.entities, dataset.relations
    return [(entities[h], relations[r], entities[t]) for h, r, t in dataset.splits[split].array.tolist()]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_subgraph_is_what_its_entities_span(seed: int, weighted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subgraphs, "_PIECE", 40)
    rng = np.random.default_rng(seed)
    names = ("train.tsv", "valid.tsv")
    splits = random_splits(20, 60, seed=seed)  # many relations: some are lost
    for name, split in zip(names, (splits[0], splits[1] + splits[2]), strict=True):
        write(tmp_path / name, [(*triple, 0.5 + row) if weighted else triple for row, triple in enumerate(split)])
    whole = load_dataset(path=tmp_path, name="toy", format="raw_udd_hrt", files=names, weighted=weighted)
    ends = whole.train.array[rng.random(len(whole.train)) < 0.1][:, [0, 2]]
    kept = np.zeros(len(whole.entities), bool)
    kept[ends] = True
    there = {whole.entities[int(each)] for each in np.flatnonzero(kept)}
    wanted = [row for row, each in enumerate(splits[0]) if each[0] in there and each[2] in there]
    links = {splits[0][row][1] for row in wanted}
    held = [each for each in splits[1] + splits[2] if each[0] in there and each[2] in there and each[1] in links]

    part = Subgraph(whole, kept)
    folder = tmp_path / "part"
    folder.mkdir()
    part.write(folder)
    assert held and len(there) < 20 and len(wanted) < 150
    assert (part.entities, part.train, part.valid) == (len(there), len(wanted), len(held))
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    again = load_dataset(path=folder, name="part", format=FORMAT, files=FILES, weighted=weighted)
    assert set(again.entities) == there and set(again.relations) == links and again.test is None
    assert named(again, "train") == [splits[0][row] for row in wanted] and named(again, "valid") == held
    if weighted:
        assert again.train.weights is not None and again.train.weights.tolist() == [0.5 + row for row in wanted]
