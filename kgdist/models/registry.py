"""The models by name: the built-in ones (`kgdist.options.built_in`), and those that users register."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import torch

from kgdist.base.errors import OptionError, UsageError
from kgdist.base.log import log
from kgdist.base.types import RelationRows, Side
from kgdist.kernels import gemm
from kgdist.kernels.comparators import COMPARATORS
from kgdist.models.base import Model
from kgdist.options import model_file
from kgdist.options.built_in import BUILT_IN
from kgdist.options.config import OPTIONS, Config
from kgdist.options.resolve import resolve


def _built_in(place: str) -> type[Model]:
    module, _, name = place.partition(".")
    return getattr(importlib.import_module(f"kgdist.models.{module}"), name)  # type: ignore[no-any-return]


MODELS: dict[str, type[Model]] = {name: _built_in(place) for name, place in BUILT_IN.items()}
_tried: set[tuple[type[Model], int, int]] = set()  # own models that were tried, with their entity_dim and relation_dim

DISTANCES = ("l1", "modulus")  # comparators that are no matrix products
Own = TypeVar("Own", bound=type[Model])


def register(model: Own) -> Own:
    """Class decorator: a score function of your own, known by its name from now on, to every command and function.

    The class needs a `name`, a `compare` (dot, l1, l2 or modulus) and a `query(self, anchor, relation, side)`; see kgdist.Model.

        @kgdist.register
        class Gated(kgdist.Model):
            name = "Gated"
            compare = "dot"

            def query(self, anchor, relation, side):
                return anchor * relation.tanh()

    Commands know it by `--model_file FILE.py`, which imports the file; workers and other machines import it, too. The same class
    registered again replaces itself, as when a cell of a notebook is run again.
    Raises UsageError for a class that lacks something, or whose name is taken.
    """
    if not (isinstance(model, type) and issubclass(model, Model)):
        raise UsageError(f"kgdist.register: takes a class derived from kgdist.Model, not {model!r:.60}")
    who, name, compare = f"kgdist.register: {model.__qualname__}", vars(model).get("name"), getattr(model, "compare", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f'{who}: needs a name of letters, digits and _, such as name = "{model.__name__}"')
    if compare not in COMPARATORS:
        raise UsageError(f"{who}: compare is {compare!r}, must be one of {', '.join(COMPARATORS)}")
    if model.query is Model.query and model.queries is Model.queries:
        raise UsageError(f"{who}: needs a method query(self, anchor, relation, side)")
    if model.pair is not Model.pair or model.cross is not Model.cross:
        raise UsageError(f"{who}: pair and cross are the comparator's, by which ranks are found; put the formula into query")
    expected = len(inspect.signature(Model.project).parameters)
    if (taken_by := len(inspect.signature(model.project).parameters)) == expected - 1:
        setattr(model, "project", _of_both_sides(model.project))  # noqa: B010
        model.sideless = True
    elif taken_by != expected:
        raise UsageError(f"{who}: project takes (self, entities, relation, side); side is the end that the entities stand at")
    origin = f"{_place(model)}:{model.__qualname__}"
    taken = model_file.OWN.get(name)
    if name in MODELS and taken != origin:
        raise UsageError(f"{who}: the name {name} is taken by {taken or 'kgdist itself'}; choose another one")
    if "kernel" not in vars(model):
        model.kernel = None  # compiled loops of a base know nothing of what this class changes
    MODELS[name] = model
    model_file.announce(name, origin)
    return model


def _place(model: type[Model]) -> str:
    """The file of a class; its module where there is none, as in a notebook."""
    file = getattr(sys.modules.get(model.__module__), "__file__", None)
    return str(Path(file).resolve()) if file else model.__module__


def make_model(name: str, *, hidden_dim: int, entity_dim: int, relation_dim: int, gamma: float) -> Model:
    """The score function `name`. Raises OptionError listing the known names, or saying what one of the user's own does wrong."""
    if name not in MODELS:
        raise OptionError("--model_name", f"no model is called {name!r}; known: {', '.join(sorted(MODELS))}")
    model = MODELS[name](hidden_dim=hidden_dim, entity_dim=entity_dim, relation_dim=relation_dim, gamma=gamma)
    trial = (MODELS[name], entity_dim, relation_dim)
    if name in model_file.OWN and trial not in _tried:
        _try(model)
        _tried.add(trial)
    return model


def settle(config: Config, explicit: Collection[str] = (), *, devices: int | None = None) -> tuple[Config, list[str]]:
    """As `resolve`, and what the score function that the options name asks of the others. Raises OptionError."""
    config, notes = resolve(config, explicit, devices=devices)
    model = MODELS[config.model_name]
    config, more = model.sizes(config)
    if config.compute_dtype == "bfloat16":
        if model.compare in DISTANCES:
            message = f"bfloat16 is for models that multiply matrices; {config.model_name} sums distances"
            raise OptionError("--compute_dtype", message)
        if config.gpu == (-1,) and not gemm.fast_on_this_cpu():
            more.append("--compute_dtype bfloat16: this CPU multiplies float32 faster")
    _check_objective(config, model)
    own = "gamma" in explicit and config.gamma != OPTIONS["gamma"].default
    if own and config.init_scale is not None and (model.compare == "dot" or config.loss_genre == "Softmax"):
        why = f"{model.name} has no margin" if model.compare == "dot" else "a softmax knows no margin"
        more.append(f"--gamma {config.gamma:g} has no effect: {why}, and --init_scale is given")
    if model.angles and config.relation_regularization_coef and config.regularizer in ("n3", "f2"):
        coef = f"--relation_regularization_coef {config.relation_regularization_coef:g}"
        more.append(
            f"{coef} has no effect: relations of {model.name} are angles, whose size means nothing to {config.regularizer}"
        )
    return config, [*notes, *more]


def _check_objective(config: Config, model: type[Model]) -> None:
    """Refuse what the score function has no form of. Raises OptionError."""
    name = config.model_name
    if config.candidates == "all" and model.projects:
        message = f"all would project every entity for each relation with {name}; take sampled negatives"
        raise OptionError("--candidates", message)
    if config.loss_genre == "Softmax" and config.neg_deg_sample and model.projects:
        message = f"{name} takes triples by relation, so that a chunk's own entities stand for others; drop it with Softmax"
        raise OptionError("--neg_deg_sample", message)
    if config.regularizer == "dura" and (model.compare != "dot" or model.projects):
        raise OptionError("--regularizer", f"dura is for products of queries and entities; {name} sums distances: take n3 or f2")
    if config.relation_loss and model.relation_query is Model.relation_query:
        known = ", ".join(sorted(name for name, each in MODELS.items() if each.relation_query is not Model.relation_query))
        raise OptionError("--relation_loss", f"{name} has no query for relations; those that do: {known}")


def model_of(config: Config) -> Model:
    """The score function that the options name."""
    model = make_model(
        config.model_name,
        hidden_dim=config.hidden_dim,
        entity_dim=config.entity_dim,
        relation_dim=config.relation_dim,
        gamma=config.gamma,
    )
    if config.reciprocal:
        model.use_inverses()
    return model


def _try(model: Model) -> None:
    """Score random entities from both sides, in float32, which trains, and float64, which ranks. Raises OptionError naming what
    does not fit.
    """
    name = type(model).name
    shapes = model.tables(3, 2)
    if not shapes.keys() >= {"entity", "relation"} or any(
        shape[0] != (3 if key == "entity" else 2) for key, shape in shapes.items()
    ):
        message = f"{name}.tables(3, 2) is {shapes}; it must have entity: (3, width), relation: (2, width), others with 2 rows"
        raise OptionError("--model_name", message)
    random = torch.Generator().manual_seed(0)
    rows = {key: torch.rand(shape, generator=random) - 0.5 for key, shape in shapes.items()}
    entities = rows.pop("entity")
    for dtype in (torch.float32, torch.float64):
        relation = RelationRows({key: row.to(dtype) for key, row in rows.items()}, torch.tensor([0, 1, 1]))
        scores = [_trial_scores(model, entities.to(dtype), relation, side) for side in Side]
    if not torch.allclose(scores[0], scores[1], rtol=1e-5, atol=1e-7):
        log.warning("%s gives a triple two scores: one when its head is asked for, another when its tail is", name)


def _trial_scores(model: Model, entities: torch.Tensor, relation: RelationRows, side: Side) -> torch.Tensor:
    """float[3]: each of three entities and the next one, asked for at one side."""
    heads, tails = entities, entities[[1, 2, 0]]
    anchors, others = side.pick((tails, heads), (heads, tails))
    what = f"{type(model).name}: the query for a missing {side.value}"
    try:
        with torch.no_grad():
            queries = model.queries(anchors, relation, side)
            scores = model.pair(queries, others, relation, side)
            model.cross(queries, entities[None], relation, 3, side)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        message = f"{what} does not work with rows of {entities.shape[1]} numbers ({type(error).__name__}: {reason})"
        raise OptionError("--model_name", message) from error
    if scores.shape != (3,) or queries.dtype != entities.dtype:
        kind, found = (str(rows.dtype).removeprefix("torch.") for rows in (anchors, queries))
        message = f"{what} gives {found}{list(queries.shape)} for anchors {kind}{list(anchors.shape)}"
        raise OptionError("--model_name", f"{message}; it must give one row of {kind} for each")
    return scores


Project = Callable[..., torch.Tensor]


def _of_both_sides(project: Project) -> Project:
    """A `project` that knows of no side, as models of one's own had it once: both ends see candidates alike."""

    def projected(self: Model, entities: torch.Tensor, relation: RelationRows, side: Side) -> torch.Tensor:
        return project(self, entities, relation)

    return projected
