"""The entities as points in the plane: UMAP of a sample of their embeddings where it is installed, else their first two
principal components.

Entities are coloured by their domain, see kgdist.report.opened.domains. A picture, not a measurement: it does not say how good
ranks are.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kgdist.report.opened import Opened, degrees, domains

POINTS = 2500  # drawn, at most
DRAWN = 20000  # entities whose domain is looked up, at most
NEIGHBOURS = 15  # of a point, as UMAP sees it
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

    method: str  # "UMAP" | "PCA"
    explained: float | None  # of PCA: the share of the variance that the two axes have
    entities: int  # in the graph
    groups: list[Group]

    @property
    def points(self) -> int:
        """How many are drawn."""
        return sum(len(group.names) for group in self.groups)


def picture(opened: Opened, seed: int = 0) -> Picture:
    """Draw a sample of the entities; the same one for the same graph and seed.

    UMAP takes some ten seconds, and half a minute the first time.
    """
    data, rng = opened.dataset, np.random.default_rng(seed)
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
    rows = opened.tables.pull("entity", torch.from_numpy(ids.astype(np.int64))).numpy()
    places, method, explained = project(rows, seed)
    often = degrees(data, ids)
    groups, start = [], 0
    for number, (part, all_of_it) in enumerate(zip(chosen, members, strict=True)):
        here = slice(start, start := start + len(part))
        name, end = _name(opened, coloured[number]) if number < len(coloured) else ("other", "")
        groups.append(Group(name, end, len(all_of_it), places[here], data.entities.names(part), often[here]))
    return Picture(method, explained, count, groups)


def _name(opened: Opened, domain: int) -> tuple[str, str]:
    return opened.dataset.relations[domain // 2], ("head of", "tail of")[domain % 2]


def _shares(members: list[np.ndarray]) -> list[int]:
    """How many points each group gets: all when they fit, else by the square root of its size, so that small groups are seen."""
    sizes = np.array([len(part) for part in members])
    if sizes.sum() <= POINTS:
        return [int(size) for size in sizes]
    weights = np.sqrt(sizes)
    return [int(share) for share in np.minimum(sizes, np.ceil(POINTS * weights / weights.sum()))]


def project(rows: np.ndarray, seed: int) -> tuple[np.ndarray, str, float | None]:
    """float32[n, D] -> float32[n, 2], the method, and of PCA the share of the variance that is seen."""
    centred = rows - rows.mean(0)
    umap = _umap() if len(rows) > NEIGHBOURS else None
    if umap is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a seed leaves it one thread
            made = umap(n_components=2, n_neighbors=NEIGHBOURS, min_dist=0.2, random_state=seed).fit_transform(centred)
        return np.asarray(made, np.float32), "UMAP", None
    # The two largest eigenvectors of the D x D scatter matrix: the same as an SVD, and cheaper while D is less than n.
    values, vectors = np.linalg.eigh(centred.T.astype(np.float64) @ centred)
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # else a sign is a matter of luck
    places = np.zeros((len(rows), 2), np.float32)
    places[:, : axes.shape[1]] = centred @ axes
    return places, "PCA", float(values[-2:].sum() / max(values.sum(), 1e-30))


def _umap() -> Any:
    """The class, or None where it is not installed."""
    try:
        from umap import UMAP
    except ImportError:
        return None
    return UMAP
