"""Models of PyKEEN as runs: scores equal its formulas, evaluated here directly, and what scores otherwise is refused."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.base.errors import CheckpointError, DataError, KgdistError
from kgdist.base.types import RelationRows, Side
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange import adopt as adopting
from kgdist.exchange import pykeen
from kgdist.exchange.adopt import Foreign, adopt
from kgdist.exchange.layouts import quoted
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.predict.engine import Predictor
from kgdist.runs import rundir
from kgdist.runs.opened import open_model
from tests.exchange.sources import NAMES, full_disk

E, R, D = len(NAMES), 3, 5
RELATIONS = ("is a", '"of"', "x\ty")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/from_pykeen/arrays.py"


def arrays(interaction: str, relations: int = R) -> dict[str, np.ndarray]:
    """Random representations as PyKEEN's models of that interaction have them, of so many rows of relations."""
    rng = np.random.default_rng(8)
    if interaction in ("ComplEx", "RotatE"):
        e, r = (rng.standard_normal((n, D)) + 1j * rng.standard_normal((n, D)) for n in (E, relations))
        return {
            "entity_0": e.astype(np.complex64),
            "relation_0": (r / np.abs(r) if interaction == "RotatE" else r).astype(np.complex64),
        }
    shapes = {"entity_0": (E, D), "relation_0": (relations, D, D) if interaction == "RESCAL" else (relations, D)}
    if interaction.startswith("SimplE"):
        shapes |= {"entity_1": (E, D), "relation_1": (relations, D)}
    if interaction == "PairRE":
        shapes |= {"relation_1": (relations, D)}
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    if interaction == "PairRE":
        made["entity_0"] /= np.linalg.norm(made["entity_0"], axis=1, keepdims=True)
    return made


def formula(interaction: str, p: int | None, x: dict[str, np.ndarray]) -> np.ndarray:
    """float64[E, rows of relations, E]: the score of every triple as the papers and PyKEEN's documentation have it."""
    wide = {name: array.astype(np.complex128 if array.dtype.kind == "c" else np.float64) for name, array in x.items()}
    h, r, t = wide["entity_0"][:, None, None], wide["relation_0"][None, :, None], wide["entity_0"][None, None]
    if interaction == "TransE":
        return -np.linalg.norm(h + r - t, ord=p, axis=-1)
    if interaction == "RotatE":
        return -np.abs(h * r - t).sum(-1)
    if interaction == "PairRE":
        return -np.abs(h * r - t * wide["relation_1"][None, :, None]).sum(-1)
    if interaction == "DistMult":
        return (h * r * t).sum(-1)
    if interaction == "ComplEx":
        return (h * r * t.conj()).sum(-1).real
    if interaction == "RESCAL":
        return np.einsum("hd,rde,te->hrt", wide["entity_0"], wide["relation_0"], wide["entity_0"])
    head, tail = wide["entity_0"], wide["entity_1"]  # SimplE: an entity has a vector for each role
    if interaction == "SimplE of 1.11":
        return (
            np.einsum("hd,rd,td->hrt", head, wide["relation_0"], head)
            + np.einsum("td,rd,hd->hrt", tail, wide["relation_1"], tail)
        ) / 2
    forth, back = (
        np.einsum("hd,rd,td->hrt", head, wide["relation_0"], tail),
        np.einsum("td,rd,hd->hrt", head, wide["relation_1"], tail),
    )
    return (forth + back) / 2


def save(
    folder: Path, interaction: str, p: int | None = None, facts: dict[str, Any] | None = None, *, inverse: bool = False
) -> dict[str, np.ndarray]:
    """A folder as arrays.py and PyKEEN leave it."""
    (folder / "training_triples").mkdir(parents=True)
    made = arrays(interaction, 2 * R if inverse else R)
    for name, array in made.items():
        np.save(folder / f"{name}.npy", array)
    told: dict[str, Any] = {
        "interaction": f"{interaction.split()[0]}Interaction",
        "p": p,
        "power_norm": False,
        "inverse_triples": inverse,
    }
    rows = np.random.default_rng(1).integers(0, [E, len(made["relation_0"]), E], (20, 3)).tolist()
    told["probe"] = [[h, r, t, float(formula(interaction, p, made)[h, r, t])] for h, r, t in rows]
    (folder / "model.json").write_text(json.dumps(told | (facts or {})))
    for kind, names in (("entity", NAMES), ("relation", RELATIONS)):
        lines = ["id\tlabel\n", *(f"{number}\t{quoted(name)}\n" for number, name in enumerate(names))]
        (folder / f"training_triples/{kind}_to_id.tsv.gz").write_bytes(gzip.compress("".join(lines).encode()))
    return made


def imported(folder: Path, save_path: Path) -> rundir.RunFolder:
    return rundir.open_run(adopt(pykeen.read(folder, Config(dataset="toy"), None), save_path))


def scores(run: rundir.RunFolder) -> np.ndarray:
    """float32[E, R, E] by kgdist, without the margin."""
    model = model_of(run.config)
    rows = rundir.load_tables(run, run.config, model, E, R).rows
    h, r, t = (torch.from_numpy(each.ravel()) for each in np.indices((E, R, E)))
    links = {name: table for name, table in rows.items() if name != "entity"}
    found = model.score(rows["entity"][h], RelationRows(links, r), rows["entity"][t]) - model.offset
    return np.asarray(found.reshape(E, R, E))


SAME = [
    ("TransE", 1),
    ("TransE", 2),
    ("DistMult", None),
    ("ComplEx", None),
    ("RESCAL", None),
    ("SimplE", None),
    ("SimplE of 1.11", None),
    ("RotatE", 1),
    ("PairRE", 1),
]


@pytest.mark.parametrize(("interaction", "p"), SAME)
def test_scores_are_those_of_the_formula(
    tmp_path: Path, interaction: str, p: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopting, "BLOCK", 12)  # two rows at once, or one
    made = save(tmp_path / "model", interaction, p)
    run = imported(tmp_path / "model", tmp_path / "ckpts")
    np.testing.assert_allclose(scores(run), formula(interaction, p, made), rtol=1e-5, atol=1e-5)
    assert run.vocabularies is not None
    assert (list(run.vocabularies[0]), list(run.vocabularies[1])) == (list(NAMES), list(RELATIONS))
    assert run.path.name.endswith("_toy_0") and run.config.hidden_dim == D


@pytest.mark.parametrize(("interaction", "p"), SAME)
def test_inverse_triples_are_inverse_relations(tmp_path: Path, interaction: str, p: int | None) -> None:
    """PyKEEN asks for (?, r, t) by the tail of (t, 2r + 1, ?), as its relation inverter has it."""
    made = save(tmp_path / "model", interaction, p, inverse=True)
    run = imported(tmp_path / "model", tmp_path / "ckpts")
    opened, expected = open_model(run.path), formula(interaction, p, made)
    assert opened.config.reciprocal and opened.num_relations == R and opened.vocabularies is not None
    assert list(opened.vocabularies[1]) == list(RELATIONS)
    predictor, offset = Predictor.of(opened, 1), opened.model.offset
    h, r, t = (each.ravel() for each in np.indices((E, R, E)))
    np.testing.assert_allclose(predictor.score(h, r, t) - offset, expected[h, 2 * r, t], rtol=1e-4, atol=1e-4)
    as_head = predictor.score(h, r, t, Side.HEAD) - offset
    np.testing.assert_allclose(as_head, expected[t, 2 * r + 1, h], rtol=1e-4, atol=1e-4)


def test_the_first_power_is_the_norm(tmp_path: Path) -> None:
    made = save(tmp_path / "model", "TransE", 1, {"power_norm": True})
    np.testing.assert_allclose(scores(imported(tmp_path / "model", tmp_path)), formula("TransE", 1, made), rtol=1e-5)


@pytest.mark.parametrize(
    ("interaction", "p", "facts", "message"),
    [
        ("RotatE", 2, {}, "RotatE cannot be taken over: p = 2 is not the sum of moduli"),
        ("PairRE", 2, {}, "PairRE cannot be taken over: p = 2 is not the L1 norm"),
        ("DistMult", 1, {"interaction": "PairREInteraction"}, "relation_1.npy: no such file"),
        ("TransE", 3, {}, "TransE cannot be taken over: p = 3 is neither"),
        ("TransE", 2, {"power_norm": True}, "p = 2, squared, is neither"),
        ("TransE", 2, {"interaction": "TransRInteraction"}, "TransR cannot be taken over: PyKEEN shortens"),
        ("TransE", 2, {"interaction": "ConvEInteraction"}, "ConvE cannot be taken over: kgdist has no model of that name"),
        ("TransE", 2, {"inverse_triples": True}, "relation_0.npy: 3 rows, but there are 3 names, each of two rows"),
        ("TransE", 2, {"interaction": None}, "does not say which interaction"),
        (
            "TransE",
            2,
            {"interaction": "ComplExInteraction"},
            r"entity_0.npy: expected complex\[n, d\] for ComplEx, found float32",
        ),
        ("TransE", 2, {"interaction": "RESCALInteraction"}, r"relation_0.npy: expected float\[n, d, d\] for RESCAL"),
        ("RotatE", 1, {"probe": [[0, 0, 1, -1.0]]}, "the scores that PyKEEN computed are not those of RotatE here"),
        ("ComplEx", 1, {"interaction": "RotatEInteraction"}, "a relation of RotatE has modulus 1, one here is"),
        ("DistMult", None, {"interaction": "SimplEInteraction"}, "entity_1.npy: no such file"),
        ("DistMult", None, {"probe": [[0, 0, 1, 99.0]]}, "the scores that PyKEEN computed are not those of DistMult here"),
        ("DistMult", None, {"probe": [[0, 99, 1, 0.0]]}, "probe is not a list of"),
        ("DistMult", None, {"probe": []}, "probe is not a list of"),
    ],
)
def test_what_scores_otherwise_is_refused(
    tmp_path: Path, interaction: str, p: int | None, facts: dict[str, Any], message: str
) -> None:
    save(tmp_path / "model", interaction, p, facts)
    with pytest.raises(CheckpointError, match=message):
        imported(tmp_path / "model", tmp_path / "ckpts")
    assert not list((tmp_path / "ckpts").glob("*"))


def test_entities_of_another_length_are_refused(tmp_path: Path) -> None:
    made = save(tmp_path / "model", "PairRE", 1)
    np.save(tmp_path / "model/entity_0.npy", 1.5 * made["entity_0"])
    with pytest.raises(CheckpointError, match=r"entity_0.npy: an entity of PairRE has length 1 here, one there is 0.5 away"):
        imported(tmp_path / "model", tmp_path / "ckpts")


def test_damage_is_refused(tmp_path: Path) -> None:
    made = save(tmp_path / "model", "DistMult")
    ids = tmp_path / "model/training_triples/entity_to_id.tsv.gz"
    good = ids.read_bytes()
    for text, message in (
        ("0\ta\n", "tsv.gz:1: expected the header id, label"),
        ("id\tlabel\n1\ta\n", "tsv.gz:2: expected id 0 and a label"),
        ("id\tlabel\n0\ta\tb\n", "tsv.gz:2: expected id 0 and a label"),
        ("id\tlabel\n0\ta\n1\ta\n", "appears twice"),
        ('id\tlabel\n0\t"a\n', "cannot be read"),
    ):
        ids.write_bytes(gzip.compress(text.encode()))
        with pytest.raises(DataError, match=message):
            imported(tmp_path / "model", tmp_path / "ckpts")
    for raw in (gzip.compress(b"id\tlabel\n0\t\xff\n"), good[:20], b"", b"no gzip"):
        ids.write_bytes(raw)
        with pytest.raises(DataError):
            imported(tmp_path / "model", tmp_path / "ckpts")
    ids.write_bytes(gzip.compress(b"id\tlabel\n0\ta\n"))
    with pytest.raises(CheckpointError, match="entity_0.npy: 8 rows, but there are 1 names"):
        imported(tmp_path / "model", tmp_path / "ckpts")
    ids.write_bytes(good)
    for broken, message in (
        (made["entity_0"][:, :3], "the table relation has 3 rows of 5 numbers, DistMult needs 3 rows of 3"),
        (made["entity_0"].astype(object), "entity_0.npy: not a readable .npy array"),
        (made["entity_0"].astype(int), "expected float"),
    ):
        np.save(tmp_path / "model/entity_0.npy", broken, allow_pickle=True)
        with pytest.raises(CheckpointError, match=message):
            imported(tmp_path / "model", tmp_path / "ckpts")
    assert not list((tmp_path / "ckpts").glob("*"))


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    names, rows = Vocabulary.numbered(9), np.ones((9, 2))
    for strange in (np.nan, np.inf, 1e39):
        rows[6, 1] = strange
        table = adopting.ForeignTable(9, 2, lambda start, stop: rows[start:stop])
        model = Foreign(
            Config(model_name="DistMult", dataset="toy", hidden_dim=2), {"entity": table, "relation": table}, names, names
        )
        with pytest.raises(CheckpointError, match="row 6 of the table entity is not finite in float32"):
            adopt(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    names = Vocabulary.numbered(5000)
    rows = np.ones((5000, 8), np.float32)
    table = adopting.ForeignTable(5000, 8, lambda start, stop: rows[start:stop])
    model = Foreign(
        Config(model_name="DistMult", dataset="toy", hidden_dim=8), {"entity": table, "relation": table}, names, names
    )
    with full_disk(50_000), pytest.raises(KgdistError, match="cannot be written"):
        adopt(model, tmp_path / "ckpts")
    assert not list((tmp_path / "ckpts").iterdir())


def test_models_that_pykeen_made(tmp_path: Path) -> None:
    """With PyKEEN itself: its models, its arrays, its maps, its scores. Its RotatE takes the 2-norm, whatever p says."""
    models = pytest.importorskip("pykeen.models", reason="pykeen is not installed")
    from pykeen.triples import TriplesFactory

    spec = importlib.util.spec_from_file_location("arrays", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    triples = np.array([(NAMES[n % E], RELATIONS[n % R], NAMES[(3 * n + 1) % E]) for n in range(40)])
    factory = TriplesFactory.from_labeled_triples(triples)
    made: list[tuple[str, dict[str, Any]]] = [("TransE", {"scoring_fct_norm": p}) for p in (1, 2)]
    made += [("DistMult", {}), ("ComplEx", {}), ("RESCAL", {}), ("SimplE", {"clamp_score": 0.2}), ("PairRE", {"p": 1})]
    for name, options in made:
        model = getattr(models, name)(triples_factory=factory, embedding_dim=D, random_seed=1, **options).eval()
        folder = tmp_path / f"{name}{len(list(tmp_path.iterdir()))}"
        factory.to_path_binary(folder / "training_triples")
        example.save(model, folder)
        run = imported(folder, tmp_path / "ckpts")
        assert run.vocabularies is not None and list(run.vocabularies[0]) == sorted(NAMES)
        h, r, t = factory.mapped_triples.T
        assert not hasattr(model.interaction, "clamp_score")
        theirs = model.score_hrt(factory.mapped_triples).detach().numpy().ravel()
        np.testing.assert_allclose(scores(run)[h, r, t], theirs, rtol=1e-4, atol=1e-5)
    both = TriplesFactory.from_labeled_triples(triples, create_inverse_triples=True)
    model = models.ComplEx(triples_factory=both, embedding_dim=D, random_seed=1).eval()
    folder = tmp_path / "inverse"
    both.to_path_binary(folder / "training_triples")
    example.save(model, folder)
    predictor = Predictor.of(open_model(imported(folder, tmp_path / "ckpts").path), 1)
    for side, theirs in (
        (Side.TAIL, model.predict_t(both.mapped_triples[:, :2])),
        (Side.HEAD, model.predict_h(both.mapped_triples[:, 1:])),
    ):
        own = side.pick(h, t)
        found = theirs.detach().numpy()[np.arange(len(own)), own]
        np.testing.assert_allclose(predictor.score(*map(np.asarray, (h, r, t)), side), found, rtol=1e-4, atol=1e-5)
    rotate = models.RotatE(triples_factory=factory, embedding_dim=D).eval()
    for p in (1, 2):
        rotate.interaction.p = p
        example.save(rotate, folder)
        with pytest.raises(CheckpointError, match="RotatE"):
            imported(folder, tmp_path / "ckpts")
