"""The likeliest triples: the K best answers to questions, over all entities and relations or some, by any score function.

Answers are those of sorting all scores in float64, equal ones by head, relation, tail, for any number of threads; how that is
found out at the speed of a matrix product is told in sweep.py. Memory: a block of scores a thread, and the answers of the
questions at hand (HELD), however many questions there are. Ids only: it knows no names and no files.

Where inverse relations have rows of their own, a triple has two scores: as a tail, which is its own, and as a head. Answers have
that of the end that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch

from kgdist.base.log import bar
from kgdist.base.types import Side
from kgdist.data.known import KnownTriples
from kgdist.evaluation.candidates import AllEntities, Candidates, Sample, Skip, stack
from kgdist.evaluation.scorer import Scorer
from kgdist.evaluation.threads import Deal, block_per_thread
from kgdist.kernels.top import NOBODY, Exact
from kgdist.kvstore.tables import Tables
from kgdist.models.base import Model
from kgdist.predict.questions import Asked, Best, Combined, Pairwise, Queries
from kgdist.predict.relations import best_relations, pairs_at_once
from kgdist.predict.sweep import sweep
from kgdist.runs.opened import Opened

QUERIES = 1000  # queries that share one pass over the candidates
CANDIDATES = 2048  # candidates of a block, when there are that many queries
FEW = 32  # queries from which on half of them take a thread half as long; a product of fewer is waiting for memory
LISTED = 1 << 22  # entries of all lists of one pass
HELD = 1 << 18  # answers held at a time


class Answers(NamedTuple):
    """Triples, question by question, the best first."""

    questions: np.ndarray  # int64[A], ascending
    heads: np.ndarray  # int64[A]
    relations: np.ndarray  # int64[A]
    tails: np.ndarray  # int64[A]
    scores: np.ndarray  # float64[A], as the model gives them: distances with gamma


class Found(NamedTuple):
    """For each of B questions up to K ids, the best first; -1 and minus infinity where there are no more."""

    ids: np.ndarray  # int64[B,K]
    scores: np.ndarray  # float64[B,K]


class Finder(Protocol):
    """Approximate search among all entities; see kgdist.predict.index."""

    def best(
        self, queries: torch.Tensor, k: int, exact: Exact, offsets: np.ndarray | None = None, skipped: np.ndarray = NOBODY
    ) -> tuple[np.ndarray, np.ndarray]: ...


class Predictor:
    """Asks one model.

    Args:
        model, tables: as the evaluator has them.
        num_entities, num_relations: what "all" means.
        threads: of this process; answers do not depend on it.
    Set `index` to have all entities searched approximately: scores stay right, some answers may be missing.
    """

    def __init__(
        self,
        model: Model,
        tables: Tables,
        num_entities: int,
        num_relations: int,
        *,
        threads: int = 1,
        query_block: int = QUERIES,
        candidate_block: int = CANDIDATES,
    ) -> None:
        self.model, self.tables = model, tables
        self.num_entities, self.num_relations, self.threads = num_entities, num_relations, max(1, threads)
        self.query_block, self.candidate_block = query_block, candidate_block
        self.scorer = Scorer(model, tables)
        self.index: Finder | None = None
        self._everybody: AllEntities | None = None

    @classmethod
    def of(cls, opened: Opened, threads: int) -> Predictor:
        """The one that asks an opened run."""
        return cls(opened.model, opened.tables, opened.num_entities, opened.num_relations, threads=threads)

    # ---- what is asked

    def top(
        self,
        side: Side | np.ndarray,
        anchors: np.ndarray,
        relations: np.ndarray,
        k: int,
        *,
        among: np.ndarray | None = None,
        known: KnownTriples | None = None,
    ) -> Found:
        """The `k` best entities for the missing `side` of each query: `anchors` and `relations` are int[B].

        `side` may also be bool[B], whether each misses its head: one pass over the candidates answers both kinds. `among` int[n]:
        of these entities only (of all when None); `known`: without these triples. K is at most the number of candidates. Raises
        IndexError for ids out of range, ValueError for a `side` of another length, KgdistError for embeddings that are not
        finite.
        """
        anchors, relations = self._ids(anchors, self.num_entities), self._ids(relations, self.num_relations)
        headless = np.full(len(anchors), side is Side.HEAD) if isinstance(side, Side) else np.asarray(side, bool)
        if headless.shape != anchors.shape:
            raise ValueError(f"side: {headless.size} for {len(anchors)} queries")
        candidates = self._candidates(among)
        k = min(k, self.num_entities if candidates is None else len(candidates))
        ids, scores = np.full((len(anchors), k), -1), np.full((len(anchors), k), -np.inf)
        step = max(1, HELD // max(1, k))
        with bar(total=len(anchors), desc="predicting", unit="query") as progress:
            for start in range(0, len(anchors) if k else 0, step):
                part = slice(start, start + step)
                best = self._ask(Pairwise(headless[part], anchors[part], relations[part]), candidates, k, known, progress.update)
                ids[part] = np.where(headless[part, None], best.heads, best.tails)
                scores[part] = self.scorer.scores(best.keys)
        return Found(ids, scores)

    def top_relations(
        self,
        heads: np.ndarray,
        tails: np.ndarray,
        k: int,
        *,
        among: np.ndarray | None = None,
        known: KnownTriples | None = None,
    ) -> Found:
        """The `k` best relations between each head and tail, int[B], by the triples' own scores; otherwise as `top`."""
        heads, tails = self._ids(heads, self.num_entities), self._ids(tails, self.num_entities)
        candidates = np.arange(self.num_relations) if among is None else np.unique(self._ids(among, self.num_relations))
        k = min(k, len(candidates))
        ids, scores = np.full((len(heads), k), -1), np.full((len(heads), k), -np.inf)
        step, deal = max(1, min(self.query_block, pairs_at_once(self.scorer, len(candidates)))), Deal()

        def work(start: int) -> int:
            part = slice(start, start + step)
            found = best_relations(self.scorer, heads[part], tails[part], candidates, k, known, deal.check)
            ids[part], scores[part] = found[0], self.scorer.scores(found[1])
            return len(found[0])

        with bar(total=len(heads), desc="predicting", unit="query") as progress, block_per_thread():
            starts = range(0, len(heads) if k else 0, step)
            deal.run(iter(starts), work, min(self.threads, len(starts)), "predicting", progress.update)
        return Found(ids, scores)

    def score(self, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray, side: Side = Side.TAIL) -> np.ndarray:
        """float64[B]: the score of each triple of int[B] ids, as an answer for `side`. Raises as `top`."""
        heads, tails = self._ids(heads, self.num_entities), self._ids(tails, self.num_entities)
        relations = self._ids(relations, self.num_relations)
        scores = np.empty(len(heads))
        order = np.argsort(relations, kind="stable")
        for start in range(0, len(order), self.query_block):
            rows = order[start : start + self.query_block]
            scores[rows] = self.scorer.scores(self.scorer.keys(heads[rows], relations[rows], tails[rows], side))
        return scores

    def best(
        self,
        heads: np.ndarray | None,
        relations: np.ndarray | None,
        tails: np.ndarray | None,
        k: int,
        *,
        each: str = "all",
        known: KnownTriples | None = None,
    ) -> Iterator[Answers]:
        """The `k` best of all triples that combine `heads`, `relations` and `tails`, int[n] each, or all there are for None.

        `each` "head", "relation" or "tail": the k best of each one of these, in the order given (twice where it is listed
        twice); "all": of all together. Otherwise an id that is listed twice counts once. Yields blocks of answers, at least one.
        Raises as `top`.
        """
        lists = {
            "head": self._listed(heads, self.num_entities),
            "relation": self._listed(relations, self.num_relations),
            "tail": self._listed(tails, self.num_entities),
        }
        sets = {name: ids if name == each else np.unique(ids) for name, ids in lists.items()}
        # The group must be among what a query holds; else the longer of heads and tails are the candidates, unless that would
        # change their scores: then heads are asked for where they are all, and tails are given.
        by_head = len(sets["head"]) <= len(sets["tail"])
        if self.model.reciprocal:
            by_head = heads is not None or tails is None
        side = Side.TAIL if each == "head" or (each != "tail" and by_head) else Side.HEAD
        among = sets[side.value]
        candidates = self._candidates(None if len(among) == self.num_entities else among)
        anchors, by = sets[side.other.value], {"all": "all", "relation": "relation"}.get(each, "anchor")
        k = min(k, self._most(sets, each))
        questions = {"all": 1, "relation": len(sets["relation"]), "anchor": len(anchors)}[by]
        if not (k and questions):
            nobody = np.zeros(0, np.int64)
            yield Answers(nobody, nobody, nobody, nobody, np.zeros(0))
        step = max(1, HELD // max(1, k))
        with bar(total=len(anchors) * len(sets["relation"]), desc="predicting", unit="query") as progress:
            for start in range(0, questions if k else 0, step):
                part = slice(start, start + step)
                chosen = sets["relation"][part] if by == "relation" else sets["relation"]
                asked = Combined(side, anchors[part] if by == "anchor" else anchors, chosen, by)
                yield self._answers(self._ask(asked, candidates, k, known, progress.update), start)

    def best_of(
        self, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray, k: int, *, known: KnownTriples | None = None
    ) -> Answers:
        """The `k` best of the triples that stand side by side, int[B] each; a triple that is listed twice is answered twice."""
        if known is not None:
            fresh = ~known.holds(heads, relations, tails)
            heads, relations, tails = heads[fresh], relations[fresh], tails[fresh]
        scores = self.score(heads, relations, tails)
        order = np.lexsort((tails, relations, heads, -scores))[:k]
        return Answers(np.zeros(len(order), np.int64), heads[order], relations[order], tails[order], scores[order])

    # ---- how it is answered

    @staticmethod
    def _most(sets: dict[str, np.ndarray], each: str) -> int:
        """How many triples a question has."""
        most = 1
        for name, ids in sets.items():
            most *= 1 if name == each else len(ids)
        return most

    @staticmethod
    def _ids(ids: np.ndarray, count: int) -> np.ndarray:
        ids = np.asarray(ids, np.int64).reshape(-1)
        if len(ids) and (ids.min() < 0 or ids.max() >= count):
            wrong = int(ids[(ids < 0) | (ids >= count)][0])
            raise IndexError(f"id {wrong} is out of range, allowed: 0 to {count - 1}")
        return ids

    def _listed(self, ids: np.ndarray | None, count: int) -> np.ndarray:
        return np.arange(count) if ids is None else self._ids(ids, count)

    def _answers(self, best: Best, first: int) -> Answers:
        row, place = np.nonzero(best.heads >= 0)
        heads, relations, tails, keys = (each[row, place] for each in (best.heads, best.relations, best.tails, best.keys))
        return Answers(row + first, heads, relations, tails, self.scorer.scores(keys))

    def _candidates(self, among: np.ndarray | None) -> Candidates | None:
        """None: those that the index finds."""
        if among is not None:
            return Sample(self.tables, np.unique(self._ids(among, self.num_entities)))
        if self.index is not None:
            return None
        if self._everybody is None:
            comparator = None if self.model.projects else self.model.comparator
            self._everybody = AllEntities(self.tables, self.num_entities, self.candidate_block, comparator)
        return self._everybody

    def _ask(
        self, asked: Asked, candidates: Candidates | None, k: int, known: KnownTriples | None, report: Callable[[int], object]
    ) -> Best:
        """Answer some questions on all threads; an error, or Ctrl-C, ends all of them within one block."""
        best, deal = Best(asked.questions, k), Deal()
        listed = max(1, LISTED // (2 * k + 32))
        size = max(1, min(self.query_block, listed, max(FEW, -(-len(asked) // self.threads))))

        def work(start: int) -> int:
            queries = asked.take(start, min(start + size, len(asked)))
            for part in self._apart(queries):
                self._pass(part, candidates, known, best, deal.check)
            return len(queries.anchors)

        with block_per_thread():
            threads = 1 if len(asked) <= size else self.threads
            deal.run(iter(range(0, len(asked), size)), work, threads, "predicting", report)
        return best

    def _apart(self, queries: Queries) -> Iterator[Queries]:
        """Those of one relation and side, if candidates depend on these."""
        if not self.model.projects:
            yield queries
            return
        cuts = np.flatnonzero(np.diff(2 * queries.relations + queries.headless)) + 1
        for part in np.split(np.arange(len(queries.relations)), cuts):
            yield Queries(*(each[part] for each in queries))

    @torch.no_grad()
    def _pass(
        self,
        queries: Queries,
        candidates: Candidates | None,
        known: KnownTriples | None,
        best: Best,
        check: Callable[[], None],
    ) -> None:
        """Hold some queries against all candidates."""
        sides = [(side, queries.anchors[part], queries.relations[part]) for side, part in queries.sides()]
        given = torch.cat([self.scorer.queries(*each) for each in sides])  # float64[P,Q]
        side, relation = sides[0][0], queries.relations[:1] if self.model.projects else None
        skip = Skip(np.zeros(len(given) + 1, np.int64), NOBODY)
        if known is not None:
            skip = stack([Skip(*known.answers(*each)) for each in sides])
        exact = partial(self.scorer.compare, given, side=side, relation=relation)
        if candidates is None:
            assert self.index is not None
            ids, keys = self.index.best(given.float(), best.k, exact, skip.offsets, skip.positions)
        else:
            skip, bar = candidates.locate(skip), partial(best.bar, queries.questions)
            project = None if relation is None else self.scorer.projection(relation, side)
            blocks, comparator = (self.query_block, self.candidate_block), self.model.comparator
            ids, keys = sweep(comparator, given, candidates, best.k, skip, bar, exact, project, blocks=blocks, check=check)
        best.merge(queries, ids, keys)
