"""Training with a graph encoder is a training like any: embeddings that every command reads, checkpoints, best rows, workers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kgdist.cli import preprocess as preprocess_command
from kgdist.cli import train as train_command
from kgdist.options.of_encoders import ENCODERS
from tests.attributes.entities import rows, schema, write_tsv
from tests.cli.graphs import FILES, Bench, embeddings, grid_splits, metrics, random_splits, state


def words(encoder: str, *more: str) -> list[str]:
    """A training of DistMult with this encoder, small."""
    heads = ["--num_heads", "2"] if encoder == "gat" else ["--num_bases", "2"] if encoder == "rgcn" else []
    return ["--model_name", "DistMult", "--encoder", encoder, "--encoder_dim", "6", *heads, *more]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_embeddings_are_what_the_encoder_makes(bench: Bench, encoder: str) -> None:
    run = bench.train(*words(encoder, "--test"))
    again = bench.train(*words(encoder, "--test"))
    made = embeddings(run)
    assert set(made) == {"entity", "relation"} and made["entity"].shape == (30, 8) and np.isfinite(made["entity"]).all()
    assert metrics(run) == metrics(again) and all(np.array_equal(made[name], embeddings(again)[name]) for name in made)
    tested = metrics(run)
    assert bench.eval(run) == tested


def test_a_resumed_training_is_the_one_that_was_not_interrupted(bench: Bench) -> None:
    whole = bench.train(*words("rgcn"))
    part = bench.train(*words("rgcn"), "--max_step", "10")
    bench.resume(part, "--max_step", "20")
    assert state(whole) == state(part)
    assert "was trained with" in bench.resume_refused(part, "--max_step", "30", "--num_layers", "1")


@pytest.mark.parametrize(("workers", "later"), [(["--worker", "thread"], "2"), (["--worker", "process"], "1")])
@pytest.mark.slow
def test_several_workers_share_the_weights(bench: Bench, workers: list[str], later: str) -> None:
    run = bench.train(*words("rgcn", "--num_proc", "2", "--test"), *workers)
    alone = bench.train(*words("rgcn", "--lr", "1e-9", "--encoder_lr", "1e-9"))
    moved = np.abs(embeddings(run)["entity"] - embeddings(alone)["entity"]).max()
    assert np.isfinite(moved) and moved > 0.01
    bench.resume(run, "--max_step", "30", "--num_proc", later)


def test_the_best_rows_come_back_with_the_weights_that_made_them(bench: Bench) -> None:
    train, valid, _ = random_splits()
    bench.use([train, valid, valid])
    more = [
        "--valid",
        "--eval_interval",
        "5",
        "--early_stop_patience",
        "1",
        "--max_step",
        "2000",
        "--lr",
        "0.5",
        "--encoder_lr",
        "0.3",
    ]
    run = bench.train(*words("sage", *more))
    curve = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ranks = [row["mrr"] for row in curve if row["kind"] == "valid"]
    assert ranks[-1] < max(ranks)  # it ended behind the best
    assert bench.eval(run)["all"]["realistic"]["mrr"] == max(ranks)


def test_what_can_be_told_by_neighbours_is_learned(bench: Bench) -> None:
    """Ways back on a grid: with the inverse of its edge among the messages' relations, the answer is one hop away."""
    bench.use(grid_splits())
    more = ["--max_step", "300", "--lr", "0.1", "--gamma", "8", "--dropout", "0", "--batch_size", "64", "-adv", "--test"]
    learned = metrics(bench.train(*words("rgcn", *more, "--hidden_dim", "16", "--encoder_dim", "16")))["all"]["realistic"]["mrr"]
    untrained = metrics(bench.train(*words("rgcn", *more, "--max_step", "1")))["all"]["realistic"]["mrr"]
    assert learned > 0.35 > untrained


def names_of(bench: Bench) -> list[str]:
    lines = [line for file in FILES for line in (bench.data / file).read_text().splitlines()]
    return sorted({name for line in lines for name in line.split("\t")[::2]})


def attributes(bench: Bench, names: list[str], out: Path, *source: str) -> None:
    table = [row | {"entity": name} for row, name in zip(rows(len(names)), names, strict=True)]
    path = write_tsv(bench.root / f"{out.name}.tsv", table)
    wanted = ["--entities", str(path), "--schema", str(schema(bench.root)), "--out", str(out)]
    assert preprocess_command.main([*wanted, *source]) == 0


def test_entities_begin_with_their_attributes(bench: Bench) -> None:
    names, folder = names_of(bench), bench.root / "features"
    attributes(bench, names[:20], folder, *bench.source())
    run = bench.train(*words("sage", "--attributes", str(folder), "--test"))
    plain = bench.train(*words("sage"))
    assert not np.array_equal(embeddings(run)["entity"], embeddings(plain)["entity"])
    part = bench.train(*words("sage", "--attributes", str(folder)), "--max_step", "10")
    bench.resume(part, "--max_step", "20")
    assert state(run) == state(part)
    attributes(bench, names[19::-1], folder, *bench.source(), "--force")  # those of one now are those of another
    line = bench.refused(train_command.main, ["--resume", str(part), "--max_step", "30"])
    assert f"--attributes: {folder} holds other features than {part} was trained with; name those" in line


def test_attributes_of_others_are_refused(bench: Bench) -> None:
    names = names_of(bench)
    few, other = bench.root / "few", bench.root / "other"
    attributes(bench, names[:20], few)
    attributes(bench, names[::-1], other)
    made = "make it by kgdist-preprocess with the data options of this training"
    said = bench.train_refused(*words("sage", "--attributes", str(few)))
    assert said == f"error: --attributes: {few} is of 20 entities, and toy has 30; {made}"
    said = bench.train_refused(*words("sage", "--attributes", str(other)))
    assert f"is of other entities than toy, or has them in another order; {made}" in said
    assert "manifest.json" in bench.train_refused(*words("sage", "--attributes", str(bench.data)))


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--encoder", "gat", "--num_heads", "3"], "error: --num_heads: 3 heads cannot divide 64 numbers evenly"),
        (["--encoder", "rgcn", "--relation_blocks"], "error: --num_bases: no 16 equal blocks can be made of 64 and 8 numbers"),
    ],
)
def test_sizes_that_cannot_be_are_refused_before_anything_is_written(bench: Bench, more: list[str], line: str) -> None:
    assert bench.train_refused("--model_name", "DistMult", *more) == line
