"""The likeliest triples: the K best answers to questions, over all entities and relations or some, by any score function.

Queries meet candidates block by block (`Comparator.order`), a running selection keeps what may be among the K best
(`kgdist.kernels.top`), and the few that are left are compared in float64, so that answers are those of sorting all scores in
float64, equal ones by head, relation, tail, for any number of threads. Memory: a block of scores a thread, and the answers of
the questions at hand (HELD), however many questions there are. Ids only: it knows no names and no files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np
import torch

from kgdist.candidates import AllEntities, Candidates, Sample, Skip
from kgdist.data.known import KnownTriples
from kgdist.kernels.compare import largest
from kgdist.kernels.top import NOBODY, Top
from kgdist.kvstore.tables import Tables
from kgdist.models.base import Model
from kgdist.predict.questions import Asked, Best, Combined, Pairs, Queries
from kgdist.predict.scorer import Scorer
from kgdist.progress import bar
from kgdist.types import Side

QUERIES = 1000  # queries that share one pass over the candidates
CANDIDATES = 1024  # candidates of a block, when there are that many queries
WIDEST = 64  # times as many, at most, when there are fewer queries
LISTED = 1 << 22  # entries of all lists of one pass
HELD = 1 << 19  # answers held at a time


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


class Predictor:
    """Asks one model.

    Args:
        model, tables: as the evaluator has them.
        num_entities, num_relations: what "all" means.
        threads: of this process; answers do not depend on it.
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
        self._everybody: AllEntities | None = None

    # ---- what is asked

    def top(
        self,
        side: Side,
        anchors: np.ndarray,
        relations: np.ndarray,
        k: int,
        *,
        among: np.ndarray | None = None,
        known: KnownTriples | None = None,
    ) -> Found:
        """The `k` best entities for the missing `side` of each query: `anchors` and `relations` are int[B].

        `among` int[n]: of these entities only (of all when None); `known`: without these triples. K is at most the number of
        candidates. Raises IndexError for ids out of range, KgdistError for embeddings that are not finite.
        """
        anchors, relations = self._ids(anchors, self.num_entities), self._ids(relations, self.num_relations)
        candidates = self._candidates(among)
        k = min(k, len(candidates))
        ids, scores = np.full((len(anchors), k), -1), np.full((len(anchors), k), -np.inf)
        step = max(1, HELD // max(1, k))
        with bar(total=len(anchors), desc="predicting", unit="query") as progress:
            for start in range(0, len(anchors) if k else 0, step):
                asked = Pairs(side, anchors[start : start + step], relations[start : start + step])
                best = self._ask(asked, candidates, k, known, progress.update)
                ids[start : start + step] = side.pick(best.heads, best.tails)
                scores[start : start + step] = self.scorer.scores(best.keys)
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
        """The `k` best relations between each head and tail, int[B]; otherwise as `top`. All are compared in float64."""
        heads, tails = self._ids(heads, self.num_entities), self._ids(tails, self.num_entities)
        candidates = np.arange(self.num_relations) if among is None else np.unique(self._ids(among, self.num_relations))
        k = min(k, len(candidates))
        ids, scores = np.full((len(heads), k), -1), np.full((len(heads), k), -np.inf)
        step = max(1, min(self.query_block, HELD // max(1, len(candidates))))
        with bar(total=len(heads), desc="predicting", unit="query") as progress:
            for start in range(0, len(heads) if k else 0, step):
                h, t = heads[start : start + step], tails[start : start + step]
                keys = np.stack(
                    [self.scorer.keys(h, np.full(len(h), r), t) for r in candidates.tolist()], axis=1
                )  # float64[b, R]
                if known is not None:
                    for column, r in enumerate(candidates.tolist()):
                        skip = Skip(*known.answers(Side.TAIL, h, np.full(len(h), r)))
                        keys[skip.rows[skip.positions == t[skip.rows]], column] = -np.inf
                order = np.argsort(-keys, axis=1, kind="stable")[:, :k]
                found = np.take_along_axis(keys, order, axis=1)
                ids[start : start + step] = np.where(found > -np.inf, candidates[order], -1)
                scores[start : start + step] = self.scorer.scores(found)
                progress.update(len(h))
        return Found(ids, scores)

    def score(self, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray) -> np.ndarray:
        """float64[B]: the score of each triple of int[B] ids. Raises as `top`."""
        heads, tails = self._ids(heads, self.num_entities), self._ids(tails, self.num_entities)
        relations = self._ids(relations, self.num_relations)
        scores = np.empty(len(heads))
        order = np.argsort(relations, kind="stable")
        for start in range(0, len(order), self.query_block):
            rows = order[start : start + self.query_block]
            scores[rows] = self.scorer.scores(self.scorer.keys(heads[rows], relations[rows], tails[rows]))
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
        twice); "all": of all together. Otherwise an id that is listed twice counts once. Yields blocks of answers.
        Raises as `top`.
        """
        lists = {
            "head": self._listed(heads, self.num_entities),
            "relation": self._listed(relations, self.num_relations),
            "tail": self._listed(tails, self.num_entities),
        }
        sets = {name: ids if name == each else np.unique(ids) for name, ids in lists.items()}
        # The group must be among what a query holds; else the longer of heads and tails are the candidates.
        side = Side.TAIL if each == "head" or (each != "tail" and len(sets["head"]) <= len(sets["tail"])) else Side.HEAD
        among = sets[side.value]
        candidates = self._candidates(None if len(among) == self.num_entities else among)
        anchors, by = sets[side.other.value], {"all": "all", "relation": "relation"}.get(each, "anchor")
        k = min(k, self._most(sets, each))
        questions = {"all": 1, "relation": len(sets["relation"]), "anchor": len(anchors)}[by]
        step = max(1, HELD // max(1, k))
        with bar(total=len(anchors) * len(sets["relation"]), desc="predicting", unit="query") as progress:
            for start in range(0, questions if k else 0, step):
                part = slice(start, start + step)
                chosen = sets["relation"][part] if by == "relation" else sets["relation"]
                asked = Combined(side, anchors[part] if by == "anchor" else anchors, chosen, by)
                yield self._answers(self._ask(asked, candidates, k, known, progress.update), start)

    def best_of(self, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray, k: int) -> Answers:
        """The `k` best of the triples that stand side by side, int[B] each; a triple that is listed twice is answered twice."""
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
        ids = np.asarray(ids).astype(np.int64).reshape(-1)
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

    def _candidates(self, among: np.ndarray | None) -> Candidates:
        if among is not None:
            return Sample(self.tables, np.unique(self._ids(among, self.num_entities)))
        if self._everybody is None:
            comparator = None if self.model.projects else self.model.comparator
            self._everybody = AllEntities(self.tables, self.num_entities, self.candidate_block, comparator)
        return self._everybody

    def _ask(
        self, asked: Asked, candidates: Candidates, k: int, known: KnownTriples | None, report: Callable[[int], object]
    ) -> Best:
        """Answer some questions on all threads; an error, or Ctrl-C, ends all of them within one block."""
        best = Best(asked, k)
        listed = max(1, LISTED // (2 * k + 128))
        size = max(1, min(self.query_block, listed, -(-len(asked) // self.threads)))
        starts, lock, stopped = iter(range(0, len(asked), size)), threading.Lock(), threading.Event()

        def work() -> None:
            try:
                while not stopped.is_set():
                    with lock:
                        start = next(starts, None)
                    if start is None:
                        return
                    queries = asked.take(start, min(start + size, len(asked)))
                    for part in self._apart(queries):
                        self._pass(asked.side, part, candidates, known, best, stopped)
                    with lock:
                        report(len(queries.anchors))
            except BaseException:
                stopped.set()
                raise

        intra = torch.get_num_threads()
        torch.set_num_threads(1)  # one block of queries per thread is faster than many threads per product
        try:
            if self.threads == 1 or len(asked) <= size:
                work()
                return best
            with ThreadPoolExecutor(self.threads, "predicting", initializer=torch.set_num_threads, initargs=(1,)) as pool:
                futures = [pool.submit(work) for _ in range(self.threads)]
                try:
                    while wait(futures, timeout=1.0).not_done:
                        pass
                except BaseException:
                    stopped.set()
                    raise
            for future in futures:
                future.result(timeout=0)  # all are done
        finally:
            torch.set_num_threads(intra)
        return best

    def _apart(self, queries: Queries) -> Iterator[Queries]:
        """Those of one relation, if candidates depend on it."""
        if not self.model.projects:
            yield queries
            return
        cuts = np.flatnonzero(np.diff(queries.relations)) + 1
        for part in np.split(np.arange(len(queries.relations)), cuts):
            yield Queries(*(each[part] for each in queries))

    @torch.no_grad()
    def _pass(
        self,
        side: Side,
        queries: Queries,
        candidates: Candidates,
        known: KnownTriples | None,
        best: Best,
        stopped: threading.Event,
    ) -> None:
        """Hold some queries against all candidates."""
        comparator, project = self.model.comparator, self.scorer.projection(queries.relations)
        given = self.scorer.queries(side, queries.anchors, queries.relations)  # float64[P,Q]
        rounded, count = given.float(), len(candidates)
        sizes, most = comparator.size(rounded), None if project else candidates.largest
        skip = self._known(known, side, queries, candidates)
        names = candidates.ids if isinstance(candidates, Sample) else None

        def exact(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
            ids = places if names is None else names[places]
            return self.scorer.compare(given, rows, ids, queries.relations[:1] if project else None)

        top = Top(len(given), min(best.k, count), exact)
        longer = min(WIDEST, max(1, self.query_block // len(given)))
        block = self.candidate_block * longer
        reach = None
        for start in range(0, count, block):
            if stopped.is_set():
                return
            rows = candidates.block(start, min(start + block, count))
            seen = project(rows) if project else rows
            if reach is None or most is None:
                bound = comparator.bound(given.shape[1], sizes, largest(comparator.size(seen)) if most is None else most)
                # Twice, for a query is rounded once, too, and so is a projection; a rounding costs less than the bound's own.
                reach = 2 * bound.double()
            top.raise_bar(best.bar(queries.questions))
            top.add(comparator.order(rounded, seen), start, reach, skip.offsets, skip.positions)
        _, places, keys = top.best()
        ids = places if names is None else np.where(places < 0, -1, names[places])
        best.merge(queries, ids, keys)

    def _known(self, known: KnownTriples | None, side: Side, queries: Queries, candidates: Candidates) -> Skip:
        if known is None:
            return Skip(np.zeros(len(queries.anchors) + 1, np.int64), NOBODY)
        return candidates.locate(Skip(*known.answers(side, queries.anchors, queries.relations)))
