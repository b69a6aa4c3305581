"""kgdist-encode: entities that a run has never seen, by its encoder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgdist.base.errors import KgdistError
from kgdist.base.log import log, result
from kgdist.base.machine import usable_cores
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import EncodeOptions


@command()
def main(argv: Sequence[str]) -> int:
    options: EncodeOptions = parse.parse_tool("encode", argv)
    import torch

    from kgdist.runs.newcomers import encode

    set_up_log(options)
    threads = options.num_thread or usable_cores()
    torch.set_num_threads(threads)
    out, config, about = encode(options)
    if options.test is not None:
        about["test"] = ranked(out, config, threads)
    result(about)
    return 0


def ranked(out: Path, config: Any, threads: int) -> dict[str, Any]:
    """The report of the test triples, among all entities; saved as test.json. What fails is said with what to do: the run is
    there."""
    from kgdist.base.files import write_json
    from kgdist.evaluation.evaluator import Evaluator
    from kgdist.runs import rundir
    from kgdist.runs.opened import open_with_data

    everybody = {"neg_sample_size_eval": -1, "neg_deg_sample_eval": False, "eval_percent": 1.0, "no_eval_filter": False}
    config = config.replace(gpu=(-1,), num_proc=1, num_thread=threads, compute_dtype="float32", **everybody)
    opened, dataset = open_with_data(rundir.open_run(out), config)
    report = Evaluator(dataset, config).run(opened.model, opened.tables, "test", out)
    try:
        write_json(out / "test.json", report)
    except KgdistError as error:
        log.warning("%s; the metrics above are complete", error)
    return report


if __name__ == "__main__":
    sys.exit(main())
