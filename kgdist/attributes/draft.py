"""A schema guessed from the first rows of a file, for a person to look over: as text, with the reason beside each guess."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from kgdist.attributes.canonical import Canonical
from kgdist.attributes.declaration import KINDS, Attribute
from kgdist.attributes.entity_files import Piece, columns_of, kind_of, object_keys, read_entities
from kgdist.base.errors import DataError

LOOKED_AT = 20_000  # rows
FEW = 0.2  # different values of all: what repeats that much is a category
LONG = 4.0  # words of a value on average: what is longer is text
_DATE = re.compile(r"-?[0-9]{4}(-[0-9]{2}){0,2}([T ].*)?")  # a year alone, too
_BETWEEN = re.compile(r"[ |]+")
_KEYS = ("entity", "id", "name", "key", "node", "uri", "iri")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # what some YAML takes for a value


def draft(path: Path) -> str:
    """The text of a schema.yaml for the file. Raises DataError."""
    names = columns_of(path)
    names = object_keys(path, LOOKED_AT) if names is None else names
    if not names:
        raise DataError(path, "is empty, expected the names of its columns in the first line")
    if len(set(names)) < len(names):
        raise DataError(path, "has two columns of one name; rename one of them")
    columns = {name: _Column(name) for name in names}
    looked = 0
    for piece in _pieces(path, names, kind_of(path) == "jsonl"):
        looked += len(piece.lines)
        for column in columns.values():
            column.add(piece)
        if looked >= LOOKED_AT:
            break
    if not looked:
        raise DataError(path, "has no entities")
    key = next((name for name in _KEYS if name in columns and columns[name].unique), "")
    key = key or next((name for name, column in columns.items() if column.unique), names[0])
    lines = [f"# Guessed from {looked:,} rows of {path.name}: look it over, above all the kinds.", f"key: {_quoted(key)}"]
    lines += ["node_type: _N", "attributes:"]
    lines += [f"  {_quoted(name)}: {column.guess()}" for name, column in columns.items() if name != key]
    return "\n".join(lines) + "\n"


def _pieces(path: Path, names: list[str], lists: bool) -> Iterator[Piece]:
    """All columns; those of a .jsonl as `lists`, for any of its values may be one."""
    return read_entities(path, dict.fromkeys(names, "|" if lists else None))


class _Column:
    """What was seen of one column, as texts: lists with | between their words, and as the vectors that they may be."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: list[Piece] = []
        self.vectors: list[Piece] = []
        self.values: list[str] = []
        self.rows, self.listed = 0, False

    @property
    def unique(self) -> bool:
        """Whether it names entities, as far as was seen."""
        return len(self.values) == self.rows > 0 and len(set(self.values)) == len(self.values)

    def add(self, piece: Piece) -> None:
        """See a piece."""
        import pyarrow as pa

        array = piece.columns[self.name]
        self.rows += len(array)
        values = array.to_pylist()
        if any(isinstance(value, list) for value in values):
            self.listed = self.listed or any(len(value) > 1 for value in values if value is not None)
            words = [None if value is None else [str(word) for word in value if word is not None] for value in values]
            array = pa.array([None if each is None else "|".join(each) for each in words], pa.string())
            vectors = pa.array([None if each is None else " ".join(each) for each in words], pa.string())
        else:
            vectors = array
        self.texts.append(Piece({self.name: array}, piece.lines))
        self.vectors.append(Piece({self.name: vectors}, piece.lines))
        self.values += [
            str(value) for value in array.to_pylist() if value is not None and value != "" and value == value
        ]  # not NaN

    def guess(self) -> str:
        """Kind and settings, as YAML, and why."""
        if not self.values:
            return "{kind: categorical}  # no value in these rows: drop it"
        different = len(set(self.values))
        if different == 1:
            return "{kind: categorical}  # one value in these rows: drop it, unless others come"
        if all(map(_DATE.fullmatch, self.values)) and self._reads("date"):
            return "{kind: date}"
        if self._reads("numeric"):
            return f"{{kind: numeric, bins: {min(20, different)}}}"
        if all(len(_BETWEEN.split(value)) > 1 for value in self.values) and self._reads("vector"):
            return "{kind: vector}"
        return self._words(different)

    def _words(self, different: int) -> str:
        parted = [value.split("|") for value in self.values]
        several = sum(len(words) > 1 for words in parted)
        words = len(set(itertools.chain.from_iterable(parted)))
        if self.listed or (several and words < 2 * FEW * sum(map(len, parted))):
            return f'{{kind: multi, separator: "|", min_count: 1}}  # {words:,} different words'
        if sum(len(value.split()) for value in self.values) > LONG * len(self.values):
            return "{kind: text, encoder: hashed, dim: 64}"
        many = different > FEW * len(self.values) and different > 100
        rare = "; nearly as many as entities: drop it?" if many else ""
        return f"{{kind: categorical}}  # {different:,} different values{rare}"

    def _reads(self, kind: str) -> bool:
        """Whether all values can be of a kind."""
        canonical = Canonical(Attribute(self.name, KINDS[kind](), 1))
        try:
            for piece in self.vectors if kind == "vector" else self.texts:
                canonical.read("", piece, 0)
        except DataError:
            return False
        return True


def _quoted(name: str) -> str:
    """A name as YAML."""
    if _PLAIN.fullmatch(name) and name.lower() not in _WORDS:
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
