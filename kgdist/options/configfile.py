"""Options in files: the YAML that users write, and the config.json that every run saves.

The YAML is one flat mapping from option to value. It is read from the parser's events, so that no tag, alias or nested
collection is ever built: each is refused by file and line. Numbers are decimal as in YAML 1.2 (1e-9 is a number; 0x10 and yes are
text). config.json is read in three dialects, ours and the two of DGL-KE, and written so that DGL-KE's tools find their keys too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from kgdist.base.errors import CheckpointError, DataError, OptionError
from kgdist.base.files import PathLike, read_json
from kgdist.options.config import OPTIONS, Config
from kgdist.options.model_file import missing
from kgdist.options.option import Option, closest, number, show

LIMIT = 1 << 20  # bytes of a YAML file
_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = ("", "~", "null", "Null", "NULL")
_REFUSED = {"config": "a file cannot name another one", "resume": "give it as a flag"}


def read_yaml(path: PathLike, command: str, bring: Callable[[str], None] = lambda file: None) -> dict[str, Any]:
    """The options that a YAML file sets, checked; lists become tuples. `bring` gets a --model_file before the model is checked.

    Raises DataError (file:line) for what is no option of `command`, set twice, of the wrong type or out of range, and for YAML
    beyond one flat mapping.
    """
    return read_events(path, Reader(path, command, bring).read, "--config")


def read_events(path: PathLike, read: Callable[[Iterator[yaml.Event]], dict[str, Any]], flag: str) -> dict[str, Any]:
    """What `read` makes of the events of the YAML file that `flag` names. Raises DataError for what is none."""
    try:
        with open(path, "rb") as file:
            raw = file.read(LIMIT + 1)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror}); {flag} wants a YAML file") from error
    if len(raw) > LIMIT:
        raise DataError(path, f"larger than {LIMIT >> 20} MiB; a file of options is a few lines")
    try:
        return read(yaml.parse(raw.decode("utf-8-sig"), Loader=yaml.SafeLoader))
    except UnicodeDecodeError as error:
        raise DataError(path, f"not UTF-8 at byte {error.start}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise DataError(path, f"not YAML ({error.problem or error.context})", line=line) from error
    except yaml.YAMLError as error:
        raise DataError(path, f"not YAML ({' '.join(str(error).split())})") from error


class Reader:
    """Events of one YAML document -> options."""

    def __init__(self, path: PathLike, command: str, bring: Callable[[str], None] = lambda file: None) -> None:
        self.path, self.command, self.bring = path, command, bring

    def fail(self, event: yaml.Event, message: str) -> DataError:
        return DataError(self.path, message, line=line_of(event))

    def next(self, events: Iterator[yaml.Event], place: str) -> yaml.Event:
        """The next event, unless it is an alias, an anchor or a tag."""
        event = next(events)
        for kind, sign in (("anchor", "*" if isinstance(event, yaml.AliasEvent) else "&"), ("tag", "")):
            found = getattr(event, kind, None)
            if found:
                raise self.fail(event, f"{place}{kind}s ({sign}{found[:40]}) are not used here; write the plain value")
        return event

    def read(self, events: Iterator[yaml.Event]) -> dict[str, Any]:
        next(events)  # start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            return {}
        event = self.next(events, "")
        if isinstance(event, yaml.ScalarEvent) and event.style is None and event.value in _NULLS:
            values: dict[str, Any] = {}
        elif isinstance(event, yaml.MappingStartEvent):
            values = self.mapping(events)
        else:
            raise self.fail(event, "expected one option per line, such as lr: 0.1")
        next(events)  # end of the document
        event = next(events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.fail(event, "a second document starts here; put all options into one")
        return values

    def mapping(self, events: Iterator[yaml.Event]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int | None] = {}
        named: list[tuple[yaml.Event, Any]] = []  # model_name, which a model_file in a later line may bring
        while not isinstance(key := self.next(events, ""), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise self.fail(key, "expected the name of an option, such as lr: 0.1")
            row = self.row(key)
            if row.name in lines:
                raise self.fail(key, f"{row.name}: set already in line {lines[row.name]}")
            lines[row.name] = line_of(key)
            value = self.value(self.next(events, f"{row.name}: "), row, events)
            if row.name == "model_name":
                named.append((key, value))
            elif (checked := self.checked(key, row, value)) is not None:  # null: as if the line were not there
                values[row.name] = checked
        if "model_file" in values:
            self.bring(values["model_file"])
        for key, value in named:
            values["model_name"] = self.checked(key, OPTIONS["model_name"], value)
        return values

    def checked(self, key: yaml.Event, row: Option, value: Any) -> Any:
        try:
            return row.check(value)
        except OptionError as error:
            hint = '; put it in "quotes"' if row.kind is str and isinstance(value, (bool, int, float)) else ""
            raise self.fail(key, str(error).removeprefix("--") + hint) from error

    def row(self, key: yaml.ScalarEvent) -> Option:
        name = key.value
        names = [row.name for row in OPTIONS.values() if self.command in row.commands]
        if name in names and name not in _REFUSED:
            return OPTIONS[name]
        if name in _REFUSED:
            message = f"{name}: {_REFUSED[name]}"
        elif name in OPTIONS:
            message = f"{name}: not an option of kgdist-{self.command}"
        else:
            near = closest(name, names)
            message = f"{show(name)[1:-1]}: no such option" + (f"; did you mean {near}?" if near else "")
        raise self.fail(key, message)

    def value(self, event: yaml.Event, row: Option, events: Iterator[yaml.Event]) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return scalar(event)
        if not isinstance(event, yaml.SequenceStartEvent) or not row.many:
            given = "a list" if isinstance(event, yaml.SequenceStartEvent) else "a mapping"
            wanted = f"a list, each {row.allowed}" if row.many else row.allowed
            raise self.fail(event, f"{row.name}: must be {wanted}, not {given}")
        items: list[Any] = []
        while not isinstance(item := self.next(events, f"{row.name}: "), yaml.SequenceEndEvent):
            if not isinstance(item, yaml.ScalarEvent):
                raise self.fail(item, f"{row.name}[{len(items)}]: must be {row.allowed}, not a list or mapping")
            items.append(scalar(item))
        return items


def line_of(event: yaml.Event) -> int | None:
    """Where an event starts, counted from 1."""
    return event.start_mark.line + 1 if event.start_mark else None


def scalar(event: yaml.ScalarEvent) -> Any:
    """The value of a YAML scalar: quoted is text; plain is null, true, false, a decimal number or text."""
    text = event.value
    if event.style is not None:
        return text
    if text in _NULLS:
        return None
    if text in _WORDS:
        return _WORDS[text]
    return number(text)


def to_json(config: Config) -> dict[str, Any]:
    """Every option by name, as JSON values; floats survive exactly."""
    return {name: list(value) if isinstance(value := getattr(config, name), tuple) else value for name in OPTIONS}


def from_json(saved: Mapping[str, Any]) -> Config:
    """The inverse of `to_json`; also reads both dialects of DGL-KE. Keys that are no option are ignored. Raises OptionError."""
    return Config.from_dglke(saved)


def run_json(config: Config, *, version: str, entities: str = "entities.tsv", relations: str = "relations.tsv") -> dict[str, Any]:
    """What a run's config.json holds: every option, and the keys that DGL-KE's tools look for (emp_file is its spelling).

    `entities` and `relations` are the names of the id maps, inside the run folder.
    """
    return {
        "kgdist_version": version,
        **to_json(config),
        "model": config.model_name,
        "emb_size": config.hidden_dim,
        "max_train_step": config.max_step,
        "emp_file": entities,
        "emap_file": entities,
        "rmap_file": relations,
    }


def read_run(path: PathLike) -> Config:
    """The options of a run, from its folder or its config.json. Raises CheckpointError naming the file."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    saved = read_json(file)
    if not isinstance(saved, dict) or not ({"model_name", "model"} & saved.keys()):
        raise CheckpointError(f"{os.fspath(file)}: not the config.json of a run, it names no model")
    try:
        return from_json(saved)
    except OptionError as error:
        advice = missing(saved.get("model_name", saved.get("model")), saved.get("model_file"))
        raise CheckpointError(f"{os.fspath(file)}: {str(error).removeprefix('--')}{advice}") from error
