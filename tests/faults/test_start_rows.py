"""Machines that start at rows which the user brings: those of one machine, name by name, however they are divided."""

from __future__ import annotations

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kgdist.base.errors import ProtocolError
from kgdist.kvstore.tables import MemoryTables
from kgdist.runs.opened import open_model
from kgdist.runtime.agent.shard import Shard
from tests.faults.jobs import SMALL, Job, here, refused, workspace

pytestmark = pytest.mark.timeout(180)
STILL = {"lr": "1e-30", "max_step": "1"}


def vectors(space: Path, width: int) -> list[str]:
    """The option for vectors of e0 to e99 and of a stranger, for a graph of e0 to e119."""
    names = [f"e{n}" for n in range(100)] + ["stranger"]
    made = np.random.default_rng(width).normal(size=(len(names), width)) * np.arange(1, width + 1) + 2
    np.save(space / "v.npy", made)
    (space / "n.tsv").write_text("".join(f"{name}\n" for name in names))
    return ["--init_vectors", str(space / "v.npy"), str(space / "n.tsv")]


def alone(space: Path, out: str, *words: str, **options: str) -> Path:
    """A run of one machine on the same graph, or on a train split of one's own."""
    given = SMALL | {"dataset": "toy", "data_path": str(space / "data"), "save_path": str(space / out)} | options
    files = [str(space / "data" / "toy" / f"{split}.tsv") for split in (out, "valid", "test")]
    files[0] = files[0] if Path(files[0]).exists() else str(space / "data" / "toy" / "train.tsv")
    flags = [text for name, value in given.items() for text in (f"--{name}", value)]
    done = here("train", *flags, "--format", "raw_udd_hrt", "--data_files", *files, *words, folder=space)
    assert done.returncode == 0, done.stderr
    (run,) = (space / out).iterdir()
    return run


def rows_of(run: Path) -> dict[str, dict[str, np.ndarray]]:
    """Table -> name -> row."""
    opened = open_model(run)
    return {
        name: dict(zip(opened.row_names(name), opened.tables.rows[name].numpy(), strict=True)) for name in opened.tables.names()
    }


def run_of(space: Path) -> Path:
    """The one that the machines have made."""
    (run,) = (space / "ckpts").iterdir()
    return run


def close(some: dict[str, np.ndarray], others: dict[str, np.ndarray], names: list[str]) -> bool:
    """Whether these rows are equal, but for how sums were rounded."""
    return all(np.allclose(some[name], others[name], rtol=1e-4, atol=1e-6) for name in names)


KNOWN = [f"e{n}" for n in range(100)]


@pytest.mark.slow
@pytest.mark.parametrize("width", [24, 5])
def test_frozen_vectors_are_those_of_one_machine_and_relations_move(space: Path, width: int) -> None:
    given = vectors(space, width)
    expected = rows_of(alone(space, "one", *given, **STILL))
    with Job(space, *given, "--freeze", "entities", "--test", lr="0.1", max_step="60") as job:
        text = job.end(0)
    assert "--init_vectors: 100 of 120 entities start at their vectors" in text and "20 have none and start at random" in text
    assert "1 vector of names that the graph does not have passed over; the first is 'stranger'" in text
    found = rows_of(run_of(space))
    columns = slice(min(width, 16))
    first = [{name: rows["entity"][name][columns] for name in KNOWN} for rows in (found, expected)]
    assert close(first[0], first[1], KNOWN)
    others = np.stack([found["entity"][f"e{n}"] for n in range(100, 120)])
    assert (np.abs(others).max(1) > 0).all() and np.abs(others).max() <= 1 + 1e-6  # the model's own range, (gamma + 2) / dim
    moved = [np.abs(found["relation"][name] - expected["relation"][name]).max() for name in found["relation"]]
    assert min(moved) > 1e-3


@pytest.mark.slow
def test_vectors_are_brought_again_when_a_server_is_lost_before_there_is_a_checkpoint(space: Path) -> None:
    given = vectors(space, 24)
    expected = rows_of(alone(space, "one", *given, **STILL))
    options = {"max_step": "3000", "checkpoint_interval": "100000", "lr": "0.1"}
    with Job(space, *given, "--freeze", "entities", "--max_restarts", "2", **options) as job:
        job.trainer(1)
        job.kill("server-1")
        text = job.end(0)
    assert text.count("100 of 120 entities start at their vectors") == 2
    assert close(rows_of(run_of(space))["entity"], expected["entity"], KNOWN)


SLOWLY = """
import time
import kgdist.data.vectors, kgdist.runtime.cluster.training_attempt as attempt
kgdist.data.vectors._NUMBERS, parts = 24 * 4, attempt.parts_of
def parts_of(*given):
    for block in parts(*given):
        print("a block", flush=True)
        time.sleep(0.2)
        yield block
attempt.parts_of = parts_of
"""


@pytest.mark.slow
def test_vectors_are_brought_again_when_a_server_is_lost_while_they_are_brought(space: Path) -> None:
    given = vectors(space, 24)
    expected = rows_of(alone(space, "one", *given, **STILL))
    with Job(space, *given, "--freeze", "entities", before=SLOWLY, lr="0.1", max_step="60") as job:
        job.until("a block", times=5)
        job.kill("server-1")
        text = job.end(0)
    assert "attempt 2 of 4 follows" in text and text.count("100 of 120 entities start at their vectors") == 1
    assert close(rows_of(run_of(space))["entity"], expected["entity"], KNOWN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "words"), [("ComplEx", ["--reciprocal"]), ("TransR", []), ("RotatE", ["--double_ent"])], ids=str
)
def test_rows_of_another_run_are_those_of_its_names(tmp_path: Path, model: str, words: list[str]) -> None:
    space = workspace(tmp_path, parts=3)
    data = space / "data" / "toy"
    lines = (data / "train.tsv").read_text().splitlines(keepends=True)
    (data / "old.tsv").write_text("".join(line for line in reversed(lines) if "e7\t" not in line and not line.endswith("e7\n")))
    for split in ("valid", "test"):
        kept = [line for line in (data / f"{split}.tsv").read_text().splitlines(keepends=True) if "e7\t" not in line]
        (data / f"{split}.tsv").write_text("".join(line for line in kept if not line.endswith("e7\n")))
    old = alone(space, "old", *words, model_name=model, max_step="40")
    with Job(space, *words, "--init_from", str(old), model_name=model, **STILL) as job:
        text = job.end(0)
    assert "--init_from: 119 of 120 rows of entity taken from" in text
    before, after = rows_of(old), rows_of(run_of(space))
    assert before.keys() == after.keys() and "e7" not in before["entity"] and np.abs(after["entity"]["e7"]).max() > 0
    for table, rows in before.items():
        assert all(np.array_equal(row, after[table][name]) for name, row in rows.items()), table


def test_what_does_not_fit_is_refused_before_anything_is_started(space: Path) -> None:
    (space / "v.txt").write_text("stranger 1 2\n")
    said = refused(space, "--init_vectors", str(space / "v.txt"))
    assert said.endswith("v.txt: has no vector of any entity of this graph; the first is of 'stranger'")
    assert refused(space, "--init_vectors", str(space / "v.txt"), "--dry_run") == said
    assert not (space / "ckpts").exists()


def test_rows_that_have_no_place_on_a_machine_are_no_words_of_ours() -> None:
    tables = MemoryTables.create({"entity": (3, 2)}, "sgd")
    shard = cast(Shard, SimpleNamespace(tables=tables))

    def text(values: Any, dtype: str) -> str:
        return base64.b64encode(np.array(values, dtype).tobytes()).decode()

    rows, values = text([2, 0], "<i8"), text([1, 2], "<f4")
    Shard.bring(shard, "entity", rows, values)
    assert tables.rows["entity"].tolist() == [[2, 0], [0, 0], [1, 0]]
    for wrong in (
        ("other", rows, values),
        ("entity", text([3], "<i8"), values),
        ("entity", text([-1, 0], "<i8"), values),
        ("entity", text([], "<i8"), values),
        ("entity", rows, text([1, 2, 3], "<f4")),
        ("entity", text([0], "<i8"), text([1, 2, 3], "<f4")),
        ("entity", "no base64", values),
    ):
        with pytest.raises(ProtocolError, match="the launcher brings rows that have no place here"):
            Shard.bring(shard, *wrong)
