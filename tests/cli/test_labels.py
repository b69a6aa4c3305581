"""--labels: kept in the run, beside names in answers, files, Python and the report, and asked by."""

from __future__ import annotations

import json

import kgdist
from kgdist.cli import emb_sim, predict
from tests import formulas
from tests.cli.graphs import Bench

SIZE = ["--hidden_dim", str(formulas.DIM), "--gamma", str(formulas.GAMMA), "--max_step", "30"]


def test_labels_are_kept_shown_and_asked_by(bench: Bench) -> None:
    file = bench.root / "labels.tsv"
    file.write_text("e3\tParis\ne4\tTwin\ne5\tTwin\ne6\te7\nr1\tcapital of\nnobody\tNobody\n", encoding="utf-8")
    run = bench.train("--labels", str(file), *SIZE)
    said = bench.capsys.readouterr()
    assert "4 of 30 entities and 1 of 4 relations have a label; 1 label shared by several" in said.out
    assert "labels that are left out: 1 of names that the graph does not have (the first is 'nobody')" in said.err
    file.unlink()  # the run has kept them

    def answers(*words: str) -> list[dict[str, object]]:
        assert predict.main([str(run), *words, "--topk", "30", "--json"]) == 0
        return list(json.loads(bench.out())["answers"])

    found = answers("--head", "Paris", "--relation", "capital of")
    assert found == answers("--head", "e3", "--relation", "r1")
    labels = {"e3": "Paris", "e4": "Twin", "e5": "Twin", "e6": "e7"}
    assert list(found[0]) == ["head", "relation", "tail", "score", "head_label", "relation_label", "tail_label"]
    assert {row["tail"]: row["tail_label"] for row in found} == {f"e{n}": labels.get(f"e{n}") for n in range(30)}
    assert answers("--head", "e7", "--relation", "r1")[0]["head"] == "e7"  # a name goes before a label
    for output in ("a.tsv", "a.csv"):
        assert predict.main([str(run), "--head", "Paris", "--relation", "r1", "--output", str(bench.root / output)]) == 0
        first, second, *_ = (bench.root / output).read_text().splitlines()
        by = "," if output == "a.csv" else "\t"
        assert first.split(by)[4:] == ["head_label", "relation_label", "tail_label"] and second.split(by)[4:6] == [
            "Paris",
            "capital of",
        ]
    bench.out()
    assert predict.main([str(run), "--head", "Paris", "--relation", "r1"]) == 0
    assert "e3 (Paris)  r1 (capital of)" in bench.out()
    lists, asked = bench.root / "heads.txt", kgdist.load(str(run))
    lists.write_text("e1\nTwin\n")
    for words in (["--head", "Twin"], ["--format", "h_*_*", "--data_files", str(lists)]):
        assert predict.main([str(run), *words]) == 2
        twins = "e4, e5" if asked.entities.id("e4") < asked.entities.id("e5") else "e5, e4"
        assert f"2 entities have the label 'Twin': {twins}; name one of them" in bench.capsys.readouterr().err
    assert predict.main([str(run), "--head", "paris"]) == 2
    assert "no entity is called or labelled 'paris'; did you mean 'Paris'?" in bench.capsys.readouterr().err
    table = asked.predict(head="Paris", relation="capital of", k=30)
    assert [row["tail"] for row in found] == list(table["tail"]) and list(table["tail_label"]) == [
        row["tail_label"] for row in found
    ]
    assert emb_sim.main([str(run), "--left", "Paris", "--topk", "29", "--json"]) == 0
    near = json.loads(bench.out())["answers"]
    assert {row["right"]: row["right_label"] for row in near} == {f"e{n}": labels.get(f"e{n}") for n in range(30) if n != 3}
    other = bench.root / "other.tsv"
    other.write_text("e3\tRome\nr1\tin\n")
    bench.eval(run, "--labels", str(other), "--report")
    page = (run / "report.html").read_text()
    assert "e3 (Rome)" in page and "r1 (in)" in page
    assert predict.main([str(run), "--head", "Rome", "--relation", "r1"]) == 0  # kept from then on
    assert predict.main([str(run), "--labels", str(other), "--ids", "--head", "3"]) == 2
    assert "labels are of names, and these are ids" in bench.capsys.readouterr().err
