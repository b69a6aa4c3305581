"""Losses over one batch of scores. Pure functions; reductions and weights as DGL-KE defines them.

Point-wise:  L = (mean_i w_i L+(s_i) + mean_i w_i A_i) / 2,   A_i = mean_j L-(s_ij), or sum_j softmax_j(T s_ij) L-(s_ij) with
self-adversarial weights (Sun et al. 2019), which carry no gradient. Pairwise: L = mean_ij w_i L+(s_i - s_ij).
Softmax:     L = mean_i w_i (log(exp s_i + sum_j n_ij exp s_ij) - (1 - e) s_i - e m_i), n_ij how many entities candidate j stands
for, so that the sum over a sample estimates that over all (Bengio and Senecal 2008), m_i the mean of the scores of these, and e
the label smoothing (Szegedy et al. 2016).
A weight counts once, for a positive and its negatives alike (DGL-KE applies it twice or averages it away).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import relu, softplus

from kgdist.base.types import Batch
from kgdist.kernels import full, loss
from kgdist.models.base import Model
from kgdist.options.config import Config

SOFTMAX = "Softmax"
SOFT = ("Logsigmoid", "Logistic", "BCE")  # -log sigma(+-s), log(1 + exp(-+s)) and BCE on sigma(s): one function, written stably
GENRES = ("Hinge", *SOFT)  # of single scores

Term = Callable[[torch.Tensor], torch.Tensor]


class Loss(NamedTuple):
    """`total` carries the gradient; the parts are for the log (0 in pairwise losses, where there are none)."""

    total: torch.Tensor  # []
    positive: torch.Tensor  # []
    negative: torch.Tensor  # []


def terms(genre: str, margin: float) -> tuple[Term, Term]:
    """The loss of a score whose triple is true, and of one whose triple is false: softplus(-+s), or max(0, margin -+ s)."""
    if hinge(genre):
        return (lambda s: relu(margin - s)), (lambda s: relu(margin + s))
    return (lambda s: softplus(-s)), softplus


def hinge(genre: str) -> bool:
    """Whether a loss of single scores is the hinge, else one of `SOFT`. Raises ValueError for any other, so that no step takes
    one for another."""
    if genre != "Hinge" and genre not in SOFT:
        raise ValueError(f"unknown loss of single scores {genre!r}; known: Hinge, {', '.join(SOFT)}")
    return genre == "Hinge"


def rule_of(config: Config, model: Model) -> loss.Rule:
    """The same for the compiled loops."""
    limit = np.inf if model.score_limit is None else model.score_limit
    temperature = config.adversarial_temperature if config.neg_adversarial_sampling else -1.0
    numbers = map(np.float32, (config.margin, temperature))
    single = config.loss_genre != SOFTMAX and hinge(config.loss_genre)
    return loss.Rule(np.float32(model.offset), np.float32(limit), single, *numbers)


def full_rule(config: Config, model: Model) -> full.Rule:
    """How scores against all entities become a loss: of a softmax, or of binary losses. Raises ValueError for any other genre."""
    softmax = config.loss_genre == SOFTMAX
    if not softmax and hinge(config.loss_genre):
        raise ValueError("Hinge is of sampled negatives")
    limit = np.inf if model.score_limit is None else model.score_limit
    return full.Rule(softmax, model.offset, limit, config.label_smoothing)


class Share(NamedTuple):
    """What the losses of queries against all, and the scores of their answers, are multiplied by."""

    queries: np.ndarray  # float32[G]
    positives: np.ndarray  # float32[B]


def shares(batch: Batch, config: Config) -> Share:
    """Of a mean over positives (1-vs-all), each with its query's loss and its own score; or over queries (`--k_vs_all`), each
    with the mean score of its answers, or for binary losses the sum over its different ones. Weights multiply positives, or on
    average their query."""
    assert batch.queries is not None
    starts, counts = batch.queries[:-1], np.diff(batch.queries)
    weights = np.ones(len(batch), np.float64) if batch.weights is None else batch.weights.astype(np.float64)
    sums = np.add.reduceat(weights, starts)
    if not config.k_vs_all:
        return Share((sums / len(batch)).astype(np.float32), (weights / len(batch)).astype(np.float32))
    queries = sums / counts / len(counts)
    if config.loss_genre == SOFTMAX:
        each = np.repeat(queries / counts, counts)
    else:  # an entity is an answer or none: a triple that stands twice is no second one
        answers = np.repeat(np.arange(len(counts)), counts) << 32 | batch.side.pick(batch.heads, batch.tails)
        _, which, copies = np.unique(answers, return_inverse=True, return_counts=True)
        each = np.repeat(queries, counts) / copies[which]
    return Share(queries.astype(np.float32), each.astype(np.float32))


def batch_loss(
    positive: torch.Tensor,
    negative: torch.Tensor,
    *,
    genre: str = "Logsigmoid",
    margin: float = 1.0,
    pairwise: bool = False,
    temperature: float | None = None,
    weights: torch.Tensor | None = None,
    masked: torch.Tensor | None = None,
    stands: torch.Tensor | None = None,
    smoothing: float = 0.0,
) -> Loss:
    """Loss of float[B] positive and float[B, N] negative scores.

    Args:
        temperature: T of the self-adversarial weights; None weighs all negatives the same.
        weights: float[B], one per positive.
        masked: bool[B, N]; negatives that do not exist (a positive's own entity among in-batch candidates).
        stands: float[B, N], of a softmax: how many entities each negative stands for; None: itself.
        smoothing: of a softmax, the share of the probability that all entities have alike.
    """
    if genre == SOFTMAX:
        return _softmax(positive, negative, weights, masked, stands, smoothing)
    true, false = terms(genre, margin)
    per_row = weights if weights is not None else torch.ones_like(positive)
    if pairwise:
        values = true(positive[:, None] - negative)
        mean = _masked_mean(values, masked)
        zero = positive.new_zeros(())
        return Loss((per_row * mean).mean(), zero, zero)
    if temperature is not None:
        logits = negative.detach() * temperature
        if masked is not None:
            logits = logits.masked_fill(masked, float("-inf"))
        # A row whose every candidate is masked has no negatives: its softmax is 0/0 and stands for no weight.
        shares = torch.softmax(logits, dim=1).nan_to_num(0.0) if masked is not None else torch.softmax(logits, dim=1)
        against = (shares * false(negative)).sum(1)
    else:
        against = _masked_mean(false(negative), masked)
    positive_part = (per_row * true(positive)).mean()
    negative_part = (per_row * against).mean()
    return Loss((positive_part + negative_part) / 2, positive_part, negative_part)


def _softmax(
    positive: torch.Tensor,
    negative: torch.Tensor,
    weights: torch.Tensor | None,
    masked: torch.Tensor | None,
    stands: torch.Tensor | None,
    smoothing: float,
) -> Loss:
    counts = torch.ones_like(negative) if stands is None else stands
    if masked is not None:
        counts = counts.masked_fill(masked, 0.0)
    logits = torch.cat([positive[:, None], negative + counts.log()], 1)
    values = torch.logsumexp(logits, 1) - (1 - smoothing) * positive
    if smoothing:
        mean = (positive + (counts * negative).sum(1)) / (1 + counts.sum(1))
        values = values - smoothing * mean
    zero = positive.new_zeros(())
    return Loss((values if weights is None else weights * values).mean(), zero, zero)


def _masked_mean(values: torch.Tensor, masked: torch.Tensor | None) -> torch.Tensor:
    """Mean of each row over what is not masked; float[B, N] -> float[B]."""
    if masked is None:
        return values.mean(1)
    kept = values.masked_fill(masked, 0.0)
    return kept.sum(1) / (~masked).sum(1).clamp_min(1)
