"""The formulas of the layers, edge by edge in float64, with no thought of speed: what the tests believe."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Pairs = Sequence[tuple[int, int]]  # (source, destination)


def incoming(pairs: Pairs, count: int) -> list[list[int]]:
    """Numbers of the edges to each destination."""
    return [[number for number, (_, v) in enumerate(pairs) if v == node] for node in range(count)]


def mean(pairs: Pairs, x: torch.Tensor, count: int, weights: Sequence[float] | None = None) -> torch.Tensor:
    """[count, F], the mean of what edges carry; 0 where there are none."""
    made = x.new_zeros(count, x.shape[1])
    for v, edges in enumerate(incoming(pairs, count)):
        for edge in edges:
            made[v] += x[pairs[edge][0]] * (1.0 if weights is None else weights[edge]) / len(edges)
    return made


def gcn(pairs: Pairs, x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """[count, F], the mean of the node itself and of what edges carry."""
    made = own.clone()
    for v, edges in enumerate(incoming(pairs, len(own))):
        for edge in edges:
            made[v] += x[pairs[edge][0]]
        made[v] /= len(edges) + 1
    return made


def pool(pairs: Pairs, x: torch.Tensor, count: int) -> torch.Tensor:
    """[count, F], the largest of what edges carry, by feature; 0 where there are none."""
    made = x.new_zeros(count, x.shape[1])
    for v, edges in enumerate(incoming(pairs, count)):
        for feature in range(x.shape[1]):
            if edges:
                made[v, feature] = max(float(x[pairs[edge][0], feature].detach()) for edge in edges)
    return made


def convolution(pairs: Pairs, x: torch.Tensor, count: int, norm: str, weights: Sequence[float] | None = None) -> torch.Tensor:
    """[count, F], the sum of c x_u over the edges u -> v."""
    into = [len(edges) for edges in incoming(pairs, count)]
    outof = [sum(u == node for u, _ in pairs) for node in range(len(x))]
    made = x.new_zeros(count, x.shape[1])
    for edge, (u, v) in enumerate(pairs):
        scale = {
            "both": lambda u=u, v=v: 1 / math.sqrt(outof[u] * into[v]),
            "right": lambda v=v: 1 / into[v],
            "left": lambda u=u: 1 / outof[u],
            "none": lambda: 1.0,
        }[norm]()
        made[v] += x[u] * scale * (1.0 if weights is None else weights[edge])
    return made


def attention(
    pairs: Pairs,
    sources: torch.Tensor,
    destinations: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    slope: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """([count, H, F] of transformed rows [n, H, F], and [E, H]): the sum of a(u, v) x_u over the edges u -> v, and a."""
    made = torch.zeros_like(destinations)
    found = sources.new_zeros(len(pairs), sources.shape[1])
    for v, edges in enumerate(incoming(pairs, len(destinations))):
        for head in range(sources.shape[1]):
            scores = []
            for edge in edges:
                score = float((left[head] @ sources[pairs[edge][0], head] + right[head] @ destinations[v, head]).detach())
                scores.append(math.exp(score if score > 0 else slope * score))
            for edge, score in zip(edges, scores, strict=True):
                found[edge, head] = score / sum(scores)
                made[v, head] += found[edge, head] * sources[pairs[edge][0], head]
    return made, found


def relational(
    pairs: Pairs, relations: Sequence[int], x: torch.Tensor, matrices: torch.Tensor, count: int, weights: Sequence[float] | None
) -> torch.Tensor:
    """[count, F], the sum of what edges carry times the matrix of their relation and their weight; without weights, over how many
    edges of the relation lead to the node."""
    made = x.new_zeros(count, matrices.shape[2])
    alike = [(relation, v) for relation, (_, v) in zip(relations, pairs, strict=True)]
    for edge, (u, v) in enumerate(pairs):
        c = 1 / alike.count(alike[edge]) if weights is None else weights[edge]
        made[v] += c * x[u] @ matrices[relations[edge]]
    return made
