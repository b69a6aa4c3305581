"""What is learned from the values of an attribute before any of them is transformed: edges, words, directions.

A fitter sees all values once, in pieces, and holds no more of them than it needs: different words with their counts, or a sample
of bounded size. The sample is the rows with the smallest hashes, so it is the same however the file came in pieces; numbers are
sampled from 200,000 entities on, as scikit-learn does by itself, texts from 20,000 on. What is learned is scikit-learn's own.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kgdist.attributes.declaration import Attribute, MultiKind, NumericKind, TextKind
from kgdist.attributes.text_model import encoded, load_model
from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.log import log
from kgdist.kernels.random import FIRST, GOLDEN, SECOND

NUMBERS, TEXTS = 200_000, 20_000  # entities of a sample
DIM = 64  # numbers of a hashed text
HASHED = 1 << 14  # columns of hashed words and pairs of words

Wrong = Callable[[str], Exception]
State = dict[str, Any]  # JSON, but for arrays
Fit = tuple[State, int]  # and how many numbers wide its rows are


def require_sklearn() -> None:
    """Raises OptionError when scikit-learn is not installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise OptionError("--schema", f"needs a package that is not there ({error}); pip install 'kgdist[gnn]'") from error


class Fitter(Protocol):
    """Learns from one attribute."""

    def add(self, values: Any, rows: np.ndarray) -> None:
        """See the canonical values pa.Array[n] of the entities `rows`, int64[n]."""

    def finish(self) -> Fit:
        """What was learned. Raises DataError, on the attribute's line, when nothing can be learned from what there was."""


def fitter_of(attribute: Attribute, wrong: Wrong, base: Path = Path()) -> Fitter:
    """The fitter of an attribute; `wrong` makes its error of a problem, and folders that it names are below `base`."""
    if isinstance(attribute.settings, TextKind) and attribute.settings.model is not None:
        return ModelOfTexts(attribute, wrong, base)
    kinds: dict[str, Callable[[Attribute, Wrong], Fitter]] = {
        "numeric": Intervals,
        "date": Intervals,
        "categorical": Words,
        "multi": Words,
        "text": Directions,
        "vector": Width,
    }
    return kinds[attribute.kind](attribute, wrong)


class Sample:
    """The values of the `size` rows with the smallest hashes (splitmix64 of the row), in the order of rows."""

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0
        self._values: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []
        self._held = 0

    def add(self, values: np.ndarray, rows: np.ndarray) -> None:
        """See `values` of `rows`, int64[n]."""
        self._values.append(values)
        self._rows.append(rows)
        self._held += len(rows)
        self.seen += len(rows)
        if self._held > 2 * self.size:
            self._shrink()

    def values(self) -> np.ndarray:
        """Those that are in the sample."""
        self._shrink()
        return self._values[0]

    def _shrink(self) -> None:
        values, rows = np.concatenate(self._values), np.concatenate(self._rows)
        if len(rows) > self.size:
            x = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
            chosen = np.sort(np.argpartition(x ^ (x >> np.uint64(31)), self.size)[: self.size])
            values, rows = values[chosen], rows[chosen]
        self._values, self._rows, self._held = [values], [rows], len(rows)


class Intervals:
    """The edges of intervals (scikit-learn's KBinsDiscretizer), and an interval of its own for what is as frequent as one.

    KBinsDiscretizer drops quantiles that come twice: of a column of 0 and 1, or one with mostly zeros, a single interval would
    be left, which says nothing of anybody.
    """

    def __init__(self, attribute: Attribute, wrong: Wrong) -> None:
        assert isinstance(attribute.settings, NumericKind)
        self.name, self.settings, self.wrong = attribute.name, attribute.settings, wrong
        self.sample = Sample(NUMBERS)
        self.low, self.high = np.inf, -np.inf

    def add(self, values: Any, rows: np.ndarray) -> None:
        """See Fitter."""
        there = values.is_valid().to_numpy(zero_copy_only=False)
        numbers = values.to_numpy(zero_copy_only=False)[there]
        if len(numbers):
            self.low, self.high = min(self.low, numbers.min()), max(self.high, numbers.max())
            self.sample.add(numbers, rows[there])

    def finish(self) -> Fit:
        """See Fitter; {"edges": [...]}."""
        from sklearn.preprocessing import KBinsDiscretizer

        if not self.sample.seen:
            raise self.wrong("no entity has a value of it; drop it")
        if self.low == self.high:
            raise self.wrong(f"all values are {self.low:g}, which tells no entity from another; drop it")
        numbers = self.sample.values()
        bins, different = self.settings.bins, np.unique(np.append(numbers, [self.low, self.high]))
        if len(different) <= bins:
            if len(different) < bins:
                log.warning("%s: %d bins, but %d different values: an interval each", self.name, bins, len(different))
            return _described(different, different)
        uniform = self.settings.strategy == "uniform"
        ranks = np.searchsorted(different, numbers)
        # Of ranks, for scikit-learn takes quantiles that are 1e-8 apart for one; halved, for its arithmetic ends at 1e308.
        given = np.array([self.low, self.high]) / 2 if uniform else ranks
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that bins were too small, which the table says; that a default will change
            made = KBinsDiscretizer(bins, encode="ordinal", strategy=self.settings.strategy, subsample=None)
            edges = made.fit(given[:, None].astype(np.float64)).bin_edges_[0]
        if uniform:
            return _described(edges * 2, edges[1:-1] * 2)
        below = np.floor(edges).astype(np.int64)
        share = edges - below
        edges = different[below] * (1 - share) + different[np.minimum(below + 1, len(different) - 1)] * share
        levels, times = np.unique(
            np.quantile(ranks, np.linspace(0, 1, bins + 1), method="closest_observation"), return_counts=True
        )
        frequent = levels[times > 1].astype(np.int64)
        if len(edges) == 2 and not len(frequent):  # as of 0 1 2 2 2 in two intervals, whose middle is their end
            frequent = np.array([np.bincount(ranks).argmax()])
        own = different[np.append(frequent, np.minimum(frequent + 1, len(different) - 1))]
        # Edges that no value lies between make one interval, not an empty one beside it: of each such gap the last edge stays.
        inner = np.unique(np.append(edges[1:-1], own))
        gaps = np.searchsorted(different, inner)
        return _described(edges, inner[np.diff(gaps, append=-1) != 0])


def _described(edges: np.ndarray, inner: np.ndarray) -> Fit:
    """The fit of sorted edges, float64[.], the first and last of `edges` and `inner` ones; all but the last begin one."""
    low, high = edges[0], edges[-1]
    within = np.unique(inner)
    found = [low, *within[within > low], high]
    return {"edges": [float(each) for each in found]}, len(found) - 1


class Words:
    """The different words, in order, that occur with as many entities as are asked for."""

    def __init__(self, attribute: Attribute, wrong: Wrong) -> None:
        settings = attribute.settings
        self.name, self.wrong = attribute.name, wrong
        self.many = isinstance(settings, MultiKind)
        self.least = settings.min_count if isinstance(settings, MultiKind) else 1
        self.counts: Counter[str] = Counter()
        self.entities = 0

    def add(self, values: Any, rows: np.ndarray) -> None:
        """See Fitter."""
        import pyarrow.compute as pc

        self.entities += len(values) - values.null_count
        if self.many:
            pairs = _pairs(values)
            values = pairs.column("word")
        for count in pc.value_counts(values.drop_null()):
            self.counts[count["values"].as_py()] += count["counts"].as_py()

    def finish(self) -> Fit:
        """See Fitter; {"words": [...]}."""
        if not self.entities:
            raise self.wrong("no entity has a value of it; drop it")
        words = sorted(word for word, count in self.counts.items() if count >= self.least)
        if not words:
            raise self.wrong(f"no word occurs with {self.least} entities; take a smaller min_count")
        if len(words) == 1 and self.counts[words[0]] == self.entities and len(self.counts) == 1:
            raise self.wrong(f"all values are {words[0][:60]!r}, which tells no entity from another; drop it")
        return {"words": words}, len(words)


def _pairs(lists: Any) -> Any:
    """The different pairs (entity, word) of lists: pa.Table of entity, word."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table({"entity": pc.list_parent_indices(lists), "word": pc.list_flatten(lists)})
    return table.group_by(["entity", "word"], use_threads=False).aggregate([])


class Directions:
    """The directions in which hashed words and pairs of words differ most (scikit-learn's TruncatedSVD)."""

    def __init__(self, attribute: Attribute, wrong: Wrong) -> None:
        assert isinstance(attribute.settings, TextKind)
        self.name, self.dim, self.wrong = attribute.name, attribute.settings.dim or DIM, wrong
        self.sample = Sample(TEXTS)

    def add(self, values: Any, rows: np.ndarray) -> None:
        """See Fitter."""
        there = values.is_valid().to_numpy(zero_copy_only=False)
        if there.any():
            self.sample.add(values.to_numpy(zero_copy_only=False)[there], rows[there])

    def finish(self) -> Fit:
        """See Fitter; {"components": float64[dim, HASHED]}."""
        from sklearn.decomposition import TruncatedSVD
        from threadpoolctl import threadpool_limits

        if not self.sample.seen:
            raise self.wrong("no entity has a value of it; drop it")
        texts = self.sample.values()
        hashed = hasher().transform(texts)
        dim = min(self.dim, int((np.diff(hashed.indptr) > 0).sum()))
        if hashed.nnz == 0:
            raise self.wrong("no text has a word of two letters; drop it")
        if (texts == texts[0]).all():
            raise self.wrong("all texts are the same, which tells no entity from another; drop it")
        if dim < self.dim:
            log.warning("%s: dim %d, but %d texts: as many numbers", self.name, self.dim, dim)
        with threadpool_limits(1), warnings.catch_warnings():  # sums of several threads differ in the last bit
            warnings.simplefilter("ignore")  # of no variance to explain
            made = TruncatedSVD(dim, random_state=0).fit(hashed)
        return {"components": made.components_}, len(made.components_)


def hasher() -> Any:
    """Texts -> CSR float64[n, HASHED] of their words and pairs of words, of length 1."""
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(n_features=HASHED, ngram_range=(1, 2))


class ModelOfTexts:
    """Learns nothing, but tries the model before anything is read. Raises what `wrong` makes of a model that does not load."""

    def __init__(self, attribute: Attribute, wrong: Wrong, base: Path) -> None:
        assert isinstance(attribute.settings, TextKind)
        self.wrong, self.differ = wrong, False
        self.first: Any = None
        if attribute.settings.dim is not None:
            raise wrong("dim: is of hashed texts; a model has its own, so drop it")
        self.folder = str((base / attribute.settings.encoder).resolve())
        try:
            self.width = encoded(load_model(self.folder, "cpu"), ["a"]).shape[1]
        except KgdistError as error:
            raise wrong(f"encoder: {error}") from error

    def add(self, values: Any, rows: np.ndarray) -> None:
        """See Fitter."""
        import pyarrow.compute as pc

        there = values.drop_null()
        if len(there):
            self.first = there[0] if self.first is None else self.first
            self.differ = self.differ or bool(pc.any(pc.not_equal(there, self.first)).as_py())

    def finish(self) -> Fit:
        """See Fitter; {"encoder": the folder}."""
        if self.first is None:
            raise self.wrong("no entity has a value of it; drop it")
        if not self.differ:
            raise self.wrong("all texts are the same, which tells no entity from another; drop it")
        return {"encoder": self.folder}, self.width


class Width:
    """How many numbers a vector has."""

    def __init__(self, attribute: Attribute, wrong: Wrong) -> None:
        self.wrong, self.width, self.first, self.differ = wrong, 0, None, False

    def add(self, values: Any, rows: np.ndarray) -> None:
        """See Fitter."""
        numbers = values.flatten().to_numpy(zero_copy_only=False)
        count = len(values) - values.null_count
        if count:
            vectors = numbers.reshape(count, -1)
            self.width = vectors.shape[1]
            self.first = vectors[0].copy() if self.first is None else self.first
            self.differ = self.differ or bool((vectors != self.first).any())

    def finish(self) -> Fit:
        """See Fitter; {}."""
        if not self.width:
            raise self.wrong("no entity has a value of it; drop it")
        if not self.differ:
            raise self.wrong("all vectors are the same, which tells no entity from another; drop it")
        return {}, self.width
