"""The models by name. `TransE` is DGL-KE's other name for TransE_l2."""

from __future__ import annotations

from kgdist.errors import OptionError
from kgdist.models.base import Model
from kgdist.models.complex import ComplEx
from kgdist.models.distmult import DistMult
from kgdist.models.rescal import RESCAL
from kgdist.models.rotate import RotatE
from kgdist.models.simple import SimplE
from kgdist.models.transe import TransE_l1, TransE_l2
from kgdist.models.transr import TransR

_ALL: tuple[type[Model], ...] = (TransE_l1, TransE_l2, TransR, RESCAL, DistMult, ComplEx, RotatE, SimplE)
MODELS: dict[str, type[Model]] = {model.name: model for model in _ALL} | {"TransE": TransE_l2}


def make_model(name: str, *, hidden_dim: int, entity_dim: int, relation_dim: int, gamma: float) -> Model:
    """The score function `name`. Raises OptionError listing the known names."""
    if name not in MODELS:
        raise OptionError("--model_name", f"no model is called {name!r}; known: {', '.join(sorted(MODELS))}")
    return MODELS[name](hidden_dim=hidden_dim, entity_dim=entity_dim, relation_dim=relation_dim, gamma=gamma)
