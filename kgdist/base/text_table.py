"""Rows of words and numbers as aligned lines for a person, on a terminal or in a pipe.

Widths are those of the titles and of the first rows that are given together, since later ones may be many; a cell that is wider
moves the rest of its line. On a terminal, lines are cut to its width, the widest columns first. Names come from anywhere: what
would move the cursor or change its colour is shown as a sign, and a letter that takes two columns, or none, counts so.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Sequence
from typing import Any, TextIO

from kgdist.base.log import on_terminal, paint

GAP = "  "
LEAST = 8  # columns that are never made narrower


class TextTable:
    """The lines of one table on `stream`."""

    def __init__(self, titles: Sequence[str], stream: TextIO | None) -> None:
        self.titles, self.stream = titles, stream
        self.limit = shutil.get_terminal_size().columns if on_terminal(stream) else None
        self.widths: list[int] = []

    def lines(self, columns: Sequence[Sequence[Any]]) -> list[str]:
        """One line a row; the titles before the first. `columns` hold str, int, float or None, and are of one length."""
        texts = [[_text(value) for value in column] for column in columns]
        made = []
        right = [all(not isinstance(value, str) for value in column) for column in columns]
        if not self.widths:
            self.widths = self._fit([max(map(width, [title, *column])) for title, column in zip(self.titles, texts, strict=True)])
            made.append(paint(self._line(self.titles, right), "bold", self.stream))
        return made + [self._line(row, right) for row in zip(*texts, strict=True)]

    def _fit(self, widths: list[int]) -> list[int]:
        """The widths, the widest cut until a line fits."""
        while self.limit is not None and sum(widths) + len(GAP) * (len(widths) - 1) > self.limit and max(widths) > LEAST:
            widths[widths.index(max(widths))] -= 1
        return widths

    def _line(self, row: Sequence[str], right: Sequence[bool]) -> str:
        cells = []
        for text, size, to_right in zip(row, self.widths, right, strict=True):
            text = cut(text, size) if self.limit is not None else text
            blank = " " * (size - width(text))
            cells.append(blank + text if to_right else text + blank)
        return GAP.join(cells).rstrip()


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.3e}"
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value))


def width(text: str) -> int:
    """How many columns of a terminal `text` takes (Unicode Standard Annex 11)."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(letter) in ("Mn", "Me", "Cf") else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )


def cut(text: str, size: int) -> str:
    """`text` in at most `size` columns; an ellipsis says that something is missing."""
    if width(text) <= size:
        return text
    while text and width(text) >= size:
        text = text[:-1]
    return text + "…"
