"""Approximate search against exact: equal after a long walk, the recall that it says, and when it is built."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from kgdist.base.errors import OptionError
from kgdist.base.types import Side
from kgdist.data.known import KnownTriples
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import make_model
from kgdist.predict.engine import Predictor
from kgdist.predict.index import FILES, Index, open_index

pytest.importorskip("faiss", reason="the extra kgdist[index] is not installed")
ENTITIES, RELATIONS, WIDTH = 600, 3, 8


def predictor(name: str, seed: int = 0, threads: int = 1) -> Predictor:
    """A model with random embeddings, some of them equal."""
    relation = 2 * WIDTH if name in ("TransR", "PairRE") else WIDTH // 2 if name == "RotatE" else WIDTH
    model = make_model(name, gamma=4.0, hidden_dim=WIDTH, entity_dim=WIDTH, relation_dim=relation)
    random = torch.Generator().manual_seed(seed)
    shapes = model.tables(ENTITIES, RELATIONS)
    rows = {table: torch.empty(shape).uniform_(-1, 1, generator=random) for table, shape in shapes.items()}
    rows["entity"][100] = rows["entity"][7]
    return Predictor(model, MemoryTables(rows, {}, "sgd"), ENTITIES, RELATIONS, threads=threads)


def asked(asking: Predictor, side: Side, anchors: np.ndarray, relations: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return asking.scorer.queries(side, anchors, relations)


def best(index: Index, asking: Predictor, side: Side, anchors: np.ndarray, relations: np.ndarray, k: int,
         known: KnownTriples | None = None) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    queries = asked(asking, side, anchors, relations)
    skip = known.answers(side, anchors, relations) if known is not None else ()
    return index.best(queries.float(), k, lambda rows, ids: asking.scorer.compare(queries, rows, ids, side, None), *skip)


@pytest.mark.parametrize("name", ["DistMult", "ComplEx", "SimplE", "RESCAL", "TransE_l2"])
def test_a_long_walk_is_exact_search(tmp_path: Path, name: str) -> None:
    asking = predictor(name)
    index = open_index(tmp_path, asking)
    index = Index(index.content, index.facts._replace(walk=4 * ENTITIES))
    rng = np.random.default_rng(2)
    anchors, relations = rng.integers(0, ENTITIES, 40), np.sort(rng.integers(0, RELATIONS, 40))
    triples = np.stack([rng.integers(0, ENTITIES, 900), rng.integers(0, RELATIONS, 900), rng.integers(0, ENTITIES, 900)], 1)
    known = KnownTriples.build([triples.astype(np.int32)], ENTITIES, RELATIONS)
    for side in Side:
        for without in (None, known):
            ids, keys = best(index, asking, side, anchors, relations, 7, without)
            true = asking.top(side, anchors, relations, 7, known=without)
            assert np.array_equal(ids, true.ids)
            assert np.array_equal(asking.scorer.scores(keys), true.scores)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(k=st.integers(1, 700), queries=st.integers(0, 5), left=st.integers(0, 600))
def test_there_are_never_more_than_there_are(tmp_path: Path, k: int, queries: int, left: int) -> None:
    """All but `left` entities are known for the first query."""
    asking = predictor("DistMult")
    index = open_index(tmp_path, asking)
    index = Index(index.content, index.facts._replace(walk=4 * ENTITIES))
    vectors = torch.randn(queries, WIDTH)
    offsets = np.concatenate([[0], np.full(queries, ENTITIES - left)]).astype(np.int64)
    ids, keys = index.best(
        vectors, k, lambda rows, ids: (vectors[rows] * asking.tables.rows["entity"][ids]).sum(1).double().numpy(),  # type: ignore[attr-defined]
        offsets if queries else np.zeros(1, np.int64), np.arange(left, ENTITIES),
    )  # fmt: skip
    assert ids.shape == keys.shape == (queries, k)
    for row in range(queries):
        found = ids[row][ids[row] >= 0]
        assert len(set(found.tolist())) == len(found) <= min(k, left if row == 0 else ENTITIES)
        assert row or (found < left).all()
        assert len(found) >= min(k, 32, left if row == 0 else ENTITIES) or row == 0
        assert np.array_equal(np.isneginf(keys[row]), ids[row] < 0) and (np.diff(keys[row][: len(found)]) <= 0).all()


@pytest.mark.parametrize("name", ["DistMult", "TransE_l2"])
def test_the_recall_that_it_says_is_met_by_other_queries(tmp_path: Path, name: str) -> None:
    asking = predictor(name, seed=4)
    index = open_index(tmp_path, asking)
    assert index.facts.recall >= 0.95 and 64 <= index.facts.walk <= 4096
    assert f"recall@10 {index.facts.recall:.3f} on 256 random queries" in index.words() and asking.index is None
    slow, quick = (Index(None, index.facts._replace(milliseconds=time, exactly=1.0)).words() for time in (2.0, 0.5))
    assert slow.endswith("(2 ms a query, exact search 1 ms: better leave --index out)")
    assert quick.endswith("(0.5 ms a query, exact search 1 ms)")
    rng = np.random.default_rng(9)
    anchors, relations = rng.integers(0, ENTITIES, 300), np.sort(rng.integers(0, RELATIONS, 300))
    ids, _ = best(index, asking, Side.TAIL, anchors, relations, 10)
    true = asking.top(Side.TAIL, anchors, relations, 10).ids
    recall = np.mean([np.isin(row, near).mean() for row, near in zip(true, ids, strict=True)])
    assert abs(recall - index.facts.recall) < 0.08  # 2560 and 3000 neighbours were looked for


def test_it_is_built_once_and_again_when_it_does_not_fit(tmp_path: Path) -> None:
    file, facts = (tmp_path / name for name in FILES)
    asking = predictor("DistMult")

    def opened(by: Predictor) -> bool:
        """Whether the index was built."""
        before = file.stat().st_mtime_ns if file.exists() else None
        found = open_index(tmp_path, by)
        queries = torch.randn(3, WIDTH)
        assert found.candidates(queries, 5).shape == (3, 5)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
        return file.stat().st_mtime_ns != before

    assert opened(asking) and not opened(asking) and not opened(predictor("ComplEx"))  # the same embeddings, both by dot
    assert opened(predictor("DistMult", seed=1)) and opened(asking) and not opened(asking)
    assert opened(predictor("TransE_l2")) and not opened(predictor("TransE_l2")) and opened(asking)
    file.write_bytes(file.read_bytes()[:-7])
    assert opened(asking)
    raw = bytearray(file.read_bytes())
    raw[:4] = b"oops"
    file.write_bytes(raw)
    assert opened(asking)
    for text in ("", "{}", "[]", json.dumps(json.loads(facts.read_text()) | {"format": 0})):
        facts.write_text(text)
        assert opened(asking)
    file.unlink()
    assert opened(asking)


@pytest.mark.parametrize("name", ["RotatE", "TransE_l1", "TransR", "PairRE"])
def test_score_functions_without_an_index_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=f"--index: is for score functions that compare by a dot .* and {name} does not"):
        open_index(tmp_path, predictor(name))
    assert not list(tmp_path.iterdir())


def test_without_faiss_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(OptionError, match=r"--index: needs faiss .*; pip install 'kgdist\[index\]'"):
        open_index(tmp_path, predictor("DistMult"))
