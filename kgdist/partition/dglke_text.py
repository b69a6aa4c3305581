"""The text partitions of DGL-KE, written and read.

    train.txt               head<TAB>relation<TAB>tail; head and tail are local ids, the relation is an original one
    local_to_global.txt     line l: the original id of local id l, ascending; own entities and the halo
    partition_book.txt      line e: the partition of original entity e; the same in every partition
    relation_count.txt      the number of relations

A triple lies with its tail, as in kgdist's own layout. What is read is held against the data set, triple by triple.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kgdist.base.errors import CheckpointError, DataError, OptionError
from kgdist.base.files import atomic_write
from kgdist.data.dataset import Dataset
from kgdist.data.read.columns import Spec
from kgdist.data.read.formats import read_rows
from kgdist.partition.graph import pieces
from kgdist.partition.manifest import folder_of, numbered
from kgdist.partition.write import TEXT, staged

TRAIN, LOCAL, BOOK, COUNT = "train.txt", TEXT, "partition_book.txt", "relation_count.txt"


def write_text(dataset: Dataset, assigned: np.ndarray, parts: int, root: Path) -> list[Path]:
    """Write folders partition_<p> of text below `root`, all or none; returns them. Raises OptionError, KgdistError as `write`."""
    train = dataset.train.array
    with staged(root, parts) as folders:
        for part, folder in enumerate(folders):
            local = locals_of(train, assigned, part)
            rank = np.zeros(len(assigned), np.int32)
            rank[local] = np.arange(len(local), dtype=np.int32)
            with atomic_write(folder / TRAIN) as file:
                for piece in pieces(train, f"writing partition {part}"):
                    own = piece[assigned[piece[:, 2]] == part]
                    rows = np.stack([rank[own[:, 0]], own[:, 1], rank[own[:, 2]]], axis=1).tolist()
                    file.write(b"".join([b"%d\t%d\t%d\n" % (head, relation, tail) for head, relation, tail in rows]))
            _write_column(folder / LOCAL, local)
            _write_column(folder / BOOK, assigned)
            _write_column(folder / COUNT, np.array([len(dataset.relations)]))
    return [folder_of(root, part) for part in range(parts)]


def locals_of(train: np.ndarray, assigned: np.ndarray, part: int) -> np.ndarray:
    """int64[.]: the original ids of a partition's entities and of its halo, ascending; a local id is a place in it."""
    there = assigned == part
    for piece in pieces(train, f"entities of partition {part}"):
        there[piece[assigned[piece[:, 2]] == part, 0]] = True
    return np.flatnonzero(there)


def read_text(dataset: Dataset, root: Path) -> tuple[np.ndarray, int]:
    """(int32[entities], parts): who owns each entity by the text partitions below `root`.

    Raises DataError or CheckpointError naming the file where they are not partitions of just this data set.
    """
    folders = [folder for folder in numbered(root) if (folder / LOCAL).exists()]
    if not folders or [folder.name for folder in folders] != [f"partition_{part}" for part in range(len(folders))]:
        raise CheckpointError(f"{root}: has no text partitions partition_0, partition_1, ... that dglke_partition wrote")
    parts, entities, relations = len(folders), len(dataset.entities), len(dataset.relations)
    assigned = _column(folders[0] / BOOK, parts, "partition", count=entities).astype(np.int32)
    for folder in folders:
        if folder != folders[0] and (folder / BOOK).read_bytes() != (folders[0] / BOOK).read_bytes():
            raise DataError(folder / BOOK, f"differs from that of {folders[0].name}")
        if int(_column(folder / COUNT, 1 << 31, "number", count=1)[0]) != relations:
            raise DataError(folder / COUNT, f"{dataset.name} has {relations} relations")
    for part, folder in enumerate(folders):
        _compare(dataset, assigned, part, folder)
    return assigned, parts


def check_parts(asked: int | None, found: int) -> None:
    """Raises OptionError when another number than that of the text partitions is asked for."""
    if asked not in (None, found):
        raise OptionError("--num_parts", f"there are {found} text partitions, not {asked}; drop it")


def _compare(dataset: Dataset, assigned: np.ndarray, part: int, folder: Path) -> None:
    """The triples in `folder`, in any order, are those of the data set whose tail the partition owns."""
    train, relations = dataset.train.array, len(dataset.relations)
    local = _column(folder / LOCAL, len(assigned), "entity")
    if (np.diff(local) <= 0).any():
        raise DataError(folder / LOCAL, "must ascend")
    found = []
    for rows in read_rows(folder / TRAIN, Spec(limits=(len(local), relations))):
        heads, links, tails = (np.asarray(column.to_numpy()) for column in (rows.heads, rows.relations, rows.tails))
        found.append(np.stack([local[heads], links, local[tails]], axis=1).astype(np.int32))
    there = np.concatenate([np.empty((0, 3), np.int32), *found])
    own = [piece[assigned[piece[:, 2]] == part] for piece in pieces(train, f"comparing partition {part}")]
    expected = np.concatenate([np.empty((0, 3), np.int32), *own])
    if not np.array_equal(_in_order(there), _in_order(expected)):
        raise DataError(
            folder / TRAIN, f"not the triples of {dataset.name} that belong here; was the data set read by the same options?"
        )


def _in_order(triples: np.ndarray) -> np.ndarray:
    return triples[np.lexsort(triples.T)]


def _write_column(path: Path, numbers: np.ndarray) -> None:
    """One number a line."""
    with atomic_write(path) as file:
        for start in range(0, len(numbers), 1 << 20):
            file.write(b"".join([b"%d\n" % number for number in numbers[start : start + (1 << 20)].tolist()]))


def _column(path: Path, limit: int, what: str, *, count: int | None = None) -> np.ndarray:
    """int64[.] of a file of one number a line, each in 0..limit-1. Raises DataError."""
    try:
        with path.open("rb") as file:
            words = file.read().split()
        numbers = np.array([int(word) for word in words], np.int64)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})") from error
    except (ValueError, OverflowError) as error:
        raise DataError(path, f"expected one whole number a line ({str(error)[:60]})") from error
    wrong = np.flatnonzero((numbers < 0) | (numbers >= limit))
    if len(wrong):
        raise DataError(path, f"{what} {numbers[wrong[0]]} is out of range, allowed: 0 to {limit - 1}", line=int(wrong[0]) + 1)
    if count is not None and len(numbers) != count:
        raise DataError(path, f"has {len(numbers)} lines, expected {count}")
    return numbers
