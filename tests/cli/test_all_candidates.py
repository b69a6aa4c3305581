"""kgdist-train against all entities: repeatable and resumable bit for bit by any number of threads, and told before it starts."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kgdist.options import parse
from kgdist.runtime import estimate
from tests.cli.graphs import Bench, embeddings, metrics, state

SMALL = "--hidden_dim 8 --gamma 4 --batch_size 16 --lr 0.1 --max_step 20 --log_interval 10 --candidates all".split()
OBJECTIVES = {
    "the recipe": "--model_name ComplEx --loss_genre Softmax --reciprocal --regularizer n3 -rc 1e-2 --optimizer adagrad",
    "matrices": "--model_name RESCAL --loss_genre Softmax --reciprocal --regularizer dura -rc 1e-2 --entity_dropout .1",
    "sets": "--model_name DistMult --k_vs_all --loss_genre BCE --label_smoothing .1 --optimizer adam",
    "distances": "--model_name TransE_l1 --loss_genre Softmax --relation_loss 0.5",
    "angles": "--model_name RotatE --loss_genre Logsigmoid --relation_dropout .1",
}


class Full(Bench):
    """The bench with all entities as candidates."""

    def flags(self, *words: str) -> list[str]:
        return [*self.source(), "--save_path", str(self.ckpts), *SMALL, *words]


@pytest.fixture
def full(bench: Bench) -> Full:
    return Full(bench.root, bench.capsys)


@pytest.mark.parametrize("words", OBJECTIVES.values(), ids=OBJECTIVES)
def test_a_seed_repeats_itself_by_any_threads_and_resuming_changes_nothing(full: Full, words: str) -> None:
    options = [*words.split(), "--seed", "1", "--test"]
    first = full.train(*options, "--num_thread", "1")
    once, asked = state(first), metrics(first)
    again = full.train(*options, "--num_thread", "1")
    assert once["step"] == b"20" and once == state(again)
    assert asked["all"] == full.eval(first)["all"], "kgdist-eval finds what the training has found"
    full.resume(first, "--max_step", "40")
    assert state(first)["step"] == b"40" and state(first) == state(full.train(*options, "--num_thread", "1", "--max_step", "40"))
    mine, others = embeddings(again), embeddings(full.train(*options, "--num_thread", "3"))
    for name, rows in mine.items():
        np.testing.assert_allclose(rows, others[name], rtol=1e-4, atol=1e-5)


def test_processes_become_threads_and_it_is_said(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "--num_thread 2: with --candidates all one process trains, whose threads share the entities"
    full.train("--model_name", "ComplEx", "--loss_genre", "Softmax", "--num_proc", "2")
    assert said in full.out()
    monkeypatch.setattr(parse, "usable_cores", lambda: 2)
    full.train("--model_name", "ComplEx", "--loss_genre", "Softmax", "--seed", "3")
    assert said in full.out(), "as many as there are cores, unless the user says otherwise"
    full.train("--model_name", "ComplEx", "--loss_genre", "Softmax", "--num_thread", "1")
    assert said not in full.out()


def test_more_threads_than_there_can_be_are_refused_by_what_was_given(full: Full) -> None:
    line = full.train_refused("--model_name", "ComplEx", "--loss_genre", "Softmax", "--num_proc", "100", "--num_thread", "50")
    assert line == "error: --num_proc 100 --num_thread 50: with --candidates all one process trains, with 4096 threads at most"


def test_no_more_threads_than_entities_share_them(full: Full) -> None:
    options = ["--model_name", "ComplEx", "--loss_genre", "Softmax", "--num_thread"]
    many, as_many = (embeddings(full.train(*options, threads)) for threads in ("4096", "30"))
    assert all(np.array_equal(many[name], as_many[name]) for name in many)


def test_time_and_memory_are_told_and_a_day_wants_a_word(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--model_name", "ComplEx", "--loss_genre", "Softmax"]
    told = r"20 steps against all 30 entities will take about (\d+|a) \w+( at [\d,]+ GFLOP/s)?, and 0.1 MB of memory"
    run = full.train(*words)
    assert re.search(told, full.out())
    full.resume(run, "--max_step", "30")
    assert "\n10 steps against all 30 entities will take" in full.out(), "those that are left"
    monkeypatch.setattr(estimate, "DAY", 0.0)
    line = full.train_refused(*words)
    assert re.match(f"error: --candidates: {told}.*: add --yes to begin all the same, or take fewer epochs, a smaller", line)
    assert full.runs() == {run}
    assert len({run, full.train(*words, "--yes")}) == 2


@pytest.mark.parametrize(("fast", "model", "said"), [(True, "ComplEx", 1), (False, "ComplEx", 0), (True, "TransE_l1", 0)])
def test_bfloat16_is_named_where_it_would_be_faster(
    full: Full, monkeypatch: pytest.MonkeyPatch, fast: bool, model: str, said: int
) -> None:
    monkeypatch.setattr(estimate.gemm, "fast_on_this_cpu", lambda: fast)
    monkeypatch.setattr(estimate, "WORTH", 0.0)  # this training takes no minute
    full.train("--model_name", model, "--loss_genre", "Softmax")
    assert full.out().count("--compute_dtype bfloat16 would about halve the time on this CPU") == said
