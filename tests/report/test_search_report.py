"""The page of a search: what it shows is what the trials were, and importance follows what made the difference."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kgdist.base.errors import KgdistError
from kgdist.options.config import Config
from tests.report.conftest import Seen

pytest.importorskip("optuna")
from kgdist.report.search_report import write_search_report
from kgdist.tuning.rounds import Done, Round
from kgdist.tuning.study import Row, best_of, importance
from kgdist.tuning.trials import SearchFolder
from tests.tuning.worlds import SPACE, World


def two_rounds(folder: Path) -> tuple[Config, list[Done]]:
    """A search without trainings: 30 trials, then the best of them once more; what it was asked for, and what came out."""

    def fail(number: int, validation: int) -> None:
        if number == 4:
            raise KgdistError("the loss became nan </script><b>")

    first = World(fail).run(folder / "rounds" / "1", 30)
    rows = first.rows()
    best = best_of(rows)
    assert best is not None
    last = World().run(folder, 1, first=dict(best.params))
    rounds = Round(30, 1 / 30, 3, 0.2, 0.1), Round(1, 1.0, 0, 1.0, 1.0)
    return first.base, [Done(rounds[0], rows), Done(rounds[1], last.rows())]


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Done], Path]:
    """The folder, the rounds, and the page."""
    folder = tmp_path_factory.mktemp("search")
    base, found = two_rounds(folder)
    return folder, found, write_search_report(SearchFolder(folder), base, SPACE, found, whole=True)


def figures(page: Path) -> list[dict[str, Any]]:
    """The charts of a page, as Plotly reads them."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"))
    return [json.loads(text) for text in found]


def test_the_page_shows_what_the_trials_were(search: tuple[Path, list[Done], Path]) -> None:
    folder, found, page = search
    rows, (last,) = found[0].rows, found[1].rows
    seen, charts = Seen(page), figures(page)
    shown = " ".join(seen.texts)
    assert page == folder / "report.html" and seen.open == [] and "b" not in {tag for tag, given in seen.tags if given}
    assert f"{last.mrr:.4f}" in seen.texts and "Trial 4 failed: the loss became nan </script><b>" in seen.texts
    assert all(word in shown for word in ("kgdist-train", f"--lr {last.params['lr']:.12g}", "--test", str(folder / "best.yaml")))
    history, curves, *slices = charts
    points = {trace["name"]: dict(zip(trace["x"], trace["y"], strict=True)) for trace in history["data"]}
    for state in ("finished", "stopped"):
        assert points[state] == {row.number: row.mrr for row in rows if row.state == state} != {}
    best = 0.0
    for row in rows:
        if row.state == "finished":
            best = max(best, row.mrr or 0)
            assert points["best so far"][row.number] == best
    assert {trace["name"].split(",")[0]: tuple(trace["y"]) for trace in curves["data"]} == {
        f"trial {row.number}": row.curve for row in rows if row.curve
    }
    assert [chart["layout"]["xaxis"]["title"]["text"] for chart in slices[: len(SPACE)]] == list(SPACE)
    drawn = [(str(x), y) for trace in slices[2]["data"] for x, y in zip(trace["x"], trace["y"], strict=True)]
    assert sorted(drawn) == sorted((str(row.params["batch_size"]), row.mrr) for row in rows if row.curve)
    assert "Importance of each option: PED-ANOVA" in seen.texts


def test_importance_is_that_of_the_option_that_decides(search: tuple[Path, list[Done], Path]) -> None:
    rows = search[1][0].rows
    found = importance(rows, SPACE)
    assert found is not None and found.validation == 1 and found.trials == sum(bool(row.curve) for row in rows) == 29
    for name, shares in found.shares.items():
        assert next(iter(shares)) == "lr" and shares["lr"] > 0.5 and sum(shares.values()) == pytest.approx(1), name
        assert shares.keys() == SPACE.keys()
    assert importance(rows[:4], SPACE) is None
    flat = [Row(row.number, row.state, row.params, 0.5, 1, None, (0.5,)) for row in rows]
    assert importance(flat, SPACE) is None


def test_a_search_that_has_not_come_to_its_end(search: tuple[Path, list[Done], Path], tmp_path: Path) -> None:
    _, found, _ = search
    nothing = Done(found[0].round, [])
    page = write_search_report(SearchFolder(tmp_path), Config(dataset="mine"), SPACE, [nothing], whole=False)
    assert "the same call of kgdist-tune goes on" in " ".join(Seen(page).texts)
