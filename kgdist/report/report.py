"""report.html of a run: what its files tell, what its embeddings tell, and how they came about.

The page is made of what is there. A run without metrics, curves or data gets a page without
that part, which says what was missing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.files import PathLike, read_json
from kgdist.base.log import log, say
from kgdist.base.progress import bar
from kgdist.evaluation.text import protocol_line
from kgdist.options.config import Config
from kgdist.options.presets import Preset, find
from kgdist.report import charts, sections
from kgdist.report.charts import require
from kgdist.report.degree import degree_bins
from kgdist.report.examples import best_and_worst, examples
from kgdist.report.folder import Folder, numbers, read, relations
from kgdist.report.markup import Markup, el
from kgdist.report.opened import Opened, degrees, open_all, true_entities
from kgdist.report.page import Page, section
from kgdist.report.picture import picture

FILE = "report.html"


def write_report(path: PathLike, config: Config | None = None) -> Path:
    """Make the report of the run in the folder `path` and return the file. `config`: its options, if not those of config.json.

    Takes a minute at most, and less memory than an evaluation, whatever the graph: see kgdist.report.opened. Raises OptionError
    when Plotly is missing, CheckpointError for a folder that is no run, KgdistError when the file cannot be written.
    """
    require("--report")
    folder = read(path)
    config = config or folder.config
    page = Page(f"{config.model_name} on {config.dataset}")
    with bar(total=4, desc="report", unit="part") as progress:
        found = _Report(folder, config, page)
        for part in (found.computed, found.pictured, found.written):
            part()
            progress.update()
        page.write(folder.path / FILE)
        progress.update()
    return folder.path / FILE


def report_or_warn(path: PathLike, config: Config) -> None:
    """Write it and say so; whatever goes wrong is a warning, for the run is finished and saved."""
    try:
        say(f"report: {write_report(path, config)}")
    except Exception as error:
        log.warning(
            "no report: %s; the run is saved, try again with: kgdist-eval %s --report", error or type(error).__name__, path
        )
        log.debug("why", exc_info=True)


def published(config: Config) -> Preset | None:
    """The published row of this model and data set, if there is one."""
    try:
        return find(config.model_name, config.dataset)
    except OptionError:
        return None


class _Report:
    """The facts, as they come in, and then the page."""

    def __init__(self, folder: Folder, config: Config, page: Page) -> None:
        self.folder, self.config, self.page = folder, config, page
        self.notes = list(folder.notes)
        self.report: Any = folder.test
        self.split = "test"
        self.opened: Opened | None = None
        self.asked: Markup | None = None  # questions and answers
        self.drawn: list[charts.Chart] = []

    def computed(self) -> None:
        """Ranks of a sample, and what they show."""
        try:
            self.opened = open_all(self.folder.path, self.config)
            ranks = self.opened.evaluator.rank(self.opened.model, self.opened.tables, self.opened.split)
        except KgdistError as error:
            self.notes.append(f"Nothing could be ranked, so there are no examples here: {error}")
            return
        opened, self.split = self.opened, self.opened.split
        if self.report is None:
            self.report = opened.evaluator.report(ranks, opened.split)
        found = relations(self.report) or relations(opened.evaluator.report(ranks, opened.split))
        best, worst = best_and_worst(found, np.unique(ranks.relation))
        queries = f"From {len(ranks) // 2:,} of {len(opened.dataset.splits[self.split]):,} {self.split} triples."
        caption = f"{queries} Other answers that the graph holds are left out, as in the ranks; ✓ marks the true one."
        cards = [
            sections.example_cards(title, [(found[relation], *examples(opened, ranks, relation)) for relation in part])
            for title, part in (("The best relations", best), ("The worst relations", worst))
        ]
        self.asked = section("Questions and answers", el("p", caption, class_="caption"), cards, anchor="answers")
        degree = degrees(opened.dataset, true_entities(ranks))
        self.drawn.append(charts.degree_chart(degree_bins(ranks, degree), len(ranks)))

    def pictured(self) -> None:
        """The map of the entities."""
        if self.opened is not None:
            self.drawn.append(charts.picture_chart(picture(self.opened, self.config.seed)))

    def written(self) -> None:
        """The page, from top to bottom."""
        page, config, report = self.page, self.config, self.report
        row = published(config)
        page.add(self._head())
        body: list[Markup | None] = [el("p", note, class_="note") for note in self.notes]
        if report is not None:
            values = numbers(report["all"][str(report.get("ties", "realistic"))])
            body.append(sections.tiles(values, row))
        body.append(section("Training", self._curves(), anchor="training"))
        if report is not None:
            numbers_card = el("div", el("h3", "In numbers"), sections.metrics_table(report, row), class_="card")
            categories = sections.category_parts(report)
            cards = [numbers_card, page.chart(charts.category_chart(categories)) if categories else None]
            body.append(section("Metrics", self._protocol(row), el("div", cards, class_="grid two"), anchor="metrics"))
        if parts := relations(report):
            body.append(section("Relations", sections.relations(parts), anchor="relations"))
        body.append(self.asked)
        if self.drawn:
            body.append(
                section("The graph", el("div", [page.chart(chart) for chart in self.drawn], class_="grid two"), anchor="graph")
            )
        body.append(section("How it was made", sections.how(self.folder, self._version()), anchor="made"))
        page.add(el("main", [part for part in body if part is not None]))
        when = time.strftime("%Y-%m-%d %H:%M")
        page.add(el("footer", el("p", f"Made by kgdist on {when}. This file is whole in itself: it loads nothing.")))

    def _head(self) -> Markup:
        facts = [self.folder.name]
        if self.opened is not None:
            data = self.opened.dataset
            facts.append(
                f"{len(data.entities):,} entities, {len(data.relations):,} relations, {len(data.train):,} training triples"
            )
        if self.folder.speed:
            facts.append(f"{self.folder.speed:,.0f} triples/s")
        return el("header", el("h1", self.page.title), el("p", " · ".join(facts), class_="soft"))

    def _protocol(self, row: Preset | None) -> Markup:
        """Under which rules the ranks came about."""
        try:
            line = protocol_line(self.report)
        except (KeyError, TypeError, ValueError):
            line = "The metrics file does not say under which rules these ranks came about."
        if self.folder.test is None:
            line += "; ranked for this page, since the run has no test.json"
        note = " Published figures are a place to reach, not an equality: their rules of ties and filtering are older."
        return el("p", line + "." + (note if sections.published_values(row) else ""), class_="caption")

    def _version(self) -> str | None:
        saved = read_json(self.folder.path / "config.json").get("kgdist_version")
        return saved if isinstance(saved, str) else None

    def _curves(self) -> Markup:
        """Charts of the course, and what is not known of it."""
        train, valid = self.folder.curves.get("train", []), self.folder.curves.get("valid", [])
        step = "step of each process" if self.config.num_proc > 1 else "step"
        losses = [("loss", train, "loss"), ("of positives", train, "pos_loss"), ("of negatives", train, "neg_loss")]
        metrics = [("MRR", valid, "mrr"), ("HITS@1", valid, "hits@1"), ("HITS@10", valid, "hits@10")]
        speed = [("triples/s", train, "triples_per_second")]
        loss, together = self.config.loss_genre, "all processes together" if self.config.num_proc > 1 else "while it trains"
        made = [
            charts.curves("Loss", f"{loss}, mean since the point before.", losses, x=step),
            charts.curves("Validation", "Of the valid split; higher is better.", metrics, x=step),
            charts.curves("Throughput", f"Positive triples per second, {together}.", speed, x=step, zero=True),
        ]
        missing = [
            "No loss: the run has no metrics.jsonl, or no row in it, for it was shorter than --log_interval.",
            "No validation: with --valid a run ranks the valid split every --eval_interval steps.",
            None,
        ]
        notes = [el("p", why, class_="caption") for chart, why in zip(made, missing, strict=True) if chart is None and why]
        cards = [self.page.chart(chart) for chart in made if chart is not None]
        return el("div", notes, el("div", cards, class_="grid three" if len(cards) == 3 else "grid two"))
