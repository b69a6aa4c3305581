# mypy: disable-error-code="no-untyped-def"
"""The loop of `rank`, compiled: counts by short strips of a row, and looks at single scores only in strips that need it."""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import inlined, strict

STRIP = 64


@inlined
def _first_from(ids, begin, end, least):
    """The first position in ids[begin:end], ascending, of an id >= least; end if there is none."""
    while begin < end:
        middle = (begin + end) // 2
        if ids[middle] < least:
            begin = middle + 1
        else:
            end = middle
    return begin


@strict
def block(scores, low, high, row, start, offsets, known, greater, rows, candidates):
    """Ranks rows `row`, ... until done or until a row might not fit; returns the next row and the number of pairs written."""
    written, width = 0, scores.shape[1]
    for p in range(row, scores.shape[0]):
        line, least, most = scores[p], low[p], high[p]
        at = _first_from(known, offsets[p], offsets[p + 1], start)
        end = _first_from(known, at, offsets[p + 1], start + width)
        above, sure = np.int32(0), np.int32(0)
        for k in range(width):
            above += np.int32(line[k] > most)
            sure += np.int32((line[k] > most) | (line[k] < least))  # both false for NaN
        if sure < width:
            if written + width - sure > len(rows):
                return p, written
            left, skip = width - sure, at
            for strip in range(0, width, STRIP):
                stop = min(strip + STRIP, width)
                sure = np.int32(0)
                for k in range(strip, stop):
                    sure += np.int32((line[k] > most) | (line[k] < least))
                if sure == stop - strip:
                    continue
                left -= stop - strip - sure
                for k in range(strip, stop):
                    if line[k] > most or line[k] < least:
                        continue
                    while skip < end and known[skip] < start + k:
                        skip += 1
                    if skip < end and known[skip] == start + k:
                        continue
                    rows[written] = p
                    candidates[written] = start + k
                    written += 1
                if left == 0:
                    break
        for i in range(at, end):
            if (i == at or known[i] != known[i - 1]) and line[known[i] - start] > most:
                above -= 1
        greater[p] += above
    return scores.shape[0], written
