"""RotatE: a relation is a rotation in the complex plane (Sun et al. 2019, RotatE: Knowledge Graph Embedding by Relational
Rotation)."""

from __future__ import annotations

import math

import torch

from kgdist.base.errors import OptionError
from kgdist.base.types import Side
from kgdist.models.base import Model, halves
from kgdist.options.config import Config


class RotatE(Model):
    """gamma - sum_k |h_k e^(i theta_k) - t_k|, theta = pi r / init_range; rows hold real parts, then imaginary parts.

    The relation is stored as a phase in units of `init_range / pi`, as DGL-KE and the authors' code do; reading a saved relation
    therefore needs the gamma and hidden_dim it was trained with.
    """

    name = "RotatE"
    compare = "modulus"
    kernel = "rotate"
    distance = True
    moduli = ("entity",)
    angles = True
    columns = {  # noqa: RUF012
        "entity": "{half} real parts, then {half} imaginary parts",
        "relation": "phases; the angle in radians is the number times {scale!r}",
    }
    depends_on = ("gamma",)  # the unit of a phase is (gamma + 2) / hidden_dim
    usual = (0.003, 0.2), (4, 24)
    recipe = {"double_ent": True}  # noqa: RUF012

    @classmethod
    def sizes(cls, config: Config) -> tuple[Config, list[str]]:
        """Complex entities, 2d, and an angle for each of their coordinates, d."""
        if config.double_rel:
            message = "RotatE has one angle per complex coordinate, d for each relation; drop it and keep --double_ent"
            raise OptionError("--double_rel", message)
        if config.double_ent:
            return config, []
        size = config.hidden_dim
        what = f"RotatE has complex entities of {2 * size} numbers, and relations of {size} angles"
        return config.replace(double_ent=True), [f"--double_ent added: {what}"]

    @property
    def phase_scale(self) -> float:
        """pi / init_range."""
        return math.pi / self.init_range

    def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        """The anchor turned by theta for a missing tail, by -theta for a missing head."""
        phase = relation * self.phase_scale
        (re, im), cos, sin = halves(anchor), torch.cos(phase), torch.sin(phase)
        if side is Side.TAIL:
            return torch.cat([re * cos - im * sin, re * sin + im * cos], dim=-1)
        return torch.cat([re * cos + im * sin, im * cos - re * sin], dim=-1)
