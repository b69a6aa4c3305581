"""Small graphs with names that are hard to write, and their names read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from kgdist.data.dataset import Dataset, Triples
from kgdist.data.read.columns import Spec
from kgdist.data.read.formats import read_rows
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange.graphs import Written

BASE = "http://example.org/"
HARD = (
    *(
        "a",
        " ",
        "a b ",
        "tab\tbed",
        "|",
        "||",
        "a|",
        ",",
        '"',
        '"q"',
        'say "hi"',
        '"x"@en',
        '"1"^^<http://example.org/int>',
        '"\\n"',
    ),
    *(
        "_:b0",
        "_:b.",
        "_:é",
        BASE,
        BASE + "a",
        BASE + "a b",
        BASE + "%61",
        "http%3A",
        "<a>",
        "urn:x",
        "urn:x y",
        "x:\\u00e9",
        "x:\\",
    ),
    *("\ufeff", "\ufeffa", "0", "1", "#", "é", "e\u0301", "\u2028", "\x1f", "\u00a0", "😀", "NA", "null"),
)
names = st.sampled_from(HARD) | st.text(
    st.characters(exclude_characters="\0\r\n", exclude_categories=["Cs"]), min_size=1, max_size=6
)
Triple = tuple[str, str, str]


@st.composite
def graphs(draw: st.DrawFn, weighted: bool = False) -> tuple[Written, dict[str, list[Triple]]]:
    """A graph of up to three splits, and its triples by name."""
    entities = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    relations = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    numbers = st.tuples(st.integers(0, len(entities) - 1), st.integers(0, len(relations) - 1), st.integers(0, len(entities) - 1))
    splits = {"train": draw(st.lists(numbers, min_size=1, max_size=8))}
    for split in draw(st.sampled_from([(), ("valid",), ("valid", "test"), ("test",)])):
        splits[split] = draw(st.lists(numbers, min_size=1, max_size=3))
    weights = st.floats(2.0**-140, 2.0**120, width=32)
    found = {
        split: Triples(
            np.array(triples, np.int32),
            np.array(draw(st.lists(weights, min_size=len(triples), max_size=len(triples))), np.float32) if weighted else None,
        )
        for split, triples in splits.items()
    }
    own = (Vocabulary.from_names(entities), Vocabulary.from_names(relations))
    dataset = Dataset("toy", *own, found["train"], found.get("valid"), found.get("test"), "", Path("."))
    told = {split: [(entities[h], relations[r], entities[t]) for h, r, t in triples] for split, triples in splits.items()}
    return Written(dataset, {split: Path(f"{split}.tsv") for split in splits}), told


def graph(triples: Sequence[Triple]) -> Written:
    """A graph of one split."""
    entities, relations = (
        list(dict.fromkeys(found)) for found in ([n for h, _, t in triples for n in (h, t)], [r for _, r, _ in triples])
    )
    array = np.array([(entities.index(h), relations.index(r), entities.index(t)) for h, r, t in triples], np.int32)
    own = (Vocabulary.from_names(entities), Vocabulary.from_names(relations))
    return Written(Dataset("toy", *own, Triples(array), None, None, "", Path(".")), {"train": Path("train.tsv")})


def read(path: Path, spec: Spec) -> list[tuple[object, ...]]:
    """The rows of a file by kgdist's own readers: head, relation, tail, and the weight if there is one."""
    found: list[tuple[object, ...]] = []
    for rows in read_rows(path, spec):
        columns = [column.to_pylist() for column in rows[:3]] + ([rows.weights.tolist()] if rows.weights is not None else [])
        found += zip(*columns, strict=True)
    return found
