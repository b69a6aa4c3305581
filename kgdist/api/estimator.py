"""fit, score, predict: a thin estimator in the manner of scikit-learn, for its searches, pipelines and habits.

It keeps parameters, calls `kgdist.train`, and asks the run that comes back. It needs no scikit-learn.
"""

from __future__ import annotations

import inspect
import tempfile
from typing import Any

import numpy as np

from kgdist.api.functions import train
from kgdist.api.run import Run
from kgdist.base.errors import UsageError
from kgdist.base.log import log
from kgdist.base.machine import usable_cores
from kgdist.data.known import KnownTriples
from kgdist.data.memory import COLUMNS, as_table
from kgdist.data.vocabulary import Vocabulary
from kgdist.evaluation.evaluator import evaluate
from kgdist.options.config import OPTIONS
from kgdist.options.parse import beside

_KEPT = ("model_name", "seed", "num_proc", "quiet")  # defaults of the estimator that no preset takes the place of


class KGEmbedder:
    """Embeddings of a knowledge graph as an estimator.

    X is triples in one of the forms of `kgdist.load_dataset` (rows of (head, relation, tail), an array, a data frame), or pairs
    (head, relation) with the tails as y, so that `predict(X)` answers y.

    Args:
        model_name, hidden_dim, ...: as the options of kgdist-train of these names.
        max_epoch: passes over X; `max_step=...` takes its place when given.
        options: every other option of kgdist-train by name. Without `save_path`, what is written goes away with the estimator.

    Attributes after `fit`:
        run_: the `kgdist.Run`.

    >>> X = [("anna", "likes", "bo"), ("bo", "likes", "cy"), ("cy", "likes", "anna")]
    >>> embedder = kgdist.KGEmbedder(model_name="ComplEx", hidden_dim=32, max_epoch=200).fit(X)
    >>> embedder.predict([("anna", "likes")])
    >>> sklearn.model_selection.GridSearchCV(embedder, {"hidden_dim": [32, 64]}, cv=3).fit(X)
    """

    run_: Run

    def __init__(
        self,
        model_name: str = "TransE_l2",
        *,
        hidden_dim: int = 100,
        gamma: float = 12.0,
        lr: float = 0.1,
        batch_size: int = 1024,
        neg_sample_size: int = 64,
        max_epoch: float | None = 100.0,
        neg_adversarial_sampling: bool = True,
        regularization_coef: float = 2e-6,
        seed: int = 0,
        num_proc: int = 1,
        quiet: bool = True,
        **options: Any,
    ) -> None:
        own = {name: value for name, value in locals().items() if name not in ("self", "options", "__class__")}
        self._names: tuple[str, ...] = ()
        self._keep(own | options)

    def _keep(self, params: dict[str, Any]) -> None:
        """Parameters are attributes, as they were given: nothing is checked before `fit` (scikit-learn's rule)."""
        self._names = (*self._names, *(name for name in params if name not in self._names))
        for name, value in params.items():
            setattr(self, name, value)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Every parameter that was set or has a default here, by name."""
        return {name: getattr(self, name) for name in self._names}

    def set_params(self, **params: Any) -> KGEmbedder:
        """Set options by name. Raises ValueError for one that kgdist-train does not have."""
        for name in params:
            if name not in OPTIONS or "train" not in OPTIONS[name].commands:
                raise ValueError(f"Invalid parameter {name!r} for KGEmbedder; its parameters are the options of kgdist-train")
        self._keep(params)
        return self

    def fit(self, X: Any, y: Any = None, *, valid: Any = None) -> KGEmbedder:
        """Train on X (and the tails y). `valid`: triples to validate on, for early_stop_patience. Raises KgdistError."""
        options = self.get_params()
        if options.get("max_step") is not None:
            del options["max_epoch"]
        if "save_path" not in options:
            self._folder = tempfile.TemporaryDirectory(prefix="kgdist-")
            options |= {"save_path": self._folder.name, "data_path": options.get("data_path", self._folder.name)}
        if valid is not None:
            options["valid"] = valid
        given = _with_room(options)
        self.run_ = train(X if y is None else _triples(X, y), **given)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest tail of each (head, relation): names, object[n], or int64[n] where `fit` was given ids."""
        heads, relations = _pairs(X)
        run, named = self._fitted(), any(isinstance(head, str) for head in heads)
        found = run.predict(head=heads, relation=relations, k=1)
        answers: np.ndarray = found["tail"] if named else found.ids["tail"]
        return answers

    def score_samples(self, X: Any, y: Any = None) -> np.ndarray:
        """The model's score of each triple, float64[n], higher is likelier."""
        table = as_table(X if y is None else _triples(X, y), "given")
        scores: np.ndarray = self._fitted().score(*(table[name].to_pylist() for name in COLUMNS))
        return scores

    def score(self, X: Any, y: Any = None) -> float:
        """Mean reciprocal rank of both ends of the triples among all entities, without those of training and X: from 0 to 1,
        higher is better.

        A triple with a name that `fit` has not seen cannot be ranked and counts 0, so that cross-validation goes through.
        """
        run, table = self._fitted(), as_table(X if y is None else _triples(X, y), "given")
        columns = [_found(table[name], names) for name, names in zip(COLUMNS, self._vocabularies(), strict=True)]
        ids = np.stack(columns, axis=1).astype(np.int32)
        seen = ids[(ids >= 0).all(axis=1)]
        if len(seen) < len(ids):
            log.warning("%d of %d triples have names that were not trained on; they count as 0", len(ids) - len(seen), len(ids))
        if not len(seen):
            return 0.0
        counts = len(run.entities), len(run.relations)
        known = KnownTriples.build([run.dataset.train.array, seen], *counts, asked=seen)
        ranks = evaluate(run.model, run.tables, seen, num_entities=counts[0], known=known, threads=usable_cores(), desc="ranking")
        return float((1 / ranks.rank()).sum() / (2 * len(ids)))

    def transform(self, X: Any) -> np.ndarray:
        """The embeddings of entities, named or numbered: float32[n, d]."""
        return self._fitted().entity_embeddings[list(X)]

    def _fitted(self) -> Run:
        if not hasattr(self, "run_"):
            raise UsageError("this KGEmbedder has learnt nothing yet; call fit first")
        return self.run_

    def _vocabularies(self) -> tuple[Vocabulary, Vocabulary, Vocabulary]:
        run = self._fitted()
        return run.entities, run.relations, run.entities

    def __repr__(self) -> str:
        return f"KGEmbedder({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks an estimator about itself; only it calls this."""
        from sklearn.utils import InputTags, Tags, TargetTags

        tags = InputTags(two_d_array=True, string=True)
        return Tags(estimator_type=None, target_tags=TargetTags(required=False), input_tags=tags)


def _with_room(options: dict[str, Any]) -> dict[str, Any]:
    """Without what is not given, and without the estimator's own defaults that the others contradict or a preset sets."""
    given = {name: value for name, value in options.items() if value is not None}
    defaults = {name: each.default for name, each in inspect.signature(KGEmbedder.__init__).parameters.items()}
    usual = {name: value for name, value in given.items() if name not in _KEPT and name in defaults and value == defaults[name]}
    own = {name: value for name, value in given.items() if name not in usual}
    if OPTIONS["preset"].check(own.get("preset", "none")) != "none":
        return own
    said = {name: OPTIONS[name].check(value) for name, value in own.items() if name not in ("valid", "test")}
    return {**beside(usual, said)[0], **own}


def _found(column: Any, names: Vocabulary) -> np.ndarray:
    """Names or ids -> int64[n]; -1 for those that are not there."""
    values = column.to_numpy()
    if values.dtype.kind in "iu":
        return np.where((values >= 0) & (values < len(names)), values, -1)
    return names.find(column).astype(np.int64)


def _pairs(X: Any) -> tuple[list[Any], list[Any]]:
    array = np.array(X, dtype=object)
    if array.ndim != 2 or array.shape[1] != 2:
        raise UsageError(f"X has the shape {list(array.shape)}, expected [n, 2]: (head, relation)")
    heads, relations = array.T.tolist()
    return heads, relations


def _triples(X: Any, y: Any) -> dict[str, Any]:
    heads, relations = _pairs(X)
    return {"head": heads, "relation": relations, "tail": list(np.asarray(y, dtype=object))}
