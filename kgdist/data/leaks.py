"""Relations that say what another one says, and the triples of valid and test that train holds in such another form.

Two relations are linked when each has at least SHARE of its pairs in common with the other: the same pairs (duplicate) or the
pairs turned round (inverse); one that is its own inverse is symmetric. The measure and its bound are those of Akrami et al. 2020
(Realistic re-evaluation of knowledge graph completion methods, section 4.2). Relations that are linked, also by way of others,
are a family, and what their triples say is one statement: a rule of one line answers a test triple whose statement train holds.

All triples of two entities are looked at together, those of some pairs at a time where a graph is large. No names, no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

SHARE = 0.8
NEARLY = 0.7  # for `implied`: YAGO3-10's isAffiliatedTo has .75 of its pairs in common with playsFor (same place)
LEAST = 3  # pairs in common: fewer are chance
AT_ONCE, PIECE = 8 << 20, 1 << 16  # triples sorted at once; looked at together, in a core's own cache
# Triples that `sample` takes to find links, about: all of a small graph, then a sixteenth, but no more than the last, so that it
# costs little beside reading the files; and held-out ones that it takes.
WHOLE, LOWEST, SAMPLE, ASKED = 1 << 13, 1 << 12, 1 << 14, 1 << 12
_FLAGS = 20  # bits of a hash by which most pairs that nobody asks about are told from the others
_GOLDEN = np.uint32(0x9E3779B1)


class Portion(NamedTuple):
    """All triples of some pairs of entities, in the order of their splits."""

    triples: np.ndarray  # int32[n, 3]
    split: np.ndarray  # int8[n], place in the list of splits
    number: np.ndarray  # int64[n], of each triple, counted through all splits


class Link(NamedTuple):
    """Two relations that say the same of the same pairs or, `inverse`, of the pairs turned round; equal ones: a symmetric one."""

    first: int
    second: int
    inverse: bool
    shared: int  # triples of `first` that `second` repeats
    shares: tuple[float, float]  # of the triples of each


class Families(NamedTuple):
    """Which relations are linked, directly or by others, and which way round they are said."""

    root: np.ndarray  # int32[R], one relation for each family
    turned: np.ndarray  # bool[R], against `root`
    both: np.ndarray  # bool[R], of each family's `root`: it is symmetric

    @classmethod
    def of(cls, links: Iterable[Link], num_relations: int) -> Families:
        """The families of R relations; those without links are families of one."""
        found = cls(np.arange(num_relations, dtype=np.int32), np.zeros(num_relations, bool), np.zeros(num_relations, bool))
        members = {relation: [relation] for relation in range(num_relations)}
        for link in links:
            one, other = int(found.root[link.first]), int(found.root[link.second])
            turn = bool(found.turned[link.first] ^ found.turned[link.second]) != link.inverse
            if one == other:
                found.both[one] |= turn
                continue
            if len(members[one]) < len(members[other]):
                one, other = other, one
            moved = members.pop(other)
            found.root[moved] = one
            found.turned[moved] ^= turn
            found.both[one] |= found.both[other]
            members[one] += moved
        return found

    @property
    def linked(self) -> np.ndarray:
        """bool[R]: whether a relation has others in its family, or is symmetric."""
        return np.asarray((np.bincount(self.root, minlength=len(self.root)) > 1)[self.root] | self.both[self.root])

    def statements(self, triples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int32[n, 3] -> (int64[n] the pair of entities in one number, int32[n] the family), equal for the same statement."""
        heads, tails = triples[:, 0].astype(np.int64), triples[:, 2].astype(np.int64)
        root = self.root[triples[:, 1]]
        turn = np.where(self.both[root], heads > tails, self.turned[triples[:, 1]])
        return np.where(turn, tails << 32 | heads, heads << 32 | tails), root


class Overlap(NamedTuple):
    """Of each split, counted in triples: all int64[splits]."""

    triples: np.ndarray
    repeats: np.ndarray  # that stand in the split before
    known: np.ndarray  # that stand in the first split, too
    answered: np.ndarray  # others whose statement is made in the first split by another triple


def portions(splits: Sequence[np.ndarray]) -> Iterator[Portion]:
    """All triples of `splits`, int32[T, 3] each, those of one pair of entities in one portion. Memory: 21 bytes for each triple
    of a portion, of which there are about AT_ONCE; each portion is a pass over the triples."""
    parts = max(1, -(-sum(map(len, splits)) // AT_ONCE))
    for part in range(parts):
        yield _gathered(splits, partial(_is_of, part, parts))


def sample(splits: Sequence[np.ndarray]) -> tuple[Portion, Portion]:
    """(the triples of pairs at random, to find links in, those of the pairs that some of the held-out triples have); all there
    are, where these are few. One pass over the triples, some nanoseconds each."""
    total, held_out = sum(map(len, splits)), sum(map(len, splits[1:]))
    if total <= WHOLE:
        everything = _gathered(splits, None)
        return everything, everything
    limit, asked = (
        np.uint32(min(2**32 - 1, most * 2**32 // max(count, 1)))
        for most, count in ((min(SAMPLE, max(LOWEST, total // 16)), total), (ASKED, held_out))
    )
    flags = np.zeros(1 << _FLAGS, bool)
    shift = np.uint32(32 - _FLAGS)
    wanted = []
    for split in splits[1:]:
        for start in range(0, len(split), PIECE):
            piece = split[start : start + PIECE]
            hashes = _hashes(piece)
            mine = hashes <= asked
            flags[hashes[mine] >> shift] = True
            wanted.append(_pairs(piece[mine]))

    def flagged(hashes: np.ndarray) -> np.ndarray:
        return flags.take((hashes >> shift).astype(np.intp), mode="clip")  # two thirds of what flags[...] costs, which checks

    either = _gathered(splits, lambda hashes: (hashes <= limit) | flagged(hashes))
    hashes = _hashes(either.triples)
    chosen, theirs = hashes <= limit, flagged(hashes)
    theirs[theirs] = np.isin(_pairs(either.triples[theirs]), np.concatenate([np.zeros(0, np.int64), *wanted]))
    return Portion(*(each[chosen] for each in either)), Portion(*(each[theirs] for each in either))


def find(parts: Iterable[Portion], num_relations: int, share: float = SHARE) -> list[Link]:
    """The linked relations among R, those with most pairs in common first: `share` of both at least. Repeated triples count
    once."""
    sizes, loops = (np.zeros(num_relations, np.int64) for _ in range(2))
    codes, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for part in parts:
        pairs = _pairs(part.triples)
        said = part.triples[:, 1].astype(np.int64) << 1 | (part.triples[:, 0] > part.triples[:, 2])
        order = np.lexsort((said, pairs))
        pairs, said = pairs[order], said[order]
        fresh = np.ones(len(order), bool)
        fresh[1:] = (pairs[1:] != pairs[:-1]) | (said[1:] != said[:-1])
        pairs, said = pairs[fresh], said[fresh]
        loop = pairs >> 32 == pairs & 0xFFFFFFFF
        sizes += np.bincount(said >> 1, minlength=num_relations)
        loops += np.bincount(said[loop] >> 1, minlength=num_relations)
        for code in _meetings(pairs, said, loop, num_relations):
            found, times = np.unique(code, return_counts=True)
            codes.append(found)
            counts.append(times)
    found, places = np.unique(np.concatenate(codes), return_inverse=True)
    shared = np.bincount(places, weights=np.concatenate(counts), minlength=len(found)).astype(np.int64)
    first, second, inverse = found // 2 // num_relations, found // 2 % num_relations, found % 2 == 1
    own = first == second
    least = np.where(own, 2 * shared, shared)
    shared = np.where(own, 2 * shared + loops[first], shared)
    shares = np.stack([shared / sizes[first], shared / sizes[second]], 1)
    kept = np.flatnonzero((least >= LEAST) & (shares >= share).all(1))
    links = [
        Link(int(first[k]), int(second[k]), bool(inverse[k]), int(shared[k]), (float(shares[k, 0]), float(shares[k, 1])))
        for k in kept
    ]
    return sorted(links, key=lambda link: (-link.shared, link))


def implied(splits: Sequence[np.ndarray], num_relations: int) -> float:
    """The share of all triples that another of R relations repeats, on the same pair or turned round, where two have NEARLY as
    much in common; of each relation by the one that repeats most. Of a sample where triples are many."""
    some, _ = sample(splits)
    repeated = np.zeros(num_relations)
    for link in find([some], num_relations, NEARLY):
        if link.first != link.second:
            ends = [link.first, link.second]
            repeated[ends] = np.maximum(repeated[ends], link.shares)
    return float(repeated[some.triples[:, 1]].mean()) if len(some.triples) else 0.0


def _meetings(pairs: np.ndarray, said: np.ndarray, loop: np.ndarray, num_relations: int) -> Iterator[np.ndarray]:
    """int64[m], 2 (first R + second) + inverse, for each two relations of a pair; `pairs` ascend, and `said` within."""
    live = np.arange(len(pairs))
    for ahead in range(1, len(pairs)):
        live = live[: np.searchsorted(live, len(pairs) - ahead)]
        live = live[pairs[live] == pairs[live + ahead]]
        if not len(live):
            return
        here, there = said[live], said[live + ahead]
        first, second, same = here >> 1, there >> 1, (here ^ there) & 1 == 0
        code = 2 * (first * num_relations + second)
        yield code[same]
        yield code[~same | loop[live]] + 1


def overlap(parts: Iterable[Portion], families: Families, splits: int) -> Overlap:
    """What `splits` have of the first of them, and of themselves."""
    found = Overlap(*(np.zeros(splits, np.int64) for _ in Overlap._fields))
    for part in parts:
        if not len(part.triples):
            continue
        pairs, family = families.statements(part.triples)
        said = part.triples[:, 1].astype(np.int64) << 1 | (part.triples[:, 0] > part.triples[:, 2])
        order = np.lexsort((said, family, pairs))  # stable: equal triples stay in the order of their splits
        pairs, family, said, split = pairs[order], family[order], said[order], part.split[order]
        first = np.ones((3, len(order)), bool)  # of a statement, of a triple, of a triple in a split
        first[0, 1:] = (pairs[1:] != pairs[:-1]) | (family[1:] != family[:-1])
        first[1, 1:] = first[0, 1:] | (said[1:] != said[:-1])
        first[2, 1:] = first[1, 1:] | (split[1:] != split[:-1])
        triple = np.cumsum(first[1]) - 1
        statement = np.cumsum(first[0])[first[1]] - 1  # of each triple
        trained = np.bincount(triple, weights=split == 0) > 0
        others = (np.bincount(statement, weights=trained)[statement] - trained > 0)[triple]
        known = trained[triple] & (split > 0)
        for total, mask in zip(found, (np.ones(len(order), bool), ~first[2], known, others & ~known & (split > 0)), strict=True):
            total += np.bincount(split[mask], minlength=splits)
    return found


class Answered(NamedTuple):
    """How well train answers the triples that are held out, of a sample where these are many."""

    known: float  # the share of them that are in train, too
    otherwise: float  # and the share that train has in another form
    train: np.ndarray  # int32[t, 3], the triples of the sample that are in train


def answered(splits: Sequence[np.ndarray], num_relations: int) -> Answered:
    """What the first of `splits`, int32[T, 3] each, tells of the others: some nanoseconds a triple."""
    everywhere, asked = sample(splits)
    families = Families.of(find([everywhere], num_relations), num_relations)
    found = overlap([asked], families, len(splits))
    held_out = max(1, int(found.triples[1:].sum()))
    known, otherwise = (float(count[1:].sum() / held_out) for count in (found.known, found.answered))
    return Answered(known, otherwise, everywhere.triples[everywhere.split == 0])


def _gathered(splits: Sequence[np.ndarray], keep: Callable[[np.ndarray], np.ndarray] | None) -> Portion:
    """The triples whose hashes `keep` keeps, all for None."""
    rows, split, numbers = [np.zeros((0, 3), np.int32)], [np.zeros(0, np.int8)], [np.zeros(0, np.int64)]
    before = 0
    for place, array in enumerate(splits):
        for start in range(0, len(array), PIECE):
            piece = array[start : start + PIECE]
            chosen = np.arange(len(piece)) if keep is None else np.flatnonzero(keep(_hashes(piece)))
            rows.append(piece[chosen])
            split.append(np.full(len(chosen), place, np.int8))
            numbers.append(chosen + (before + start))
        before += len(array)
    return Portion(np.concatenate(rows), np.concatenate(split), np.concatenate(numbers))


def _hashes(triples: np.ndarray) -> np.ndarray:
    """uint32[n], equal for triples of one pair of entities whichever way round (Knuth's multiplicative hash, TAOCP 6.4)."""
    heads, tails = (triples[:, column].view(np.uint32) for column in (0, 2))
    hashes = heads + tails
    hashes *= _GOLDEN
    return np.asarray(hashes)


def _is_of(part: int, parts: int, hashes: np.ndarray) -> np.ndarray:
    """bool[n], for each of `parts` that hashes are divided into."""
    return np.asarray(hashes.astype(np.uint64) * np.uint64(parts) >> np.uint64(32) == part)


def _pairs(triples: np.ndarray) -> np.ndarray:
    """int64[n], one number for a pair of entities whichever way round."""
    low, high = np.minimum(triples[:, 0], triples[:, 2]), np.maximum(triples[:, 0], triples[:, 2])
    return np.asarray(low.astype(np.int64) << 32 | high)
