"""Attributes as what an entity begins with: a virtual node whose neighbours are its attributes, and a mean over these."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from kgdist.attributes.attribute_folder import NumbersOfRows, OnesOfRows


class AttributeEmbedding(torch.nn.Module):
    """x_v = the mean of W_a f_a(v) over the attributes a that v has: a convolution of one hop without a loop, with a matrix for
    each attribute. Those that are missing are no neighbours. Where f_a(v) is a row of ones, it counts as their mean.

    Rows of ones are never made dense: they cost their ones times `dim`, and the gradient of a matrix is as large as the matrix.

    Args:
        attributes: by name, as `open_attributes(folder)[node_type]` has them, mapped.
        rows: int64[entities], the row of each entity in these, -1 where it has none; `.rows` of the same.
    """

    def __init__(self, attributes: Mapping[str, OnesOfRows | NumbersOfRows], rows: np.ndarray, dim: int) -> None:
        super().__init__()
        self.attributes, self.rows, self.dim = dict(attributes), rows, dim
        self.matrices = torch.nn.ParameterList(
            torch.nn.Parameter(torch.empty(each.width, dim)) for each in self.attributes.values()
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices anew: what comes of one column is as large as what comes of many numbers."""
        for matrix, each in zip(self.matrices, self.attributes.values(), strict=True):
            inputs = 1 if isinstance(each, OnesOfRows) else each.width
            bound = math.sqrt(3 / max(inputs, 1) / self.dim)
            torch.nn.init.uniform_(matrix, -bound, bound)

    def forward(self, entities: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Of entities int64[n]: (float32[n, dim], bool[n], whether they have an attribute at all); 0 where they have none."""
        rows = np.asarray(self.rows[entities])
        total: torch.Tensor | None = None
        met = np.zeros(len(rows), np.float32)
        for matrix, each in zip(self.matrices, self.attributes.values(), strict=True):
            device = matrix.device
            if isinstance(each, OnesOfRows):
                starts, columns = each.take(rows)
                present = np.diff(starts) > 0
                given = torch.from_numpy(columns).long().to(device), torch.from_numpy(starts[:-1]).to(device)
                part = torch.nn.functional.embedding_bag(given[0], matrix, given[1], mode="mean")
            else:
                present, values = each.take(rows)
                part = torch.from_numpy(values).to(device) @ matrix
            met += present
            total = part if total is None else total + part
        counts = torch.from_numpy(met)
        if total is None:
            total = torch.zeros(len(rows), self.dim)
        return total / counts.clamp(min=1)[:, None].to(total.device), (counts > 0).to(total.device)
