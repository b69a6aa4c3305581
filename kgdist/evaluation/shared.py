"""Evaluation of a partitioned graph by many processes, each of which ranks a share of a split's triples.

Every process holds the split, and the known answers to its queries, in its partition; candidates come from the tables, wherever
their rows are. Ids are the new ones of the partition book; the report is by original ids.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.data.dataset import Dataset
from kgdist.data.known import KnownTriples
from kgdist.data.statistics import AT_ONCE
from kgdist.data.vocabulary import Vocabulary
from kgdist.evaluation.evaluator import Evaluator
from kgdist.evaluation.ranks import Ranks
from kgdist.options.config import Config
from kgdist.partition.folder import Partition
from kgdist.partition.verify import open_all

QUERIES = 8192
PIECE = 1 << 15  # queries of a message: half a megabyte
FEW = 1 << 17  # queries that baselines rank in some ten seconds, among a sample, which takes longest


class SharedEvaluator(Evaluator):
    """See kgdist.evaluation.evaluator.Evaluator. Only partition 0 can report, for it has the names."""

    def __init__(self, partition: Partition, config: Config) -> None:
        self.partition = partition
        entities = Vocabulary.numbered(partition.book.num_entities)
        relations = Vocabulary.numbered(partition.book.num_relations) if partition.part else partition.vocabularies()[1]
        splits = [partition.splits.get(split) for split in ("valid", "test")]
        folder = partition.folder
        dataset = Dataset(partition.name, entities, relations, partition.train, splits[0], splits[1], partition.graph, folder)
        super().__init__(dataset, config)
        self.threads = config.num_thread  # of each of the processes
        self.queries = QUERIES  # candidates travel once for all of these

    def known(self, split: str) -> KnownTriples | None:
        if not self.config.no_eval_filter and split not in self._known:
            self._known[split] = self.partition.known(split)
        return self._known.get(split)

    @cached_property
    def categories(self) -> np.ndarray:
        return self.partition.categories()

    def baselines(self, ranks: Ranks) -> dict[str, dict[str, float | None]]:
        """By the triples of all partitions, where they lie beside this one and are few; else none: kgdist-eval finds them. The
        queries are to be few, too, for nothing else is done meanwhile, and the other machines wait only so long."""
        if len(ranks) > FEW:
            return {}
        try:
            parts = open_all(self.partition.folder.parent)
        except (CheckpointError, OSError):  # a partition that the training has no need to read
            return {}
        if parts[0].graph != self.partition.graph or sum(len(part.train) for part in parts) > AT_ONCE:
            return {}
        new = np.argsort(self.partition.book.original_relations())  # a report's are the original ones
        train = np.concatenate([part.train.array for part in parts])
        return self._baselines(replace(ranks, relation=new[ranks.relation].astype(np.int32)), train)

    def report(self, ranks: Ranks, split: str) -> dict[str, Any]:
        original = self.partition.book.original_relations()
        return super().report(replace(ranks, relation=original[ranks.relation]), split)


class Collected:
    """The ranks of all shares of a split, as they come in, in pieces that travel as JSON."""

    def __init__(self, triples: np.ndarray) -> None:
        self.ranks = Ranks.of(triples, candidates=0)

    def add(self, piece: dict[str, Any]) -> None:
        """Take one piece in."""
        values = np.frombuffer(base64.b64decode(piece["values"], validate=True), np.int32).reshape(3, -1)
        place = slice(piece["start"], piece["start"] + values.shape[1])
        self.ranks.greater[place], self.ranks.equal[place], self.ranks.candidates[place] = values

    @property
    def complete(self) -> bool:
        """Whether every query has its rank."""
        return bool((self.ranks.candidates > 0).all())


def pieces(ranks: Ranks, span: tuple[int, int], count: int) -> list[dict[str, Any]]:
    """The ranks of the triples `span`, of `count` in the split, as messages for `Collected`."""
    values = np.stack([ranks.greater, ranks.equal, ranks.candidates]).astype(np.int32)  # int32[3, 2S]
    size, found = span[1] - span[0], []
    for side in range(2):  # all heads come before all tails
        for start in range(0, size, PIECE):
            stop = min(start + PIECE, size)
            part = np.ascontiguousarray(values[:, side * size + start : side * size + stop])
            text = base64.b64encode(part.tobytes()).decode("ascii")
            found.append({"start": side * count + span[0] + start, "values": text})
    return found
