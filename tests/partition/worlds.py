"""Small data sets in files, as kgdist reads them, for the tests of partitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from kgdist.data.dataset import Dataset, load_dataset
from kgdist.partition.assign import assign
from kgdist.partition.book import Numbering
from kgdist.partition.graph import Sizes
from kgdist.partition.write import write

METHODS = ("metis", "streaming", "random")
BALANCES = ("triples", "entities")
Rows = list[tuple[int, int, int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, int, np.ndarray]:
    """(entities, relations, int32[T, 3]): loops, repeated triples and entities without triples among them."""
    entities, relations = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    entity, relation = st.integers(0, entities - 1), st.integers(0, relations - 1)
    rows = draw(st.lists(st.tuples(entity, relation, entity), min_size=1, max_size=40))
    return entities, relations, np.array(rows, np.int32)


def communities(
    entities: int = 400, degree: int = 8, groups: int = 8, mixing: float = 0.1, relations: int = 5, seed: int = 0
) -> np.ndarray:
    """int32[T, 3]: entity e is of group e % groups, and keeps most of its triples within it."""
    rng = np.random.default_rng(seed)
    heads = rng.integers(0, entities, entities * degree)
    away = rng.random(len(heads)) < mixing
    near = rng.integers(0, entities // groups, len(heads)) * groups + heads % groups
    tails = np.where(away, rng.integers(0, entities, len(heads)), near)
    return np.stack([heads, rng.integers(0, relations, len(heads)), tails], axis=1).astype(np.int32)


def dataset(
    folder: Path,
    train: np.ndarray,
    valid: np.ndarray | None = None,
    test: np.ndarray | None = None,
    *,
    entities: int,
    relations: int,
    weights: np.ndarray | None = None,
) -> Dataset:
    """A data set of these triples, ids as given; entity i is called e<i>."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("entity", entities), ("relation", relations)):
        (folder / f"{name}.tsv").write_text("".join(f"{i}\t{name[0]}{i}\n" for i in range(count)))
    files = ["entity.tsv", "relation.tsv"]
    for name, rows in (("train", train), ("valid", valid), ("test", test)):
        if rows is not None:
            lines = ["\t".join(map(str, row)) for row in rows.tolist()]
            if weights is not None and name == "train":
                lines = [f"{line}\t{weight}" for line, weight in zip(lines, weights.tolist(), strict=True)]
            (folder / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines))
            files.append(f"{name}.tsv")
    return load_dataset(path=folder, name="toy", format="udd_hrt", files=files, weighted=weights is not None)


def partitioned(
    data: Dataset, root: Path, parts: int, *, method: str = "random", balance: str = "triples", seed: int = 0
) -> list[Path]:
    """The folders of `data` in `parts` parts below `root`."""
    entities, relations = len(data.entities), len(data.relations)
    train = data.train.array
    assigned = assign(train, entities, relations, parts, method=method, balance=balance, seed=seed)
    sizes = Sizes.of(train, assigned, parts, relations)
    return write(data, Numbering.of(assigned, parts, relations), sizes, root, method=method, balance=balance, seed=seed)
