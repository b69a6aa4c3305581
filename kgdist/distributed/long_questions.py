"""Questions to the owner of a partition, about as many ids and edge types as there are: in pieces that a message holds.

A few pieces are on their way at a time, so that an owner never has more to keep than a few answers for each trainer. Cutting
changes no answer: what is drawn for a node depends on that node alone. What is asked of the own partition is no message.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kgdist.distributed.current import storage
from kgdist.distributed.policy import PartitionPolicy
from kgdist.distributed.storage import Answer as Waiting
from kgdist.graphs.structure import Answer
from kgdist.kvstore.messages import MOST_PARTS, PIECE_BYTES, TEXT_BYTES

AHEAD = 4  # pieces on their way to an owner
MOST_IDS = PIECE_BYTES // 16  # of a piece: so many nodes, and as many edges to leave out, which are never cut
MOST_TYPES = MOST_PARTS // 3  # of a piece: an answer has three arrays for each
MOST_LETTERS = TEXT_BYTES - 512  # that tell of them


class Wanted(NamedTuple):
    """What one owner is asked of the neighbours of its nodes along one edge type."""

    told: Mapping[str, Any]  # see `Owner.neighbours`
    nodes: np.ndarray  # int64[n]
    exclude: np.ndarray  # int64[x], edges to leave out


def ask_about(policy: PartitionPolicy, part: int, what: str, arguments: Mapping[str, Any], ids: np.ndarray) -> Waiting:
    """Ask for what is told of int64[n] ids one after the other: arrays, in which those of the pieces follow one another. By the
    policy it is known whether the partition is this machine's."""
    most = max(1, len(ids)) if policy.part in (None, part) else MOST_IDS
    asks = [(arguments, [ids[at : at + most]]) for at in range(0, max(1, len(ids)), most)]
    arrive = _ask(part, what, asks)
    return lambda: [_joined(arrays) for arrays in zip(*arrive(), strict=True)]


def too_many(policy: PartitionPolicy, exclude: np.ndarray | None) -> bool:
    """Whether some other machine owns more of int64[x] edges to leave out than a piece has room for."""
    if policy.part is None or exclude is None or len(exclude) <= MOST_IDS:
        return False
    counts = np.bincount(policy.owners(exclude), minlength=policy.parts)
    counts[policy.part] = 0
    return int(counts.max()) > MOST_IDS


def ask_neighbours(part: int, arguments: Mapping[str, Any], wanted: Sequence[Wanted]) -> Callable[[], list[Answer]]:
    """Ask for all of these, and `questions` are told with the other arguments: an answer for each."""
    loads: list[list[tuple[int, Wanted]]] = [[]]
    room, letters = 0, 0
    for number, each in enumerate(wanted):
        length = len(json.dumps(each.told)) + 2
        for at in range(0, max(1, len(each.nodes)), MOST_IDS):
            piece = each._replace(nodes=each.nodes[at : at + MOST_IDS])
            size = len(piece.nodes) + len(piece.exclude)
            if not room or room < size or letters < length or len(loads[-1]) == MOST_TYPES:
                loads, room, letters = [*loads, []], 2 * MOST_IDS, MOST_LETTERS
            loads[-1].append((number, piece))
            room, letters = room - size, letters - length
    asks = [
        ({**arguments, "questions": [each.told for _, each in load]}, [ids for _, each in load for ids in each[1:]])
        for load in loads[1:]
    ]
    arrive = _ask(part, "neighbours", asks)

    def answers() -> list[Answer]:
        found: list[list[Sequence[np.ndarray]]] = [[] for _ in wanted]
        for load, arrays in zip(loads[1:], arrive(), strict=True):
            for place, (number, _) in enumerate(load):
                found[number].append(arrays[3 * place : 3 * place + 3])
        return [Answer(*map(_joined, zip(*pieces, strict=True))) for pieces in found]

    return answers


def _ask(
    part: int, what: str, asks: Sequence[tuple[Mapping[str, Any], Sequence[np.ndarray]]]
) -> Callable[[], list[list[np.ndarray]]]:
    """Ask for the first few; the call waits for all, and asks for the others as answers come."""
    place = storage()
    pending = deque(place.ask(part, what, *ask) for ask in asks[:AHEAD])

    def arrive() -> list[list[np.ndarray]]:
        found = []
        for following in [*asks[AHEAD:], *[None] * AHEAD]:
            if pending:
                found.append(pending.popleft()())
            if following is not None:
                pending.append(place.ask(part, what, *following))
        return found

    return arrive


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
