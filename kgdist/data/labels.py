"""Labels: what people call the entities and relations whose names are ids (`Q90` is `Paris`). A label need not be unique.

A file of labels has lines `name<TAB>label`, of entities and relations together; the last tab parts them, for a name may hold one.
Or it is RDF (`.nt`, and what else formats.py reads as triples): its rdfs:label count, without their language. A name has one
label: of several, one without a language or in English goes before others, and otherwise the first does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kgdist.base.errors import DataError, counted
from kgdist.base.files import PathLike, atomic_write
from kgdist.base.log import bar, log
from kgdist.data.names import lengths
from kgdist.data.read.columns import Spec, shown
from kgdist.data.read.formats import RDF, read_rows
from kgdist.data.read.lines import blocks, check_file, each_line, suffix
from kgdist.data.vocabulary import Vocabulary

EXPECTED = "lines of `name<TAB>label`"
RDFS_LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"(?:@([A-Za-z0-9-]+)|\^\^.*)?', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_LETTERS = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f"}
_SAID = 3  # names that a message lists
_SPACE = re.compile(r"[\t\n\r\0]+")  # what no line of a file of labels can hold


class Naming(Protocol):
    """What turns ids into what is shown: a Vocabulary, Labels, Beside."""

    def names(self, ids: Any) -> Sequence[str | None]:
        """int[n] -> what each is called."""


class Labels:
    """The labels of some of the things in a vocabulary."""

    def __init__(self, names: Vocabulary, ids: np.ndarray, texts: Any) -> None:
        """`ids` int[n], each once, and their labels, pa.LargeStringArray[n]; ids `names` of them."""
        order = np.argsort(ids, kind="stable")
        self.vocabulary, self.ids = names, np.asarray(ids, np.int64)[order]
        self.texts = texts.take(order)  # of `ids`

    @classmethod
    def none(cls, names: Vocabulary) -> Labels:
        """No labels at all."""
        import pyarrow as pa

        return cls(names, np.zeros(0, np.int64), pa.array([], pa.large_string()))

    def __len__(self) -> int:
        """How many things have a label."""
        return len(self.ids)

    def names(self, ids: Any) -> list[str | None]:
        """int[n] -> their labels, None for those that have none."""
        wanted = np.asarray(ids, np.int64).reshape(-1)
        places = np.searchsorted(self.ids, wanted)
        there = places < len(self.ids)
        there[there] = self.ids[places[there]] == wanted[there]
        found: list[str | None] = [None] * len(wanted)
        for row, text in zip(np.flatnonzero(there).tolist(), self.texts.take(places[there]).to_pylist(), strict=True):
            found[row] = text
        return found

    def find(self, texts: Any) -> tuple[np.ndarray, np.ndarray]:
        """Labels (list or pyarrow array) -> int64[n], -1 for those that nothing has, and int64[n], how many things have each.

        One pass over all labels; the id is that of the first of several.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = texts.cast(pa.large_string()) if isinstance(texts, pa.Array) else pa.array(texts, pa.large_string())
        different = wanted.unique()
        codes = pc.index_in(self.texts, value_set=different).fill_null(-1).to_numpy()
        hits = np.flatnonzero(codes >= 0)
        counts = np.bincount(codes[hits], minlength=len(different)).astype(np.int64)
        first = np.full(len(different), -1, np.int64)
        first[codes[hits[::-1]]] = self.ids[hits[::-1]]
        places = pc.index_in(wanted, value_set=different).to_numpy()
        return first[places], counts[places]

    def bearers(self, text: str) -> str:
        """The names of what has a label, for a message; of many the first."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = np.flatnonzero(pc.equal(self.texts, pa.scalar(text, pa.large_string())).to_numpy(zero_copy_only=False))
        more = f" and {len(rows) - _SAID:,} more" if len(rows) > _SAID else ""
        return ", ".join(self.vocabulary.names(self.ids[rows[:_SAID]])) + more

    def of_rows(self, names: Vocabulary, each: int) -> Labels:
        """The labels of rows called `names`, of which a thing has `each`: those of the first row of each."""
        return Labels(names, self.ids * each, self.texts)

    def shared(self) -> int:
        """How many different labels stand for several things."""
        counts = self.texts.value_counts().field("counts").to_numpy() if len(self) else np.zeros(0, np.int64)
        return int((counts > 1).sum())

    def pairs(self) -> Iterator[list[tuple[str, str]]]:
        """Name and label of all, some at a time."""
        for start in range(0, len(self), 1 << 16):
            part = slice(start, start + (1 << 16))
            yield list(zip(self.vocabulary.names(self.ids[part]), self.texts[part].to_pylist(), strict=True))


class ByLabel:
    """Finds things by their labels without a pass over all, for whoever asks often.

    Memory: the text of each label once more, and some 40 bytes for each.
    """

    def __init__(self, labels: Labels) -> None:
        import pyarrow.compute as pc

        different = labels.texts.unique()
        self.texts = Vocabulary.from_names(different)
        codes = pc.index_in(labels.texts, value_set=different).to_numpy()
        self._bearers = labels.ids[np.argsort(codes, kind="stable")]
        self._starts = np.append(0, np.cumsum(np.bincount(codes, minlength=len(different))))

    def bearers(self, text: str) -> np.ndarray:
        """int64[n]: everything that has this label."""
        number = int(self.texts.find([text])[0])
        return self._bearers[self._starts[number] : self._starts[number + 1]] if number >= 0 else self._bearers[:0]


@dataclass(frozen=True)
class Beside:
    """Names with their labels beside them, for people: `Q90 (Paris)`."""

    vocabulary: Vocabulary
    labels: Labels

    def names(self, ids: Any) -> list[str]:
        """int[n] -> what is shown."""
        pairs = zip(self.vocabulary.names(ids), self.labels.names(ids), strict=True)
        return [name if label is None else f"{name} ({label})" for name, label in pairs]

    def __getitem__(self, number: int) -> str:
        return self.names([number])[0]


Pair = tuple[Labels, Labels]  # of entities, of relations


def read_labels(path: PathLike, entities: Vocabulary, relations: Vocabulary) -> Pair:
    """The labels in a file, of the names that there are; what it has besides is counted and said in one line.

    Memory: the labels that are kept. Raises DataError (file:line) for a line that is none, and for a file in which nothing has a
    name of this graph.
    """
    import pyarrow as pa

    path = Path(path)
    check_file(path, EXPECTED)
    kept: tuple[list[Any], list[Any]] = ([], [])  # of each noun: [ids int64, labels, ranks int64] of a block
    unknown, first, read = 0, "", 0
    for names, texts, worse in bar(_read(path), desc="labels", unit=" blocks"):
        known = np.zeros(len(names), bool)
        for noun, vocabulary in zip(kept, (entities, relations), strict=True):
            ids = vocabulary.find(names)
            rows = np.flatnonzero(ids >= 0)
            known[rows] = True
            noun.append((ids[rows].astype(np.int64), texts.take(pa.array(rows)), worse[rows]))
        read += len(names)
        if not known.all():
            first = first or shown(names[int(np.flatnonzero(~known)[0])])
            unknown += int((~known).sum())
    if unknown == read:
        why = f"the first of {read:,} labels is of {first}" if read else f"there is no label in it, expected {EXPECTED}"
        raise DataError(path, f"has no label of any entity or relation of this graph; {why}")
    labels, again = zip(*(_one_each(*part) for part in zip(kept, (entities, relations), strict=True)), strict=True)
    out = [f"{unknown:,} of names that the graph does not have (the first is {first})"] if unknown else []
    out += [f"{sum(again):,} of names that have one already"] if sum(again) else []
    if out:
        log.warning("%s: labels that are left out: %s", path, ", ".join(out))
    return labels[0], labels[1]


def _one_each(parts: list[Any], names: Vocabulary) -> tuple[Labels, int]:
    """The first of the best labels of each thing, and how many are left over."""
    import pyarrow as pa

    ids, worse = (np.concatenate([part[place] for part in parts]) for place in (0, 2))
    texts = pa.concat_arrays([part[1] for part in parts])
    order = np.lexsort((worse, ids))  # stable: the file's order among equals
    chosen = order[np.flatnonzero(np.diff(ids[order], prepend=-1))]
    return Labels(names, ids[chosen], texts.take(pa.array(chosen))), len(ids) - len(chosen)


def _read(path: Path) -> Iterator[tuple[Any, Any, np.ndarray]]:
    """Names and labels (pa.LargeStringArray[n]), and int64[n] how much worse than others a label is, block by block."""
    return _read_rdf(path) if suffix(path) in RDF else _read_lines(path)


def _read_lines(path: Path) -> Iterator[tuple[Any, Any, np.ndarray]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    from kgdist.data.read.text import read_columns

    for block in blocks(path):
        columns = read_columns(block.raw, {"line": pa.large_string()}, None)
        fields = None if columns is None else pc.split_pattern(columns["line"], "\t", max_splits=1, reverse=True)
        if fields is None or not (pc.list_value_length(fields).to_numpy() == 2).all():
            raise _wrong_line(path, block)
        flat = fields.flatten()
        names, texts = (flat.take(pa.array(np.arange(start, len(flat), 2))) for start in (0, 1))
        if not (lengths(names).all() and lengths(texts).all()):
            raise _wrong_line(path, block)
        yield names, texts, np.zeros(len(names), np.int64)


def _wrong_line(path: Path, block: Any) -> DataError:
    for number, line, wrong in each_line(block):
        name, tab, text = line.rpartition(b"\t")
        if wrong or not tab:
            return DataError(path, wrong or f"expected `name<TAB>label`, found {shown(line)}", line=number)
        if not name or not text:
            return DataError(path, f"the {'label' if name else 'name'} is empty", line=number)
    return DataError(path, "cannot be split into names and labels", line=block.line)


def _read_rdf(path: Path) -> Iterator[tuple[Any, Any, np.ndarray]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    for rows in read_rows(path, Spec()):
        here = np.flatnonzero(pc.equal(rows.relations.dictionary_decode(), RDFS_LABEL).to_numpy(zero_copy_only=False))
        if not len(here):
            continue
        heads, tails = (column.take(pa.array(here)).dictionary_decode() for column in (rows.heads, rows.tails))
        found = [literal(text) for text in tails.to_pylist()]
        good = [row for row, each in enumerate(found) if each is not None and each[0]]
        pairs = [pair for pair in found if pair is not None and pair[0]]
        worse = [not (language == "" or language.lower().split("-")[0] == "en") for _, language in pairs]
        names = heads.take(pa.array(good, pa.int64())).cast(pa.large_string())
        yield names, pa.array([text for text, _ in pairs], pa.large_string()), np.array(worse, np.int64)


def literal(term: str) -> tuple[str, str] | None:
    """The text and the language ("" for none) of a literal of N-Triples, on one line; None for what is no literal."""
    match = _LITERAL.fullmatch(term)
    if match is None:
        return None

    def letter(found: re.Match[str]) -> str:
        code = found[1] or found[2]
        if code is None:
            return _LETTERS.get(found[3], found[3])
        number = int(code, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\N{REPLACEMENT CHARACTER}"

    return _SPACE.sub(" ", _ESCAPE.sub(letter, match[1])).strip(), match[2] or ""


def write_labels(path: PathLike, labels: Pair) -> None:
    """Write a file that `read_labels` reads, atomically. A name of an entity and a relation has one line."""
    entities, relations = labels
    with atomic_write(path) as file:
        for block in entities.pairs():
            file.write("".join([f"{name}\t{text}\n" for name, text in block]).encode())
        for block in relations.pairs():
            new = entities.vocabulary.find([name for name, _ in block]) < 0
            file.write("".join([f"{name}\t{text}\n" for (name, text), here in zip(block, new, strict=True) if here]).encode())


def summary(labels: Pair) -> str:
    """What a person should know of them, in a line."""
    entities, relations = labels
    said = f"{len(entities):,} of {len(entities.vocabulary):,} entities and "
    said += f"{len(relations):,} of {len(relations.vocabulary):,} relations have a label"
    shared = entities.shared() + relations.shared()
    return f"{said}; {counted(shared, 'label')} shared by several, which can only be asked for by name" if shared else said
