"""What a search may choose: a range or a list of values for each option, as a file says or as is usual for the model.

Every value is checked by the table of options before anything is trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from kgdist.base.errors import DataError, OptionError
from kgdist.base.files import PathLike
from kgdist.models.registry import MODELS
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import read_settings
from kgdist.options.option import Option

GROUPS = ("model", "training", "loss", "negative samples", "encoder")  # whose options can be searched
EXAMPLE = "lr: [0.01, 0.3, log]"
FIXED = ("model_file", "seed", "max_step", "max_epoch")  # but for these: trials that are to be compared train equally long


def typed(value: float, low: float, high: float) -> float:
    """The number as one would type it: to four digits, if these lie between `low` and `high`. No result hangs on the others."""
    short = float(f"{value:.4g}")
    return short if low <= short <= high else value


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; evenly, or evenly in their logarithm."""

    low: float
    high: float
    log: bool = False

    def has(self, value: Any) -> bool:
        """Whether `value` lies in it."""
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    @property
    def whole(self) -> bool:
        """Whether they are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def choose(self, trial: Any, name: str) -> Any:
        """What Optuna's `trial` chooses."""
        if self.whole:
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return typed(trial.suggest_float(name, self.low, self.high, log=self.log), self.low, self.high)


@dataclasses.dataclass(frozen=True)
class Choices:
    """One of these."""

    values: tuple[Any, ...]

    def has(self, value: Any) -> bool:
        """Whether `value` is one of them."""
        return value in self.values

    def choose(self, trial: Any, name: str) -> Any:
        """What Optuna's `trial` chooses."""
        return trial.suggest_categorical(name, self.values)


Dimension = Range | Choices
Space = dict[str, Dimension]


def to_json(space: Space) -> dict[str, Any]:
    """Plain data."""
    return {name: dataclasses.asdict(each) for name, each in space.items()}


def from_json(saved: Mapping[str, Any]) -> Space:
    """What `to_json` gave."""
    return {
        name: Choices(tuple(each["values"])) if "values" in each else Range(each["low"], each["high"], each["log"])
        for name, each in saved.items()
    }


def searchable(row: Option) -> bool:
    """Whether trials may differ in this option."""
    return row.group in GROUPS and row.name not in FIXED and "train" in row.commands and not row.many


def dimension(row: Option, low: Any, high: Any, log: bool = False) -> Range:
    """A range of the option `row`, checked. Raises OptionError."""
    low, high = row.check(low), row.check(high)
    if not low < high:
        raise OptionError(row.flag, f"a range goes from the lower to the higher number, not from {low} to {high}")
    if log and not low > 0:
        raise OptionError(row.flag, f"a logarithmic range begins above 0, not at {low}")
    return Range(low, high, log)


def usual(config: Config, explicit: Collection[str]) -> tuple[Space, Config]:
    """The space that is searched when no file names one, and `config` as its trials begin: with self-adversarial negatives, where
    there are any and the loss does not weigh them by itself.

    How wide the first values spread is searched where they decide how a model learns: by a softmax, which does not see gamma, and
    by dot products, where gamma means nothing else. What the user has given (`explicit`) is not searched.
    """
    model, softmax, everybody = MODELS[config.model_name], config.loss_genre == "Softmax", config.candidates == "all"
    products = model.compare == "dot"
    rate = ((3e-4, 0.03) if config.optimizer == "adam" else (0.01, 0.5)) if softmax else model.usual[0]
    ranges: dict[str, tuple[float, float]] = {"lr": rate}
    if not products and not softmax:
        ranges["gamma"] = model.usual[1]
    elif config.init != "xavier":
        ranges["init_scale"] = (1e-4, 0.5) if products and softmax else (0.01, 0.5)
    if config.regularizer != "lp":
        ranges["regularization_coef"] = 1e-3, 0.2
    elif config.regularization_coef:
        ranges["regularization_coef"] = 1e-9, 1e-5
    space: Space = {name: dimension(OPTIONS[name], *ends, log=True) for name, ends in ranges.items()}
    space["batch_size"] = Choices((128, 256, 512) if everybody else (512, 1024, 2048))
    if not everybody:
        space["neg_sample_size"] = Choices((256, 512, 1024) if softmax else (64, 128, 256, 512))
    if "neg_adversarial_sampling" not in explicit and not (softmax or everybody or config.pairwise):
        config = config.replace(neg_adversarial_sampling=True)
    if config.neg_adversarial_sampling:
        space["adversarial_temperature"] = dimension(OPTIONS["adversarial_temperature"], 0.5, 2.0)
    return {name: each for name, each in space.items() if name not in explicit}, config


def holding(space: Space, values: Mapping[str, Any]) -> Space:
    """The space made so wide that it holds these values of its options, where a logarithm lets it."""
    return {name: _holding(each, values[name]) if name in values else each for name, each in space.items()}


def _holding(each: Dimension, value: Any) -> Dimension:
    if each.has(value):
        return each
    if isinstance(each, Choices):
        return Choices((*each.values, value))
    if not isinstance(value, (int, float)) or (each.log and not value > 0):
        return each
    return Range(min(each.low, value), max(each.high, value), each.log)


# ---------------------------------------------------------------------------------------------------------------- a file
def read_space(path: PathLike) -> Space:
    """The space that a YAML file describes, a line for each option. Raises DataError naming file and line."""
    space: Space = {}
    for setting in read_settings(path, "train", "--search", EXAMPLE):
        row = setting.option
        try:
            if not searchable(row):
                raise OptionError(row.flag, f"is the same for all trials; give it as a flag, {row.flag}")
            space[row.name] = _dimension(row, setting.value)
        except OptionError as error:
            raise setting.refused(error) from error
    if not space:
        raise DataError(path, f"names no option to search, such as {EXAMPLE}")
    return space


def _dimension(row: Option, value: Any) -> Dimension:
    """What the value of one line means. Raises OptionError."""
    numeric = row.kind in (int, float)
    if numeric and isinstance(value, list) and (len(value) == 2 or value[2:] == ["log"]):
        return dimension(row, value[0], value[1], log=len(value) == 3)
    values = value["choices"] if isinstance(value, dict) and value.keys() == {"choices"} else None if numeric else value
    if not isinstance(values, list) or not values:
        example = "[low, high], [low, high, log] or {choices: [...]}" if numeric else "a list of choices"
        raise OptionError(row.flag, f"expected {example}; what is not searched is given as a flag")
    checked = tuple(row.check(each) for each in values)
    if len(set(checked)) < len(checked):
        raise OptionError(row.flag, "a choice stands in the list twice")
    return Choices(checked)
