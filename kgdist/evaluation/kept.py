"""The ranks behind a test.json, kept beside it, so that another run can be held against this one triple by triple.

An .npz of two arrays: `triples` int32[T, 3], head, relation and tail by id; `ranks` float32[2, T], the realistic ranks of their
heads and of their tails, exact below 2^23.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kgdist.base.errors import CheckpointError, KgdistError
from kgdist.base.files import atomic_write
from kgdist.base.log import log
from kgdist.evaluation.ranks import Ranks

FILE = "test.ranks.npz"


class Kept(NamedTuple):
    """What is in the file."""

    triples: np.ndarray  # int32[T, 3]
    ranks: np.ndarray  # float32[2, T]


def keep(folder: Path, ranks: Ranks) -> None:
    """Write the ranks of `evaluate` into a run's folder. That this fails is a warning: the metrics say more."""
    half = len(ranks) // 2
    triples = np.stack([ranks.head[:half], ranks.relation[:half], ranks.tail[:half]], axis=1)
    try:
        with atomic_write(folder / FILE) as file:
            np.savez_compressed(file, triples=triples, ranks=ranks.rank().astype(np.float32).reshape(2, half))
    except KgdistError as error:
        log.warning("%s; kgdist-compare cannot tell whether this run differs from others", error)


def kept(folder: Path, mrr: float) -> Kept | None:
    """What `keep` wrote beside metrics with that realistic MRR; None where nothing was, or beside other metrics.

    Raises CheckpointError for a file that holds something else.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            triples, ranks = file["triples"], file["ranks"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{path}: not readable as ranks ({error}); run kgdist-eval {folder} to make it again") from error
    right = triples.dtype == np.int32 and ranks.dtype == np.float32 and triples.shape[1:] == (3,) and len(triples) > 0
    if not right or ranks.shape != (2, len(triples)) or not (ranks >= 1).all():
        raise CheckpointError(f"{path}: holds no ranks; run kgdist-eval {folder} to make it again")
    return Kept(triples, ranks) if abs((1 / ranks.astype(np.float64)).mean() - mrr) < 1e-6 else None
