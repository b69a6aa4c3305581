"""What a run's labels change: they stand beside names, and one asks by them where one thing alone has it."""

from __future__ import annotations

import shutil
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgdist.runs.rundir import LABELS
from tests.serve.rig import Served, served, until


def names(run: Path, noun: str) -> list[str]:
    return [line.split("\t")[1] for line in (run / f"{noun}.tsv").read_text().splitlines()]


@pytest.fixture(scope="module")
def labels(run: Path) -> dict[str, str]:
    """Of all entities but the last five; the last two that have one share it. One label is another entity's name."""
    entities, relations = names(run, "entities"), names(run, "relations")
    made = {name: f"Thing {number} <b>Ω" for number, name in enumerate(entities[:-5])}
    made[entities[-7]] = made[entities[-6]] = "the same"
    made[entities[1]] = entities[0]
    return made | {relations[0]: "is like"}


@pytest.fixture(scope="module")
def labelled(run: Path, labels: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of the run with labels; its data are found where they were."""
    copy = shutil.copytree(run, tmp_path_factory.mktemp("labelled") / "run")
    (copy / LABELS).write_text("".join(f"{name}\t{label}\n" for name, label in labels.items()))
    with served(copy) as made:
        yield made


def without(answer: Any) -> Any:
    """An answer as it is of a run without labels."""
    if isinstance(answer, list):
        return [without(each) for each in answer]
    if isinstance(answer, dict):
        return {name: without(value) for name, value in answer.items() if not name.endswith(("_label", "labels"))}
    return answer


def check(answer: Any, labels: dict[str, str]) -> int:
    """Beside every name stands its label; how many names there were."""
    if isinstance(answer, list):
        return sum(check(each, labels) for each in answer)
    if not isinstance(answer, dict):
        return 0
    ends = [end for end in ("head", "relation", "tail", "entity") if end in answer]
    for end in ends:
        assert answer[f"{end}_label"] == labels.get(answer[end])
    return len(ends) + sum(check(value, labels) for value in answer.values())


def test_labels_stand_beside_names_and_change_nothing_else(
    labelled: Served, server: Served, run: Path, labels: dict[str, str]
) -> None:
    entities, relations = names(run, "entities"), names(run, "relations")
    triple = {"head": entities[3], "relation": relations[0], "tail": entities[-1]}
    asked = [
        ("/predict", {**triple, "k": 30}, "tail"),
        ("/predict", {**triple, "k": 30, "exclude_known": True}, "head"),
        ("/predict", triple, "relation"),
        ("/score", triple, None),
        ("/explain", triple, None),
        ("/similar", {"entity": entities[2], "k": 29, "map": True}, None),
        ("/similar", {"relation": relations[1]}, None),
    ]
    for path, words, left_out in asked:
        body = {name: value for name, value in words.items() if name != left_out}
        status, answer = labelled.ask(path, body)
        assert (status, without(answer)) == (200, server.ask(path, body)[1])
        assert check(answer, labels) >= 2
    path = f"/facts?entity={entities[0]}"
    assert without(labelled.ask(path)[1]) == server.ask(path)[1] and check(labelled.ask(path)[1], labels) > 2
    assert "label" not in str(server.ask(path)[1])


def test_one_asks_by_label(labelled: Served, run: Path, labels: dict[str, str]) -> None:
    entities, relations = names(run, "entities"), names(run, "relations")
    by_name = {"head": entities[4], "relation": relations[0], "tail": entities[5]}
    by_label = {end: labels[name] for end, name in by_name.items()}
    for path in ("/score", "/explain"):
        assert labelled.ask(path, by_label) == labelled.ask(path, by_name)
    mixed = [{"head": by_label["head"], "relation": relations[0]}, {"head": entities[4], "relation": by_label["relation"]}]
    status, answer = labelled.ask("/predict", {"questions": mixed})
    assert status == 200 and answer["results"][0] == answer["results"][1]
    word = urllib.parse.quote(labels[entities[4]])
    assert labelled.ask(f"/facts?entity={word}") == labelled.ask(f"/facts?entity={entities[4]}")
    assert labelled.ask(f"/similar?entity={word}") == labelled.ask(f"/similar?entity={entities[4]}")
    assert labelled.ask("/similar", {"relation": "is like"}) == labelled.ask("/similar", {"relation": relations[0]})
    # a name goes before a label that is the same
    assert labelled.ask(f"/facts?entity={entities[0]}")[1]["entity_label"] == labels[entities[0]]


def test_a_label_of_several_and_an_unknown_one_are_refused(labelled: Served, run: Path) -> None:
    entities = names(run, "entities")
    status, answer = labelled.ask("/facts?entity=the%20same")
    assert status == 409 and answer["error"] == "2 entities have the label 'the same': name one of them"
    assert answer["near"] == [entities[-7], entities[-6]]
    status, answer = labelled.ask("/similar", {"entity": "thing 3 <b>ω"})
    assert status == 404 and entities[3] in answer["near"]
    for odd in ("\ud800", "", "\0"):
        assert labelled.ask("/similar", {"entity": odd})[0] == 404


def test_completion_finds_labels(labelled: Served, run: Path, labels: dict[str, str]) -> None:
    entities = names(run, "entities")
    status, answer = labelled.ask("/entities?q=thing%202&k=20")
    assert status == 200 and entities[2] in answer["names"]
    assert answer["labels"] == [labels.get(name) for name in answer["names"]]
    assert labelled.ask("/entities?q=the%20same")[1]["names"] == [entities[-7], entities[-6]]
    assert labelled.ask("/entities?q=is%20l&kind=relation")[1] == {"names": names(run, "relations")[:1], "labels": ["is like"]}
    assert len(labelled.ask("/entities?q=&k=20")[1]["labels"]) == 20
    assert labelled.ask(f"/entities?q={entities[6]}")[1]["names"][0] == entities[6]


def test_labels_that_come_or_change_are_taken_over(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    first = names(run, "entities")[0]
    with served(copy) as server:
        assert "entity_label" not in server.ask(f"/facts?entity={first}")[1]
        for label in ("one", "other"):
            (tmp_path / "new").write_text(f"{first}\t{label}\n")
            (tmp_path / "new").rename(copy / LABELS)
            until(lambda label=label: server.ask(f"/facts?entity={first}")[1].get("entity_label") == label)
        (tmp_path / "new").write_text("no line of labels\n")
        (tmp_path / "new").rename(copy / LABELS)
        time.sleep(0.3)
        assert server.ask("/facts?entity=other")[1]["entity"] == first, "a damaged file is not taken over"
