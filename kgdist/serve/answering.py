"""What is asked in JSON -> ids, what one product answers, and answers by name. It knows no HTTP: a refusal has a status.

Every question is small and bounded before it is asked: two of head, relation and tail are given, and at most so many answers
wanted. Scores are those of `Run.score`: as the model gives them, distances with gamma.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.types import Side
from kgdist.data.read.columns import shown
from kgdist.evaluation.evaluator import evaluate
from kgdist.predict.similar import MEASURES
from kgdist.serve.live import KINDS, Live
from kgdist.serve.lookup import Refused, look_up, named

ENDS = ("head", "relation", "tail")
MOST_ANSWERS = 50_000  # of one request: 10 MB of JSON
NEAR = 20  # entities like an end, among which known facts like an answer are looked for
LOOKED = 10_000  # known answers to a question that are looked at, to tell the nearest
FACTS = 5  # of them told


class Limits(NamedTuple):
    """How much one request may ask."""

    k: int
    questions: int

    def checked(self, k: Any) -> int:
        """`k` answers, if one may ask for as many. Raises Refused."""
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= self.k:
            raise Refused(400, f"k must be an integer from 1 to {self.k} (--max_k), not {k!r:.60}")
        return k


@dataclass(frozen=True)
class Question:
    """One question. `what`: the end that is missing (head, relation, tail), score, explain, or "similar KIND MEASURE"."""

    what: str
    ids: tuple[int, ...]
    k: int = 1
    exclude_known: bool = False
    mapped: bool = False  # of similar ones: with a place in the plane for each

    @property
    def group(self) -> tuple[str, bool, int]:
        """Those of one group are answered by one product, heads and tails alike; a few answers do not wait for thousands."""
        what = "entity" if self.what in ("head", "tail") else self.what
        return what, self.exclude_known, (self.k - 1).bit_length() // 3


class Found(NamedTuple):
    """The answer to one question, before it has names."""

    ids: np.ndarray  # int64[n]: what was asked for
    scores: np.ndarray  # float64[n]
    known: np.ndarray | None = None  # bool[n]: whether the triple is among train, valid and test
    more: Any = None  # of similar: float64[n + 1, 2]; of explain: ranks and facts


# ---- JSON -> questions


def read(path: str, body: Any, live: Live, limits: Limits) -> tuple[list[Question], bool]:
    """(the questions that `body` asks of `path`, whether it is one alone). Raises Refused."""
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    single = "questions" not in body
    rows = [body] if single else body["questions"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refused(400, "questions must be a list of JSON objects")
    if len(rows) > limits.questions:
        raise Refused(
            400, f"{len(rows)} questions are more than the {limits.questions} that one request may ask (--max_questions)"
        )
    shared = {} if single else {name: value for name, value in body.items() if name != "questions"}
    if path != "/similar":
        allowed = {*ENDS, *(() if path != "/predict" else ("k", "exclude_known"))}
    else:
        allowed = {*KINDS, "k", "measure", "map"}
    whole = [{**shared, **row} for row in rows]
    for row in (shared, *whole):  # what all share is looked at even where nobody asks
        if strange := sorted(row.keys() - allowed):
            raise Refused(400, f"{path} takes {', '.join(sorted(allowed))}, not {shown(strange[0])}")
    names: dict[str, list[str]] = {"entity": [], "relation": []}  # looked up together
    for row in whole:
        for name in row.keys() & {*ENDS, "entity"}:
            if not isinstance(row[name], str):
                raise Refused(400, f"{name} must be a name (a string), not {row[name]!r:.60}")
            names["relation" if name == "relation" else "entity"].append(row[name])
    inverses = path == "/similar"  # whose rows have inverse relations, too
    found = {noun: look_up(live, noun, texts, inverses) for noun, texts in names.items()}
    make = {"/predict": _asked, "/similar": _similar}.get(path, _triple)
    questions = [make(path, row, found, live, limits) for row in whole]
    if sum(question.k for question in questions) > MOST_ANSWERS:
        raise Refused(400, f"more than {MOST_ANSWERS:,} answers in one request; ask in several, or for a smaller k")
    return questions, single


def _asked(path: str, row: dict[str, Any], ids: dict[str, dict[str, int]], live: Live, limits: Limits) -> Question:
    missing = [end for end in ENDS if end not in row]
    if len(missing) != 1:
        raise Refused(400, "give two of head, relation and tail: the third is asked for")
    exclude = _flag(row, "exclude_known")
    if exclude and live.known is None:
        raise Refused(
            409, "exclude_known: the data that the run was trained on are not here; start kgdist-serve with --data_path"
        )
    given = tuple(ids["relation" if end == "relation" else "entity"][row[end]] for end in ENDS if end in row)
    return Question(missing[0], given, _k(row, limits), exclude)


def _triple(path: str, row: dict[str, Any], ids: dict[str, dict[str, int]], live: Live, limits: Limits) -> Question:
    if missing := [end for end in ENDS if end not in row]:
        raise Refused(400, f"{path} takes head, relation and tail; {missing[0]} is missing")
    triple = tuple(ids["relation" if end == "relation" else "entity"][row[end]] for end in ENDS)
    return Question(path.strip("/"), triple)


def _similar(path: str, row: dict[str, Any], ids: dict[str, dict[str, int]], live: Live, limits: Limits) -> Question:
    given = [kind for kind in KINDS if kind in row]
    if len(given) != 1:
        raise Refused(400, "/similar takes the name of an entity, or of a relation")
    measure = row.get("measure", "cosine")
    if not isinstance(measure, str) or measure not in MEASURES:
        raise Refused(400, f"measure must be one of {', '.join(MEASURES)}, not {measure!r:.60}")
    (kind,) = given
    what = f"similar {kind} {measure}"
    return Question(what, (ids[kind][row[kind]],), _k(row, limits), mapped=_flag(row, "map"))


def _k(row: dict[str, Any], limits: Limits) -> int:
    return limits.checked(row.get("k", min(10, limits.k)))


def _flag(row: dict[str, Any], name: str) -> bool:
    value = row.get(name, False)
    if not isinstance(value, bool):
        raise Refused(400, f"{name} must be true or false, not {value!r:.60}")
    return value


# ---- questions -> ids and scores


def compute(live: Live, questions: Sequence[Question]) -> list[Found]:
    """The answers to questions of one group, in their order. Raises KgdistError."""
    what = questions[0].what
    columns = np.array([question.ids for question in questions], np.int64).T  # int64[given, B]
    if what.startswith("similar"):
        return _alike(live, questions, columns[0])
    if what == "score":
        true = None if live.known is None else live.known.holds(*columns)
        scores = live.predictor.score(*columns)
        return [
            Found(columns[2][row : row + 1], scores[row : row + 1], None if true is None else true[row : row + 1])
            for row in range(len(questions))
        ]
    if what == "explain":
        return _explained(live, columns)
    k = max(question.k for question in questions)
    known = live.known if questions[0].exclude_known else None
    if what == "relation":
        heads, tails = columns
        found = live.predictor.top_relations(heads, tails, k, known=known)
    else:
        headless = np.array([question.what == "head" for question in questions])
        anchors, relations = np.where(headless, columns[::-1], columns)
        found = live.predictor.top(headless, anchors, relations, k, known=known)
    if known is not None or live.known is None:
        flags = None if live.known is None else np.zeros(found.ids.shape, bool)
    elif what == "relation":
        flags = _known_relations(live.known, columns, found.ids)
    else:
        flags = np.empty(found.ids.shape, bool)
        for side in Side:
            rows = np.flatnonzero(headless == (side is Side.HEAD))
            flags[rows] = live.known.has(side, anchors[rows], relations[rows], np.arange(len(rows)), found.ids[rows])
    made = []
    for row, question in enumerate(questions):
        count = int((found.ids[row, : question.k] >= 0).sum())
        made.append(Found(found.ids[row, :count], found.scores[row, :count], None if flags is None else flags[row, :count]))
    return made


def _known_relations(known: Any, columns: np.ndarray, found: np.ndarray) -> np.ndarray:
    offsets, ids = known.relations(*columns)
    return np.array([np.isin(row, ids[offsets[at] : offsets[at + 1]]) for at, row in enumerate(found)]).reshape(found.shape)


def _alike(live: Live, questions: Sequence[Question], ids: np.ndarray) -> list[Found]:
    _, kind, measure = questions[0].what.split()
    search = live.search(kind, measure)
    unique, back = np.unique(ids, return_inverse=True)
    parts = list(search.best_of_each(unique, None, max(question.k for question in questions)))
    left, right, scores = (np.concatenate([part[place] for part in parts]) if parts else np.zeros(0) for place in range(3))
    made = []
    for question, place in zip(questions, back.reshape(-1).tolist(), strict=True):
        first, last = np.searchsorted(left, [unique[place], unique[place] + 1])
        own = slice(first, min(last, first + question.k))
        near = right[own].astype(np.int64)
        shown = np.concatenate([unique[place : place + 1], near])
        points = _plane(search.measure.table[shown].double().cpu().numpy()) if question.mapped else None
        made.append(Found(near, scores[own], None, points))
    return made


def _plane(rows: np.ndarray) -> np.ndarray:
    """float64[n, D] -> float64[n, 2]: along the two directions in which the rows differ most (principal axes), within -1 to 1."""
    centred = rows - rows.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(rows), 2))
    axes = min(2, len(s))
    points[:, :axes] = u[:, :axes] * s[:axes]
    return points / max(float(np.abs(points).max(initial=0.0)), 1e-12)


def _explained(live: Live, columns: np.ndarray) -> list[Found]:
    predictor = live.predictor
    scores = predictor.score(*columns)
    ranked = evaluate(
        predictor.model,
        predictor.tables,
        columns.T,
        num_entities=predictor.num_entities,
        known=live.known,
        threads=live.threads,
        desc="explaining",
    )
    ranks = ranked.rank().astype(np.int64)
    made = []
    for row, (head, relation, tail) in enumerate(columns.T.tolist()):
        known = None if live.known is None else live.known.holds(*columns[:, row : row + 1])
        facts = nearest_facts(live, head, relation, tail) if live.known is not None else []
        ends = int(ranks[row]), int(ranks[len(scores) + row])
        made.append(Found(columns[2, row : row + 1], scores[row : row + 1], known, (ends, facts)))
    return made


def nearest_facts(live: Live, head: int, relation: int, tail: int) -> list[tuple[int, int, float]]:
    """Known facts (x, relation, y) that are most like (head, relation, tail): (x, y, mean cosine of both ends), best first.

    Looked at are those that share an end (the first LOOKED of each), and those among the NEAR most similar entities of each end.
    """
    known, search = live.known, live.search("entity", "cosine")
    assert known is not None
    one = np.array([relation])
    heads = known.answers(Side.HEAD, np.array([tail]), one)[1][:LOOKED].astype(np.int64)
    tails = known.answers(Side.TAIL, np.array([head]), one)[1][:LOOKED].astype(np.int64)
    like = [next(iter(search.best_of_each(np.array([end]), None, NEAR))).right for end in (head, tail)]
    rows = np.zeros(len(like[0]), np.int64)
    both = known.has(Side.TAIL, like[0], np.full(len(like[0]), relation), rows, like[1].reshape(1, -1).astype(np.int64))
    at, other = np.nonzero(both)
    pairs = np.concatenate(
        [
            np.stack([heads, np.full(len(heads), tail)], axis=1),
            np.stack([np.full(len(tails), head), tails], axis=1),
            np.stack([like[0][at], like[1][other]], axis=1),
        ]
    )
    pairs = np.unique(pairs[(pairs != [head, tail]).any(1)], axis=0)
    if not len(pairs):
        return []
    exact = search.measure.exact
    similarity = (exact(np.full(len(pairs), head), pairs[:, 0]) + exact(np.full(len(pairs), tail), pairs[:, 1])) / 2
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -similarity))[:FACTS]
    return [(*pairs[place].tolist(), float(similarity[place])) for place in order]


def ready(live: Live) -> Live:
    """The run with all loops compiled and all passes made that its first questions would wait for."""
    for labels in (*live.labels.values(), *live.row_labels.values()):
        live.by_label(labels)
    if len(live.entities) and len(live.relations):
        asked = ("head", 2), ("relation", 2), ("tail", 2), ("score", 3), ("explain", 3), ("similar entity cosine", 1)
        for what, given in asked:
            for exclude in (False, live.known is not None):
                compute(live, [Question(what, (0,) * given, 1, exclude)])
        if live.known is not None:  # what nearest facts ask for where there are some
            live.search("entity", "cosine").measure.exact(np.zeros(1, np.int64), np.zeros(1, np.int64))
    return live


# ---- ids and scores -> JSON


def written(live: Live, questions: Sequence[Question], found: Sequence[Found]) -> list[str]:
    """The answers to the questions of one request, by name: a JSON object each."""
    if questions and questions[0].what in (*ENDS, "score"):
        return _triples(live, questions, found)
    tell = _told_alike if questions and questions[0].what.startswith("similar") else _told_explained
    return [as_json(tell(live, question, answer)) for question, answer in zip(questions, found, strict=True)]


def as_json(content: Any) -> str:
    """A value in JSON, without blanks."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _triples(live: Live, questions: Sequence[Question], found: Sequence[Found]) -> list[str]:
    """Answers that are triples. All of a request are named and written together: five times as fast as each by itself, and half
    of what a question costs besides its product."""
    counts = [len(answer.ids) for answer in found]
    ids: dict[str, list[int]] = {end: [] for end in ENDS}
    for question, answer, count in zip(questions, found, counts, strict=True):
        given = iter(question.ids)
        for end in ENDS:
            if end == question.what or (end == "tail" and question.what == "score"):
                ids[end] += answer.ids.tolist()
            else:
                ids[end] += [next(given)] * count
    columns = _quoted(live, ids)
    scores = np.concatenate([answer.scores for answer in found])
    columns["score"] = _numbers(scores)
    if live.calibration is not None:
        columns["probability"] = _numbers(np.round(live.calibration.probability(scores), 6))
    if live.known is not None:
        flags = itertools.chain.from_iterable(answer.known.tolist() for answer in found if answer.known is not None)
        columns["known"] = ["true" if known else "false" for known in flags]
    form = "{" + ",".join(f'"{name}":%s' for name in columns) + "}"
    rows = [form % values for values in zip(*columns.values(), strict=True)]
    if questions[0].what == "score":
        return rows
    ends = np.cumsum(counts).tolist()
    parts = (",".join(rows[end - count : end]) for end, count in zip(ends, counts, strict=True))
    return [f'{{"answers":[{part}]}}' for part in parts]


def _quoted(live: Live, ids: dict[str, list[int]]) -> dict[str, list[str]]:
    """Names, and where the run has labels these beside them, in JSON, of the ids of each end; each thing is named once."""
    texts: dict[str, dict[str, dict[int, str]]] = {}
    for noun, ends in (("entity", ("head", "tail")), ("relation", ("relation",))):
        things = list({number for end in ends for number in ids[end]})
        for name, values in named(live, {noun: things}).items():
            quoted = ["null" if value is None else encode_basestring(value) for value in values]
            texts.setdefault(noun, {})[name.removeprefix(noun)] = dict(zip(things, quoted, strict=True))
    columns = {}
    for end in ENDS:
        for suffix, of in texts["relation" if end == "relation" else "entity"].items():
            columns[end + suffix] = [of[number] for number in ids[end]]
    return columns


def _numbers(values: np.ndarray) -> list[str]:
    return json.dumps(values.tolist())[1:-1].split(", ") if len(values) else []


def _told_alike(live: Live, question: Question, found: Found) -> dict[str, Any]:
    kind = question.what.split()[1]
    columns: dict[str, Any] = {kind: live.row_names[kind].names(found.ids)}
    if len(labels := live.row_labels[kind]):
        columns[f"{kind}_label"] = labels.names(found.ids)
    answers = _rows({**columns, "similarity": found.scores.tolist()})
    return {"answers": answers} | ({} if found.more is None else {"map": np.round(found.more, 4).tolist()})


def _told_explained(live: Live, question: Question, found: Found) -> dict[str, Any]:
    (scored,) = _triples(live, [replace(question, what="score")], [found])
    (head_rank, tail_rank), facts = found.more
    heads, tails, similarity = ([fact[place] for fact in facts] for place in range(3))
    columns = named(live, {"head": heads, "relation": [question.ids[1]] * len(facts), "tail": tails})
    near = _rows({**columns, "similarity": similarity})
    return {**json.loads(scored), "head_rank": head_rank, "tail_rank": tail_rank, "nearest_facts": near}


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def facts_of(live: Live, name: str, most: int) -> dict[str, Any]:
    """The known facts of an entity, at most `most` as a head and as many as a tail, and how many there are. Raises Refused."""
    entity = look_up(live, "entity", [name], False)[name]
    own: dict[str, Any] = {"entity": live.entities[entity]}
    if len(labels := live.labels["entity"]):
        own["entity_label"] = labels.names([entity])[0]
    if live.known is None:
        return {**own, "facts": [], "as_head": 0, "as_tail": 0}
    made, counts = [], []
    for side in (Side.TAIL, Side.HEAD):
        relations, others = live.known.of(side, entity)
        counts.append(len(others))
        others, same = others[:most], np.full(min(most, len(others)), entity)
        heads, tails = side.pick((others, same), (same, others))
        made += _rows(named(live, {"head": heads, "relation": relations[:most], "tail": tails}))
    return {**own, "facts": made, "as_head": counts[0], "as_tail": counts[1]}
