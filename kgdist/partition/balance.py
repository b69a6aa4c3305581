"""What is evened out between the parts: what each node brings to its part, in one or several loads, and how uneven they may be.

Of triples there are two loads, entities and the triples that they are the tails of. Of a graph with classes (node types, what a
training mask says) each class has its own: its nodes, and if asked its in-edges. Classes too rare to have a member in each part
are merged: METIS leaves parts empty over them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kgdist.partition.graph import Degrees

TOLERANCE = {"entities": (1.03,), "triples": (1.1, 1.05)}  # largest part / average: entities, triples
OF_A_CLASS = 1.05  # the same of nodes and of in-edges of each of several classes


@dataclass(frozen=True)
class Balance:
    """Loads of n nodes."""

    loads: np.ndarray  # int64[n, c]
    tolerance: tuple[float, ...]  # largest part / average that is aimed at, of each load
    asked: int  # METIS gets the last of them, so many
    incoming: np.ndarray | None = None  # int64[n], in-edges where they are evened out
    classes: np.ndarray | None = None  # int64[n], where there are several

    @classmethod
    def of_triples(cls, found: Degrees, balance: str) -> Balance:
        """`balance` is entities, or triples: these besides entities, and METIS gets them alone.

        With both as its constraints it cuts up to a fifth more, and answers differ more from one try to the next.
        """
        ones = np.ones((len(found.incoming), 1), np.int64)
        if balance == "entities":
            return cls(ones, TOLERANCE[balance], 1)
        return cls(np.column_stack([ones, found.incoming]), TOLERANCE[balance], 1, found.incoming)

    @classmethod
    def of_classes(cls, found: Degrees, classes: np.ndarray | None, parts: int, *, edges: bool) -> Balance:
        """A load for each class of `classes` int[n], and with `edges` another one of the edges that lead to it."""
        kinds = None if classes is None else merged(classes, parts)
        if kinds is None or len(kinds) == 0 or kinds.max() == 0:
            return cls.of_triples(found, "triples" if edges else "entities")
        count = int(kinds.max()) + 1
        loads = np.zeros((len(kinds), (1 + edges) * count), np.int64)
        rows = np.arange(len(kinds))
        loads[rows, kinds] = 1
        if edges:
            loads[rows, count + kinds] = found.incoming
        width = loads.shape[1]
        return cls(loads, (OF_A_CLASS,) * width, width, found.incoming if edges else None, kinds)

    def most(self, parts: int) -> np.ndarray:
        """float64[c]: what a part may hold of each load; of a class at least what can always be reached."""
        average = self.loads.sum(axis=0) / parts
        most: np.ndarray = average * np.array(self.tolerance)
        return most if self.classes is None else np.maximum(most, average + self.loads.max(axis=0, initial=0))

    def limits(self, parts: int) -> np.ndarray:
        """int64[c]: the same, rounded up."""
        limits: np.ndarray = np.ceil(self.most(parts)).astype(np.int64)
        return limits

    def dealing(self, order: np.ndarray) -> np.ndarray:
        """`order` int64[n] sorted such that dealing out k nodes at a time evens out all there is to be: by class, heavy first."""
        if self.incoming is not None:
            order = order[np.argsort(-self.incoming[order], kind="stable")]
        return order if self.classes is None else order[np.argsort(self.classes[order], kind="stable")]


def merged(classes: np.ndarray, parts: int) -> np.ndarray:
    """int64[n], `classes` int[n] numbered 0, 1, ...; those with fewer members than there are parts become one, or, when that is
    still too few, belong to the largest."""
    _, kinds, counts = np.unique(classes, return_inverse=True, return_counts=True)
    rare = counts < parts
    if not rare.any() or not len(counts):
        return kinds.reshape(-1)
    number = np.cumsum(~rare) - 1
    own = counts[rare].sum() >= parts or rare.all()
    number[rare] = (~rare).sum() if own else number[int(counts.argmax())]
    found: np.ndarray = number[kinds.reshape(-1)]
    return found
