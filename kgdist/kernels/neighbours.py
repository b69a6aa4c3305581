# mypy: disable-error-code="no-untyped-def"
"""Neighbours drawn from compressed in-edges, compiled: uniformly, by weight, from those that a mask allows; some, or all.

In-edges are starts int64[rows + 1] into the *places* of edges: those of a row are next to each other. Everything here says which
places are taken, ascending within a row, and `gather` who is there. A row that has no more than `fanout` gives all it has.

Every draw is a hash of (key, node, counter), as in `random`: the same whoever draws it, in whatever order and beside whatever
else, on any processor. So what is not integers is IEEE arithmetic as written here, and no library's logarithm.
"""

from __future__ import annotations

import numpy as np

from kgdist.kernels.hashing import FREE, GOLDEN, slot_of, table_for
from kgdist.kernels.jit import inlined, strict
from kgdist.kernels.random import below, mix

SHORT = 64  # rows and fan-outs to here need no scratch: a row's places are the bits of a word, a fan-out's are kept in order
_ONE, _S11 = np.uint64(1), np.uint64(11)
_UNIT, _HALF, _ROOT_HALF = 2.0**-53, 0.5, 0.7071067811865476
_LOG_2 = 0.6931471805599453
_TINY = 2.0**-64


@inlined
def _hash(key, counter):
    return mix((np.uint64(counter) + _ONE) * GOLDEN + key)


@inlined
def _exponential(x):
    """uint64 -> float64 > 0, exponentially distributed: -log of a number between 0 and 1, within some units of the last place."""
    m, halvings = (np.float64(x >> _S11) + _HALF) * _UNIT, 0.0
    while m < _ROOT_HALF:
        m *= 2.0
        halvings += 1.0
    # log m = 2 artanh s, |s| < 0.172: the terms fall by 0.03 each, and twelve of them leave less than rounding does.
    s = (m - 1.0) / (m + 1.0)
    square, series = s * s, 0.0
    for term in range(23, 0, -2):
        series = series * square + 1.0 / term
    return halvings * _LOG_2 - 2.0 * s * series


@inlined
def _floyd(key, count, fanout, shift, places, at):
    """Writes shift + each of `fanout` different numbers below `count`, ascending, at places[at:] (Bentley, Floyd, CACM 1987).

    places has room for one more than is drawn.
    """
    if count <= SHORT:
        taken = np.uint64(0)
        for c in range(fanout):
            last = count - fanout + c
            number = below(_hash(key, c), np.uint64(last + 1))
            bit = _ONE << number
            taken |= (_ONE << np.uint64(last)) if taken & bit else bit
        for number in range(count):  # no branch to guess: what is not taken is written over by the next one
            places[at] = shift + number
            at += np.int64(taken & _ONE)
            taken >>= _ONE
    elif fanout <= SHORT:
        for c in range(fanout):
            last = count - fanout + c
            place = shift + np.int64(below(_hash(key, c), np.uint64(last + 1)))
            i = at + c
            while i > at and places[i - 1] > place:
                i -= 1
            if i > at and places[i - 1] == place:
                places[at + c] = shift + last
            else:
                for j in range(at + c, i, -1):
                    places[j] = places[j - 1]
                places[i] = place
    else:
        drawn = np.zeros(count, np.bool_)
        for c in range(fanout):
            last = count - fanout + c
            number = np.int64(below(_hash(key, c), np.uint64(last + 1)))
            drawn[last if drawn[number] else number] = True
        for number in range(count):
            if drawn[number]:
                places[at] = shift + number
                at += 1


@strict
def count(starts, nodes, low, fanout, replace, counts):
    """int64[n]: how many places each node takes; fanout < 0: all. Returns the first node that is not in low..., or -1."""
    rows = len(starts) - 1
    for i in range(len(nodes)):
        row = nodes[i] - low
        if row < 0 or row >= rows:
            return i
        degree = starts[row + 1] - starts[row]
        taken = degree if fanout < 0 or degree == 0 else np.int64(fanout)
        counts[i] = taken if replace else min(taken, degree)
    return -1


@strict
def draw(starts, nodes, low, replace, key, counts, places):
    """Uniformly, as many of each row as `count` said; places int64[sum + 1]."""
    at = 0
    for i in range(len(nodes)):
        row, taken = nodes[i] - low, counts[i]
        start = starts[row]
        degree = starts[row + 1] - start
        if replace:
            own = _hash(key, nodes[i])
            for c in range(taken):
                places[at + c] = start + np.int64(below(_hash(own, c), np.uint64(degree)))
        elif taken == degree:
            for c in range(taken):
                places[at + c] = start + c
        else:
            _floyd(_hash(key, nodes[i]), degree, taken, start, places, at)
        at += taken


@strict
def without(edges):
    """(keys, shift): a hash table of edge ids int64[x] >= 0, for `count_open` and `draw_open`."""
    keys, shift = table_for(len(edges))
    for i in range(len(edges)):
        keys[slot_of(keys, shift, edges[i])] = edges[i]
    return keys, shift


@inlined
def _open(place, first, ids, weights, excluded, shift):
    """The weight of an edge that may be drawn, 0 for others. ids and weights are empty where an edge's id is its place, and where
    all weigh the same; the weight of an edge stands at its place if its id is its place, or else at its id."""
    edge = ids[place] if len(ids) else place
    weight = np.float64(weights[edge]) if len(weights) else 1.0
    if len(excluded) and weight > 0.0:
        known = edge if len(ids) else edge + first
        if excluded[slot_of(excluded, shift, known)] != FREE:
            weight = 0.0
    return weight


@strict
def count_open(starts, first, ids, weights, excluded, shift, nodes, low, fanout, replace, counts):
    """As `count`, of edges that may be drawn; (-1, -1), (the bad node's number, -1), or (-1, place of a weight that is none)."""
    rows = len(starts) - 1
    for i in range(len(nodes)):
        row = nodes[i] - low
        if row < 0 or row >= rows:
            return i, -1
        found = 0
        for place in range(starts[row], starts[row + 1]):
            weight = _open(place, first, ids, weights, excluded, shift)
            if not (weight >= 0.0 and weight < np.inf):
                return -1, place
            found += weight > 0.0
        taken = found if fanout < 0 or found == 0 else np.int64(fanout)
        counts[i] = taken if replace else min(taken, found)
    return -1, -1


@inlined
def _by_weight(key, found, candidates, weights, keys, fanout, places, at):
    """The `fanout` candidates of the smallest exponential / weight (Efraimidis, Spirakis, IPL 2006), equal ones by place."""
    for c in range(found):
        keys[c] = _exponential(_hash(key, c)) / weights[c]
    if fanout <= SHORT:
        chosen = np.empty(fanout, np.int64)  # candidates by key, the largest last
        size = 0
        for c in range(found):
            if size == fanout and keys[c] >= keys[chosen[size - 1]]:
                continue
            size += size < fanout
            i = size - 1
            while i > 0 and keys[chosen[i - 1]] > keys[c]:
                chosen[i] = chosen[i - 1]
                i -= 1
            chosen[i] = c
    else:
        chosen = np.argsort(keys[:found], kind="mergesort")[:fanout]
    chosen.sort()
    for c in range(fanout):
        places[at + c] = candidates[chosen[c]]


@strict
def draw_open(starts, first, ids, weights, excluded, shift, nodes, low, by_weight, replace, key, counts, places):
    """As `draw`, of edges that may be drawn, by weight or evenly; counter c of a draw without replacement is the c-th of them."""
    most = 0
    for i in range(len(nodes)):
        most = max(most, starts[nodes[i] - low + 1] - starts[nodes[i] - low])
    candidates, own, keys = np.empty(most, np.int64), np.empty(most), np.empty(most)
    at = 0
    for i in range(len(nodes)):
        row, taken = nodes[i] - low, counts[i]
        found, total = 0, 0.0
        for place in range(starts[row], starts[row + 1]):
            weight = _open(place, first, ids, weights, excluded, shift)
            if weight > 0.0:
                candidates[found], own[found] = place, weight
                total += weight
                keys[found] = total
                found += 1
        if total == np.inf:  # the sum of weights that are numbers: in other units it is one
            total = 0.0
            for c in range(found):
                total += own[c] * _TINY
                keys[c] = total
        mine = _hash(key, nodes[i])
        if replace and by_weight:
            for c in range(taken):
                bar = np.float64(_hash(mine, c) >> _S11) * _UNIT * total
                left, right = 0, found - 1
                while left < right:
                    middle = (left + right) >> 1
                    if keys[middle] > bar:
                        right = middle
                    else:
                        left = middle + 1
                places[at + c] = candidates[left]
        elif replace:
            for c in range(taken):
                places[at + c] = candidates[np.int64(below(_hash(mine, c), np.uint64(found)))]
        elif taken == found:
            for c in range(taken):
                places[at + c] = candidates[c]
        elif by_weight:
            _by_weight(mine, found, candidates, own, keys, taken, places, at)
        else:
            _floyd(mine, found, taken, 0, places, at)
            for c in range(taken):
                places[at + c] = candidates[places[at + c]]
        at += taken


@strict
def lots(edges, weights, key, out):
    """float64[m]: exponential / weight, by edge id; of some edges, the smallest are a draw of them by weight. weights may be
    empty: all weigh the same."""
    for i in range(len(edges)):
        out[i] = _exponential(_hash(key, edges[i])) / (np.float64(weights[i]) if len(weights) else 1.0)


@strict
def gather(sources, ids, first, places, ends, edges):
    """int64[m] each: the other end and the id of the edge at each place. edges may be places."""
    # Nothing but far loads that wait for nothing: the processor has a dozen of them under way at once.
    for i in range(len(places)):
        ends[i] = sources[places[i]]
    for i in range(len(places)):
        edges[i] = ids[places[i]] if len(ids) else places[i] + first


@strict
def compress(ends, starts, places):
    """Counting sort: fills starts int64[rows + 1], zero throughout, and writes the numbers 0, 1, ... of `ends` int[E] to places
    int[E] by row, ascending in each. Returns the first number of an end that is not in range, or -1."""
    rows = len(starts) - 1
    for i in range(len(ends)):
        if ends[i] < 0 or ends[i] >= rows:
            return i
        starts[ends[i] + 1] += 1
    for row in range(rows):
        starts[row + 1] += starts[row]
    for i in range(len(ends)):
        places[starts[ends[i]]] = i
        starts[ends[i]] += 1
    for row in range(rows, 0, -1):
        starts[row] = starts[row - 1]
    if rows:
        starts[0] = 0
    return -1
