"""Ids as users give them: tensors, arrays, lists, one number, or a dictionary of these by node type; and tensors as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.base.integers import int64
from kgdist.graphs.schema import Schema


def as_array(values: Any) -> np.ndarray:
    """An array of a tensor, an array or a list; memory is shared where that can be. bfloat16 becomes float32."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        array: np.ndarray = (values.float() if values.dtype is torch.bfloat16 else values).numpy()
        return array
    return np.asarray(values)


def as_ids(values: Any, what: str = "ids") -> np.ndarray:
    """int64[n], or int32[n] where they are that already. Raises UsageError for what are no whole numbers in a row."""
    ids = np.atleast_1d(as_array(values))
    if ids.size == 0:
        ids = ids.astype(np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        hint = ": of a mask, give torch.nonzero(mask).flatten()" if ids.dtype == np.bool_ else ""
        found = f"a {type(values).__name__}" if ids.dtype == object else f"{ids.dtype} of the shape {ids.shape}"
        raise UsageError(f"{what} are whole numbers in one row, not {found}{hint}")
    return ids if ids.dtype == np.int32 else int64(ids, what)


def by_type(nodes: Any, schema: Schema) -> dict[str, np.ndarray]:
    """Node ids int64[n] by type, of a dictionary, or of ids where there is one type."""
    given = nodes if isinstance(nodes, Mapping) else {schema.ntype(None): nodes}
    return {schema.ntype(ntype): as_ids(ids).astype(np.int64, copy=False) for ntype, ids in given.items()}
