"""Every format, read back by another reader than the writer's: the same numbers, bit for bit, under the same names."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kgdist.base.errors import KgdistError, OptionError, UsageError
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange import source as source_module
from kgdist.exchange.embeddings import DGLKE, TARGETS, export, lines_of, word
from kgdist.exchange.source import Source
from kgdist.runs.opened import open_model
from tests.cli.graphs import MODELS, tree
from tests.exchange.sources import NAMES, full_disk, source


def about(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "export.json").read_text())
    return found


@pytest.mark.parametrize("model", MODELS)
def test_npy_holds_each_table_of_each_model(tmp_path: Path, model: str) -> None:
    made = source(model)
    files = export(made, "npy", tmp_path / "out")
    names = {"entities.tsv", "relations.tsv", "export.json", *(f"{table}.npy" for table in made.tables)}
    assert {file.name for file in files} == names
    for table, rows in made.tables.items():
        assert np.array_equal(np.load(tmp_path / f"out/{table}.npy"), rows)
        told = about(tmp_path / "out")["tables"][table]
        assert (told["rows"], told["width"]) == rows.shape and told["columns"]
    assert list(Vocabulary.read_tsv(tmp_path / "out/entities.tsv")) == list(NAMES)


def test_blocks_of_any_size_are_the_whole_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "BLOCK", 40)  # two rows and a half
    for target in TARGETS:
        export(source(), target, tmp_path / f"small/{target}")
    monkeypatch.undo()
    for target in TARGETS:
        export(source(), target, tmp_path / f"large/{target}")
    small, large = tree(tmp_path / "small"), tree(tmp_path / "large")
    strip = {name.replace("large", "small"): content for name, content in large.items() if not name.endswith(".parquet")}
    assert {name: content for name, content in small.items() if not name.endswith(".parquet")} == strip
    tables = [pyarrow.parquet.read_table(tmp_path / f"{size}/parquet/entity.parquet") for size in ("small", "large")]
    assert tables[0].equals(tables[1]) and tables[0].num_rows == len(NAMES)


def test_safetensors_as_the_format_says(tmp_path: Path) -> None:
    made = source("TransR")
    export(made, "safetensors", tmp_path / "out")
    raw = (tmp_path / "out/embeddings.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    assert (8 + length) % 8 == 0
    facts = header.pop("__metadata__")
    assert (facts["model"], facts["hidden_dim"], facts["gamma"]) == ("TransR", "4", "3.0")
    assert set(header) == {"entity", "relation", "projection"}
    end = 0
    for table, entry in header.items():
        begin, end_of = entry["data_offsets"]
        assert begin == end and entry["dtype"] == "F32"
        end = end_of
        values = np.frombuffer(raw[8 + length :][begin:end_of], "<f4").reshape(entry["shape"])
        assert np.array_equal(values, made.tables[table])
    assert 8 + length + end == len(raw)


def test_safetensors_by_its_own_library(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="the package safetensors is not installed")
    made = source("RotatE")
    export(made, "safetensors", tmp_path / "out")
    read = library.load_file(tmp_path / "out/embeddings.safetensors")
    assert all(np.array_equal(read[table], rows) for table, rows in made.tables.items())


def test_parquet_holds_names_and_lists_of_one_length(tmp_path: Path) -> None:
    made = source("TransR")
    export(made, "parquet", tmp_path / "out")
    entities = pyarrow.parquet.read_table(tmp_path / "out/entity.parquet")
    assert entities.column("name").to_pylist() == list(NAMES)
    assert entities.column("id").to_pylist() == list(range(len(NAMES)))
    assert str(entities.schema.field("embedding").type) == "fixed_size_list<element: float>[4]"
    assert np.array_equal(np.array(entities.column("embedding").to_pylist(), np.float32), made.tables["entity"])
    relations = pyarrow.parquet.read_table(tmp_path / "out/relation.parquet")
    assert np.array_equal(np.array(relations.column("projection").to_pylist(), np.float32), made.tables["projection"])
    assert relations.schema.metadata[b"model"] == b"TransR"


def words(path: Path) -> tuple[list[str], np.ndarray]:
    """word2vec text as any simple program reads it: white space between fields."""
    lines = path.read_text(encoding="utf-8").splitlines()
    count, width = map(int, lines[0].split())
    fields = [line.split() for line in lines[1:]]
    assert len(fields) == count and {len(row) for row in fields} == {width + 1}
    return [row[0] for row in fields], np.array([row[1:] for row in fields], np.float32)


def test_word2vec_is_one_word_and_its_numbers_a_line(tmp_path: Path) -> None:
    made = source()
    export(made, "word2vec", tmp_path / "out")
    names, vectors = words(tmp_path / "out/entity.txt")
    assert np.array_equal(vectors, made.tables["entity"])
    assert names == ["dog.n.01", "New_York", "tab_bed", "Ωmega_", '"quoted"', "no_break", "a,b", "\ufeffmark"]
    export(made, "word2vec", tmp_path / "other", blank="~~")
    assert words(tmp_path / "other/entity.txt")[0][1] == "New~~York"


def test_word2vec_by_gensim(tmp_path: Path) -> None:
    gensim = pytest.importorskip("gensim.models", reason="gensim is not installed")
    made = source()
    export(made, "word2vec", tmp_path / "out")
    read = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "out/entity.txt"), binary=False)
    assert len(read) == len(NAMES)
    assert np.array_equal(read["New_York"], made.tables["entity"][1])


@given(st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=["Cs"]), min_size=1))
def test_a_name_is_one_word_to_every_reader(name: str) -> None:
    made = word(name, "_")
    assert made.split() == made.split(" ") == [made] and (made == name or name.split() != [name])


@pytest.mark.parametrize("names", [("a b", "a\tb"), ("a b", "a_b"), ("a_b", "c", "a b")])
def test_word2vec_refuses_names_that_would_be_one_word(tmp_path: Path, names: tuple[str, ...]) -> None:
    made = source(entities=names)
    with pytest.raises(OptionError, match="--blank: entity .* word 'a_b'.*; give another sign"):
        export(made, "word2vec", tmp_path / "out")
    assert not list(tmp_path.iterdir())
    with pytest.raises(OptionError, match="holds white space itself"):
        export(made, "word2vec", tmp_path / "out", blank="- -")


def test_the_projector_gets_vectors_and_labels_side_by_side(tmp_path: Path) -> None:
    made = source()
    export(made, "projector", tmp_path / "out")
    vectors = np.loadtxt(tmp_path / "out/entity_vectors.tsv", np.float32, delimiter="\t")
    assert np.array_equal(vectors, made.tables["entity"])
    labels = (tmp_path / "out/entity_metadata.tsv").read_text().split("\n")
    assert labels == [*(name.replace("\t", " ") for name in NAMES), ""]  # one column: no header, no tab


def test_tensorboard_reads_the_projector_config(tmp_path: Path) -> None:
    module = "tensorboard.plugins.projector.projector_config_pb2"
    plugin = pytest.importorskip(module, reason="tensorboard is not installed")
    from google.protobuf import text_format

    export(source(), "projector", tmp_path / "out")
    config = plugin.ProjectorConfig()
    text_format.Parse((tmp_path / "out/projector_config.pbtxt").read_text(), config)
    assert [entry.tensor_name for entry in config.embeddings] == ["entity", "relation"]
    for entry in config.embeddings:
        assert (tmp_path / "out" / entry.tensor_path).is_file() and (tmp_path / "out" / entry.metadata_path).is_file()


@pytest.mark.parametrize("model", DGLKE)
def test_a_dglke_folder_is_a_run_again(tmp_path: Path, model: str) -> None:
    made = source(model)
    export(made, "dglke", tmp_path / "out")
    again = Source.of(open_model(tmp_path / "out"))
    assert all(np.array_equal(again.tables[table], rows) for table, rows in made.tables.items())
    assert list(again.names["entity"]) == list(NAMES)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["model_name"], config["model"], config["emb_size"], config["gamma"]) == (model, model, 4, 3.0)
    assert "seed" not in config and config["emp_file"] == config["emap_file"] == "entities.tsv"
    with pytest.raises(OptionError, match="holds both"):
        export(made, "dglke", tmp_path / "half", tables="entity")


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "dglke"])
def test_half_of_a_model(tmp_path: Path, target: str) -> None:
    for tables, other in (("entity", "relation"), ("relation", "entity")):
        files = {path.stem.split("_")[0] for path in export(source("TransR"), target, tmp_path / tables, tables=tables)}
        assert other not in files and {"entity": "relations", "relation": "entities"}[tables] not in files
        assert set(about(tmp_path / tables)["tables"]) == ({"entity"} if tables == "entity" else {"relation", "projection"})


def test_the_meaning_of_halves_and_phases_is_told(tmp_path: Path) -> None:
    export(source("RotatE"), "npy", tmp_path / "out")
    tables = about(tmp_path / "out")["tables"]
    assert tables["entity"]["columns"] == "4 real parts, then 4 imaginary parts"
    assert tables["relation"]["columns"].startswith("phases; the angle in radians is the number times 2.51327")  # pi / (5/4)


def test_an_export_is_whole_or_absent(tmp_path: Path) -> None:
    many = source(entities=tuple(f"name {number}" for number in range(3000)))
    for target in TARGETS:
        with (
            full_disk(20_000),
            pytest.raises(KgdistError, match=r"out: cannot be written \(.*; nothing there has changed") as told,
        ):
            export(many, target, tmp_path / "out")
        assert told.value.exit_code == 1
        assert not list(tmp_path.iterdir()), target


def test_only_an_export_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(source(), "npy", out)
    with pytest.raises(UsageError, match="is there already; --force replaces it"):
        export(source(), "word2vec", out)
    export(source(), "word2vec", out, force=True)
    assert not (out / "entity.npy").exists() and (out / "entity.txt").exists()
    (out / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="mine.txt: was not written by the command that wrote"):
        export(source(), "npy", out, force=True)
    assert (out / "mine.txt").read_text() == "precious"
    for strange, message in (
        (tmp_path, "holds other files"),
        (out / "mine.txt", "is not a folder"),
        (out / "mine.txt/x", "cannot be"),
    ):
        before = tree(tmp_path)
        with pytest.raises(UsageError, match=message):
            export(source(), "npy", strange, force=True)
        assert tree(tmp_path) == before
    (tmp_path / "empty").mkdir()
    export(source(), "npy", tmp_path / "empty")


def test_a_disk_full_while_replacing_keeps_the_old(tmp_path: Path) -> None:
    export(source(), "npy", tmp_path / "out")
    before = tree(tmp_path)
    many = source(entities=tuple(map(str, range(3000))))
    with full_disk(20_000), pytest.raises(KgdistError):
        export(many, "npy", tmp_path / "out", force=True)
    assert tree(tmp_path) == before


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=st.floats(width=32)))
def test_numbers_as_text_are_the_same_floats(rows: np.ndarray) -> None:
    lines = lines_of(rows, " ").decode().split("\n")
    assert lines.pop() == ""
    read = np.array([[float(text) for text in line.split(" ")] for line in lines]).astype(np.float32)
    assert np.array_equal(read, rows, equal_nan=True)
