"""The loss of the true relation among all, given head and tail: the cross-entropy of a softmax over relations' rows (Chen et al.
2021, Relation Prediction as an Auxiliary Training Objective, arXiv:2110.02834). One place for all steps, and the scores are
written but once: autograd, which is left the queries, took as long again for copies of them as the products take.
"""

from __future__ import annotations

import torch
from torch.nn.functional import log_softmax

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
    step, total, each = max(1, MOST // max(1, relations.shape[1])), 0.0, scale / len(heads)
    with torch.no_grad():
        for start in range(0, len(heads), step):
            part = slice(start, start + step)
            share = torch.full_like(heads[part, 0], each) if weights is None else weights[part] * each
            with torch.enable_grad():
                ends = [rows[part].detach().requires_grad_() for rows in (heads, tails)]
                queries = model.relation_query(ends[0], ends[1])
            asked, chosen = (queries.detach().unsqueeze(0), relations.unsqueeze(0)), true[part].unsqueeze(1)
            scores = model.comparator.scores(*asked)
            slopes = log_softmax(scores.squeeze(0), dim=1)
            total -= float((slopes.gather(1, chosen).squeeze(1) * share).sum())
            slopes.exp_().mul_(share.unsqueeze(1)).scatter_add_(1, chosen, -share.unsqueeze(1))
            to_queries, to_relations = model.comparator.slopes(*asked, scores, slopes.unsqueeze(0))
            found = torch.autograd.grad(queries, ends, to_queries.squeeze(0))
            for into, grad in zip((grads[0][part], grads[1][part], grads[2]), (*found, to_relations.squeeze(0)), strict=True):
                into += grad
    return total
