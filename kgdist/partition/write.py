"""Writes the partition folders: triples streamed piece by piece, all folders complete before the first takes its name.

Folders are made beside their places and renamed when all of them are on disk. A machine that stops in between leaves the old
ones, or, between two renames, a mixture that the digests in partition.json give away.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.files import folder_for, free_bytes, load_npy, sweep, whole_folders, write_npy
from kgdist.base.log import bar
from kgdist.data.cache import Appender
from kgdist.data.dataset import Dataset, Triples
from kgdist.data.known import KnownTriples
from kgdist.data.leaks import implied
from kgdist.data.statistics import relation_categories
from kgdist.partition.book import Numbering
from kgdist.partition.folder import Common
from kgdist.partition.graph import PIECE, Sizes
from kgdist.partition.manifest import KINDS, NAME, Files, InCommon, Manifest, digest_of, files_of, folder_of, numbered, version_of

TEXT = "local_to_global.txt"  # the mark of a text partition
EVALUATED = ("valid", "test")


def write(
    dataset: Dataset,
    numbering: Numbering,
    sizes: Sizes,
    root: Path,
    *,
    method: str,
    balance: str,
    seed: int,
    source: dict[str, Any] | None = None,
    types: np.ndarray | None = None,
) -> list[Path]:
    """Write all partitions of `dataset` to folders partition_<p> in `root`; returns them. What was there before is replaced.
    `source` are the options that it was read with, `types` int32[n, 2] the types of its entities.

    Raises OptionError for folders in the way that are not partitions, KgdistError where they cannot be written, and then leaves
    what was there as it was.
    """
    book = numbering.book
    with staged(root, book.parts) as folders:
        _check_disk(dataset, book.parts, root)
        split_train(dataset.train, numbering, folders)
        for part, folder in enumerate(folders):
            own, links = (slice(*starts[part : part + 2]) for starts in (book.entities, book.relations))
            write_npy(folder / "entities.npy", numbering.entities[own])
            write_npy(folder / "relations.npy", numbering.relations[links])
        _write_shared(dataset, numbering, folders)
        kinds = write_types(folders, types, numbering.entities)
        dataset.entities.save(folders[0], "entity")
        dataset.relations.save(folders[0], "relation")
        write_npy(folders[0] / "originals.npy", numbering.entities)
        write_npy(folders[0] / "categories.npy", relation_categories(dataset.train.array, len(dataset.relations)))
        files = [files_of(folder) for folder in bar(folders, desc="hashing the partitions", unit=" folder")]
        common = Common(
            dataset.name,
            dataset.digest,
            method,
            balance,
            seed,
            book,
            {split: len(triples) for split, triples in dataset.splits.items()},
            dataset.train.weights is not None,
            (dataset.entities.count, dataset.relations.count),
            sizes.to_json(),
            tuple(map(digest_of, files)),
            source or {},
            kinds,
            implied([triples.array for triples in dataset.splits.values()], len(dataset.relations)),
        )
        seal(folders, common, files)
    return [folder_of(root, part) for part in range(book.parts)]


@contextlib.contextmanager
def staged(root: Path, parts: int, *, kind: type[InCommon] = Common, option: str = "--out") -> Iterator[list[Path]]:
    """Folders to fill, that become partition_0, ... of `root` when the block ends without an error; older ones go then, if they
    are of this kind. `option` is what names another place."""
    sweep(root)
    check_replaced(root, kind, option)
    try:
        targets = [folder_of(root, part) for part in range(parts)]
        with folder_for(root), whole_folders(targets, replaced=numbered(root)) as folders:
            yield folders
    except OSError as error:
        raise KgdistError(
            f"{root}: the partitions cannot be written ({error.strerror or error}); what was there before is unchanged"
        ) from error


def check_replaced(root: Path, kind: type[InCommon] = Common, option: str = "--out") -> None:
    """Raises OptionError for folders partition_0, ... in `root` that are no partitions of this kind: they are not replaced; and
    for a `root` that is a file."""
    if root.exists() and not root.is_dir():
        raise OptionError(option, f"{root} is a file; name a folder")
    for folder in numbered(root):
        there = KINDS.get(version_of(folder), kind.KIND)
        if there != kind.KIND:
            raise OptionError(
                option, f"{folder} is a partition of {there}, which is not replaced: remove it, or name another folder"
            )
        if not (folder / NAME).exists() and any(folder.iterdir()):
            what = "text partitions of DGL-KE" if (folder / TEXT).exists() else "folders of something else"
            raise OptionError(
                option, f"{folder} is there already, and such {what} are not replaced: remove them, or name another folder"
            )


def _check_disk(dataset: Dataset, parts: int, root: Path) -> None:
    evaluated = sum(len(triples) for split, triples in dataset.splits.items() if split != "train")
    names = sum(file.stat().st_size for file in dataset.folder.iterdir() if not file.name.startswith(tuple(dataset.splits)))
    need = 16 * len(dataset.train) + 4 * len(dataset.entities) + parts * 60 * evaluated + names
    if free_bytes(root) < 1.05 * need:
        raise KgdistError(f"{root}: not enough disk space for the partitions ({need / 1e9:.1f} GB needed); --out names another")


def dealt_out(triples: Triples, numbering: Numbering, what: str) -> Iterator[list[tuple[np.ndarray, np.ndarray | None]]]:
    """The triples in new ids piece by piece: for each partition those that live there, in their order, and their weights."""
    parts = numbering.book.parts
    with bar(total=len(triples), desc=what, unit=" triples") as progress:
        for start in range(0, len(triples), PIECE):
            piece = triples.array[start : start + PIECE]
            at = numbering.assigned[piece[:, 2]]
            order = np.argsort(at.astype(np.uint16), kind="stable")  # sorted by counting
            ends = np.cumsum(np.bincount(at, minlength=parts))[:-1]
            rows = np.split(numbering.renumber(piece)[order], ends)
            if triples.weights is None:
                yield [(own, None) for own in rows]
            else:
                weights = np.split(triples.weights[start : start + PIECE][order], ends)
                yield list(zip(rows, weights, strict=True))
            progress.update(len(piece))


def split_train(train: Triples, numbering: Numbering, folders: list[Path]) -> None:
    """Write train.npy, and train.weights.npy where there are weights, into each of `folders`."""
    with contextlib.ExitStack() as stack:
        rows = [stack.enter_context(Appender(folder / "train.npy", np.int32, 3)) for folder in folders]
        weights = [
            stack.enter_context(Appender(folder / "train.weights.npy", np.float32))
            for folder in folders
            if train.weights is not None
        ]
        for dealt in dealt_out(train, numbering, "writing triples"):
            for part, (own, weight) in enumerate(dealt):
                rows[part].append(own)
                if weight is not None:
                    weights[part].append(weight)
        for appender in (*rows, *weights):
            appender.finish()


def _write_shared(dataset: Dataset, numbering: Numbering, folders: list[Path]) -> None:
    """What evaluation needs, the same in every partition."""
    splits = [split for split in EVALUATED if split in dataset.splits]
    for split in splits:
        write_npy(folders[0] / f"{split}.npy", numbering.renumber(dataset.splits[split].array))
    for split, known in filters(folders, splits, len(dataset.entities), len(dataset.relations)):
        known.save(folders[0], f"{split}.known")
    for file in list(folders[0].iterdir()):
        if file.name.startswith(EVALUATED):
            for folder in folders[1:]:
                shutil.copyfile(file, folder / file.name)


def seal(folders: list[Path], common: InCommon, files: list[Files]) -> None:
    """Write the manifest of each folder, whose files these are: from then on it is a partition."""
    for part, folder in enumerate(folders):
        Manifest(part, common, files[part]).write(folder)


def write_types(folders: list[Path], types: np.ndarray | None, entities: np.ndarray) -> int:
    """types.npy, if there are `types` int32[n, 2] of original ids, in each folder; `entities`: int[n], the original id by the id
    that is to be there. Returns how many rows it has, 0 where there are no types."""
    if types is None:
        return 0
    place = np.empty(len(entities), np.int32)
    place[entities] = np.arange(len(entities), dtype=np.int32)
    found = np.stack([place[types[:, 0]], types[:, 1]], axis=1)
    for folder in folders:
        write_npy(folder / "types.npy", found)
    return len(found)


def filters(folders: list[Path], splits: list[str], entities: int, relations: int) -> Iterator[tuple[str, KnownTriples]]:
    """The filter for the queries of each of `splits`, from the triples that lie in all `folders`, in new ids."""
    there = [load_npy(folder / "train.npy", mmap=True) for folder in folders]
    there += [load_npy(folders[0] / f"{split}.npy", mmap=True) for split in splits]
    for split in bar(splits, desc="known answers", unit=" split"):
        yield split, KnownTriples.build(there, entities, relations, asked=load_npy(folders[0] / f"{split}.npy", mmap=True))
