"""Writes self-sufficient partitions, all or none: the numbers of their triples first, then, one after the other, what these are.

Memory, besides that of the expansion: 4 bytes an entity, and pieces.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.files import check_room, load_npy, write_npy
from kgdist.base.log import bar
from kgdist.data.cache import Appender
from kgdist.data.dataset import Dataset, Triples
from kgdist.partition.edges_folder import SETS, EdgesInCommon
from kgdist.partition.expansion import EdgeSizes, Expansion, needs
from kgdist.partition.graph import PIECE
from kgdist.partition.manifest import digest_of, files_of, folder_of
from kgdist.partition.typed_folder import whole
from kgdist.partition.write import EVALUATED, seal, staged, write_types

BYTES = 12 + 4 + 4  # of a triple, its number and its weight


def write_edges(
    dataset: Dataset,
    expansion: Expansion,
    sizes: EdgeSizes,
    root: Path,
    *,
    method: str,
    source: dict[str, Any] | None = None,
    types: np.ndarray | None = None,
) -> list[Path]:
    """Write folders partition_<p> in `root`; returns them. What was there before is replaced. `source` are the options that the
    data set was read with, `types` int32[n, 2] the types of its entities.

    Raises OptionError for folders in the way that are no such partitions, KgdistError where they cannot be written.
    """
    splits = {split: triples for split, triples in dataset.splits.items() if split in EVALUATED}
    evaluated = sum(len(triples) for triples in splits.values())
    triples, vertices = sum(sizes.core) + sum(sizes.support), sum(map(sum, sizes.vertices))
    check_room(root / "partition_0", BYTES * triples + 4 * vertices + 12 * evaluated * expansion.parts)
    with staged(root, expansion.parts, kind=EdgesInCommon) as folders:
        _write_numbers(expansion, folders, len(dataset.train))
        for part, folder in enumerate(bar(folders, desc="writing the partitions", unit=" folder")):
            entities = np.concatenate(expansion.entities(part))
            local = np.full(len(expansion.within[0]), -1, np.int32)
            local[entities] = np.arange(len(entities), dtype=np.int32)
            write_npy(folder / "entities.npy", entities)
            for name in SETS:
                _write_triples(folder, name, dataset.train, local)
            for split, held in splits.items():
                write_npy(folder / f"{split}.npy", held.array)
        kinds = write_types(folders, types, np.arange(len(dataset.entities)))
        dataset.entities.save(folders[0], "entity")
        dataset.relations.save(folders[0], "relation")
        files = [files_of(folder) for folder in bar(folders, desc="hashing the partitions", unit=" folder")]
        common = EdgesInCommon(
            dataset.name,
            dataset.digest,
            method,
            expansion.reach,
            len(dataset.entities),
            len(dataset.relations),
            {split: len(each) for split, each in dataset.splits.items()},
            dataset.train.weights is not None,
            (dataset.entities.count, dataset.relations.count),
            sizes.to_json(),
            tuple(map(digest_of, files)),
            source or {},
            kinds,
        )
        seal(folders, common, files)
    return [folder_of(root, part) for part in range(expansion.parts)]


def _write_numbers(expansion: Expansion, folders: list[Path], triples: int) -> None:
    """core.ids.npy and support.ids.npy of all partitions, in one pass over the triples."""
    with contextlib.ExitStack() as stack:
        core, support = (
            [stack.enter_context(Appender(folder / f"{name}.ids.npy", whole(triples))) for folder in folders] for name in SETS
        )
        for piece in expansion:
            for part in range(len(folders)):
                core[part].append(piece.start + np.flatnonzero(piece.core == part))
                support[part].append(piece.start + np.flatnonzero(needs(piece, part)))
        for each in (*core, *support):
            each.finish()


def _write_triples(folder: Path, name: str, train: Triples, local: np.ndarray) -> None:
    """The triples whose numbers are there, and their weights. `local` int32[entities] is the local id of each original one."""
    numbers = load_npy(folder / f"{name}.ids.npy", mmap=True)
    with contextlib.ExitStack() as stack:
        rows = stack.enter_context(Appender(folder / f"{name}.npy", np.int32, 3))
        weighted = train.weights is not None
        weights = stack.enter_context(Appender(folder / f"{name}.weights.npy", np.float32)) if weighted else None
        for start in range(0, len(numbers), PIECE):
            own = numbers[start : start + PIECE]
            found = train.array[own]
            found[:, 0], found[:, 2] = local[found[:, 0]], local[found[:, 2]]
            rows.append(found)
            if weights is not None and train.weights is not None:
                weights.append(train.weights[own])
        rows.finish()
        if weights is not None:
            weights.finish()
