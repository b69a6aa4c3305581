"""KGEmbedder keeps scikit-learn's contract, and its numbers are those of the run."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kgdist
from kgdist.base.errors import OptionError, UsageError
from kgdist.options.config import Config
from kgdist.options.configfile import read_run
from tests.cli.graphs import grid_splits, random_splits

TRAIN, VALID, TEST = grid_splits()
SMALL: dict[str, Any] = {"hidden_dim": 16, "gamma": 3, "batch_size": 32, "neg_sample_size": 8, "max_step": 400}


def clone(estimator: kgdist.KGEmbedder) -> kgdist.KGEmbedder:
    """As scikit-learn documents `sklearn.base.clone`: a new one of the same parameters, which must come out as they went in."""
    params = {name: copy.deepcopy(value) for name, value in estimator.get_params(deep=False).items()}
    made = type(estimator)(**params)
    for name, value in made.get_params(deep=False).items():
        assert value is params[name], name
    return made


def test_parameters_go_in_and_come_out_as_they_are() -> None:
    plain = kgdist.KGEmbedder()
    explicit = {
        name for name, each in inspect.signature(kgdist.KGEmbedder.__init__).parameters.items() if each.default is not each.empty
    }
    assert set(plain.get_params()) == explicit
    made = kgdist.KGEmbedder("RotatE", lr="nonsense", valid=True, early_stop_patience=2)  # type: ignore[arg-type]
    assert made.get_params() == plain.get_params() | {
        "model_name": "RotatE",
        "lr": "nonsense",
        "valid": True,
        "early_stop_patience": 2,
    }
    assert clone(made).get_params() == made.get_params() and clone(clone(made)) is not made
    assert made.set_params(lr=0.5, loss_genre="Hinge") is made and made.get_params()["loss_genre"] == "Hinge"
    assert "lr=0.5" in repr(made) and clone(made).get_params() == made.get_params()
    for name in ("learning_rate", "num_parts"):
        with pytest.raises(ValueError, match=f"Invalid parameter '{name}'"):
            made.set_params(**{name: 1})
    with pytest.raises(OptionError, match="--lr: must be"):
        kgdist.KGEmbedder(lr=-1).fit(TRAIN)
    for ask in (lambda: plain.predict([("a", "b")]), lambda: plain.score(TEST), lambda: plain.transform(["a"])):
        with pytest.raises(UsageError, match="call fit first"):
            ask()


def test_defaults_make_room_for_what_the_user_asks_for(tmp_path: Path) -> None:
    """They are no options of the user's: what contradicts them is not refused, and a preset is taken as it is."""

    def trained(**options: Any) -> Config:
        return read_run(kgdist.KGEmbedder("ComplEx", save_path=str(tmp_path), **options).fit(TRAIN).run_.path)

    softmax = trained(loss_genre="Softmax", max_epoch=1, hidden_dim=8)
    assert (softmax.loss_genre, softmax.neg_adversarial_sampling, softmax.lr) == ("Softmax", False, 0.1)
    assert trained(loss_genre="Softmax", candidates="all", max_epoch=1, hidden_dim=8).candidates == "all"
    preset = trained(preset=True, max_epoch=1)
    assert (preset.loss_genre, preset.lr, preset.hidden_dim, preset.regularizer) == ("Softmax", 0.15, 200, "n3")
    with pytest.raises(OptionError, match="--neg_sample_size: is about negatives that are drawn"):
        trained(loss_genre="Softmax", candidates="all", neg_sample_size=7)


@pytest.mark.slow
def test_what_it_learns_is_what_the_run_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    embedder = kgdist.KGEmbedder(**SMALL).fit(TRAIN)
    assert not list(tmp_path.iterdir())  # it keeps what it writes to itself
    run, folder = embedder.run_, embedder.run_.path
    pairs = [(h, r) for h, r, _ in TEST]
    expected = [run.predict(h, r, k=1)["tail"][0] for h, r in pairs]
    assert embedder.predict(pairs).tolist() == expected
    assert embedder.predict(np.array(pairs)).tolist() == expected
    assert embedder.score_samples(TEST) == pytest.approx([run.score(*triple) for triple in TEST])
    assert np.array_equal(embedder.transform(["0,0", 3]), run.entity_embeddings[["0,0", 3]])
    assert embedder.score(TRAIN) > embedder.score(TEST) > 0.4  # chance: 0.16
    with pytest.raises(UsageError, match=r"expected \[n, 2\]"):
        embedder.predict(TEST)
    del embedder, run
    import gc

    gc.collect()
    assert not folder.exists()


def test_the_score_is_the_mean_reciprocal_rank_by_brute_force() -> None:
    train, _, test = random_splits()
    test = test[:6]
    embedder = kgdist.KGEmbedder("DistMult", hidden_dim=8, gamma=4, batch_size=16, neg_sample_size=8, max_step=40).fit(train)
    run, known = embedder.run_, {*train, *test}
    reciprocal = []
    for h, r, t in test:
        own = run.score(h, r, t)
        tails = [run.score(h, r, e) for e in run.entities if e == t or (h, r, e) not in known]
        heads = [run.score(e, r, t) for e in run.entities if e == h or (e, r, t) not in known]
        reciprocal += [1 / (1 + sum(score > own for score in scores)) for scores in (tails, heads)]
    assert embedder.score(test) == pytest.approx(np.mean(reciprocal))
    # Names that were not there cannot be ranked: such a triple counts 0.
    assert embedder.score([*test, ("e1", "r1", "nobody"), ("e1", "other", "e2")]) == pytest.approx(sum(reciprocal) / 16)
    assert embedder.score([("x", "y", "z")]) == 0.0


def test_pairs_and_tails_are_triples_and_ids_stay_ids(tmp_path: Path) -> None:
    array = np.array(TRAIN, dtype=object)
    whole, split = kgdist.KGEmbedder(**SMALL).fit(TRAIN), kgdist.KGEmbedder(**SMALL).fit(array[:, :2], array[:, 2])
    assert np.array_equal(whole.run_.entity_embeddings, split.run_.entity_embeddings)
    tests = np.array(TEST, dtype=object)
    assert split.score(tests[:, :2], tests[:, 2]) == whole.score(TEST)
    ids = whole.run_.dataset.train.array
    numbered = kgdist.KGEmbedder(**SMALL, save_path=str(tmp_path), data_path=str(tmp_path)).fit(ids)
    assert np.array_equal(numbered.run_.entity_embeddings, whole.run_.entity_embeddings)
    answers = numbered.predict(ids[:5, :2])
    assert answers.dtype == np.int64 and answers.tolist() == whole.run_.predict(ids[:5, 0], ids[:5, 1], k=1).ids["tail"].tolist()
    assert list(tmp_path.glob("TransE_l2_triples-*_0"))


def test_validation_triples_stop_it_early() -> None:
    embedder = kgdist.KGEmbedder(**SMALL | {"max_step": 2000}, early_stop_patience=1, eval_interval=20).fit(TRAIN, valid=VALID)
    assert embedder.run_.config.valid and len(embedder.run_.evaluate("valid")["relations"])


def test_scikit_learn_itself_takes_it() -> None:
    base = pytest.importorskip("sklearn.base")
    selection = pytest.importorskip("sklearn.model_selection")
    embedder = kgdist.KGEmbedder(**SMALL | {"max_step": 40})
    assert base.clone(embedder).get_params() == embedder.get_params()
    triples = np.array(TRAIN, dtype=object)
    folds = selection.KFold(3, shuffle=True, random_state=0)
    search = selection.GridSearchCV(embedder, {"hidden_dim": [2, 16]}, cv=folds).fit(triples[:, :2], triples[:, 2])
    assert 0 < search.best_score_ <= 1 and len(search.predict(triples[:4, :2])) == 4
