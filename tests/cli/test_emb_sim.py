"""kgdist-emb-sim: DGL-KE's formats and modes on files, names of a run, every output, and what is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from kgdist.cli import emb_sim
from tests.cli.graphs import Bench

TABLE = np.array([[1, 0], [2, 0], [0, 1], [1, 1], [0, 0], [-1, 0]], np.float32)
NAMES = ["one", "two", "up", "slant", "zero", "back"]
ROOT_HALF = "0.70710677"  # of float32, in the fewest digits


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, where the commands run, with embeddings, their names, and lists of ids and of names."""
    np.save(tmp_path / "emb.npy", TABLE)
    (tmp_path / "map.tsv").write_text("".join(f"{n}\t{name}\n" for n, name in enumerate(NAMES)))
    for name, lines in {"left": "0\n3\n", "right": "2\n5\n1\n", "names": "one\r\nslant"}.items():
        (tmp_path / f"{name}.txt").write_text(lines)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(*words: str) -> list[list[str]]:
    """The lines of result.tsv, split."""
    assert emb_sim.main(["--emb_file", "emb.npy", *words]) == 0
    text = Path("result.tsv").read_text()
    assert text.endswith("\n") and text.count("\r") == 0
    return [line.split("\t") for line in text.splitlines()]


def test_every_format_and_mode_in_the_layout_of_dgl_ke(files: Path) -> None:
    title = ["left", "right", "score"]
    assert ask("--format", "l_r", "--data_files", "left.txt", "right.txt") == [
        title, ["0", "1", "1.0"], ["3", "1", ROOT_HALF], ["3", "2", ROOT_HALF],
        ["0", "2", "0.0"], ["3", "5", f"-{ROOT_HALF}"], ["0", "5", "-1.0"],
    ]  # fmt: skip
    assert ask("--format", "l_r", "--data_files", "left.txt", "right.txt", "--topK", "2", "--exec_mode", "batch_left") == [
        title, ["0", "1", "1.0"], ["0", "2", "0.0"], ["3", "1", ROOT_HALF], ["3", "2", ROOT_HALF],
    ]  # fmt: skip
    assert ask("--format", "l_*", "--data_files", "left.txt", "--topK", "1", "--exec_mode", "batch_left") == [
        title, ["0", "1", "1.0"], ["3", "0", ROOT_HALF],
    ]  # fmt: skip
    assert ask("--format", "*_r", "--data_files", "left.txt", "--topK", "2", "--sim_func", "dot") == [
        title, ["1", "0", "2.0"], ["1", "3", "2.0"],
    ]  # fmt: skip
    assert ask("--format", "*", "--topK", "3", "--sim_func", "l1") == [
        title, ["0", "1", "-1.0"], ["0", "3", "-1.0"], ["0", "4", "-1.0"],
    ]  # fmt: skip
    assert ask("--format", "*", "--topK", "1", "--sim_func", "ext_jaccard") == [title, ["0", "1", "0.6666667"]]
    (files / "other.txt").write_text("1\n4\n")
    assert ask("--format", "l_r", "--data_files", "left.txt", "other.txt", "--exec_mode", "pairwise", "--sim_func", "l2") == [
        title, ["0", "1", "-1.0"], ["3", "4", "-1.4142135"],
    ]  # fmt: skip


def test_names_come_from_the_map(files: Path) -> None:
    assert ask("--format", "l_*", "--data_files", "names.txt", "--raw_data", "--mfile", "map.tsv", "--topK", "1") == [
        ["left", "right", "score"], ["one", "two", "1.0"],
    ]  # fmt: skip
    assert ask("--format", "*", "--mfile", "map.tsv", "--topK", "2")[1:] == [["one", "two", "1.0"], ["one", "slant", ROOT_HALF]]


def test_words_are_answered_on_the_terminal(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--emb_file", "emb.npy", "--mfile", "map.tsv", "--left", "one", "--topk", "2"]
    assert emb_sim.main(words) == 0
    assert capsys.readouterr().out == "left  right   score\none   two    1.0000\none   slant  0.7071\n"
    assert emb_sim.main([*words, "--json"]) == 0
    answers = [{"left": "one", "right": "two", "score": 1.0}, {"left": "one", "right": "slant", "score": 0.70710677}]
    assert json.loads(capsys.readouterr().out) == {"answers": answers}
    for name in ("a.json", "a.parquet"):
        assert emb_sim.main([*words, "--output", name]) == 0
        assert "2 answers in a." in capsys.readouterr().out
    assert json.loads((files / "a.json").read_text()) == answers
    assert parquet.read_table(files / "a.parquet")["right"].to_pylist() == ["two", "slant"]
    assert not (files / "result.tsv").exists()


def test_a_topk_beyond_all_pairs_is_cut_with_a_note(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, count in [(["--format", "*"], 15), (["--format", "l_*", "--data_files", "left.txt"], 10)]:
        assert len(ask(*words, "--topK", "1000")) == count + 1
        assert f"--topK 1000: there are only {count} pairs\n" in capsys.readouterr().err
    assert len(ask("--format", "*", "--exec_mode", "batch_left", "--topK", "1000")) == 31
    assert "--topK 1000: there are only 5 pairs for each on the left\n" in capsys.readouterr().err


def test_a_run_knows_its_names_and_embeddings(bench: Bench) -> None:
    run = bench.train("--model_name", "DistMult")
    bench.out()
    rows = np.load(next(run.glob("*_entity.npy"))).astype(np.float64)
    names = [line.split("\t")[1] for line in (run / "entities.tsv").read_text().splitlines()]
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    me = names.index("e7")
    order = [n for n in np.argsort(-(unit @ unit[me])) if n != me][:3]
    assert emb_sim.main([str(run), "--left", "e7", "--topK", "3", "--json", "--num_thread", "1"]) == 0
    assert [answer["right"] for answer in json.loads(bench.out())["answers"]] == [names[n] for n in order]
    assert emb_sim.main([str(run), "--kind", "relation", "--left", "r1", "--right", "r1", "r2", "--json"]) == 0
    answers = json.loads(bench.out())["answers"]
    assert {answer["right"] for answer in answers} == {"r1", "r2"} and answers[0]["score"] == 1.0
    assert emb_sim.main([str(run), "--ids", "--left", str(me), "--topK", "3", "--json"]) == 0
    assert [answer["right"] for answer in json.loads(bench.out())["answers"]] == order


def test_what_cannot_be_is_refused_in_one_line(files: Path, bench: Bench) -> None:
    emb = ["--emb_file", "emb.npy"]
    np.save(files / "objects.npy", np.array([1, "a"], object))
    np.save(files / "flat.npy", np.ones(5, np.float32))
    np.save(files / "whole.npy", np.ones((5, 2), np.int64))
    np.save(files / "none.npy", np.ones((0, 2), np.float32))
    np.save(files / "bad.npy", np.where(np.arange(12).reshape(6, 2) == 9, np.nan, TABLE).astype(np.float32))
    (files / "text.npy").write_text("no array")
    (files / "short.tsv").write_text("0\tone\n1\ttwo\n")
    (files / "empty.txt").write_text("")
    (files / "far.txt").write_text("0\n6\n")
    half = files / "run"
    half.mkdir()
    for words, says in [
        ([], "--emb_file: name an .npy file of embeddings, or the folder of a run instead"),
        (["run", *emb], "--emb_file: is there beside the run run; give one of them"),
        ([*emb, "--kind", "entity", "--left", "1"], "--kind: says which embeddings of a run"),
        (emb, "--left: nothing is asked"),
        ([*emb, "--data_files", "left.txt"], "--data_files: needs --format"),
        ([*emb, "--format", "l_r", "--data_files", "left.txt"], "--format l_r takes 2 lists from files, not 1"),
        ([*emb, "--format", "*", "--data_files", "left.txt"], "--format * takes 0 lists from files, not 1"),
        ([*emb, "--format", "l_*", "--left", "1", "--right", "2"], "--right: --format l_* compares with all of them"),
        ([*emb, "--format", "h_r"], "--format: must be one of l_r, l_*, *_r, *"),
        ([*emb, "--left", "1", "--exec_mode", "pairwise"], "--exec_mode: pairwise reads lists of left and right ones"),
        ([*emb, "--left", "1", "2", "--right", "2", "--exec_mode", "pairwise"], "there are 2 left and 1 right ones"),
        ([*emb, "--left", "6"], "--left: entity id 6 is out of range, allowed: 0 to 5"),
        ([*emb, "--left", "one"], "--left: 'one' is not a valid entity id"),
        ([*emb, "--left", "one", "--raw_data"], "--raw_data: the names of the entities are not known here; give --mfile FILE"),
        ([*emb, "--mfile", "map.tsv", "--left", "oen"], "--left: no entity is called 'oen'; did you mean 'one'"),
        ([*emb, "--mfile", "short.tsv", "--left", "one"], "short.tsv: names 2 entities, but there are embeddings of 6"),
        ([*emb, "--format", "l_*", "--data_files", "empty.txt"], "empty.txt: is empty, expected one entity id a line"),
        ([*emb, "--format", "l_*", "--data_files", "far.txt"], "far.txt:2: entity id 6 is out of range"),
        ([*emb, "--left", "1", "--output", "no/a.tsv"], "--output: there is no folder no"),
        ([*emb, "--left", "1", "--topK", "0"], "--topK: must be an integer >= 1"),
        ([*emb, "--left", "1", "--gpu", "7"], "--gpu 7: "),
        (["--emb_file", "gone.npy", "--left", "1"], "gone.npy: no such file"),
        (["--emb_file", "objects.npy", "--left", "1"], "objects.npy: not a readable .npy array"),
        (["--emb_file", "text.npy", "--left", "1"], "text.npy: not a readable .npy array"),
        (["--emb_file", "flat.npy", "--left", "1"], "flat.npy: expected embeddings float32[n, d], found float32[5]"),
        (["--emb_file", "whole.npy", "--left", "1"], "found int64[5, 2]"),
        (["--emb_file", "none.npy", "--left", "1"], "found float32[0, 2]"),
        (["--emb_file", "bad.npy", "--left", "1"], "bad.npy: row 4 holds NaN or infinity, so nothing can be compared"),
        (["run", "--left", "1"], "run: has no config.json, so it is not a run folder"),
    ]:
        assert says in bench.refused(emb_sim.main, words), words
    assert not (files / "result.tsv").exists()


def test_a_run_without_its_embeddings_says_so(bench: Bench) -> None:
    run = bench.train("--no_save_emb")
    assert "it was trained with --no_save_emb: train it again without" in bench.refused(emb_sim.main, [str(run), "--left", "e1"])
    shutil.rmtree(run)
    assert "no such run folder" in bench.refused(emb_sim.main, [str(run), "--left", "e1"])


def test_float64_embeddings_are_taken_too(files: Path) -> None:
    np.save(files / "emb.npy", TABLE.astype(np.float64)[:, ::-1])
    assert ask("--format", "*", "--topK", "1")[1:] == [["0", "1", "1.0"]]
