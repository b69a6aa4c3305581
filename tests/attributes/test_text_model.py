"""Texts by a model of sentences: rows are the model's own, bytes are the same whoever transforms them and in whatever chunks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.attributes import open_attributes
from kgdist.attributes.declaration import read_declaration
from kgdist.attributes.preprocess import preprocess
from kgdist.attributes.text_model import BATCH, MOST, chunk_rows, load_model
from kgdist.base.errors import DataError
from kgdist.cli import preprocess as preprocess_command
from kgdist.runtime.processes.chunks import ProcessExecutor
from tests.attributes.entities import LETTERS, rows, schema, write_tsv

SCHEMA = "key: entity\nattributes:\n  text: {{kind: text, encoder: {}}}\n  born: {{kind: date, bins: 3}}\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model with random weights."""
    package = pytest.importorskip("sentence_transformers", reason="the extra kgdist[text] is not installed")
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("models")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]))
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    made = BertModel(BertConfig(vocab_size=5 + len(LETTERS), max_position_embeddings=64, **sizes))
    made.save_pretrained(folder / "bert")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    package.SentenceTransformer(str(folder / "bert"), device="cpu").save(str(folder / "tiny"))
    return folder / "tiny"


def made(folder: Path, model: Path, name: str, count: int = 150, **more: Any) -> Path:
    """The folder of features of so many entities."""
    declared, entities = schema(folder, SCHEMA.format(model)), write_tsv(folder / "e.tsv", rows(count))
    preprocess([entities], [read_declaration(declared)], folder / name, **more)
    return folder / name


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rows_are_what_the_model_makes_of_texts(model: Path, tmp_path: Path) -> None:
    opened = open_attributes(made(tmp_path, model, "out"))["_N"]["text"]
    texts = [row["text"] for row in rows(150)]
    encode = load_model(str(model), "cpu").encode
    assert opened.width == 48 and opened.present.tolist() == [text is not None for text in texts]
    for text, row in zip(texts, opened.values, strict=True):
        assert not row.any() if text is None else np.allclose(row, encode([text], show_progress_bar=False)[0], atol=1e-5)


@pytest.mark.slow
def test_bytes_do_not_depend_on_chunks_workers_and_threads(model: Path, tmp_path: Path) -> None:
    expected = content(made(tmp_path, model, "out"))
    for size in (1, 3 * BATCH):  # of one batch, and of several; see below
        assert content(made(tmp_path, model, f"chunks{size}", chunk_size=size)) == expected
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert content(made(tmp_path, model, "threads")) == expected
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    with ProcessExecutor(2) as executor:
        assert content(made(tmp_path, model, "processes", executor=executor, chunk_size=BATCH)) == expected


@pytest.mark.parametrize("asked", [1, BATCH - 1, BATCH, 100, MOST, 1 << 20])
def test_chunks_are_whole_batches(asked: int) -> None:
    assert chunk_rows(asked) % BATCH == 0 and BATCH <= chunk_rows(asked) <= max(BATCH, min(asked, MOST))


def test_a_folder_beside_the_schema(model: Path, tmp_path: Path) -> None:
    (tmp_path / "near").symlink_to(model)
    near = open_attributes(made(tmp_path, Path("near"), "near_out"))["_N"]["text"]
    assert np.array_equal(near.values, open_attributes(made(tmp_path, model, "out"))["_N"]["text"].values)


def refused(folder: Path, encoder: str, text: str = "rivers") -> str:
    """The line that tells what is wrong; nothing is written."""
    path = write_tsv(folder / "e.tsv", [{"entity": f"e{number}", "text": text} for number in range(3)])
    declared = schema(folder, f"key: entity\nattributes:\n  text: {{kind: text, encoder: {encoder}}}\n")
    with pytest.raises(DataError) as caught:
        preprocess([path], [read_declaration(declared)], folder / "out")
    assert not (folder / "out").exists() and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{declared}:3: attributes.text: ")
    return str(caught.value)


def test_what_is_wrong_is_told_before_anything_is_read(model: Path, tmp_path: Path) -> None:
    assert "is not a folder; put the model there, or take encoder: hashed" in refused(tmp_path, "hashd")
    assert "dim: is of hashed texts" in refused(tmp_path, f"{model}, dim: 8")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert "holds no model that sentence-transformers can load" in refused(tmp_path, "broken")
    assert "all texts are the same" in refused(tmp_path, str(model))
    assert "no entity has a value of it" in refused(tmp_path, str(model), "")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    assert "pip install 'kgdist[text]'" in refused(tmp_path, str(tmp_path))


def test_a_gpu_that_has_nothing_to_do_or_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = "GPU" if torch.cuda.is_available() else "no CUDA device can be used here"
    words = ["--entities", str(write_tsv(tmp_path / "e.tsv", rows(9))), "--out", str(tmp_path / "out"), "--gpu", "1000"]
    for declared, problem in (
        (schema(tmp_path), "only models of texts compute on it, and no text has one (encoder: FOLDER); drop the flag"),
        (schema(tmp_path, SCHEMA.format("m"), "m.yaml"), absent),
    ):
        assert preprocess_command.main([*words, "--schema", str(declared)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: --gpu") and problem in line
    assert not (tmp_path / "out").exists()
