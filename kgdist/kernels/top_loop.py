# mypy: disable-error-code="no-untyped-def"
"""The loop of `top`, compiled: most rows of a block hold nothing that could matter, and one vectorised look tells."""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import inlined, strict

STRIP = 64


@inlined
def _position(ids, begin, end, wanted):
    """The first position in ids[begin:end], ascending, of an id >= wanted; end if there is none."""
    while begin < end:
        middle = (begin + end) // 2
        if ids[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin


@inlined
def _kth(values, count, k):
    """The k-th largest of values[:count], which is reordered (Hoare's selection); 1 <= k <= count, no NaN."""
    low, high, want = 0, count - 1, k - 1
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if want <= j:
            high = j
        elif want >= i:
            low = i
        else:
            break
    return values[want]


@strict
def _below(values, low):
    """How many are below; NaN is not."""
    count = np.int32(0)
    for j in range(len(values)):
        count += np.int32(values[j] < low)
    return count


@strict
def _floor(bar, reach):
    """The largest float32 that is at most bar - reach, nearly; NaN, which nothing is below, where that says nothing."""
    exact = bar - reach
    rounded = np.float32(exact)
    return np.float32(np.nextafter(rounded, np.float32(-np.inf))) if np.float64(rounded) > exact else rounded


@strict
def sift(scores, row, column, start, reach, offsets, skipped, k, keys, ids, sizes, bar, scratch):
    """Appends what may be among a row's k best, from scores[row, column] on; (row, column) where a row has too many such.

    The rows are done when the returned row is their number.
    """
    width, room = scores.shape[1], keys.shape[1]
    limit = k + (room - k) // 2
    for p in range(row, scores.shape[0]):
        line, low = scores[p], _floor(bar[p], reach[p])
        first, column = column, 0
        if _below(line[first:], low) == width - first:
            continue
        begin = _position(skipped, offsets[p], offsets[p + 1], start + first)
        end = _position(skipped, begin, offsets[p + 1], start + width)
        for strip in range(first, width, STRIP):
            stop = min(strip + STRIP, width)
            if _below(line[strip:stop], low) == stop - strip:
                continue
            for j in range(strip, stop):
                if line[j] < low:
                    continue
                begin = _position(skipped, begin, end, start + j)
                if begin < end and skipped[begin] == start + j:
                    continue
                keys[p, sizes[p]], ids[p, sizes[p]] = line[j], start + j
                sizes[p] += 1
                if sizes[p] < room:
                    continue
                for i in range(room):
                    scratch[i] = keys[p, i] if keys[p, i] == keys[p, i] else np.float32(np.inf)
                sure = np.float64(_kth(scratch, room, k)) - reach[p]
                if sure > bar[p]:
                    bar[p] = sure
                low, kept = _floor(bar[p], reach[p]), 0
                for i in range(room):
                    if not keys[p, i] < low:
                        keys[p, kept], ids[p, kept] = keys[p, i], ids[p, i]
                        kept += 1
                sizes[p] = kept
                if kept > limit:
                    return p, j + 1
    return scores.shape[0], 0
