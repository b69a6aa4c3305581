# mypy: disable-error-code="no-untyped-def"
"""The losses of `kgdist.training.losses` and their gradients in one pass over the scores, compiled.

exp is a polynomial (its coefficients are those of Cephes' expf, Moshier 1987), good to 3e-7 of its value; log(1 + e) is
2 artanh(e / (2 + e)) by its series: calls of the C library would keep the loops from being vectors. NaN passes through.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kgdist.kernels.jit import disjoint, inlined

_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_LOG2E, _LN2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
_LOWEST = np.float32(-87)
_E0, _E1, _E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_E3, _E4, _E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_L3, _L5, _L7 = np.float32(2 / 3), np.float32(2 / 5), np.float32(2 / 7)
_L9, _L11, _L13 = np.float32(2 / 9), np.float32(2 / 11), np.float32(2 / 13)
_BIAS, _SHIFT = np.int32(127), np.int32(23)
_MINUS_INFINITY, _LEAST = np.float32(-np.inf), np.int32(0x7F800000 ^ -1)  # the latter is `_ordered` of the former
_SIGN, _ALL = np.int32(31), np.int32(0x7FFFFFFF)


class Rule(NamedTuple):
    """How scores become a loss."""

    offset: np.float32  # of the model, which scores come without
    limit: np.float32  # scores with the offset are clamped to +- this
    hinge: bool  # else log(1 + exp)
    margin: np.float32  # of the hinge
    temperature: np.float32  # below 0: no self-adversarial weights


@inlined
def _power(x, n):
    """e^x, n the integer next to x / log 2."""
    r = x - np.float32(n) * _LN2
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    return (p * r * r + r + _ONE) * np.int32((n + _BIAS) << _SHIFT).view(np.float32)


@inlined
def _exp(x):
    """e^x of x <= 0."""
    x = max(x, _LOWEST)
    return _power(x, np.int32(x * _LOG2E - _HALF))  # rounds to nearest, for x <= 0


@inlined
def exponential(x):
    """e^x of x <= 87."""
    x = max(x, _LOWEST)
    return _power(x, np.int32(np.floor(x * _LOG2E + _HALF)))


@inlined
def _log1p(e):
    """log(1 + e) of 0 <= e <= 1."""
    z = e / (_TWO + e)
    s = z * z
    return z * (_TWO + s * (_L3 + s * (_L5 + s * (_L7 + s * (_L9 + s * (_L11 + s * _L13))))))


@inlined
def _softplus(s):
    """(log(1 + e^s), its derivative)."""
    e = _exp(-abs(s))
    inverse = _ONE / (_ONE + e)
    return _HALF * (s + abs(s)) + _log1p(e), inverse if s > _ZERO else e * inverse


@inlined
def _against(rule, s):
    """Loss of a false triple's score, and its derivative."""
    if rule.hinge:
        return max(rule.margin + s, _ZERO) + _ZERO * s, _ONE if rule.margin + s > _ZERO else _ZERO
    return _softplus(s)


@inlined
def _within(s, limit):
    return max(min(s, limit), -limit)


@inlined
def _ordered(bits):
    """The bits of a float32 as an integer that grows with it, and back. NaN is at one end or the other."""
    return bits ^ ((bits >> _SIGN) & _ALL)


@inlined
def _largest(rule, line, share):
    """The largest logit where share is not 0, -infinity if there is none.

    As integers: a loop for the largest of numbers that may be NaN would not be a vector.
    """
    most = _LEAST
    for j in range(len(line)):
        logit = rule.temperature * _within(rule.offset + line[j], rule.limit)
        most = max(most, _ordered(np.float32(logit if share[j] > _ZERO else _MINUS_INFINITY).view(np.int32)))
    return np.int32(_ordered(most)).view(np.float32)


@inlined
def _counting(keep, i, share):
    """1 where the negatives of positive `i` exist, else 0: a loop that asked whether there is a mask would rarely be a vector."""
    for j in range(len(share)):
        share[j] = _ONE
    if len(keep):
        for j in range(len(share)):
            share[j] = _ONE if keep[i, j] else _ZERO


@disjoint
def pointwise(positive, scores, keep, weights, rule, grad, grad_scores):
    """Writes the gradients of both kinds of scores; returns the sums of w L+ and of w A over the batch.

    float32[B] and float32[>= B,N]. `keep` bool[B,N] or [0,N]: negatives that exist. `weights` float32[B] or [0]. Rows beyond B
    get zeros.
    """
    rows, width = len(positive), scores.shape[1]
    offset, limit, temperature = rule.offset, rule.limit, rule.temperature
    share = np.empty(width, np.float32)
    sum_positive, sum_negative = 0.0, 0.0
    for i in range(rows):
        weight = weights[i] if len(weights) else _ONE
        scale = weight / np.float32(2 * rows)
        raw = offset + positive[i]
        value, slope = _against(rule, -_within(raw, limit))
        sum_positive += np.float64(weight * value)
        grad[i] = -scale * slope if abs(raw) <= limit else _ZERO
        line, out = scores[i], grad_scores[i]
        _counting(keep, i, share)
        if temperature >= _ZERO:
            most = _largest(rule, line, share)
            if most > _MINUS_INFINITY:
                for j in range(width):
                    logit = temperature * _within(offset + line[j], limit)
                    share[j] *= _exp(min(logit - most, _ZERO))
        total = _ZERO
        for j in range(width):
            total += share[j]
        # Nothing left: all masked, no weight; or NaN and infinity, which shall show.
        part = _ONE / total if total > _ZERO or total != total else _ZERO
        against = _ZERO
        factor = scale * part
        for j in range(width):
            s = offset + line[j]
            value, slope = _against(rule, _within(s, limit))
            against += share[j] * value if share[j] != _ZERO else _ZERO
            out[j] = factor * share[j] * slope if abs(s) <= limit else _ZERO
        sum_negative += np.float64(weight * part * against)
    grad_scores[rows:] = _ZERO
    return sum_positive, sum_negative


@disjoint
def softmax(positive, scores, keep, weights, rule, smoothing, stands, counts, chunk, grad, grad_scores):
    """As `pointwise` for the cross-entropy of the true entity; returns the sum of w L.

    float32[C,N] `counts`, how many entities each candidate of a chunk of so many positives stands for, and `stands` their
    logarithms; or both [0,N], where each stands for itself.
    """
    rows, width = len(positive), scores.shape[1]
    offset, limit, result = rule.offset, rule.limit, 0.0
    number = np.empty(width, np.float32)
    for i in range(rows):
        weight = weights[i] if len(weights) else _ONE
        raw = offset + positive[i]
        true = _within(raw, limit)
        line, out = scores[i], grad_scores[i]
        for j in range(width):
            out[j] = offset + line[j]
            number[j] = _ONE
        if len(stands):
            log, count = stands[i // chunk], counts[i // chunk]
            for j in range(width):
                out[j] = _within(out[j], limit) + log[j]
                number[j] = count[j]
        else:
            for j in range(width):
                out[j] = _within(out[j], limit)
        if len(keep):
            for j in range(width):
                out[j] = out[j] if keep[i, j] else _MINUS_INFINITY
                number[j] = number[j] if keep[i, j] else _ZERO
        most = _ordered(np.float32(true).view(np.int32))
        for j in range(width):
            most = max(most, _ordered(np.float32(out[j]).view(np.int32)))
        largest = np.int32(_ordered(most)).view(np.float32)
        own, total = _exp(min(true - largest, _ZERO)), _ZERO
        for j in range(width):
            part = _exp(min(out[j] - largest, _ZERO)) if number[j] != _ZERO else _ZERO
            out[j] = part
            total += part
        total += own
        mean, several, broken = _ZERO, _ZERO, _ZERO
        for j in range(width):  # a score of minus infinity would not show
            broken += _ZERO * line[j] if number[j] != _ZERO else _ZERO
        if smoothing > _ZERO:
            for j in range(width):
                mean += number[j] * _within(offset + line[j], limit) if number[j] != _ZERO else _ZERO
                several += number[j]
        spread = smoothing / (_ONE + several)
        loss = largest + np.log(total) - (_ONE - smoothing) * true - spread * (true + mean) + broken
        scale = weight / np.float32(rows)
        inverse = _ONE / total
        for j in range(width):
            slope = scale * (out[j] * inverse - spread * number[j])
            out[j] = slope if abs(offset + line[j]) <= limit else _ZERO
        grad[i] = scale * (own * inverse - (_ONE - smoothing) - spread) if abs(raw) <= limit else _ZERO
        result += np.float64(weight * loss)
    grad_scores[rows:] = _ZERO
    return result


@disjoint
def pairwise(positive, scores, keep, weights, rule, grad, grad_scores):
    """As `pointwise` for L+(s_i - s_ij); returns the sum of w_i mean_j."""
    rows, width = len(positive), scores.shape[1]
    offset, limit, result = rule.offset, rule.limit, 0.0
    share = np.empty(width, np.float32)
    for i in range(rows):
        weight = weights[i] if len(weights) else _ONE
        raw = offset + positive[i]
        true, kept = _within(raw, limit), _ZERO
        _counting(keep, i, share)
        for j in range(width):
            kept += share[j]
        scale = weight / (np.float32(rows) * max(kept, _ONE))
        line, out = scores[i], grad_scores[i]
        total, down = _ZERO, _ZERO
        for j in range(width):
            s = offset + line[j]
            value, slope = _against(rule, _within(s, limit) - true)
            slope = slope if share[j] != _ZERO else _ZERO
            total += value if share[j] != _ZERO else _ZERO
            down += slope
            out[j] = scale * slope if abs(s) <= limit else _ZERO
        grad[i] = -scale * down if abs(raw) <= limit else _ZERO
        result += np.float64(weight / max(kept, _ONE) * total)
    grad_scores[rows:] = _ZERO
    return result
