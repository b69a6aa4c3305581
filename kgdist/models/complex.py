"""ComplEx: a diagonal bilinear form over complex numbers (Trouillon et al. 2016, Complex Embeddings for Simple Link
Prediction)."""

from __future__ import annotations

import torch

from kgdist.base.types import Side
from kgdist.models.base import Model, halves


class ComplEx(Model):
    """Re(sum_k h_k r_k conj(t_k)); rows hold all real parts, then all imaginary parts."""

    name = "ComplEx"
    compare = "dot"
    kernel = "complex"
    halves = "a real and an imaginary half"
    moduli = ("entity", "relation")
    columns = dict.fromkeys(("entity", "relation"), "{half} real parts, then {half} imaginary parts")
    usual = (0.03, 0.3), (20, 300)
    recipe = {"lr": 0.15}  # noqa: RUF012

    def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        """h r for a missing tail, conj(r) t for a missing head, so that the score is a real dot product."""
        (a_re, a_im), (r_re, r_im) = halves(anchor), halves(relation)
        if side is Side.TAIL:
            return torch.cat([a_re * r_re - a_im * r_im, a_re * r_im + a_im * r_re], dim=-1)
        return torch.cat([a_re * r_re + a_im * r_im, a_im * r_re - a_re * r_im], dim=-1)

    def relation_query(self, heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
        """conj(h) t."""
        (h_re, h_im), (t_re, t_im) = halves(heads), halves(tails)
        return torch.cat([h_re * t_re + h_im * t_im, h_re * t_im - h_im * t_re], dim=-1)
