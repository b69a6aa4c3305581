"""Compiling the kernels of a training before its workers start, so that each finds them in the cache."""

from __future__ import annotations

import torch

from kgdist.models.base import Model


def warm_up(model: Model) -> None:
    """Run once, on a few numbers, every kernel that a step of `model` runs."""
    q = torch.rand(1, 2, 4, requires_grad=True)
    model.comparator.cross(q, torch.rand(1, 3, 4, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]
