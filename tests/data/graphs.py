"""Small graphs in files of every kind, and what the tests of the loader ask of them."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kgdist.base.errors import DataError, KgdistError
from kgdist.data.dataset import Dataset, Triples, load_dataset
from kgdist.data.read import lines
from kgdist.data.read.columns import Spec
from kgdist.data.read.formats import read_rows

Triple = tuple[str, str, str]
TRAIN: list[Triple] = [("b", "likes", "a"), ("a", "is", "c"), ("b", "likes", "a"), ("is", "is", "b")]
VALID: list[Triple] = [("d", "likes", "a")]
TEST: list[Triple] = [("a", "knows", "e")]
CLOSERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


def write(path: Path, content: str | bytes) -> Path:
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(CLOSERS[path.suffix if path.suffix in lines.COMPRESSED else ""](data))
    return path


def triples(path: Path, spec: Spec | None = None) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for rows in read_rows(path, spec or Spec()):
        columns = [column.to_pylist() for column in rows[:3]]
        found += zip(*columns, *([rows.weights.tolist()] if rows.weights is not None else []), strict=True)
    return found


def error_of(path: Path, spec: Spec | None = None) -> str:
    with pytest.raises(DataError) as caught:
        triples(path, spec)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


def in_order(order: str, triple: Iterable[object]) -> list[str]:
    of = dict(zip("hrt", map(str, triple), strict=True))
    return [of[letter] for letter in order]


def text(triples: Sequence[Triple], order: str = "hrt", delimiter: str = "\t") -> str:
    return "".join(delimiter.join(dict(zip("hrt", triple, strict=True))[letter] for letter in order) + "\n" for triple in triples)


def write_raw(folder: Path, order: str = "hrt") -> list[str]:
    folder.mkdir(exist_ok=True)
    for name, triples in (("train.txt", TRAIN), ("valid.txt", VALID), ("test.txt", TEST)):
        (folder / name).write_text(text(triples, order))
    return ["train.txt", "valid.txt", "test.txt"]


def raw(folder: Path, files: Sequence[str] = ("train.txt",), **options: Any) -> Dataset:
    return load_dataset(path=folder, name="mine", **{"format": "raw_udd_hrt", "files": list(files), **options})


def named(dataset: Dataset, split: Triples | None) -> list[Triple]:
    assert split is not None and split.array.dtype == np.int32 and split.array.shape == (len(split), 3)
    heads, relations, tails = split.array.T
    return list(
        zip(dataset.entities.names(heads), dataset.relations.names(relations), dataset.entities.names(tails), strict=True)
    )


def built(folder: Path) -> dict[str, tuple[int, int]]:
    """Cache folder -> what tells its build from another one."""
    return {str(meta.parent): (meta.stat().st_ino, meta.stat().st_mtime_ns) for meta in folder.rglob("meta.json")}


def fails(call: Callable[[], object], kind: type[KgdistError] = DataError) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    return str(caught.value)
