"""What Python hears of a training while it runs, and how it ends one: functions that get events and may answer STOP.

    def enough(event):
        if isinstance(event, kgdist.Validation) and event.mrr > 0.5:
            return kgdist.STOP

    kgdist.train(model_name="ComplEx", dataset="wordnet", valid=True, callbacks=[enough])

Callbacks are called in the process and thread that called `kgdist.train`, one after another, also when workers do the training
(which go on meanwhile, except during a validation). One that raises ends the training as Ctrl-C does: what was trained is saved,
nothing is left running, and the exception comes out of `kgdist.train`. Nothing here knows how a training works.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kgdist.base.log import log


class _Answer(enum.Enum):
    STOP = "stop"

    def __repr__(self) -> str:
        return "kgdist.STOP"


STOP = _Answer.STOP
"""Returned by a callback: end the training after this step, as if it had been the last one."""


@dataclass(frozen=True)
class Progress:
    """Every `log_interval` steps, or after more when workers are faster than whoever looks, and at the end: means over the steps
    since then."""

    step: int  # of each worker
    total: int  # steps of each worker, in the end
    loss: float  # with the regularisation
    positive_loss: float
    negative_loss: float
    regularization: float
    triples_per_second: float  # of all workers together, each once in an epoch; validations and checkpoints do not count
    folder: str  # of the run


@dataclass(frozen=True)
class Validation:
    """After each validation (`valid=True`, every `eval_interval` steps): filtered ranks of the valid split, ties realistic."""

    step: int
    total: int
    mrr: float
    mr: float
    hits1: float
    hits3: float
    hits10: float
    auc_roc: float | None  # None where no query had a rival
    best: bool  # no validation before had a higher MRR
    report: Mapping[str, Any]  # all of valid.json
    folder: str


@dataclass(frozen=True)
class Saved:
    """After each checkpoint that was written, the folder `ckpt-<step>` of the run folder."""

    step: int
    total: int
    folder: str


Event = Progress | Validation | Saved
Callback = Callable[[Any], object]  # gets an Event; STOP is the one answer that means something


class Callbacks:
    """The callbacks of one training, and what has come of them."""

    def __init__(self, functions: Iterable[Callback] = ()) -> None:
        self._functions = list(functions)
        for function in self._functions:
            if not callable(function):
                raise TypeError(f"callbacks: {function!r:.60} cannot be called; a callback is a function of one event")
        self.stop = False  # one has answered STOP, or raised
        self.failure: Exception | None = None

    def tell(self, event: Event) -> None:
        """Call them, until one raises."""
        for function in self._functions if self.failure is None else ():
            try:
                self.stop |= function(event) is STOP
            except Exception as error:  # the training is to end as it does on Ctrl-C, and then to raise it
                log.warning("a callback failed at step %d, so the training ends", event.step)
                self.failure, self.stop = error, True
                return
