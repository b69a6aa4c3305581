"""The formats that embeddings are written in, by name, and the writing of all of them: whole or not at all."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

from kgdist.base.errors import OptionError
from kgdist.base.progress import bar
from kgdist.exchange import dglke, npy, parquet, projector, safetensors, word2vec
from kgdist.exchange.folder import check_replaceable, whole_folder
from kgdist.exchange.source import Source

TARGETS = {
    "npy": npy.write,
    "safetensors": safetensors.write,
    "parquet": parquet.write,
    "word2vec": word2vec.write,
    "projector": projector.write,
    "dglke": dglke.write,
}
_MAPS = {"entity": "entities.tsv", "relation": "relations.tsv"}


def export(source: Source, target: str, out: Path, *, tables: str = "both", force: bool = False, blank: str = "_") -> list[Path]:
    """Write the folder `out`, and return its files: the embeddings, the names of the rows, and export.json on what they are.

    `tables`: "both", "entity" or "relation". `blank` replaces white space in the names of word2vec. Memory is a few blocks of
    rows and the names. Raises UsageError (a folder that is there, without `force`), OptionError, KgdistError (disk full): then
    `out` is as it was.
    """
    if target not in TARGETS:
        raise OptionError("--to", f"no format is called {target!r}; known: {', '.join(TARGETS)}")
    check_replaceable(out, force)
    source = source.only(tables)
    write = partial(word2vec.write, blank=blank) if target == "word2vec" else TARGETS[target]
    total = sum(len(rows) for rows in source.tables.values())
    about = {"format": target, **source.about()}
    with bar(total=total, desc=f"writing {target}", unit=" rows") as progress, whole_folder(out, about, force=force) as folder:
        write(dataclasses.replace(source, tick=progress.update), folder)
        for kind, names in source.names.items():
            names.write_tsv(folder / _MAPS[kind])
    return sorted(out.iterdir())
