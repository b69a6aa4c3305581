"""kgdist-train: train, validate, test and save on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kgdist.base.errors import UsageError
from kgdist.cli.command import command, recipe_of, set_up_log
from kgdist.options import parse


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    if not argv:  # the defaults, DGL-KE's, would train TransE on FB15k for 80,000 steps
        raise UsageError("say what to train on: --dataset wordnet --model_name ComplEx --preset; see kgdist-train -h")
    parsed = parse.parse("train", argv, recipe=recipe_of)
    if not parsed.config.resume:  # which has its data's place from the run
        from kgdist.data.dataset import find_files

        find_files(parsed.config)
    from kgdist.base import log  # after the flags: --help and usage errors need no torch
    from kgdist.runtime import local
    from kgdist.runtime.told import ready

    config = parsed.config
    set_up_log(config)
    config = ready(parsed)
    if config.report:
        from kgdist.report.charts import require
        from kgdist.report.report import report_or_warn

        require("--report")  # now, not after the training
    result = local.train(config)
    if config.report and result.folder is not None and not result.interrupted:
        report_or_warn(result.folder, config)
    log.result({"run": str(result.folder), "interrupted": result.interrupted, "test": result.metrics})
    return 130 if result.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
