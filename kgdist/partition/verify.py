"""Proves that partition folders hold a data set, all of it and each triple once, by reading everything again.

The triples of a partition keep the order of the data set. So the data set is read once more, divided as entities.npy says, and
each piece must be the next rows of its partition, bit for bit. Filters, categories and names are made again and compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.log import bar
from kgdist.base.types import Side
from kgdist.data.dataset import Dataset, Triples
from kgdist.data.known import KnownTriples
from kgdist.data.statistics import relation_categories
from kgdist.partition.book import Numbering
from kgdist.partition.folder import Partition
from kgdist.partition.graph import Sizes
from kgdist.partition.manifest import numbered
from kgdist.partition.write import EVALUATED, dealt_out, filters


class Opened(Protocol):
    """A partition of whatever kind."""

    folder: Path
    part: int
    graph: str
    manifest: Any


P = TypeVar("P", bound=Opened)


def open_all(root: Path, *, verify: bool = False) -> list[Partition]:
    """All partitions in `root`. Raises CheckpointError unless partition_0 to partition_<k-1> are there and belong together."""
    return open_each(root, functools.partial(Partition.open, verify=verify), verify=verify)


def open_each(root: Path, opened: Callable[[Path], P], *, verify: bool) -> list[P]:
    """As `open_all`, of another kind; `verify`: that its opening takes long."""
    folders = numbered(root)
    if not folders:
        raise CheckpointError(f"{root}: has no folders partition_0, partition_1, ...; kgdist-partition -k makes them")
    watched = bar(folders, desc="hashing the partitions", unit=" folder") if verify else folders
    found = [opened(folder) for folder in watched]
    first, parts = found[0], len(found[0].manifest.common.contents)
    for part in range(parts):
        if part >= len(found) or found[part].folder.name != f"partition_{part}" or found[part].part != part:
            raise CheckpointError(f"{root}: of {parts} partitions, partition_{part} is missing or another's")
    for partition in found:
        if partition.graph != first.graph:
            raise CheckpointError(
                f"{partition.folder}: belongs to another partitioning than {first.folder} (graph {partition.graph[:12]}... and "
                f"{first.graph[:12]}...); make the partitions again"
            )
    return found


def verify(root: Path, dataset: Dataset) -> tuple[list[Partition], Sizes]:
    """Read the partitions in `root` and compare them with `dataset`; returns them and their sizes, counted anew.

    Raises CheckpointError naming the first thing that is wrong.
    """
    partitions = open_all(root, verify=True)
    first = partitions[0]
    if first.manifest.common.digest != dataset.digest:
        raise CheckpointError(
            f"{root}: partitions of another graph than this {dataset.name}: has the data changed, or is it read by other options?"
        )
    numbering = _numbering(partitions, len(dataset.entities), len(dataset.relations))
    if numbering.book != first.book:
        raise CheckpointError(f"{root}: the partition book does not follow from entities.npy and relations.npy")
    _same_triples(partitions, dataset.train, numbering)
    for split, triples in dataset.splits.items():
        renumbered = numbering.renumber(triples.array) if split in EVALUATED else np.empty((0, 3), np.int32)
        for partition in partitions:
            if split not in partition.splits:
                raise CheckpointError(f"{partition.folder}: lacks the split {split}")
            if split in EVALUATED and not np.array_equal(partition.splits[split].array, renumbered):
                raise CheckpointError(f"{partition.folder / split}.npy: not the triples of the data set")
    splits = [split for split in EVALUATED if split in dataset.splits]
    folders = [partition.folder for partition in partitions]
    for split, known in filters(folders, splits, len(dataset.entities), len(dataset.relations)):
        for partition in partitions:
            if not same_answers(known, partition.known(split), partition.splits[split].array):
                raise CheckpointError(f"{partition.folder / split}.known: not the answers that the triples give")
    if not np.array_equal(first.categories(), relation_categories(dataset.train.array, len(dataset.relations))):
        raise CheckpointError(f"{first.folder / 'categories.npy'}: not the categories of the data set")
    if not np.array_equal(first.originals(), numbering.entities):
        raise CheckpointError(f"{first.folder / 'originals.npy'}: not what the entities.npy of all partitions say")
    for mine, theirs in zip(first.vocabularies(), (dataset.entities, dataset.relations), strict=True):
        if mine.digest != theirs.digest:
            raise CheckpointError(f"{first.folder}: names other than those of the data set")
    return partitions, _sizes(partitions, numbering, dataset)


def _numbering(partitions: Sequence[Partition], entities: int, relations: int) -> Numbering:
    """The numbering that the folders' own ids amount to."""
    assigned = np.full(entities, -1, np.int32)
    for partition in partitions:
        own = partition.entities
        file = partition.folder / "entities.npy"
        if len(own) and not (own.min() >= 0 and own.max() < entities and (np.diff(own) > 0).all()):
            raise CheckpointError(f"{file}: its ids must ascend, within 0..{entities - 1}")
        if (assigned[own] >= 0).any():
            raise CheckpointError(f"{file}: owns an entity that another partition owns, too")
        assigned[own] = partition.part
    if (assigned < 0).any():
        raise CheckpointError(f"{partitions[0].folder.parent}: no partition owns entity {int(assigned.argmin())}")
    numbering = Numbering.of(assigned, len(partitions), relations)
    found = np.concatenate([partition.relations for partition in partitions])
    if not np.array_equal(found, numbering.relations):
        raise CheckpointError(f"{partitions[0].folder.parent}: the relations are not dealt out in turn")
    return numbering


def _same_triples(partitions: Sequence[Partition], train: Triples, numbering: Numbering) -> None:
    """Each triple of `train` is the next of the partition that owns its tail, and none has more."""
    at = [0] * len(partitions)
    if (train.weights is None) != (partitions[0].train.weights is None):
        raise CheckpointError(f"{partitions[0].folder}: has weights and the data set has none, or the reverse")
    for dealt in dealt_out(train, numbering, "comparing triples"):
        for part, (rows, weights) in enumerate(dealt):
            there, begin = partitions[part].train, at[part]
            at[part] = end = begin + len(rows)
            if not np.array_equal(there.array[begin:end], rows):
                raise CheckpointError(
                    f"{partitions[part].folder / 'train.npy'}: other triples than the data set's from {begin} on"
                )
            if weights is not None and there.weights is not None and not np.array_equal(there.weights[begin:end], weights):
                raise CheckpointError(f"{partitions[part].folder / 'train.weights.npy'}: other weights from {begin} on")
    for part, partition in enumerate(partitions):
        if at[part] != len(partition.train):
            raise CheckpointError(f"{partition.folder / 'train.npy'}: holds {len(partition.train) - at[part]} triples too many")


def same_answers(one: KnownTriples, other: KnownTriples, triples: np.ndarray) -> bool:
    """Whether two filters answer the queries of `triples` int32[T, 3] alike."""
    for side in Side:
        query = side.other.pick(triples[:, 0], triples[:, 2]), triples[:, 1]
        pairs = zip(one.answers(side, *query), other.answers(side, *query), strict=True)
        if not all(np.array_equal(mine, theirs) for mine, theirs in pairs):
            return False
    return True


def _sizes(partitions: Sequence[Partition], numbering: Numbering, dataset: Dataset) -> Sizes:
    sizes = Sizes.of(dataset.train.array, numbering.assigned, len(partitions), len(dataset.relations))
    if sizes.to_json() != partitions[0].manifest.common.sizes:
        raise CheckpointError(f"{partitions[0].folder.parent}: partition.json names other sizes")
    return sizes
