"""--init_vectors and --freeze: rows against NumPy's own principal axes, from every kind of file; what stays and what moves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from kgdist.base.errors import DataError
from kgdist.cli import export, train, tune
from kgdist.data.vectors import EntityVectors
from kgdist.data.vocabulary import Vocabulary
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.runtime.brought import Source, brought
from tests.cli.graphs import Bench, random_splits

STILL = ["--lr", "1e-30", "--max_step", "1", "--model_name", "DistMult", "--hidden_dim", "6"]
MADE = np.random.default_rng(5).normal(size=(40, 9)) * np.arange(1, 10) + 3


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path, capsys)


def rows_of(run: Path) -> dict[str, np.ndarray]:
    names = [line.split("\t")[1] for line in (run / "entities.tsv").read_text().splitlines()]
    (file,) = run.glob("*_entity.npy")
    return dict(zip(names, np.load(file), strict=True))


def test_vectors_become_rows(bench: Bench) -> None:
    names = [f"e{n}" for n in range(5, 30)] + ["stranger"]  # e0 to e4 have none
    start = rows_of(bench.train(*STILL))
    for width in (9, 4):  # wider than the model, and narrower
        vectors = MADE[: len(names), :width].astype(np.float32)
        np.save(bench.root / "v.npy", vectors)
        (bench.root / "n.tsv").write_text("".join(f"{i}\t{name}\n" for i, name in enumerate(names)))
        lists = pa.array(vectors.tolist(), pa.list_(pa.float32()))
        parquet.write_table(pa.table({"id": range(len(names)), "name": names, "embedding": lists}), bench.root / "v.parquet")
        lines = [f"{name} {' '.join(map(repr, row))}\n" for name, row in zip(names, vectors.tolist(), strict=True)]
        (bench.root / "v.txt").write_text(f"{len(names)} {width}\n" + "".join(lines))
        known = vectors[:-1].astype(np.float64)
        expected = known
        if width > 6:
            centred = known - known.mean(0)
            expected = centred @ np.linalg.svd(centred, full_matrices=False)[2][:6].T
        own = np.sqrt(np.mean(np.square(np.stack(list(start.values())).astype(np.float64))))
        expected = expected * own / np.sqrt(np.mean(expected**2))
        for files in (["v.npy", "n.tsv"], ["v.parquet"], ["v.txt"]):
            bench.capsys.readouterr()
            found = rows_of(bench.train(*STILL, "--init_vectors", *(str(bench.root / file) for file in files)))
            said = bench.capsys.readouterr()
            assert "25 of 30 entities start at their vectors" in said.out and "5 have none" in said.out
            assert "1 vector of names that the graph does not have" in said.err and "'stranger'" in said.err
            got = np.stack([found[name] for name in names[:-1]])
            columns = min(width, 6)
            signs = np.sign((got[:, :columns] * expected).sum(0)) if width > 6 else 1.0
            assert np.allclose(got[:, :columns], expected * signs, rtol=1e-4, atol=1e-6)
            assert all(np.array_equal(found[name][columns:], start[name][columns:]) for name in names[:-1])
            assert all(np.array_equal(found[f"e{n}"], start[f"e{n}"]) for n in range(5))


@pytest.mark.parametrize("words", ["", "--num_proc 2", "--worker thread --num_proc 2", "--candidates all --loss_genre Softmax"])
@pytest.mark.slow
def test_frozen_entities_stay_and_relations_move(bench: Bench, words: str) -> None:
    np.save(bench.root / "v.npy", MADE[:30])
    (bench.root / "n.tsv").write_text("".join(f"e{i}\n" for i in range(30)))
    vectors = ["--init_vectors", str(bench.root / "v.npy"), str(bench.root / "n.tsv")]
    size = ["--model_name", "DistMult", "--hidden_dim", "6", "--gamma", "4"]
    start = bench.train(*vectors, *STILL)
    frozen = [
        *vectors,
        *size,
        "--freeze",
        "entities",
        "--lr",
        "0.1",
        "--max_step",
        "20",
        "--save_path",
        str(bench.root / "frozen"),
    ]
    more = [] if "all" in words else ["--neg_sample_size", "4"]
    assert train.main([*bench.source(), *frozen, "--batch_size", "8", *more, *words.split()]) == 0
    (run,) = (bench.root / "frozen").iterdir()
    assert train.main(["--resume", str(run), "--max_step", "30"]) == 0  # a run that goes on knows it
    assert "not as the run was trained so far" not in bench.capsys.readouterr().out
    first, last = rows_of(start), rows_of(run)
    assert all(np.array_equal(first[name], last[name]) for name in first)
    relations = [np.load(next(each.glob("*_relation.npy"))) for each in (start, run)]
    assert (np.abs(relations[0] - relations[1]) > 1e-3).any(axis=1).all()
    assert train.main(["--resume", str(run), "--max_step", "40", "--freeze", "none"]) == 0
    assert "not as the run was trained so far: --freeze entities -> none" in bench.capsys.readouterr().out


@pytest.mark.parametrize("model", ["ComplEx", "TransE_l2"])
def test_frozen_products_are_large_enough_to_tell_apart(bench: Bench, model: str) -> None:
    """A preset starts products at .001, from which rows that stay there cannot grow."""
    np.save(bench.root / "v.npy", MADE[:30, :6])
    (bench.root / "n.tsv").write_text("".join(f"e{i}\n" for i in range(30)))
    words = [
        "--init_vectors",
        str(bench.root / "v.npy"),
        str(bench.root / "n.tsv"),
        "--init_scale",
        "0.001",
        "--model_name",
        model,
    ]
    words += ["--hidden_dim", "6", "--lr", "1e-30", "--max_step", "1"]
    free, frozen = (np.stack([*rows_of(bench.train(*words, *more)).values()]) for more in ((), ("--freeze", "entities")))
    size = np.sqrt((frozen**2).mean())
    assert size == pytest.approx(0.3 if model == "ComplEx" else np.sqrt((free**2).mean()), rel=1e-5)
    assert np.allclose(frozen / size, free / np.sqrt((free**2).mean()), rtol=1e-4, atol=1e-6)


def test_a_run_that_shares_no_entity_is_refused(bench: Bench) -> None:
    run = bench.train(*STILL)
    bench.use([[(h + "x", r, t + "x") for h, r, t in split] for split in random_splits()])
    assert "knows none of these entities" in bench.train_refused(*STILL, "--init_from", str(run))


def test_what_export_writes_is_read(bench: Bench) -> None:
    run = bench.train("--model_name", "DistMult", "--hidden_dim", "6")
    rows = rows_of(run)
    for kind, file in (("npy", "entity.npy"), ("word2vec", "entity.txt"), ("parquet", "entity.parquet")):
        assert export.main([str(run), "--to", kind, "--out", str(bench.root / kind)]) == 0
        vectors = EntityVectors([str(bench.root / kind / file)], Vocabulary.from_names(list(rows)))
        found = np.concatenate([block.rows for block in vectors.read()])
        assert np.array_equal(found, np.stack(list(rows.values()))) and not vectors.unknown


def test_frozen_rows_that_are_random_are_warned_of(bench: Bench) -> None:
    run = bench.train(*STILL, "--freeze", "entities")
    assert "--freeze entities keeps rows that are random" in bench.capsys.readouterr().err
    bench.train(*STILL, "--freeze", "entities", "--init_from", str(run))
    assert "random" not in bench.capsys.readouterr().err


def test_a_search_refuses_vectors_before_its_trials(bench: Bench) -> None:
    (bench.root / "v.txt").write_text("stranger 1 2\n")
    words = ["--init_vectors", str(bench.root / "v.txt"), "--out", str(bench.root / "search"), "--trials", "2"]
    said = bench.refused(tune.main, [*bench.source(), "--model_name", "DistMult", *words])
    assert "v.txt: has no vector of any entity of this graph; the first is of 'stranger'" in said
    assert not (bench.root / "search").exists()


def test_vectors_that_cannot_be_are_refused(tmp_path: Path) -> None:
    entities, file = Vocabulary.from_names(["a", "New York", "b"]), tmp_path / "v.txt"
    file.write_text("a 1 2\nNew_York 3 4\na 5 6\n")
    ((ids, rows),) = EntityVectors([str(file)], entities).read()
    assert ids.tolist() == [0, 1] and rows.tolist() == [[1, 2], [3, 4]]  # white space as word2vec has it; the first of two
    for text, says in (
        ("3 2\na 1 2\nb 1 2\n", "v.txt: its first line promises 3 vectors, and it has 2; is it whole?"),
        ("2 3\na 1 2 3\nb 1 2\n", "v.txt:3: expected a word and 3 numbers with a blank between, found 2 numbers"),
        ("a 1 2\nb 1\n", "v.txt:2: expected a word and 2 numbers with a blank between, found 1 numbers"),
        ("a 1 2\nb 1 nan\n", "v.txt:2: the vector of 'b' holds a number that is not finite"),
        ("a 1 2\nb 1 x\n", "v.txt:2: not every field after the word is a number"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=says):
            list(EntityVectors([str(file)], entities).read())
    np.save(tmp_path / "v.npy", np.array([[1.0, 2.0], [np.nan, 1.0]]))
    with pytest.raises(DataError, match="missing.tsv: no such file, expected names of the vectors"):
        EntityVectors([str(tmp_path / "v.npy"), str(tmp_path / "missing.tsv")], entities)
    (tmp_path / "n.tsv").write_text("a\nb\n")
    with pytest.raises(DataError, match="row 1, the vector of 'b', holds a number that is not finite"):
        list(EntityVectors([str(tmp_path / "v.npy"), str(tmp_path / "n.tsv")], entities).read())
    (tmp_path / "n.tsv").write_text("a\n")
    with pytest.raises(DataError, match="has 1 names, but .*v.npy has 2 rows"):
        list(EntityVectors([str(tmp_path / "v.npy"), str(tmp_path / "n.tsv")], entities).read())


def test_vectors_that_say_nothing_or_change_meanwhile_are_refused_and_repeated_ones_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entities, file = Vocabulary.from_names(["a", "b", "c"]), tmp_path / "v.txt"
    model = model_of(Config(model_name="DistMult", hidden_dim=3))

    def source() -> Source:
        config = Config(model_name="DistMult", hidden_dim=3, init_vectors=(str(file),))
        found = brought(config, model, (entities, entities), lambda: torch.ones(3, 3), lambda text: None)
        assert found is not None
        return found

    for same in ("1 1", "1 1 1 1"):  # narrower than the model, and wider
        file.write_text(f"a {same}\nb {same}\n")
        with pytest.raises(DataError, match="all vectors are the same"):
            source()
    whole = "a 1 2\nb 3 4\na 5 6\n"
    for other in ("a 1 2 3\nb 3 4 5\n", "a 1 2 3 4\nb 3 4 5 9\n", "a 1 2\n", "a 1 2\nb 3 4\nc 5 6\n"):
        file.write_text(whole)
        begun = source()
        file.write_text(other)
        with pytest.raises(DataError, match="was changed while it was read"):
            list(begun.rows())
    file.write_text(whole)
    ((_, ids, _),) = source().rows()
    assert ids.tolist() == [0, 1] and "1 vector of names that came before passed over" in caplog.text
