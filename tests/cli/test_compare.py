"""kgdist-compare: what the runs have written, side by side; never a figure that none of them has."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgdist.cli import compare as command
from kgdist.cli import eval as eval_command
from kgdist.cli import train as train_command
from kgdist.evaluation.ranks import METRICS
from kgdist.report.comparison import UNSHOWN, _legend, compare, write_page
from tests.cli.graphs import Bench


@pytest.fixture(scope="module")
def ckpts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of two models on one graph; the last is without metrics."""
    bench = Bench(tmp_path_factory.mktemp("runs"), None)  # type: ignore[arg-type]
    for words in (
        ("--model_name", "DistMult", "--test", "--valid", "--eval_interval", "10"),
        ("--model_name", "TransE_l2", "--test", "--lr", "0.3"),
        ("--model_name", "TransE_l2"),
    ):
        assert train_command.main(bench.flags(*words, "--quiet")) == 0
    return bench.ckpts


def reports(ckpts: Path) -> dict[str, Any]:
    """The saved metrics by run."""
    return {path.parent.name: json.loads(path.read_text())["all"]["realistic"] for path in ckpts.glob("*/test.json")}


def test_values_are_those_of_the_runs(ckpts: Path) -> None:
    found, saved = compare([ckpts]), reports(ckpts)
    assert sorted(found.names) == ["DistMult_toy_0", "TransE_l2_toy_0", "TransE_l2_toy_1"]
    for place, name in enumerate(found.names):
        for column in METRICS:
            assert found.results[column][place] == saved.get(name, {}).get(column)
    for column in METRICS:
        values = [row[column] for row in saved.values()]
        assert found.best.get(column) == (min(values) if column in ("mr", "median") else max(values)) or len(set(values)) == 1
    lines = [json.loads(line) for line in (ckpts / "DistMult_toy_0" / "metrics.jsonl").read_text().splitlines()]
    place = found.names.index("DistMult_toy_0")
    assert found.results["valid mrr"][place] == max(row["mrr"] for row in lines if row["kind"] == "valid")
    assert found.results["seconds"][place] == sum(row["seconds"] for row in lines if row["kind"] == "train") > 0
    assert all(speed for speed in found.results["triples/s"])  # of short runs, too


def test_only_options_that_differ(ckpts: Path) -> None:
    found = compare([ckpts])
    assert set(found.options) == {"model_name", "lr", "test", "valid", "eval_interval"}
    for name, values in found.options.items():
        assert len(set(values)) > 1 and name not in UNSHOWN
    assert compare([ckpts / "DistMult_toy_0"]).options == {}


def test_curves_are_called_by_what_tells_the_runs_apart(tmp_path: Path) -> None:
    bench = Bench(tmp_path, None)  # type: ignore[arg-type]
    for words in (("--lr", "0.1"), ("--lr", "0.3"), ("--lr", "0.3", "--seed", "7"), ("--lr", "0.1", "--gamma", "3")):
        assert train_command.main(bench.flags(*words, "--log_interval", "5", "--quiet")) == 0
    runs = [bench.ckpts / f"TransE_toy_{number}" for number in range(4)]

    def legend(*chosen: int) -> list[str]:
        found = compare([runs[place] for place in chosen], sort="run")
        names = [f"TransE_toy_{place}" for place in chosen]
        assert found.names == names
        write_page(found, tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        wanted = _legend(found)
        assert all(json.dumps(name) in page for name in wanted)
        return ["name" if one == name else one for one, name in zip(wanted, names, strict=True)]

    assert legend(0, 1) == ["lr 0.1", "lr 0.3"]
    assert legend(0, 1, 2) == ["lr 0.1, seed 0", "lr 0.3, seed 0", "lr 0.3, seed 7"]
    assert legend(0, 1, 2, 3) == ["name"] * 4, "three options are too long a name"
    shutil.copytree(runs[0], runs[0].with_name("TransE_toy_9"))
    runs.append(runs[0].with_name("TransE_toy_9"))
    found = compare([runs[0], runs[4]])
    assert _legend(found) == found.names


def test_triple_classification_is_a_column_where_a_run_has_it(ckpts: Path, tmp_path: Path) -> None:
    assert "accuracy" not in compare([ckpts]).results
    run = shutil.copytree(ckpts / "DistMult_toy_0", tmp_path / "classified")
    assert eval_command.main([str(run), "--classify", "--quiet"]) == 0
    found = compare([ckpts, run], sort="accuracy")
    accuracy = json.loads((run / "test.json").read_text())["classification"]["accuracy"]
    assert found.names[0] == "classified" and found.results["accuracy"] == [accuracy, None, None, None]


def test_pauses_are_no_seconds_of_training(ckpts: Path, tmp_path: Path) -> None:
    """Two sessions with a day in between, the second from a checkpoint before the last row: what counts is trained once."""
    run = shutil.copytree(ckpts / "DistMult_toy_0", tmp_path / "resumed")
    rows = [(0, 10, 2.0), (5, 20, 3.0), (86_400, 20, 4.0), (86_405, 25, 1.5)]
    lines = [{"kind": "train", "time": time, "step": step, "seconds": took} for time, step, took in rows]
    lines.insert(2, {"kind": "valid", "time": 60, "step": 20, "mrr": 0.5})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert compare([run]).results["seconds"] == [2.0 + 4.0 + 1.5]


def test_runs_without_embeddings_are_not_to_be_ranked(ckpts: Path, tmp_path: Path) -> None:
    runs = [shutil.copytree(ckpts / "TransE_l2_toy_1", tmp_path / name) for name in ("lost", "there")]
    settings = json.loads((runs[0] / "config.json").read_text())
    (runs[0] / "config.json").write_text(json.dumps(settings | {"no_save_emb": True}))
    assert compare(runs).notes == [
        f"no test metrics yet: there; run kgdist-eval {runs[1]}",
        "no test metrics yet: lost; trained with --no_save_emb, so there is nothing to rank: train again without",
    ]


def test_nothing_is_best_where_runs_were_asked_different_things(ckpts: Path, tmp_path: Path) -> None:
    one, other = (shutil.copytree(ckpts / "DistMult_toy_0", tmp_path / name) for name in ("one", "other"))
    report = json.loads((other / "test.json").read_text())
    report["all"]["realistic"]["mrr"] += 1e-9  # another value, of the same ranks
    (other / "test.json").write_text(json.dumps(report | {"classification": {"accuracy": 0.5, "negatives": "drawn", "count": 9}}))
    report = json.loads((one / "test.json").read_text())
    (one / "test.json").write_text(json.dumps(report | {"classification": {"accuracy": 0.6, "negatives": "given", "count": 9}}))
    found = compare([one, other])
    assert "mrr" in found.best and "accuracy" not in found.best
    assert found.notes == ["triples were classified beside different negatives: no accuracy is marked as the best"]
    with np.load(other / "test.ranks.npz") as file:
        triples, ranks = file["triples"].copy(), file["ranks"].copy()
    triples[0] = triples[0, ::-1]
    with (other / "test.ranks.npz").open("wb") as target:
        np.savez(target, triples=triples, ranks=ranks)
    found = compare([one, other])
    assert found.best == {} and found.notes[-1].startswith("tested on different triples (one on others than the best)")


def test_the_rate_is_that_of_all_steps(ckpts: Path, tmp_path: Path) -> None:
    run = shutil.copytree(ckpts / "DistMult_toy_0", tmp_path / "timed")
    rows = [{"kind": "train", "step": step, "seconds": took, "triples_per_second": rate} for step, took, rate in (
        (1000, 4.0, 90_000), (1040, 0.5, 180_000),
    )]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert compare([run]).results["triples/s"] == [(4.0 * 90_000 + 0.5 * 180_000) / 4.5]


def test_a_run_without_metrics_has_blanks_and_a_note(ckpts: Path) -> None:
    found = compare([ckpts])
    assert found.names[-1] == "TransE_l2_toy_1" and [found.results[column][-1] for column in METRICS] == [None] * 8
    (note,) = found.notes
    assert note == f"no test metrics yet: TransE_l2_toy_1; run kgdist-eval {ckpts / 'TransE_l2_toy_1'}"


@pytest.mark.parametrize(
    ("sort", "sign"), [("mrr", -1), ("MR", 1), ("hits@10", -1), ("AUC-ROC", -1), ("seconds", 1), ("lr", 1), ("run", 1)]
)
def test_the_order(ckpts: Path, sort: str, sign: int) -> None:
    found = compare([ckpts], sort)
    column: list[Any] = {"run": found.names, "lr": [folder.config.lr for folder in found.folders]}.get(sort) or [
        value for value in found.results[sort.lower()] if value is not None
    ]
    assert column == sorted(column, reverse=sign < 0)


def test_each_run_once_and_by_names_that_differ(ckpts: Path, tmp_path: Path) -> None:
    shutil.copytree(ckpts / "DistMult_toy_0", tmp_path / "ckpts" / "DistMult_toy_0")
    found = compare([ckpts, ckpts / "DistMult_toy_0", f"{ckpts}/../{ckpts.name}", tmp_path / "ckpts"], "run")
    assert len(found.names) == len(set(found.names)) == 4
    assert sum(name.endswith("ckpts/DistMult_toy_0") for name in found.names) == 2


def test_nothing_is_best_where_runs_do_not_compare(ckpts: Path, tmp_path: Path) -> None:
    for name, change in (("set", ("dataset", "other")), ("files", ("data_digest", "of other files")), ("rules", None)):
        run = tmp_path / name
        shutil.copytree(ckpts / "TransE_l2_toy_0", run)
        if change:
            config = json.loads((run / "config.json").read_text())
            (run / "config.json").write_text(json.dumps(config | {change[0]: change[1]}))
        else:
            report = json.loads((run / "test.json").read_text())
            report["protocol"]["filter"] = []
            (run / "test.json").write_text(json.dumps(report))
        found = compare([ckpts / "DistMult_toy_0", run])
        assert found.best == {} and any("no value is marked" in note for note in found.notes)


def test_runs_are_told_apart_triple_by_triple(ckpts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other, twin = ckpts / "DistMult_toy_0", ckpts / "TransE_l2_toy_0", tmp_path / "twin"
    shutil.copytree(one, twin)
    found = compare([one, other, twin])
    kept = {run: np.load(run / "test.ranks.npz") for run in (one, other)}
    assert kept[one]["triples"].shape == (12, 3) and kept[one]["ranks"].shape == (2, 12)
    best = next(place for place, each in enumerate(found.standings) if each.best)
    for folder, mrr, each in zip(found.folders, found.results["mrr"], found.standings, strict=True):
        report = json.loads((folder.path / "test.json").read_text())
        assert (
            each.own == (report["intervals"]["low"]["mrr"], report["intervals"]["high"]["mrr"])
            and each.own.low < mrr < each.own.high
        )
        if not each.best:
            assert each.difference == pytest.approx(mrr - found.results["mrr"][best], abs=1e-6)
            assert each.span is not None and each.differs is not (each.span.low <= 0 <= each.span.high)
    place = next(number for number, name in enumerate(found.names) if number != best and name in ("twin", one.name))
    assert found.standings[place].span == (0, 0) and found.standings[place].differs is False  # the same ranks
    with np.load(one / "test.ranks.npz") as file, (twin / "test.ranks.npz").open("wb") as target:
        np.savez(target, triples=file["triples"][::-1], ranks=file["ranks"][:, ::-1])
    assert [each.span for each in compare([one, twin], "run").standings] == [None, None]  # not the same triples in their order
    (twin / "test.ranks.npz").unlink()
    assert command.main([str(one), str(other), str(twin), "--sort", "hits@10"]) == 0
    out, err = capsys.readouterr()
    assert f"no ranks to tell runs apart by: twin; run kgdist-eval {twin}" in err
    assert "HITS@10, 95 %" in out and out.count("does not differ") + out.count("differs") == 1
    (twin / "test.ranks.npz").write_bytes(b"PK")
    assert command.main([str(one), str(twin), "--json"]) == 0
    out, err = capsys.readouterr()
    assert "test.ranks.npz: not readable as ranks" in err
    standing = {run["run"]: run["standing"] for run in json.loads(out)["runs"]}
    assert standing["twin"]["interval"] == standing[one.name]["interval"] and standing["twin"]["differs"] is None


def test_the_terminal(ckpts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(ckpts), "--sort", "run"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split()[:9] == ["run", *METRICS]
    assert lines[1].split()[0] == "DistMult_toy_0" and f"{reports(ckpts)['DistMult_toy_0']['mrr']:.4f}" in lines[1]
    assert out.count("*") >= 6 and "lr" in lines[5].split()
    assert err.count("no test metrics yet") == 1


def test_the_files(ckpts: Path, tmp_path: Path) -> None:
    for kind in ("tsv", "json", "md", "html"):
        assert command.main([str(ckpts), "--output", str(tmp_path / f"runs.{kind}"), "--quiet"]) == 0
    saved = reports(ckpts)
    with (tmp_path / "runs.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    parsed = json.loads((tmp_path / "runs.json").read_text())
    for row, entry in zip(rows, parsed["runs"], strict=True):
        assert row["run"] == entry["run"]
        for column in METRICS:
            value = saved.get(row["run"], {}).get(column)
            assert entry["results"][column] == value and row[column] == ("" if value is None else repr(value))
        assert float(row["lr"]) == entry["options"]["lr"]
    table = [line for line in (tmp_path / "runs.md").read_text().splitlines() if line.startswith("|")]
    assert len(table) == 10 and len({line.count("|") for line in table[:5]}) == 1 and "**" in table[2]
    assert table[5].split("|")[-2] == " verdict " and len({line.count("|") for line in table[5:]}) == 1
    page = (tmp_path / "runs.html").read_text()
    assert all(name in page for name in saved) and page.count('class="chart"') == 3


def test_json_on_stdout(ckpts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(ckpts), "--json"]) == 0
    assert {entry["run"] for entry in json.loads(capsys.readouterr().out)["runs"]} == {path.name for path in ckpts.iterdir()}


def test_what_cannot_be_compared(ckpts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text('{"model_name": "DistM')
    for words, said in (
        ([], "no runs to compare"),
        ([tmp_path / "nowhere"], "nowhere: no such run folder"),
        ([ckpts, tmp_path / "empty"], "empty: has no config.json"),
        ([tmp_path / "half"], "half/config.json: not readable as JSON"),
        ([ckpts, "--sort", "tripels/s"], "did you mean 'triples/s'"),
        ([ckpts, "--sort", "quality"], "there are run, mrr"),
        ([ckpts, "--sort", "gamma"], "--sort: gamma is the same in all of these runs"),
        ([ckpts, "--output", "runs.xls"], "must end in .html, .tsv, .json, .md"),
    ):
        assert command.main([str(word) for word in words]) == 2, words
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: ") and said in lines[0]
    assert command.main([str(tmp_path), str(ckpts)]) == 0  # a folder that holds it: the others can be compared
    assert "it is left out" in capsys.readouterr().err
