"""The book of a typed graph: owners, local and homogeneous ids lead there and back, and what is not there is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import UsageError
from kgdist.partition.typed_book import PartitionBook

NAMES = ("author", "paper", "venue")
WRITES, CITES, OTHER = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("author", "cites", "author")


@st.composite
def books(draw: st.DrawFn) -> PartitionBook:
    """Types without a node among them, and partitions that own nothing."""
    parts, ntypes = draw(st.integers(1, 5)), NAMES[: draw(st.integers(1, 3))]
    counts = st.lists(st.integers(0, 4), min_size=parts, max_size=parts)
    etypes = [etype for etype in (WRITES, CITES, OTHER) if {etype[0], etype[2]} <= set(ntypes) and draw(st.booleans())]
    nodes = {ntype: np.cumsum([0, *draw(counts)]) for ntype in ntypes}
    edges = {etype: np.cumsum([0, *draw(counts)]) for etype in etypes}
    return PartitionBook(nodes, edges, draw(st.integers(0, parts - 1)))


@given(books())
def test_each_id_has_one_owner_and_one_place_there(book: PartitionBook) -> None:
    for ntype in book.ntypes:
        owners = []
        for part in range(book.num_partitions()):
            own = book.partid2nids(part, ntype)
            assert book.nid2partid(own, ntype).tolist() == [part] * len(own)
            assert book.nid2localnid(own, part, ntype).tolist() == list(range(len(own)))
            owners += own.tolist()
        assert owners == list(range(book.num_nodes(ntype)))
    for etype in book.canonical_etypes:
        owners = []
        for part in range(book.num_partitions()):
            own = book.partid2eids(part, etype)
            assert book.eid2partid(own.numpy(), etype).tolist() == [part] * len(own)
            assert book.eid2localeid(own, part, etype).tolist() == list(range(len(own)))
            owners += own.tolist()
        assert owners == list(range(book.num_edges(etype)))
    told = book.metadata()
    assert [each["machine_id"] for each in told] == list(range(book.num_partitions()))
    assert (sum(each["num_nodes"] for each in told), sum(each["num_edges"] for each in told)) == (
        book.num_nodes(),
        book.num_edges(),
    )


def test_a_book_shows_itself() -> None:
    book = PartitionBook({"author": np.array([0, 2, 5])}, {OTHER: np.array([0, 0, 7])}, 1)
    assert repr(book) == f"PartitionBook(2 partitions, partid=1, nodes={{'author': 5}}, edges={{{OTHER}: 7}})"
    assert (book.number_of_nodes("author"), book.number_of_edges("cites")) == (5, 7)


@given(books())
def test_homogeneous_ids_count_partitions_and_within_them_types(book: PartitionBook) -> None:
    expected = [
        (number, node)
        for part in range(book.num_partitions())
        for number, ntype in enumerate(book.ntypes)
        for node in book.partid2nids(part, ntype).tolist()
    ]
    types, within = book.map_to_per_ntype(torch.arange(book.num_nodes()))
    assert list(zip(types.tolist(), within.tolist(), strict=True)) == expected
    for number, ntype in enumerate(book.ntypes):
        own = [place for place, (kind, _) in enumerate(expected) if kind == number]
        assert sorted(book.map_to_homo_nid(torch.arange(book.num_nodes(ntype)), ntype).tolist()) == own
    types, within = book.map_to_per_etype(torch.arange(book.num_edges()))
    for number, etype in enumerate(book.canonical_etypes):
        back = book.map_to_homo_eid(within[types == number], etype)
        assert back.tolist() == torch.arange(book.num_edges())[types == number].tolist()


@given(books())
def test_a_book_survives_json(book: PartitionBook) -> None:
    again = PartitionBook.from_json(json.loads(json.dumps(book.to_json())), book.partid)
    assert again == book and again.partid == book.partid
    assert again.ntypes == book.ntypes and again.canonical_etypes == book.canonical_etypes


@pytest.fixture
def book() -> PartitionBook:
    nodes = {"author": np.array([0, 2, 2, 5]), "paper": np.array([0, 1, 3, 3])}
    return PartitionBook(nodes, {WRITES: np.array([0, 4, 4, 6]), CITES: np.array([0, 0, 1, 1]), OTHER: np.array([0, 0, 0, 0])}, 2)


def test_names_are_understood_or_refused(book: PartitionBook) -> None:
    assert book.ntypes == ["author", "paper"] and book.etypes == ["writes", "cites", "cites"] and book.partid == 2
    assert book.to_canonical_etype("writes") == book.to_canonical_etype(WRITES) == WRITES
    for wrong, words in (("cites", "several edge types"), ("reads", "no edge type"), (("paper", "writes", "paper"), "no edge")):
        with pytest.raises(UsageError, match=words):
            book.to_canonical_etype(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="several node types: say one of author, paper"):
        book.nid2partid([0])
    with pytest.raises(UsageError, match="no node type 'venue'"):
        book.nid2partid([0], "venue")
    with pytest.raises(UsageError, match="say which edge type"):
        book.partid2eids(0)


def test_ids_out_of_range_are_refused(book: PartitionBook) -> None:
    assert book.nid2partid(4, "author").tolist() == [2] and book.nid2partid([], "author").tolist() == []
    with pytest.raises(UsageError, match="no node 5: there are 5, counted from 0"):
        book.nid2partid([0, 5], "author")
    with pytest.raises(UsageError, match="no edge -1"):
        book.eid2partid([-1], WRITES)
    with pytest.raises(UsageError, match="partid: must be an integer >= 0 and <= 2, not 3"):
        book.partid2nids(3, "author")
    with pytest.raises(UsageError, match="node 1 is not of partition 2, which owns 2:5"):
        book.nid2localnid([2, 1], 2, "author")
    with pytest.raises(UsageError, match="integers in one row"):
        book.nid2partid([0.5], "author")
    with pytest.raises(UsageError, match="no node 8"):
        book.map_to_per_ntype([8])


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"nodes": [], "edges": []},
        {"nodes": [["a", [0, 2]]]},
        {"nodes": [["a", [0, 2]]], "edges": [[["a", "b", "c"], [0, 2]]]},
        {"nodes": [["a", [0, 2]], ["a", [0, 3]]], "edges": []},
        {"nodes": [["a", [0, 2]], ["b", [0]]], "edges": []},
        {"nodes": [["a", [1, 2]]], "edges": []},
        {"nodes": [["a", [0, 2, 1]]], "edges": []},
        {"nodes": [["a", [0, 2.0]]], "edges": []},
        {"nodes": [["a", [0, 2**70]]], "edges": []},
        {"nodes": [["a", 3]], "edges": []},
        {"nodes": [[7, [0, 2]]], "edges": []},
    ],
)
def test_what_is_no_book_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        PartitionBook.from_json(value)
