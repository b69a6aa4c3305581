"""Approximate search: which few entities are worth comparing with a query, of very many.

A graph of near entities (HNSW: Malkov and Yashunin 2018, arXiv:1603.09320) is walked from each query, at half precision. Who is
found is compared exactly, as always, so every score is right; only an answer may be missing. How many are found is measured when
the index is built, against exact search, and walks are made as long as a good recall takes. Clusters (inverted files) are built
sooner, but embeddings form few of them: by ComplEx on wn18rr, the nearest tenth held half of the answers.

For score functions that compare by a dot product or by L2. It is built and searched by faiss (the extra kgdist[index]), saved in
the run folder and built again when the embeddings have changed. How `kgdist.predict.engine` uses one:

    index = open_index(run.path, predictor)             # Index: built if there is none; seconds to minutes
    log.tell(index.words())                             # "... recall@10 0.97 ..."
    ids, keys = index.best(queries, k, exact, offsets, positions)   # in place of Top.add over all blocks and Top.best
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from kgdist.base.errors import CheckpointError, OptionError
from kgdist.base.files import atomic_write, read_json, write_json
from kgdist.base.log import bar, log
from kgdist.base.types import Side
from kgdist.kernels.top import NOBODY, Exact

if TYPE_CHECKING:
    from kgdist.predict.engine import Predictor

METRICS = {"dot": "METRIC_INNER_PRODUCT", "l2": "METRIC_L2"}
FORMAT = 1
FILES = "entity.faiss", "entity.faiss.json"
GOAL = 0.95  # recall@10 that the walk is made long for
WALKS = 64, 4096  # entities kept in mind on a walk: at first, at most; doubled until the goal is met
SAMPLE = 256  # queries that recall is measured with
LINKS, BUILD = 32, 80  # neighbours of an entity; entities kept in mind when they are looked for
ROWS = 1 << 12  # rows put in at once
LOOKED = 4096  # rows that tell whether embeddings have changed


class Facts(NamedTuple):
    """What is known of an index besides its content; `entity.faiss.json`."""

    comparator: str
    rows: int
    width: int
    digest: str  # of the embeddings
    walk: int  # entities kept in mind
    milliseconds: float  # a query took when the index was built
    exactly: float  # milliseconds by exact search
    recall: float  # at 10
    queries: int  # that it was measured with
    bytes: int  # of the other file


class Index:
    """Which entities to compare with a query; see the top of this file. Searched by any number of threads at a time."""

    def __init__(self, content: Any, facts: Facts) -> None:
        self.content, self.facts = content, facts

    def words(self) -> str:
        """What a user should know of it, in a line."""
        facts = self.facts
        times = f"{facts.milliseconds:.2g} ms a query, exact search {facts.exactly:.2g} ms"
        if facts.milliseconds > facts.exactly:
            times += ": better leave --index out"
        return (
            f"index of {facts.rows:,} entities: scores are exact, but answers may be missing: recall@10 {facts.recall:.3f} "
            f"on {facts.queries} random queries ({times})"
        )

    def candidates(self, queries: torch.Tensor, count: int, walk: int | None = None) -> np.ndarray:
        """float32[P,Q] -> int64[P,count]: ids worth comparing, -1 where there are no more."""
        import faiss

        faiss.omp_set_num_threads(1)  # of this thread: blocks of queries already share the cores
        count = min(count, self.facts.rows)
        how = faiss.SearchParametersHNSW(efSearch=max(walk or self.facts.walk, count))
        rows = np.ascontiguousarray(queries.detach().cpu().numpy(), np.float32)
        found: np.ndarray = self.content.search(rows, count, params=how)[1]
        return found

    def best(
        self, queries: torch.Tensor, k: int, exact: Exact, offsets: np.ndarray | None = None, skipped: np.ndarray = NOBODY
    ) -> tuple[np.ndarray, np.ndarray]:
        """(ids int64[P,K], order keys float64[P,K]) of float32[P,Q] queries: best first, equal ones by id; -1 and minus infinity
        where fewer were found.

        `exact`, `offsets` and `skipped` as in `kgdist.kernels.top.Top`, whose answers these nearly are.
        """
        ends = np.zeros(len(queries) + 1, np.int64) if offsets is None else offsets
        most = int(np.diff(ends).max(initial=0))
        found = self.candidates(queries, 2 * k + 32 + min(most, k + 1024))
        row, place = np.nonzero(found >= 0)
        ids = found[row, place]
        if most:  # every pair as one number: known ones are few beside the rest
            rows = np.repeat(np.arange(len(queries)), np.diff(ends))
            known = rows * self.facts.rows + skipped[ends[0] : ends[-1]]
            new = ~np.isin(row * self.facts.rows + ids, known)
            row, ids = row[new], ids[new]
        keys = exact(row, ids)
        order = np.lexsort((ids, -keys, row))
        row, ids, keys = row[order], ids[order], keys[order]
        within = np.arange(len(row)) - np.searchsorted(row, row)
        kept = within < k
        best, scores = np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf)
        best[row[kept], within[kept]], scores[row[kept], within[kept]] = ids[kept], keys[kept]
        return best, scores


def open_index(folder: Path, predictor: Predictor) -> Index:
    """The index of the run in `folder`, read from there, or built and written there.

    `predictor` is the run's, and searches exactly. Raises OptionError (--index) for a score function that cannot have one, or
    without faiss; KgdistError when it cannot be written.
    """
    model = predictor.model
    if model.projects or model.compare not in METRICS:
        fit = "compare by a dot product or by L2 (DistMult, ComplEx, SimplE, RESCAL, TransE_l2)"
        raise OptionError("--index", f"is for score functions that {fit}, and {model.name} does not; leave it out")
    try:
        import faiss
    except ImportError as error:
        raise OptionError("--index", f"needs faiss ({error}); pip install 'kgdist[index]'") from error
    digest = digest_of(predictor)
    file, facts_file = (folder / name for name in FILES)
    facts = _read_facts(facts_file)
    if facts is not None and facts.digest == digest and file.is_file() and file.stat().st_size == facts.bytes:
        with contextlib.suppress(RuntimeError):  # damaged inside: built again
            return Index(faiss.read_index(str(file)), facts)
    if facts is not None:
        log.info("%s is of other embeddings, or damaged: it is built again", file)
    content = _build(predictor)
    index = _measured(content, predictor, digest)
    with atomic_write(file) as stream:
        faiss.write_index(content, faiss.PyCallbackIOWriter(stream.write))
        size = stream.tell()
    facts = index.facts._replace(bytes=size)
    write_json(facts_file, {"format": FORMAT} | facts._asdict())
    return Index(content, facts)


def digest_of(predictor: Predictor) -> str:
    """sha256 (hex) of the comparator, the table's shape and some thousand of its rows, all over it.

    Not of all rows, which would cost as much as exact search. Rows that changed unseen can only lose recall: scores are computed
    from the embeddings themselves.
    """
    rows, width = predictor.tables.shape("entity")
    digest = hashlib.sha256(f"{predictor.model.compare} {rows} {width} ".encode())
    ids = np.unique(np.linspace(0, rows - 1, LOOKED).astype(np.int64))
    digest.update(np.ascontiguousarray(predictor.tables.pull("entity", torch.from_numpy(ids)).cpu().numpy()).data)
    return digest.hexdigest()


def _read_facts(file: Path) -> Facts | None:
    try:
        found = read_json(file)
        return Facts(**{name: found[name] for name in Facts._fields}) if found["format"] == FORMAT else None
    except (CheckpointError, KeyError, TypeError):
        return None


def _build(predictor: Predictor) -> Any:
    """The index of all rows of the table, in faiss."""
    import faiss

    tables, (count, width) = predictor.tables, predictor.tables.shape("entity")
    metric = getattr(faiss, METRICS[predictor.model.compare])
    faiss.omp_set_num_threads(predictor.threads)
    content = faiss.IndexHNSWSQ(width, faiss.ScalarQuantizer.QT_fp16, LINKS, metric)
    content.hnsw.efConstruction, content.is_trained = BUILD, True  # half precision has nothing to learn
    with bar(total=count, desc="building the index", unit="row") as progress:
        for start in range(0, count, ROWS):
            rows = tables.block("entity", start, min(start + ROWS, count)).cpu().numpy()
            content.add(np.ascontiguousarray(rows))
            progress.update(len(rows))
    return content


def _measured(content: Any, predictor: Predictor, digest: str) -> Index:
    """The index, with walks as long as the goal takes on random queries of both sides."""
    rng, (count, width) = np.random.default_rng(1), predictor.tables.shape("entity")
    index = Index(content, Facts(predictor.model.compare, count, width, digest, 0, 0.0, 0.0, 0.0, SAMPLE, 0))
    asked = []
    for side in Side:
        anchors = rng.integers(0, count, SAMPLE // 2)
        relations = np.sort(rng.integers(0, predictor.num_relations, SAMPLE // 2))
        with torch.no_grad():
            queries = predictor.scorer.queries(side, anchors, relations).float()
        asked.append((queries, predictor.top(side, anchors, relations, 10).ids))
    queries, true = torch.cat([each[0] for each in asked]), np.concatenate([each[1] for each in asked])
    walk, recall = WALKS[0] // 2, 0.0
    while recall < GOAL and walk < WALKS[1]:
        walk *= 2
        found = index.candidates(queries, 2 * true.shape[1] + 32, walk)
        recall = float(np.mean([np.isin(row, near).mean() for row, near in zip(true, found, strict=True)]))
    index.facts = index.facts._replace(walk=walk, recall=round(recall, 4))
    took = []
    for predictor.index in (None, index):  # the last queries again, by either
        started = perf_counter()
        predictor.top(side, anchors, relations, 10)
        took.append(round(1e3 * (perf_counter() - started) / len(anchors), 4))
    predictor.index = None
    index.facts = index.facts._replace(exactly=took[0], milliseconds=took[1])
    return index
