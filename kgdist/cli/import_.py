"""kgdist-import: a model that another tool has trained, as a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from kgdist.base.errors import CheckpointError, OptionError
from kgdist.cli.command import run
from kgdist.options import parse
from kgdist.options.config import Config
from kgdist.options.tools import ImportOptions

_DATA = ("dataset", "data_path", "format", "data_files", "delimiter")


def take_over(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    parsed, given = parse.parse_tool("import", argv)
    options = cast(ImportOptions, parsed)
    if options.model_path is None:
        raise OptionError("--model_path", "say which folder the model is in")
    if (options.entity_mfile is None) != (options.rel_mfile is None):
        raise OptionError("--entity_mfile", "goes with --rel_mfile: give both, or neither")
    from kgdist.base import log
    from kgdist.data.vocabulary import Vocabulary
    from kgdist.exchange import adopt, pykeen
    from kgdist.options.configfile import read_run

    log.setup(debug=options.debug, quiet=options.quiet)
    folder = Path(options.model_path)
    changes = {name: getattr(options, name) for name in _DATA if name in given}
    names = None
    if options.entity_mfile is not None and options.rel_mfile is not None:
        names = (Vocabulary.read_tsv(options.entity_mfile), Vocabulary.read_tsv(options.rel_mfile))
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    if any((folder / name).exists() for name in (pykeen.FACTS, "trained_model.pkl", "training_triples")):
        model = pykeen.read(folder, Config(**{"dataset": "pykeen"} | changes), names)
    else:
        model = adopt.read_dglke(folder, read_run(folder).replace(**changes), names)
    log.say(f"saved in {adopt.adopt(model, options.save_path)}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(take_over, argv)


if __name__ == "__main__":
    sys.exit(main())
