# mypy: disable-error-code="no-untyped-def"
"""Random numbers without state: each is a hash of (seed, stream, counter), so any process can draw any part of any sequence.

Nothing is stored and nothing depends on the order, the size of blocks or the number of processes. Not for secrets. Hash: the
finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) over a keyed counter.
"""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import inlined, strict

MASK = (1 << 64) - 1
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Rounds of the shuffling network, even. Below SMALL its halves have few values: with 6 rounds the neighbours in a shuffle of 20
# were 8 standard deviations from even (of 5: 51), with 8 rounds still 14 of 5; with 12 nothing was found at any size.
SMALL, ROUNDS_SMALL, ROUNDS = 1024, 12, 8

_IDS, _SHUFFLE, _ROWS, _NEIGHBOURS, _DROPOUT, _GROUPS = range(1, 7)  # keeps the uses apart where seed and stream are equal
_GOLDEN, _FIRST, _SECOND = np.uint64(GOLDEN), np.uint64(FIRST), np.uint64(SECOND)
_LOW, _ONE = np.uint64(0xFFFFFFFF), np.uint64(1)
_S27, _S30, _S31, _S32, _S40 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32), np.uint64(40)


@inlined
def mix(x):
    """uint64 -> uint64, a bijection."""
    x = (x ^ (x >> _S30)) * _FIRST
    x = (x ^ (x >> _S27)) * _SECOND
    return x ^ (x >> _S31)


@inlined
def below(x, n):
    """uint64 -> uint64 below n: the high half of the product (Lemire, arXiv:1805.10941)."""
    high, low = x >> _S32, x & _LOW
    n_high, n_low = n >> _S32, n & _LOW
    middle = high * n_low + ((low * n_low) >> _S32)
    return high * n_high + (middle >> _S32) + ((low * n_high + (middle & _LOW)) >> _S32)


@strict
def _ids(key, n, out):
    """uint64 key, uint64 n, int64[size] out."""
    for i in range(len(out)):
        out[i] = np.int64(below(mix((np.uint64(i) + _ONE) * _GOLDEN + key), n))


@strict
def _shuffle(start, n, a, b, keys, out):
    """uint64 start, n, a, b; uint64[rounds] keys, an even number; int64[size] out."""
    for i in range(len(out)):
        x = start + np.uint64(i)
        while True:
            left = x // b
            right = x - left * b
            for number in range(0, len(keys), 2):
                left += below(mix(right * _GOLDEN + keys[number]), a)
                left -= a if left >= a else np.uint64(0)
                right += below(mix(left * _GOLDEN + keys[number + 1]), b)
                right -= b if right >= b else np.uint64(0)
            x = left * b + right
            if x < n:
                break
        out[i] = np.int64(x)


@strict
def _uniform(key, begin, low, span, out):
    """uint64 key, begin; float32 low, span; float32[size] out."""
    for i in range(len(out)):
        unit = np.float32(mix((begin + np.uint64(i) + _ONE) * _GOLDEN + key) >> _S40) * np.float32(2.0**-24)
        out[i] = unit * span + low


@strict
def _hashes(key, begin, out):
    """uint64 key, begin; uint64[size] out."""
    for i in range(len(out)):
        out[i] = mix((begin + np.uint64(i) + _ONE) * _GOLDEN + key)


def _key(*parts: int) -> np.uint64:
    """Any integers -> one of 64 bits."""
    key = 0
    for part in parts:
        key = (key + part + GOLDEN) & MASK
        key = ((key ^ (key >> 30)) * FIRST) & MASK
        key = ((key ^ (key >> 27)) * SECOND) & MASK
        key ^= key >> 31
    return np.uint64(key)


def uniform_ids(seed: int, stream: int, step: int, size: int, n: int) -> np.ndarray:
    """int64[size], independent and uniform in range(n); 1 <= n < 2^63. The bias is below n / 2^64."""
    if not 1 <= n < 1 << 63:
        raise ValueError(f"ids are drawn from 1 to 2^63 - 1 of them, not {n}")
    out = np.empty(size, np.int64)
    _ids(_key(_IDS, seed, stream, step), np.uint64(n), out)
    return out


def shuffled(seed: int, epoch: int, start: int, stop: int, n: int) -> np.ndarray:
    """int64[stop - start], positions start to stop of a shuffle of range(n) that seed and epoch choose; 1 <= n < 2^62.

    A Feistel network over Z_a x Z_b, a b just above n, walked until it lands below n again (Black, Rogaway, CT-RSA 2002): a
    bijection in constant memory. Raises ValueError unless 0 <= start <= stop <= n.
    """
    if not (1 <= n < 1 << 62 and 0 <= start <= stop <= n):
        raise ValueError(f"positions {start} to {stop} of a shuffle of {n}: need 0 <= start <= stop <= n, 1 <= n < 2^62")
    a = max(1, round(n**0.5))
    b = -(-n // a)
    rounds = ROUNDS_SMALL if n < SMALL else ROUNDS
    keys = np.array([_key(_SHUFFLE, seed, epoch, number) for number in range(rounds)], np.uint64)
    out = np.empty(stop - start, np.int64)
    _shuffle(np.uint64(start), np.uint64(n), np.uint64(a), np.uint64(b), keys, out)
    return out


def uniform_rows(seed: int, stream: int, start_row: int, rows: int, width: int, low: float, high: float) -> np.ndarray:
    """float32[rows, width], uniform in [low, high], for rows start_row, ... of a table of this width."""
    out, span = np.empty(rows * width, np.float32), np.float32(high) - np.float32(low)
    _uniform(_key(_ROWS, seed, stream), np.uint64(start_row * width & MASK), np.float32(low), span, out)
    return out.reshape(rows, width)


def normal_rows(seed: int, stream: int, start_row: int, rows: int, width: int, std: float) -> np.ndarray:
    """float32[rows, width], normal around 0, at most 6.7 std away, for rows start_row, ... (Box, Muller 1958)."""
    out, key = np.empty(rows * width, np.float32), _key(_ROWS, seed, stream)
    for at in range(0, len(out), 1 << 14):  # stays in the cache
        part = out[at : at + (1 << 14)]
        hashed = np.empty(len(part), np.uint64)
        _hashes(key, np.uint64((start_row * width + at) & MASK), hashed)
        radius = np.sqrt(-2.0 * np.log(((hashed >> _S32).astype(np.float64) + 1.0) * 2.0**-32))
        part[:] = radius * np.cos((hashed & _LOW).astype(np.float64) * (2.0 * np.pi * 2.0**-32)) * std
    return out.reshape(rows, width)


def dropout_key(seed: int, step: int, table: int) -> np.uint64:
    """The key that the numbers are drawn with which a step sets to 0 in the rows of a table."""
    return _key(_DROPOUT, seed, step, table)


def group_key(seed: int, epoch: int, side: int) -> np.uint64:
    """The key by which an epoch puts the answers of queries into groups."""
    return _key(_GROUPS, seed, epoch, side)


def neighbour_key(seed: int, step: int, hop: int, number: int) -> np.uint64:
    """The key that the neighbours of one hop of one step are drawn with, along edges of the type of this number."""
    return _key(_NEIGHBOURS, seed, step, hop, number)
