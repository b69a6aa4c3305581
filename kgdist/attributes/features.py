"""Canonical values of some entities -> their features, by what was fitted: a function of each row alone.

Intervals and words are rows of ones in compressed form, nowhere dense; texts and vectors are rows of float32. A row depends on
nothing but its value and what was fitted, so chunks of any size, made anywhere, give the same bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from kgdist.attributes.fitting import HASHED, hasher
from kgdist.attributes.text_model import BATCH, encoded, load_model
from kgdist.base.errors import KgdistError


class Ones(NamedTuple):
    """Rows of ones."""

    counts: np.ndarray  # int64[n], ones in each row
    indices: np.ndarray  # int32[ones], their columns, ascending in a row
    unseen: int  # words that were not there when it was fitted, or too rare


class Floats(NamedTuple):
    """Rows of numbers; those of entities that have none are 0."""

    present: np.ndarray  # bool[n]
    rows: np.ndarray  # float32[n, width]


class Feature(Protocol):
    """The transform of one attribute, fitted."""

    def transform(self, values: Any) -> Ones | Floats:
        """Of the canonical values pa.Array[n]."""


def feature_of(kind: str, state: Mapping[str, Any], width: int, device: str = "cpu") -> Feature:
    """The transform that `fitting` has learned the `state` of; `device` is where a model of texts computes."""
    if kind in ("numeric", "date"):
        return Interval(state["edges"])
    if kind == "categorical":
        return Category(state["words"])
    if kind == "multi":
        return Categories(state["words"])
    if "encoder" in state:
        return EncodedText(state["encoder"], width, device)
    return HashedText(state["components"]) if kind == "text" else Vector(width)


class Interval:
    """The interval of a number; beyond the outer edges the outer ones."""

    def __init__(self, edges: list[float]) -> None:
        from sklearn.preprocessing import KBinsDiscretizer

        count = len(edges) - 1
        self.made = KBinsDiscretizer(max(2, count), encode="ordinal", strategy="uniform", subsample=None).fit([[0.0], [1.0]])
        self.made.n_bins_ = np.array([count])
        self.made.bin_edges_ = np.array([None], dtype=object)
        self.made.bin_edges_[0] = np.array(edges)

    def transform(self, values: Any) -> Ones:
        """See Feature."""
        there = values.is_valid().to_numpy(zero_copy_only=False)
        numbers = values.to_numpy(zero_copy_only=False)[there]
        places = self.made.transform(numbers[:, None])[:, 0] if len(numbers) else numbers
        return Ones(there.astype(np.int64), places.astype(np.int32), 0)


class Category:
    """The place of a word."""

    def __init__(self, words: list[str]) -> None:
        from sklearn.preprocessing import OneHotEncoder

        known = np.array(words, dtype=object)
        self.made = OneHotEncoder(categories=[known], handle_unknown="ignore", dtype=np.float32).fit(known[:1, None])

    def transform(self, values: Any) -> Ones:
        """See Feature."""
        there = values.is_valid().to_numpy(zero_copy_only=False)
        counts = np.zeros(len(there), np.int64)
        words = values.to_numpy(zero_copy_only=False)[there]
        if not len(words):
            return Ones(counts, np.zeros(0, np.int32), 0)
        found = self.made.transform(words[:, None]).tocsr()
        counts[there] = np.diff(found.indptr)
        return Ones(counts, found.indices.astype(np.int32), len(words) - found.nnz)


class Categories:
    """The places of words, each once."""

    def __init__(self, words: list[str]) -> None:
        from sklearn.preprocessing import MultiLabelBinarizer

        self.made = MultiLabelBinarizer(classes=words, sparse_output=True).fit([])

    def transform(self, values: Any) -> Ones:
        """See Feature."""
        sets = [set(words or ()) for words in values.to_pylist()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unknown words: they are counted here
            found = self.made.transform(sets)
        found.sort_indices()  # sets have no order
        return Ones(np.diff(found.indptr).astype(np.int64), found.indices.astype(np.int32), sum(map(len, sets)) - found.nnz)


class HashedText:
    """A text's words along the directions; a text without a word is as none."""

    def __init__(self, components: np.ndarray) -> None:
        from sklearn.decomposition import TruncatedSVD

        self.hasher, self.made = hasher(), TruncatedSVD(len(components))
        self.made.components_, self.made.n_features_in_ = components, HASHED

    def transform(self, values: Any) -> Floats:
        """See Feature."""
        there = values.is_valid().to_numpy(zero_copy_only=False)
        rows = np.zeros((len(there), len(self.made.components_)), np.float32)
        if there.any():
            hashed = self.hasher.transform(values.to_numpy(zero_copy_only=False)[there])
            rows[there] = self.made.transform(hashed)
            there = there.copy()
            there[there] = np.diff(hashed.indptr) > 0
        return Floats(there, rows)


class EncodedText:
    """The transform of texts by a model."""

    def __init__(self, folder: str, width: int, device: str) -> None:
        self.model, self.width = load_model(folder, device), width

    def transform(self, values: Any) -> Floats:
        """See Feature: the first of `values` is the first row of a batch."""
        there = values.is_valid().to_numpy(zero_copy_only=False)
        rows = np.zeros((len(there), self.width), np.float32)
        for start in range(0, len(there), BATCH):
            places = start + np.flatnonzero(there[start : start + BATCH])
            if len(places):
                made = encoded(self.model, values.take(places).to_pylist())
                if made.shape[1] != self.width:
                    raise KgdistError(
                        f"the model makes {made.shape[1]} numbers of a text, and made {self.width} when it was fitted"
                    )
                rows[places] = made
        return Floats(there, rows)


class Vector:
    """The numbers themselves."""

    def __init__(self, width: int) -> None:
        self.width = width

    def transform(self, values: Any) -> Floats:
        """See Feature."""
        there = values.is_valid().to_numpy(zero_copy_only=False)
        rows = np.zeros((len(there), self.width), np.float32)
        rows[there] = values.flatten().to_numpy(zero_copy_only=False).reshape(-1, self.width)
        return Floats(there, rows)
