"""What a data set is like before anything is trained on it, and what of it would distort results.

Counts are exact: every triple is looked at. Findings name what is wrong and the option or command that mends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import counted
from kgdist.base.text_table import TextTable
from kgdist.data import suspects
from kgdist.data.dataset import Dataset
from kgdist.data.leaks import Families, Link, find, overlap, portions
from kgdist.data.statistics import CATEGORIES, relation_categories
from kgdist.data.vocabulary import Vocabulary

MOJIBAKE = ("\ufffd", "Ã©", "Ã¼", "Ã¶", "Ã¤", "Ã¨", "â€™", "â€œ", "Ð°", "Ñ€")  # UTF-8 read as Latin-1, and what was no UTF-8
FREQUENT = 12  # relations that are named with their triples


class Finding(NamedTuple):
    """What endangers a result, and the option or command that mends it."""

    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.what}: {self.mend}"


def inspect(dataset: Dataset) -> dict[str, Any]:
    """All that is found, as plain values for JSON."""
    splits = dataset.splits
    arrays = [triples.array for triples in splits.values()]
    entities, relations = len(dataset.entities), len(dataset.relations)
    links = find(portions(arrays), relations)
    over = overlap(portions(arrays), Families.of(links, relations), len(arrays))
    degree = np.bincount(arrays[0][:, 0], minlength=entities) + np.bincount(arrays[0][:, 2], minlength=entities)
    categories = relation_categories(arrays[0], relations)
    often = np.bincount(arrays[0][:, 1], minlength=relations)
    held_out = np.concatenate(arrays[1:]) if len(arrays) > 1 else arrays[0][:0]
    unseen = (degree == 0) & (np.bincount(held_out[:, [0, 2]].reshape(-1), minlength=entities) > 0)
    facts: dict[str, Any] = {
        "dataset": dataset.name,
        "entities": entities,
        "relations": relations,
        "splits": {
            name: {"triples": len(splits[name]), "repeats": repeats, "known": known, "answered": answered}
            for name, repeats, known, answered in zip(splits, *(each.tolist() for each in over[1:]), strict=True)
        },
        "degree": {
            "mean": float(degree.mean()),
            "median": float(np.median(degree)),
            "most": int(degree.max()),
            "of_one": int(np.count_nonzero(degree == 1)),
            "counts": _counts(degree),
        },
        "categories": {name: int(np.count_nonzero(categories == code)) for code, name in enumerate(CATEGORIES)},
        "category_triples": {name: int(often[categories == code].sum()) for code, name in enumerate(CATEGORIES)},
        "frequent": [
            {"relation": dataset.relations[number], "category": CATEGORIES[categories[number]], "triples": int(often[number])}
            for number in np.argsort(-often, kind="stable")[:FREQUENT].tolist()
            if often[number]
        ],
        "links": [_link(link, dataset.relations) for link in links],
        "unseen": {
            "entities": int(np.count_nonzero(unseen)),
            "relations": len(np.setdiff1d(held_out[:, 1], arrays[0][:, 1])),
        },
        "header": suspects.header(arrays, dataset.entities, dataset.relations),
        "quoted": suspects.share(dataset.entities, dataset.relations, suspects.in_quotes),
        "mojibake": suspects.share(dataset.entities, dataset.relations, lambda name: any(sign in name for sign in MOJIBAKE)),
    }
    return facts | {"findings": [str(each) for each in findings(facts)]}


def _counts(degree: np.ndarray) -> list[dict[str, int]]:
    """How many of the n entities have a degree of 0, 1, 2 to 3, 4 to 7, ...; int64[n]."""
    steps = np.ceil(np.log2(degree + 1)).astype(np.int64)  # exact: a degree is far below 2^53
    found = np.bincount(steps).tolist()
    return [
        {"lowest": (1 << step) // 2, "highest": max(0, (1 << step) - 1), "entities": count} for step, count in enumerate(found)
    ]


def _link(link: Link, names: Vocabulary) -> dict[str, Any]:
    kind = "symmetric" if link.first == link.second else "inverse" if link.inverse else "duplicate"
    return {
        "relations": [names[link.first], names[link.second]],
        "kind": kind,
        "shared": link.shared,
        "shares": list(link.shares),
    }


def findings(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """What endangers a result, and what mends it."""
    if facts["header"]:
        yield Finding(
            f"the first line of a file looks like the names of columns ({' '.join(facts['header'])})",
            "--header auto skips it (kgdist-split takes it, too)",
        )
    if facts["quoted"] >= suspects.QUOTED:
        yield Finding(
            f"{facts['quoted']:.0%} of the names are in quotation marks, which become part of them", "--quoted takes them off"
        )
    if facts["mojibake"]:
        what = f"{facts['mojibake']:.2%} of the names look like text in another encoding"
        yield Finding(what, "convert the files to UTF-8")
    splits = facts["splits"]
    for name, split in splits.items():
        if split["repeats"]:
            what = f"{name}: {counted(split['repeats'], 'triple')} of {split['triples']:,} repeated"
            yield Finding(what, "kgdist-split leaves them out")
    for name, split in splits.items():
        if split["known"]:
            yield Finding(
                f"{split['known']:,} of {split['triples']:,} {name} triples are also in train, so their ranks say nothing",
                "kgdist-split makes new splits",
            )
        if split["answered"]:
            share = split["answered"] / split["triples"]
            yield Finding(
                f"{split['answered']:,} of {split['triples']:,} {name} triples ({share:.0%}) are in train in another form, by an "
                "inverse, symmetric or duplicate relation",
                "kgdist-split --no_leaks keeps such pairs together",
            )
    unseen = facts["unseen"]
    if unseen["entities"] or unseen["relations"]:
        entities, relations = unseen["entities"], unseen["relations"]
        what = f"{entities:,} {'entity' if entities == 1 else 'entities'} and {counted(relations, 'relation')}"
        yield Finding(
            f"valid and test hold {what} that train lacks, and no training triple mentions them", "kgdist-split leaves none"
        )


def lines(facts: dict[str, Any], most: int) -> list[str]:
    """For people."""
    degree, categories = facts["degree"], facts["categories"]
    counts = ", ".join(f"{split['triples']:,} {name}" for name, split in facts["splits"].items())
    found = [
        f"{facts['dataset']}: {facts['entities']:,} entities, {facts['relations']:,} relations, triples: {counts}",
        f"train's triples of an entity: {degree['mean']:.1f} on average, median {degree['median']:g}, most {degree['most']:,}; "
        f"{degree['of_one']:,} have one",
        "relations: " + ", ".join(f"{count:,} {name}" for name, count in categories.items()),
    ]
    if links := facts["links"]:
        found += ["", f"{counted(len(links), 'link')} between relations (each repeats at least .8 of the other):"]
        rows = [(each["kind"], *each["relations"], each["shared"], *each["shares"]) for each in links[:most]]
        table = TextTable(["kind", "relation", "and", "shared", "of the first", "of the second"], None)
        found += table.lines(list(zip(*rows, strict=True)))
        found += [f"... and {len(links) - most:,} more"] if len(links) > most else []
    return [*found, ""]
