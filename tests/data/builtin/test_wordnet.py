"""The graph that ships in the package: small, whole, without inverse relations, and made by the script that says so."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgdist.base.errors import KgdistError
from kgdist.data.builtin import catalog
from kgdist.data.builtin.catalog import BUILTIN, ensure
from tests.patience import patience

PACKAGED = catalog.PACKAGED
SOURCE = Path("/usr/share/wordnet")
SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "build_wordnet.py"
SPLITS = ("train", "valid", "test")
SYMMETRIC = {"derivationally_related_form", "similar_to", "verb_group"}

Triple = tuple[str, str, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure("wordnet", tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def graph(folder: Path) -> dict[str, list[Triple]]:
    def rows(split: str) -> Iterator[Triple]:
        for line in (folder / f"{split}.txt").read_text(encoding="ascii").splitlines():
            head, relation, tail = line.split("\t")
            yield head, relation, tail

    return {split: list(rows(split)) for split in SPLITS}


def dictionary(path: Path) -> list[str]:
    pairs = [line.split("\t") for line in path.read_text(encoding="ascii").splitlines()]
    assert [int(number) for number, _ in pairs] == list(range(len(pairs)))
    return [name for _, name in pairs]


def test_it_is_small_and_carries_its_licence(folder: Path) -> None:
    assert sum(path.stat().st_size for path in PACKAGED.iterdir()) <= 2 << 20
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        ["LICENSE", "README.md", "entities.dict", "relations.dict", "test.txt", "train.txt", "valid.txt"]
    )
    assert [p.name for p in folder.parent.iterdir()] == ["wordnet"]
    licence = (folder / "LICENSE").read_text(encoding="ascii")
    assert "WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved." in licence
    assert licence.startswith("This software and database is being provided") and licence.rstrip().endswith("preserve same.")


def test_its_counts_are_those_of_the_table_and_of_its_readme(folder: Path, graph: dict[str, list[Triple]]) -> None:
    known = BUILTIN["wordnet"]
    assert tuple(len(graph[split]) for split in SPLITS) == known.splits
    assert len(dictionary(folder / "entities.dict")) == known.entities
    assert len(dictionary(folder / "relations.dict")) == known.relations
    readme = (folder / "README.md").read_text(encoding="utf-8")
    train, valid, test = (len(graph[split]) for split in SPLITS)
    assert f"{known.entities:,} entities, {known.relations} relations, {train:,} training, " in readme
    assert f"{valid:,} validation and {test:,} test triples" in readme
    line = re.compile(r"^\| (\w+)(?: \([^)]*\))? \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)
    table = {row[0]: row[1:] for row in line.findall(readme)}
    for relation in dictionary(folder / "relations.dict"):
        assert table.pop(relation) == tuple(f"{sum(r == relation for _, r, _ in graph[split]):,}" for split in SPLITS)
    assert table == {}


def test_all_names_are_in_the_dictionaries_and_in_train(folder: Path, graph: dict[str, list[Triple]]) -> None:
    entities, relations = dictionary(folder / "entities.dict"), dictionary(folder / "relations.dict")
    assert len(set(entities)) == len(entities) and "dog.n.01" in entities
    assert all(re.fullmatch(r"[^\s]+\.[nvasr]\.\d\d", name) for name in entities)
    assert {name for head, _, tail in graph["train"] for name in (head, tail)} == set(entities)
    assert {relation for _, relation, _ in graph["train"]} == set(relations)
    for split in ("valid", "test"):
        assert {name for head, _, tail in graph[split] for name in (head, tail)} <= set(entities)
        assert {relation for _, relation, _ in graph[split]} == set(relations)


def test_no_triple_comes_twice_and_the_share_of_symmetric_twins_is_the_one_stated(graph: dict[str, list[Triple]]) -> None:
    triples = [triple for split in SPLITS for triple in graph[split]]
    assert len(set(triples)) == len(triples) and all(head != tail for head, _, tail in triples)
    train = set(graph["train"])
    share = sum((tail, relation, head) in train for head, relation, tail in graph["test"]) / len(graph["test"])
    assert f"{100 * share:.1f} % of the test triples have their twin" in (PACKAGED / "README.md").read_text(encoding="utf-8")


def test_no_relation_is_the_inverse_of_another(graph: dict[str, list[Triple]]) -> None:
    """Symmetric relations have (nearly) all twins, and no reversed relation is mostly another one, as 7 pairs of WN18 are."""
    triples = {triple for split in SPLITS for triple in graph[split]}
    by_relation: dict[str, set[tuple[str, str]]] = {}
    for head, relation, tail in triples:
        by_relation.setdefault(relation, set()).add((head, tail))
    for one, pairs in by_relation.items():
        reverse = {(tail, head) for head, tail in pairs}
        for other, theirs in by_relation.items():
            share = len(reverse & theirs) / len(pairs)
            if one == other:
                # Some twenty derivations are pointed at in one direction only, and more of also_see.
                low, high = (0.999, 1) if one in SYMMETRIC else (0.5, 0.95) if one == "also_see" else (0, 0.01)
                assert low <= share <= high, (one, share)
            else:
                assert share < 0.4, (one, other, share)  # a third of the attributes are derivations as well


def test_known_facts_are_there(graph: dict[str, list[Triple]]) -> None:
    triples = {triple for split in SPLITS for triple in graph[split]}
    assert ("dog.n.01", "hypernym", "canine.n.02") in triples
    assert ("dog.n.01", "member_meronym", "canis.n.01") not in triples and ("canis.n.01", "member_meronym", "dog.n.01") in triples
    assert ("car.n.01", "has_part", "accelerator.n.01") in triples


def test_a_damaged_installation_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "PACKAGED", tmp_path / "package")
    with pytest.raises(KgdistError, match=r"wordnet\.zip: no such file; the installation is damaged, install kgdist again"):
        ensure("wordnet", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_the_script_makes_the_very_same_files(tmp_path: Path) -> None:
    if not (SOURCE / "data.noun").is_file():
        pytest.skip(f"WordNet 3.0 is not at {SOURCE} (Debian's package wordnet-base)")
    subprocess.run([sys.executable, SCRIPT, "--out", tmp_path], check=True, capture_output=True, timeout=patience(100))
    assert (tmp_path / "LICENSE").read_bytes() == (PACKAGED / "LICENSE").read_bytes()
    # Members, not the archive: the compressed bytes differ between releases of zlib.
    with zipfile.ZipFile(tmp_path / "wordnet.zip") as made, zipfile.ZipFile(PACKAGED / "wordnet.zip") as shipped:
        assert made.namelist() == shipped.namelist() and len(made.namelist()) == 5
        for name in made.namelist():
            assert made.read(name) == shipped.read(name), name
