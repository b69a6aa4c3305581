"""The files of a data set -> the arrays of a cache, in one pass over each file and bounded memory (the names apart).

Which files there are is decided in formats.py; where the arrays lie and when they are made again in cache.py and dataset.py.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from kgdist.base.errors import DataError, OptionError
from kgdist.base.files import load_npy
from kgdist.base.log import bar, log
from kgdist.data import leaks, suspects
from kgdist.data.cache import Appender
from kgdist.data.held_out import hold_out
from kgdist.data.names import Interner, as_binary, parts
from kgdist.data.read.columns import NOUNS, Rows, Spec, shown
from kgdist.data.read.dictionary import read_dictionary
from kgdist.data.read.formats import Sources, has_header, read_rows
from kgdist.data.vocabulary import Vocabulary

_PIECE = 1 << 15  # triples looked at together, in a core's own cache
TRAINED = ("the entities of the trained model", "the relations of the trained model")
SKIP = "; kgdist-eval --skip_unknown leaves such triples out"
NAMES = 200  # of entities and of relations, whose quotation marks are looked for


def build(
    folder: Path,
    sources: Sources,
    weighted: bool,
    vocabularies: tuple[Vocabulary, Vocabulary] | None,
    shares: Sequence[float] = (),
    skip_unknown: bool = False,
) -> dict[str, Any]:
    """Fill `folder` with the arrays; returns what meta.json tells of them. `shares`: see held_out.py; `skip_unknown`: triples of
    valid and test that `vocabularies` do not know are left out."""
    encoder = of_others = _encoder(sources, vocabularies)
    if vocabularies is not None and not sources.ids:
        of_others = ByVocabulary(*vocabularies, None if skip_unknown else TRAINED, SKIP)
    elif skip_unknown:
        raise OptionError("--skip_unknown", "is for files of names, which a run knows or not; these hold ids")
    limits = None
    if sources.ids:
        entities, relations = encoder.vocabularies()
        limits = (len(entities), len(relations))
    contents, splits = [], {}
    for split, path in sources.splits.items():
        weights = weighted if split == "train" or not weighted else None
        spec = Spec(sources.order, sources.delimiter, sources.header, weights, limits, sources.quoted)
        if spec.header is None:
            spec = replace(spec, header=has_header(path, spec))
            if spec.header:
                log.info("%s: the first line names the columns, and is skipped (--header auto)", path)
        own = split == "train"
        splits[split], digests = _split(folder, split, path, spec, encoder if own else of_others, skip_unknown and not own)
        contents += digests
    if shares:
        splits, contents = hold_out(folder, shares)
    entities, relations = encoder.vocabularies()
    pa.default_memory_pool().release_unused()  # what the parser took: the vocabularies are next to take some
    _check_claims(sources, (entities, relations), sum(entry["triples"] for entry in splits.values()))
    entities.save(folder, "entities")
    relations.save(folder, "relations")
    return {
        "entities": len(entities),
        "relations": len(relations),
        "numbered": [vocabulary.count for vocabulary in (entities, relations)],
        "splits": splits,
        "unseen": _unseen(folder, list(splits), len(entities), len(relations)),
        "padded": [entities.padded(), relations.padded()],
        **_seen(folder, list(splits), entities, relations),
        "digest": hashlib.sha256("\n".join([entities.digest, relations.digest, *contents]).encode()).hexdigest(),
    }


def _encoder(sources: Sources, given: tuple[Vocabulary, Vocabulary] | None) -> Encoder:
    if given is not None and not sources.ids:
        return ByVocabulary(*given, TRAINED)
    if sources.entities is None or sources.relations is None:
        return ByAppearance()
    entities, relations = (_dictionary(path, sources) for path in (sources.entities, sources.relations))
    if not sources.ids:
        return ByVocabulary(entities, relations, (str(sources.entities), str(sources.relations)))
    for path, own, trained in zip((sources.entities, sources.relations), (entities, relations), given or (), strict=False):
        if own.digest != trained.digest:
            raise DataError(
                path, "does not give the names the same ids as the trained model; use the file that it was trained with"
            )
    return ById(entities, relations)


def _dictionary(path: Path, sources: Sources) -> Vocabulary:
    names = read_dictionary(path, sources.delimiter, counted=sources.counted, header=sources.header, quoted=sources.quoted)
    return Vocabulary.numbered(names) if isinstance(names, int) else Vocabulary(*parts(as_binary(names)))


def _split(
    folder: Path, split: str, path: Path, spec: Spec, encoder: Encoder, skip_unknown: bool
) -> tuple[dict[str, Any], list[str]]:
    """Parse one file; returns its entry in meta.json and the digests of its arrays. `skip_unknown`: `encoder` gives what it does
    not know -1, and its triples are left out."""
    with contextlib.ExitStack() as stack:
        triples = stack.enter_context(Appender(folder / f"{split}.npy", np.int32, 3))
        weights: Appender | None = None
        read = 0
        progress = stack.enter_context(bar(total=None, desc=f"reading {path.name}", unit=" triples"))
        for rows in read_rows(path, spec):
            ids = encoder.encode(path, rows)
            known = (ids >= 0).all(1) if skip_unknown else slice(None)
            triples.append(ids[known])
            read += len(ids)
            if rows.weights is not None:
                weights = weights or stack.enter_context(Appender(folder / f"{split}.weights.npy", np.float32))
                weights.append(rows.weights[known])
            progress.update(len(rows.heads))
        if read and not triples.rows:
            raise DataError(path, f"none of its {read:,} triples has only entities and relations that the run knows")
        if not triples.rows:
            raise DataError(path, f"holds no triples, expected lines of {spec.expected(4 if spec.weights else 3)}")
        digests = [split, triples.finish(), *([weights.finish()] if weights else [])]
    return {"triples": triples.rows, "weighted": weights is not None, "skipped": read - triples.rows}, digests


def _check_claims(sources: Sources, vocabularies: tuple[Vocabulary, Vocabulary], triples: int) -> None:
    """A count without names is believed only as far as the triples could bear it out: tables of that size will be allocated."""
    for path, vocabulary, most in zip((sources.entities, sources.relations), vocabularies, (2 * triples, triples), strict=True):
        if path is not None and vocabulary.count is not None and len(vocabulary) > most:
            raise DataError(
                path, f"claims {len(vocabulary):,} entries, but {triples:,} triples can use no more than {most:,}", line=1
            )


def _unseen(folder: Path, splits: list[str], entities: int, relations: int) -> list[int]:
    """How many entities and relations occur in valid or test but not in train."""
    known, met = ((np.zeros(entities, bool), np.zeros(relations, bool)) for _ in range(2))
    for split in splits:
        array = load_npy(folder / f"{split}.npy", mmap=True)
        for start in range(0, len(array), _PIECE):
            piece = array[start : start + _PIECE].astype(np.intp)  # else each of the three would become it, one by one
            seen = known if split == "train" else met
            seen[0][piece[:, 0]] = seen[0][piece[:, 2]] = seen[1][piece[:, 1]] = True
    return [int((other & ~own).sum()) for own, other in zip(known, met, strict=True)]


def _seen(folder: Path, splits: list[str], entities: Vocabulary, relations: Vocabulary) -> dict[str, Any]:
    """What a training warns of. "overlap": the share of valid and test triples that are also in train, and that of the others
    whose statement train makes in another form; "repeated": the share of training triples that stand there before; "header" and
    "quoted": see suspects.py. All of a sample where triples or names are many: some nanoseconds a triple. `kgdist-inspect` counts
    them all."""
    arrays = [load_npy(folder / f"{split}.npy", mmap=True) for split in splits]
    found = leaks.answered(arrays, len(relations))
    return {
        "overlap": [found.known, found.otherwise],
        "repeated": suspects.repeated(found.train) / max(1, len(found.train)),
        "header": suspects.header(arrays, entities, relations),
        "quoted": suspects.share(entities, relations, suspects.in_quotes, NAMES),
    }


# ---- rows of names or ids -> int32[n, 3] (head, relation, tail)


class Encoder(Protocol):
    """Turns the rows of all splits, in order, into ids, and knows the vocabularies in the end."""

    def encode(self, path: Path, rows: Rows) -> np.ndarray:
        """int32[n, 3] of rows of the file `path`. Raises DataError with the line."""
        ...

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Entities and relations."""
        ...


class ById:
    """The rows hold ids, in range already."""

    def __init__(self, entities: Vocabulary, relations: Vocabulary) -> None:
        self._vocabularies = (entities, relations)

    def encode(self, path: Path, rows: Rows) -> np.ndarray:
        return stacked(*(column.to_numpy(zero_copy_only=False) for column in rows[:3]))

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        return self._vocabularies


class ByVocabulary:
    """The rows hold names that must all be known; `where` says to the user what knows them, and `then` what can be done;
    without a `where` others have the id -1."""

    def __init__(self, entities: Vocabulary, relations: Vocabulary, where: tuple[str, str] | None, then: str = "") -> None:
        self._vocabularies = (entities, relations)
        self._where, self._then = where, then

    def encode(self, path: Path, rows: Rows) -> np.ndarray:
        return stacked(*look_up(path, rows, "hrt", self._vocabularies, self._where, self._then))

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        return self._vocabularies


def look_up(
    path: Path,
    rows: Rows,
    letters: str,
    vocabularies: tuple[Vocabulary, Vocabulary],
    where: tuple[str, str] | None,
    then: str = "",
) -> list[np.ndarray]:
    """The columns h, r, t that `letters` name as ids, int32[n] each. Raises DataError with the line of the first name that is not
    in the vocabularies of entities and relations, which `where` calls by what the user knows; None: it gets -1."""
    unknown: list[tuple[int, str, str]] = []
    columns = []
    for letter in letters:
        column: Any = rows["hrt".index(letter)]
        ids = vocabularies[letter == "r"].find(column.dictionary)
        codes = column.indices.to_numpy()
        if len(ids) and ids.min() < 0:
            row = int(np.flatnonzero(ids[codes] < 0)[0])
            unknown.append((row, letter, str(column.dictionary[int(codes[row])])))
        columns.append(ids[codes])
    if unknown and where is not None:
        row, letter, name = min(unknown, key=lambda found: found[0])
        message = f"{NOUNS[letter]} {shown(name)} is not in {where[letter == 'r']}"
        raise DataError(path, message + vocabularies[letter == "r"].hint(name) + then, line=rows.place(row))
    return columns


class ByAppearance:
    """The rows hold names, numbered as they come: row by row, the head before the tail, as DGL-KE does."""

    def __init__(self) -> None:
        self._entities, self._relations = Interner("entities"), Interner("relations")

    def encode(self, path: Path, rows: Rows) -> np.ndarray:
        heads, tails = number_by_appearance(self._entities, [rows.heads, rows.tails])
        (relations,) = number_by_appearance(self._relations, [rows.relations])
        return stacked(heads, relations, tails)

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        return Vocabulary(*self._entities.finish()), Vocabulary(*self._relations.finish())


def number_by_appearance(interner: Interner, columns: list[Any]) -> list[np.ndarray]:
    """int64[n] ids for each dictionary<string>[n] column, new names numbered row by row, columns in order within a row."""
    codes = [column.indices.to_numpy() for column in columns]
    names = [as_binary(column.dictionary) for column in columns]
    found = [interner.find(each) for each in names]
    new = [np.flatnonzero(each < 0) for each in found]
    if any(each.size for each in new):
        firsts = []  # for each new name, where in reading order it is met first
        for place, (column, ids) in enumerate(zip(codes, found, strict=True)):
            rows = np.flatnonzero(ids[column] < 0)[::-1]
            first = np.empty(len(ids), np.int64)
            first[column[rows]] = rows * len(columns) + place
            firsts.append(first[new[place]])
        order = np.argsort(np.concatenate(firsts))
        fresh = pa.concat_arrays([each.take(pa.array(which)) for each, which in zip(names, new, strict=True)])
        distinct = fresh.take(pa.array(order)).dictionary_encode()  # a name may be new in both columns
        ids = np.empty(len(order), np.int64)
        ids[order] = interner.add(distinct.dictionary)[distinct.indices.to_numpy()]
        start = 0
        for each, which in zip(found, new, strict=True):
            each[which] = ids[start : start + len(which)]
            start += len(which)
    return [ids[column] for ids, column in zip(found, codes, strict=True)]


def stacked(heads: np.ndarray, relations: np.ndarray, tails: np.ndarray) -> np.ndarray:
    triples = np.empty((len(heads), 3), np.int32)
    triples[:, 0], triples[:, 1], triples[:, 2] = heads, relations, tails
    return triples
