"""A data set as the rest of kgdist sees it: triples of int32 ids, memory-mapped, with the vocabularies that name them.

`load_dataset` reads the user's files once, in bounded memory, into a binary cache (cache.py) and maps that; the next load only maps. Formats are
told in formats.py, parsing in text.py, parquet.py, ntriples.py and dictionary.py. No filter index (known.py) and no batches (batches.py).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.data import cache
from kgdist.data.dictionary import read_dictionary
from kgdist.data.encode import ByAppearance, ById, ByVocabulary, Encoder
from kgdist.data.formats import SPLITS, Format, Sources, built_in_files, check_delimiter, read_rows, user_files
from kgdist.data.names import as_binary, parts
from kgdist.data.rows import Spec
from kgdist.data.vocabulary import Vocabulary
from kgdist.errors import CheckpointError, DataError, OptionError
from kgdist.files import PathLike, load_npy
from kgdist.log import log
from kgdist.progress import bar

_PIECE = 1 << 20  # triples looked at once


@dataclass(frozen=True)
class Triples:
    """One split."""

    array: np.ndarray  # int32[T, 3] (head, relation, tail), memory-mapped, read-only
    weights: np.ndarray | None = None  # float32[T], positive and finite

    def __len__(self) -> int:
        return len(self.array)


@dataclass(frozen=True)
class Dataset:
    """A knowledge graph split for training and evaluation."""

    name: str
    entities: Vocabulary
    relations: Vocabulary
    train: Triples
    valid: Triples | None
    test: Triples | None
    digest: str  # sha256 of the vocabularies and the triples: the same graph read from other files has the same

    @property
    def splits(self) -> dict[str, Triples]:
        """The splits that are there, by name."""
        found = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: triples for name, triples in found.items() if triples is not None}


def load_dataset(
    *,
    path: PathLike,
    name: str,
    format: str = "built_in",
    files: Sequence[PathLike] | None = None,
    delimiter: str = "\t",
    header: bool = False,
    weighted: bool = False,
    data_url: str | None = None,
    vocabularies: tuple[Vocabulary, Vocabulary] | None = None,
) -> Dataset:
    """Load a data set in one of the formats of formats.py.

    `path` and `name`: --data_path and --dataset; `files`: --data_files, relative to `path`. `header`: the first line of each file of triples (not of a
    dictionary file) is skipped. `weighted`: the triples to train on have a fourth column, a positive weight; other splits may have it. `data_url`: where
    built-in sets are fetched instead of their usual place. With `vocabularies` (entities, relations of a saved run) names get the ids of those.

    Triples are kept as they are, repeated ones too. Entities and relations of valid and test that train lacks are kept, with a warning.
    Raises DataError (file, line, what is expected), OptionError (options that contradict each other), KgdistError (nowhere to write).
    """
    form = Format.parse(format)
    check_delimiter(delimiter)
    sources = _sources(form, path, name, files, delimiter, header, data_url)
    options = {
        "order": sources.order,
        "ids": sources.ids,
        "counted": sources.counted,
        "delimiter": delimiter,
        "header": header,
        "weighted": weighted,
        "files": {role: _relative(file, sources.home) for role, file in _roles(sources).items()},
        "vocabularies": vocabularies and [vocabulary.digest for vocabulary in vocabularies],
    }
    cache.fingerprints(sources.files, hashed=False)
    folders = [cache.user_cache() / cache.options_key({**options, "home": str(sources.home.absolute())})]
    if sources.home.absolute().is_relative_to(Path(path).absolute()) or form.kind != "built_in":
        folders.insert(0, sources.home / ".kgdist" / cache.options_key(options))  # the package's own folder is left alone
    for _ in range(10):
        for folder in folders:
            meta = cache.valid_meta(folder, options, sources.files)
            dataset = meta and _open(folder, meta, name)
            if dataset:
                return dataset
        with cache.build_folder(folders) as (temporary, folder):
            hashed_ns = time.time_ns()
            recorded = cache.fingerprints(sources.files, hashed=True)
            meta = {"options": options, "sources": recorded, **_build(temporary, sources, delimiter, header, weighted, vocabularies)}
            cache.publish(temporary, folder, meta, hashed_ns, sources.files)
    raise CheckpointError(f"{folders[0]}: the cached data changes again and again; is another process writing the data files?")


def _sources(
    form: Format, path: PathLike, name: str, files: Sequence[PathLike] | None, delimiter: str, header: bool, data_url: str | None
) -> Sources:
    if form.kind != "built_in":
        if data_url is not None:
            raise OptionError("--data_url", "goes with --format built_in only")
        return user_files(path, form, files)
    for option, given in (("--data_files", files), ("--delimiter", delimiter != "\t"), ("header", header)):
        if given:
            raise OptionError(option, "does not go with --format built_in; name your own files' format raw_udd_hrt or udd_hrt")
    return built_in_files(path, name, data_url)


def _roles(sources: Sources) -> dict[str, Path]:
    dictionaries = {"entities": sources.entities, "relations": sources.relations}
    return {**{role: path for role, path in dictionaries.items() if path is not None}, **sources.splits}


def _relative(path: Path, home: Path) -> str:
    """Relative where possible, so that a cache moves with its data."""
    return os.path.relpath(path, home) if path.absolute().is_relative_to(home.absolute()) else str(path.absolute())


def _open(folder: Path, meta: dict[str, Any], name: str) -> Dataset | None:
    """Map a cache; None if it was replaced or damaged meanwhile."""
    try:
        splits = {}
        for split, entry in meta["splits"].items():
            array = load_npy(folder / f"{split}.npy", mmap=True)
            weights = load_npy(folder / f"{split}.weights.npy", mmap=True) if entry["weighted"] else None
            if array.dtype != np.int32 or array.shape != (entry["triples"], 3) or (weights is not None and weights.shape != array.shape[:1]):
                raise CheckpointError(f"{folder / split}.npy: not the triples that meta.json tells of")
            splits[split] = Triples(array, weights)
        entities, relations = (
            Vocabulary.load(folder, role) if count is None else Vocabulary.numbered(count)
            for role, count in zip(("entities", "relations"), meta["numbered"], strict=True)
        )
        if cache.read_json(folder / cache.META)["build"] != meta["build"]:
            return None
    except (CheckpointError, KeyError, OSError, ValueError) as error:
        log.info("cached data cannot be used and will be made again: %s", error)
        return None
    _warn(name, meta)
    return Dataset(name, entities, relations, splits["train"], splits.get("valid"), splits.get("test"), meta["digest"])


def _warn(name: str, meta: dict[str, Any]) -> None:
    entities, relations = meta["unseen"]
    if entities or relations:
        log.warning(
            "%s: valid and test hold %d entities and %d relations that train lacks; their embeddings stay as initialised", name, entities, relations
        )


def _build(
    folder: Path, sources: Sources, delimiter: str, header: bool, weighted: bool, vocabularies: tuple[Vocabulary, Vocabulary] | None
) -> dict[str, Any]:
    """Fill `folder` with the arrays; returns what meta.json tells of them."""
    encoder = _encoder(sources, delimiter, vocabularies)
    limits = None
    if sources.ids:
        entities, relations = encoder.vocabularies()
        limits = (len(entities), len(relations))
    contents, splits = [], {}
    for split, path in sources.splits.items():
        weights = weighted if split == "train" or not weighted else None
        spec = Spec(sources.order, delimiter, header, weights, limits)
        splits[split], digests = _split(folder, split, path, spec, encoder)
        contents += digests
    entities, relations = encoder.vocabularies()
    _check_claims(sources, (entities, relations), sum(entry["triples"] for entry in splits.values()))
    entities.save(folder, "entities")
    relations.save(folder, "relations")
    return {
        "entities": len(entities),
        "relations": len(relations),
        "numbered": [vocabulary.count for vocabulary in (entities, relations)],
        "splits": splits,
        "unseen": _unseen(folder, splits, len(entities), len(relations)),
        "digest": hashlib.sha256("\n".join([entities.digest, relations.digest, *contents]).encode()).hexdigest(),
    }


def _encoder(sources: Sources, delimiter: str, given: tuple[Vocabulary, Vocabulary] | None) -> Encoder:
    if given is not None and not sources.ids:
        return ByVocabulary(*given, ("the entities of the trained model", "the relations of the trained model"))
    if sources.entities is None or sources.relations is None:
        return ByAppearance()
    entities, relations = (_dictionary(path, delimiter, sources.counted) for path in (sources.entities, sources.relations))
    if not sources.ids:
        return ByVocabulary(entities, relations, (str(sources.entities), str(sources.relations)))
    for path, own, trained in zip((sources.entities, sources.relations), (entities, relations), given or (), strict=False):
        if own.digest != trained.digest:
            raise DataError(path, "does not give the names the same ids as the trained model; use the file that it was trained with")
    return ById(entities, relations)


def _dictionary(path: Path, delimiter: str, counted: bool) -> Vocabulary:
    names = read_dictionary(path, delimiter, counted=counted)
    return Vocabulary.numbered(names) if isinstance(names, int) else Vocabulary(*parts(as_binary(names)))


def _split(folder: Path, split: str, path: Path, spec: Spec, encoder: Encoder) -> tuple[dict[str, Any], list[str]]:
    """Parse one file; returns its entry in meta.json and the digests of its arrays."""
    triples = cache.Appender(folder / f"{split}.npy", np.int32, 3)
    weights: cache.Appender | None = None
    with bar(total=None, desc=f"reading {path.name}", unit=" triples") as progress:
        for rows in read_rows(path, spec):
            triples.append(encoder.encode(path, rows))
            if rows.weights is not None:
                weights = weights or cache.Appender(folder / f"{split}.weights.npy", np.float32)
                weights.append(rows.weights)
            progress.update(len(rows.heads))
    if not triples.rows:
        raise DataError(path, f"holds no triples, expected lines of {spec.expected(3)}")
    digests = [split, triples.close(), *([weights.close()] if weights else [])]
    return {"triples": triples.rows, "weighted": weights is not None}, digests


def _check_claims(sources: Sources, vocabularies: tuple[Vocabulary, Vocabulary], triples: int) -> None:
    """A count without names is believed only as far as the triples could bear it out: tables of that size will be allocated."""
    for path, vocabulary, most in zip((sources.entities, sources.relations), vocabularies, (2 * triples, triples), strict=True):
        if path is not None and vocabulary.count is not None and len(vocabulary) > most:
            raise DataError(path, f"claims {len(vocabulary):,} entries, but {triples:,} triples can use no more than {most:,}", line=1)


def _unseen(folder: Path, splits: dict[str, Any], entities: int, relations: int) -> list[int]:
    """How many entities and relations occur in valid or test but not in train."""
    seen = {split: (np.zeros(entities, bool), np.zeros(relations, bool)) for split in ("train", "others")}
    for split in SPLITS:
        if split in splits:
            array = load_npy(folder / f"{split}.npy", mmap=True)
            ents, rels = seen["train" if split == "train" else "others"]
            for start in range(0, len(array), _PIECE):
                piece = array[start : start + _PIECE]
                ents[piece[:, 0]] = ents[piece[:, 2]] = True
                rels[piece[:, 1]] = True
    return [int((other & ~train).sum()) for train, other in zip(seen["train"], seen["others"], strict=True)]
