"""The partition book: which partition owns which ids, and how original ids become new ones.

Entities and relations get new ids, so that every partition owns one contiguous range of each. A relation r belongs to partition
r % k: they are dealt out in turn. The book holds no triples and reads no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Book:
    """Where the range of each of k partitions begins, in new ids; equal books own alike."""

    entities: np.ndarray  # int64[k+1]: partition p owns new ids entities[p]:entities[p+1]
    relations: np.ndarray  # int64[k+1]

    def __post_init__(self) -> None:
        """Raises ValueError unless both ascend from 0 and are of one length."""
        for starts in (self.entities, self.relations):
            if starts.dtype != np.int64 or starts.ndim != 1 or len(starts) < 2 or starts[0] != 0 or (np.diff(starts) < 0).any():
                raise ValueError("a partition book must hold int64 starts that ascend from 0")
        if len(self.entities) != len(self.relations) or (np.diff(self.relations) != dealt(self.parts, self.num_relations)).any():
            raise ValueError("relations must be dealt out in turn")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Book) and all(
            np.array_equal(mine, theirs) for mine, theirs in ((self.entities, other.entities), (self.relations, other.relations))
        )

    @property
    def parts(self) -> int:
        """k, the number of partitions."""
        return len(self.entities) - 1

    @property
    def num_entities(self) -> int:
        """Entities of the whole graph."""
        return int(self.entities[-1])

    @property
    def num_relations(self) -> int:
        """Relations of the whole graph."""
        return int(self.relations[-1])

    def original_relations(self) -> np.ndarray:
        """int32[relations]: the original id of each relation by its new id, which the dealing alone decides."""
        return np.concatenate([np.arange(part, self.num_relations, self.parts, dtype=np.int32) for part in range(self.parts)])

    def to_json(self) -> dict[str, list[int]]:
        """Plain data; `from_json` reads it."""
        return {"entities": self.entities.tolist(), "relations": self.relations.tolist()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Book:
        """The inverse of `to_json`. Raises ValueError for what is no book."""
        try:
            starts = {name: [int(start) for start in value[name]] for name in ("entities", "relations")}
            if any(type(start) is not int for name in starts for start in value[name]):
                raise ValueError("a partition book must hold integers")
            return cls(**{name: np.array(numbers, np.int64) for name, numbers in starts.items()})
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a partition book ({error})") from error


def dealt(parts: int, count: int) -> np.ndarray:
    """int64[parts]: how many of `count` things each gets that are dealt out in turn."""
    return (count - np.arange(parts, dtype=np.int64) + parts - 1) // parts


@dataclass(frozen=True)
class Numbering:
    """A book with both directions of the renumbering: 4 bytes each for an entity or relation and direction."""

    book: Book
    assigned: np.ndarray  # int32[entities], the partition of each original entity id
    entities: np.ndarray  # int32[entities], the original id of each new id
    relations: np.ndarray  # int32[relations]
    new_entities: np.ndarray  # int32[entities], the new id of each original id
    new_relations: np.ndarray  # int32[relations]

    @classmethod
    def of(cls, assigned: np.ndarray, parts: int, num_relations: int) -> Numbering:
        """The numbering in which the entities of a partition keep their order. `assigned` int32[entities], in 0..parts-1."""
        if len(assigned) and not 0 <= int(assigned.min()) <= int(assigned.max()) < parts:
            raise ValueError(f"entities are assigned to partitions outside of 0..{parts - 1}")
        starts = np.zeros(parts + 1, np.int64)
        np.cumsum(np.bincount(assigned, minlength=parts), out=starts[1:])
        relation_starts = np.zeros(parts + 1, np.int64)
        np.cumsum(dealt(parts, num_relations), out=relation_starts[1:])
        book = Book(starts, relation_starts)
        # Parts fit into 16 bits, and NumPy sorts those by counting.
        entities = np.argsort(assigned.astype(np.uint16), kind="stable").astype(np.int32)
        return cls(book, assigned, entities, relations := book.original_relations(), inverse(entities), inverse(relations))

    def renumber(self, triples: np.ndarray) -> np.ndarray:
        """int32[T, 3] in original ids -> int32[T, 3] in new ids."""
        renumbered = np.empty((len(triples), 3), np.int32)
        for column, ids in enumerate((self.new_entities, self.new_relations, self.new_entities)):
            np.take(ids, triples[:, column], out=renumbered[:, column], mode="clip")
        return renumbered


def inverse(order: np.ndarray) -> np.ndarray:
    """The places int32[n] of 0..n-1 in `order` int[n]: new ids by original ones, from the original ones by new."""
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    return places
