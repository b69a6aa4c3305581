"""Rows that a training starts at instead of random ones: vectors of entities that the user has (`--init_vectors`), or the rows of
another run (`--init_from`). In blocks, by names, for tables of this machine as for those of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch

from kgdist.base.errors import DataError, OptionError, counted
from kgdist.base.log import bar, log
from kgdist.data.vectors import EntityVectors
from kgdist.data.vocabulary import Vocabulary
from kgdist.models.base import Model
from kgdist.options.config import Config
from kgdist.runs import rundir
from kgdist.runtime.checks import different

OWN = 1 << 12  # rows that tell how large a model's own start is; a launcher makes them for that
NUMBERS = 1 << 20  # of a block
CHANGED = "was changed while it was read; start again when it is whole"
Names = tuple[Vocabulary, Vocabulary]  # of entities and of relations
Say = Callable[[str], None]


class Rows(NamedTuple):
    """Some of a table's rows, or their first columns."""

    table: str
    ids: np.ndarray  # int64[n] of entities or relations, as they are numbered by their names
    values: torch.Tensor  # float32[rows of these ids, <= width]


class Source(Protocol):
    """Where such rows come from. It has been looked at, and said what is wrong with it, when it is made."""

    def rows(self) -> Iterator[Rows]:
        """All of them; what has come of it is said in the end. May be asked again."""


def brought(config: Config, model: Model, names: Names, own: Callable[[], torch.Tensor], say: Say) -> Source | None:
    """What the user brings, if anything. `own`: float32[n, D], entities' rows as the model itself starts them. Raises
    KgdistError when it does not fit."""
    if config.init_vectors:
        least = FROZEN if config.freeze == "entities" and model.compare == "dot" else 0.0
        return _Vectors(EntityVectors(config.init_vectors, names[0]), own(), say, least)
    if config.init_from:
        return _Run(config, model, names, say)
    if config.freeze == "entities":
        log.warning("--freeze entities keeps rows that are random; --init_vectors or --init_from starts them at rows of yours")
    return None


# Root mean square of rows that stay as they are, where score functions are products: others grow from .001 or so. Rows of a
# trained ComplEx on UMLS, frozen: .79 at .005 to .1, .95 at .3 and .6; DistMult with these .67 to .68, .84 and .87.
FROZEN = 0.3


class _Vectors:
    """Vectors as rows of D numbers: their first D principal axes where they are wider (with no more axes than they have), else
    all of their numbers, for the first columns.

    They are multiplied by one number, so that their root mean square is that of the model's own start: distances and angles keep
    their proportions; but it is `least` at least. Two passes over the file; memory is a block and, of wider ones, two matrices
    width x width. Raises DataError.
    """

    def __init__(self, vectors: EntityVectors, own: torch.Tensor, say: Say, least: float) -> None:
        self._vectors, self._say, dim, count, width = vectors, say, own.shape[1], 0, 0
        total, products = np.zeros(0), np.zeros((0, 0))
        for ids, values in bar(vectors.read(), desc="--init_vectors", unit=" blocks"):
            if not width:
                width = values.shape[1]
                total, products = np.zeros(width), np.zeros((width, width) if width > dim else width)
            wide = values.astype(np.float64)
            total += wide.sum(0)
            products += wide.T @ wide if width > dim else (wide**2).sum(0)
            count += len(ids)
        self._mean, self._axes, self._kept = np.zeros(width), None, f"{width} numbers"
        if width > dim:
            self._mean = total / count
            values, axes = np.linalg.eigh(products / count - np.outer(self._mean, self._mean))
            values, axes = values[::-1], axes[:, ::-1]
            used = min(dim, int((values > 1e-9 * max(values[0], 1e-300)).sum()))
            values, axes, share = values[:used], axes[:, :used], values[:used].sum() / max(values.sum(), 1e-300)
            self._axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(used)])  # else a sign is a matter of luck
            power = float(values.mean()) if used else 0.0
            self._kept = f"{used} principal axes of {width} numbers, {share:.1%} of the variance"
        else:
            power = products.sum() / (count * width)
            if count > 1 and (products / count - (total / count) ** 2).sum() <= 1e-12 * power * width:
                power = 0.0
        if power <= 1e-300:
            raise DataError(vectors.path, "all vectors are the same, so they tell entities apart no better than none")
        self._factor = max(least, float(own.double().square().mean().sqrt())) / power**0.5
        self._count = count

    def rows(self) -> Iterator[Rows]:
        vectors, read = self._vectors, 0
        for ids, values in bar(vectors.read(), desc="--init_vectors", unit=" blocks"):
            read += len(ids)
            if values.shape[1] != len(self._mean) or read > self._count:
                raise DataError(vectors.path, CHANGED)
            made = (values - self._mean) @ self._axes if self._axes is not None else values.astype(np.float64)
            yield Rows("entity", ids, torch.from_numpy((made * self._factor).astype(np.float32)))
        if read < self._count:
            raise DataError(vectors.path, CHANGED)
        count, entities = self._count, len(vectors.entities)
        others = f"; {entities - count} have none and start at random" if count < entities else ""
        self._say(
            f"--init_vectors: {count} of {entities} entities start at their vectors in {vectors.path} ({self._kept}){others}"
        )
        if vectors.unknown:
            said = f"{counted(vectors.unknown, 'vector')} of names that the graph does not have"
            log.warning("%s: %s passed over; the first is %s", vectors.path, said, vectors.first)
        if vectors.repeated:
            said = f"{counted(vectors.repeated, 'vector')} of names that came before"
            log.warning("%s: %s passed over", vectors.path, said)


class _Run:
    """The rows of every name that the run `--init_from` knows."""

    def __init__(self, config: Config, model: Model, names: Names, say: Say) -> None:
        self._path, self._model, self._names, self._say = Path(str(config.init_from)), model, names, say
        run = rundir.open_run(self._path)
        if run.vocabularies is None:
            raise OptionError("--init_from", f"{self._path} has no entities.tsv and relations.tsv, so its rows have no names")
        if array := different(run.config, config):
            raise OptionError("--init_from", f"{self._path} was trained with {array}")
        self._known = run.vocabularies
        self._old = rundir.load_tables(run, run.config, model, len(self._known[0]), len(self._known[1]))

    def rows(self) -> Iterator[Rows]:
        model, shapes = self._model, self._model.shapes(len(self._names[0]), len(self._names[1]))
        for table in self._old.names():
            ours, theirs = (each[0 if table == "entity" else 1] for each in (self._names, self._known))
            count, values = 0, self._old.rows[table]
            step = max(1, NUMBERS // values.shape[1])
            for start in range(0, len(ours), step):
                some = np.arange(start, min(start + step, len(ours)))
                found = theirs.find(ours.names(some))  # int64, -1: not there
                places = np.flatnonzero(found >= 0)
                there = torch.from_numpy(model.rows_of(table, found[places]))
                count += len(there)
                if len(places):
                    yield Rows(table, some[places], values[there])
            if table == "entity" and not count:
                raise OptionError("--init_from", f"{self._path} knows none of these entities; name a run that shares some")
            of = f"{count} of {shapes[table][0]} rows of {table}"
            self._say(f"--init_from: {of} taken from {self._path}, the others start at random")
