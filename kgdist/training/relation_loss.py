"""The loss of the true relation among all, given head and tail: the cross-entropy of a softmax over relations' rows (Chen et al.
2021, Relation Prediction as an Auxiliary Training Objective, arXiv:2110.02834). One place for all steps: torch's autograd, for a
step has a hundred times as many products with entities.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from kgdist.models.base import Model

MOST = 1 << 24  # floats of queries held at a time: those of RESCAL are whole matrices


def relation_loss(
    model: Model,
    heads: torch.Tensor,
    tails: torch.Tensor,
    relations: torch.Tensor,
    true: torch.Tensor,
    weights: torch.Tensor | None,
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scale: float,
) -> float:
    """`scale` times the mean loss of B triples, whose gradients are added to `grads`: those of heads, tails and relations.

    float[B,D], float[B,D], float[n,R] all relations' rows, int64[B] which of them each triple has, float[B] or None.
    """
    step, total = max(1, MOST // max(1, relations.shape[1])), 0.0
    for start in range(0, len(heads), step):
        part = slice(start, start + step)
        leaves = [each.detach().requires_grad_() for each in (heads[part], tails[part], relations)]
        queries = model.relation_query(leaves[0], leaves[1])
        scores = model.comparator.cross(queries.unsqueeze(0), leaves[2].unsqueeze(0)).squeeze(0)
        values = cross_entropy(scores, true[part], reduction="none")
        if weights is not None:
            values = values * weights[part]
        loss = values.sum() * (scale / len(heads))
        found = torch.autograd.grad(loss, leaves)
        for into, grad in zip((grads[0][part], grads[1][part], grads[2]), found, strict=True):
            into += grad
        total += loss.item()
    return total
