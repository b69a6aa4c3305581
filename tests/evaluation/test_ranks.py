"""Ranks to metrics: hand-computed numbers, and laws over all counts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.data.statistics import CATEGORIES, UNSEEN, relation_categories
from kgdist.evaluation.ranks import METRICS, Ranks, Ties, metrics, protocol_line, reference_lines, report_table, summary


def ranks_of(rows: list[tuple[int, int, int]], side: list[int] | None = None, relation: list[int] | None = None) -> Ranks:
    """(greater, equal, candidates) per query."""
    greater, equal, candidates = np.array(rows, np.int64).reshape(-1, 3).T
    count = len(greater)
    return Ranks(
        greater=greater,
        equal=equal,
        candidates=candidates,
        side=np.array(side if side is not None else [0] * count, np.int8),
        head=np.arange(count, dtype=np.int32),
        relation=np.array(relation if relation is not None else [0] * count, np.int32),
        tail=np.arange(count, dtype=np.int32),
    )


counts = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)).map(lambda c: (c[0], c[1], sum(c) + 1)),
    min_size=1,
    max_size=30,
)


def test_the_three_ranks_by_hand() -> None:
    ranks = ranks_of([(0, 0, 10), (2, 3, 10)])
    assert ranks.rank(Ties.OPTIMISTIC).tolist() == [1, 3]
    assert ranks.rank(Ties.PESSIMISTIC).tolist() == [1, 6]
    assert ranks.rank().tolist() == [1, 4.5]


def test_metrics_by_hand() -> None:
    ranks = ranks_of([(0, 0, 101), (1, 0, 101), (3, 0, 101), (9, 0, 101), (0, 5, 101)])  # realistic ranks 1, 2, 4, 10, 3.5
    found = metrics(ranks)
    assert list(found) == list(METRICS)
    assert found["median"] == 3.5 and list(metrics(ranks, hits=(20, 2)))[3:8] == [f"hits@{k}" for k in (1, 2, 3, 10, 20)]
    assert found["mr"] == pytest.approx(20.5 / 5)
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 10 + 1 / 3.5) / 5)
    assert (found["hits@1"], found["hits@3"], found["hits@10"]) == (1 / 5, 2 / 5, 1)  # 3.5 is not within 3
    assert found["amri"] == pytest.approx(1 - 2 * (20.5 - 5) / 500)
    assert found["auc-roc"] == pytest.approx((1.0 + 0.99 + 0.97 + 0.91 + 0.975) / 5)
    assert metrics(ranks, Ties.PESSIMISTIC)["hits@3"] == 2 / 5
    assert metrics(ranks, Ties.OPTIMISTIC)["hits@1"] == 2 / 5


def test_amri_weighs_each_query_with_its_own_candidates() -> None:
    assert metrics(ranks_of([(0, 0, 3), (8, 0, 9)]))["amri"] == pytest.approx(1 - 2 * 8 / (2 + 8))


@given(st.lists(st.integers(2, 1000), min_size=1))
def test_amri_is_0_for_a_constant_model_1_for_a_perfect_and_minus_1_for_the_worst(sizes: list[int]) -> None:
    assert metrics(ranks_of([(0, n - 1, n) for n in sizes]))["amri"] == pytest.approx(0)
    assert metrics(ranks_of([(0, 0, n) for n in sizes]))["amri"] == 1
    assert metrics(ranks_of([(n - 1, 0, n) for n in sizes]))["amri"] == pytest.approx(-1)


def test_without_rivals_amri_and_auc_are_undefined_and_shown_as_a_dash_or_not_at_all() -> None:
    found = metrics(ranks_of([(0, 0, 1)]))
    assert found["amri"] is None and found["auc-roc"] is None
    assert len(reference_lines("test", found)) == 5  # those of DGL-KE
    assert metrics(ranks_of([(0, 0, 1), (1, 0, 3)]))["auc-roc"] == 0.5  # of the one query that has any


def test_auc_weighs_all_queries_alike() -> None:
    assert metrics(ranks_of([(0, 0, 3), (8, 0, 9)]))["auc-roc"] == pytest.approx((1 + 0) / 2)


@given(st.integers(2, 1000).flatmap(lambda n: st.lists(st.integers(0, n - 1).map(lambda above: (above, 0, n)), min_size=1)))
def test_amri_is_auc_on_another_scale_where_all_have_equally_many_candidates(rows: list[tuple[int, int, int]]) -> None:
    found = metrics(ranks_of(rows))
    assert found["amri"] == pytest.approx(2 * (found["auc-roc"] or 0) - 1, abs=1e-12)


def test_nothing_has_no_metrics() -> None:
    with pytest.raises(ValueError, match="no ranks"):
        metrics(ranks_of([]))
    with pytest.raises(ValueError, match="no ranks"):
        Ranks.concatenate([])


@given(counts)
def test_the_realistic_rank_lies_in_the_middle(rows: list[tuple[int, int, int]]) -> None:
    ranks = ranks_of(rows)
    low, middle, high = (ranks.rank(ties) for ties in (Ties.OPTIMISTIC, Ties.REALISTIC, Ties.PESSIMISTIC))
    assert (low + high == 2 * middle).all() and (low >= 1).all() and (high <= ranks.candidates).all()
    for name in ("mrr", "hits@1", "hits@3", "hits@10", "auc-roc", "amri"):
        values = [metrics(ranks, ties)[name] for ties in (Ties.OPTIMISTIC, Ties.REALISTIC, Ties.PESSIMISTIC)]
        if values[0] is not None:
            assert values == sorted(values, reverse=True)


@given(counts, st.data())
def test_parts_put_together_give_the_whole(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    codes = st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows))
    relations = st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows))
    ranks = ranks_of(rows, data.draw(codes), data.draw(relations))
    cut = data.draw(st.integers(0, len(rows)))
    again = Ranks.concatenate([ranks[:cut], ranks[cut:]])
    for (name, ours), (_, theirs) in zip(again.columns(), ranks.columns(), strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    categories = np.array([0, 3, UNSEEN, 1, 3], np.int8)
    report = summary(ranks, categories)
    json.dumps(report, allow_nan=False)
    overall = report["all"]["realistic"]
    for parts in (report["relations"], report["categories"], {k: {**v["realistic"], **v} for k, v in report["sides"].items()}):
        assert sum(part["count"] for part in parts.values()) == len(rows)
        for name in ("mrr", "mr", "hits@3"):
            assert sum(part["count"] * part[name] for part in parts.values()) / len(rows) == pytest.approx(overall[name])
    for part in report["categories"].values():
        assert sum(half["count"] for half in part["sides"].values()) == part["count"]
    for relation, part in report["relations"].items():
        own = ranks[ranks.relation == int(relation)]
        assert part == {"count": len(own), **metrics(own)}


@pytest.mark.parametrize(
    ("pairs", "category"),
    [
        ([(0, 1), (2, 3)], "1-1"),
        ([(0, 1), (0, 2)], "1-N"),
        ([(1, 0), (2, 0)], "N-1"),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], "N-N"),
        ([(0, 0), (0, 1), (1, 2)], "1-N"),  # exactly 1.5 tails a head is many
        ([(0, 0), (0, 1), (1, 2), (2, 3)], "1-1"),
        ([(0, 1), (0, 1), (0, 1)], "1-1"),  # a repeated triple is one
    ],
)
def test_categories_of_bordes(pairs: list[tuple[int, int]], category: str) -> None:
    train = np.array([(h, 1, t) for h, t in pairs] + [(9, 3, 9)], np.int32)
    found = relation_categories(train, 5)
    assert found[1] == CATEGORIES.index(category) and found[3] == 0
    assert found[[0, 2, 4]].tolist() == [UNSEEN] * 3


def test_categories_of_no_triples() -> None:
    assert relation_categories(np.empty((0, 3), np.int32), 2).tolist() == [UNSEEN, UNSEEN]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)), max_size=25))
def test_categories_are_those_of_a_plain_count(triples: list[tuple[int, int, int]]) -> None:
    found = relation_categories(np.array(triples, np.int32).reshape(-1, 3), 3)
    for relation in range(3):
        own = {(h, t) for h, r, t in triples if r == relation}
        if not own:
            assert found[relation] == UNSEEN
            continue
        many_tails = len(own) / len({h for h, _ in own}) >= 1.5
        many_heads = len(own) / len({t for _, t in own}) >= 1.5
        assert CATEGORIES[found[relation]] == f"{'N' if many_heads else '1'}-{'N' if many_tails else '1'}"


def test_lines_and_table() -> None:
    report = summary(ranks_of([(0, 0, 1), (4, 2, 9)], side=[0, 1]), np.zeros(1, np.int8), Ties.PESSIMISTIC)
    assert reference_lines("test", report["all"]["pessimistic"]) == [
        "Test average MRR : 0.571429",
        "Test average MR : 4.000000",
        "Test average HITS@1 : 0.500000",
        "Test average HITS@3 : 0.500000",
        "Test average HITS@10 : 1.000000",
        "Test average AUC-ROC : 0.250000",
    ]
    lines = report_table(report)
    assert len({len(line) for line in lines}) == 1
    cells = [line.split() for line in lines]
    assert cells[0] == ["queries", "MRR", "MR", "MEDIAN", "HITS@1", "HITS@3", "HITS@10", "AUC-ROC", "AMRI"]
    assert ["pessimistic", "2", "0.5714", "4.00", "4.0", "0.5000", "0.5000", "1.0000", "0.2500", "-0.5000"] in cells
    assert ["heads", "(pessimistic)", "1", "1.0000", "1.00", "1.0", "1.0000", "1.0000", "1.0000", "-", "-"] in cells
    assert ["1-1", "(pessimistic)", "2", "0.5714", "4.00", "4.0", "0.5000", "0.5000", "1.0000", "0.2500", "-0.5000"] in cells


def test_tie_policies_have_a_row_each_where_they_differ_and_one_where_nothing_ties() -> None:
    tied = report_table(summary(ranks_of([(0, 0, 1), (4, 2, 9)], side=[0, 1])))
    assert [line.split()[0] for line in tied[1:4]] == ["realistic", "optimistic", "pessimistic"]
    plain = report_table(summary(ranks_of([(0, 0, 5), (4, 0, 9)], side=[0, 1])))
    assert [line.split()[0] for line in plain[1:3]] == ["all", "heads"]


def test_the_protocol_stands_beside_the_numbers() -> None:
    protocol = {"filter": ["train"], "entities": 99, "sampled": 0, "in_batch": False, "batch": 8, "fraction": 1.0, "triples": 5}
    report = {"split": "valid", "ties": "realistic", "candidates": {"mean": 42.04}, "protocol": protocol}
    assert protocol_line(report) == (
        "valid ranks: filtered by train, among all 99 entities (42.0 on average); ties: realistic"
    )  # fmt: skip
    report["protocol"] = {**protocol, "filter": [], "sampled": 7, "in_batch": True, "fraction": 0.5}
    assert protocol_line(report) == (
        "valid ranks: raw (known triples not filtered), among 7 of 99 entities, drawn for every 8 triples, and the entities of "
        "those triples (42.0 on average), 5 triples drawn from the split; ties: realistic"
    )
