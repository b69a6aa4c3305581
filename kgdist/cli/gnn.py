"""python -m kgdist.cli.gnn OPTIONS JOB COMMAND: one worker of kgdist-dist-train --encoder, in whose environment torch.distributed
finds the others. OPTIONS is a configuration as JSON, JOB names the training when it begins again,
and stands for the run folder in COMMAND, which goes on with it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence

from kgdist.base import log
from kgdist.base.errors import PeersLost
from kgdist.cli.command import command, set_up_log
from kgdist.options.configfile import from_json
from kgdist.options.model_file import bring


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    options, run, resuming = argv
    config = from_json(json.loads(options))
    if config.model_file:
        bring(config.model_file)
    from kgdist.runtime.cluster.encoder_job import SAVED
    from kgdist.runtime.gnn import train_gnn
    from kgdist.runtime.processes.script_line import ScriptLine
    from kgdist.training.callbacks import Event, Saved

    set_up_log(config)
    log.log.debug("worker %s has the options %s", os.environ.get("RANK"), options)
    line = ScriptLine()

    def tell(event: Event) -> None:
        if isinstance(event, Saved):
            with contextlib.suppress(PeersLost):  # whose end is this worker's, too
                line.post(SAVED, step=event.step)

    result = train_gnn(config, [tell], run=run, resuming=resuming)
    return 130 if result.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
