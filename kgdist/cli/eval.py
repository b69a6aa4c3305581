"""kgdist-eval: rank the test triples with a trained run, ours or one that DGL-KE wrote."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.base.errors import KgdistError, OptionError
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.config import OPTIONS


@command()
def main(argv: Sequence[str]) -> int:
    parsed = parse.parse("eval", argv)
    import torch

    from kgdist.base import log
    from kgdist.base.files import write_json
    from kgdist.evaluation.evaluator import Evaluator
    from kgdist.models.registry import settle
    from kgdist.runs import rundir
    from kgdist.runs.opened import open_with_data
    from kgdist.runtime.job import device_of

    set_up_log(parsed.config)
    trained = rundir.open_run(parsed.config.model_path)
    config, notes = settle(parsed.over(trained.config), set(parsed.explicit))
    for note in notes:
        if "eval" in OPTIONS[note.split()[0].removeprefix("--")].commands:  # others are about training
            log.log.info(note)
    if config.report:
        from kgdist.report.charts import require
        from kgdist.report.report import report_or_warn

        require("--report")
    opened, dataset = open_with_data(trained, config, torch.device("cpu") if config.mix_cpu_gpu else device_of(config, 0))
    if config.labels is not None:
        rundir.labels_of(trained.path, dataset.entities, dataset.relations, config.labels)
    if dataset.test is None:
        raise OptionError("--dataset", f"{dataset.name} has no test triples")
    told = {}
    if config.classify or config.classify_files:  # before the ranks, which may take hours, for files may be wrong
        from kgdist.predict.classification import classify, lines
        from kgdist.predict.engine import Predictor

        predictor = Predictor.of(opened, config.num_thread)
        told = classify(predictor, dataset, config.classify_files, form=config, seed=config.seed)
    evaluator = Evaluator(dataset, config)
    report = evaluator.run(opened.model, opened.tables, "test", Path(trained.path))
    if told:
        for line in lines(told):
            log.say(line)
        report["classification"] = told
    file = Path(trained.path) / "test.json"
    try:
        write_json(file, report)
        log.say(f"saved in {file}")
    except KgdistError as error:
        log.log.warning("%s; the metrics above are complete", error)
    if config.report:
        report_or_warn(trained.path, config)
    log.result({"run": str(trained.path), "test": report})
    return 0


if __name__ == "__main__":
    sys.exit(main())
