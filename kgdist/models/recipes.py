"""Options for a graph that nobody has tuned for, from its sizes and the score function: what --preset means where no row of
`kgdist.options.presets` does. How the rule was found, and what it reaches beside a search, is told in docs/choosing.md;
`benchmarks/recipes.py` measures it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import MappingProxyType
from typing import Any, NamedTuple

from kgdist.models.base import Model
from kgdist.options.config import OPTIONS, Config
from kgdist.options.presets import Preset

# Training triples times entities, up to which a step holds its queries against all entities. It is what an epoch costs: dot
# products of this many pairs of 200 numbers take two cores a minute or two, sums of moduli ten times that. Distances gain nothing
# by it where there are many entities (TransE_l2 on FB15k-237: .321 in a minute by 256 drawn ones, .315 by all in a quarter of an
# hour, one thread; its best rate each).
PRODUCTS, DISTANCES = 1e10, 3e8
# Queries of a step against all entities, below so many triples: an epoch of a few hundred queries needs steps more than it needs
# large ones (Nations: +.015 for ComplEx and TransE_l1 by 64 instead of 256; UMLS and Kinships: none). Sums of moduli take half
# as many (RotatE, means of five seeds: Nations .724 instead of .718, Kinships .803 instead of .796, UMLS .891 and .895).
QUERIES = ((3_000, 64), (50_000, 256), (float("inf"), 500))
# Entities below which one thread takes them all: a step is then a millisecond, and threads that share it wait for one another,
# sixty times as long on 56 entities where other programs have the cores.
SHARED = 512
# Triples below which drawn candidates are one process's: an epoch is a few batches, which others have no share of.
FEW_TRIPLES = 3_000
# Entities below which squared distances learn at .045, not .07 (mean of four seeds: Kinships .245 instead of .235, Nations .510
# instead of .504, UMLS .750 both).
FEW, FEWEST, SQUARED = 512, 0.045, 0.07
# Against drawn candidates a row has fewer gradients and takes larger steps, above all where few triples tell of it: rate times
# triples / entities, and its least and largest (at .07, .15, .3, .5: FB15k-237 .303, .321, .319; WN18RR .192, .205, .208, .199;
# WordNet 3.0 .181 at .15, .209, .203; AIFB .719 at .15, .740).
DRAWN = 2, 0.15, 0.3
# Rate of sums of absolute values, for each triple that an entity has, and its least and largest: gradients do not shrink as
# the distance does, so Adagrad's sums grow with them (Nations at .23 instead of .05: .530 for .510; Kinships at .16: .494 for
# .468; TransR alike).
ABSOLUTE = 0.002, 0.05, 0.25
# Rate of sums of moduli times triples, and its least and largest: the fewer steps, the larger (RotatE, means of five seeds at
# .03, .06, .15: Nations .724, .733, .760; UMLS .891, .904; Kinships .803).
MODULI = 250, 0.03, 0.15
# Against all entities it is no more than so many times the triples that an entity has, but the least of these: few tell of it
# (four seeds, at the rate by triples and at .04 and .015: 167 packages of Debian, 2.6 triples each, .499, .662, .700; 267 modules
# of Python, 2.1, .216, .294, .298; Countries S1, 4.1, .549, .617, .620).
SPARSE = 0.0075, 0.015, 0.15
# The penalty's coefficient: entities / triples beyond the first, but between the two. ComplEx on valid: UMLS (entities / triples
# .026) .953 by .013, .925 by .026; FB15k-237 (.053) .325 by .0125, .342 by .027 and .352 by .05; AIFB without inverse relations
# (.196) .543 by .01, .567 by .03, .563 by .05 and .524 by .1.
HELD = 0.0125, 0.05
SMALL = 0.05  # largest first value below which products of DGL-KE's losses are all but 0, and with them their gradients
SOURCE = "kgdist's rule for a model and the sizes of a graph (docs/choosing.md)"


class Sizes(NamedTuple):
    """Of a graph: counts, whether it has a valid split, and what share of its triples another relation repeats."""

    entities: int
    relations: int
    triples: int
    valid: bool
    implied: float = 0.0


def recipe(model: type[Model], dataset: str, sizes: Sizes, *, alone: bool = True) -> Preset:
    """The preset of `model` on a graph of these `sizes`; `alone`: on one machine, where all entities can be candidates.

    A softmax over the candidates with inverse relations, by Adagrad, suits every score function here; what differs is how rows
    begin, the rate, and what keeps them small (Lacroix et al. 2018, Zhang et al. 2020, Ruffinelli et al. 2020).
    """
    values: dict[str, Any] = {"loss_genre": "Softmax", "reciprocal": True, "optimizer": "adagrad", "max_epoch": _epochs(sizes)}
    candidates = _candidates(model, sizes, alone)
    values |= _rows(model, sizes, drawn="candidates" not in candidates) | candidates | dict(model.recipe)
    if sizes.valid:
        values["valid"] = True
    values = {name: OPTIONS[name].check(value) for name, value in values.items() if value is not None}
    return Preset(model.name, dataset, MappingProxyType(values), None, None, SOURCE)


def _rows(model: type[Model], sizes: Sizes, *, drawn: bool) -> dict[str, Any]:
    """How wide rows are, how they begin, how fast they learn against all or `drawn` candidates, and what keeps them small."""
    if model.compare == "dot":
        penalty = {"regularizer": "n3", "regularization_coef": _coefficient(model, sizes)}
        return {"hidden_dim": 200, "lr": 0.1, "init": "normal", "init_scale": 1e-3, **penalty}
    squared = FEWEST if sizes.entities < FEW else _rate(DRAWN, sizes.entities / sizes.triples) if drawn else SQUARED
    degree = sizes.triples / sizes.entities
    absolute, moduli = _rate(ABSOLUTE, degree), _rate(MODULI, 1 / sizes.triples)
    moduli = moduli if drawn else min(moduli, _rate(SPARSE, degree))
    rate, spread = {"l2": (squared, 0.015), "l1": (absolute, 0.015), "modulus": (moduli, 0.02)}[model.compare]
    return {"hidden_dim": 100, "lr": rate, "init": "uniform", "init_scale": spread, "regularization_coef": 0.0}


def _coefficient(model: type[Model], sizes: Sizes) -> float:
    """Of the cubes of a triple's rows. They hold down entities that few triples tell of; where many do, less is needed. The same
    holds for relations whose rows are matrices (RESCAL on Nations, 29 triples each: +.05). What relations repeat of one another
    is to be remembered, so where that is much, little is to be held down (AIFB with its inverse relations, which repeat half:
    .807 by .01, .792 by .03, .747 by .073)."""
    least, most = HELD
    rare = min(most, sizes.entities / sizes.triples - least) * max(0.0, 1 - 2 * sizes.implied)
    matrices = 0.0 if model.vectors else sizes.relations / sizes.triples
    return float(f"{min(0.1, model.penalty * max(least, rare, matrices)):.2g}")


def _rate(of_one: tuple[float, float, float], times: float) -> float:
    """So many times the first, between the others, to two digits."""
    rate, least, most = of_one
    return float(f"{min(most, max(least, rate * times)):.2g}")


def _candidates(model: type[Model], sizes: Sizes, alone: bool) -> dict[str, Any]:
    """Whom a true entity is held against, and how many of a step's triples."""
    most = PRODUCTS if model.compare == "dot" else DISTANCES
    if alone and not model.projects and sizes.entities * sizes.triples <= most:
        queries = next(size for most, size in QUERIES if sizes.triples < most)
        return {
            "candidates": "all",
            "batch_size": queries // 2 if model.compare == "modulus" else queries,
            "num_thread": 1 if sizes.entities < SHARED else None,
        }
    one = {"num_proc": 1} if alone and sizes.triples < FEW_TRIPLES else {}
    if model.compare == "dot":
        return {"neg_sample_size": 1000, "batch_size": 1000, **one}
    return {"neg_sample_size": 256, "batch_size": 512 if sizes.triples < 50_000 else 1024, **one}


def _epochs(sizes: Sizes) -> int:
    """Passes over the triples: more where they are few."""
    return next(
        epochs for most, epochs in ((20_000, 100), (100_000, 50), (400_000, 30), (float("inf"), 20)) if sizes.triples <= most
    )


def slow_start(model: type[Model], config: Config, explicit: Collection[str]) -> Iterator[str]:
    """A line where a new training by DGL-KE's losses begins as a score function of dot products learns badly from: within a
    range, or by a rate, that DGL-KE's defaults mean for distances. `explicit` are the options that the user has set."""
    brought = config.preset != "none" or config.resume or config.init_from or config.init_vectors
    if model.compare != "dot" or brought or config.loss_genre == "Softmax":
        return
    begins, instead = [], []
    spread = config.init_range if config.init_scale is None else config.init_scale
    if config.init == "uniform" and spread < SMALL:
        begins.append(f"at numbers within ±{spread:.2g}")
        instead.append("--init_scale 0.2")
    if config.lr == OPTIONS["lr"].default and "lr" not in explicit and config.optimizer != "adam":
        begins.append(f"with --lr {config.lr:g}")
        instead.append("--lr 0.1")
    if begins:
        text = f"{model.name} begins {' and '.join(begins)}, from which dot products learn slowly"
        yield f"{text}: --preset takes options by the sizes of the graph, or give {' '.join(instead)} (docs/choosing.md)"
