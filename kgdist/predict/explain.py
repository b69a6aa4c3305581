"""What a score means: the ranks of an answer's two ends, and how likely a triple with that score is true.

The probability is Platt's: p = 1 / (1 + exp(-(a s + b))), fitted to the scores s of the valid triples and of as many corrupted
ones (Platt 1999, Probabilistic Outputs for Support Vector Machines; the fit is that of Lin, Lin and Weng 2007, A Note on Platt's
Probabilistic Outputs). So it answers one question: of a valid triple and one of its corruptions, how often is it the true one
that has this score? That is the chance that a triple is true where half of those one asks about are. The best of thousands of
candidates are chosen for their scores and are mostly rarer than that: it orders and compares answers, it is no proof. A model
whose valid triples score no higher than their corruptions gets the same probability for all (a = 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError, KgdistError
from kgdist.base.files import read_json, write_json
from kgdist.base.log import log
from kgdist.base.types import Side
from kgdist.data.known import KnownTriples
from kgdist.evaluation.evaluator import evaluate
from kgdist.predict.engine import Answers, Predictor

FILE = "calibration.json"
VERSION = 1
MOST = 50_000  # valid triples the fit takes
DRAWS = 10  # times an entity is drawn again when the corrupted triple turns out to be known
STEPS = 100  # of Newton's method, which takes about ten


@dataclass(frozen=True)
class Calibration:
    """The fitted curve, and how good it is on what it was fitted to."""

    slope: float  # a, at least 0
    intercept: float  # b
    positives: int
    negatives: int
    log_loss: float  # mean of -log p of what is the case; 0.693 knows nothing
    brier: float  # mean square of p's error; 0.25 knows nothing

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """float64[...] scores as the model gives them -> float64[...]."""
        return sigmoid(self.slope * scores + self.intercept)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    value: np.ndarray = np.where(x >= 0, 1.0, small) / (1 + small)
    return value


def log_sigmoid(x: np.ndarray) -> np.ndarray:
    """log(1 / (1 + exp(-x))) without overflow: DGL-KE's --score_func logsigmoid."""
    value: np.ndarray = np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))
    return value


def platt(scores: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """(a, b) of p = 1 / (1 + exp(-(a s + b))) that best fit `scores` float64[n] of which `true` bool[n] are true.

    Minimises the cross-entropy against Platt's smoothed targets, (n+ + 1) / (n+ + 2) and 1 / (n- + 2), which keep a finite when
    the scores separate the two. Newton's method with backtracking, on standardised scores.
    """
    middle, spread = float(scores.mean()), float(scores.std()) or 1.0
    s, count = (scores - middle) / spread, int(true.sum())
    target = np.where(true, (count + 1) / (count + 2), 1 / (len(true) - count + 2))

    def loss(a: float, b: float) -> float:
        x = a * s + b
        return float((np.maximum(x, 0) - target * x + np.log1p(np.exp(-np.abs(x)))).sum())

    a, b = 0.0, math.log((count + 1) / (len(true) - count + 1))
    now = loss(a, b)
    for _ in range(STEPS):
        p = sigmoid(a * s + b)
        error, weight = p - target, p * (1 - p)
        gradient = np.array([(error * s).sum(), error.sum()])
        if np.abs(gradient).max() < 1e-9 * len(s):
            break
        cross = (weight * s).sum()
        hessian = np.array([[(weight * s * s).sum(), cross], [cross, weight.sum()]]) + 1e-12 * np.eye(2)
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while size > 1e-10 and loss(a - size * step[0], b - size * step[1]) > now - 1e-4 * size * float(step @ gradient):
            size /= 2
        if size <= 1e-10:
            break
        a, b = a - size * float(step[0]), b - size * float(step[1])
        now = loss(a, b)
    return a / spread, b - a * middle / spread


def corrupted(triples: np.ndarray, num_entities: int, known: KnownTriples, seed: int = 0) -> np.ndarray:
    """int64[N,3]: of each triple int[T,3] one with another head or tail, by turns, that is not known; N <= T.

    Entities are drawn uniformly. A triple for which DRAWS draws find nothing that is unknown is left out. `known` must answer the
    queries of `triples`.
    """
    rng = np.random.default_rng(seed)
    made, open_ = triples.astype(np.int64), np.arange(len(triples))
    columns = np.where(np.arange(len(triples)) % 2 == 0, 0, 2)
    for _ in range(DRAWS):
        made[open_, columns[open_]] = rng.integers(0, num_entities, len(open_))
        bad = np.zeros(len(open_), bool)
        for column in (0, 2):  # ask the query that the triple itself makes
            rows = np.flatnonzero(columns[open_] == column)
            h, r, t = made[open_[rows]].T
            bad[rows] = known.holds(h, r, t, Side.HEAD if column == 0 else Side.TAIL)
        open_ = open_[bad]
        if not len(open_):
            break
    return np.delete(made, open_, axis=0)


def calibrate(predictor: Predictor, valid: np.ndarray, known: KnownTriples, seed: int = 0) -> Calibration:
    """Fit to the triples `valid` int[T,3], at most MOST of them drawn at random. Raises KgdistError when there are too few."""
    if len(valid) > MOST:
        valid = valid[np.sort(np.random.default_rng(seed).choice(len(valid), MOST, replace=False))]
    wrong = corrupted(valid, predictor.num_entities, known, seed)
    if not len(valid) or not len(wrong):
        raise KgdistError(f"{len(valid)} valid triples and {len(wrong)} corrupted ones are too few to calibrate scores with")
    both = np.concatenate([valid.astype(np.int64), wrong])
    sides = tuple(Side) if predictor.model.reciprocal else (Side.TAIL,)  # an answer has the score of the end that was asked for
    scores = np.concatenate([predictor.score(both[:, 0], both[:, 1], both[:, 2], side) for side in sides])
    true = np.tile(np.arange(len(both)) < len(valid), len(sides))
    slope, intercept = platt(scores, true)
    if slope <= 0:  # a higher score must not look less likely: then scores say nothing
        slope, intercept = 0.0, math.log(len(valid) / len(wrong))
    p = sigmoid(slope * scores + intercept)
    case = slope * scores + intercept
    loss = -log_sigmoid(np.where(true, case, -case)).mean()
    return Calibration(slope, intercept, len(valid), len(wrong), float(loss), float(((p - true) ** 2).mean()))


def calibration_of(
    folder: Path, files: Sequence[str], valid: np.ndarray, predictor: Predictor, known: KnownTriples
) -> Calibration:
    """The calibration saved in the run `folder`; fitted and saved where there is none, or one of other embeddings (`files`).

    Embeddings are told apart by size and time of their files. A folder that cannot be written is warned of, and fitted each time.
    """
    path = folder / FILE
    stamps = {name: [(folder / name).stat().st_size, (folder / name).stat().st_mtime_ns] for name in files}
    made_of: dict[str, Any] = {"version": VERSION, "embeddings": stamps, "valid": len(valid)}
    try:
        saved = read_json(path) if path.exists() else {}
        if saved.get("made_of") == made_of:
            return _told(Calibration(**saved["calibration"]))
    except (CheckpointError, AttributeError, KeyError, TypeError) as error:
        log.warning("%s: cannot be used and is computed again (%s)", path, error)
    found = calibrate(predictor, valid, known)
    try:
        write_json(path, {"made_of": made_of, "calibration": asdict(found)})
    except KgdistError as error:
        log.warning("%s", error)
    return _told(found)


def _told(found: Calibration) -> Calibration:
    if not found.slope > 0:
        log.warning("valid triples score no higher than corrupted ones: this model's scores say nothing of new triples")
    return found


def ranks(predictor: Predictor, answers: Answers, splits: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(of heads, of tails), int64[A] each: the rank of an answer's end among all entities, as kgdist-eval counts it.

    Other triples of `splits` do not count; the middle rank, rounded down, where scores are equal.
    """
    triples = np.stack([answers.heads, answers.relations, answers.tails], axis=1)
    unique, back = np.unique(triples, axis=0, return_inverse=True)
    count, entities = len(unique), predictor.num_entities
    known = KnownTriples.build(splits, entities, predictor.num_relations, asked=unique)
    model, tables, threads = predictor.model, predictor.tables, predictor.threads
    evaluated = evaluate(model, tables, unique, num_entities=entities, known=known, threads=threads, desc="explaining")
    found = evaluated.rank().astype(np.int64)
    return found[:count][back.reshape(-1)], found[count:][back.reshape(-1)]
