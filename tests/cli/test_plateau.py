"""`--lr_schedule plateau`, on one machine: a rate that is lowered to nothing leaves the rows as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.graphs import Bench

WORDS = "--valid --eval_interval 5 --max_step 60 --lr 0.5 --lr_schedule plateau --plateau_patience 1".split()
NOTHING = ("--plateau_factor", "1e-30")
ENCODER = "--encoder rgcn --encoder_dim 8 --num_layers 1 --fanout 3 --encoder_lr 0.1 --gamma 4".split()
WAYS = {
    "one process": [],
    "two processes": ["--num_proc", "2"],
    "two threads": ["--num_proc", "2", "--worker", "thread"],
    "an encoder": ["--model_name", "DistMult", *ENCODER],
}


def curve(run: Path) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """(step, MRR) of all validations, and (step, rate) from where it was lowered."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(x["step"], x["mrr"]) for x in lines if x["kind"] == "valid"], [
        (x["step"], x["lr"]) for x in lines if x["kind"] == "rate"
    ]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.slow
def test_training_goes_on_at_the_lower_rate(bench: Bench, way: list[str]) -> None:
    run = bench.train(*way, *WORDS, *NOTHING)
    found, rates = curve(run)
    assert rates, "30 random triples are soon no longer ranked better"
    first, rate = rates[0]
    assert rate == pytest.approx(0.5e-30) and f"the rate is 5e-31 from step {first} on" in bench.out()
    before, after = ({mrr for step, mrr in found if (step >= first) is late} for late in (False, True))
    assert len(before) > 1 and len(after) == 1, "rows were trained, and are no more"
    bench.resume(run, "--max_step", "80", *(["--num_proc", "2"] if "--num_proc" in way else []))
    assert {mrr for step, mrr in curve(run)[0] if step > 60} == after, "nor are they when it goes on"


def test_what_never_lowers_is_refused(bench: Bench) -> None:
    for words, problem in (
        (["--lr_schedule", "plateau"], "--lr_schedule: plateau watches validations; add --valid"),
        (["--plateau_factor", ".1"], "--plateau_factor: goes with --lr_schedule plateau"),
        (
            [*WORDS, "--early_stop_patience", "2"],
            "--early_stop_patience: ends a training before its rate is lowered, after 2 validations; take more",
        ),
    ):
        assert problem in bench.train_refused(*words)


def test_a_run_is_evaluated_without_validations(bench: Bench) -> None:
    run = bench.train("--valid", "--eval_interval", "10", "--lr_schedule", "plateau")
    assert bench.eval(run)["all"]
    assert "plateau watches validations" in bench.resume_refused(run, "--valid=false", "--max_step", "30")
