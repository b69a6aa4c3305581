"""What users write in YAML (options; a schema of attributes, see `read_entries`), and the config.json that every run saves.

The YAML is one flat mapping from option to value. A document is composed into nodes and nothing is constructed: tags, anchors,
aliases and deep nesting are refused by file and line before they are followed. Numbers are decimal as in YAML 1.2 (1e-9 is a
number; 0x10 and yes are text). config.json is read in three dialects, ours and the two of DGL-KE, and written so that DGL-KE's
tools find their keys too.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kgdist.base.errors import CheckpointError, DataError, OptionError
from kgdist.base.files import PathLike, read_json
from kgdist.options.config import OPTIONS, Config
from kgdist.options.model_file import missing
from kgdist.options.option import Option, closest, number, show
from kgdist.options.resolve import meant

LIMIT = 1 << 20  # bytes of a file
DEEPEST = 4  # a scalar in a list in a mapping in the document
_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = ("", "~", "null", "Null", "NULL")
DIGEST = "data_digest"  # key of config.json: what the run was trained on, whatever it is called
_NAMING = ("model_name", "model_file", "dataset", "num_proc", "seed")
_REFUSED = {"config": "a file cannot name another one", "resume": "give it as a flag"}
# After the name of a model in config.json: releases that do not know inverse relations, and DGL-KE, would take a row for another
# relation's, and refuse a model that they do not know.
INVERSES = " with inverse relations"
_DGLKE_NAMES = {"model": "model_name", "emb_size": "hidden_dim", "max_train_step": "max_step"}  # config.json of DGL-KE 0.1


# ---------------------------------------------------------------------------------------------------------------- YAML
@dataclasses.dataclass(frozen=True)
class Setting:
    """What a file says of one option, unchecked: a scalar, or lists and mappings of scalars."""

    option: Option
    value: Any
    path: PathLike
    line: int

    def refused(self, error: OptionError, hint: str = "") -> DataError:
        """The error of the line."""
        return DataError(self.path, str(error).removeprefix("--") + hint, line=self.line)


def read_settings(path: PathLike, command: str, flag: str, example: str) -> list[Setting]:
    """What the YAML file that `flag` names sets, in its order; `example` is a line as it could stand there.

    Raises DataError (file:line) for what is no option of `command`, set twice, or beyond one flat mapping.
    """
    node = _document(path, flag)
    if node is None or (isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULLS):
        return []
    if not isinstance(node, yaml.MappingNode):
        raise DataError(path, f"expected one option per line, such as {example}", line=_line(node))
    settings = []
    for key, value in node.value:
        if (problem := _unknown(key.value, command)) is not None:
            raise DataError(path, problem, line=_line(key))
        settings.append(Setting(OPTIONS[key.value], _plain(value), path, _line(key)))
    return settings


def _unknown(name: str, command: str) -> str | None:
    """Why a file for `command` has no option of this name, or None."""
    names = [row.name for row in OPTIONS.values() if command in row.commands]
    if name in _REFUSED:
        return f"{name}: {_REFUSED[name]}"
    if name in OPTIONS:
        return None if name in names else f"{name}: not an option of kgdist-{command}"
    near = closest(name, names)
    return f"{show(name)[1:-1]}: no such option" + (f"; did you mean {near}?" if near else "")


class Entry(NamedTuple):
    """A value of a YAML file with its place: a scalar, a list of scalars, or a mapping of entries."""

    value: Any
    line: int


def read_entries(path: PathLike, flag: str) -> Entry:
    """All that the YAML file named by `flag` says, for a command that has keys of its own; None where it says nothing.

    Raises DataError (file:line) for what cannot be read, a key that appears twice, and YAML that is not used here.
    """
    node = _document(path, flag)
    return Entry(None, 1) if node is None else _entry(node)


def _entry(node: yaml.Node) -> Entry:
    if isinstance(node, yaml.MappingNode):
        return Entry({key.value: _entry(value)._replace(line=_line(key)) for key, value in node.value}, _line(node))
    return Entry(_plain(node), _line(node))


class _Refused(yaml.MarkedYAMLError):
    """YAML, but none that is used here."""


class _Composer(yaml.SafeLoader):
    """Nodes, `DEEPEST` of them in one another, without anchors, aliases and tags; keys are scalars, and different."""

    depth = 0
    place = ""  # the option whose value is composed

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.depth == 1:
            self.place = f"{show(index.value)[1:-1]}: " if isinstance(index, yaml.ScalarNode) else ""
        alias = isinstance(event, yaml.AliasEvent)
        for name, kind, sign in (("anchor", "aliases" if alias else "anchors", "*" if alias else "&"), ("tag", "tags", "")):
            if found := getattr(event, name, None):
                problem = f"{self.place}{kind} ({sign}{found[:40]}) are not used here; write the plain value"
                raise _Refused(None, None, problem, event.start_mark)
        self.depth += 1
        if self.depth > DEEPEST:
            raise _Refused(None, None, f"{self.place}nested too deep", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused(None, None, "expected the name of an option, such as lr: 0.1", key.start_mark)
            if key.value in lines:
                problem = f"{show(key.value)[1:-1]}: set already in line {lines[key.value]}"
                raise _Refused(None, None, problem, key.start_mark)
            lines[key.value] = _line(key)
        return node


def _document(path: PathLike, flag: str) -> yaml.Node | None:
    try:
        with open(path, "rb") as file:
            raw = file.read(LIMIT + 1)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror}); {flag} wants a YAML file") from error
    if len(raw) > LIMIT:
        raise DataError(path, f"larger than {LIMIT >> 20} MiB; a file of options is a few lines")
    try:
        return yaml.compose(raw.decode("utf-8-sig"), Loader=_Composer)
    except UnicodeDecodeError as error:
        raise DataError(path, f"not UTF-8 at byte {error.start}") from error
    except yaml.MarkedYAMLError as error:
        problem = error.problem if isinstance(error, _Refused) else f"not YAML ({error.problem or error.context})"
        if isinstance(error, yaml.composer.ComposerError):  # all else that it would find is refused before
            problem = "a second document starts here; put all options into one"
        raise DataError(path, str(problem), line=error.problem_mark.line + 1 if error.problem_mark else None) from error
    except yaml.YAMLError as error:
        raise DataError(path, f"not YAML ({' '.join(str(error).split())})") from error


def _plain(node: yaml.Node) -> Any:
    """The value of a node. A scalar in quotes is text; a plain one is null, true, false, a decimal number or text."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    text = str(node.value)
    if node.style is not None:  # type: ignore[attr-defined]
        return text
    return None if text in _NULLS else _WORDS[text] if text in _WORDS else number(text)


def _line(node: yaml.Node) -> int:
    """Where a node starts, counted from 1."""
    return int(node.start_mark.line) + 1


def read_yaml(path: PathLike, command: str, bring: Callable[[str], None] = lambda file: None) -> dict[str, Any]:
    """The options that a YAML file sets, checked; lists become tuples. `bring` gets a --model_file before the model is checked.

    Raises DataError (file:line) for what is no option of `command`, set twice, of the wrong type or out of range, and for YAML
    beyond one flat mapping.
    """
    settings = read_settings(path, command, "--config", "lr: 0.1")
    models = [each for each in settings if each.option.name == "model_name"]  # which a model_file in any line may bring
    values = {each.option.name: _checked(each) for each in settings if each not in models}
    values = {name: value for name, value in values.items() if value is not None}  # null: as if the line were not there
    if "model_file" in values:
        bring(values["model_file"])
    return values | {each.option.name: _checked(each) for each in models}


def read_options(path: PathLike, command: str, bring: Callable[[str], None] = lambda file: None) -> dict[str, Any]:
    """The options of `--config`: of a YAML file, or those of a run (its folder or its config.json) that are not the defaults.

    Raises DataError as `read_yaml`, CheckpointError as `read_run`.
    """
    if not os.path.isdir(path) and os.path.basename(path) != "config.json":
        return read_yaml(path, command, bring)
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    saved = read_json(Path(file))
    own = saved.get("model_file") if isinstance(saved, dict) else None
    if isinstance(own, str) and own:
        bring(own)
    values = differing(read_run(path))
    return {name: value for name, value in values.items() if command in OPTIONS[name].commands and name != "save_path"}


def differing(config: Config) -> dict[str, Any]:
    """The options of a run that make another one like it: those of its training that are not the defaults, and what names it."""
    plain, said = Config(), {*_NAMING, *meant(config)}
    values = {
        name: getattr(config, name)
        for name, row in OPTIONS.items()
        if (row.made_again and "train" in row.commands and getattr(config, name) != getattr(plain, name)) or name in said
    }
    if config.max_epoch is not None:
        values.pop("max_step", None)
    return values if values["model_file"] else {name: value for name, value in values.items() if name != "model_file"}


def _checked(setting: Setting) -> Any:
    row, value = OPTIONS[setting.option.name], setting.value  # as it is by now: a model_file adds a choice
    try:
        return row.check(value)
    except OptionError as error:
        hint = '; put it in "quotes"' if row.kind is str and isinstance(value, (bool, int, float)) else ""
        raise setting.refused(error, hint) from error


# ---------------------------------------------------------------------------------------------------------------- config.json
def to_json(config: Config) -> dict[str, Any]:
    """Every option by name, as JSON values; floats survive exactly."""
    return {name: list(value) if isinstance(value := getattr(config, name), tuple) else value for name in OPTIONS}


def from_json(saved: Mapping[str, Any]) -> Config:
    """Options of a saved config.json: ours, or one of DGL-KE (all flags by name; or model, emb_size, max_train_step).

    Keys that are no option are ignored. Raises OptionError for a value that cannot be.
    """
    values = {name: saved[key] for key, name in _DGLKE_NAMES.items() if key in saved}
    values.update((key, value) for key, value in saved.items() if key in OPTIONS)
    named = values.get("model_name")
    if isinstance(named, str) and named.endswith(INVERSES):
        values |= {"model_name": named.removesuffix(INVERSES), "reciprocal": True}
    for name in values:
        if OPTIONS[name].many and isinstance(values[name], int):
            values[name] = [values[name]]  # DGL-KE saves the gpu of a distributed run as one number
    return Config(**{name: value for name, value in values.items() if value is not None})


def run_json(
    config: Config, *, version: str, entities: str = "entities.tsv", relations: str = "relations.tsv", data: str = ""
) -> dict[str, Any]:
    """What a run's config.json holds: every option, and the keys that DGL-KE's tools look for (emp_file is its spelling).

    `entities` and `relations` are the names of the id maps, inside the run folder; `data` is the digest of the data set.
    """
    name = config.model_name + (INVERSES if config.reciprocal else "")
    return {
        "kgdist_version": version,
        **({DIGEST: data} if data else {}),
        **to_json(config),
        "model_name": name,
        "model": name,
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
        named = saved.get("model_name", saved.get("model"))
        advice = missing(named.removesuffix(INVERSES) if isinstance(named, str) else named, saved.get("model_file"))
        raise CheckpointError(f"{os.fspath(file)}: {str(error).removeprefix('--')}{advice}") from error
