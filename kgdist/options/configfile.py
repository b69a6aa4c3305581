"""Options in files: the YAML that users write, and the config.json that every run saves.

The YAML is one flat mapping from option to value (`kgdist.options.yamlfile`). config.json is read in three dialects, ours and the
two of DGL-KE, and written so that DGL-KE's tools find their keys too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kgdist.base.errors import CheckpointError, OptionError
from kgdist.base.files import PathLike, read_json
from kgdist.options.config import OPTIONS, Config
from kgdist.options.model_file import missing
from kgdist.options.yamlfile import Setting, read_settings


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


def _checked(setting: Setting) -> Any:
    row, value = OPTIONS[setting.option.name], setting.value  # as it is by now: a model_file adds a choice
    try:
        return row.check(value)
    except OptionError as error:
        hint = '; put it in "quotes"' if row.kind is str and isinstance(value, (bool, int, float)) else ""
        raise setting.refused(error, hint) from error


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
