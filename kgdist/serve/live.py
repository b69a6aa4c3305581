"""The run that is served: opened once, never changed, and replaced as a whole when its files have changed.

Rows are mapped from the run's files, so another server of the same run has them in memory once, and a run that is deleted or
replaced under the server stays what it was for whoever holds it. (A file that is overwritten in place does not: `mv` a new one
over it, as training does.)
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from kgdist.base.errors import CheckpointError, KgdistError
from kgdist.base.log import log
from kgdist.data.dataset import Dataset, open_dataset
from kgdist.data.known import KnownTriples
from kgdist.data.labels import ByLabel, Labels
from kgdist.data.vocabulary import Vocabulary
from kgdist.evaluation.candidates import require_finite
from kgdist.predict.engine import Predictor
from kgdist.predict.explain import calibration_of
from kgdist.predict.similar import MEASURES, SimilarSearch
from kgdist.runs import rundir
from kgdist.runs.opened import Opened, open_model

KINDS = ("entity", "relation")
ROWS = 1 << 14  # rows looked at together
COUNTED = 1 << 22  # triples, about, of which the most connected are counted
HUBS = 64  # of which so many are kept
Stamp = dict[str, tuple[int, int, int]]  # file -> inode, bytes, nanoseconds of its last change


class Live:
    """One run, with what answering takes: the engine, names, known triples and what scores mean, where its data are there."""

    def __init__(self, opened: Opened, dataset: Dataset | None, stamp: Stamp, threads: int, before: Live | None = None) -> None:
        self.opened, self.dataset, self.stamp, self.threads = opened, dataset, stamp, threads
        names = opened.vocabularies
        if names is None and dataset is not None:
            names = dataset.entities, dataset.relations
        self.entities, self.relations = names or opened.names
        self.names = dict(zip(KINDS, (self.entities, self.relations), strict=True))
        self.labels = dict(zip(KINDS, rundir.labels_of(opened.run.path, self.entities, self.relations), strict=True))
        self._by_label: dict[Labels, ByLabel] = {}
        self.predictor = Predictor.of(opened, threads)
        for table, rows in opened.tables.rows.items():  # now, not when somebody asks
            for start in range(0, len(rows), ROWS):
                require_finite(table, rows[start : start + ROWS], np.arange(start, min(start + ROWS, len(rows))))
        self.known: KnownTriples | None = None
        self.calibration = None
        if dataset is not None:
            known = before.known if before is not None and before.dataset is not None else None
            if before is None or before.dataset is None or before.dataset.digest != dataset.digest or known is None:
                splits = [split.array for split in dataset.splits.values()]
                known = KnownTriples.build(splits, opened.num_entities, opened.num_relations)
            self.known = known
            valid = dataset.splits.get("valid")
            if valid is not None and len(valid):
                files = list(rundir.array_names(opened.config).values())
                self.calibration = calibration_of(opened.run.path, files, valid.array, self.predictor, known)
        self._searches: dict[tuple[str, str], SimilarSearch] = {}

    @cached_property
    def row_names(self) -> dict[str, Vocabulary]:
        """Names of the rows of either table."""
        return {**self.names, "relation": self.opened.row_names("relation")}

    @cached_property
    def row_labels(self) -> dict[str, Labels]:
        """Labels of the rows of either table."""
        rows = self.row_names["relation"]
        return {**self.labels, "relation": self.labels["relation"].of_rows(rows, len(rows) // max(1, len(self.relations)))}

    @cached_property
    def hubs(self) -> dict[str, np.ndarray]:
        """Who is in most triples of train, or of every nth of very many, most first: int64[HUBS] or fewer of each kind; none
        where the data is not known."""
        found = {kind: np.zeros(0, np.int64) for kind in KINDS}
        if self.dataset is not None:
            array = self.dataset.train.array
            some = array[:: 1 + len(array) // COUNTED]
            for kind, columns in zip(KINDS, ([0, 2], [1]), strict=True):
                ids, counts = np.unique(some[:, columns], return_counts=True)
                found[kind] = ids[np.argsort(-counts, kind="stable")[:HUBS]].astype(np.int64)
        return found

    def by_label(self, labels: Labels) -> ByLabel | None:
        """What finds things by these labels of the run; None where there are none."""
        if not len(labels):
            return None
        if labels not in self._by_label:
            self._by_label[labels] = ByLabel(labels)
        return self._by_label[labels]

    def search(self, kind: str, measure: str) -> SimilarSearch:
        """The search for similar rows; made by the thread that answers, when it is first asked for."""
        if (kind, measure) not in self._searches:
            made = MEASURES[measure](self.opened.tables.rows[kind])
            self._searches[kind, measure] = SimilarSearch(made, threads=self.threads)
        return self._searches[kind, measure]


def stamp_of(path: Path) -> Stamp:
    """What tells whether the files of a run have changed: those that are read to serve it."""
    found: Stamp = {}
    with contextlib.suppress(OSError):
        for file in os.scandir(path):
            if file.name.endswith(".npy") or file.name in ("config.json", "entities.tsv", "relations.tsv", rundir.LABELS):
                facts = file.stat()
                found[file.name] = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    return found


def open_live(path: Path, data_path: str | None, threads: int, before: Live | None = None) -> Live:
    """Open the run folder `path`. Without its data set it is served all the same, with a warning: facts cannot be left out then.

    Raises CheckpointError for a folder that is no run, or changes while it is read; EvaluationError for rows that are not finite.
    """
    stamp = stamp_of(path)
    opened = open_model(path, data_path=data_path)
    dataset: Dataset | None = None
    try:
        dataset = open_dataset(opened.config, opened.vocabularies, judged=())
        opened.require(dataset)
    except KgdistError as error:
        dataset = None
        log.warning("%s; so no facts are known here, and no probabilities: give --data_path", error)
    live = Live(opened, dataset, stamp, threads, before)
    if stamp_of(path) != stamp:
        raise CheckpointError(f"{path}: its files have changed while they were read")
    return live


class Current:
    """The run that is served now. A thread looks every `seconds` whether its files have changed, and opens it again when they
    have come to rest; until the new one is ready the old one answers, and as long as requests hold it.

    A run that is gone, or cannot be opened, is warned of once, and the old one goes on.
    """

    def __init__(self, path: Path, live: Live, open_again: Callable[[Live], Live], seconds: float) -> None:
        self.path, self.live, self.taken_over = path, live, 0
        self._open, self._seconds = open_again, seconds
        self._seen, self._refused = live.stamp, live.stamp
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kgdist-serve-files", daemon=True)

    def start(self) -> None:
        """Begin to look at the files."""
        self._thread.start()

    def close(self, patience: float = 60.0) -> None:
        """End the thread; a run that is just being opened is waited for."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=patience)

    def _watch(self) -> None:
        while not self._end.wait(self._seconds):
            self.look()

    def look(self) -> None:
        """Take over what lies there now, if it is other files than those that are served, the same as at the last look, and not
        what was refused already."""
        stamp = stamp_of(self.path)
        rested, self._seen = stamp == self._seen, stamp
        if stamp in (self.live.stamp, self._refused) or not rested:
            return
        self._refused = stamp
        if "config.json" not in stamp:
            log.warning("%s: the run is gone; what was loaded of it goes on answering", self.path)
            return
        try:
            self.live = self._open(self.live)
        except (KgdistError, OSError, ValueError) as error:
            log.warning("%s: cannot be taken over, so the run before goes on answering (%s)", self.path, error)
            return
        self.taken_over += 1
        log.info("%s: its new files are served now", self.path)
