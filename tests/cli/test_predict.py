"""kgdist-predict: names in, names out, against the scores of all triples; DGL-KE's commands; what it refuses."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from kgdist.cli import predict
from kgdist.models import registry
from tests import formulas
from tests.cli.graphs import FILES, MODELS, Bench, random_splits, write
from tests.cli.test_eval import later

Named = tuple[str, str, str]
SIZE = ["--hidden_dim", str(formulas.DIM), "--gamma", str(formulas.GAMMA), "--max_step", "30"]
MODES = {"all": None, "batch_head": 0, "batch_rel": 1, "batch_tail": 2}
LISTS = (["e3", "e0", "e17"], ["r2", "r1"], ["e5", "e29", "e1", "e3"])


class Asked:
    """A run, the command on it, and the score of every triple by name."""

    def __init__(self, bench: Bench, model: str) -> None:
        self.bench, self.run = bench, bench.train("--model_name", model, *SIZE)
        self.names = [
            [line.split("\t")[1] for line in (self.run / file).read_text().splitlines()]
            for file in ("entities.tsv", "relations.tsv")
        ]
        rows = {
            path.stem.split("_")[-1].removeprefix(model): torch.from_numpy(np.load(path)).double()
            for path in self.run.glob("*.npy")
        }
        entity, relation, projection = rows["entity"], rows["relation"], rows.get("projection")
        entities, relations = self.names
        self.score: dict[Named, float] = {}
        for h, r, t in product(range(len(entities)), range(len(relations)), range(len(entities))):
            matrix = None if projection is None else projection[r]
            value = float(formulas.score(model, entity[h], relation[r], entity[t], matrix))
            self.score[entities[h], relations[r], entities[t]] = value
        bench.out()  # what the training said
        self.gamma = formulas.GAMMA if registry.MODELS[model].distance else 0.0

    def __call__(self, *words: str) -> str:
        """What the command prints on stdout."""
        assert predict.main([str(self.run), *words]) == 0, self.bench.capsys.readouterr().err
        return self.bench.out()

    def lines(self, *words: str) -> list[tuple[Named, float]]:
        """The answers in result.tsv."""
        file = self.bench.root / "result.tsv"
        self("--output", str(file), *words)
        first, *lines = [line.split("\t") for line in file.read_text().splitlines()]
        assert first == ["head", "relation", "tail", "score"]
        return [((h, r, t), float(score)) for h, r, t, score in lines]

    def is_best(self, found: list[tuple[Named, float]], groups: Sequence[Sequence[Named]], k: int) -> None:
        """`found` are the k best of each group, one group after another, with their scores without gamma."""
        best = [triple for group in groups for triple in sorted(group, key=lambda each: -self.score[each])[:k]]
        assert np.allclose([score for _, score in found], [self.score[each] - self.gamma for each in best], rtol=1e-5, atol=1e-5)
        assert np.allclose(
            [score for _, score in found], [self.score[each] - self.gamma for each, _ in found], rtol=1e-5, atol=1e-5
        )
        assert len(set(found)) == len(found) and {each for each, _ in found} <= {each for group in groups for each in group}

    def files(self, form: str) -> list[str]:
        """The flags that name lists in files, for a format."""
        written = []
        for letter, names in zip(form.split("_"), LISTS, strict=True):
            if letter != "*":
                path = self.bench.root / f"{letter}.list"
                path.write_text("\n".join(names))  # no line feed at the end
                written.append(str(path))
        return ["--format", form, "--data_files", *written]


@pytest.fixture
def rotate(bench: Bench) -> Asked:
    return Asked(bench, "RotatE")


def test_every_format_and_mode(rotate: Asked) -> None:
    for form in ("h_r_t", "h_r_*", "h_*_t", "*_r_t", "h_*_*", "*_r_*", "*_*_t"):
        everything = (rotate.names[0], rotate.names[1], rotate.names[0])
        sets = [
            every if letter == "*" else names for letter, names, every in zip(form.split("_"), LISTS, everything, strict=True)
        ]
        for mode, at in MODES.items():
            groups = [
                [each for each in product(*sets) if at is None or each[at] == key]
                for key in (["all"] if at is None else sets[at])
            ]
            found = rotate.lines(*rotate.files(form), "--exec_mode", mode, "--topK", "4", "--num_thread", "1")
            rotate.is_best(found, groups, 4)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_by_name(bench: Bench, model: str) -> None:
    asked = Asked(bench, model)
    group = [("e3", "r1", name) for name in asked.names[0]]
    asked.is_best(asked.lines("--head", "e3", "--relation", "r1", "--topk", "7"), [group], 7)
    ((triple, score),) = asked.lines("--head", "e3", "--relation", "r1", "--topk", "1", "--score_func", "logsigmoid")
    assert score == pytest.approx(-math.log1p(math.exp(-asked.score[triple])), rel=1e-5)


def test_lists_side_by_side(rotate: Asked) -> None:
    words = [
        "--head",
        "e3",
        "e4",
        "e3",
        "--relation",
        "r0",
        "r0",
        "r1",
        "--tail",
        "e9",
        "e8",
        "e7",
        "--exec_mode",
        "triplet_wise",
    ]
    triples = [("e3", "r0", "e9"), ("e4", "r0", "e8"), ("e3", "r1", "e7")]
    rotate.is_best(rotate.lines(*words, "--topK", "2"), [triples], 2)
    rotate.is_best(rotate.lines(*words), [triples], 10)
    assert predict.main([str(rotate.run), *words]) == 0
    assert "only 3 triples fit the question" in rotate.bench.capsys.readouterr().err


def test_known_triples_are_left_out(rotate: Asked) -> None:
    known = {triple for split in random_splits() for triple in split}
    for form, mode, at in (("h_r_*", "batch_head", 0), ("*_r_t", "all", None), ("h_*_t", "batch_tail", 2)):
        everything = (rotate.names[0], rotate.names[1], rotate.names[0])
        sets = [
            every if letter == "*" else names for letter, names, every in zip(form.split("_"), LISTS, everything, strict=True)
        ]
        new = [each for each in product(*sets) if each not in known]
        groups = [[each for each in new if at is None or each[at] == key] for key in (["all"] if at is None else sets[at])]
        rotate.is_best(rotate.lines(*rotate.files(form), "--exec_mode", mode, "--exclude_known", "--topK", "300"), groups, 300)


def test_the_terminal_and_json_show_the_same(rotate: Asked) -> None:
    title, *lines = rotate("--relation", "r3", "--tail", "e2", "--topk", "3").splitlines()
    assert title.split() == ["head", "relation", "tail", "score"] and len(lines) == 3
    answers = json.loads(rotate("--relation", "r3", "--tail", "e2", "--topk", "3", "--json"))["answers"]
    assert [[row["head"], row["relation"], row["tail"], f"{row['score']:.4f}"] for row in answers] == [
        line.split() for line in lines
    ]
    file = rotate.bench.root / "answers.json"
    assert json.loads(rotate("--relation", "r3", "--tail", "e2", "--json", "--output", str(file))) == {
        "output": str(file),
        "answers": 10,
    }
    assert json.loads(file.read_text())[:3] == answers


def test_what_scores_mean(bench: Bench) -> None:
    train, _, test = random_splits()
    bench.use([train, train[:60], test])  # valid triples that it can know
    rotate = Asked(bench, "RotatE")
    words = ["--head", "e3", "--relation", "r1", "--explain", "--exclude_known"]
    said = rotate(*words)
    assert said.splitlines()[0].split()[4:] == ["head_rank", "tail_rank", "probability"] and "log loss" in said
    answers = json.loads(rotate(*words, "--json"))["answers"]
    assert [row["tail_rank"] for row in answers] == list(range(1, 11))  # the best of those that are not known
    chances = [row["probability"] for row in answers]
    assert sorted(chances, reverse=True) == chances and all(0 < chance < 1 for chance in chances)
    saved = json.loads((rotate.run / "calibration.json").read_text())["calibration"]
    chance = 1 / (1 + math.exp(-(saved["slope"] * (answers[0]["score"] + rotate.gamma) + saved["intercept"])))
    assert chances[0] == pytest.approx(chance, rel=1e-4)


def test_without_valid_triples_there_are_ranks_alone(bench: Bench) -> None:
    run = bench.train("--model_name", "DistMult", *bench.source("train.tsv"))
    bench.out()
    assert predict.main([str(run), "--head", "e1", "--relation", "r1", "--explain"]) == 0
    out, err = bench.capsys.readouterr()
    assert out.splitlines()[0].split()[3:] == ["score", "head_rank", "tail_rank"] and "no valid triples" in err


# ---- runs and commands of DGL-KE


def foreign(asked: Asked, **changes: object) -> Path:
    """The run as DGL-KE leaves it: no names in it."""
    folder = asked.bench.root / "dglke" / asked.run.name
    folder.mkdir(parents=True)
    for path in asked.run.glob("*.npy"):
        shutil.copy(path, folder)
    (folder / "config.json").write_text(json.dumps(later(asked.run, **changes)))
    return folder


def test_the_commands_of_dglkes_manual(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids in lists, all and batch_head: head, relation, tail, score, tabs between, best first, in result.tsv of this folder."""
    asked = Asked(bench, "TransE_l2")
    folder = foreign(asked)
    monkeypatch.chdir(bench.root)
    for name, ids in (("head.list", [1, 2, 6, 8, 9]), ("rel.list", [0]), ("tail.list", [12, 13, 14, 15, 17, 18, 19, 20])):
        Path(name).write_text("".join(f"{number}\n" for number in ids))
    words = [
        "--model_path",
        str(folder),
        "--format",
        "h_r_t",
        "--data_files",
        "head.list",
        "rel.list",
        "tail.list",
        "--topK",
        "5",
    ]
    assert predict.main([*words, "--score_func", "none"]) == 0
    lines = [line.split("\t") for line in Path("result.tsv").read_text().splitlines()]
    assert lines[0] == ["head", "relation", "tail", "score"] and len(lines) == 6 and {line[1] for line in lines[1:]} == {"0"}
    by_id = [(asked.names[0][int(h)], asked.names[1][int(r)], asked.names[0][int(t)]) for h, r, t, _ in lines[1:]]
    assert np.allclose([float(line[3]) for line in lines[1:]], [asked.score[each] - formulas.GAMMA for each in by_id], rtol=1e-5)

    assert predict.main([*words, "--score_func", "logsigmoid", "--exec_mode", "batch_head"]) == 0
    lines = [line.split("\t") for line in Path("result.tsv").read_text().splitlines()[1:]]
    assert [line[0] for line in lines] == [str(head) for head in (1, 2, 6, 8, 9) for _ in range(5)]
    for start in range(0, 25, 5):
        scores = [float(line[3]) for line in lines[start : start + 5]]
        assert scores == sorted(scores, reverse=True) and scores[0] < 0


def test_raw_names_come_from_mapping_files(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(bench, "TransR")
    folder = foreign(asked)
    monkeypatch.chdir(bench.root)
    Path("raw_head.list").write_text("e3\r\ne0\r\n")
    Path("raw_rel.list").write_text("r2")
    words = [
        "--model_path",
        str(folder),
        "--format",
        "h_r_*",
        "--data_files",
        "raw_head.list",
        "raw_rel.list",
        "--raw_data",
        "--topK",
        "5",
    ]
    maps = ["--entity_mfile", str(asked.run / "entities.tsv"), "--rel_mfile", str(asked.run / "relations.tsv")]
    assert predict.main([*words, *maps]) == 0
    lines = [line.split("\t") for line in Path("result.tsv").read_text().splitlines()[1:]]
    found = [((h, r, t), float(score)) for h, r, t, score in lines]
    asked.is_best(found, [[(h, "r2", t) for h in ("e3", "e0") for t in asked.names[0]]], 5)
    assert "--entity_mfile" in asked.bench.refused(predict.main, words)
    for name in ("entities.tsv", "relations.tsv"):  # where DGL-KE leaves them
        shutil.copy(asked.run / name, bench.data)
    assert predict.main([*words, "--data_path", str(bench.data)]) == 0
    assert [line.split("\t") for line in Path("result.tsv").read_text().splitlines()[1:]] == lines


def test_ids_where_names_are_known(rotate: Asked) -> None:
    names = rotate.lines("--head", "e3", "--relation", "r1")
    at = rotate.names[0].index("e3"), rotate.names[1].index("r1")
    ids = rotate.lines("--head", str(at[0]), "--relation", str(at[1]), "--ids")
    assert [(rotate.names[0][int(h)], rotate.names[1][int(r)], rotate.names[0][int(t)]) for (h, r, t), _ in ids] == [
        n for n, _ in names
    ]


# ---- what is refused


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing is asked: give --head, --relation or --tail"),
        (["--head", "e33", "--relation", "r1"], "--head: no entity is called 'e33'; did you mean 'e3'"),
        (["--relation", "r9"], "--relation: no relation is called 'r9'; did you mean"),
        (["--relation", "e1"], "no relation is called 'e1'"),
        (["--head", "77", "--ids"], "--head: entity id 77 is out of range, allowed: 0 to 29"),
        (["--data_files", "x"], "--data_files: needs --format"),
        (["--format", "h_r_*", "--data_files", "x"], "--format h_r_* takes 2 lists from files, not 1"),
        (["--format", "h_r_*", "--head", "e1", "--relation", "r1", "--data_files", "x"], "takes 0 lists from files, not 1"),
        (["--format", "h_r_*", "--tail", "e1", "--data_files", "x", "y"], "--tail: --format h_r_* asks for all of them"),
        (["--format", "*_*_*"], "--format: must be one of"),
        (["--head", "e1", "--exec_mode", "triplet_wise"], "--exec_mode: triplet_wise reads heads, relations and tails"),
        (
            ["--head", "e1", "e2", "--relation", "r1", "--tail", "e1", "--exec_mode", "triplet_wise"],
            "side by side, but there are 2 heads, 1 relations and 1 tails",
        ),
        (["--head", "\udcff", "--relation", "r1"], "--head: '\\udcff' is not UTF-8, as all names are"),
        (["--head", "e1", "--relation", "r1", "--output", "x.xlsx"], "--output: must end in .tsv, .txt, .csv, .json, "),
        (["--head", "e1", "--topK", "0"], "--topK: must be an integer >= 1"),
        (["--head", "e1", "--gpu", "0"], "--gpu 0: "),
        (["--head", "e1", "--output", "nowhere/x.tsv"], "--output: there is no folder nowhere"),
        (["--head", "e1", "--ids", "--raw_data"], "--ids: says that the lists hold ids, --raw_data that they hold names"),
        (["--head", "e1", "--tail", "e1", "--index"], "--index: searches all heads or all tails, but both are listed"),
        (["--head", "e1", "--exclude_known", "--data_path", "elsewhere"], "elsewhere"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(bench: Bench, words: list[str], says: str) -> None:
    if "--gpu" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    run = bench.train("--model_name", "RotatE", "--max_step", "1")
    assert says in bench.refused(predict.main, [str(run), *words])


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "is empty"), (b"e3\ne33\n", ":2: no entity is called 'e33'; did you mean"), (b"e3\n\xff\n", ":2: ")],
)
def test_lists_that_cannot_be_read(bench: Bench, content: bytes, says: str) -> None:
    run, file = bench.train("--model_name", "RotatE", "--max_step", "1"), bench.root / "heads.list"
    file.write_bytes(content)
    line = bench.refused(predict.main, [str(run), "--format", "h_*_*", "--data_files", str(file)])
    assert says in line and "heads.list" in line
    assert "no such file" in bench.refused(predict.main, [str(run), "--format", "h_*_*", "--data_files", str(bench.root / "no")])


def test_runs_that_cannot_be_asked(bench: Bench) -> None:
    run = bench.train("--model_name", "ComplEx", "--max_step", "1")
    array = run / "toy_ComplEx_entity.npy"
    content = np.load(array)

    def refused(*words: str) -> str:
        return bench.refused(predict.main, [str(run), "--head", "e1", *words])

    assert "no such run folder" in bench.refused(predict.main, [str(run / "no"), "--head", "e1"])
    assert f"name one: {run.name}" in bench.refused(predict.main, [str(bench.ckpts), "--head", "e1"])
    np.save(array, np.array([[{}] * 8] * 30), allow_pickle=True)
    assert "not a readable .npy array" in refused()
    np.save(array, content[:-1])
    assert "expected float32[30, 8]" in refused()
    np.save(array, np.float32(3))
    assert "expected float32[30, 8]" in refused()
    array.unlink()
    assert f"finish it with kgdist-train --resume {run}" in refused()
    np.save(array, content)
    for name in ("entities.tsv", "relations.tsv"):
        (run / name).unlink()
    assert "'e1' is not a valid entity id (an integer, 0 to 29)" in refused()
    assert predict.main([str(run), "--head", "1", "--quiet"]) == 0
    np.save(array, content[0])
    assert "expected a table of float32, found float32[8]" in refused()


def test_a_dataset_of_another_size_is_refused(bench: Bench) -> None:
    asked = Asked(bench, "DistMult")
    folder = foreign(asked, format="udd_hrt", data_files=["entities.tsv", "relations.tsv", *FILES])
    bench.data.joinpath("entities.tsv").write_text("0\ta\n1\tb\n")
    bench.data.joinpath("relations.tsv").write_text("0\tr\n")
    for name in FILES:
        write(bench.data / name, [(0, 0, 1)])
    line = bench.refused(predict.main, [str(folder), "--head", "1", "--exclude_known"])
    assert "embeds 30 entities and 4 relations, but toy has 2 and 1" in line


def test_an_index_finds_true_scores(bench: Bench) -> None:
    pytest.importorskip("faiss")
    asked = Asked(bench, "DistMult")
    said = asked("--head", "e3", "--relation", "r1", "--index", "--exclude_known")
    assert "recall@10" in said
    found = asked.lines("--head", "e3", "--relation", "r1", "--index")
    assert len(found) == 10
    assert np.allclose([score for _, score in found], [asked.score[each] for each, _ in found], rtol=1e-5, atol=1e-5)
