"""The page of attributes: its numbers against counting by hand, hostile names, and what happens when it cannot be written."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgdist.attributes import open_attributes
from kgdist.base import files
from kgdist.cli import preprocess as preprocess_command
from kgdist.report import attributes_report
from tests.attributes.entities import rows, schema, write_jsonl, write_tsv
from tests.report.conftest import HOSTILE, Seen


def words(path: Path, declared: Path, folder: Path) -> list[str]:
    """A call that writes a folder and a page."""
    given = {"--entities": path, "--schema": declared, "--out": folder / "out", "--report": folder / "page.html"}
    return [word for name, value in given.items() for word in (name, str(value))]


def figures(page: Path) -> list[dict[str, Any]]:
    """The charts of a page, as Plotly reads them."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"))
    return [json.loads(text) for text in found]


def test_counts_are_those_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attributes_report, "PIECE", 7)
    made = rows(60)
    assert preprocess_command.main(words(write_tsv(tmp_path / "e.tsv", made), schema(tmp_path), tmp_path)) == 0
    assert f"report: {tmp_path / 'page.html'}" in capsys.readouterr().out
    charts = dict(zip(("population", "height", "born", "country", "types"), figures(tmp_path / "page.html"), strict=True))
    drawn = {name: dict(zip(chart["data"][0]["text"], chart["data"][0]["x"], strict=True)) for name, chart in charts.items()}
    there = {name: [row[name] for row in made if row[name] is not None] for name in made[0]}
    assert drawn["country"] == Counter(there["country"])
    many = Counter(word for text in there["types"] for word in set(text.split("|")))
    assert drawn["types"] == {word: count for word, count in many.items() if count >= 2}
    assert all(sorted(found.values(), reverse=True) == list(found.values()) for found in (drawn["country"], drawn["types"]))
    for name in ("population", "height", "born"):
        trace = charts[name]["data"][0]
        assert sum(trace["y"]) == len(there[name])
    for text, count in zip(charts["height"]["data"][0]["text"], charts["height"]["data"][0]["y"], strict=True):
        low, high = map(float, text.split(" to "))  # in six digits
        assert count == sum(low - 1e-4 <= float(value) <= high + 1e-4 for value in there["height"])
    days = [text.split(" to ") for text in charts["born"]["data"][0]["text"]]
    assert days[0][0] == min(there["born"]) and days[-1][1] == max(there["born"])
    seen = Seen(tmp_path / "page.html")
    assert seen.open == [] and "Attributes of 60 entities" in seen.texts
    for name, values in there.items():
        if name not in ("entity", "types"):
            assert f"{len(values) / 60:.0%}" in seen.texts, name
    shown = " ".join(seen.texts)
    assert all(part in shown for part in ("reading and fitting", "work of this process, summed", "the whole"))


def test_many_intervals_share_bars(tmp_path: Path) -> None:
    made = [{"entity": f"e{number}", "size": str(number)} for number in range(500)]
    declared = tmp_path / "s.yaml"
    declared.write_text("key: entity\nattributes:\n  size: {kind: numeric, bins: 150, strategy: uniform}\n")
    assert preprocess_command.main(words(write_tsv(tmp_path / "e.tsv", made), declared, tmp_path)) == 0
    (chart,) = figures(tmp_path / "page.html")
    column = open_attributes(tmp_path / "out")["_N"]["size"]
    counts = np.bincount(column.indices, minlength=150)
    assert chart["data"][0]["y"] == counts.reshape(50, 3).sum(1).tolist()  # 60 bars at most


def test_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    made = [{"entity": f"e{number}", "kind": name, "x</script>": name} for number, name in enumerate(HOSTILE)]
    declared = tmp_path / "s.yaml"
    declared.write_text(
        'key: entity\nnode_type: n\nattributes:\n  kind: {kind: categorical}\n  "x</script>": {kind: categorical}\n'
    )
    assert preprocess_command.main(words(write_jsonl(tmp_path / "e.jsonl", made), declared, tmp_path)) == 0
    seen = Seen(tmp_path / "page.html")
    assert seen.open == [] and not {"a", "img", "iframe"} & {tag for tag, _ in seen.tags}
    assert sum(tag == "script" for tag, _ in seen.tags) == 4  # two charts, the library and the page's own
    labels = [text for figure in figures(tmp_path / "page.html") for text in figure["data"][0]["text"]]
    assert not any("<" in text for text in labels)


def test_a_page_that_cannot_be_written_spoils_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called = words(write_tsv(tmp_path / "e.tsv", rows(30)), schema(tmp_path), tmp_path)
    with monkeypatch.context() as patch:  # it can be written when the work begins
        patch.setattr(files, "check_output", lambda flag, path: Path(path).mkdir())
        assert preprocess_command.main(called) == 0
    assert "no report: " in capsys.readouterr().err
    open_attributes(tmp_path / "out").verify()
    assert preprocess_command.main([*called, "--out", str(tmp_path / "other")]) == 2
    assert f"--report: {tmp_path / 'page.html'} is a folder" in capsys.readouterr().err  # before the work
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert preprocess_command.main([*called, "--out", str(tmp_path / "other")]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "--report" in line and "pip install 'kgdist[viz]'" in line
    assert not (tmp_path / "other").exists()
