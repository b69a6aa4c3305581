# mypy: disable-error-code="no-untyped-def"
"""The loops of `sample`, compiled; the same integers as its NumPy ones, bit for bit."""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import inlined, strict

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
_S27, _S30, _S31, _S32, _S40 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32), np.uint64(40)
_ONE = np.uint64(1)
_STEP = np.float32(2.0**-24)


@inlined
def _mix(x):
    x = (x ^ (x >> _S30)) * _FIRST
    x = (x ^ (x >> _S27)) * _SECOND
    return x ^ (x >> _S31)


@inlined
def _scale(x, n):
    high, low = x >> _S32, x & _LOW
    n_high, n_low = n >> _S32, n & _LOW
    middle = high * n_low + ((low * n_low) >> _S32)
    return high * n_high + (middle >> _S32) + ((low * n_high + (middle & _LOW)) >> _S32)


@strict
def ids(key, n, out):
    """uint64 key, uint64 n, int64[size] out."""
    for i in range(len(out)):
        out[i] = np.int64(_scale(_mix((np.uint64(i) + _ONE) * _GOLDEN + key), n))


@strict
def shuffle(start, n, a, b, keys, out):
    """uint64 start, n, a, b; uint64[rounds] keys, an even number; int64[size] out."""
    for i in range(len(out)):
        x = start + np.uint64(i)
        while True:
            left = x // b
            right = x - left * b
            for number in range(0, len(keys), 2):
                left += _scale(_mix(right * _GOLDEN + keys[number]), a)
                left -= a if left >= a else np.uint64(0)
                right += _scale(_mix(left * _GOLDEN + keys[number + 1]), b)
                right -= b if right >= b else np.uint64(0)
            x = left * b + right
            if x < n:
                break
        out[i] = np.int64(x)


@strict
def floats(key, begin, low, span, out):
    """uint64 key, begin; float32 low, span; float32[size] out."""
    for i in range(len(out)):
        unit = np.float32(_mix((begin + np.uint64(i) + _ONE) * _GOLDEN + key) >> _S40) * _STEP
        out[i] = unit * span + low
