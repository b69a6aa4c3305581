"""`reciprocal=True` in Python: what a run answers, its rows by name, and the estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kgdist
from kgdist.base.errors import OptionError
from tests.cli.graphs import grid_splits

TRAIN, VALID, TEST = grid_splits()
SMALL: dict[str, Any] = {"hidden_dim": 16, "gamma": 6, "batch_size": 32, "neg_sample_size": 8, "max_step": 400, "quiet": True}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> kgdist.Run:
    monkeypatch.chdir(tmp_path)
    data = kgdist.load_dataset(TRAIN, valid=VALID, test=TEST)
    return kgdist.train(data, model_name="TransE_l2", reciprocal=True, **SMALL)


def test_a_run_answers_both_ends_by_rows_of_their_own(run: kgdist.Run) -> None:
    entity, relation = run.entity_embeddings, run.relation_embeddings
    assert list(run.relations) == list(relation.names)[::2] and relation.shape == (8, 16)
    distance = np.linalg.norm(entity["2,2"] + relation["left"] - np.asarray(entity), axis=1)
    found = run.predict(head="2,2", relation="left", k=3)
    assert found["tail"].tolist() == [entity.names[n] for n in np.argsort(distance)[:3]]
    assert np.allclose(found["score"], 6 - np.sort(distance)[:3], atol=1e-4)
    back = np.linalg.norm(entity["2,2"] + relation["left_inverse"] - np.asarray(entity), axis=1)
    found = run.predict(relation="left", tail="2,2", k=3)
    assert found["head"].tolist() == [entity.names[n] for n in np.argsort(back)[:3]]
    own = 6 - np.linalg.norm(entity["2,2"] + relation["up"] - entity["2,3"])
    assert run.score("2,2", "up", "2,3") == pytest.approx(own, abs=1e-4)
    between = run.predict(head="2,2", tail="2,3", k=4)
    assert sorted(between["relation"].tolist()) == sorted(run.relations) and own == pytest.approx(
        dict(zip(between["relation"], between["score"], strict=True))["up"], abs=1e-4
    )
    assert run.evaluate("test").mrr == pytest.approx(kgdist.load(run.path).evaluate("test").mrr)
    with pytest.raises(OptionError, match="DGL-KE has one row for a relation"):
        run.export("dglke")


def test_an_inverse_is_compared_like_any_relation(run: kgdist.Run) -> None:
    names = list(run.relation_embeddings.names)
    assert names == [each for name in run.relations for each in (name, f"{name}_inverse")]
    rows = np.asarray(run.relation_embeddings, dtype=float)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    found = run.similar("left_inverse", k=7, kind="relation")
    cosine = unit @ unit[names.index("left_inverse")]
    assert np.allclose(found["score"], [cosine[names.index(name)] for name in found["right"]], atol=1e-5)
    assert set(found["right"]) == set(names) - {"left_inverse"} and (np.diff(found["score"]) <= 0).all()
    table = run.relation_embeddings.to_arrow()
    assert table["name"].to_pylist() == names and table.num_rows == 8


def test_the_estimator_takes_it_as_any_option() -> None:
    options = SMALL | {"gamma": 3, "max_step": 1500}
    embedder = kgdist.KGEmbedder(model_name="TransE_l2", reciprocal=True, **options).fit(TRAIN)
    assert embedder.get_params()["reciprocal"] is True and len(embedder.run_.relation_embeddings) == 8
    assert embedder.score(VALID + TEST) > 0.5
    h, r, t = zip(*TEST, strict=True)
    pairs = list(zip(h, r, strict=True))
    assert np.mean(embedder.predict(pairs) == np.array(t, dtype=object)) > 0.3
    assert np.allclose(embedder.score_samples(TEST), embedder.run_.score(list(h), list(r), list(t)))
