"""A data set as the rest of kgdist sees it: triples of int32 ids, memory-mapped, with the vocabularies that name them.

`load_dataset` reads the user's files once, in bounded memory, into a binary cache (cache.py) and maps that; the next load
only maps. Formats are told in formats.py, parsing in text.py, parquet.py, ntriples.py and dictionary.py. No filter index
(known.py) and no batches (batches.py).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError, DataError, OptionError
from kgdist.base.files import PathLike, load_npy
from kgdist.base.log import log
from kgdist.data import cache
from kgdist.data.held_out import check_shares
from kgdist.data.read.formats import Format, Sources, built_in_files, user_files
from kgdist.data.suspects import QUOTED
from kgdist.data.vocabulary import Vocabulary
from kgdist.options.config import Config

HEADER = {"no": False, "yes": True, "auto": None}  # --header, and what Spec calls it
READING = ("header", "quoted", "padded")  # what may be wrong with how files were read
SUSPICIONS = (*READING, "unseen", "repeated", "known", "answered")  # and with what they hold
NOTABLE = 0.1  # share of held-out triples that inverse relations answer, from which a result is another one
TRIES = 50  # of reading a cache that others replace meanwhile
_told: set[tuple[Path, str, str]] = set()  # (where the caches lie, digest, line) of what this process has warned of


@dataclass(frozen=True)
class Triples:
    """One split."""

    array: np.ndarray  # int32[T, 3] (head, relation, tail), memory-mapped, read-only
    weights: np.ndarray | None = None  # float32[T], positive and finite

    def __len__(self) -> int:
        return len(self.array)

    @classmethod
    def open(cls, folder: PathLike, split: str) -> Triples:
        """Map the split that a data set's `folder` holds. Raises CheckpointError."""
        weights = Path(folder) / f"{split}.weights.npy"
        return cls(load_npy(Path(folder) / f"{split}.npy", mmap=True), load_npy(weights, mmap=True) if weights.exists() else None)


@dataclass(frozen=True, repr=False)
class Dataset:
    """A knowledge graph split for training and evaluation."""

    name: str
    entities: Vocabulary
    relations: Vocabulary
    train: Triples
    valid: Triples | None
    test: Triples | None
    digest: str  # sha256 of the vocabularies and the triples: the same graph read from other files has the same
    folder: Path  # of the binary store; `Triples.open` maps a split of it in another process
    source: Mapping[str, Any] = field(default_factory=dict)  # the options of a run that load it again, by name

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(triples):,} {name}" for name, triples in self.splits.items())
        sizes = f"{len(self.entities):,} entities, {len(self.relations):,} relations, triples: {counts}"
        return f"<kgdist data set {self.name}: {sizes}>"

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
    header: str = "no",
    quoted: bool = False,
    weighted: bool = False,
    data_url: str | None = None,
    split: Sequence[float] = (),
    vocabularies: tuple[Vocabulary, Vocabulary] | None = None,
    skip_unknown: bool = False,
    judged: Collection[str] = SUSPICIONS,
) -> Dataset:
    """Load a data set in one of the formats of formats.py.

    `path` and `name`: --data_path and --dataset; `files`: --data_files, relative to `path`. `header`: whether the first line of
    each file is skipped, no, yes or auto (where it names columns). `quoted`: fields may be quoted as in CSV. `weighted`: the
    triples to train on have a fourth column, a positive weight; other splits may have it. `data_url`: where built-in sets are
    fetched instead of their usual place. `split`: shares of train, valid and test, which a data set of train alone is divided
    into. With `vocabularies` (entities, relations of a saved run) names get the ids of those; `skip_unknown`: triples of valid
    and test with other names are left out, and counted in a warning. `judged`: what of `SUSPICIONS` is told,
    which distort what is trained or tested on it.

    Triples are kept as they are, repeated ones too. Entities and relations of valid and test that train lacks are kept,
    with a warning. Raises DataError (file, line, what is expected), OptionError (options that contradict each other),
    KgdistError (nowhere to write).
    """
    source = {"dataset": name, "data_path": os.fspath(path), "format": format, "has_edge_importance": weighted}
    source |= {
        "data_files": tuple(os.fspath(file) for file in files or ()),
        "delimiter": delimiter,
        "header": header,
        "quoted": quoted,
    }
    source |= {"data_url": data_url, "split": tuple(split)}
    form = Format.parse(format)
    sources = _sources(form, path, name, files, delimiter, header, quoted, data_url)
    if split:
        check_shares(split, [other for other in sources.splits if other != "train"])
    options = {
        "order": sources.order,
        "ids": sources.ids,
        "counted": sources.counted,
        "delimiter": delimiter,
        "header": header,
        "quoted": quoted,
        "weighted": weighted,
        "files": {role: _relative(file, sources.home) for role, file in sources.roles.items()},
        "vocabularies": vocabularies and [vocabulary.digest for vocabulary in vocabularies],
        **({"split": list(split)} if split else {}),
        **({"skip_unknown": True} if skip_unknown else {}),
    }
    found = cache.stamps(sources.files)
    roots = {root: cache.key({**options, "home": str(sources.home.absolute())}) for root in cache.user_cache()}
    if sources.home.absolute().is_relative_to(Path(path).absolute()) or form.kind != "built_in":
        roots = {sources.home / cache.BESIDE: cache.key(options), **roots}  # the package's own folder is left alone
    for _ in range(TRIES):
        folders = [root / f"{key}-{cache.key(found)}" for root, key in roots.items()]
        for folder in folders:
            meta = cache.read(folder)
            dataset = meta and _open(folder, meta, name, judged)
            if dataset:
                return replace(dataset, source=source)
        before, found = found, cache.settled(sources.files)
        if before == found:
            fill = partial(_build, sources=sources, found=found, weighted=weighted, split=split, vocabularies=vocabularies)
            cache.make(folders, partial(fill, skip_unknown=skip_unknown))
    raise CheckpointError(f"{folders[0]}: the cached data changes again and again; is another process writing the data files?")


def _build(
    folder: Path,
    sources: Sources,
    found: cache.Stamps,
    weighted: bool,
    split: Sequence[float],
    vocabularies: tuple[Vocabulary, Vocabulary] | None,
    skip_unknown: bool,
) -> dict[str, Any]:
    """The arrays of `sources`, whose stamps are `found`. Raises DataError for a file that changes meanwhile."""
    from kgdist.data.build import build  # only here: it takes pyarrow, which a cached graph does not need

    meta = build(folder, sources, weighted, vocabularies, split, skip_unknown)
    for file, before, after in zip(sources.files, found, cache.stamps(sources.files), strict=True):
        if before != after:
            raise DataError(file, "was changed while it was read; start again when it is complete")
    return meta


def _sources(
    form: Format,
    path: PathLike,
    name: str,
    files: Sequence[PathLike] | None,
    delimiter: str,
    header: str,
    quoted: bool,
    data_url: str | None,
) -> Sources:
    if form.kind != "built_in":
        if data_url is not None:
            raise OptionError("--data_url", "goes with --format built_in only")
        return user_files(path, form, files, delimiter, HEADER[header], quoted)
    idle = {"--data_files": files, "--delimiter": delimiter != "\t", "--header": header != "no", "--quoted": quoted}
    for option, given in idle.items():
        if given:
            raise OptionError(option, "own files need --format raw_udd_hrt (names) or udd_hrt (integer ids), instead of built_in")
    return built_in_files(path, name, data_url)


def _relative(path: Path, home: Path) -> str:
    """Relative where possible, so that a cache moves with its data."""
    return os.path.relpath(path, home) if path.absolute().is_relative_to(home.absolute()) else str(path.absolute())


def _open(folder: Path, meta: dict[str, Any], name: str, judged: Collection[str]) -> Dataset | None:
    """Map a cache; None if it was replaced or damaged meanwhile."""
    try:
        splits = {}
        for split, entry in meta["splits"].items():
            array = load_npy(folder / f"{split}.npy", mmap=True)
            weights = load_npy(folder / f"{split}.weights.npy", mmap=True) if entry["weighted"] else None
            if (
                array.dtype != np.int32
                or array.shape != (entry["triples"], 3)
                or (weights is not None and weights.shape != array.shape[:1])
            ):
                raise CheckpointError(f"{folder / split}.npy: not the triples that meta.json describes")
            splits[split] = Triples(array, weights)
        entities, relations = (
            Vocabulary.load(folder, role) if count is None else Vocabulary.numbered(count)
            for role, count in zip(("entities", "relations"), meta["numbered"], strict=True)
        )
    except Exception as error:  # whatever: a damaged header makes NumPy raise errors of the tokenizer, too
        cache.discard(folder, error)
        return None
    for line in [*_skipped(meta), *(line for kind, line in _suspicions(meta).items() if kind in judged)]:
        key = folder.parent, meta["digest"], line
        if key not in _told:  # a report opens the data again, and has nothing new to say
            _told.add(key)
            log.warning("%s: %s", name, line)
    return Dataset(name, entities, relations, splits["train"], splits.get("valid"), splits.get("test"), meta["digest"], folder)


def _skipped(meta: dict[str, Any]) -> list[str]:
    """What is not there of the files."""
    why = "have an entity or relation that the run does not know, and are left out (--skip_unknown)"
    found = [(split, entry.get("skipped", 0), entry["triples"]) for split, entry in meta["splits"].items()]
    return [f"{skipped:,} of {skipped + there:,} {split} triples {why}" for split, skipped, there in found if skipped]


def _suspicions(meta: dict[str, Any]) -> dict[str, str]:
    """What may distort results, each with what mends it; those of `SUSPICIONS` that there are."""
    found = {}
    if meta["header"]:
        what = f"the first line of a file looks like the names of columns ({' '.join(meta['header'])})"
        found["header"] = f"{what}; --header auto skips it"
    if meta["quoted"] >= QUOTED:
        share = f"{meta['quoted']:.0%} of the names are in quotation marks"
        found["quoted"] = f"{share}, which become part of them; --quoted takes them off"
    if any(meta["padded"]):
        entities, relations = meta["padded"]
        found["padded"] = f"{entities} entities and {relations} relations have names that begin or end with a blank"
    if any(meta["unseen"]):
        entities, relations = meta["unseen"]
        unseen = f"{entities} entities and {relations} relations that train lacks"
        found["unseen"] = f"valid and test hold {unseen}; no training triple mentions them"
    if meta["repeated"] > 0:
        share = f"{max(meta['repeated'], 1e-4):.2%} of the training triples"
        found["repeated"] = f"{share} are repeated, and count as often; kgdist-split leaves repeats out"
    known, answered = meta["overlap"]
    if known > 0:
        share = f"{max(known, 1e-4):.2%} of the valid and test triples are also in train"
        found["known"] = f"{share}, so their ranks say little; kgdist-split makes new splits"
    if answered > NOTABLE:
        found["answered"] = in_another_form(answered, "kgdist-split --no_leaks")
    return found


def in_another_form(share: float, remedy: str) -> str:
    """What is said of held-out triples of which train has this `share` in another form."""
    what = f"{share:.0%} of the valid and test triples are in train in another form"
    return f"{what}, by inverse, symmetric or duplicate relations; {remedy} keeps these together"


def find_files(config: Config) -> None:
    """Raise what `open_dataset` would raise of files that are not there, before torch is imported."""
    form, files = Format.parse(config.format), list(config.data_files) or None
    reading = config.delimiter, config.header, config.quoted, config.data_url
    cache.stamps(_sources(form, config.data_path, config.dataset, files, *reading).files)


def open_dataset(
    config: Config, vocabularies: tuple[Vocabulary, Vocabulary] | None = None, *, judged: Collection[str] = SUSPICIONS
) -> Dataset:
    """The data set that the options name; `vocabularies` are those of a saved run. `judged`: see `load_dataset`."""
    return load_dataset(
        path=config.data_path,
        name=config.dataset,
        format=config.format,
        files=list(config.data_files) or None,
        delimiter=config.delimiter,
        header=config.header,
        quoted=config.quoted,
        weighted=config.has_edge_importance,
        data_url=config.data_url,
        split=config.split,
        vocabularies=vocabularies,
        skip_unknown=config.skip_unknown,
        judged=judged,
    )
