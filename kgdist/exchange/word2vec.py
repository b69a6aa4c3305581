"""Embeddings as word2vec text: `count width`, then a line for each name: the word, a blank, the numbers with blanks between.

gensim's `KeyedVectors.load_word2vec_format` splits a line at every blank and takes the first part as the word; other readers
split at any white space. So a name must become one word: each white space in it becomes `--blank`. Of two equal words gensim
would drop one, so that is refused. The exact names, in the same order, are in entities.tsv and relations.tsv.
"""

from __future__ import annotations

import re
from pathlib import Path

from kgdist.base.errors import OptionError
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange.folder import durable
from kgdist.exchange.lines import lines_of
from kgdist.exchange.source import Source

# What Python's str.split splits at, which is more than a regular expression calls white space.
SPACE = re.compile(r"[\s\x1c-\x1f\x85]")


def write(source: Source, folder: Path, blank: str = "_") -> None:
    """`<table>.txt`. Raises OptionError when two names would be one word."""
    for kind, names in source.names.items():
        check_words(names, kind, blank)
    for table, rows in source.tables.items():
        with durable(folder / f"{table}.txt") as file:
            file.write(b"%d %d\n" % rows.shape)
            for names_of_block, block in source.named_blocks(table):
                file.write(lines_of(block, " ", [word(name, blank) for name in names_of_block]))


def word(name: str, blank: str) -> str:
    """The name as one word."""
    return SPACE.sub(blank, name)


def check_words(names: Vocabulary, kind: str, blank: str) -> None:
    """Raise OptionError when `blank` cannot stand in a word, or makes two names equal. Memory: the names with white space."""
    if SPACE.search(blank):
        raise OptionError("--blank", f"{blank!r} holds white space itself; take _ or another sign")
    changed: dict[str, str] = {}
    for name in names:
        if SPACE.search(name):
            made = word(name, blank)
            other = changed.setdefault(made, name)
            if other != name:
                raise OptionError("--blank", f"{kind} {name!r} and {other!r} would both be the word {made!r}; give another sign")
    for made, place in zip(changed, names.find(list(changed)).tolist() if changed else [], strict=True):
        if place >= 0:
            message = f"{kind} {changed[made]!r} would be the word {made!r}, which there is already; give another sign"
            raise OptionError("--blank", message)
