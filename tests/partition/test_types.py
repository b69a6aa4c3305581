"""Types of entities in partitions: those of the file, under the ids of the partition, in both layouts that machines train on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kgdist.cli import partition as partition_command
from kgdist.partition.edges_folder import EdgePartition
from kgdist.partition.folder import Partition

ENTITIES = 20


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    lines = [f"e{h}\tr{n % 3}\te{t}\n" for n, (h, t) in enumerate(rng.integers(ENTITIES, size=(80, 2)))]
    (tmp_path / "train.tsv").write_text("".join(lines))
    names = sorted({name for line in lines for name in line.split()[::2]})
    (tmp_path / "types.tsv").write_text("".join(f"{name}\tkind{kind}\n" for name in names for kind in {name[-1], len(name)}))
    own = ["--dataset", "toy", "--format", "raw_udd_hrt", "--data_path", str(tmp_path), "--data_files", "train.tsv"]
    return [*own, "--quiet", "-k", "2", "--out", str(tmp_path / "parts")]


def pairs_of(file: Path) -> set[tuple[str, str]]:
    return {tuple(line.split("\t")) for line in file.read_text().splitlines()}  # type: ignore[misc]


@pytest.mark.parametrize("edges", [False, True])
def test_every_partition_has_the_types_of_all(words: list[str], edges: bool, tmp_path: Path) -> None:
    file, more = tmp_path / "types.tsv", ["--edges"] if edges else []
    assert partition_command.main([*words, *more, "--entity_types", str(file), "--verify"]) == 0
    for number in range(2):
        folder = tmp_path / "parts" / f"partition_{number}"
        opened = EdgePartition.open(folder, verify=True) if edges else Partition.open(folder, verify=True)
        if number == 0:
            names = opened.vocabularies()[0]
            originals = np.arange(len(names)) if isinstance(opened, EdgePartition) else opened.originals()
        assert opened.types is not None and len(opened.types) == len(pairs_of(file))
        found = [(names[int(originals[entity])], kind) for entity, kind in opened.types.tolist()]
        by_name = {}
        for name, kind in pairs_of(file):
            by_name.setdefault(kind, set()).add(name)
        by_number: dict[int, set[str]] = {}
        for name, number_of_kind in found:
            by_number.setdefault(number_of_kind, set()).add(name)
        assert sorted(map(sorted, by_number.values())) == sorted(map(sorted, by_name.values()))
    assert partition_command.main([*words, *more]) == 0
    folder = tmp_path / "parts" / "partition_1"
    opened = EdgePartition.open(folder) if edges else Partition.open(folder)
    assert opened.types is None and "types" not in json.loads((folder / "partition.json").read_text())


def test_a_file_that_lacks_entities_is_refused_before_anything_is_divided(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "types.tsv").write_text("e1\tkind\n")
    assert partition_command.main([*words, "--entity_types", str(tmp_path / "types.tsv")]) == 2
    assert "types.tsv: has no line for" in capsys.readouterr().err and not (tmp_path / "parts").exists()
