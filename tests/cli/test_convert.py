"""kgdist-convert on files: there and back, weights, N-Triples, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow.parquet
import pytest

from kgdist.cli import convert as convert_command
from tests.cli.graphs import FILES, Bench, tree, write

SPLITS = ("train", "valid", "test")


def converted(bench: Bench, *words: str) -> list[str]:
    """Run the command; the lines it prints."""
    bench.out()
    assert convert_command.main(words) == 0, bench.capsys.readouterr().err
    return bench.out().splitlines()


def refused(bench: Bench, *words: str) -> str:
    """The line of error; nothing new below the bench."""
    before = {name for name in tree(bench.root) if ".kgdist" not in name}
    line = bench.refused(convert_command.main, words)
    assert {name for name in tree(bench.root) if ".kgdist" not in name} == before
    return line


@pytest.mark.parametrize(
    ("to", "files"),
    [
        ("udd_thr", ["entities.tsv", "relations.tsv", "train.tsv", "valid.tsv", "test.tsv"]),
        ("raw_udd_rth", ["train.tsv", "valid.tsv", "test.tsv"]),
        ("parquet", ["train.parquet", "valid.parquet", "test.parquet"]),
        ("libkge", ["entity_ids.del", "relation_ids.del", "train.del", "valid.del", "test.del"]),
        ("pykeen", ["train.txt", "valid.txt", "test.txt"]),
    ],
)
def test_there_and_back(bench: Bench, to: str, files: list[str]) -> None:
    there, back = bench.root / "there", bench.root / "back"
    printed = converted(bench, "--data_path", str(bench.data), "--data_files", *FILES, "--to", to, "--out", str(there))
    assert {str(there / file) for file in files} < set(printed)
    form = {"parquet": "raw_udd_hrt", "libkge": "udd_hrt", "pykeen": "raw_udd_hrt"}.get(to, to)
    converted(bench, "--data_path", str(there), "--data_files", *files, "--input_format", form, "--output_path", str(back))
    assert [(back / f"{split}.tsv").read_bytes() for split in SPLITS] == [(bench.data / name).read_bytes() for name in FILES]


def test_by_way_of_ntriples(bench: Bench) -> None:
    there, back, base = bench.root / "there", bench.root / "back", ("--base", "http://example.org/")
    converted(bench, "--data_path", str(bench.data), "--data_files", *FILES, *base, "--to", "ntriples", "--out", str(there))
    names = [f"{split}.nt" for split in SPLITS]
    (there / "train.nt.gz").write_bytes(gzip.compress((there / "train.nt").read_bytes()))
    names[0] = "train.nt.gz"
    converted(bench, "--data_path", str(there), "--data_files", *names, *base, "--out", str(back))
    assert [(back / f"{split}.tsv").read_bytes() for split in SPLITS] == [(bench.data / name).read_bytes() for name in FILES]
    converted(bench, "--data_path", str(there), "--data_files", *names, "--out", str(bench.root / "long"))
    assert (bench.root / "long/train.tsv").read_text().startswith("http://example.org/e")


def test_weights_are_kept(bench: Bench) -> None:
    write(bench.data / "train.tsv", [("a", "r", "b", 0.1), ("b", "r", "a", 3)])
    own = ("--data_path", str(bench.data), "--data_files", "train.tsv", "--has_edge_importance")
    converted(bench, *own, "--to", "parquet", "--out", str(bench.root / "there"))
    assert pyarrow.parquet.read_table(bench.root / "there/train.parquet").column("weight").to_pylist()[1] == 3
    words = ("--data_path", str(bench.root / "there"), "--data_files", "train.parquet", "--has_edge_importance")
    converted(bench, *words, "--out", str(bench.root / "back"))
    assert (bench.root / "back/train.tsv").read_text() == "a\tr\tb\t0.1\nb\tr\ta\t3\n"
    assert "libkge has no place for the weights" in refused(bench, *own, "--to", "libkge", "--out", str(bench.root / "no"))


def test_a_built_in_set(bench: Bench) -> None:
    out = bench.root / "wordnet_ids"
    built = ("--input_format", "built_in", "--dataset", "wordnet", "--data_path", str(bench.data))
    converted(bench, *built, "--to", "udd_hrt", "--out", str(out))
    assert len((out / "train.tsv").read_text().splitlines()) == 89_218


def test_other_delimiters_and_headers(bench: Bench) -> None:
    bench.data.joinpath("comma.csv").write_text("from,what,to\na,r,b|c\n")
    own = ("--data_path", str(bench.data), "--data_files", "comma.csv", "--delimiter", ",", "--header")
    converted(bench, *own, "--out", str(bench.root / "tabs"))
    assert (bench.root / "tabs/train.tsv").read_text() == "a\tr\tb|c\n"
    line = refused(bench, *own, "--output_delimiter", "|", "--out", str(bench.root / "pipes"))
    assert "comma.csv:2: tail 'b|c' cannot stand in a line that is split at '|'" in line


def test_what_is_missing_or_has_no_say(bench: Bench) -> None:
    own, out = ("--data_path", str(bench.data), "--data_files", *FILES), ("--out", str(bench.root / "out"))
    for words, message in (
        (own, "--output_path: say which folder to write"),
        (("--data_path", str(bench.data), *out), "--data_files: --format raw_udd_hrt takes 1 to 3 files"),
        ((*own, *out, "--dataset", "FB15k"), "--dataset: goes with --input_format built_in"),
        ((*out, "--input_format", "built_in"), "--dataset: say which data set"),
        (
            (*own, *out, "--input_format", "raw_udd_htx"),
            "--input_format: must be built_in, or raw_udd_XYZ or udd_XYZ with XYZ the",
        ),
        ((*own, *out, "--to", "csv"), "--output_format: 'csv' is not a layout"),
        ((*own, *out, "--base", "http://example.org/"), "--base: has an effect only where N-Triples are read or written"),
        ((*own, *out, "--to", "ntriples"), "train.tsv:1: head 'e"),
        ((*own, "--out", str(bench.data)), "holds other files already; name a new folder"),
        ((*own, *out, "--to", "udd_hrt", "--header=maybe"), "--header: must be one of no, yes, auto"),
    ):
        assert message in refused(bench, *words)
    bench.data.joinpath("train.tsv").write_text("a\tb\n")
    assert "train.tsv:1: " in refused(bench, *own, *out)
    bench.data.joinpath("train.tsv").write_text("")
    assert "train.tsv: is empty" in refused(bench, *own, *out)


def test_it_is_written_again_by_force(bench: Bench) -> None:
    own, out = ("--data_path", str(bench.data), "--data_files", *FILES), bench.root / "out"
    converted(bench, *own, "--out", str(out), "--to", "libkge")
    assert "--force replaces it" in refused(bench, *own, "--out", str(out))
    converted(bench, *own, "--out", str(out), "--force")
    assert {path.name for path in Path(out).iterdir()} == {"train.tsv", "valid.tsv", "test.tsv", "export.json"}
