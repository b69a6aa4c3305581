"""Random numbers without state as plain NumPy draws them: what `kgdist.kernels.random` is held against, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
SMALL, ROUNDS_SMALL, ROUNDS = 1024, 12, 8

_IDS, _SHUFFLE, _ROWS = 1, 2, 3  # keeps the three uses apart where seed and stream are equal


def _mix(x: Any) -> Any:
    """uint64 array -> uint64 array, a bijection."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    return x ^ (x >> np.uint64(31))


def _key(*parts: int) -> int:
    """Any integers -> one of 64 bits."""
    key = 0
    for part in parts:
        key = (key + part + GOLDEN) & MASK
        key = ((key ^ (key >> 30)) * FIRST) & MASK
        key = ((key ^ (key >> 27)) * SECOND) & MASK
        key ^= key >> 31
    return key


def _scale(hashed: Any, n: int) -> Any:
    """uint64 array -> uint64 array of numbers below n: the high half of the product (Lemire, arXiv:1805.10941)."""
    low32, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    high, low = hashed >> shift, hashed & low32
    n_high, n_low = np.uint64(n >> 32), np.uint64(n & 0xFFFFFFFF)
    middle = high * n_low + ((low * n_low) >> shift)
    if n_high == 0:
        return middle >> shift
    return high * n_high + (middle >> shift) + ((low * n_high + (middle & low32)) >> shift)


def _hashes(key: int, start: int, count: int) -> Any:
    """uint64[count], the hashes of counters start, start + 1, ..."""
    counters = np.arange(count, dtype=np.uint64) + np.uint64((start + 1) & MASK)
    return _mix(counters * np.uint64(GOLDEN) + np.uint64(key))


def uniform_ids(seed: int, stream: int, step: int, size: int, n: int) -> np.ndarray:
    """int64[size], independent and uniform in range(n); 1 <= n < 2^63. The bias is below n / 2^64."""
    key = _key(_IDS, seed, stream, step)
    return _scale(_hashes(key, 0, size), n).astype(np.int64)  # type: ignore[no-any-return]


def _permute(x: Any, a: int, b: int, keys: np.ndarray) -> Any:
    """uint64 array of numbers below a b -> the same, a bijection of range(a b): x = left b + right, halves added in turn."""
    left, right = x // np.uint64(b), x % np.uint64(b)
    for number, key in enumerate(keys):
        if number % 2 == 0:
            left = (left + _scale(_mix(right * np.uint64(GOLDEN) + key), a)) % np.uint64(a)
        else:
            right = (right + _scale(_mix(left * np.uint64(GOLDEN) + key), b)) % np.uint64(b)
    return left * np.uint64(b) + right


def shuffled(seed: int, epoch: int, start: int, stop: int, n: int) -> np.ndarray:
    """int64[stop - start], positions start to stop of a shuffle of range(n) that seed and epoch choose; 1 <= n < 2^62."""
    a = max(1, round(n**0.5))
    b = -(-n // a)
    rounds = ROUNDS_SMALL if n < SMALL else ROUNDS
    keys = np.array([_key(_SHUFFLE, seed, epoch, number) for number in range(rounds)], np.uint64)
    x = _permute(np.arange(start, stop, dtype=np.uint64), a, b, keys)
    while (outside := np.flatnonzero(x >= n)).size:
        x[outside] = _permute(x[outside], a, b, keys)
    return x.astype(np.int64)  # type: ignore[no-any-return]


def uniform_rows(seed: int, stream: int, start_row: int, rows: int, width: int, low: float, high: float) -> np.ndarray:
    """float32[rows, width], uniform in [low, high], for rows start_row, ... of a table of this width."""
    key, begin, span = _key(_ROWS, seed, stream), start_row * width, np.float32(high) - np.float32(low)
    unit = (_hashes(key, begin, rows * width) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return (unit * span + np.float32(low)).reshape(rows, width)  # type: ignore[no-any-return]


def normal_rows(seed: int, stream: int, start_row: int, rows: int, width: int, std: float) -> np.ndarray:
    """float32[rows, width], normal around 0, at most 6.7 std away, for rows start_row, ... (Box, Muller 1958)."""
    out = np.empty(rows * width, np.float32)
    key, begin = _key(_ROWS, seed, stream), start_row * width
    for at in range(0, len(out), 1 << 14):  # stays in the cache
        part = out[at : at + (1 << 14)]
        hashed = _hashes(key, begin + at, len(part))
        radius = np.sqrt(-2.0 * np.log(((hashed >> np.uint64(32)).astype(np.float64) + 1.0) * 2.0**-32))
        part[:] = radius * np.cos((hashed & np.uint64(0xFFFFFFFF)).astype(np.float64) * (2.0 * np.pi * 2.0**-32)) * std
    return out.reshape(rows, width)
