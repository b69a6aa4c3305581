"""What a training refuses before it has written anything: data, memory or disk that cannot do.

Contradictions between options alone are refused earlier, by `kgdist.options.contradictions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgdist.base.errors import OptionError, UsageError
from kgdist.base.files import free_bytes, size
from kgdist.base.machine import free_memory
from kgdist.data.dataset import Dataset
from kgdist.kvstore.optim import OPTIMIZERS
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import MODELS
from kgdist.options.config import Config
from kgdist.options.model_file import OWN
from kgdist.runtime.memory import page_tables

STATE = ("optimizer",)  # on these depends what a checkpoint holds besides rows


def check_splits(config: Config, dataset: Dataset) -> None:
    """Refuse --valid or --test without such triples, and an empty train split."""
    for flag, split in (("valid", dataset.valid), ("test", dataset.test)):
        if getattr(config, flag) and (split is None or not len(split)):
            raise OptionError(f"--{flag}", f"{dataset.name} has no {flag} triples; give a {flag} file or drop the flag")
    if not len(dataset.train):
        raise UsageError(f"{dataset.name}: the train split is empty")


def check_model(config: Config) -> None:
    """Refuse a score function of the user's own that worker processes could not find."""
    several = config.num_proc > 1 and config.worker == "process"
    if several and config.model_name in OWN and config.model_file is None:
        message = f"only this process knows {config.model_name}: name the file that registers it with --model_file"
        raise OptionError("--num_proc", f"{message}, or take --worker thread")


def check_memory(config: Config, shapes: dict[str, tuple[int, int]]) -> None:
    """Refuse tables that cannot fit before the system kills something. Costs: 4 bytes a number, the optimiser's state, and what
    each of several processes needs to map them."""
    widths = OPTIMIZERS[config.optimizer]().widths
    need = sum(4 * rows * (width + sum(widths(width).values())) for rows, width in shapes.values())
    if config.num_proc > 1 and config.worker == "process":
        need += page_tables(need, config.num_proc + 1, huge=config.huge_pages)
    free = free_memory()
    if free is not None and need > free and config.gpu[0] < 0:
        message = f"the tables take {size(need)} and {size(free)} of memory are free"
        raise OptionError("--hidden_dim", f"{message}; take a smaller --hidden_dim or more machines")


def check_disk(config: Config, tables: MemoryTables) -> None:
    """The result and two checkpoints must fit before hours are spent."""
    if config.no_save_emb:
        return
    arrays = tables.arrays()
    need = 3 * sum(array.nbytes for array in arrays.values())
    if (free := free_bytes(config.save_path)) < need:
        message = f"--save_path {config.save_path}: {size(free)} are free"
        raise UsageError(f"{message}, but the run may take {size(need)} with its checkpoints")


def meaning(config: Config, *more: str) -> dict[str, Any]:
    """The options on which the rows' meaning depends, and `more`, by name."""
    needed = MODELS[config.model_name].depends_on
    return {name: getattr(config, name) for name in ("model_name", "hidden_dim", "double_ent", "double_rel", *needed, *more)}


def different(old: Config, new: Config, *more: str) -> str | None:
    """The first option on which the rows' meaning depends (or one of `more`) and that differs, in words."""
    wanted = meaning(new, *more)
    return changed({name: getattr(old, name) for name in wanted}, wanted)


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The first option whose value in `new` is another than in `old`, in words; what `old` does not know is not compared."""
    for name, value in new.items():
        if name in old and old[name] != value:
            return f"--{name} {old[name]}, not {value}"
    return None
