"""What a run shows while it trains: the bar, metrics.jsonl, TensorBoard when asked for, and a disk that does not answer."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from kgdist.base.errors import OptionError
from kgdist.base.files import Moved
from kgdist.base.log import bar, log, say
from kgdist.evaluation.ranks import HITS
from kgdist.options.config import Config
from kgdist.runtime.protocol import NAMED
from kgdist.training.callbacks import Progress, Validation

POINTS = 100  # rows of metrics.jsonl, at least, when a report will draw them
NAMES = ("pos_loss", "neg_loss", "loss", "regularization")


class Sink(Protocol):
    """Where rows of metrics.jsonl go."""

    def write(self, kind: str, **values: Any) -> None:
        """Add one."""


class Metrics:
    """Appends one JSON object a line to a file: ``{"time": seconds since 1970, "kind": "train" | "valid" | ..., ...}``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, **values: Any) -> None:
        """Append one line; each line is written with a single call, so a reader never sees half of one."""
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, **values}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class Counts(NamedTuple):
    """How far a training has come: what `Observer.update` is given, and the seconds of training so far."""

    steps: int
    positives: int
    sums: np.ndarray  # float64[4]
    seconds: float


class Observer:
    """Turns counters into a bar and curves. `steps` counts the steps of all processes together.

    Rows go into the run's `folder`, or where `metrics` says; TensorBoard's curves into the folder in any case. `world` is the
    number of processes if not --num_proc. Every `--log_interval` steps of each process, and at the end, one row is written, and
    `heard` is called, with means over the steps since the row before; validations and checkpoints are not part of `seconds` and
    triples/s. These count a triple once in a pass over the data, also where the pass asks for its head and for its tail.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        *,
        total: int,
        initial: int = 0,
        world: int | None = None,
        metrics: Sink | None = None,
        heard: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.world = config.num_proc if world is None else world
        self.interval = config.log_interval * self.world
        if config.report:  # a picture of the course needs points, however long the run
            self.interval = min(self.interval, max(self.world, total // POINTS))
        self.metrics = metrics or Metrics(folder / "metrics.jsonl")
        self.writer = curves_writer()(str(folder / "tensorboard")) if config.tensorboard else None
        self.bar = bar(total=total, desc="train", unit="step", initial=initial)
        self.initial, self.total, self.heard, self.folder = initial, total, heard, folder
        self._missed = False  # a row of metrics.jsonl
        self.seconds = 0.0  # of training so far
        self._resumed = time.perf_counter()
        self._uses = 2 if config.candidates == "all" else 1  # of a triple in a pass, each a positive
        self._now = self._row = Counts(initial, 0, np.zeros(4), 0.0)  # and what they were at the last row

    def update(self, steps: int, positives: int, sums: np.ndarray) -> None:
        """`steps` done since the run's first, `positives` and float64[4] loss `sums` since this session's first."""
        if not positives:
            self.resume()  # processes are still starting: training time begins with the first step
        if not self.bar.disable:
            self.bar.update(steps - self.bar.n)
        self._now = Counts(steps, positives, sums, self.seconds + time.perf_counter() - self._resumed)
        if steps - self._row.steps >= self.interval:
            self._tell()

    def end(self) -> None:
        """No step follows: the last row, of those that no row tells of."""
        self.pause()
        self._now = self._now._replace(seconds=self.seconds)
        if self._now.steps // self.world > self._row.steps // self.world:
            self._tell()
        self.bar.close()

    def _tell(self) -> None:
        now, before = self._now, self._row
        self._row = now._replace(sums=now.sums.copy())
        steps, mean = now.steps, (now.sums - before.sums) / (now.steps - before.steps)
        seconds = max(now.seconds - before.seconds, 1e-9)
        rate = (now.positives - before.positives) / self._uses / seconds
        values = {name: round(float(value), 6) for name, value in zip(NAMES, mean, strict=True)}
        self.bar.set_postfix({"loss": f"{values['loss']:.4f}", "triples/s": f"{rate:,.0f}"}, refresh=False)
        speed = {"triples_per_second": round(rate), "seconds": round(seconds, 3)}
        self.write("train", step=steps // self.world, **speed, **values)
        self.heard(
            Progress(
                step=steps // self.world,
                total=self.total // self.world,
                loss=values["loss"],
                positive_loss=values["pos_loss"],
                negative_loss=values["neg_loss"],
                regularization=values["regularization"],
                triples_per_second=rate,
                folder=str(self.folder),
            )
        )

    def write(self, kind: str, *, step: int, **values: Any) -> None:
        """One row of metrics.jsonl, and its numbers as TensorBoard curves. A disk that takes no row does not end the training."""
        try:
            self.metrics.write(kind, step=step, **values)
        except OSError as error:
            if not self._missed:  # once is enough
                log.warning("metrics.jsonl: cannot be written (%s); rows will be missing", error.strerror or error)
            self._missed = True
        for name, value in values.items():
            if isinstance(value, int | float):
                self._draw("add_scalar", f"{kind}/{name}", value, step)

    def pause(self) -> None:
        """Training waits (validation, checkpoint)."""
        self.seconds += time.perf_counter() - self._resumed

    def resume(self) -> None:
        """Training goes on."""
        self._resumed = time.perf_counter()

    def say_speed(self) -> None:
        """Tell how long the training took, and how fast it was."""
        if triples := self._now.positives // self._uses:
            rate = triples / max(self.seconds, 1e-9)
            say(f"training took {self.seconds:.1f} seconds: {triples} triples, {rate:,.0f} triples/s")

    def close(self) -> None:
        """End the bar and flush the curves."""
        self.bar.close()
        self._draw("close")

    def _draw(self, what: str, *arguments: Any) -> None:
        """Let TensorBoard's writer do something; one that fails draws no more, and the training goes on."""
        if self.writer is None:
            return
        try:
            getattr(self.writer, what)(*arguments)
        except Exception as error:  # of a library, and of the thread with which it writes
            log.warning("--tensorboard: %s; curves will end here", error)
            self.writer = None


def validation(report: Mapping[str, Any], step: int, total: int, best: bool, where: str) -> Validation:
    """The event of a validation that has given `report`."""
    found = report["all"]["realistic"]
    values = {name: found[name] for name in ("mrr", "mr")} | {f"hits{k}": found[f"hits@{k}"] for k in HITS}
    return Validation(step=step, total=total, auc_roc=found["auc-roc"], best=best, report=report, folder=where, **values)


def curves_writer() -> Any:
    """The class that writes TensorBoard's files. Raises OptionError when the package is not there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise OptionError(
            "--tensorboard", f"needs the package tensorboard ({error}); pip install 'kgdist[tensorboard]'"
        ) from error
    _hush_writers()
    return SummaryWriter


@functools.cache
def _hush_writers() -> None:
    """The thread in which TensorBoard writes hands its error to whoever draws next, who tells of it; Python would print its
    traceback as well, in the midst of lines of ours."""
    before = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not type(failed.thread).__module__.startswith("tensorboard."):
            before(failed)

    threading.excepthook = hook


@contextlib.contextmanager
def watched(path: Path) -> Iterator[Moved]:
    """Say it once when the block, which works on files at `path`, does nothing for too long; it calls what it is given.

    Nothing can be done about it: a process that is inside a call of the system's ends when that answers, also by a signal.
    """
    last, over = [time.monotonic()], threading.Event()

    def moved(count: int) -> None:
        last[0] = time.monotonic()

    def watch() -> None:
        while not over.wait(min(1.0, NAMED)):
            if time.monotonic() - last[0] > NAMED:
                log.warning("%s: nothing was written for %g s; the file system does not answer, and all wait for it", path, NAMED)
                return

    thread = threading.Thread(target=watch, name="kgdist-silence", daemon=True)
    thread.start()
    try:
        yield moved
    finally:
        over.set()
        thread.join(timeout=1.0)
