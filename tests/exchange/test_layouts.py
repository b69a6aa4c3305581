"""Every layout, read back: the same names byte for byte, the same triples in the same order, or a refusal that says where."""

from __future__ import annotations

import csv
import gzip
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import DataError, KgdistError, OptionError, UsageError
from kgdist.data.dataset import Dataset, load_dataset
from kgdist.data.read.columns import Spec
from kgdist.data.read.formats import ORDERS
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange import graphs as graph_module
from kgdist.exchange.graphs import IRI, LITERAL, NODE, Written, convert, unbased, without_base
from kgdist.exchange.layouts import layout
from tests.cli.graphs import tree
from tests.exchange.graphs import BASE, HARD, Triple, graph, graphs, names, read
from tests.exchange.sources import full_disk

Told = tuple[Written, dict[str, list[Triple]]]
few = settings(max_examples=12, deadline=None)


@contextmanager
def written(made: Written, name: str, delimiter: str = "\t", base: str | None = None) -> Iterator[Path]:
    """The folder of a conversion."""
    with tempfile.TemporaryDirectory() as folder:
        convert(made, name, layout(name, delimiter=delimiter, base=base), Path(folder, "out"))
        yield Path(folder, "out")


def used(told: dict[str, list[Triple]]) -> set[str]:
    return {name for triples in told.values() for triple in triples for name in triple}


@few
@given(graphs(weighted=True), st.sampled_from(ORDERS), st.sampled_from(["\t", ",", "||", " ", "é"]))
def test_names_in_text_come_back_or_are_refused(made: Told, order: str, delimiter: str) -> None:
    found, told = made
    if any((name + delimiter).find(delimiter) != len(name) for name in used(told)):
        with (
            pytest.raises(DataError, match="cannot stand in a line that is split at"),
            written(found, f"raw_udd_{order}", delimiter),
        ):
            pass
        return
    with written(found, f"raw_udd_{order}", delimiter) as folder:
        for split, triples in told.items():
            rows = read(folder / f"{split}.tsv", Spec(order, delimiter, weights=True))
            assert [row[:3] for row in rows] == triples
            weights = found.dataset.splits[split].weights
            assert weights is not None and np.array_equal(np.array([row[3] for row in rows], np.float32), weights)


@few
@given(graphs(), st.sampled_from(ORDERS), st.sampled_from(["\t", "|"]))
def test_ids_and_dictionaries_come_back(made: Told, order: str, delimiter: str) -> None:
    found, told = made
    with written(found, f"udd_{order}", delimiter) as folder:
        entities, relations = (Vocabulary.read_tsv(folder / f"{kind}.tsv", delimiter) for kind in ("entities", "relations"))
        assert (list(entities), list(relations)) == (list(found.dataset.entities), list(found.dataset.relations))
        for split in told:
            rows = read(folder / f"{split}.tsv", Spec(order, delimiter, limits=(len(entities), len(relations))))
            assert np.array_equal(np.array(rows), found.dataset.splits[split].array)


@few
@given(graphs(weighted=True))
def test_parquet_holds_any_name(made: Told) -> None:
    found, told = made
    with written(found, "parquet") as folder:
        for split, triples in told.items():
            rows = read(folder / f"{split}.parquet", Spec(weights=True))
            assert [row[:3] for row in rows] == triples
            assert pyarrow.parquet.read_schema(folder / f"{split}.parquet").names == ["head", "relation", "tail", "weight"]


@few
@given(graphs())
def test_pykeen_gets_fields_of_csv_and_the_same_ids(made: Told) -> None:
    found, told = made
    with written(found, "pykeen") as folder:
        for split, triples in told.items():
            text = (folder / f"{split}.txt").read_bytes().decode("utf-8-sig")  # pandas takes a mark off, too
            lines = text.split("\n")
            assert lines.pop() == ""
            assert [tuple(row) for row in csv.reader(lines, delimiter="\t")] == triples
        for kind, vocabulary in (("entity", found.dataset.entities), ("relation", found.dataset.relations)):
            lines = gzip.decompress((folder / f"{kind}_to_id.tsv.gz").read_bytes()).decode().split("\n")[:-1]
            rows = list(csv.reader(lines, delimiter="\t"))
            assert rows == [["id", "label"], *([str(number), name] for number, name in enumerate(vocabulary))]


def test_pandas_reads_what_pykeen_gets() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    triples = [(name, "r", HARD[place - 1]) for place, name in enumerate(HARD)]
    made = graph(triples)
    with written(made, "pykeen") as folder:
        rows = pandas.read_csv(folder / "train.txt", sep="\t", header=None, dtype=str, keep_default_na=False, encoding="utf-8")
        assert list(rows.itertuples(index=False, name=None)) == triples
        labels = pandas.read_csv(folder / "entity_to_id.tsv.gz", sep="\t", keep_default_na=False, dtype={"label": str})
        assert list(labels["label"]) == list(made.dataset.entities) and list(labels["id"]) == list(range(len(HARD)))


@few
@given(graphs())
def test_libkge_folders_are_udd_and_raw_udd_too(made: Told) -> None:
    found, told = made
    if any("\t" in name for name in used(told)):
        with pytest.raises(DataError, match="split at '.t'"), written(found, "libkge"):
            pass
        return
    with written(found, "libkge") as folder:
        entities, relations = (Vocabulary.read_tsv(folder / f"{kind}_ids.del") for kind in ("entity", "relation"))
        assert (list(entities), list(relations)) == (list(found.dataset.entities), list(found.dataset.relations))
        facts = yaml.safe_load((folder / "dataset.yaml").read_text())["dataset"]
        assert (facts["name"], facts["num_entities"], facts["num_relations"]) == ("toy", len(entities), len(relations))
        for split, triples in told.items():
            assert facts[f"files.{split}.size"] == len(triples) and facts[f"files.{split}.type"] == "triples"
            assert np.array_equal(np.loadtxt(folder / f"{split}.del", int, ndmin=2), found.dataset.splits[split].array)
            assert read(folder / f"{split}.txt", Spec()) == triples


STATEMENT = re.compile(rf"(?:<{IRI}>|{NODE}) <{IRI}> (?:<{IRI}>|{NODE}|{LITERAL}) \.")


@few
@given(graphs(), st.sampled_from([None, BASE, "urn:"]))
def test_statements_are_of_the_grammar_and_come_back(made: Told, base: str | None) -> None:
    found, told = made
    if base is None and not free(told):
        with pytest.raises(DataError, match=r"train.tsv|valid.tsv|test.tsv"), written(found, "ntriples"):
            pass
        return
    with written(found, "ntriples", base=base) as folder:
        for split, triples in told.items():
            lines = (folder / f"{split}.nt").read_text(encoding="utf-8").split("\n")
            assert lines.pop() == "" and all(STATEMENT.fullmatch(line) for line in lines)
            rows = read(folder / f"{split}.nt", Spec())
            if base is not None:
                rows = [tuple(short(str(name), base, place == 1) for place, name in enumerate(row)) for row in rows]
            assert rows == triples


def free(told: dict[str, list[Triple]]) -> bool:
    """Whether every name is a term where it stands, without a base."""
    triples = [triple for split in told.values() for triple in split]
    heads = {head for head, _, _ in triples}
    ends = all(
        re.fullmatch(f"{IRI}|{NODE}" if name in heads else f"{IRI}|{NODE}|{LITERAL}", name)
        for h, _, t in triples
        for name in (h, t)
    )
    return ends and all(re.fullmatch(IRI, relation) for _, relation, _ in triples)


def short(name: str, base: str, relation: bool) -> str:
    return unbased(Vocabulary.from_names([name]), base, relations=relation)[0]


@given(st.lists(names, min_size=1, max_size=5, unique=True))
def test_a_base_that_was_not_ours_is_left_where_it_would_lie(found: list[str]) -> None:
    """What `--base` takes off, it would put on again: names that it would write otherwise stay."""
    for name in found:
        made = short(name, BASE, False)
        if made != name:
            assert not re.fullmatch(f"{IRI}|{NODE}", made) or made.startswith(BASE)


def test_names_that_become_one_are_refused() -> None:
    with pytest.raises(OptionError, match="--base: two names .* would become one .*'dog' appears twice"):
        unbased(Vocabulary.from_names(["dog", BASE + "dog"]), BASE)


def test_built_in_is_read_by_that_name(tmp_path: Path) -> None:
    triples = [(name, "r", name) for name in HARD if "\t" not in name]
    convert(graph(triples), "built_in", layout("built_in"), tmp_path / "mine")
    again = load_dataset(path=tmp_path, name="mine")
    assert named(again) == triples and list(again.entities) == [h for h, _, _ in triples]


def named(dataset: Dataset) -> list[tuple[str, str, str]]:
    e, r = dataset.entities, dataset.relations
    return [(e[h], r[k], e[t]) for h, k, t in dataset.train.array]


def test_a_refusal_names_the_first_triple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "PIECE", 2)
    made = graph([("a", "r", "b"), ("b", "r", "c"), ("c", "r", "a"), ("a", "r|s", "x|y"), ("x|y", "r", "a")])
    with (
        pytest.raises(DataError, match=r"train.tsv:4: relation 'r\|s' cannot stand in a line"),
        written(made, "raw_udd_hrt", "|"),
    ):
        pass
    with pytest.raises(DataError, match=r"train.tsv:4: tail 'x\|y'"), written(made, "raw_udd_thr", "|"):
        pass
    headed = Written(made.dataset, made.files, headed=frozenset(made.dataset.splits))
    with pytest.raises(DataError, match=r"train.tsv:5: relation"), written(headed, "raw_udd_rht", "|"):
        pass
    parquet = Written(made.dataset, {"train": Path("train.parquet")})
    with pytest.raises(DataError, match=r"train.parquet: triple 4: relation"), written(parquet, "raw_udd_hrt", "|"):
        pass
    long = graph([("a", "r", "n" * 300_000)])
    with pytest.raises(DataError, match=r"tail 'n{77}\.\.\.' is longer than 262,144 bytes"), written(long, "raw_udd_hrt"):
        pass


def test_pieces_of_any_size_are_the_whole_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = graph([(f"e{n % 7}", f"r{n % 3}", f"e{n % 5}") for n in range(100)])
    for size in (1, 7, 1000):
        monkeypatch.setattr(graph_module, "PIECE", size)
        for name in ("raw_udd_hrt", "udd_thr", "ntriples", "pykeen", "libkge", "built_in"):
            convert(made, name, layout(name, base=BASE if name == "ntriples" else None), tmp_path / str(size) / name)
    contents = [
        {key.split(f"/{size}/")[1]: value for key, value in tree(tmp_path / str(size)).items() if value} for size in (1, 7, 1000)
    ]
    assert contents[0] == contents[1] == contents[2]


@settings(max_examples=10, deadline=None)
@given(graphs(weighted=True), st.sampled_from(["ntriples", "pykeen", "libkge"]))
def test_weights_without_a_place_are_refused(made: Told, name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} has no place for the weights"), written(made[0], name, base=None):
        pass


def test_what_has_no_say_is_refused() -> None:
    for name, options, message in (
        ("libkge", {"delimiter": ","}, "--output_delimiter: has no effect in the layout libkge"),
        ("ntriples", {"delimiter": ","}, "--output_delimiter: has no effect"),
        ("ntriples", {"base": "example"}, "--base: 'example' is not an absolute IRI"),
        ("raw_udd_hrt", {"delimiter": ""}, "--output_delimiter: '' cannot separate columns"),
        ("raw_udd_hhh", {}, "--output_format: 'raw_udd_hhh' is not a layout; use raw_udd_XYZ .* libkge"),
    ):
        with pytest.raises(OptionError, match=message):
            layout(name, **options)


def test_names_that_stand_in_no_triple_are_missed(caplog: pytest.LogCaptureFixture) -> None:
    made = graph([("a", "r", "b")])
    whole = Written(Dataset(**{**vars(made.dataset), "entities": Vocabulary.from_names(["a", "b", "c"])}), made.files)
    with caplog.at_level("WARNING", "kgdist"), written(whole, "raw_udd_hrt"), written(whole, "udd_hrt"):
        assert [record.getMessage() for record in caplog.records] == [
            "1 entities and 0 relations stand in no triple; this layout has no place for them"
        ]


def test_a_graph_is_written_whole_or_not(tmp_path: Path) -> None:
    made = graph([(f"head {n}", "r", f"tail {n}") for n in range(3000)])
    convert(made, "udd_hrt", layout("udd_hrt"), tmp_path / "out")
    before = tree(tmp_path)
    for name in ("raw_udd_hrt", "ntriples", "parquet", "pykeen", "libkge", "built_in"):
        write = layout(name, base=BASE if name == "ntriples" else None)
        with full_disk(8_000), pytest.raises(KgdistError, match="cannot be written"):
            convert(made, name, write, tmp_path / "out", force=True)
        with pytest.raises(UsageError, match="--force replaces it"):
            convert(made, name, write, tmp_path / "out")
    with pytest.raises(DataError):
        convert(made, "ntriples", layout("ntriples"), tmp_path / "out", force=True)
    assert tree(tmp_path) == before
    assert json.loads((tmp_path / "out/export.json").read_text())["splits"] == {"train": 3000}


def test_rdf_goes_round(tmp_path: Path) -> None:
    """A graph of terms needs no base; with one, names go out as IRIs and come back."""
    triples = [
        ("urn:a", "urn:r", '"é\\n"@fr'),
        ("_:b0", "urn:r", "urn:a"),
        ("urn:a", "urn:r", "dog n.01"),
        ("dog n.01", "is a", "x/y"),
    ]
    convert(graph(triples), "ntriples", layout("ntriples", base=BASE), tmp_path / "nt")
    lines = (tmp_path / "nt/train.nt").read_text().splitlines()
    assert lines[0] == '<urn:a> <urn:r> "é\\n"@fr .'
    assert lines[3] == "<http://example.org/dog%20n.01> <http://example.org/is%20a> <http://example.org/x%2Fy> ."
    dataset = load_dataset(path=tmp_path / "nt", name="x", format="raw_udd_hrt", files=["train.nt"])
    assert named(without_base(dataset, BASE)) == triples
