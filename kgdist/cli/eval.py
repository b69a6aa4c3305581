"""kgdist-eval: rank the test triples with a trained run, ours or one that DGL-KE wrote."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgdist.base.errors import KgdistError, OptionError
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.config import OPTIONS, Config

BESIDE = ("classification", "missing_relations")  # what is found beside the ranks, and only when it is asked for


def _found_before(file: Path, report: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier evaluation found beside these very ranks, and this one was not asked for: `file` is written anew."""
    from kgdist.base.files import read_json

    try:
        before = read_json(file)
    except KgdistError:
        return {}
    if not isinstance(before, dict) or before.get("all") != json.loads(json.dumps(report["all"])):
        return {}
    return {name: before[name] for name in BESIDE if name in before and name not in report}


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
    if config.model_name != trained.config.model_name:
        raise OptionError("--model_name", f"{trained.path} is a run of {trained.config.model_name}; drop it")
    form = config
    if config.classify_files and config.format == "built_in":  # whose files are as they are: this is of the others
        config = config.replace(delimiter=Config.delimiter, header=Config.header, quoted=Config.quoted)
    for note in notes:
        if "eval" in OPTIONS[name := note.split()[0].removeprefix("--")].commands and name != "num_thread":  # of training
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
        told = classify(predictor, dataset, config.classify_files, form=form, seed=config.seed)
    evaluator = Evaluator(dataset, config)
    report = evaluator.run(opened.model, opened.tables, "test", Path(trained.path))
    if told:
        for line in lines(told):
            log.say(line)
        report["classification"] = told
    file = Path(trained.path) / "test.json"
    report |= _found_before(file, report)
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
