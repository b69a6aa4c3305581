"""A checkpoint of LibKGE as a model to adopt.

Checkpoints are pickles. They are read by torch's reader of weights, which runs no code that is in them: it makes tensors, lists,
dictionaries, numbers and text, and what is allowed besides, here LibKGE's `Config`, as a mere holder of options, and the version
of torch. One that holds anything else is refused.

| LibKGE (kge.model) | here | stored as |
|---|---|---|
| complex | ComplEx | real parts, then imaginary parts |
| distmult | DistMult | as they are |
| rescal | RESCAL: s^T M o | matrices row by row |
| transe, l_norm 1 or 2 | TransE_l1, TransE_l2 | as they are |
| rotate, l_norm 1 | RotatE | entities as they are; relations, which are radians, in units of init_range / pi |
| reciprocal_relations_model over one of these | the same with --reciprocal | relation r has row r, its inverse row R + r |

Rows are those of its `lookup_embedder`. LibKGE's distances have no margin: scores here are gamma more.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import CheckpointError
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange.adopt import Foreign, ForeignTable, Names, check
from kgdist.options.config import Config

SAFE = 2, 6  # the release of torch from which its reader of weights runs no code (CVE-2025-32434)
BEST = "checkpoint_best.pt"
FILES = ("entity_ids.del", "relation_ids.del", "train.del", "valid.del", "test.del")  # of a data set
MODELS = {"complex": "ComplEx", "distmult": "DistMult", "rescal": "RESCAL", "transe": "TransE_l{}", "rotate": "RotatE"}
RECIPROCAL = "reciprocal_relations_model"
ROWS = "_{}_embedder._embeddings.weight"  # of a model's state, by kind


class _Config:
    """What LibKGE's `Config` becomes: attributes, of which `options` is one."""

    options: object = None


_Config.__module__, _Config.__name__, _Config.__qualname__ = "kge.config", "Config", "Config"  # by which the reader knows it


def checkpoint_in(place: Path) -> Path | None:
    """The checkpoint that `place` is, or the best one in that folder; None where there is none."""
    if place.suffix == ".pt" and place.is_file():
        return place
    return place / BEST if (place / BEST).is_file() else None


def read(file: Path, given: dict[str, Any], names: Names | None) -> Foreign:
    """The model in a checkpoint. `given`: options of the data set it was trained on; its own names and files are taken from the
    folder `data_path`, where that has them. `names` win.

    Raises CheckpointError for a file that cannot be read safely, and for a model that scores otherwise than ours do; DataError
    for maps that cannot be read.
    """
    options, state, ids = _loaded(file)
    kind, of = options.get("model"), options
    reciprocal = kind == RECIPROCAL
    if reciprocal:
        of = _dict(_dict(options.get(RECIPROCAL)).get("base_model"))
        kind = of.get("type")
    norm = of.get("l_norm") if reciprocal else None
    model = _model(file, kind, norm if norm is not None else _dict(options.get(str(kind))).get("l_norm"))
    entities, relations = (_rows(file, state, noun, reciprocal) for noun in ("entity", "relation"))
    folder = Path(str(given["data_path"])) if "data_path" in given else None
    if folder is not None and all((folder / name).is_file() for name in FILES):
        given = {"format": "udd_hrt", "data_files": FILES} | given
    dataset = _dict(options.get("dataset")).get("name")
    double = model == "RotatE"
    config = Config(
        **{"dataset": dataset if isinstance(dataset, str) else "libkge"} | given,
        model_name=model,
        hidden_dim=entities.shape[1] // (2 if double else 1),
        double_ent=double,
        reciprocal=reciprocal,
    )
    scale = config.init_range / math.pi if model == "RotatE" else 1.0
    tables = {"entity": _table(entities), "relation": _table(relations, scale, reciprocal=reciprocal)}
    found = names or ids or _names(file, folder)
    for noun, vocabulary, table in zip(("entities", "relations"), found, tables.values(), strict=True):
        count = table.rows // (2 if reciprocal and noun == "relations" else 1)
        if len(vocabulary) != count:
            raise CheckpointError(f"{file}: has rows of {count:,} {noun}, but there are {len(vocabulary):,} names")
    made = Foreign(config, tables, *found)
    check(made)
    return made


def _loaded(file: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], Names | None]:
    """Options, state of the model, and names, which only a packaged checkpoint has."""
    allowed: list[Any] = [_Config, torch.torch_version.TorchVersion]
    if tuple(map(int, torch.__version__.split(".")[:2])) < SAFE:
        raise CheckpointError(f"{file}: reading it safely takes torch {'.'.join(map(str, SAFE))}, this is {torch.__version__}")
    try:
        with torch.serialization.safe_globals(allowed):
            saved = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes of the reader
        code = re.search(r"GLOBAL (\S+)", str(error))
        why = f"it holds {code[1]}, which might run code" if code else " ".join(str(error).split())[:120]
        raise CheckpointError(f"{file}: cannot be read as a checkpoint of LibKGE ({why})") from error
    saved = _dict(saved)
    options, model = getattr(saved.get("config"), "options", None), saved.get("model")
    state = model[0] if isinstance(model, tuple) and model else None
    if not isinstance(options, dict) or not isinstance(state, dict):
        raise CheckpointError(f"{file}: is not a checkpoint of LibKGE's trained models: it has no model with options")
    rows = {str(name).replace("_embedder.embeddings.", "_embedder._embeddings."): each for name, each in state.items()}
    meta = _dict(_dict(saved.get("dataset")).get("meta"))
    ids = [meta.get(f"{noun}_ids") for noun in ("entity", "relation")]
    try:
        names = [Vocabulary.from_names([str(name) for name in each]) for each in ids if isinstance(each, list)]
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from error
    return options, rows, (names[0], names[1]) if len(names) == 2 else None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _model(file: Path, kind: object, norm: object) -> str:
    """Our model of that kind. Raises CheckpointError."""
    if kind not in MODELS:
        raise CheckpointError(f"{file}: kgdist has no model as LibKGE's {kind}; those that can be taken: {', '.join(MODELS)}")
    if (kind == "transe" and norm not in (1, 2)) or (kind == "rotate" and norm != 1):
        raise CheckpointError(f"{file}: {kind} with l_norm {norm} scores otherwise than any model here")
    return MODELS[str(kind)].format(f"{norm:.0f}" if kind == "transe" else "")


def _rows(file: Path, state: dict[str, torch.Tensor], noun: str, reciprocal: bool) -> np.ndarray:
    """float32[n, width]. Raises CheckpointError for a model that is more than rows."""
    own = [prefix + ROWS.format(each) for each in ("entity", "relation") for prefix in ("", "_base_model.")]
    if other := sorted(state.keys() - {*own}):
        raise CheckpointError(f"{file}: the model has {other[0]}, and only rows can be taken over (lookup_embedder)")
    name = ("_base_model." if reciprocal else "") + ROWS.format(noun)
    found = state.get(name)
    if not isinstance(found, torch.Tensor) or found.ndim != 2 or not found.numel() or not found.is_floating_point():
        raise CheckpointError(f"{file}: has no rows of numbers {name}")
    return found.float().numpy()


def _table(rows: np.ndarray, scale: float = 1.0, *, reciprocal: bool = False) -> ForeignTable:
    """The rows, times `scale`; those of inverse relations, which are the second half, beside their relations'."""
    half = len(rows) // 2

    def read(start: int, stop: int) -> np.ndarray:
        numbers = np.arange(start, stop)
        return scale * rows[numbers // 2 + half * (numbers % 2) if reciprocal else numbers]

    return ForeignTable(len(rows), rows.shape[1], read)


def _names(file: Path, folder: Path | None) -> Names:
    if folder is None or not all((folder / name).is_file() for name in FILES[:2]):
        where = "--data_path, the folder of LibKGE's data set with entity_ids.del and relation_ids.del"
        raise CheckpointError(f"{file}: the names of its ids are not in it; give {where}, or --entity_mfile and --rel_mfile")
    entities, relations = (Vocabulary.read_tsv(folder / name) for name in FILES[:2])
    return entities, relations
