"""What a loader's worker makes, with all its tensors in one: memory shared once a batch, and not once a tensor.

Torch's queues carry each tensor as a file descriptor of its own. A batch of a graph with many types has hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from kgdist.graphs.frames import Frame
from kgdist.graphs.in_memory import Graph
from kgdist.sampling.blocks import Block

ALIGNED = 16  # bytes: where each tensor begins


class _Place(NamedTuple):
    """Where a tensor is in the one that holds all."""

    start: int
    dtype: torch.dtype
    shape: torch.Size


class _Husk(NamedTuple):
    """An object of ours without its tensors."""

    kind: type
    state: dict[str, Any]


class Parcel(NamedTuple):
    """A batch as it travels."""

    tree: Any  # as it was, each tensor a _Place
    held: torch.Tensor  # uint8[bytes]


def _within(held: torch.Tensor, place: _Place) -> torch.Tensor:
    stop = place.start + place.shape.numel() * place.dtype.itemsize
    return held[place.start : stop].view(place.dtype).reshape(place.shape)


def packed(value: Any) -> Parcel:
    """Tensors on the CPU in tuples, lists, dictionaries, blocks and graphs; what else there is goes as it is."""
    tensors: list[tuple[_Place, torch.Tensor]] = []
    size = 0

    def strip(each: Any) -> Any:
        nonlocal size
        if isinstance(each, torch.Tensor):
            start, size = size, size + -(-each.nbytes // ALIGNED) * ALIGNED
            tensors.append((_Place(start, each.dtype, each.shape), each))
            return tensors[-1][0]
        if isinstance(each, Block | Graph | Frame):
            return _Husk(type(each), {name: strip(part) for name, part in vars(each).items()})
        if isinstance(each, Mapping):
            return {name: strip(part) for name, part in each.items()}
        if type(each) in (list, tuple):
            return type(each)(strip(part) for part in each)
        return each

    tree = strip(value)
    held = torch.empty(size, dtype=torch.uint8)
    for place, tensor in tensors:
        _within(held, place).copy_(tensor)
    return Parcel(tree, held)


def unpacked(parcel: Parcel) -> Any:
    """What was packed; its tensors share memory."""

    def fill(each: Any) -> Any:
        if isinstance(each, _Place):
            return _within(parcel.held, each)
        if isinstance(each, _Husk):
            whole: Any = object.__new__(each.kind)
            vars(whole).update({name: fill(part) for name, part in each.state.items()})
            return whole
        if isinstance(each, dict):
            return {name: fill(part) for name, part in each.items()}
        if type(each) in (list, tuple):
            return type(each)(fill(part) for part in each)
        return each

    return fill(parcel.tree)
