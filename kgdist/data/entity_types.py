"""The types of entities: read from a file, as pairs of an entity and the number of a type."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kgdist.base.errors import DataError
from kgdist.base.log import log
from kgdist.data.names import lengths
from kgdist.data.read.columns import shown
from kgdist.data.read.lines import check_file
from kgdist.data.vocabulary import Vocabulary
from kgdist.options.config import Config

EXPECTED = "lines of `entity<TAB>type`"


def types_of(config: Config, entities: Vocabulary) -> np.ndarray | None:
    """See `read_types`, of the file that `--entity_types` names; None where it names none."""
    return None if config.entity_types is None else read_types(Path(config.entity_types), entities)


def read_types(path: Path, entities: Vocabulary) -> np.ndarray:
    """int32[n, 2] of entity and type, ascending, each once; types have numbers in the order of their first lines.

    An entity may have several lines. Those of names that the graph lacks are passed over, which is said. Raises DataError with
    the line for one that is not so, and for entities without a type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from kgdist.data.read.dictionary import read_lines  # which takes pyarrow, and a cached graph has no need of that

    check_file(path, EXPECTED)
    lines = read_lines(path, EXPECTED)
    fields = pc.split_pattern(lines, "\t")
    counts = np.asarray(pc.list_value_length(fields).to_numpy())
    if len(wrong := np.flatnonzero(counts != 2)):
        row = int(wrong[0])
        raise DataError(path, f"expected `entity<TAB>type`, found {shown(lines[row])}", line=row + 1)
    flat = fields.flatten()
    names, types = (flat.take(pa.array(np.arange(start, len(flat), 2))) for start in (0, 1))
    for what, column in (("entity", names), ("type", types)):
        if len(empty := np.flatnonzero(lengths(column) == 0)):
            raise DataError(path, f"the {what} is empty", line=int(empty[0]) + 1)
    ids, codes = entities.find(names), types.dictionary_encode().indices.to_numpy()
    known = ids >= 0
    if not known.all():
        first = int(np.flatnonzero(~known)[0])
        said = f"{int((~known).sum())} of its {len(ids)} lines are of entities that the graph does not have"
        log.warning("%s: %s, and are passed over; the first is %s on line %d", path, said, shown(names[first]), first + 1)
    untyped = np.ones(len(entities), bool)
    untyped[ids[known]] = False
    if untyped.any():
        first = int(np.flatnonzero(untyped)[0])
        lacking = f"has no line for {int(untyped.sum())} of {len(entities)} entities, the first is {shown(entities[first])}"
        raise DataError(path, f"{lacking}; add their types (or one for all whose type is not known)")
    pairs: np.ndarray = np.unique(np.stack([ids[known], codes[known]], axis=1).astype(np.int32), axis=0)
    return pairs
