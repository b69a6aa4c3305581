"""Which trainer works on which nodes or edges of a set: even, and as many as possible of its own machine.

Nothing is drawn from anybody's random numbers: a split is a function of the set and of where the trainers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.base.integers import integer
from kgdist.distributed.current import storage
from kgdist.distributed.long_questions import ask_about
from kgdist.distributed.policy import PartitionPolicy
from kgdist.distributed.storage import Placement
from kgdist.distributed.tensor import DistTensor, count_nonzero
from kgdist.kernels.random import shuffled
from kgdist.partition.typed_book import PartitionBook
from kgdist.sampling.loaders import SplitSizes

Mask = DistTensor | torch.Tensor | np.ndarray | Sequence[bool]


def node_split(
    nodes: Mask,
    partition_book: Any = None,
    ntype: str | None = None,
    rank: int | None = None,
    force_even: bool = True,
    node_trainer_ids: Mask | None = None,
) -> torch.Tensor:
    """The share of one trainer, this one or `rank`, in the nodes of a mask: int64[n], ascending.

    Shares are disjoint and are the set together. With `force_even` their sizes differ by one at most: each trainer has nodes of
    its own machine as far as they go, and what other machines have too many of; without it, all nodes of its machine, dealt out
    evenly there. `node_trainer_ids` says whose each node is rather than its machine (`trainer_id` of partition_graph). A mask
    that is a DistTensor is counted where it lies, so little of it travels; with trainer ids all of both is read.

    The result tells loaders the sizes of all shares (`SplitSizes`), so that all make equally many batches: a share that is
    one short may repeat its first node once. What is made of it (a slice, a permutation) does not; see `even_batches`.

    Raises UsageError for a mask of a wrong length, an unknown type or rank.
    """
    return _split(nodes, _policy_of(nodes, partition_book, "node", ntype), rank, force_even, node_trainer_ids)


def edge_split(
    edges: Mask,
    partition_book: Any = None,
    etype: str | tuple[str, str, str] | None = None,
    rank: int | None = None,
    force_even: bool = True,
    edge_trainer_ids: Mask | None = None,
) -> torch.Tensor:
    """As `node_split`, of the edges of a mask."""
    return _split(edges, _policy_of(edges, partition_book, "edge", etype), rank, force_even, edge_trainer_ids)


def even_batches(ids: torch.Tensor, most: int | None = None) -> torch.Tensor:
    """`ids` and as many of its first ones again as make it `most` long: what the trainer with most has, so that all make equally
    many batches of any size.

    Without `most` that is known for the result of a split; for other ids all trainers say how many they have, by
    torch.distributed, so that all must call this together. Raises UsageError where `ids` is empty and others' are not.
    """
    if most is None and (sizes := SplitSizes.of(ids)) is not None:
        most = sizes.most
    if most is None:
        most = len(ids)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            told = torch.tensor([most])
            torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
            most = int(told)
    if len(ids) == 0 < most:
        raise UsageError(f"this trainer has no ids and another one has {most}: no batches can be even; take fewer trainers")
    return ids if len(ids) >= most else ids[torch.arange(most) % len(ids)]


def _policy_of(mask: Mask, book: Any, kind: str, type_name: Any) -> PartitionPolicy:
    """Whose rows a mask is of. Raises UsageError where its length is not theirs."""
    if not (book is None or isinstance(book, PartitionBook)):
        raise UsageError(f"{kind}_split: partition_book is what g.get_partition_book() gives, not {book!r}")
    if isinstance(mask, DistTensor):
        policy = mask.part_policy
        if policy.kind != kind:
            raise UsageError(f"{mask!r}: its rows are not {kind}s; take the other one of node_split and edge_split")
        if type_name is not None and not policy.is_of(type_name):
            raise UsageError(f"{mask!r}: its rows are not {kind}s of type {type_name!r}; omit the type, or give another mask")
        return policy
    if not hasattr(mask, "__len__"):
        raise UsageError(f"{kind}_split: a mask says true or false of each {kind}, and is not a {type(mask).__name__}")
    if book is None:
        return storage().policies.find(len(mask), f"a mask for {kind}_split", kind, type_name)
    starts = book.node_starts(type_name) if kind == "node" else book.edge_starts(type_name)
    policy = PartitionPolicy("", kind, type_name or "", starts)
    if len(mask) != policy.get_size():
        raise UsageError(f"a mask of {len(mask)} {kind}s, but there are {policy.get_size()}")
    return policy


def _split(mask: Mask, policy: PartitionPolicy, rank: int | None, even: bool, trainer_ids: Mask | None) -> torch.Tensor:
    place = storage().placement
    rank = place.rank if rank is None else integer("rank", rank, 0, place.trainers - 1)
    groups = _by_machine(mask, policy, place) if trainer_ids is None else _by_trainer(mask, trainer_ids, policy, place)
    per_group = place.per_machine if trainer_ids is None else 1
    counts, ids_of = groups
    chosen = shares(counts, per_group, rank) if even else own(counts, per_group, rank)
    ids = torch.from_numpy(
        np.sort(np.concatenate([ids_of(group, places) for group, places in chosen] or [np.empty(0, np.int64)]))
    )
    if even:
        ids.split_sizes = SplitSizes(sum(counts) // place.trainers, -(-sum(counts) // place.trainers))  # type: ignore[attr-defined]
    return ids


Groups = tuple[list[int], Callable[[int, np.ndarray], np.ndarray]]  # how many each has, and their ids by places among them


def _by_machine(mask: Mask, policy: PartitionPolicy, place: Placement) -> Groups:
    """The members of a set machine by machine. One machine may hold all partitions, or each its own."""
    if place.machines not in (1, policy.parts):
        raise UsageError(f"{place.machines} machines and {policy.parts} partitions: each machine has one")
    bounds = policy.bounds if place.machines == policy.parts else policy.bounds[[0, -1]]
    if isinstance(mask, DistTensor) and place.machines == policy.parts:
        name = mask.name

        def asked(machine: int, places: np.ndarray) -> np.ndarray:
            return ask_about(policy, machine, "nonzero", {"table": name}, places)()[0]

        return count_nonzero(mask), asked
    array = _set(mask)
    members = [np.flatnonzero(array[start:stop]) + start for start, stop in pairwise(bounds)]
    return [len(each) for each in members], lambda machine, places: members[machine][places]


def _by_trainer(mask: Mask, trainer_ids: Mask, policy: PartitionPolicy, place: Placement) -> Groups:
    """The members of a set trainer by trainer, as the trainer ids say."""
    chosen, whose = np.flatnonzero(_set(mask)), _whole(trainer_ids)
    if whose.shape != (policy.get_size(),):
        raise UsageError(f"trainer ids of shape {whose.shape}, but there are {policy.get_size()}")
    whose = whose[chosen]
    if len(whose) and not 0 <= int(whose.min()) <= int(whose.max()) < place.trainers:
        raise UsageError(f"trainer ids {int(whose.min())} to {int(whose.max())}, but there are {place.trainers} trainers")
    members = [chosen[whose == trainer] for trainer in range(place.trainers)]
    return [len(each) for each in members], lambda trainer, places: members[trainer][places]


def _set(mask: Mask) -> np.ndarray:
    array = _whole(mask)
    if not isinstance(mask, DistTensor) and array.dtype.kind in "iu" and array.size and int(array.max()) > 1:
        raise UsageError(
            "numbers other than 0 and 1 look like ids, and id 0 would be left out: give a mask (torch.ones(n) for all)"
        )
    return array


def _whole(mask: Mask) -> np.ndarray:
    if isinstance(mask, DistTensor):
        mask = mask[:]
    array = mask.detach().cpu().numpy() if isinstance(mask, torch.Tensor) else np.asarray(mask)
    if array.ndim != 1:
        raise UsageError(f"a mask has one dimension, not the shape {array.shape}")
    return array


def shares(counts: Sequence[int], per_group: int, rank: int) -> list[tuple[int, np.ndarray]]:
    """An even split of a set that lies in groups, so many in each, over `per_group` trainers a group: for one trainer, groups and
    int64 places among what is theirs.

    A group keeps what its trainers can take; the last ones of groups that have more go to those that have less, in order. The
    trainers of a group share what it has by a shuffle, because ids that are near each other may be alike.
    """
    total, trainers = sum(counts), len(counts) * per_group
    quotas = np.full(trainers, total // trainers, np.int64)
    quotas[: total % trainers] += 1
    takes = quotas.reshape(-1, per_group).sum(1)
    kept = np.minimum(counts, takes)
    group = rank // per_group
    first = int(quotas[group * per_group : rank].sum())
    places = _shuffled(group, first, first + int(quotas[rank]), int(takes[group]))
    # What lies beyond the own ones are places in the pool of what other groups have too much of.
    spare = np.asarray(counts, np.int64) - kept
    ends = np.cumsum(spare)
    pooled = places[places >= kept[group]] - kept[group] + int((takes - kept)[:group].sum())
    owners = np.searchsorted(ends, pooled, side="right")
    found = [(group, places[places < kept[group]])] if kept[group] else []
    for other in np.unique(owners):
        start = int(ends[other] - spare[other])
        found.append((int(other), pooled[owners == other] - start + kept[other]))
    return found


def own(counts: Sequence[int], per_group: int, rank: int) -> list[tuple[int, np.ndarray]]:
    """As `shares`, but every group has its own and nothing else."""
    group, number = divmod(rank, per_group)
    count = counts[group]
    start, stop = number * count // per_group, (number + 1) * count // per_group
    return [(group, _shuffled(group, start, stop, count))]


def _shuffled(seed: int, start: int, stop: int, count: int) -> np.ndarray:
    return shuffled(seed, 0, start, stop, count) if stop > start else np.empty(0, np.int64)
