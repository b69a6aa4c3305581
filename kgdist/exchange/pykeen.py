"""A model of PyKEEN as one to adopt, where its mathematics is ours.

PyKEEN keeps models as pickles, which run code when they are read; kgdist never reads one. examples/from_pykeen/arrays.py, run
where PyKEEN is at home, writes what is read here: the representations as PyKEEN scores with them (`entity_<i>.npy`,
`relation_<i>.npy`), and model.json: which interaction it is, and its scores of some triples, which ours must equal. The names are
in training_triples/, where PyKEEN put them.

| PyKEEN (pykeen.nn.modules) | here | stored as |
|---|---|---|
| TransE, p = 1 | TransE_l1 | h, r, t as they are |
| TransE, p = 2, not squared | TransE_l2 | as they are |
| DistMult | DistMult | as they are |
| ComplEx: Re(h r conj(t)) | ComplEx | real parts, then imaginary parts |
| RESCAL: h^T M t | RESCAL | matrices row by row |
| SimplE to 1.10: (h_0 r_0 t_1 + t_0 r_1 h_1) / 2 | SimplE | as head, then as tail; relation, then its inverse |
| SimplE of 1.11: (h_0 r_0 t_0 + t_1 r_1 h_1) / 2 | DistMult | the two vectors side by side; those of relations halved |
| PairRE, p = 1, entities of length 1 | PairRE | entities as they are; relations for heads, then for tails |
| RotatE, p = 1: sum of moduli | RotatE | entities as ComplEx; relations as phases in units of init_range / pi |

Others differ: RotatE of PyKEEN 1.11 takes the root of the sum of squares, whatever its p says; TransR shortens what it projects;
a squared norm orders as the norm but is another number. PyKEEN's distances have no margin: scores here are gamma more.

With inverse triples (`create_inverse_triples`) PyKEEN's relation r has the rows 2r and 2r + 1, the inverse's, and a missing head
is the missing tail of the inverse: that is --reciprocal here, row by row.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import CheckpointError, DataError
from kgdist.base.files import load_npy, read_json
from kgdist.base.types import RelationRows
from kgdist.data.read.lines import check_file, open_bytes
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange.adopt import Foreign, ForeignTable, check
from kgdist.models.registry import model_of
from kgdist.options.config import Config

FACTS = "model.json"
COMPLEX = ("ComplEx", "RotatE")
TOLERANCE = 1e-3  # between scores in float32
UNIT = 1e-3  # how far from 1 the modulus of a RotatE relation, or the length of a PairRE entity, may be


def read(folder: Path, config: Config, names: tuple[Vocabulary, Vocabulary] | None) -> Foreign:
    """The model in `folder`; `config` has the data set it was trained on. `names` win over those in training_triples/.

    Raises CheckpointError for a model that scores otherwise than ours do, and for arrays that are missing or do not fit together;
    DataError for maps that cannot be read.
    """
    if not (folder / FACTS).exists():
        hint = "examples/from_pykeen/arrays.py, run where PyKEEN is installed, writes it; pickles are not read"
        raise CheckpointError(f"{folder / FACTS}: no such file; {hint}")
    facts = read_json(folder / FACTS)
    kinds = _models(folder / FACTS, facts)
    config = config.replace(reciprocal=bool(facts.get("inverse_triples")))
    own = names or (
        _labels(folder / "training_triples/entity_to_id.tsv.gz"),
        _labels(folder / "training_triples/relation_to_id.tsv.gz"),
    )
    found = [_as_ours(folder, model, pieces, config, own) for model, pieces in kinds]
    right = [model for model in found if _agrees(model, folder / FACTS, facts.get("probe"))]
    if not right:
        raise CheckpointError(
            f"{folder / FACTS}: the scores that PyKEEN computed are not those of {found[0].config.model_name} here"
        )
    return right[0]


def _as_ours(folder: Path, model: str, pieces: int, config: Config, names: tuple[Vocabulary, Vocabulary]) -> Foreign:
    """The arrays as rows of our `model`; PyKEEN has so many `pieces` of each relation, and of each entity but PairRE's."""
    counts = {"entity": 1 if model == "PairRE" else pieces, "relation": pieces}
    entities, relations = ([_array(folder, kind, i, model) for i in range(count)] for kind, count in counts.items())
    for kind, vocabulary, array in zip(("entity", "relation"), names, (entities[0], relations[0]), strict=True):
        twice = config.reciprocal and kind == "relation"
        if (2 if twice else 1) * len(vocabulary) != len(array):
            found = f"{len(array):,} rows, but there are {len(vocabulary):,} names{', each of two rows' if twice else ''}"
            raise CheckpointError(f"{folder / kind}_0.npy: {found}")
    parts = {kind: count * (2 if model == "ComplEx" else 1) for kind, count in counts.items()}
    double_ent, double_rel = parts["entity"] == 2 or model == "RotatE", parts["relation"] == 2
    config = config.replace(model_name=model, hidden_dim=entities[0].shape[1], double_ent=double_ent, double_rel=double_rel)
    halved = 0.5 if (model, pieces) == ("DistMult", 2) else 1.0
    tables = {"entity": _table(entities, model), "relation": _table(relations, model, halved)}
    if model == "PairRE":
        tables["entity"] = _units(folder, tables["entity"])
    if model == "RotatE":
        tables["relation"] = _phases(folder, relations[0], config.init_range)
    made = Foreign(config, tables, *names)
    check(made)
    return made


def _agrees(model: Foreign, path: Path, probe: object) -> bool:
    """Whether our scores of the triples in `probe`, rows [head, relation, tail, score], are those, but for the margin."""
    rows = np.array(probe, np.float64) if isinstance(probe, list) and probe else np.zeros(0)
    sizes = np.array([len(model.entities), model.tables["relation"].rows, len(model.entities)])
    if rows.ndim != 2 or rows.shape[1] != 4 or not ((rows[:, :3] >= 0) & (rows[:, :3] < sizes)).all():
        raise CheckpointError(f"{path}: probe is not a list of [head, relation, tail, score]")
    made = model_of(model.config)
    ids = rows[:, :3].astype(np.int64)  # int64[n, 3]

    def read(table: str, numbers: np.ndarray) -> torch.Tensor:
        found = np.concatenate([model.tables[table].read(number, number + 1) for number in numbers.tolist()])
        return torch.from_numpy(found.astype(np.float32))

    relation = RelationRows({"relation": read("relation", ids[:, 1])}, torch.arange(len(ids)))
    ours = made.score(read("entity", ids[:, 0]), relation, read("entity", ids[:, 2])) - made.offset
    theirs = rows[:, 3]
    return bool(np.allclose(ours.numpy(), theirs, rtol=TOLERANCE, atol=TOLERANCE * np.abs(theirs).max()))


def _models(path: Path, facts: Any) -> list[tuple[str, int]]:
    """Our models that can score as the one in model.json, and how many vectors that has; CheckpointError when there is none."""
    if not isinstance(facts, dict) or not isinstance(facts.get("interaction"), str):
        raise CheckpointError(
            f"{path}: does not say which interaction the model has; write it with examples/from_pykeen/arrays.py"
        )
    name, p, squared = facts["interaction"].removesuffix("Interaction"), facts.get("p"), bool(facts.get("power_norm"))
    if name == "SimplE":
        return [("SimplE", 2), ("DistMult", 2)]
    if name in ("DistMult", "ComplEx", "RESCAL"):
        return [(str(name), 1)]
    if name == "PairRE" and p == 1:
        return [("PairRE", 2)]
    if name in ("TransE", "RotatE") and p == 1:  # the first power is the norm itself
        return [("TransE_l1" if name == "TransE" else "RotatE", 1)]
    if name == "TransE" and p == 2 and not squared:
        return [("TransE_l2", 1)]
    why = {
        "TransE": f"p = {p}{', squared,' if squared else ''} is neither the L1 nor the L2 norm",
        "PairRE": f"p = {p} is not the L1 norm (p = 1), which PairRE is here",
        "RotatE": f"p = {p} is not the sum of moduli (p = 1), which RotatE is here",
        "TransR": "PyKEEN shortens projected entities to length 1",
    }.get(str(name), "kgdist has no model of that name")
    raise CheckpointError(f"{path}: {name} cannot be taken over: {why}")


def _array(folder: Path, kind: str, number: int, model: str) -> np.ndarray:
    """float[n, d], complex[n, d], or float[n, d, d] for the relations of RESCAL."""
    path = folder / f"{kind}_{number}.npy"
    array = load_npy(path, mmap=True)
    wanted, axes = "complex" if model in COMPLEX else "float", 3 if (model, kind) == ("RESCAL", "relation") else 2
    if array.dtype.kind != wanted[0] or array.ndim != axes or not array.size:
        shape = "n, d, d" if axes == 3 else "n, d"
        raise CheckpointError(f"{path}: expected {wanted}[{shape}] for {model}, found {array.dtype}{list(array.shape)}")
    return array


def _table(parts: list[np.ndarray], model: str, factor: float = 1.0) -> ForeignTable:
    """Vectors side by side, times `factor`: real and imaginary parts, or the two roles of SimplE."""
    if any(part.shape != parts[0].shape for part in parts):
        raise CheckpointError(
            f"the two vectors of {model} have different shapes: {', '.join(str(list(part.shape)) for part in parts)}"
        )
    rows, width = len(parts[0]), math.prod(parts[0].shape[1:])

    def read(start: int, stop: int) -> np.ndarray:
        columns = [part[start:stop].reshape(stop - start, width) for part in parts]
        return factor * np.concatenate(
            [half for x in columns for half in ((x.real, x.imag) if model in COMPLEX else (x,))], axis=1
        )

    return ForeignTable(rows, width * len(parts) * (2 if model in COMPLEX else 1), read)


def _phases(folder: Path, relations: np.ndarray, init_range: float) -> ForeignTable:
    """The angles of numbers of modulus 1, in units of init_range / pi."""

    def read(start: int, stop: int) -> np.ndarray:
        block = relations[start:stop].astype(np.complex128)
        off = np.abs(np.abs(block) - 1).max()
        if not off <= UNIT:
            raise CheckpointError(
                f"{folder / 'relation_0.npy'}: a relation of RotatE has modulus 1, one here is {off:.3g} away from it"
            )
        return np.angle(block) * (init_range / math.pi)

    return ForeignTable(len(relations), relations.shape[1], read)


def _units(folder: Path, entities: ForeignTable) -> ForeignTable:
    """The rows, all of length 1: here they are scored as if they were."""

    def read(start: int, stop: int) -> np.ndarray:
        block = entities.read(start, stop)
        off = np.abs(np.linalg.norm(block, axis=1) - 1).max()
        if not off <= UNIT:
            raise CheckpointError(
                f"{folder / 'entity_0.npy'}: an entity of PairRE has length 1 here, one there is {off:.3g} away from it"
            )
        return block

    return ForeignTable(entities.rows, entities.width, read)


def _labels(path: Path) -> Vocabulary:
    """The names in an `id<TAB>label` map of PyKEEN's, which pandas wrote: a header, and CSV's quotes where a name needs them."""
    check_file(path, "the lines `id<TAB>label` that PyKEEN saves with a model")
    names: list[str] = []
    with open_bytes(path) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as text:
        try:
            for number, row in enumerate(csv.reader(text, delimiter="\t", strict=True)):
                if number == 0 and row == ["id", "label"]:
                    continue
                if number == 0 or len(row) != 2 or row[0] != str(number - 1):
                    wanted = "the header id, label" if number == 0 else f"id {number - 1} and a label"
                    raise DataError(path, f"expected {wanted}, found {row!r:.80}", line=number + 1)
                names.append(row[1])
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(path, f"cannot be read ({error})", line=len(names) + 2) from error
    try:
        return Vocabulary.from_names(names)
    except ValueError as error:
        raise DataError(path, str(error)) from error
