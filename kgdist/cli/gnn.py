"""python -m kgdist.cli.gnn OPTIONS JOB COMMAND: one worker of kgdist-dist-train --encoder, in whose environment torch.distributed
finds the others. OPTIONS is a configuration as JSON, JOB names the training when it begins again,
and stands for the run folder in COMMAND, which goes on with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from kgdist.base import log
from kgdist.cli.command import command, set_up_log
from kgdist.options.configfile import from_json
from kgdist.options.model_file import bring


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    options, run, resuming = argv
    config = from_json(json.loads(options))
    if config.model_file:
        bring(config.model_file)
    from kgdist.runtime.gnn import train_gnn

    set_up_log(config)
    log.log.debug("worker %s has the options %s", os.environ.get("RANK"), options)
    result = train_gnn(config, run=run, resuming=resuming)
    return 130 if result.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
