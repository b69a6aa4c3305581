"""Embeddings as the folder that DGL-KE's training leaves: what dglke_eval, dglke_predict and dglke_emb_sim read.

`<dataset>_<model>_entity.npy` and its kin, config.json with the keys of both of its releases, and the maps. Its dglke_predict
turns RotatE's phases by (gamma + 2) / 2 too far unless asked for --score_func logsigmoid, and cannot read TransR; dglke_eval can.
"""

from __future__ import annotations

from pathlib import Path

from kgdist.base.errors import OptionError
from kgdist.base.files import write_json
from kgdist.exchange.npy import write_array
from kgdist.exchange.source import Source
from kgdist.options.config import MODELS, OPTIONS
from kgdist.options.configfile import run_json
from kgdist.runs.rundir import array_names
from kgdist.version import __version__

_KEYS = ("model", "emb_size", "max_train_step", "emp_file", "emap_file", "rmap_file")


def write(source: Source, folder: Path) -> None:
    """The folder. Raises OptionError for a model that DGL-KE has not, and for half of one."""
    config = source.config
    if config.model_name not in MODELS:
        raise OptionError("--to", f"DGL-KE has no model {config.model_name}; take another format")
    if len(source.names) < 2:
        raise OptionError("--tables", "a DGL-KE folder holds both; leave the option out")
    for table, name in array_names(config).items():
        write_array(source, table, folder / name)
    values = run_json(config, version=__version__)
    theirs = {name: values[name] for name, row in OPTIONS.items() if "train" in row.dglke}
    computed = {"eval_filter": not config.no_eval_filter, "soft_rel_part": False, "strict_rel_part": False}
    write_json(folder / "config.json", {**theirs, **computed, **{key: values[key] for key in _KEYS}})
