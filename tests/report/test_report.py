"""report.html: what it says is what the run says, whatever is missing; it is whole in itself, and no name can break it."""

from __future__ import annotations

import html
import itertools
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.cli import eval as eval_command
from kgdist.cli import train as train_command
from kgdist.options.configfile import DIGEST
from kgdist.report import charts, page
from kgdist.report.report import write_report
from kgdist.runs.rundir import open_run
from tests.report.conftest import HOSTILE, RELATION, Seen, graph, train


@pytest.fixture
def copied(hostile: Path, tmp_path: Path) -> Path:
    """The run, to be damaged."""
    folder = tmp_path / "run"
    shutil.copytree(hostile, folder)
    (folder / "report.html").unlink()
    return folder


def test_the_page_is_whole_in_itself(hostile: Path) -> None:
    seen = Seen(hostile / "report.html")
    assert seen.open == []
    for tag, attributes in seen.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img", "image")
        assert not {"src", "srcset", "action"} & set(attributes), tag
        assert all(not key.startswith("on") for key in attributes), tag
        assert (attributes.get("href") or "#").startswith("#")
    style = (Path(charts.__file__).parent / "templates/page.css").read_text()
    assert "url(" not in style and "@import" not in style
    assert (hostile / "report.html").stat().st_size < 2_600_000


def test_names_are_text_and_nothing_else(hostile: Path) -> None:
    seen = Seen(hostile / "report.html")
    figures = [attributes for tag, attributes in seen.tags if tag == "script" and attributes.get("type") == "application/json"]
    assert len(figures) == 6  # loss, validation, throughput, categories, degrees, entities
    assert sum(tag == "script" for tag, _ in seen.tags) == len(figures) + 2  # the library and the page's own
    assert "a" not in {tag for tag, _ in seen.tags}
    shown = " ".join(seen.texts)
    assert RELATION[:79] in shown
    assert any(name[:79] in shown for name in HOSTILE)
    page = (hostile / "report.html").read_text(encoding="utf-8")
    drawn = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page)
    assert not any(sign in "".join(drawn) for sign in "<>&'")
    labels = [text for figure in map(json.loads, drawn) for trace in figure["data"] for text in trace.get("text", ())]
    assert any("&lt;script&gt;" in text for text in labels)  # Plotly is shown an escaped name
    assert not any("<script" in text for text in labels)


NASTY = st.text(st.characters() | st.sampled_from("<>&\"'{}%#/-_\0\x0b\x1b\u202e\u2028\ud800"), max_size=120)


@given(NASTY, NASTY)
def test_no_text_can_end_what_it_stands_in(name: str, caption: str) -> None:
    template = page._environment().from_string(
        "{% from 'parts.html' import card, name %}<p>{{ name(text) }}</p>{{ card(chart, least=1) }}"
    )
    figure = {"data": [{"name": name, "text": [caption]}]}
    chart = charts.Chart(name, caption, figure, [charts.Key(caption, [0], 1)])
    text = template.render(text=name, chart=chart)
    seen, plain = Seen(text), Seen(template.render(text="", chart=charts.Chart("", "", {}, [charts.Key("", [0], 1)])))
    assert [tag for tag, _ in seen.tags if tag != "wbr"] == [tag for tag, _ in plain.tags] and seen.open == []
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)[1])
    name, caption = (page.UNFIT.sub("\ufffd", each) for each in (name, caption))  # as the page shows them
    box = next(attributes for _, attributes in seen.tags if attributes.get("class") == "chart")
    assert box["aria-label"] == f"{name}: {caption}"
    assert seen.tags[1][1].get("title") == (name if len(name) > 80 else None)
    shown = name if len(name) <= 80 else name[:79] + "…"
    assert html.unescape(re.sub("<.*?>", "", text[: text.index("</p>")])) == html.unescape(html.escape(shown))
    assert data == figure


def test_templates_escape_all_but_what_is_the_package_s_own() -> None:
    trusted = {"base.html": ["style", "library", "script"]}
    for file in page.TEMPLATES.glob("*.html"):
        text = file.read_text()
        assert re.findall(r"(\w+)\s*\|\s*safe\b", text) == trusted.get(file.name, [])
        assert "autoescape" not in text and "forceescape" not in text and not re.search(r"=\{\{", text)  # attributes are quoted
    with pytest.raises(jinja2.UndefinedError, match="misspelt"):
        page._environment().from_string("{{ misspelt }}").render()


def test_a_name_cannot_hold_what_no_page_may() -> None:
    shown = (
        page._environment().from_string("<b>{{ name }}</b>{{ ours|safe }}").render(name="a\x1b[1m<\u202eb\x07\tc", ours="\x85")
    )
    assert shown == "<b>a\ufffd[1m&lt;\ufffdb\ufffd\tc</b>\x85"


def test_metrics_are_those_of_the_run(hostile: Path) -> None:
    report = json.loads((hostile / "test.json").read_text())
    shown = Seen(hostile / "report.html").texts
    metrics = report["all"]["realistic"]
    at = shown.index("MRR")
    assert shown[at + 1] == f"{metrics['mrr']:.3f}"
    for part in (*report["categories"].values(), *report["relations"].values(), report["sides"]["head"]["realistic"]):
        assert f"{part['mrr']:.3f}" in shown
    names = [part["name"][:79] for part in report["relations"].values()]
    assert all(any(name in text for text in shown) for name in names)


def test_the_training_stands_beside_the_page(copied: Path) -> None:
    (copied / "metrics.jsonl").write_text("".join(
        json.dumps({"kind": "valid", "step": step, "time": 1_700_000_000 + 30 * step, "mrr": mrr}) + "\n"
        for step, mrr in ((1, 0.25), (2, 0.5), (3, 0.125))
    ) + json.dumps({"kind": "train", "step": 3, "seconds": 60.0}))  # fmt: skip
    shown = Seen(write_report(copied)).texts
    at = shown.index("MRR ON VALID")
    assert shown[at + 1 : at + 3] == ["0.500", "the best of 3 validations"]
    at = shown.index("The training")
    rows = dict(itertools.pairwise(shown[at : shown.index("Where this page was made")]))
    assert rows["began"] == "2023-11-14 22:13 UTC" and rows["training took"] == "0:01:00"
    assert rows["data, SHA-256"] == json.loads((copied / "config.json").read_text())[DIGEST][:16]


def test_the_published_row_stands_beside(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    assert "published" not in " ".join(Seen(write_report(copied)).texts)
    config["dataset"] = "FB15k"
    for file in copied.glob("toy_*.npy"):
        file.rename(file.with_name(file.name.replace("toy", "FB15k")))
    (copied / "config.json").write_text(json.dumps(config))
    shown = Seen(write_report(copied)).texts
    assert "published 0.696" in shown and "published 61.43" in shown
    assert any("DGL-KE, 1 GPU" in text for text in shown)


def test_other_tests_stand_beside_the_ranks(copied: Path) -> None:
    assert "True or false" not in Seen(write_report(copied)).texts
    assert eval_command.main([str(copied), "--classify", "--rank_relations", "--report"]) == 0
    found = json.loads((copied / "test.json").read_text())
    shown = Seen(copied / "report.html").texts
    at = shown.index("True or false")
    figures = [f"{found['classification'][name]:.3f}" for name in ("accuracy", "auc-roc", "auc-pr")]
    assert [shown[shown.index(name, at) + 1] for name in ("accuracy", "AUC-ROC", "AUC-PR")] == figures
    at = shown.index("relations, (head, ?, tail)")
    assert shown[at + 1 : at + 3] == [str(found["missing_relations"]["count"]), f"{found['missing_relations']['mrr']:.3f}"]
    for damage in ({"classification": 3, "missing_relations": "x"}, {"classification": {"count": 1}}):
        (copied / "test.json").write_text(json.dumps(found | damage))
        assert "True or false" not in Seen(write_report(copied)).texts
    (copied / "test.json").write_text(json.dumps(found | {"classification": found["classification"] | {"auc-pr": "much"}}))
    shown = Seen(write_report(copied)).texts
    assert shown[shown.index("AUC-PR", shown.index("True or false")) + 1] == "–"


def drop(name: str) -> Callable[[Path], None]:
    """A damage: files are gone."""
    return lambda run: [file.unlink() for file in run.glob(name)] and None


def put(name: str, text: str) -> Callable[[Path], None]:
    """A damage: a file holds something else."""
    return lambda run: (run / name).write_text(text) and None


def no_data(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"data_path": "/nowhere"}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (drop("metrics.jsonl"), "metrics.jsonl is missing"),
        (put("metrics.jsonl", '{"kind": "train"}\n[]\n{"kind": "train", "step": NaN}\nx'), "4 lines cannot be read"),
        (drop("test.json"), "the run has no test.json"),
        (put("test.json", '{"all": 3}'), "not the metrics that kgdist-eval saves"),
        (put("test.json", '{"all": {'), "not readable as JSON"),
        (drop("*_entity.npy"), "Nothing could be ranked"),
        (put("toy_DistMult_entity.npy", "no array"), "Nothing could be ranked"),
        (no_data, "Nothing could be ranked"),
    ],
)
def test_a_page_without_what_is_missing(copied: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(copied)
    page = Seen(write_report(copied))
    assert any(said in text for text in page.texts)
    assert any(text.startswith("Options that differ") for text in page.texts)


def test_odd_parts_of_a_metrics_file_are_left_out(copied: Path) -> None:
    report = json.loads((copied / "test.json").read_text())
    report |= {
        "sides": 3,
        "categories": {"1-1": None, "<i>": {"mrr": "x"}},
        "relations": {"x": {"mrr": 1}, "0": []},
        "protocol": 0,
    }
    (copied / "test.json").write_text(json.dumps(report))
    page = Seen(write_report(copied))
    assert any("does not say under which rules" in text for text in page.texts)
    assert not any(tag == "i" and "style" not in attributes for tag, attributes in page.tags)


def test_eval_writes_the_report_of_an_earlier_run(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert eval_command.main([str(copied), "--report", "--rank_ties", "optimistic"]) == 0
    assert f"report: {copied / 'report.html'}" in capsys.readouterr().out
    assert "ties: optimistic." in " ".join(Seen(copied / "report.html").texts)


def test_a_report_that_cannot_be_written_spoils_nothing(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "report.html").mkdir()
    assert eval_command.main([str(copied), "--report"]) == 0
    warning = capsys.readouterr().err.splitlines()[-1]
    assert warning.startswith("WARNING: no report: ") and "the run is saved" in warning and "--report" in warning


@pytest.mark.parametrize("package", ["plotly", "jinja2"])
def test_without_what_makes_pages_nothing_is_begun(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    words = [
        "--data_path",
        str(tmp_path),
        "--format",
        "raw_udd_hrt",
        "--data_files",
        "train.tsv",
        "--save_path",
        str(tmp_path / "c"),
    ]
    assert train_command.main([*words, "--report"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "--report" in line and package in line and "pip install 'kgdist[viz]'" in line
    assert not (tmp_path / "c").exists()


def test_a_report_keeps_enough_points(tmp_path: Path) -> None:
    graph(tmp_path)
    run = train(tmp_path, "--max_step", "300", "--log_interval", "1000", "--test=false", "--valid=false")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(3, 301, 3))
    assert open_run(run).config.log_interval == 1000
    shown = " ".join(Seen(run / "report.html").texts)
    assert "No validation" in shown and "the run has no test.json" in shown
