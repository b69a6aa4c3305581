"""The options of a search, and those of a training that it takes for its trials."""

from __future__ import annotations

import dataclasses
from functools import partial

from kgdist.options.option import option

_what = partial(option, group="input")
_how = partial(option, group="options")
_output = partial(option, group="output")

# Options of kgdist-train that kgdist-tune takes for all of its trials: these groups, and these options.
TUNE_GROUPS = ("data", "model", "training", "loss", "negative samples", "encoder", "hardware")
TUNE_BESIDES = (
    "config", "preset", "init_from", "init_vectors", "freeze", "early_stop_patience", "batch_size_eval", "neg_sample_size_eval",
    "neg_deg_sample_eval", "eval_percent", "no_eval_filter", "yes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """Of kgdist-tune. See kgdist.tuning."""

    trials: int = _what(20, "total number of trials, including those of earlier calls with the same --out", low=1)
    search: str | None = _what(None, "file of the options to search, one per line (lr: [0.01, 0.3, log])", metavar="FILE.yaml")
    rounds: int = _what(
        1,
        "search in this many rounds: the first trains all trials on a small k-core of the graph for few epochs, each later one "
        "the best of the round before on a larger core for more epochs, and the last one the best of all on the whole graph "
        "(GraSH, Kochsiek et al. 2022). A round costs about as much as one training, however many trials it has",
        low=1,
        high=16,
    )
    validations: int = _how(
        9, "validations per trial. A trial outside the best third at its 1st, 3rd, 9th, ... validation is stopped", low=1
    )
    jobs: int | None = _how(
        None,
        "trials to train at the same time. When not given: as many as the cores allow, but one with --seed or on a GPU. With one "
        "job and a --seed, every digit repeats",
        low=1,
        high=4096,
    )
    out: str = _output("tune", "folder of the search, with best.yaml, the study and the trials", metavar="FOLDER")
    report: bool = _output(
        False,
        "write report.html into --out: history, importance of each option, curves of trials, the best command, in one file "
        "(needs the extra kgdist[viz]). Also of an earlier search: the same command with this flag",
    )
