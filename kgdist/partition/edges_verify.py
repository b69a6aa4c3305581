"""Proves that self-sufficient partitions hold a data set: each triple core in exactly one, each with all it needs and no more.

Who trains on what is read from the partitions; what follows from it is made again and compared. Memory: a byte a triple in a
temporary file, and that of the expansion.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.data.dataset import Dataset
from kgdist.kernels.vertex_cuts import OPEN
from kgdist.partition.edges import scratch
from kgdist.partition.edges_folder import SETS, EdgePartition
from kgdist.partition.expansion import EdgeSizes, Expansion, needs
from kgdist.partition.graph import PIECE
from kgdist.partition.verify import open_each
from kgdist.partition.write import EVALUATED


def open_edges(root: Path, *, verify: bool = False) -> list[EdgePartition]:
    """All partitions in `root`. Raises CheckpointError unless partition_0 to partition_<k-1> are there and belong together."""
    return open_each(root, functools.partial(EdgePartition.open, verify=verify), verify=verify)


def verify_edges(root: Path, dataset: Dataset) -> tuple[list[EdgePartition], EdgeSizes]:
    """Read the partitions in `root` and compare them with `dataset`; returns them and their sizes, counted anew.

    Raises CheckpointError naming the first thing that is wrong.
    """
    parts = open_edges(root, verify=True)
    common = parts[0].manifest.common
    if common.digest != dataset.digest:
        raise CheckpointError(
            f"{root}: partitions of another graph than this {dataset.name}: has the data changed, or is it read by other options?"
        )
    with scratch(len(dataset.train)) as assigned:
        _divided(parts, assigned)
        expansion = Expansion(dataset.train.array, assigned, len(dataset.entities), len(parts), common.reach)
        for each in parts:
            if not np.array_equal(np.concatenate(expansion.entities(each.part)), each.entities):
                what = f"not the entities that its core triples reach in {common.reach.hops} hops"
                raise CheckpointError(f"{each.folder / 'entities.npy'}: {what}")
        _support(parts, expansion)
        for each in parts:
            _same_triples(each, dataset)
        sizes = EdgeSizes.of(expansion)
    if sizes.to_json() != common.sizes:
        raise CheckpointError(f"{root}: partition.json names other sizes")
    for each in parts:
        for split in EVALUATED:
            wanted = dataset.splits.get(split)
            held = each.splits.get(split)
            if (wanted is None) != (held is None) or (wanted and held and not np.array_equal(wanted.array, held.array)):
                raise CheckpointError(f"{each.folder / split}.npy: not the triples of the data set")
    for mine, theirs in zip(parts[0].vocabularies(), (dataset.entities, dataset.relations), strict=True):
        if mine.digest != theirs.digest:
            raise CheckpointError(f"{parts[0].folder}: names other than those of the data set")
    return parts, sizes


def _divided(parts: list[EdgePartition], assigned: np.ndarray) -> None:
    """The partition that trains on each triple, to assigned uint8[T]. Raises CheckpointError unless there is exactly one."""
    assigned[:] = OPEN
    for each in parts:
        for name, numbers in zip(SETS, (each.core_ids, each.support_ids), strict=True):
            last = -1
            for start in range(0, len(numbers), PIECE):
                own = numbers[start : start + PIECE]
                if own[0] <= last or own[-1] >= len(assigned) or (np.diff(own) <= 0).any():
                    raise CheckpointError(f"{each.folder / name}.ids.npy: its numbers must ascend, within 0..{len(assigned) - 1}")
                last = int(own[-1])
                if name == "core":
                    if (assigned[own] != OPEN).any():
                        raise CheckpointError(
                            f"{each.folder / 'core.ids.npy'}: has a triple that another partition trains on, too"
                        )
                    assigned[own] = each.part
    for start in range(0, len(assigned), PIECE):
        missing = assigned[start : start + PIECE] == OPEN
        if missing.any():
            raise CheckpointError(f"{parts[0].folder.parent}: no partition trains on triple {start + int(missing.argmax())}")


def _support(parts: list[EdgePartition], expansion: Expansion) -> None:
    """Raises CheckpointError unless the support of each partition is what its core entities need."""
    at = [0] * len(parts)
    for piece in expansion:
        for each in parts:
            wanted = piece.start + np.flatnonzero(needs(piece, each.part))
            begin, end = at[each.part], at[each.part] + len(wanted)
            found = each.support_ids[begin:end]
            if not np.array_equal(found, wanted):
                same = found == wanted[: len(found)]
                first = int(wanted[len(found) if same.all() else int((~same).argmax())])
                raise CheckpointError(
                    f"{each.folder / 'support.ids.npy'}: triple {first} of the train split, which messages to its core entities "
                    "need, should come next; make the partitions again"
                )
            at[each.part] = end
    for each in parts:
        if at[each.part] != len(each.support_ids):
            extra = len(each.support_ids) - at[each.part]
            raise CheckpointError(f"{each.folder / 'support.ids.npy'}: holds {extra} triples that no core entity needs")


def _same_triples(each: EdgePartition, dataset: Dataset) -> None:
    """Raises CheckpointError unless triples and weights are those of the data set at their numbers."""
    train = dataset.train
    for name, numbers, there in zip(SETS, (each.core_ids, each.support_ids), (each.core, each.support), strict=True):
        if (there.weights is None) != (train.weights is None):
            raise CheckpointError(f"{each.folder}: has weights and the data set has none, or the reverse")
        for start in range(0, len(numbers), PIECE):
            piece = slice(start, start + PIECE)
            own, rows = numbers[piece], there.array[piece].copy()
            ends = rows[:, ::2]
            if ends.min() < 0 or ends.max() >= len(each.entities):
                raise CheckpointError(f"{each.folder / name}.npy: has a local id that is not in 0..{len(each.entities) - 1}")
            rows[:, ::2] = each.entities[ends]
            if not np.array_equal(rows, train.array[own]):
                raise CheckpointError(f"{each.folder / name}.npy: other triples than the data set's from {start} on")
            mine, theirs = (None if of is None else of[at] for of, at in ((there.weights, piece), (train.weights, own)))
            if mine is not None and theirs is not None and not np.array_equal(mine, theirs):
                raise CheckpointError(f"{each.folder / name}.weights.npy: other weights from {start} on")
