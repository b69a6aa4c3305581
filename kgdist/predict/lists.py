"""What a user lists -> ids: files of one name or id a line, or words of the command line.

Whether a list holds names or ids is settled before it is read (`things`), never guessed from what stands in it. A name is
byte-exact, as everywhere; blanks around an id are allowed. The same line may come twice. Not the parser of dictionaries or
triples: those have columns.
"""

from __future__ import annotations

import difflib
import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kgdist.base.errors import DataError, OptionError
from kgdist.data.read.dictionary_lines import integers, not_integers, read_lines
from kgdist.data.read.lines import check_file
from kgdist.data.read.rows import shown
from kgdist.data.vocabulary import Vocabulary
from kgdist.options.option import is_integer

LOOK = 1 << 18  # names that are looked through for ones like an unknown name: a second at most, however many there are
NEAR = 64  # of them, those that share most pairs of letters are compared in full
PLURAL = {"entity": "entities", "relation": "relations"}


@dataclass(frozen=True)
class Things:
    """All entities, or all relations, and how lists write them: by name, or by id where `names` is None."""

    noun: str  # "entity" or "relation"
    count: int
    names: Vocabulary | None = None

    def read(self, path: str | Path) -> np.ndarray:
        """The file's lines as int64[n], n >= 1. Raises DataError with the line of the first that cannot be."""
        path, expected = Path(path), f"one {self.noun} {'id' if self.names is None else 'name'} a line"
        check_file(path, expected)
        lines = read_lines(path, expected)  # pa.LargeStringArray[n]
        if self.names is not None:
            ids = self.names.find(lines).astype(np.int64)
            bad = np.flatnonzero(ids < 0)
        else:
            found = integers(lines)
            ids = np.array([] if found is None else found, np.int64)
            bad = not_integers(lines) if found is None else np.flatnonzero(ids >= self.count)
        if len(bad):
            raise DataError(path, self._wrong(lines[int(bad[0])].as_py()), line=int(bad[0]) + 1)
        return ids

    def words(self, option: str, words: Sequence[str]) -> np.ndarray:
        """Words of the command line as int64[n]. Raises OptionError naming `option` for the first that cannot be."""
        if self.names is not None:
            ids = self.names.find(list(words)).astype(np.int64)
        else:
            ids = np.array([int(word) if is_integer(word) and len(word) <= 18 else -1 for word in words], np.int64)
        bad = np.flatnonzero((ids < 0) | (ids >= self.count))
        if len(bad):
            raise OptionError(option, self._wrong(words[int(bad[0])]))
        return ids

    def _wrong(self, text: str) -> str:
        """What is wrong with a line or word that means nothing here."""
        allowed = f"0 to {self.count - 1}" if self.count else "none"
        if self.names is None:
            if is_integer(text.strip(" ")):
                return f"{self.noun} id {shown(text)[1:-1]} is out of range, allowed: {allowed}"
            return f"{shown(text)} is no {self.noun} id (an integer, {allowed}); lists of names need --raw_data and known names"
        near = closest(text, self.names)
        if near:
            return f"no {self.noun} is called {shown(text)}; did you mean {' or '.join(map(shown, near))}?"
        if is_integer(text.strip(" ")) and 0 <= int(text) < self.count:
            return f"no {self.noun} is called {shown(text)}; give --ids if that is an id"
        return f"no {self.noun} is called {shown(text)}"


def things(
    noun: str,
    count: int,
    known: Vocabulary | None,
    *,
    raw_data: bool = False,
    ids: bool = False,
    mfile: str | None = None,
    flag: str = "--mfile",
) -> Things:
    """How lists of one noun are to be read.

    By name where names are `known` or `mfile` (lines `id<TAB>name`, given by the option `flag`) says them, unless `ids`.
    Raises OptionError for options that contradict, or `raw_data` without names; DataError for an `mfile` of another length.
    """
    if ids and (raw_data or mfile):
        raise OptionError("--ids", f"says that the lists hold ids, {'--raw_data' if raw_data else flag} that they hold names")
    if mfile is not None:
        known = Vocabulary.read_tsv(mfile)
        if len(known) != count:
            raise DataError(
                mfile, f"names {len(known):,} {PLURAL[noun]}, but there are embeddings of {count:,}; is it another data set's?"
            )
    elif raw_data and known is None:
        raise OptionError("--raw_data", f"the names of the {PLURAL[noun]} are not known here; give {flag} FILE")
    return Things(noun, count, None if ids or known is None or known.count is not None else known)


def closest(name: str, names: Vocabulary, most: int = 3) -> list[str]:
    """Known names that the unknown `name` may have been meant to be, the likeliest first; of the first LOOK of `names`."""
    wanted = name[:100].strip().lower()
    pairs = {wanted[place : place + 2] for place in range(max(1, len(wanted) - 1))}

    def shared(other: str) -> float:
        text = other.lower()
        return 2 * sum(pair in text for pair in pairs) / (len(pairs) + len(text))

    near = heapq.nlargest(NEAR, itertools.islice(names, LOOK), key=shared)
    rated = [(difflib.SequenceMatcher(None, wanted, other[:200].lower()).ratio(), other) for other in near]
    return [other for ratio, other in sorted(rated, key=lambda each: -each[0])[:most] if ratio >= 0.5]
