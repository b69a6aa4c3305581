"""What is exported: a run's tables, memory-mapped, and the names of their rows. Not how it is written."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from kgdist.base.log import log
from kgdist.data.vocabulary import Vocabulary
from kgdist.models.base import Model
from kgdist.options.config import Config
from kgdist.runs.opened import Opened
from kgdist.version import __version__

BLOCK = 4 << 20  # bytes of a table written at once
KINDS = ("entity", "relation")


@dataclasses.dataclass(frozen=True)
class Source:
    """Tables by name, float32[n, width] each, row i being that of the i-th name of its kind."""

    config: Config
    model: Model
    tables: dict[str, np.ndarray]
    names: dict[str, Vocabulary]  # by kind
    named: bool  # the names are the graph's own, not numbers for want of them
    tick: Callable[[int], Any] = lambda rows: None  # told how many rows have been written

    @classmethod
    def of(cls, opened: Opened) -> Source:
        """The tables of a run; rows without names are called by their numbers, which is said in the log."""
        tables = {name: tensor.cpu().numpy() for name, tensor in opened.tables.rows.items()}
        named = opened.vocabularies is not None
        if not named:
            log.warning("%s: holds no names of its entities and relations; their numbers stand for them", opened.run.path)
        return cls(opened.config, opened.model, tables, {kind: opened.row_names(kind) for kind in KINDS}, named)

    def only(self, wanted: str) -> Source:
        """The tables of one kind, "entity" or "relation", or "both"."""
        kinds = KINDS if wanted == "both" else (wanted,)
        tables = {name: rows for name, rows in self.tables.items() if self.kind(name) in kinds}
        return dataclasses.replace(self, tables=tables, names={kind: self.names[kind] for kind in kinds})

    def kind(self, table: str) -> str:
        """Whose rows a table has. TransR's projections, for one, belong to relations."""
        if table.startswith("entity") or len(self.tables[table]) != len(self.names.get("relation", ())):
            return "entity"
        return "relation"

    def blocks(self, table: str) -> Iterator[np.ndarray]:
        """The rows some megabytes at a time, in order: float32[b, width], C-ordered."""
        rows = self.tables[table]
        step = max(1, BLOCK // (4 * max(rows.shape[1], 1)))
        for start in range(0, len(rows), step):
            yield np.ascontiguousarray(rows[start : start + step])
            self.tick(min(step, len(rows) - start))

    def named_blocks(self, table: str) -> Iterator[tuple[list[str], np.ndarray]]:
        """As `blocks`, with the rows' names."""
        names = iter(self.names[self.kind(table)])
        for rows in self.blocks(table):
            yield list(islice(names, len(rows))), rows

    def about(self) -> dict[str, object]:
        """What a reader must know to make sense of the numbers; JSON."""
        config = self.config
        tables = {
            name: {"rows": len(rows), "width": rows.shape[1], "dtype": "float32", "columns": self.columns(name)}
            for name, rows in self.tables.items()
        }
        facts: dict[str, object] = {"model": config.model_name, "dataset": config.dataset}
        facts |= {"hidden_dim": config.hidden_dim, "gamma": config.gamma}
        if self.model.reciprocal:
            facts["reciprocal"] = "a relation has two rows, of itself and of its inverse, whose missing tail is the missing head"
        score = " ".join((inspect.getdoc(type(self.model)) or "").split("\n\n")[0].split())
        return {"kgdist_version": __version__, **facts, "score": score, "names": self.named, "tables": tables}

    def columns(self, table: str) -> str:
        """What the numbers of a row are, in words."""
        text = self.model.columns.get(table, "a vector")
        sizes = {"half": self.tables[table].shape[1] // 2, "entity": self.config.entity_dim, "relation": self.config.relation_dim}
        return text.format(**sizes, scale=self.model.phase_scale)
