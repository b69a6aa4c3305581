"""A folder that DGL-KE's training left, as a model to adopt: its arrays as they are, its options, and the names of its ids.

The names lie with its data, not with its model: entities.tsv and relations.tsv in --data_path (raw_udd), the dictionary files
(udd), or the data set's own (built_in). Ids made again from the triples could be others, so they are not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kgdist.base.errors import CheckpointError, KgdistError, UsageError
from kgdist.base.files import read_json
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange.foreign import Foreign, Table
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.runs import rundir
from kgdist.runtime.job import open_dataset

Names = tuple[Vocabulary, Vocabulary]


def read(folder: Path, config: Config, names: Names | None) -> Foreign:
    """The model in `folder`, trained with `config`. `names` of entities and relations win over those that are found.

    Raises CheckpointError for a folder that is none of DGL-KE's, an array that is damaged or of another shape than options and
    names say, and for names that are nowhere.
    """
    opened = rundir.open_run(folder)
    saved = read_json(folder / "config.json")
    if "kgdist_version" in saved:
        raise UsageError(f"{folder}: is a run of kgdist already; every command reads it as it is")
    # Its release 0.1 does not say the format, and only raw_udd has maps in data_path.
    entities, relations = names or _names(opened, config if "format" in saved else config.replace(format="raw_udd_hrt"))
    tables = rundir.load_tables(opened, opened.config, model_of(opened.config), len(entities), len(relations)).rows
    return Foreign(config, {name: _as_it_is(rows.numpy()) for name, rows in tables.items()}, entities, relations)


def _as_it_is(rows: np.ndarray) -> Table:
    return Table(len(rows), rows.shape[1], lambda start, stop: rows[start:stop])


def _names(opened: rundir.Run, config: Config) -> Names:
    try:
        with_maps = rundir.maps_with_data(opened, config)
        if with_maps.vocabularies is not None:
            return with_maps.vocabularies
        dataset = open_dataset(config)
    except KgdistError as error:
        raise CheckpointError(f"{error}; or give --entity_mfile and --rel_mfile") from error
    return dataset.entities, dataset.relations
