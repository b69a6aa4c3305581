"""Tables in one folder that may be read where the graph has other partitions.

    tables.json   format, what it is of, and by key: rows, width, and whose rows they are (graph, nodes or edges, type)
    <key>.npy     float32[rows, width] by the ids that the graph had when this was written
    <key>.ids.npy int64[rows]: which node or edge of the graph before it was partitioned each of those is

All rows pass through the first trainer, so that only its machine needs the folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import CheckpointError, KgdistError, UsageError
from kgdist.base.files import PathLike, load_npy, read_json, whole_folders, write_json, write_npy_blocks
from kgdist.distributed.current import storage
from kgdist.distributed.storage import Spec, Storage

FORMAT = 1
BLOCK = 1 << 24  # bytes that are read or written at a time


def save_tables(folder: PathLike, what: str, tables: Mapping[str, Spec]) -> None:
    """Write tables, after all pushes so far; all trainers together. Raises KgdistError for a disk that is full, UsageError where
    something else is in the way."""
    target, place = Path(folder).absolute(), storage()
    place.flush()
    place.barrier()  # everybody's pushes are in
    with _by_the_first(place) as first:
        if not first:
            return
        if target.exists() and not (target / "tables.json").exists():
            raise UsageError(f"{target}: something else is there; name a folder for these rows alone")
        with whole_folders([target], replaced=[target] if target.exists() else []) as (made,):
            said: dict[str, Any] = {}
            for key, spec in tables.items():
                said[key] = described(spec)
                rows, width = said[key]["rows"], said[key]["width"]
                blocks = (place.read(spec.name, span).numpy() for span in _spans(0, rows, width))
                write_npy_blocks(made / f"{key}.npy", (rows, width), np.dtype(np.float32), blocks)
                ids = (place.originals(spec.policy, part) for part in range(spec.policy.parts))
                write_npy_blocks(made / f"{key}.ids.npy", (rows,), np.dtype(np.int64), ids)
            write_json(made / "tables.json", {"format": FORMAT, "what": what, "tables": said})


def load_tables(folder: PathLike, what: str, tables: Mapping[str, Spec]) -> None:
    """Overwrite tables with what `save_tables` wrote; all trainers together. Raises CheckpointError for a folder of anything
    else."""
    place = storage()
    place.flush()
    place.barrier()
    with _by_the_first(place) as first:
        if not first:
            return
        source = Path(folder)
        said = read_json(source / "tables.json")
        if not isinstance(said, dict) or said.get("format") != FORMAT or said.get("what") != what:
            raise CheckpointError(f"{source}: is not the folder of a {what}")
        wanted = {key: described(spec) for key, spec in tables.items()}
        if said.get("tables") != wanted:
            raise CheckpointError(f"{source}: it has {said.get('tables')}, but what is to be loaded is {wanted}")
        for key, spec in tables.items():
            _load(source, key, spec, wanted[key]["width"])


def described(spec: Spec) -> dict[str, Any]:
    """What must be the same of rows that are loaded and those that they take the place of."""
    policy = spec.policy
    width = int(np.prod(spec.row_shape, dtype=np.int64))
    return {"rows": policy.get_size(), "width": width, "graph": policy.graph_name, "of": policy.policy_str}


@contextmanager
def _by_the_first(place: Storage) -> Iterator[bool]:
    """Whether this is the trainer that does it. The others wait until it has, and where it fails, it fails for all: whoever goes
    on all the same meets the others at the next barrier."""
    try:
        yield place.placement.rank == 0
    except Exception as error:
        with suppress(KgdistError):
            place.barrier(str(error))
        raise
    place.barrier()


def _load(source: Path, key: str, spec: Spec, width: int) -> None:
    place, policy = storage(), spec.policy
    rows = load_npy(source / f"{key}.npy", mmap=True)
    ids = load_npy(source / f"{key}.ids.npy", mmap=True)
    if rows.shape != (policy.get_size(), width) or rows.dtype != np.float32 or ids.shape != rows.shape[:1]:
        raise CheckpointError(f"{source / key}.npy: {rows.dtype}{list(rows.shape)} is not what tables.json says")
    places = np.full(len(ids), -1, np.int64)  # where the row of each original id is
    inside = (ids >= 0) & (ids < len(ids))
    places[ids[inside]] = np.flatnonzero(inside)
    if len(places) and int(places.min()) < 0:
        raise CheckpointError(f"{source / key}.ids.npy: an id appears twice or not at all")
    for part in range(policy.parts):
        start, stop = policy.range(part)
        originals = place.originals(policy, part)
        for span in _spans(start, stop, width):
            given = rows[places[originals[span.start - start : span.stop - start]]]
            place.write(spec.name, span, torch.from_numpy(given).reshape(-1, *spec.row_shape))


def _spans(start: int, stop: int, width: int) -> Iterator[range]:
    step = max(1, BLOCK // (4 * max(width, 1)))
    return (range(at, min(at + step, stop)) for at in range(start, stop, step))
