"""Ranks of a split's triples under a protocol, and the report that training and kgdist-eval print and save.

Both ends of every triple are ranked, exactly (`kgdist.evaluation.counting`), against all entities or a sample of them
(`kgdist.evaluation.candidates`). It writes no files but the ranks of a test, where a folder is given for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.base.log import bar, say
from kgdist.base.machine import usable_cores
from kgdist.base.types import Side
from kgdist.data.dataset import Dataset
from kgdist.data.known import KnownTriples
from kgdist.data.statistics import relation_categories
from kgdist.evaluation.baselines import baseline_ranks, implied
from kgdist.evaluation.bootstrap import intervals
from kgdist.evaluation.candidates import AllEntities, Candidates, Pool, Project, not_rivals, pull_rows, stack
from kgdist.evaluation.counting import count_rivals
from kgdist.evaluation.kept import keep
from kgdist.evaluation.ranks import SIDES, Ranks, Ties, metrics, result_lines, summary
from kgdist.evaluation.relations import relation_ranks
from kgdist.evaluation.scorer import Scorer
from kgdist.evaluation.threads import Deal, block_per_thread
from kgdist.kvstore.tables import Tables
from kgdist.models.base import Model
from kgdist.options.config import Config

QUERIES = 1000  # queries that share one pass over the candidates, at least
PROJECTED = 16  # times as many candidates as usual, at most, in the blocks of a relation that has fewer queries than usual


def evaluate(
    model: Model,
    tables: Tables,
    triples: np.ndarray,
    *,
    num_entities: int,
    known: KnownTriples | None,
    pool: Pool | None = None,
    threads: int = 1,
    first: int = 0,
    desc: str = "ranking",
    query_block: int = QUERIES,
    candidate_block: int = 1024,
) -> Ranks:
    """Rank both ends of `triples` int[T,3]; the 2T ranks are those of all heads, then of all tails, in the order given.

    The true entity is never its own rival; with `known`, neither are the other known answers. Candidates with equal rows tie.
    Candidates are read from entity `first` on. Neither that nor block sizes nor `threads` change a rank: memory is about
    threads * query_block * candidate_block * 5 bytes.
    Raises KgdistError when a row is not finite, OptionError when `pool` is larger than the graph.
    """
    pool = pool or Pool()
    pool.check(num_entities)
    work = _Work(model, tables, triples, known, num_entities, pool, query_block, candidate_block, first)
    with block_per_thread(), bar(total=2 * len(triples), desc=desc, unit="query") as progress:
        work.run(threads, progress.update)
    return work.ranks


class _Work:
    """One evaluation: groups of queries, dealt out to threads, each writing ranks of its own."""

    def __init__(
        self,
        model: Model,
        tables: Tables,
        triples: np.ndarray,
        known: KnownTriples | None,
        num_entities: int,
        pool: Pool,
        query_block: int,
        candidate_block: int,
        first: int,
    ) -> None:
        self.model, self.tables, self.known, self.num_entities = model, tables, known, num_entities
        self.pool, self.query_block, self.candidate_block, self.first = pool, query_block, candidate_block, first
        self.ranks = Ranks.of(triples, candidates=1)
        self.deal = Deal()
        self.scorer = Scorer(model, tables, self.deal.check)

    # ---- dealing out

    def run(self, threads: int, report: Callable[[int], object]) -> None:
        """Do all groups on `threads` threads."""

        def work(group: tuple[np.ndarray, Callable[[], Candidates]]) -> int:
            rows, candidates = group
            self._rank(rows, candidates())
            return len(rows)

        self.deal.run(self._groups(), work, threads, "ranking", report)

    def _groups(self) -> Iterator[tuple[np.ndarray, Callable[[], Candidates]]]:
        """(positions in `ranks` int64[P], what makes the candidates that they share)."""
        if self.pool.sampled < 0:
            comparator = None if self.model.projects else self.model.comparator
            everybody = AllEntities(self.tables, self.num_entities, self.candidate_block, comparator, self.first)
            order = np.argsort(self.ranks.relation, kind="stable")
            # A relation is dealt out alone to a model that projects: it costs the same with few queries as with many.
            cuts = np.flatnonzero(np.diff(self.ranks.relation[order])) + 1 if self.model.projects else np.zeros(0, np.int64)
            for part in np.split(order, cuts):
                for start in range(0, len(part), self.query_block):
                    yield part[start : start + self.query_block], lambda: everybody
            return
        count = len(self.ranks) // 2
        for batch, start in enumerate(range(0, count, self.pool.batch)):
            for code, side in enumerate(SIDES):
                rows = np.arange(start, min(start + self.pool.batch, count)) + code * count
                own = side.pick(self.ranks.head, self.ranks.tail)[rows]
                yield rows, partial(self.pool.draw, self.tables, self.num_entities, batch, side, own)

    # ---- one group

    def _rank(self, rows: np.ndarray, candidates: Candidates) -> None:
        side, relation = self.ranks.side[rows], self.ranks.relation[rows]
        order = np.lexsort((side, relation))
        if not self.model.projects:
            return self._contest(rows[order], candidates, None)
        view = 2 * relation[order] + (0 if self.model.sideless else side[order])  # queries that see the candidates alike
        for part in np.split(rows[order], np.flatnonzero(np.diff(view)) + 1):
            project = self.scorer.projection(self.ranks.relation[part[:1]], SIDES[self.ranks.side[part[0]]])
            self._contest(part, candidates, project)

    def _contest(self, rows: np.ndarray, candidates: Candidates, project: Project | None) -> None:
        """Rank queries that see the candidates alike: all of them when the model does not project."""
        rows = rows[np.argsort(self.ranks.side[rows], kind="stable")]
        parts = [(side, part) for code, side in enumerate(SIDES) if len(part := rows[self.ranks.side[rows] == code])]
        skip = candidates.locate(stack([not_rivals(self.known, side, *self._given(side, part)) for side, part in parts]))
        true = np.concatenate([side.pick(self.ranks.head, self.ranks.tail)[part] for side, part in parts])
        longer = 1 if project is None else min(PROJECTED, max(1, self.query_block // len(rows)))
        greater, equal = count_rivals(
            self.model.comparator,
            torch.cat([self.scorer.queries(side, *self._given(side, part)[:2], torch.float32) for side, part in parts]),
            pull_rows(self.tables, "entity", true),
            candidates,
            skip,
            project=project,
            block=self.candidate_block * longer,
            check=self.deal.check,
        )
        self.ranks.greater[rows], self.ranks.equal[rows] = greater, equal
        self.ranks.candidates[rows] = len(candidates) - skip.counts + 1

    def _given(self, side: Side, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(anchors, relations, true entities), each int32[P]."""
        head, tail = self.ranks.head[rows], self.ranks.tail[rows]
        return side.other.pick(head, tail), self.ranks.relation[rows], side.pick(head, tail)


class Evaluator:
    """Evaluations of one data set under the options of one run; a split's filter is built at the first of them."""

    def __init__(self, dataset: Dataset, config: Config) -> None:
        self.dataset = dataset
        self.config = config
        self.pool = Pool(config.neg_sample_size_eval, config.neg_deg_sample_eval, config.batch_size_eval, config.seed)
        self.pool.check(len(dataset.entities))
        self._known: dict[str, KnownTriples] = {}
        self.threads = min(config.num_proc * config.num_thread, usable_cores())
        self.queries = QUERIES

    def known(self, split: str) -> KnownTriples | None:
        """The filter of `split`: what the triples of all splits say (Bordes et al. 2013) to its queries; None for raw ranks."""
        if self.config.no_eval_filter:
            return None
        if split not in self._known:
            arrays = [triples.array for triples in self.dataset.splits.values()]
            counts = len(self.dataset.entities), len(self.dataset.relations)
            self._known[split] = KnownTriples.build(arrays, *counts, asked=self.triples(split))
        return self._known[split]

    @cached_property
    def categories(self) -> np.ndarray:
        return relation_categories(self.dataset.train.array, len(self.dataset.relations))

    def triples(self, split: str) -> np.ndarray:
        """int32[T,3]: the split, or of it int(T * eval_percent) triples, at least one, drawn without repetition, in its order.

        Raises UsageError when there is no such split, or nothing in it.
        """
        found = self.dataset.splits.get(split)
        if found is None or not len(found):
            raise UsageError(f"{self.dataset.name} has no {split} triples to evaluate")
        fraction = self.config.eval_percent
        if fraction >= 1:
            return found.array
        size = max(1, int(len(found) * fraction))
        return found.array[np.sort(np.random.default_rng(self.config.seed).choice(len(found), size, replace=False))]

    def share(self, split: str, number: int, of: int) -> tuple[int, int]:
        """The first triple of share `number`, and the one after its last; shares divide between draws of candidates."""
        draws = -(-len(self.triples(split)) // self.pool.batch)
        start, stop = (draws * part // of * self.pool.batch for part in (number, number + 1))
        return start, min(stop, len(self.triples(split)))

    def rank(self, model: Model, tables: Tables, split: str, span: tuple[int, int] | None = None, first: int = 0) -> Ranks:
        """The ranks behind `run`'s report; of the triples `span` alone where given (see `share`). `first`: see `evaluate`."""
        triples, pool = self.triples(split), self.pool
        if span is not None:
            triples, pool = triples[slice(*span)], replace(pool, first=span[0] // pool.batch)
        return evaluate(
            model,
            tables,
            triples,
            num_entities=len(self.dataset.entities),
            known=self.known(split),
            pool=pool,
            threads=self.threads,
            first=first,
            desc=split,
            query_block=max(self.config.batch_size_eval, self.queries),
        )

    def relations(self, model: Model, tables: Tables, split: str) -> dict[str, Any]:
        """ "count" and the metrics of the relations of the split's triples, filtered as entities are, among all relations."""
        triples, known = self.triples(split), None
        counts = len(self.dataset.entities), len(self.dataset.relations)
        if not self.config.no_eval_filter:
            arrays = [each.array for each in self.dataset.splits.values()]
            known = KnownTriples.among(arrays, *counts, (np.unique(triples[:, 0]), None, np.unique(triples[:, 2])))
        ranks = relation_ranks(model, tables, triples, num_relations=counts[1], known=known, threads=self.threads)
        return {"count": len(ranks), **metrics(ranks, Ties(self.config.rank_ties), self.config.hits)}

    def report(self, ranks: Ranks, split: str) -> dict[str, Any]:
        """`summary` with the protocol, and with the names of the relations; plain values for JSON."""
        config = self.config
        protocol = {
            "filter": [] if config.no_eval_filter else list(self.dataset.splits),
            "entities": len(self.dataset.entities),
            "sampled": max(0, config.neg_sample_size_eval),  # 0: all entities
            "in_batch": config.neg_deg_sample_eval,
            "batch": config.batch_size_eval,
            "fraction": config.eval_percent,
            "triples": len(ranks) // 2,
            "seed": config.seed,
        }
        ties = Ties(config.rank_ties)
        parts = summary(ranks, self.categories, ties, config.hits)
        if split == "test":
            parts |= {"intervals": intervals(ranks, ties, config.hits), "baselines": self.baselines(ranks)}
        for relation, part in parts["relations"].items():
            part["name"] = self.dataset.relations[int(relation)]
        return {"split": split, "model": config.model_name, "dataset": self.dataset.name, "protocol": protocol, **parts}

    def baselines(self, ranks: Ranks) -> dict[str, dict[str, float | None]]:
        """The metrics of `BASELINES` for the same queries, under the policy for ties that was asked for; of what relations imply
        where there are such."""
        return self._baselines(ranks, self.dataset.train.array)

    def _baselines(self, ranks: Ranks, train: np.ndarray) -> dict[str, dict[str, float | None]]:
        """The same; `train` int32[T,3]: all its triples."""
        entities, relations = len(self.dataset.entities), len(self.dataset.relations)
        by_frequency = partial(
            baseline_ranks,
            ranks,
            train,
            num_entities=entities,
            num_relations=relations,
            known=self.known("test"),
            pool=self.pool,
        )
        found, held_out = {"frequent": by_frequency()}, (self.dataset.valid, self.dataset.test)
        part = len(train) / (len(train) + sum(len(split) for split in held_out if split is not None))
        told = implied(train, num_entities=entities, num_relations=relations, asked=self.triples("test"), part=part)
        if told is not None:
            found["implied"] = by_frequency(implied=told)
        return {name: metrics(each, Ties(self.config.rank_ties), self.config.hits) for name, each in found.items()}

    def run(self, model: Model, tables: Tables, split: str, folder: Path | None = None) -> dict[str, Any]:
        """Rank `split`, print what was found, and return the report: see `tell`. `folder`: that of the run, which keeps the ranks
        of a test."""
        start = time.perf_counter()
        ranks = self.rank(model, tables, split)
        if folder is not None and split == "test":
            keep(folder, ranks)
        seconds = time.perf_counter() - start
        more = {"missing_relations": self.relations(model, tables, split)} if self.config.rank_relations else {}
        return self.tell(ranks, split, seconds, more)

    def tell(self, ranks: Ranks, split: str, seconds: float, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Print what was found in that time, and return the report, with what else was found. Of a validation its training prints
        a line."""
        report = self.report(ranks, split) | dict(more or {})
        if split == "valid":
            return report | {"seconds": seconds}
        for line in result_lines(report):
            say(line)
        say(f"{split} took {seconds:.1f} seconds: {len(ranks)} queries, {len(ranks) / max(seconds, 1e-9):,.0f} queries/s")
        return report | {"seconds": seconds}
