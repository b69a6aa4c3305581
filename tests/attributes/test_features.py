"""Features against scikit-learn on the whole column, whatever the chunks; and what nothing can be learned from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import KBinsDiscretizer, MultiLabelBinarizer, OneHotEncoder

from kgdist.attributes import fitting
from kgdist.attributes.declaration import KINDS, Attribute
from kgdist.attributes.features import Floats, Ones, feature_of
from kgdist.attributes.fitting import Sample, fitter_of


class Nothing(Exception):
    """What a fitter raises."""


def fitted(kind: str, values: Any, pieces: int = 1, **settings: Any) -> tuple[Any, int]:
    """State and width, of values that came in so many pieces."""
    fitter = fitter_of(Attribute("a", KINDS[kind](**settings), 1), Nothing)
    for rows in np.array_split(np.arange(len(values)), pieces):
        if len(rows):
            fitter.add(values.slice(rows[0], len(rows)), rows)
    return fitter.finish()


def transformed(kind: str, values: Any, fit: tuple[Any, int], pieces: int) -> np.ndarray:
    """All rows as float32[n, width], transformed in so many pieces."""
    feature, made = feature_of(kind, *fit), []
    for rows in np.array_split(np.arange(len(values)), pieces):
        found = feature.transform(values.slice(rows[0], len(rows)) if len(rows) else values.slice(0, 0))
        if isinstance(found, Floats):
            made.append(found.rows)
            assert not found.rows[~found.present].any()
            continue
        dense = np.zeros((len(rows), fit[1]), np.float32)
        dense[np.repeat(np.arange(len(rows)), found.counts), found.indices] = 1
        assert dense.sum() == len(found.indices) == found.counts.sum()
        made.append(dense)
    return np.concatenate(made)


NUMBERS = st.lists(st.none() | st.floats(-1e6, 1e6, width=32), min_size=4, max_size=60)
FREQUENT = st.lists(st.none() | st.sampled_from([0.0, 0.0, 0.0, 1.0]) | st.floats(-4, 4, width=16), min_size=4, max_size=60)


@settings(max_examples=80, deadline=None)
@given(
    NUMBERS | FREQUENT, st.integers(2, 6), st.sampled_from(["quantile", "uniform"]), st.integers(1, 5), st.sampled_from([0, -60])
)
@pytest.mark.filterwarnings("ignore")
def test_intervals_are_those_of_scikit_learn_and_frequent_values_have_their_own(
    numbers: list[float | None], bins: int, strategy: str, pieces: int, power: int
) -> None:
    there = np.array([number for number in numbers if number is not None])
    different, ranks, times = np.unique(there, return_inverse=True, return_counts=True)
    if len(different) < 2:
        return
    values = pa.array([None if number is None else number * 2.0**power for number in numbers], pa.float64())
    fit = fitted("numeric", values, pieces, bins=bins, strategy=strategy)
    found = transformed("numeric", values, fit, pieces)[[number is not None for number in numbers]]
    assert (found.sum(1) == 1).all()
    places = found.argmax(1)
    order = np.argsort(there, kind="stable")
    assert (np.diff(places[order]) >= 0).all()
    if len(different) <= bins:
        np.testing.assert_array_equal(places, ranks)
        return
    made = KBinsDiscretizer(bins, encode="ordinal", strategy=strategy, subsample=None).fit(there[:, None])
    theirs = made.transform(there[:, None])[:, 0]
    if strategy == "uniform" or (made.n_bins_[0] == bins and times.max() == 1):
        np.testing.assert_array_equal(places, theirs)
    if strategy == "quantile":
        assert len(np.unique(places)) == found.shape[1] > 1  # none is empty, as one of theirs can be
        for rank in np.flatnonzero(times > 2 * len(there) / bins):  # two quantiles at least are this value
            assert {*ranks[places == places[ranks == rank][0]]} == {rank}
        if made.n_bins_[0] == bins:  # and else who is together here is together there
            assert len({*zip(places, theirs, strict=True)}) == found.shape[1]


def test_intervals_of_the_largest_numbers_there_are() -> None:
    values = pa.array([1e308, -1e308, 5.0, 7.0, None])
    fit = fitted("numeric", values, bins=3, strategy="uniform")
    np.testing.assert_allclose(fit[0]["edges"], [-1e308, -1e308 / 3, 1e308 / 3, 1e308])
    assert transformed("numeric", values, fit, 1).argmax(1).tolist() == [2, 0, 1, 1, 0]


def test_intervals_of_numbers_of_every_size_are_as_full() -> None:
    values = pa.array(10.0 ** -np.random.default_rng(0).uniform(0, 100, 1000))
    fit = fitted("numeric", values, bins=20, strategy="quantile")
    assert transformed("numeric", values, fit, 1).sum(0).tolist() == [50] * 20


def test_beyond_the_edges_are_the_outer_intervals() -> None:
    fit = fitted("numeric", pa.array([0.0, 1.0, 2.0, 3.0]), bins=3, strategy="uniform")
    found = feature_of("numeric", *fit).transform(pa.array([-9.0, None, 1.5, 99.0]))
    assert isinstance(found, Ones)
    assert (found.counts.tolist(), found.indices.tolist(), found.unseen) == ([1, 0, 1, 1], [0, 1, 2], 0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.none() | st.sampled_from("abcdé"), min_size=2, max_size=40), st.integers(1, 5))
def test_categories_are_those_of_scikit_learn(words: list[str | None], pieces: int) -> None:
    there = np.array([word for word in words if word is not None], object)
    if len(set(there)) < 2:
        return
    values = pa.array(words, pa.string())
    fit = fitted("categorical", values, pieces)
    expected = np.zeros((len(words), fit[1]))
    made = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    expected[[word is not None for word in words]] = made.fit_transform(there[:, None])
    np.testing.assert_array_equal(transformed("categorical", values, fit, pieces), expected)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.none() | st.lists(st.sampled_from("abcdé"), min_size=1), min_size=2, max_size=40), st.integers(1, 5))
def test_words_are_those_of_scikit_learn_and_each_counts_once(table: list[list[str] | None], pieces: int) -> None:
    counts = {word: sum(word in (words or ()) for words in table) for word in "abcdé"}
    classes = sorted(word for word, count in counts.items() if count >= 2)
    if len(classes) < 2:
        return
    values = pa.array(table, pa.list_(pa.string()))
    fit = fitted("multi", values, pieces, min_count=2)
    assert fit == ({"words": classes}, len(classes))
    expected = MultiLabelBinarizer().fit([classes]).transform([set(words or ()) & set(classes) for words in table])
    np.testing.assert_array_equal(transformed("multi", values, fit, pieces), expected)
    found = feature_of("multi", *fit).transform(values)
    assert isinstance(found, Ones)
    assert found.unseen == sum(len(set(words or ()) - set(classes)) for words in table)


def test_texts_are_those_of_scikit_learn_whatever_the_chunks() -> None:
    draw = np.random.default_rng(0)
    words = [f"w{number}" for number in range(50)]
    texts: list[str | None] = [" ".join(draw.choice(words, 12)) for _ in range(300)]
    texts[3], texts[7] = None, "! ?"
    values = pa.array(texts, pa.string())
    fit = fitted("text", values, 3, dim=8)
    hashed = HashingVectorizer(n_features=fitting.HASHED, ngram_range=(1, 2)).transform([text or "" for text in texts])
    made = TruncatedSVD(8, random_state=0).fit(hashed[[number for number in range(300) if number != 3]])
    one = transformed("text", values, fit, 1)
    np.testing.assert_allclose(one, made.transform(hashed), atol=1e-5)
    for pieces in (2, 7, 300):
        assert transformed("text", values, fit, pieces).tobytes() == one.tobytes()
    found = feature_of("text", *fit).transform(values)
    assert isinstance(found, Floats)
    assert np.flatnonzero(~found.present).tolist() == [3, 7]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 30), st.integers(1, 9))
def test_a_sample_does_not_depend_on_the_pieces(count: int, size: int, pieces: int) -> None:
    rows = np.arange(count)
    samples = []
    for cuts in (1, pieces):
        sample = Sample(size)
        for piece in np.array_split(rows, cuts):
            sample.add(piece * 10, piece)
        samples.append(sample.values())
    np.testing.assert_array_equal(*samples)
    assert len(samples[0]) == min(count, size) and (np.diff(samples[0]) > 0).all()


def test_a_sample_is_even() -> None:
    sample = Sample(1000)
    sample.add(np.arange(10_000), np.arange(10_000))
    counts = np.bincount(sample.values() // 1000, minlength=10)
    assert ((counts - 100) ** 2 / 100).sum() < 27.9  # chi-squared of 9 degrees, one in a thousand


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("numeric", pa.array([1.0, 1.0, None]), "all values are 1, which tells no entity from another; drop it"),
        ("numeric", pa.array([None, None], pa.float64()), "no entity has a value of it; drop it"),
        ("categorical", pa.array(["x", "x"]), "all values are 'x', which tells no entity from another; drop it"),
        ("categorical", pa.array([None], pa.string()), "no entity has a value of it; drop it"),
        ("multi", pa.array([["x"], ["x"]]), "all values are 'x', which tells"),
        ("text", pa.array(["some words"] * 3), "all texts are the same, which tells"),
        ("text", pa.array(["!", "? ?"]), "no text has a word of two letters; drop it"),
        ("vector", pa.array([[1.0, 2.0], None, [1.0, 2.0]], pa.list_(pa.float32())), "all vectors are the same, which tells"),
        ("vector", pa.array([None], pa.list_(pa.float32())), "no entity has a value of it; drop it"),
    ],
)
def test_what_tells_nothing_is_refused(kind: str, values: Any, message: str) -> None:
    with pytest.raises(Nothing) as caught:
        fitted(kind, values)
    assert message in str(caught.value)


def test_words_too_rare_are_refused() -> None:
    with pytest.raises(Nothing, match="no word occurs with 3 entities; take a smaller min_count"):
        fitted("multi", pa.array([["a"], ["b"]]), min_count=3)


@pytest.mark.parametrize("strategy", ["quantile", "uniform"])
def test_more_bins_than_values_are_an_interval_each(strategy: str, caplog: pytest.LogCaptureFixture) -> None:
    _, width = fitted("numeric", pa.array([1.0, 2.0, 2.0, 3.0]), bins=20, strategy=strategy)
    assert width == 3 and "a: 20 bins, but 3 different values: an interval each" in caplog.text


def test_more_numbers_than_texts_are_as_many(caplog: pytest.LogCaptureFixture) -> None:
    assert fitted("text", pa.array(["one two", "three four", "five"]), dim=64)[1] == 3
    assert "a: dim 64, but 3 texts: as many numbers" in caplog.text
