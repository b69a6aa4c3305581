"""How large the partitions are, how many triples they cut, and how even they are: counted in one pass over the triples.

A triple lives with its tail. Its head, when another partition owns it, is one of the halo: rows that a machine needs from others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kgdist.base.progress import bar
from kgdist.kernels import adjacency as loops

PIECE = 1 << 20  # triples looked at together


def pieces(triples: np.ndarray, what: str) -> Iterator[np.ndarray]:
    """`triples` int32[T, 3] piece by piece, with a bar that says `what` is being done."""
    with bar(total=len(triples), desc=what, unit=" triples") as progress:
        for start in range(0, len(triples), PIECE):
            piece = triples[start : start + PIECE]
            yield piece
            progress.update(len(piece))


def cut(triples: np.ndarray, assigned: np.ndarray) -> int:
    """How many of `triples` int32[T, 3] have their ends in different parts of `assigned` int32[entities]."""
    return sum(int((assigned[piece[:, 0]] != assigned[piece[:, 2]]).sum()) for piece in pieces(triples, "counting the cut"))


@dataclass(frozen=True)
class Sizes:
    """One number for each partition, and the cut."""

    entities: list[int]  # owned
    halo: list[int]  # different heads of own triples that another partition owns
    triples: list[int]
    relations: list[int]  # different relations among own triples
    cut: int  # triples whose head is another partition's

    @classmethod
    def of(cls, triples: np.ndarray, assigned: np.ndarray, parts: int, num_relations: int) -> Sizes:
        """Count. `triples` int32[T, 3], `assigned` int32[entities]; memory: an eighth of a byte for each entity and partition."""
        seen = np.zeros((len(assigned), -(-parts // 8)), np.uint8)
        used = np.zeros((parts, num_relations), bool)
        counts, halo = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
        cut = sum(int(loops.tally(piece, assigned, seen, used, counts, halo)) for piece in pieces(triples, "measuring the parts"))
        owned = np.bincount(assigned, minlength=parts)
        return cls(owned.tolist(), halo.tolist(), counts.tolist(), used.sum(axis=1).tolist(), cut)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the two ratios."""
        return {**asdict(self), "balance": {"entities": uneven(self.entities), "triples": uneven(self.triples)}}

    def table(self) -> str:
        """For people."""
        names = ("partition", "entities", "halo", "triples", "relations")
        rows = [(str(p), *(f"{number:,}" for number in row)) for p, row in enumerate(self._rows())]
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (names, *rows)]
        total = sum(self.triples)
        lines.append(
            f"cut: {self.cut:,} of {total:,} triples ({100 * self.cut / max(1, total):.1f} %); largest partition / average: "
            f"{uneven(self.entities):.3f} of entities, {uneven(self.triples):.3f} of triples"
        )
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[int, int, int, int]]:
        return zip(self.entities, self.halo, self.triples, self.relations, strict=True)


def uneven(numbers: list[int]) -> float:
    """The largest of `numbers` divided by their average; 1 is even."""
    return round(max(numbers) * len(numbers) / sum(numbers), 4) if sum(numbers) else 1.0
