"""kgdist-import: a model that another tool has trained, as a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.base.errors import CheckpointError
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.config import Config
from kgdist.options.tools import ImportOptions

_DATA = ("dataset", "data_path", "format", "data_files", "delimiter")


@command()
def main(argv: Sequence[str]) -> int:
    options: ImportOptions = parse.parse_tool("import", argv)
    from kgdist.base import log
    from kgdist.data.vocabulary import Vocabulary
    from kgdist.exchange import adopt, libkge, pykeen
    from kgdist.options.configfile import read_run

    set_up_log(options)
    folder = Path(str(options.model_path))
    changes = {name: value for name in _DATA if (value := getattr(options, name)) not in (None, ())}
    names = None
    if options.entity_mfile is not None and options.rel_mfile is not None:
        names = (Vocabulary.read_tsv(options.entity_mfile), Vocabulary.read_tsv(options.rel_mfile))
    checkpoint = libkge.checkpoint_in(folder)
    if checkpoint is None and not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    if checkpoint is not None:
        model = libkge.read(checkpoint, changes, names)
    elif any((folder / name).exists() for name in (pykeen.FACTS, "trained_model.pkl", "training_triples")):
        model = pykeen.read(folder, Config(**{"dataset": "pykeen"} | changes), names)
    elif not (folder / "config.json").exists():
        tools = "DGL-KE (config.json), PyKEEN (what examples/from_pykeen writes) or LibKGE (a checkpoint)"
        raise CheckpointError(f"{folder}: not the model of {tools}")
    else:
        model = adopt.read_dglke(folder, read_run(folder).replace(**changes), names)
    log.say(f"saved in {adopt.adopt(model, options.save_path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
