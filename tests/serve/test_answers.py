"""What the server says is what a brute force in float64 over the run's own files says, alone or among others."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kgdist
from kgdist.serve import answering, explorer
from tests.cli.graphs import FILES
from tests.serve.rig import PATIENCE, Served


class Oracle:
    """DistMult by hand."""

    def __init__(self, run: Path) -> None:
        (entity,) = run.glob("*_entity.npy")
        (relation,) = run.glob("*_relation.npy")
        self.rows, self.relation_rows = np.load(entity).astype(float), np.load(relation).astype(float)
        self.entities, self.relations = (
            [line.split("\t")[1] for line in (run / f"{name}.tsv").read_text().splitlines()] for name in ("entities", "relations")
        )
        lines = "".join((run.parents[1] / "data" / name).read_text() for name in FILES).splitlines()
        self.facts = {tuple(line.split("\t")) for line in lines}

    def score(self, head: str, relation: str, tail: str) -> float:
        h, t = (self.rows[self.entities.index(name)] for name in (head, tail))
        return float((h * self.relation_rows[self.relations.index(relation)] * t).sum())

    def best(self, given: dict[str, str], k: int, *, exclude: bool) -> list[tuple[str, str, str, float, bool]]:
        ends = {name: [given[name]] if name in given else names for name, names in self.lists().items()}
        made = [(*triple, self.score(*triple), triple in self.facts) for triple in product(*ends.values())]
        return sorted((row for row in made if not (exclude and row[4])), key=lambda row: -row[3])[:k]

    def lists(self) -> dict[str, list[str]]:
        return {"head": self.entities, "relation": self.relations, "tail": self.entities}

    def cosine(self, one: str, other: str) -> float:
        a, b = (self.rows[self.entities.index(name)] for name in (one, other))
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.fixture(scope="module")
def oracle(run: Path) -> Oracle:
    return Oracle(run)


def questions(oracle: Oracle, count: int) -> list[dict[str, Any]]:
    """Random ones of all kinds that /predict takes."""
    rng = np.random.default_rng(3)
    made = []
    for number in range(count):
        given = {name: str(rng.choice(names)) for name, names in oracle.lists().items()}
        given.pop(("head", "relation", "tail")[number % 3])
        made.append({**given, "k": int(rng.choice([1, 3, 50])), "exclude_known": bool(rng.integers(2))})
    return made


def check(oracle: Oracle, asked: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    """Answers in the right order, by score; scores of float64."""
    given = {name: asked[name] for name in ("head", "relation", "tail") if name in asked}
    wanted = oracle.best(given, asked["k"], exclude=asked["exclude_known"])
    assert [(row["head"], row["relation"], row["tail"]) for row in answers] == [row[:3] for row in wanted]
    assert [row["score"] for row in answers] == pytest.approx([row[3] for row in wanted], abs=1e-6)
    if not asked["exclude_known"]:
        assert [row["known"] for row in answers] == [row[4] for row in wanted]
    assert all(0 < row["probability"] < 1 for row in answers)


def test_predictions_are_a_brute_force_s(server: Served, oracle: Oracle) -> None:
    asked = questions(oracle, 24)
    status, together = server.ask("/predict", {"questions": asked})
    assert status == 200
    for question, result in zip(asked, together["results"], strict=True):
        check(oracle, question, result["answers"])
    for question in asked[:6]:  # alone, by either method
        words = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in question.items()}
        expected = together["results"][asked.index(question)]
        assert server.ask("/predict", question) == server.ask(f"/predict?{urllib.parse.urlencode(words)}") == (200, expected)


def test_questions_of_many_clients_are_answered_together(server: Served, oracle: Oracle) -> None:
    asked = questions(oracle, 48)
    before, found = server.gatherer.rounds, dict[int, Any]()

    def client(number: int) -> None:
        found[number] = server.ask("/predict", asked[number])

    clients = [threading.Thread(target=client, args=(number,)) for number in range(len(asked))]
    server.gatherer.wait = 0.1
    for each in clients:
        each.start()
    for each in clients:
        each.join(timeout=PATIENCE)
    server.gatherer.wait = 0.0005
    for number, question in enumerate(asked):
        status, result = found[number]
        assert status == 200
        check(oracle, question, result["answers"])
    assert server.gatherer.rounds - before < len(asked) / 2


def test_shared_words_hold_for_all_questions(server: Served) -> None:
    rows = [{"head": "e1"}, {"head": "e2", "k": 2}]
    _, found = server.ask("/predict", {"relation": "r1", "k": 4, "questions": rows})
    assert [len(each["answers"]) for each in found["results"]] == [4, 2]
    assert server.ask("/predict", {"questions": []}) == (200, {"results": []})


def test_scores_and_explanations(server: Served, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "NEAR", 30)  # all: then the nearest facts are those of all facts
    for head, relation, tail in [*sorted(oracle.facts)[:3], ("e1", "r1", "e1")]:
        triple = {"head": head, "relation": relation, "tail": tail}
        known = (head, relation, tail) in oracle.facts
        _, scored = server.ask("/score", triple)
        _, told = server.ask("/explain", triple)
        assert scored == {name: told[name] for name in scored}
        assert scored["score"] == pytest.approx(oracle.score(head, relation, tail), abs=1e-6) and scored["known"] is known
        for end in ("head", "tail"):
            rivals = [
                row
                for row in oracle.best({**triple, end: None} and {k: v for k, v in triple.items() if k != end}, 99, exclude=False)
            ]
            better = [row for row in rivals if not row[4] and row[3] > scored["score"] + 1e-9]
            assert told[f"{end}_rank"] == 1 + len(better)
        near = [
            ((oracle.cosine(head, x) + oracle.cosine(tail, y)) / 2, x, y)
            for x, r, y in oracle.facts
            if r == relation and (x, y) != (head, tail)
        ]
        assert [fact["similarity"] for fact in told["nearest_facts"]] == pytest.approx(
            sorted((each[0] for each in near), reverse=True)[:5], abs=1e-9
        )
        assert all((fact["head"], relation, fact["tail"]) in oracle.facts for fact in told["nearest_facts"])


def test_similar_ones_and_the_map(server: Served, run: Path, oracle: Oracle) -> None:
    _, found = server.ask("/similar?entity=e3&k=4&map=true")
    wanted = sorted(((oracle.cosine("e3", name), name) for name in oracle.entities if name != "e3"), reverse=True)[:4]
    assert [row["entity"] for row in found["answers"]] == [name for _, name in wanted]
    assert [row["similarity"] for row in found["answers"]] == pytest.approx([value for value, _ in wanted])
    assert np.array(found["map"]).shape == (5, 2) and np.abs(found["map"]).max() == 1
    for kind, name in (("entity", "e5"), ("relation", "r1")):
        _, other = server.ask("/similar", {"measure": "l2", "questions": [{kind: name, "k": 2}]})
        rows = kgdist.load(run).similar(name, 2, kind=kind, measure="l2")
        assert [row[kind] for row in other["results"][0]["answers"]] == list(rows["right"])


def test_names_and_facts(server: Served, run: Path, oracle: Oracle) -> None:
    begin = [name for name in oracle.entities if name.startswith("e2")]
    assert server.ask("/entities?q=E2&k=3") == (200, {"names": sorted(begin, key=len)[:3]})
    assert server.ask("/entities?q=3&kind=relation") == (200, {"names": ["r3"]})
    train = [line.split("\t") for line in (run.parents[1] / "data" / FILES[0]).read_text().splitlines()]
    for kind, places in (("entity", (0, 2)), ("relation", (1,))):
        often = Counter(line[place] for line in train for place in places)
        most = [often[name] for name in server.ask(f"/entities?q=&kind={kind}&k=3")[1]["names"]]
        assert most == sorted(often.values(), reverse=True)[:3]
    _, found = server.ask("/facts?entity=e4")
    told = {(row["head"], row["relation"], row["tail"]) for row in found["facts"]}
    assert told == {fact for fact in oracle.facts if "e4" in (fact[0], fact[2])}
    assert (found["as_head"], found["as_tail"]) == tuple(sum(fact[place] == "e4" for fact in oracle.facts) for place in (0, 2))


def test_what_programs_read(server: Served) -> None:
    _, document = server.ask("/openapi.json")
    routes = {route.path for route in server.app._routes.routes}  # type: ignore[attr-defined]
    assert set(document["paths"]) == routes - {"/metrics", "/openapi.json", *explorer.PATHS}
    status, text = server.ask("/metrics")
    assert status == 200
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['kgdist_requests_total{path="/openapi.json",status="200"}']) == 1
    assert values['kgdist_request_seconds_bucket{path="/openapi.json",le="+Inf"}'] == "1"
    typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {
        name.partition("{")[0].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in values
    } == typed
    _, healthy = server.ask("/healthz")
    assert healthy["status"] == "ok" and healthy["entities"] == 30 and json.dumps(healthy)
