"""kgdist-eval --classify: what it saves is what scikit-learn finds in the run's own scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import kgdist
from kgdist.base.errors import DataError
from kgdist.cli import eval as eval_command
from kgdist.cli import train as train_command
from kgdist.predict.classification import read_labelled
from tests.cli.graphs import Bench, metrics


def test_an_evaluation_says_it_and_files_are_taken(bench: Bench) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    run = bench.train("--model_name", "DistMult", "--test")
    loaded = kgdist.load(run)
    rows = [line.split("\t") for name in ("valid.tsv", "test.tsv") for line in (bench.data / name).read_text().splitlines()]
    files = []
    for name, part in (("v", rows[:12]), ("t", rows[12:])):
        lines = ["\t".join((*row, "1")) for row in part] + ["\t".join((tail, r, h, "-1")) for h, r, tail in part[2:]]
        files.append(bench.data / name)
        files[-1].write_text("\n".join(lines) + "\n")
    bench.out()
    found = bench.eval(run, "--classify_files", *map(str, files))["classification"]
    assert found["count"] == 22 and found["true"] == 12 and found["negatives"] == "given" and "accuracy" in bench.out()
    assert found == loaded.classify(*files)
    heads, relations, tails, labels = (
        list(column) for column in zip(*(line.split("\t") for line in files[1].read_text().splitlines()), strict=True)
    )
    scores, true = loaded.score(heads, relations, tails), np.array(labels) == "1"
    assert found["auc-roc"] == pytest.approx(sklearn.roc_auc_score(true, scores))
    assert found["auc-pr"] == pytest.approx(sklearn.average_precision_score(true, scores))
    limit = {part["name"]: part["threshold"] for part in found["relations"].values()}
    held = np.array([score >= limit[relation] for score, relation in zip(scores, relations, strict=True)])
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(true, held))
    by_chance = bench.eval(run, "--classify")["classification"]
    assert by_chance["negatives"] == "drawn" and 12 < by_chance["count"] <= 24 and by_chance == loaded.classify()
    for words, kept in (
        (["--rank_relations"], {"classification", "missing_relations"}),
        ([], {"classification", "missing_relations"}),  # neither was asked for, and the ranks are the same
        (["--neg_sample_size_eval", "2", "--seed", "5"], set()),
    ):
        assert eval_command.main([str(run), *words]) == 0
        assert metrics(run).keys() & {"classification", "missing_relations"} == kept
        assert metrics(run).get("classification", by_chance) == by_chance
    before = json.dumps(metrics(run))
    first = files[0].read_text().splitlines()
    for lines, said in (
        ([*first[:3], first[3][:-1] + "yes"], "v:4: label 'yes' is not a label"),
        ([first[0].rpartition("\t")[0], *first[1:]], "v:1: expected head, relation, tail and label, found 3 fields"),
        (["nobody" + first[0][first[0].index("\t") :], *first[1:]], "v:1: head 'nobody' is not in the graph"),
        (first[:5], "has no false triple"),
        ([], "is empty"),
    ):
        files[0].write_text("".join(f"{line}\n" for line in lines))
        assert said in bench.eval_refused(run, "--classify_files", *map(str, files))
    assert "takes two files" in bench.eval_refused(run, "--classify_files", str(files[1]))
    assert json.dumps(metrics(run)) == before


def test_files_have_a_form_of_their_own_beside_a_data_set_that_is_built_in(bench: Bench) -> None:
    words = "--dataset data --max_step 5 --hidden_dim 4 --batch_size 8 --neg_sample_size 4 --quiet".split()
    assert train_command.main(["--data_path", str(bench.root), "--save_path", str(bench.ckpts), *words]) == 0
    (run,) = bench.runs()
    files = []
    for name in ("valid", "test"):
        true = [line.split("\t") for line in (bench.data / f"{name}.tsv").read_text().splitlines()]
        lines = [
            ["h", "r", "t", "label"],
            *([*row, "1"] for row in true),
            *([*row[::-1], "0"] for row in true),
        ]
        files.append(str(bench.root / f"{name}.csv"))
        Path(files[-1]).write_text("".join(",".join(line) + "\n" for line in lines))
    found = bench.eval(run, "--classify_files", *files, "--delimiter", ",", "--header")["classification"]
    assert found["count"] == 2 * found["true"] > 0
    said = bench.eval_refused(run, "--classify_files", *files, "--delimiter", ",")
    assert said.endswith("label 'label' is not a label: 1 is true, -1 or 0 false; --header skips a first line that names columns")


def test_files_are_read_as_those_of_the_data_set(bench: Bench) -> None:
    """As a spreadsheet writes them, here: commas, quotation marks, a line of names."""
    for name in ("train", "valid", "test"):
        rows = [line.split("\t") for line in (bench.data / f"{name}.tsv").read_text().splitlines()]
        wrong = [(tail, relation, head) for head, relation, tail in rows]
        for path, labels in ((f"{name}.csv", [[]]), (f"labelled_{name}.csv", [["1"], ["-1"]])):
            lines = [["head", "relation", "tail", "label"][: 3 + len(labels[0])]]
            lines += [[*row, *label] for part, label in zip((rows, wrong), labels, strict=False) for row in part]
            (bench.data / path).write_text("".join(",".join(f'"{field}"' for field in line) + "\n" for line in lines))
    files = [str(bench.data / f"labelled_{name}.csv") for name in ("valid", "test")]
    for header in ("auto", "yes"):
        words = ["--data_files", "train.csv", "valid.csv", "test.csv", "--delimiter", ",", "--header", header, "--quoted"]
        run = bench.train("--model_name", "DistMult", *words)
        found = bench.eval(run, "--classify_files", *files)["classification"]
        assert found == kgdist.load(run).classify(*files)
        assert found["negatives"] == "given" and found["count"] == 2 * found["true"] > 0
    loaded = kgdist.load(run)
    assert read_labelled(bench.data / "labelled_test.csv", loaded.dataset, ",", "yes", True).true.sum() == found["true"]
    with pytest.raises(DataError, match=r"labelled_test.csv:1: label 'label' is not a label"):
        read_labelled(bench.data / "labelled_test.csv", loaded.dataset, ",", "no", True)
    with pytest.raises(DataError, match=r"labelled_test.csv:1: expected head, relation, tail and label, found 1 field$"):
        read_labelled(bench.data / "labelled_test.csv", loaded.dataset)
