"""Triple classification: is this triple true? (Socher et al. 2013, Reasoning With Neural Tensor Networks, section 4.2).

A triple is held to be true when its score reaches the threshold of its relation, which is the one that gets most of the valid
triples of that relation right. Negatives are given in files, or drawn as there: of each true triple one with another head or
tail, by turns, from those that stand at that end of the relation in train, and not known as true by any split.

ROC-AUC and PR-AUC (average precision) need no threshold. They are of the scores as they are: those of different relations need
not be on one scale, so each relation has its own areas, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import DataError, OptionError, UsageError, counted
from kgdist.base.log import tell
from kgdist.base.types import Side
from kgdist.data.dataset import Dataset
from kgdist.data.known import KnownTriples
from kgdist.data.read.lines import blocks, check_file, each_line
from kgdist.data.read.text import split_line
from kgdist.options.config import Config
from kgdist.predict.engine import Predictor

DRAWS = 20  # times another entity is drawn when a corrupted triple turns out to be known
LABELS = {"1": True, "0": False, "-1": False}


class Labelled(NamedTuple):
    """Triples, and which of them are true."""

    triples: np.ndarray  # int64[N, 3]
    true: np.ndarray  # bool[N]


def read_labelled(path: Path, dataset: Dataset, delimiter: str = "\t", header: str = "no", quoted: bool = False) -> Labelled:
    """Lines of head, relation, tail and label: 1 is true, -1 or 0 false. `header`: as the data set's files have it, "yes" skips
    the first line, "auto" where its last field is no label. Raises DataError (file:line)."""
    check_file(path, "lines of head, relation, tail and label (1, -1 or 0)")
    rows, labels, numbers = [], [], []
    for block in blocks(path):
        for number, line, wrong in each_line(block):
            parted = wrong or split_line(line, delimiter, quoted)
            if isinstance(parted, str):
                raise DataError(path, parted, line=number)
            fields = [field.decode() for field in parted]
            if number == 1 and (header == "yes" or (header == "auto" and fields[-1].strip() not in LABELS)):
                continue
            if len(fields) != 4:
                raise DataError(
                    path, f"expected head, relation, tail and label, found {counted(len(fields), 'field')}", line=number
                )
            if fields[3].strip() not in LABELS:
                header_line = "; --header skips a first line that names columns" if number == 1 else ""
                what = f"label {fields[3][:40]!r} is not a label: 1 is true, -1 or 0 false{header_line}"
                raise DataError(path, what, line=number)
            rows.append(fields[:3])
            labels.append(LABELS[fields[3].strip()])
            numbers.append(number)
    triples = np.empty((len(rows), 3), np.int64)
    for column, noun in enumerate(("head", "relation", "tail")):
        names = [row[column] for row in rows]
        triples[:, column] = (dataset.relations if column == 1 else dataset.entities).find(names)
        if (triples[:, column] < 0).any():
            at = int(np.argmin(triples[:, column] >= 0))
            raise DataError(path, f"{noun} {names[at][:80]!r} is not in the graph that the run was trained on", line=numbers[at])
    true = np.array(labels, bool)
    if true.all() or not true.any():
        raise DataError(path, f"has {'no false' if true.all() else 'no true'} triple, so there is nothing to tell apart")
    return Labelled(triples, true)


def drawn(triples: np.ndarray, train: np.ndarray, known: KnownTriples, seed: int) -> np.ndarray:
    """int64[N, 3], N <= T: of the true `triples` int[T, 3] one false each, with another head or another tail, in turn, of those
    that the relation has there in `train`; where all of these are known, with one of the other end. Left out are those for which
    there is none at either.

    `known` must answer the queries of `triples`.
    """
    rng = np.random.default_rng(seed)
    made, open_ = triples.astype(np.int64), np.arange(len(triples))
    columns = np.where(open_ % 2 == 0, 0, 2)
    asked = np.zeros(known.num_relations, bool)
    asked[triples[:, 1]] = True
    own = train[asked[train[:, 1]]]
    pools = {}  # of each end: pairs of a relation and an entity, each once, and where those of a relation begin
    for column in (0, 2):
        pairs = np.unique(own[:, 1].astype(np.int64) * known.num_entities + own[:, column])
        pools[column] = (
            pairs % known.num_entities,
            np.searchsorted(pairs, np.arange(known.num_relations + 1) * known.num_entities),
        )
    for _ in range(DRAWS):
        bad = np.ones(len(open_), bool)
        for column, side in ((0, Side.HEAD), (2, Side.TAIL)):
            rows = np.flatnonzero(columns[open_] == column)
            at = open_[rows]
            entities, starts = pools[column]
            first, count = starts[made[at, 1]], np.diff(starts)[made[at, 1]]
            place = (rng.random(len(at)) * count).astype(np.int64)
            made[at, column] = np.where(
                count > 0, entities[np.minimum(first + place, len(entities) - 1)] if len(entities) else 0,
                rng.integers(0, known.num_entities, len(at)),
            )  # fmt: skip
            heads, relations, tails = made[at].T
            bad[rows] = known.holds(heads, relations, tails, side)
        open_ = open_[bad]
        if not len(open_):
            break
    none = []
    for row in open_:  # dense relations, where few entities or none would make a false triple: all are looked at
        for column in (columns[row], 2 - columns[row]):
            entities, starts = pools[column]
            relation = int(triples[row, 1])
            pool = entities[starts[relation] : starts[relation + 1]]
            tried = np.repeat(triples[row : row + 1].astype(np.int64), len(pool), axis=0)
            tried[:, column] = pool
            heads, relations, tails = tried.T
            false = pool[~known.holds(heads, relations, tails, Side.HEAD if column == 0 else Side.TAIL)]
            if len(false):
                made[row] = triples[row]
                made[row, column] = false[rng.integers(len(false))]
                break
        else:
            none.append(row)
    return np.delete(made, none, axis=0)


def threshold(scores: np.ndarray, true: np.ndarray) -> float:
    """The t for which `scores >= t` is right most often, of scores float64[N] of which `true` bool[N] are true; N >= 1.

    In the middle between two scores; the highest t of those that are equally good.
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    right = np.concatenate([[0], np.cumsum(np.where(true[order], 1, -1))])  # more than by calling all of them false
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(ordered)) + 1, [len(ordered)]])
    best = int(cuts[np.argmax(right[cuts])])
    if best == 0:
        return float(np.nextafter(ordered[0], np.inf))
    if best == len(ordered):
        return float(ordered[-1])
    middle = float((ordered[best - 1] + ordered[best]) / 2)
    return middle if middle > ordered[best] else float(ordered[best - 1])


def areas(scores: np.ndarray, true: np.ndarray) -> dict[str, float | None]:
    """ "auc-roc", in which equal scores count half, and "auc-pr", the average precision; None where there is one class only."""
    positives, negatives = int(true.sum()), int((~true).sum())
    if not positives or not negatives:
        return {"auc-roc": None, "auc-pr": None}
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=-np.inf))  # of each group of equal scores
    hits = np.cumsum(true[order])[last]
    wrong = last + 1 - hits
    gained, lost = np.diff(hits, prepend=0), np.diff(wrong, prepend=0)
    roc = float((lost * (hits - gained / 2)).sum()) / (positives * negatives)
    return {"auc-roc": roc, "auc-pr": float((gained * hits / (last + 1)).sum()) / positives}


def classify(
    predictor: Predictor,
    dataset: Dataset,
    files: Sequence[str | Path] = (),
    *,
    form: Config | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The report, plain values for JSON.

    "count", "true", "accuracy", "auc-roc", "auc-pr"; "threshold", of all relations together, and "global", how many triples were
    held against that one; "negatives", which is "given" or "drawn"; "relations": id -> "name", "count", "true", "threshold",
    "accuracy", "auc-roc", "auc-pr".

    `files`: labelled triples to choose thresholds by and to be tested on, read as `form` says (`read_labelled`); without them the
    splits valid and test, and drawn negatives. Raises UsageError for a data set without these splits, DataError, OptionError for
    a number of files other than two.
    """
    if files and len(files) != 2:
        raise OptionError("--classify_files", f"takes two files of labelled triples, VALID and TEST, {len(files)} given")
    if files:
        how = () if form is None else (form.delimiter, form.header, form.quoted)
        valid, test = (read_labelled(Path(file), dataset, *how) for file in files)
    else:
        valid, test = _with_drawn(dataset, seed)
    first, second = (predictor.score(each[:, 0], each[:, 1], each[:, 2]) for each in (valid.triples, test.triples))
    return report(valid, test, first, second, dataset) | {"negatives": "given" if files else "drawn"}


def _with_drawn(dataset: Dataset, seed: int) -> tuple[Labelled, Labelled]:
    splits = {name: each.array for name, each in dataset.splits.items()}
    if any(not len(splits.get(name, ())) for name in ("valid", "test")):
        raise UsageError(f"--classify: {dataset.name} lacks valid or test triples; give --classify_files VALID TEST")
    counts = len(dataset.entities), len(dataset.relations)
    known = KnownTriples.build(list(splits.values()), *counts, asked=np.concatenate([splits["valid"], splits["test"]]))
    found = []
    for number, name in enumerate(("valid", "test")):
        true = splits[name].astype(np.int64)
        false = drawn(true, splits["train"], known, seed + number)
        if not len(false):
            raise UsageError(f"--classify: no false triple could be drawn for {name}: all that there could be are known as true")
        if len(false) < len(true):
            without = counted(len(true) - len(false), "triple")
            tell(f"{name}: no negative for {without}: with every entity that the relation has there it is known as true")
        found.append(Labelled(np.concatenate([true, false]), np.arange(len(true) + len(false)) < len(true)))
    return found[0], found[1]


def report(
    valid: Labelled, test: Labelled, valid_scores: np.ndarray, test_scores: np.ndarray, dataset: Dataset
) -> dict[str, Any]:
    """See `classify`. A relation whose valid triples are not of both classes takes the threshold of all."""
    everywhere = threshold(valid_scores, valid.true)
    limits = np.full(len(dataset.relations), everywhere)
    own = np.zeros(len(limits), bool)
    for relation, rows in _by_relation(valid.triples[:, 1]):
        if 0 < valid.true[rows].sum() < len(rows):
            limits[relation], own[relation] = threshold(valid_scores[rows], valid.true[rows]), True
    right = (test_scores >= limits[test.triples[:, 1]]) == test.true

    def part(rows: np.ndarray) -> dict[str, Any]:
        true = test.true[rows]
        return {
            "count": len(rows), "true": int(true.sum()), "accuracy": float(right[rows].mean()), **areas(test_scores[rows], true),
        }  # fmt: skip

    relations = {
        str(relation): {"name": dataset.relations[relation], "threshold": float(limits[relation]), **part(rows)}
        for relation, rows in _by_relation(test.triples[:, 1])
    }
    strange = int((~own[test.triples[:, 1]]).sum())
    return {**part(np.arange(len(test.true))), "threshold": everywhere, "global": strange, "relations": relations}


def _by_relation(relations: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Each relation of int64[N], and where it stands."""
    order = np.argsort(relations, kind="stable")
    return [(int(relations[rows[0]]), rows) for rows in np.split(order, np.flatnonzero(np.diff(relations[order])) + 1)]


def lines(found: dict[str, Any]) -> list[str]:
    """What is printed of a report."""
    made = [
        f"classification of {found['count']} triples, {found['true']} of them true ({found['negatives']} negatives): "
        f"accuracy {found['accuracy']:.4f}, AUC-ROC {found['auc-roc']:.4f}, AUC-PR {found['auc-pr']:.4f}"
    ]
    if found["global"]:
        what = f"{counted(found['global'], 'triple')} of relations without valid triples of both classes"
        made.append(f"{what}: held against one threshold for all")
    return made
