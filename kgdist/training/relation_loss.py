"""The loss of the true relation among all, given head and tail: the cross-entropy of a softmax over relations' rows (Chen et al.
2021, Relation Prediction as an Auxiliary Training Objective, arXiv:2110.02834). One place for all steps, and the scores are
written but once: autograd, which is left the queries, took as long again for copies of them as the products take.
"""

from __future__ import annotations

import torch
from torch.nn.functional import log_softmax

from kgdist.kernels.shares import ALONE, Crew, part
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
    crew: Crew = ALONE,
) -> float:
    """`scale` times the mean loss of B triples, whose gradients are added to `grads`: those of heads, tails and relations.

    float[B,D], float[B,D], float[n,R] all relations' rows, int64[B] which of them each triple has, float[B] or None. The threads
    of a `crew` share the triples.
    """
    each, threads, losses = scale / max(1, len(heads)), crew.threads, [0.0] * crew.threads
    of_relations = [grads[2], *(torch.zeros_like(grads[2]) for _ in range(1, threads))]
    step = max(1, MOST // max(1, relations.shape[1] * threads))

    def share(number: int) -> None:
        mine = range(len(heads))[part(len(heads), number, threads)]
        for start in range(mine.start, mine.stop, step):
            some = slice(start, min(start + step, mine.stop))
            with torch.enable_grad():
                ends = [rows[some].detach().requires_grad_() for rows in (heads, tails)]
                queries = model.relation_query(ends[0], ends[1])
            weight = torch.full_like(ends[0][:, 0], each) if weights is None else weights[some] * each
            asked, chosen = (queries.detach().unsqueeze(0), relations.detach().unsqueeze(0)), true[some].unsqueeze(1)
            scores = model.comparator.scores(*asked)
            slopes = log_softmax(scores.squeeze(0), dim=1)
            losses[number] -= float((slopes.gather(1, chosen).squeeze(1) * weight).sum())
            slopes.exp_().mul_(weight.unsqueeze(1)).scatter_add_(1, chosen, -weight.unsqueeze(1))
            to_queries, to_relations = model.comparator.slopes(*asked, scores, slopes.unsqueeze(0))
            for into, grad in zip(grads[:2], torch.autograd.grad(queries, ends, to_queries.squeeze(0)), strict=True):
                into[some] += grad
            of_relations[number] += to_relations.squeeze(0)

    crew(share)
    for found in of_relations[1:]:
        grads[2].add_(found)
    return sum(losses)
