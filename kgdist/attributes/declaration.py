"""What a schema.yaml declares: the column of names, the type of these entities, and of each attribute its kind and settings.

    key: entity
    node_type: person
    attributes:
      population: {kind: numeric, bins: 20, strategy: quantile}
      types: {kind: multi, separator: "|", min_count: 5}

Every kind is a class whose fields are its settings. Not how a file is read (`entity_files`), nor what is made of it (`features`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from kgdist.base.errors import DataError, OptionError
from kgdist.base.files import PathLike
from kgdist.options.configfile import Entry, read_entries
from kgdist.options.option import closest, option, show, table

HASHED = "hashed"  # the encoder of texts that is no model
NODE_TYPE = "_N"  # of entities whose schema names no type: that of a graph with one
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # node types name folders


def _setting(default: Any, help: str, **facts: Any) -> Any:
    return option(default, help, group="settings", **facts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """The settings of an attribute. Raises OptionError for a value that cannot be."""

    NAME: ClassVar[str]

    def __post_init__(self) -> None:
        for name, row in table(type(self)).items():
            object.__setattr__(self, name, row.check(getattr(self, name)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumericKind(Kind):
    """A number: one of `bins` intervals."""

    NAME = "numeric"
    bins: int = _setting(20, "intervals at most; fewer where there are fewer different values", low=2, high=1 << 16)
    strategy: str = _setting(
        "quantile", "quantile: as many entities in each; uniform: of one width", choices=("quantile", "uniform")
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DateKind(NumericKind):
    """A date, as days since 1970-01-01: one of `bins` intervals."""

    NAME = "date"
    format: str | None = _setting(None, "as of strptime; years, months, days and times of ISO 8601 when not given")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CategoricalKind(Kind):
    """One of the words that occur."""

    NAME = "categorical"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiKind(Kind):
    """Several words, of those that occur with `min_count` entities or more."""

    NAME = "multi"
    separator: str = _setting("|", "what separates the words, if they are one text")
    min_count: int = _setting(1, "entities that a word must occur with, or it is left out", low=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextKind(Kind):
    """A text: its words and pairs of words by hash, brought to `dim` numbers; or what a model of sentences makes of it."""

    NAME = "text"
    encoder: str = _setting(HASHED, "how texts become numbers: hashed, or the folder of a model of sentence-transformers")
    dim: int | None = _setting(None, "numbers of a hashed text, 64 when not given; a model has its own", low=1, high=4096)

    @property
    def model(self) -> str | None:
        """The folder of the model, if it is by one."""
        return None if self.encoder == HASHED else self.encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorKind(Kind):
    """Numbers, taken as they are."""

    NAME = "vector"
    separator: str = _setting(" ", "what separates the numbers, if they are one text")
    file: str | None = _setting(None, "an .npy file of one row for each row of the entities, instead of a column")


KINDS = {kind.NAME: kind for kind in (NumericKind, DateKind, CategoricalKind, MultiKind, TextKind, VectorKind)}


@dataclasses.dataclass(frozen=True)
class Attribute:
    """One attribute: the name of its column, its settings, and the line that declares it."""

    name: str
    settings: Kind
    line: int

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return self.settings.NAME

    @property
    def column(self) -> str | None:
        """The column that it is read from; None where it is a file of its own."""
        return None if isinstance(self.settings, VectorKind) and self.settings.file is not None else self.name


@dataclasses.dataclass(frozen=True)
class Declaration:
    """A schema.yaml: `key` is the column of the entities' names."""

    path: PathLike
    key: str
    node_type: str
    attributes: tuple[Attribute, ...]

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns that are read; of those that hold lists, what parts a text into one."""
        found: dict[str, str | None] = {self.key: None}
        for each in self.attributes:
            if each.column is not None:
                lists = isinstance(each.settings, MultiKind | VectorKind)
                found[each.column] = each.settings.separator if lists else None  # type: ignore[attr-defined]
        return found

    def wrong(self, attribute: Attribute, problem: str) -> DataError:
        """The error of an attribute that cannot be as it is declared."""
        return DataError(self.path, f"attributes.{attribute.name}: {problem}", line=attribute.line)

    def check_columns(self, file: PathLike, there: Iterable[str]) -> None:
        """Raises DataError for the first column that is not `there`, or not once."""
        names = list(there)
        declared: list[tuple[str, str, int | None]] = [("key", self.key, None)]
        declared += [(f"attributes.{each.name}", each.column, each.line) for each in self.attributes if each.column is not None]
        for place, name, line in declared:
            if names.count(name) == 1:
                continue
            near = closest(name, names)
            hint = f"; did you mean {near}?" if near else f"; it has {', '.join(names)[:200]}"
            problem = f"has the column {show(name)} twice" if name in names else f"has no column {show(name)}{hint}"
            raise DataError(self.path, f"{place}: {file} {problem}", line=line)


def read_declaration(path: PathLike) -> Declaration:
    """The schema of a file. Raises DataError (file:line, path of the key) for what is not known, missing, or cannot be."""
    top = _mapping(path, "", read_entries(path, "--schema"))
    _known(path, "", top, ("key", "node_type", "attributes"))
    for name in ("key", "attributes"):
        if name not in top:
            raise DataError(path, f"{name}: is missing; the least is key: NAME and attributes: {{NAME: {{kind: numeric}}}}")
    key = _text(path, "key", top["key"])
    node_type = _text(path, "node_type", top["node_type"]) if "node_type" in top else NODE_TYPE
    if not _FOLDER.fullmatch(node_type):
        raise DataError(
            path, f"node_type: must be letters, digits, _, . and -, not {show(node_type)}", line=top["node_type"].line
        )
    declared = _mapping(path, "attributes", top["attributes"])
    if not declared:
        raise DataError(path, "attributes: names none", line=top["attributes"].line)
    if key in declared:
        raise DataError(path, f"attributes.{key}: is the key; its names are not an attribute", line=declared[key].line)
    attributes = tuple(Attribute(name, _kind(path, f"attributes.{name}", entry), entry.line) for name, entry in declared.items())
    return Declaration(path, key, node_type, attributes)


def _kind(path: PathLike, place: str, entry: Entry) -> Kind:
    given = _mapping(path, place, entry)
    if "kind" not in given:
        raise DataError(path, f"{place}.kind: is missing; it is one of {', '.join(KINDS)}", line=entry.line)
    name = _text(path, f"{place}.kind", given["kind"])
    if name not in KINDS:
        near = closest(name, KINDS)
        hint = f"; did you mean {near}?" if near else ""
        raise DataError(path, f"{place}.kind: must be one of {', '.join(KINDS)}, not {show(name)}{hint}", line=given["kind"].line)
    rows = table(KINDS[name])
    _known(path, place, given, ("kind", *rows))
    values = {}
    for setting, each in given.items():
        if setting == "kind":
            continue
        try:
            values[setting] = rows[setting].check(each.value)
        except OptionError as error:
            raise DataError(path, f"{place}.{str(error).removeprefix('--')}", line=each.line) from error
    return KINDS[name](**values)


def _mapping(path: PathLike, place: str, entry: Entry) -> Mapping[str, Entry]:
    if not isinstance(entry.value, dict):
        before = f"{place}: " if place else ""
        raise DataError(
            path, f"{before}expected names and values, such as kind: numeric, not {show(entry.value)}", line=entry.line
        )
    return entry.value


def _text(path: PathLike, place: str, entry: Entry) -> str:
    if not isinstance(entry.value, str) or not entry.value or "\0" in entry.value:
        hint = '; put it in "quotes"' if isinstance(entry.value, (bool, int, float)) else ""
        raise DataError(path, f"{place}: must be a name, not {show(entry.value)}{hint}", line=entry.line)
    return entry.value


def _known(path: PathLike, place: str, given: Mapping[str, Entry], names: Iterable[str]) -> None:
    """Raises DataError for the first key that is none of `names`."""
    allowed = list(names)
    for name, entry in given.items():
        if name not in allowed:
            near = closest(name, allowed)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(allowed)}"
            full = f"{place}.{name}" if place else name
            raise DataError(path, f"{show(full)[1:-1]}: is not known; {hint}", line=entry.line)
