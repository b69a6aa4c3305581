"""Entities as points in the plane: the first two principal components of a sample of their embeddings.

They are coloured by their domain, see kgdist.report.facts.domains. A picture, not a measurement: it does not say how good ranks
are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kgdist.data.dataset import Dataset
from kgdist.report.facts import Sample, degrees, domains

POINTS = 2500  # drawn, at most
DRAWN = 20000  # entities whose domain is looked up, at most
COLOURS = 7  # domains with a colour of their own; the rest is "other"


@dataclass(frozen=True)
class Group:
    """The points of one colour."""

    name: str  # of the relation, or what the rest is called
    end: str  # "head of" | "tail of" | ""
    total: int  # entities of the looked-up ones, drawn or not
    places: np.ndarray  # float32[n, 2]
    names: list[str]
    degrees: np.ndarray  # int64[n]


@dataclass(frozen=True)
class Picture:
    """All of them, the largest group first."""

    explained: float  # the share of the variance that the two axes have
    entities: int  # in the graph
    groups: list[Group]

    @property
    def points(self) -> int:
        """How many are drawn."""
        return sum(len(group.names) for group in self.groups)


def picture(sample: Sample, seed: int = 0) -> Picture:
    """Draw a sample of the entities; the same one for the same graph and seed."""
    data, rng = sample.dataset, np.random.default_rng(seed)
    count = len(data.entities)
    candidates = np.sort(rng.choice(count, min(count, DRAWN), replace=False, shuffle=False))
    kind = domains(data, candidates)
    kinds, sizes = np.unique(kind, return_counts=True)
    coloured = [int(found) for found in kinds[np.lexsort((kinds, -sizes))] if found >= 0][:COLOURS]
    members = [candidates[kind == found] for found in coloured]
    rest = candidates[~np.isin(kind, coloured)]
    members += [rest] if len(rest) else []
    chosen = [np.sort(rng.choice(part, size, replace=False)) for part, size in zip(members, _shares(members), strict=True)]
    ids = np.concatenate(chosen)
    rows = sample.opened.tables.pull("entity", torch.from_numpy(ids.astype(np.int64))).numpy()
    places, explained = project(rows)
    often = degrees(data, ids)
    groups, start = [], 0
    for number, (part, all_of_it) in enumerate(zip(chosen, members, strict=True)):
        here = slice(start, start := start + len(part))
        name, end = _name(data, coloured[number]) if number < len(coloured) else ("other", "")
        groups.append(Group(name, end, len(all_of_it), places[here], data.entities.names(part), often[here]))
    return Picture(explained, count, groups)


def _name(data: Dataset, domain: int) -> tuple[str, str]:
    return data.relations[domain // 2], ("head of", "tail of")[domain % 2]


def _shares(members: list[np.ndarray]) -> list[int]:
    """How many points each group gets: all when they fit, else by the square root of its size, so that small groups are seen."""
    sizes = np.array([len(part) for part in members])
    if sizes.sum() <= POINTS:
        return [int(size) for size in sizes]
    weights = np.sqrt(sizes)
    return [int(share) for share in np.minimum(sizes, np.ceil(POINTS * weights / weights.sum()))]


def project(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """The first two principal components of float32[n, D] -> float32[n, 2], and the share of the variance that they show."""
    centred = rows - rows.mean(0)
    # The two largest eigenvectors of the D x D scatter matrix: the same as an SVD, and cheaper while D is less than n.
    values, vectors = np.linalg.eigh(centred.T.astype(np.float64) @ centred)
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # else a sign is a matter of luck
    places = np.zeros((len(rows), 2), np.float32)
    places[:, : axes.shape[1]] = centred @ axes
    return places, float(values[-2:].sum() / max(values.sum(), 1e-30))
