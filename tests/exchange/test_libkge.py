"""Checkpoints of LibKGE as runs: scores are those of its formulas, written out here, and what is no mere data is refused."""

from __future__ import annotations

import os
import pickle
import sys
import types
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.base.errors import CheckpointError
from kgdist.base.types import Side
from kgdist.cli import eval as eval_command
from kgdist.cli import import_ as import_command
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange import libkge
from kgdist.exchange.adopt import adopt
from kgdist.predict.engine import Predictor
from kgdist.runs.opened import Opened, open_model
from tests.cli.conftest import bench
from tests.cli.graphs import Bench

__all__ = ["bench"]

E, R, D = 7, 3, 4
ENTITIES, RELATIONS = [f"/m/{n}" for n in range(E)], ["is a", "of", "/x/y"]
KINDS = [("complex", None), ("distmult", None), ("rescal", None), ("transe", 1.0), ("transe", 2.0), ("rotate", 1.0)]


def written(file: Path, value: dict[str, Any], options: dict[str, Any]) -> Path:
    """torch.save of a checkpoint with a `kge.config.Config`, as LibKGE does it; the class is nowhere when it is read."""
    package, module = types.ModuleType("kge"), types.ModuleType("kge.config")
    made = type("Config", (), {"__module__": "kge.config"})
    module.Config = made  # type: ignore[attr-defined]
    config = made()
    config.folder, config.log_folder, config.options, config.log_prefix = "/x", None, options, None
    sys.modules.update({"kge": package, "kge.config": module})
    try:
        torch.save(value | {"config": config}, file)
    finally:
        del sys.modules["kge"], sys.modules["kge.config"]
    return file


def rows(kind: str, relations: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    widths = {"rescal": D * D, "rotate": D // 2}
    entity = rng.standard_normal((E, D)).astype(np.float32)
    return entity, rng.uniform(-3, 3, (relations, widths.get(kind, D))).astype(np.float32)


def checkpoint(file: Path, kind: str, norm: float | None, *, reciprocal: bool = False, **more: Any) -> Path:
    """One that LibKGE's training job writes."""
    entity, relation = rows(kind, 2 * R if reciprocal else R)
    own: dict[str, Any] = {"class_name": kind, "entity_embedder": {"dim": D, "type": "lookup_embedder"}}
    own |= {} if norm is None else {"l_norm": norm}
    options: dict[str, Any] = {"model": kind, kind: own, "dataset": {"name": "toy"}, "import": [kind, "lookup_embedder"]}
    names = {"_entity_embedder._embeddings.weight": entity, "_relation_embedder._embeddings.weight": relation}
    if reciprocal:
        names |= {f"_base_model.{name}": array for name, array in names.items()}
        options |= {"model": libkge.RECIPROCAL, libkge.RECIPROCAL: {"base_model": {"type": kind}}}
    state = OrderedDict((name, torch.from_numpy(array)) for name, array in names.items())
    value: dict[str, Any] = {
        "type": "train",
        "epoch": 3,
        "valid_trace": [
            {"epoch": 3, "mean_reciprocal_rank_filtered": 0.3, "event": "eval_completed", "torch": torch.__version__}
        ],
        "model": (state, {"notes": "best"}),
        "optimizer_state_dict": torch.optim.Adagrad([torch.nn.Parameter(torch.ones(2))]).state_dict(),
        "job_id": "d0d0",
    }
    return written(file, value | more, options)


def formula(kind: str, norm: float | None, relations: int) -> np.ndarray:
    """float64[E, relations, E], as kge.model has it."""
    entity, relation = (each.astype(np.float64) for each in rows(kind, relations))
    s, p, o = entity[:, None, None], relation[None, :, None], entity[None, None]
    if kind == "distmult":
        return (s * p * o).sum(-1)
    if kind == "transe":
        return -np.linalg.norm(s + p - o, ord=norm, axis=-1)
    if kind == "rescal":
        return np.einsum("sd,pde,oe->spo", entity, relation.reshape(-1, D, D), entity)
    half = D // 2
    sc, oc = (each[..., :half] + 1j * each[..., half:] for each in (s, o))
    if kind == "rotate":
        return -np.abs(sc * np.exp(1j * p) - oc).sum(-1)
    return (sc * (p[..., :half] + 1j * p[..., half:]) * oc.conj()).sum(-1).real


NAMES = (Vocabulary.from_names(ENTITIES), Vocabulary.from_names(RELATIONS))


def opened(file: Path, folder: Path) -> Opened:
    return open_model(adopt(libkge.read(file, {}, NAMES), folder / "ckpts"))


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize(("kind", "norm"), KINDS)
def test_scores_are_those_of_the_formula(tmp_path: Path, kind: str, norm: float | None, reciprocal: bool) -> None:
    """LibKGE's (s, p, ?) is asked by row p, (?, p, o) by row p, or by the tail of (o, R + p, ?)."""
    run = opened(checkpoint(tmp_path / libkge.BEST, kind, norm, reciprocal=reciprocal), tmp_path)
    assert run.config.reciprocal is reciprocal and run.num_relations == R and run.run.path.name.endswith("_toy_0")
    expected = formula(kind, norm, 2 * R if reciprocal else R)
    predictor, offset = Predictor.of(run, 1), run.model.offset
    h, r, t = (each.ravel() for each in np.indices((E, R, E)))
    np.testing.assert_allclose(predictor.score(h, r, t) - offset, expected[h, r, t], rtol=1e-5, atol=1e-5)
    as_head = predictor.score(h, r, t, Side.HEAD) - offset
    wanted = expected[t, R + r, h] if reciprocal else expected[h, r, t]
    np.testing.assert_allclose(as_head, wanted, rtol=1e-5, atol=1e-5)


def test_older_names_of_rows_and_names_in_a_package(tmp_path: Path) -> None:
    entity, relation = (torch.from_numpy(each) for each in rows("distmult", R))
    state = OrderedDict([("_entity_embedder.embeddings.weight", entity), ("_relation_embedder.embeddings.weight", relation)])
    meta = {"entity_ids": ENTITIES, "relation_ids": RELATIONS}
    more = {"model": (state, {}), "dataset": {"num_entities": E, "num_relations": R, "meta": meta}}
    file = checkpoint(tmp_path / "model.pt", "distmult", None, **more)
    made = libkge.read(file, {}, None)
    assert (list(made.entities), list(made.relations)) == (ENTITIES, RELATIONS)


def test_a_folder_and_its_data_set(bench: Bench, tmp_path: Path) -> None:
    """The command finds names, and the triples that kgdist-eval ranks, where LibKGE has them."""
    data = tmp_path / "toy"
    data.mkdir()
    (data / "entity_ids.del").write_text("".join(f"{n}\t{name}\n" for n, name in enumerate(ENTITIES)))
    (data / "relation_ids.del").write_text("".join(f"{n}\t{name}\n" for n, name in enumerate(RELATIONS)))
    for split in ("train", "valid", "test"):
        (data / f"{split}.del").write_text("".join(f"{n}\t{n % R}\t{(n * 2 + len(split)) % E}\n" for n in range(E)))
    job = tmp_path / "job"
    job.mkdir()
    checkpoint(job / libkge.BEST, "complex", None, reciprocal=True)
    words = ["--save_path", str(bench.ckpts)]
    assert "the names of its ids are not in it; give --data_path" in bench.refused(import_command.main, [str(job), *words])
    assert import_command.main([str(job), "--data_path", str(data), *words]) == 0
    (run,) = bench.runs()
    assert eval_command.main([str(run)]) == 0
    files = ["--entity_mfile", str(data / "entity_ids.del"), "--rel_mfile", str(data / "relation_ids.del")]
    assert import_command.main([str(job / libkge.BEST), *files, "--dataset", "mine", *words]) == 0
    assert {run.name for run in bench.runs()} == {"ComplEx_toy_0", "ComplEx_mine_0"}


@pytest.mark.parametrize(
    ("kind", "norm", "more", "message"),
    [
        ("conve", None, {}, "kgdist has no model as LibKGE's conve; those that can be taken: complex"),
        ("transe", 3.0, {}, "transe with l_norm 3.0 scores otherwise"),
        ("rotate", 2.0, {}, "rotate with l_norm 2.0 scores otherwise"),
        ("transe", None, {}, "transe with l_norm None scores otherwise"),
        ("distmult", None, {"model": (OrderedDict(), {})}, "has no rows of numbers _entity_embedder"),
        ("distmult", None, {"model": ({"_entity_embedder.projection.weight": torch.ones(2)}, {})}, "only rows can be taken over"),
        ("distmult", None, {"model": None}, "it has no model with options"),
        ("distmult", None, {"dataset": {"meta": {"entity_ids": ["a", "a"], "relation_ids": []}}}, "name 'a' appears twice"),
        ("distmult", None, {"dataset": {"meta": {"entity_ids": ["a"], "relation_ids": ["b"]}}}, "rows of 7 entities, but there"),
    ],
)
def test_what_scores_otherwise_is_refused(
    tmp_path: Path, kind: str, norm: float | None, more: dict[str, Any], message: str
) -> None:
    file = checkpoint(tmp_path / libkge.BEST, kind, norm, **more)
    with pytest.raises(CheckpointError, match=message):
        libkge.read(file, {}, None if "dataset" in more else NAMES)


class Code:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_an_older_torch_does_not_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = checkpoint(tmp_path / libkge.BEST, "distmult", None)
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(CheckpointError, match="reading it safely takes torch 2.6, this is 2.5.1"):
        libkge.read(file, {}, NAMES)


def test_no_code_of_a_checkpoint_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    file = checkpoint(tmp_path / libkge.BEST, "distmult", None, valid_trace=[Code(trap)])
    with pytest.raises(CheckpointError, match=r"cannot be read as a checkpoint of LibKGE \(it holds \w+.mkdir, which might run"):
        libkge.read(file, {}, NAMES)
    with file.open("wb") as stream:
        pickle.dump({"model": Code(trap)}, stream)
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint of LibKGE"):
        libkge.read(file, {}, NAMES)
    assert not trap.exists()
    for raw in (b"", b"\0" * 99, checkpoint(file, "distmult", None).read_bytes()[:700]):
        file.write_bytes(raw)
        with pytest.raises(CheckpointError, match="cannot be read as a checkpoint of LibKGE"):
            libkge.read(file, {}, NAMES)
