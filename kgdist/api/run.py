"""A trained run in Python: evaluate it, ask it, look at its embeddings. `kgdist.train` and `kgdist.load` return it.

The folder on disk is kgdist.runs.rundir; the engine that predicts is kgdist.predict. This class joins names to them.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.api.results import Embeddings, Evaluation, Table
from kgdist.base.errors import OptionError, UsageError
from kgdist.base.machine import usable_cores
from kgdist.base.types import Side
from kgdist.data.dataset import Dataset, open_dataset
from kgdist.data.known import KnownTriples
from kgdist.data.labels import Labels
from kgdist.data.vocabulary import Vocabulary
from kgdist.evaluation.evaluator import Evaluator
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.options.config import OPTIONS, Config
from kgdist.options.contradictions import of_an_evaluation, of_encoding, refuse
from kgdist.options.option import closest
from kgdist.predict.engine import Found, Predictor
from kgdist.predict.lists import Wanted, ids_of
from kgdist.predict.similar import MEASURES, SimilarSearch
from kgdist.runs.opened import Opened
from kgdist.runs.rundir import labels_of

ENDS = ("head", "relation", "tail")


class Run:
    """A trained run. Entities and relations are named by name (str), a label that no other has, or id (int).

    >>> run = kgdist.load("ckpts/RotatE_wordnet_0")
    >>> run.predict(head="dog.n.01", relation="hypernym", k=3)
    >>> run.evaluate("test").mrr
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    # ---- what it is

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._opened.run.path

    @property
    def config(self) -> Config:
        """The options it was trained with."""
        return self._opened.run.config

    @property
    def model(self) -> Model:
        """The score function."""
        return self._opened.model

    @property
    def tables(self) -> MemoryTables:
        """Where its rows are, as the evaluator and the predictor read them."""
        return self._opened.tables

    @cached_property
    def _names(self) -> tuple[Vocabulary, Vocabulary]:
        return self._opened.names

    @property
    def entities(self) -> Vocabulary:
        """Names of the entities by id; "0", "1", ... where the run knows none."""
        return self._names[0]

    @property
    def relations(self) -> Vocabulary:
        """Names of the relations by id."""
        return self._names[1]

    @cached_property
    def labels(self) -> tuple[Labels, Labels]:
        """What people call its entities and its relations, where --labels said so: `run.labels[0].names([7])`."""
        return labels_of(self.path, *self._names)

    @cached_property
    def dataset(self) -> Dataset:
        """The graph it was trained on, read again. Raises DataError when that is not where it was."""
        dataset = open_dataset(self._opened.config, self._opened.vocabularies)
        self._opened.require(dataset)
        return dataset

    def __repr__(self) -> str:
        sizes = f"{len(self.entities)} entities, {len(self.relations)} relations"
        return f"<kgdist run {self.path}: {self.config.model_name} on {self.config.dataset}, {sizes}>"

    # ---- the embeddings

    @cached_property
    def entity_embeddings(self) -> Embeddings:
        """float32[entities, entity_dim], memory-mapped."""
        return self.embeddings("entity")

    @cached_property
    def relation_embeddings(self) -> Embeddings:
        """float32[relations, width], memory-mapped. With `reciprocal` two rows each: "likes" and, next, "likes_inverse"."""
        return self.embeddings("relation")

    def embeddings(self, table: str) -> Embeddings:
        """Any table of the model: "entity", "relation", and TransR's "projection". Raises UsageError for another name."""
        arrays = self.tables.arrays()
        if table not in arrays:
            raise UsageError(f"{self.config.model_name} has no table {table!r}; its tables are {', '.join(arrays)}")
        noun = "entity" if table == "entity" else "relation"
        return Embeddings(arrays[table], self._opened.row_names(noun), noun)

    # ---- asking it

    def score(self, heads: Wanted, relations: Wanted, tails: Wanted) -> Any:
        """The model's score of triples, higher is likelier: float64[n], or a float for one triple.

        Several stand side by side; one alone goes with each of the others. Distances are with gamma (gamma - distance).
        Raises UsageError for unknown names, or lists that do not stand side by side.

        >>> run.score("dog.n.01", "hypernym", ["canine.n.02", "cat.n.01"])
        """
        ids, single = self._side_by_side({"head": heads, "relation": relations, "tail": tails})
        scores = self._predictor.score(ids["head"], ids["relation"], ids["tail"])
        return float(scores[0]) if single else scores

    def predict(
        self,
        head: Wanted | None = None,
        relation: Wanted | None = None,
        tail: Wanted | None = None,
        k: int = 10,
        *,
        exclude_known: bool = False,
    ) -> Table:
        """The `k` likeliest answers for what is not given, as a table: head, relation, tail, score (see `score`), rank, and
        head_label, relation_label, tail_label where the run has labels (None for what has none).

        Two given: the third is asked for, for each pair that stands side by side. One given: the other two are, for each one
        given. `exclude_known`: without the triples of train, valid and test. Ranks count from 1 for each question.
        Raises UsageError for unknown names, and when nothing or all is given.

        >>> run.predict(head="dog.n.01", relation="hypernym", k=3).to_pandas()
        >>> [row.head for row in run.predict(relation="hypernym", tail="canine.n.02", exclude_known=True)]
        """
        given = {name: value for name, value in zip(ENDS, (head, relation, tail), strict=True) if value is not None}
        if not 1 <= len(given) <= 2 or k < 1:
            what = "k must be at least 1" if k < 1 else "give one or two of head, relation and tail; score() takes all three"
            raise UsageError(f"predict: {what}")
        ids, _ = self._side_by_side(given)
        known = self._known(ids) if exclude_known else None
        predictor = self._predictor
        if len(given) == 1:
            ((each, own),) = ids.items()
            lists = [own if name == each else None for name in ENDS]
            blocks = list(predictor.best(lists[0], lists[1], lists[2], k, each=each, known=known))
            columns = [np.concatenate([block[place] for block in blocks]) for place in range(5)]
            questions, columns, scores = columns[0], columns[1:4], columns[4]
            answers = dict(zip(ENDS, columns, strict=True))
        else:
            if "relation" not in ids:
                found, missing = predictor.top_relations(ids["head"], ids["tail"], k, known=known), "relation"
            else:
                side = Side.TAIL if "head" in ids else Side.HEAD
                found, missing = predictor.top(side, ids[side.other.value], ids["relation"], k, known=known), side.value
            questions, answers, scores = _unfold(found, ids, missing)
        ranks = np.arange(len(questions)) - np.searchsorted(questions, questions) + 1
        return self._table({name: answers[name] for name in ENDS}, {"score": scores, "rank": ranks})

    def similar(self, name: Wanted, k: int = 10, *, kind: str = "entity", measure: str = "cosine") -> Table:
        """The `k` embeddings most similar to each one named, as a table: left, right, score, the most similar first.

        `kind`: "entity" or "relation", whose rows (and ids) are those of `relation_embeddings`; `measure`: cosine, dot, l2, l1
        (both negated) or ext_jaccard. Raises UsageError.

        >>> run.similar("dog.n.01", k=5)["right"]
        """
        if kind not in ("entity", "relation") or measure not in MEASURES or k < 1:
            allowed = f"kind entity or relation, measure {', '.join(MEASURES)}, k >= 1"
            raise UsageError(f"similar: must be {allowed}, not {kind!r}, {measure!r}, {k}")
        names = self._opened.row_names(kind)
        place = ("entity", "relation").index(kind)
        labels = self.labels[place].of_rows(names, len(names) // max(1, len(self._names[place])))
        ids, _ = ids_of(name, names, kind, labels)
        search = SimilarSearch(MEASURES[measure](self.tables.rows[kind]), threads=usable_cores())
        parts = list(search.best_of_each(ids, None, k))
        left, right, scores = (np.concatenate([part[place] for part in parts]) for place in range(3))
        ends = {"left": left, "right": right}
        called = {f"{end}_label": labels.names(found) for end, found in ends.items()} if labels else {}
        return Table({end: names.names(found) for end, found in ends.items()} | {"score": scores} | called, ends)

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor.of(self._opened, usable_cores())

    def _side_by_side(self, given: dict[str, Any]) -> tuple[dict[str, np.ndarray], bool]:
        """Name -> int64[n], one length, and whether each was one alone."""
        found = {}
        for name, value in given.items():
            noun, place = ("relation", 1) if name == "relation" else ("entity", 0)
            found[name] = ids_of(value, self._names[place], noun, self.labels[place])
        lengths = {len(ids) for ids, single in found.values() if not single} or {1}
        if len(lengths) > 1:
            sizes = ", ".join(f"{len(ids)} {name}s" for name, (ids, _) in found.items())
            raise UsageError(f"lists stand side by side, so they must be of one length, not {sizes}")
        (length,) = lengths
        ids = {name: np.repeat(ids, length) if single else ids for name, (ids, single) in found.items()}
        return ids, all(single for _, single in found.values())

    def _known(self, ids: dict[str, np.ndarray]) -> Any:
        splits = [split.array for split in self.dataset.splits.values()]
        counts = len(self.entities), len(self.relations)
        return KnownTriples.among(splits, *counts, [ids.get(name) for name in ENDS])

    def _table(self, ids: dict[str, np.ndarray], more: dict[str, np.ndarray]) -> Table:
        names = {end: self._names[end == "relation"].names(found) for end, found in ids.items()}
        called = {end: labels.names(found) for end, found in ids.items() if (labels := self.labels[end == "relation"])}
        return Table(names | more | {f"{end}_label": found for end, found in called.items()}, ids)

    # ---- how good it is

    def evaluate(self, split: str = "test", **options: Any) -> Evaluation:
        """Rank both ends of a split's triples and return the report; nothing is printed or written.

        `split`: "test", "valid" or "train". Options are those of kgdist-eval by name, such as `no_eval_filter=True` or
        `rank_ties="pessimistic"`; ranks are filtered and among all entities unless told otherwise.
        Raises UsageError for a split that is not there, OptionError for an option that cannot be.

        >>> run.evaluate("valid", eval_percent=0.1).mrr
        """
        asked = (row for row in OPTIONS.values() if "eval" in row.commands and row.group == "evaluation")
        allowed = [row.name for row in asked if not row.name.startswith("classify")]  # see `classify`
        allowed += ["num_proc", "num_thread", "seed"]
        for name in options:
            if name not in allowed:
                near = closest(name, allowed)
                raise OptionError(name, "not an option of evaluate" + (f"; did you mean {near}?" if near else ""))
        config = self._opened.config.replace(**{"num_proc": usable_cores(), "num_thread": 1} | options)
        refuse(of_an_evaluation(config))
        evaluator = Evaluator(self.dataset, config)
        report = evaluator.report(evaluator.rank(self.model, self.tables, split), split)
        if config.rank_relations:
            report["missing_relations"] = evaluator.relations(self.model, self.tables, split)
        return Evaluation(report)

    def classify(
        self, valid: str | os.PathLike[str] | None = None, test: str | os.PathLike[str] | None = None, *, seed: int = 0
    ) -> dict[str, Any]:
        """Tell true triples from false ones by a threshold for each relation; see `kgdist.predict.classification.classify`.

        `valid` and `test`: files of labelled triples, in the form of the run's data files, by which thresholds are chosen and
        which are tested on; without them the splits, with one false triple drawn for each. Raises UsageError, DataError
        (file:line).

        >>> run.classify()["accuracy"]
        """
        from kgdist.predict.classification import classify

        files = [os.fspath(file) for file in (valid, test) if file is not None]
        return classify(self._predictor, self.dataset, files, form=self.config, seed=seed)

    # ---- what others get of it

    def report(self) -> Path:
        """Write report.html into the run's folder, one self-contained page, and return the file.

        Needs Plotly (`pip install 'kgdist[viz]'`). Raises OptionError without it.
        """
        from kgdist.report.report import write_report

        return write_report(self.path, self._opened.config)

    def encode(
        self,
        out: str | os.PathLike[str],
        *,
        triples: str | os.PathLike[str] | None = None,
        entities: str | os.PathLike[str] | None = None,
        start: str = "mean",
        force: bool = False,
    ) -> Run:
        """Make rows of entities that the run has never seen, as kgdist-encode does, and return the run that has them, too.

        For a run with an encoder, whose data and attributes lie where they were. All is encoded anew, with the new triples.

        Args:
            out: the folder of the new run.
            triples: file of triples among new entities and known ones, separated by tabs.
            entities: file of the new ones' attributes, with the columns that the run's own had.
            start: what new entities without attributes begin with, "mean" of what known ones begin with, or "zeros".
            force: replace a run that is there, if it was made so.
        Raises UsageError for a run without an encoder, or where neither file is given; DataError (file:line), OptionError.

        >>> run.encode("grown", triples="new.tsv").predict(head="robot_dog.n.01", relation="hypernym", k=3)
        """
        from kgdist.options.tools import EncodeOptions
        from kgdist.runs import newcomers
        from kgdist.runs.opened import open_model

        heard, known = (None if each is None else os.fspath(each) for each in (triples, entities))
        options = EncodeOptions(
            model_path=str(self.path), out=os.fspath(out), triples=heard, entities=known, start=start, force=force
        )
        refuse(of_encoding(options, {}))
        return Run(open_model(newcomers.encode(options)[0]))

    def export(
        self, to: str = "npy", out: str | os.PathLike[str] | None = None, *, tables: str = "both", force: bool = False
    ) -> list[Path]:
        """Write the embeddings for other tools, as kgdist-export does, and return the files.

        Args:
            to: npy, safetensors, parquet, word2vec, projector or dglke.
            out: the folder; `export/<to>` in the run's folder when not given.
            tables: "both", "entity" or "relation".
            force: replace an export that is there.
        Raises UsageError for a folder that is there, OptionError for a format that is not known or whose library is missing.

        >>> run.export("word2vec", "vectors", tables="entity")
        """
        from kgdist.exchange import embeddings
        from kgdist.exchange.source import Source

        folder = Path(out) if out is not None else self.path / "export" / to
        return embeddings.export(Source.of(self._opened), to, folder, tables=tables, force=force)


def _unfold(found: Found, given: dict[str, np.ndarray], missing: str) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Questions int64[A], the ids of each end int64[A], scores float64[A]; without the places where there are no more answers."""
    rows, places = np.nonzero(found.ids >= 0)
    answers = {name: ids[rows] for name, ids in given.items()} | {missing: found.ids[rows, places]}
    return rows, answers, found.scores[rows, places]
