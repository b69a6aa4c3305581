"""Small things to export, with names that are hard to write, and damage done to folders."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

import numpy as np

from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange.source import Source
from kgdist.models.registry import model_of
from kgdist.options.config import Config

NAMES = ("dog.n.01", "New York", "tab\tbed", "Ωmega ", '"quoted"', "no\u00a0break", "a,b", "\ufeffmark")


def source(model: str = "TransE", entities: tuple[str, ...] = NAMES, relations: tuple[str, ...] = ("is a", "r,1")) -> Source:
    """Random tables of a model of four dimensions; the first row has the numbers that are hard to print."""
    doubled = {
        "RotatE": {"double_ent": True},
        "ComplEx": {"double_ent": True, "double_rel": True},
        "PairRE": {"double_rel": True},
    }.get(model, {})
    config = Config(model_name=model, dataset="toy", hidden_dim=4, gamma=3.0, **doubled)
    rng = np.random.default_rng(3)
    shapes = model_of(config).tables(len(entities), len(relations))
    tables = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    tables["entity"][0, :4] = [1e-45, -3.4028235e38, 0.1, 16777216]
    names = {"entity": Vocabulary.from_names(list(entities)), "relation": Vocabulary.from_names(list(relations))}
    return Source(config, model_of(config), tables, names, True)


@contextlib.contextmanager
def full_disk(at: int) -> Iterator[None]:
    """Writing past byte `at` of any file fails, as on a full disk. (Python ignores the signal that comes with it.)"""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
