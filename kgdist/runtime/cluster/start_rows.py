"""The rows that a training on several machines starts at instead of random ones: which machine gets which.

The launcher alone has what the user brings, and partition 0 the names. It reads the source in blocks and tells each machine its
part of a block, by the lines on which they speak anyway, 5.3 bytes a number; the next block follows when all have taken theirs.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import numpy as np
import torch

from kgdist.base.log import say
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import model_of
from kgdist.partition.book import inverse
from kgdist.partition.folder import Partition
from kgdist.runtime.brought import OWN, Source, brought
from kgdist.runtime.cluster.training_plan import TrainingPlan
from kgdist.runtime.start import at_random

Part = dict[str, str]  # fields of the command `bring`


def source_of(plan: TrainingPlan, partition: Partition) -> Source | None:
    """What the user brings, if anything; it is looked at before anything is started. `partition`: the first. Raises KgdistError
    when it does not fit."""
    config, model = plan.config, model_of(plan.config)

    def own() -> torch.Tensor:
        entities = plan.shapes["entity"][0]
        shapes = {name: (min(OWN, entities) if name == "entity" else 0, width) for name, (_, width) in plan.shapes.items()}
        tables = MemoryTables.create(shapes, "sgd")
        at_random(config, model, tables, "entity", total=entities)
        return tables.rows["entity"]

    if config.resume:
        return None
    return brought(config, model, partition.vocabularies(), own, lambda text: None if config.quiet else say(text))


def parts_of(source: Source, plan: TrainingPlan, partition: Partition) -> Iterator[dict[int, Part]]:
    """All its rows, in blocks: machine -> its part."""
    model, layout, book = model_of(plan.config), plan.layout(), plan.book
    new = {True: inverse(partition.originals()), False: inverse(book.original_relations())}
    for table, ids, values in source.rows():
        entity = table == "entity"
        mine = new[entity][ids].astype(np.int64)
        owners = np.searchsorted(book.entities if entity else book.relations, mine, side="right") - 1
        block = {}
        for machine in np.unique(owners).tolist():
            places = np.flatnonzero(owners == machine)
            rows = model.rows_of(table, mine[places]) - layout.machine_range(table, machine)[0]
            chosen = values[torch.from_numpy(model.rows_of(table, places))]
            block[machine] = {"table": table, "rows": _text(rows, "<i8"), "values": _text(chosen.numpy(), "<f4")}
        yield block


def _text(array: np.ndarray, dtype: str) -> str:
    """The bytes for a line of JSON."""
    return base64.b64encode(np.ascontiguousarray(array, dtype).tobytes()).decode()
