"""kgdist-preprocess on files: a table for people, an object for programs, a draft to begin with, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kgdist.attributes import open_attributes
from kgdist.attributes.declaration import read_declaration
from kgdist.cli import preprocess as preprocess_command
from tests.attributes.entities import WRITERS, rows, schema, write_tsv
from tests.cli.graphs import FILES, Bench, tree


def test_a_folder_and_a_table_of_coverage(bench: Bench) -> None:
    names = sorted(
        {name for file in FILES for line in (bench.data / file).read_text().splitlines() for name in line.split()[::2]}
    )
    table = [row | {"entity": name} for row, name in zip(rows(40), [*names[:20], *(f"x{i}" for i in range(20))], strict=True)]
    path, out = write_tsv(bench.root / "e.tsv", table), bench.root / "out"
    words = ["--entities", str(path), "--schema", str(schema(bench.root)), "--out", str(out)]
    assert preprocess_command.main([*words, *bench.source()]) == 0
    said, warned = bench.capsys.readouterr()
    assert said.splitlines()[0].split() == ["node", "type", "attribute", "kind", "width", "entities", "coverage", "unseen"]
    assert f"written: {out}" in said and "s of work by this process" in said and "MiB of memory" in said
    assert "20 entities are not in the dictionary, such as 'x0': left out" in warned
    assert f"{len(names) - 20} of the dictionary's {len(names)} entities have no attributes" in warned
    opened = open_attributes(out)["person"]
    assert sorted(opened.entities) == names and (opened.rows >= 0).sum() == 20
    assert preprocess_command.main([*words, "--force", "--json", "--fit_on", str(ids(bench.root, [*names[:10], "x1"]))]) == 0
    found = json.loads(bench.out())
    assert found["node_types"]["person"]["fitted_on"] == 11 and set(found["seconds"]) == {"scan", "transform", "work", "whole"}


def ids(folder: Path, names: list[str]) -> Path:
    """A list of entities."""
    path = folder / "ids.txt"
    path.write_text("\n".join(names) + "\n")
    return path


@pytest.mark.parametrize("kind", WRITERS)
def test_a_draft_is_a_schema_that_reads_its_file(bench: Bench, kind: str) -> None:
    path, drafted = WRITERS[kind](bench.root / f"e.{kind}", rows(150)), bench.root / "drafted.yaml"
    assert preprocess_command.main(["--entities", str(path), "--draft_schema", "--schema", str(drafted)]) == 0
    found = read_declaration(drafted)
    kinds = {each.name: each.kind for each in found.attributes}
    assert found.key == "entity" and kinds == {
        "population": "numeric", "height": "numeric", "born": "date", "country": "categorical", "types": "multi",
        "text": "text", "image": "vector",
    }  # fmt: skip
    out = bench.root / "out"
    assert preprocess_command.main(["--entities", str(path), "--schema", str(drafted), "--out", str(out)]) == 0
    bench.out()
    assert preprocess_command.main(["--entities", str(path), "--draft_schema"]) == 0
    assert bench.out() == drafted.read_text()


def test_a_draft_replaces_nothing_unasked(bench: Bench) -> None:
    path, mine = write_tsv(bench.root / "e.tsv", rows(20)), schema(bench.root)
    before = tree(bench.root)
    line = bench.refused(preprocess_command.main, ["--entities", str(path), "--draft_schema", "--schema", str(mine)])
    assert line == f"error: --schema: {mine} is there already; name another file, or --force replaces it"
    assert tree(bench.root) == before
    assert preprocess_command.main(["--entities", str(path), "--draft_schema", "--schema", str(mine), "--force"]) == 0


def test_errors_are_one_line(bench: Bench) -> None:
    path = write_tsv(bench.root / "e.tsv", rows(20))
    mine = schema(bench.root, "key: entity\nattributes: {size: {kind: numeric}}\n")
    out = bench.root / "out"
    line = bench.refused(preprocess_command.main, ["--entities", str(path), "--schema", str(mine), "--out", str(out)])
    assert line.startswith(f"error: {mine}:2: attributes.size: {path} has no column 'size'") and not out.exists()
    line = bench.refused(preprocess_command.main, ["--entities", "none.tsv", "--schema", str(mine), "--out", str(out)])
    assert line == "error: none.tsv: no such file, expected entities" and not out.exists()


def test_without_scikit_learn_it_says_what_to_install(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tsv(bench.root / "e.tsv", rows(20))
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    line = bench.refused(preprocess_command.main, ["--entities", str(path), "--schema", str(schema(bench.root))])
    assert line.startswith("error: --schema: needs a package that is not there") and "pip install 'kgdist[gnn]'" in line
