"""The files of a data set -> the arrays of a cache, in one pass over each file and bounded memory (the names apart).

Which files there are is decided in formats.py; where the arrays lie and when they are made again in cache.py and store.py.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kgdist.base.errors import DataError
from kgdist.base.files import load_npy
from kgdist.base.progress import bar
from kgdist.data.cache import Appender
from kgdist.data.encode import ByAppearance, ById, ByVocabulary, Encoder
from kgdist.data.names import as_binary, parts
from kgdist.data.read.dictionary import read_dictionary
from kgdist.data.read.formats import Sources, read_rows
from kgdist.data.read.rows import Spec
from kgdist.data.vocabulary import Vocabulary

_PIECE = 1 << 20  # triples looked at once


def build(folder: Path, sources: Sources, weighted: bool, vocabularies: tuple[Vocabulary, Vocabulary] | None) -> dict[str, Any]:
    """Fill `folder` with the arrays; returns what meta.json tells of them."""
    encoder = _encoder(sources, vocabularies)
    limits = None
    if sources.ids:
        entities, relations = encoder.vocabularies()
        limits = (len(entities), len(relations))
    contents, splits = [], {}
    for split, path in sources.splits.items():
        weights = weighted if split == "train" or not weighted else None
        spec = Spec(sources.order, sources.delimiter, sources.header, weights, limits)
        splits[split], digests = _split(folder, split, path, spec, encoder)
        contents += digests
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
        "digest": hashlib.sha256("\n".join([entities.digest, relations.digest, *contents]).encode()).hexdigest(),
    }


def _encoder(sources: Sources, given: tuple[Vocabulary, Vocabulary] | None) -> Encoder:
    if given is not None and not sources.ids:
        return ByVocabulary(*given, ("the entities of the trained model", "the relations of the trained model"))
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
    names = read_dictionary(path, sources.delimiter, counted=sources.counted, header=sources.header)
    return Vocabulary.numbered(names) if isinstance(names, int) else Vocabulary(*parts(as_binary(names)))


def _split(folder: Path, split: str, path: Path, spec: Spec, encoder: Encoder) -> tuple[dict[str, Any], list[str]]:
    """Parse one file; returns its entry in meta.json and the digests of its arrays."""
    with contextlib.ExitStack() as stack:
        triples = stack.enter_context(Appender(folder / f"{split}.npy", np.int32, 3))
        weights: Appender | None = None
        progress = stack.enter_context(bar(total=None, desc=f"reading {path.name}", unit=" triples"))
        for rows in read_rows(path, spec):
            triples.append(encoder.encode(path, rows))
            if rows.weights is not None:
                weights = weights or stack.enter_context(Appender(folder / f"{split}.weights.npy", np.float32))
                weights.append(rows.weights)
            progress.update(len(rows.heads))
        if not triples.rows:
            raise DataError(path, f"holds no triples, expected lines of {spec.expected(4 if spec.weights else 3)}")
        digests = [split, triples.finish(), *([weights.finish()] if weights else [])]
    return {"triples": triples.rows, "weighted": weights is not None}, digests


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
            heads, links, tails = array[start : start + _PIECE].T
            seen = known if split == "train" else met
            seen[0][heads] = seen[0][tails] = seen[1][links] = True
    return [int((other & ~own).sum()) for own, other in zip(known, met, strict=True)]
