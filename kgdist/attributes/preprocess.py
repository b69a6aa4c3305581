"""Files of entities and their schemas -> a folder of attributes: scan and fit, transform chunk by chunk, write in order."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.attributes.attribute_folder import FORMAT, MANIFEST
from kgdist.attributes.declaration import Attribute, Declaration, TextKind
from kgdist.attributes.fitting import require_sklearn
from kgdist.attributes.growing import Growing
from kgdist.attributes.scanning import ENTITIES, Numbers, Places, Scanned, scan
from kgdist.attributes.text_model import chunk_rows
from kgdist.attributes.transforming import ChunkWriter, Executor, InThisProcess, Parts, Transform, write_fitted
from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.files import sha256, write_npy_blocks
from kgdist.base.listed_folder import check_replaceable, listed_folder
from kgdist.base.log import bar, log
from kgdist.data.vocabulary import Vocabulary

CHUNK = 1 << 13  # entities of a chunk
SCRATCH = ".scratch"  # in the folder that is being made: gone before it takes its name


@dataclasses.dataclass
class Times:
    """Seconds: of scanning and fitting, of transforming and writing, and of the transforms alone, summed over processes."""

    scan: float = 0.0
    transform: float = 0.0
    work: float = 0.0


def preprocess(
    entities: Sequence[Path],
    declarations: Sequence[Declaration],
    out: Path,
    *,
    executor: Executor | None = None,
    vocabulary: Vocabulary | None = None,
    fit_on: Vocabulary | None = None,
    chunk_size: int = CHUNK,
    force: bool = False,
    device: str = "cpu",
) -> tuple[dict[str, Any], Times]:
    """Write the attributes of the entities in each file, as its declaration says, into the folder `out`; its manifest, and times.

    Args:
        executor: transforms chunks of `chunk_size` entities; this process when not given. What is written does not depend on it.
        vocabulary: the dictionary of a data set, by whose entities rows are found; each file's own names when not given.
        fit_on: names of the entities that are fitted on; all when not given.
        force: replace a folder of attributes that is there.
        device: where models of texts compute, in this process.
    Raises DataError (file:line), OptionError, UsageError when `out` is in the way, KgdistError when it cannot be written.
    """
    require_sklearn()
    if len({each.node_type for each in declarations}) < len(declarations):
        raise OptionError("--schema", "two schemas have the same node_type; give each type one file")
    check_replaceable(out, force, MANIFEST)
    manifest: dict[str, Any] = {"format": FORMAT, "node_types": {}, "digests": {}}
    times = Times()
    with listed_folder(out, manifest, force=force, listing=MANIFEST) as made:
        for path, declaration in zip(entities, declarations, strict=True):
            folder = made / declaration.node_type
            folder.mkdir()
            (made / SCRATCH).mkdir()
            run = _Run(path, declaration, folder, made / SCRATCH, vocabulary, fit_on, times, device)
            manifest["node_types"][declaration.node_type] = run.go(executor or InThisProcess(), chunk_size)
            shutil.rmtree(made / SCRATCH)
        files = sorted(path for path in made.rglob("*") if path.is_file())
        manifest["digests"] = {path.relative_to(made).as_posix(): sha256(path) for path in files}
    return manifest, times


@dataclasses.dataclass
class _Run:
    """One file on its way into the folder of its node type."""

    path: Path
    declaration: Declaration
    folder: Path
    scratch: Path
    vocabulary: Vocabulary | None
    fit_on: Vocabulary | None
    times: Times
    device: str

    def go(self, executor: Executor, chunk_size: int) -> dict[str, Any]:
        """Scan, fit, transform, write; what the manifest says of it."""
        began = time.perf_counter()
        numbers: Numbers | Places
        if self.vocabulary is None:
            numbers = Numbers(self.path, self.declaration.key, self.folder)
        else:
            numbers = Places(self.path, self.vocabulary)
        table, attributes = self.scratch / "table.arrow", self.declaration.attributes
        if any(isinstance(each.settings, TextKind) and each.settings.model is not None for each in attributes):
            chunk_size = chunk_rows(chunk_size)
        writer = ChunkWriter(table, attributes, chunk_size)
        base = Path(self.declaration.path).parent
        found = scan(self.path, self.declaration, numbers, writer, self.fit_on, base, ahead=executor.workers > 1)
        write_fitted(self.folder, attributes, found.fits)
        scanned = time.perf_counter()
        coverage = self._write(executor.map(Transform(str(table), str(self.folder), self.device), range(found.chunks)), found)
        entities = self._write_entities(numbers)
        self.times.scan += scanned - began
        self.times.transform += time.perf_counter() - scanned
        self._tell(found, entities)
        described = zip(attributes, found.fits, coverage, strict=True)
        return {
            "entities": entities,
            "key": self.declaration.key,
            "numbered": self.vocabulary is not None and self.vocabulary.count is not None,
            "digest": self.vocabulary.digest if self.vocabulary is not None else Vocabulary.load(self.folder, ENTITIES).digest,
            "rows": found.rows,
            "unknown": found.unknown,
            "fitted_on": found.fitted_on,
            "attributes": [
                {
                    "name": each.name,
                    "kind": each.kind,
                    "settings": dataclasses.asdict(each.settings),
                    "width": width,
                    "nan": found.nans.get(each.name, 0),
                    **covered,
                }
                for each, (_, width), covered in described
            ],
        }

    def _write(self, parts: Iterator[Parts], found: Scanned) -> list[dict[str, Any]]:
        """Write what comes, in order; the coverage of each attribute."""
        with ExitStack() as stack:
            columns = []
            for place, (attribute, (_, width)) in enumerate(zip(self.declaration.attributes, found.fits, strict=True)):
                column = _column(self.folder, place, attribute, width)
                columns.append(column)
                stack.callback(column.abandon)
            with bar(total=found.rows, desc=f"transforming {self.path.name}", unit=" entities") as progress:
                for part in parts:
                    self.times.work += float(part["seconds"][0])
                    rows = [column.add(part) for column in columns]
                    progress.update(rows[0])
            if any(column.rows != found.rows for column in columns):
                raise KgdistError(f"{self.path}: {columns[0].rows:,} of {found.rows:,} entities came back from the executor")
            return [column.finish() for column in columns]

    def _write_entities(self, numbers: Numbers | Places) -> int:
        """Names, and the row of each; how many there are."""
        if isinstance(numbers, Places):
            numbers.vocabulary.save(self.folder, ENTITIES)
        count = numbers.count if isinstance(numbers, Numbers) else len(numbers.rows)
        step = 1 << 18
        blocks = (
            np.arange(start, min(start + step, count)) if isinstance(numbers, Numbers) else numbers.rows[start : start + step]
            for start in range(0, count, step)
        )
        write_npy_blocks(self.folder / "rows.npy", (count,), np.dtype(np.int64), blocks)
        return count

    def _tell(self, found: Scanned, entities: int) -> None:
        """Warn of what was left out."""
        if found.unknown:
            example = found.first_unknown[:80]
            log.warning("%s: %d entities are not in the dictionary, such as %r: left out", self.path, found.unknown, example)
        if found.rows < entities:
            log.warning("%s: %d of the dictionary's %d entities have no attributes", self.path, entities - found.rows, entities)
        if self.fit_on is not None and found.fitted_on < len(self.fit_on):
            missing = len(self.fit_on) - found.fitted_on
            log.warning("--fit_on: %d of its %d names have no attributes in %s", missing, len(self.fit_on), self.path)
        for name, count in found.nans.items():
            log.warning("%s: %s is NaN for %d entities, which counts as missing", self.path, name, count)


class _OnesColumn:
    """The files of an attribute whose rows are ones."""

    def __init__(self, folder: Path, place: int) -> None:
        self.place, self.rows, self.present, self.unseen, self._end = place, 0, 0, 0, 0
        self._starts = Growing(folder / f"{place}.starts.npy", np.int64)
        self._indices = Growing(folder / f"{place}.indices.npy", np.int32)
        self._starts.add(np.zeros(1, np.int64))

    def add(self, parts: Parts) -> int:
        """Append a chunk; how many rows it has."""
        counts = parts[f"{self.place}.counts"]
        self._starts.add(np.cumsum(counts) + self._end)
        self._indices.add(parts[f"{self.place}.indices"])
        self._end += int(counts.sum())
        self.rows += len(counts)
        self.present += int((counts > 0).sum())
        self.unseen += int(parts[f"{self.place}.unseen"][0])
        return len(counts)

    def finish(self) -> dict[str, Any]:
        """Close the files; what the manifest says of them."""
        self._starts.close()
        self._indices.close()
        return {"form": "ones", "present": self.present, "ones": self._end, "unseen": self.unseen}

    def abandon(self) -> None:
        """Close the files as they are."""
        self._starts.abandon()
        self._indices.abandon()


class _NumbersColumn:
    """The files of an attribute whose rows are numbers."""

    def __init__(self, folder: Path, place: int, width: int) -> None:
        self.place, self.rows, self.present = place, 0, 0
        self._present = Growing(folder / f"{place}.present.npy", np.bool_)
        self._values = Growing(folder / f"{place}.values.npy", np.float32, width)

    def add(self, parts: Parts) -> int:
        """Append a chunk; how many rows it has."""
        present = parts[f"{self.place}.present"]
        self._present.add(present)
        self._values.add(parts[f"{self.place}.rows"])
        self.rows += len(present)
        self.present += int(present.sum())
        return len(present)

    def finish(self) -> dict[str, Any]:
        """Close the files; what the manifest says of them."""
        self._present.close()
        self._values.close()
        return {"form": "numbers", "present": self.present}

    def abandon(self) -> None:
        """Close the files as they are."""
        self._present.abandon()
        self._values.abandon()


def _column(folder: Path, place: int, attribute: Attribute, width: int) -> _OnesColumn | _NumbersColumn:
    numbers = attribute.kind in ("text", "vector")
    return _NumbersColumn(folder, place, width) if numbers else _OnesColumn(folder, place)


def coverage(manifest: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Titles and columns of a table: how many entities have each attribute, and how wide it is."""
    titles = ["node type", "attribute", "kind", "width", "entities", "coverage", "unseen"]
    rows: list[list[Any]] = []
    for name, about in manifest["node_types"].items():
        for each in about["attributes"]:
            share = f"{100 * each['present'] / about['entities']:.1f} %"
            rows.append([name, each["name"], each["kind"], each["width"], each["present"], share, each.get("unseen")])
    return titles, [list(column) for column in zip(*rows, strict=True)]
