"""What a training against all entities will take, told before it starts: its steps cost the same whatever the rows are, so two of
them, whose gradients are thrown away, say how long all will take."""

from __future__ import annotations

from time import perf_counter

from kgdist.base.errors import OptionError
from kgdist.base.files import size
from kgdist.kernels import gemm
from kgdist.kernels.full import kept_bytes
from kgdist.models.registry import DISTANCES, MODELS
from kgdist.options.config import Config
from kgdist.runtime.job import warm_up
from kgdist.training.loop import Trainer

DAY = 86400.0
WORTH = 60.0  # seconds from which a faster way is told of


def duration(seconds: float) -> str:
    """In words, to about a tenth."""
    if seconds < 1.5:
        return "a second"
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    if seconds < 6000:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 2 * DAY else f"{seconds / DAY:.1f} days"


def bytes_beside(config: Config, entities: int, width: int) -> int:
    """What a step against all needs beside rows and the optimiser's state: gradients of all rows, and scores that are kept."""
    return 4 * entities * width + kept_bytes(entities, config.batch_size, low=config.compute_dtype == "bfloat16")


def estimate(config: Config, trainer: Trainer, done: int = 0) -> str:
    """Time and memory of a trainer's steps, but for those that are `done`, in one line. Raises OptionError where they take over a
    day without `--yes`."""
    warm_up(config, weighted=trainer.batch(0).weights is not None)
    seconds = min(_once(trainer, number) for number in range(2))
    rows, width = trainer.tables.shape("entity")
    rate = 6.0 * config.batch_size * rows * width / seconds / 1e9
    steps = trainer.total - done
    whole, memory = seconds * steps, size(max(100_000, bytes_beside(config, rows, width)))
    speed = f" at {rate:,.0f} GFLOP/s" if rate >= 1 else ""  # a step on a few entities is not of products
    line = (
        f"{steps:,} steps against all {rows:,} entities will take about {duration(whole)}{speed}, and "
        f"{memory} of memory beside rows and optimiser"
    )
    on_cpu = config.gpu[0] < 0 and config.compute_dtype == "float32"
    if whole > WORTH and on_cpu and MODELS[config.model_name].compare not in DISTANCES and gemm.fast_on_this_cpu():
        line += "; --compute_dtype bfloat16 would about halve the time on this CPU"
    if whole > DAY and not (config.yes or config.resume):
        message = f"{line}: add --yes to begin all the same, or take fewer epochs, a smaller --hidden_dim, or more --answers"
        raise OptionError("--candidates", message)
    return line


def _once(trainer: Trainer, number: int) -> float:
    started = perf_counter()
    trainer.compute(number)
    return perf_counter() - started
