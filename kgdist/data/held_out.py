"""A data set of train alone divided into train, valid and test, at random and always alike.

A triple's place in a shuffle that the number of triples decides says its split, so that all runs on the same data hold out the
same triples, whatever their --seed. Triples keep their order. Memory: pieces.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import OptionError
from kgdist.base.files import load_npy
from kgdist.base.log import bar
from kgdist.data.cache import Appender
from kgdist.kernels.random import shuffled
from kgdist.options.option import wrong_shares

_PIECE = 1 << 20  # triples looked at once
_SEED = 0
_NAMES = ("train", "valid", "test")
_DRAFT = "divided"  # of the arrays of train while the undivided ones are there


def check_shares(shares: Sequence[float], there: Sequence[str]) -> None:
    """Raises OptionError for shares that cannot be, or where the splits `there` exist besides train."""
    if wrong := wrong_shares(shares):
        raise OptionError("--split", wrong)
    if there:
        raise OptionError("--split", f"the data set has a {there[0]} split already; drop it")


def hold_out(folder: Path, shares: Sequence[float]) -> tuple[dict[str, Any], list[str]]:
    """Divide the train split in `folder` by `shares` of train, valid and test; returns the entries of meta.json and the digests
    of the arrays, as reading them from files would. Weights stay with train.

    Raises OptionError where a share comes to no triple.
    """
    whole = load_npy(folder / "train.npy", mmap=True)
    file = folder / "train.weights.npy"
    weights = load_npy(file, mmap=True) if file.exists() else None
    counts = _counts(len(whole), shares)
    bounds = np.cumsum(counts)[:-1]
    with contextlib.ExitStack() as stack:
        names = [name for name, count in zip(_NAMES, counts, strict=True) if count]
        drafts = {name: folder / f"{_DRAFT if name == 'train' else name}.npy" for name in names}
        rows = {name: stack.enter_context(Appender(draft, np.int32, 3)) for name, draft in drafts.items()}
        weighed = None if weights is None else stack.enter_context(Appender(folder / f"{_DRAFT}.weights.npy", np.float32))
        progress = stack.enter_context(bar(total=len(whole), desc="dividing train, valid and test", unit=" triples"))
        for start in range(0, len(whole), _PIECE):
            piece = whole[start : start + _PIECE]
            split = np.searchsorted(bounds, shuffled(_SEED, 0, start, start + len(piece), len(whole)), side="right")
            for name, each in rows.items():
                each.append(piece[split == _NAMES.index(name)])
            if weighed is not None and weights is not None:
                weighed.append(weights[start : start + _PIECE][split == 0])
            progress.update(len(piece))
        digests = []
        for name, each in rows.items():
            digests += [name, each.finish()]
            if name == "train" and weighed is not None:
                digests.append(weighed.finish())
    for suffix in (".npy", *([".weights.npy"] if weights is not None else [])):
        os.replace(folder / f"{_DRAFT}{suffix}", folder / f"train{suffix}")
    entries = {name: {"triples": each.rows, "weighted": name == "train" and weights is not None} for name, each in rows.items()}
    return entries, digests


def _counts(triples: int, shares: Sequence[float]) -> list[int]:
    """Triples of train, valid and test."""
    valid, test = (round(triples * share) for share in shares[1:])
    counts = [triples - valid - test, valid, test]
    for name, count, share in zip(_NAMES, counts, shares, strict=True):
        if share > 0 and count < 1:
            raise OptionError("--split", f"{share:g} of {triples} triples for {name} is none")
    return counts
