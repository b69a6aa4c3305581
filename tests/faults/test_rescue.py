"""What was trained on one machine is saved, whatever goes wrong in the course or at the end of it."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kgdist.cli import train as train_command
from kgdist.runs import checkpoint
from tests.faults.commands import FOREVER, Command, train_flags, until

pytestmark = pytest.mark.timeout(120)
FULL = 700  # bytes that a file may have: more than a list of names takes, less than the entities
HURRY = "from kgdist.runtime import course; course.AGAIN = 0.2\n"
BREAKS = """
from kgdist.training.loop import Trainer
step = Trainer.step
def breaks(self, number):
    if number == 30:
        raise {}
    return step(self, number)
Trainer.step = breaks
"""


@contextlib.contextmanager
def training(root: Path, *words: str, before: str = "") -> Iterator[Command]:
    """A kgdist-train on a small graph; it is ended with the block."""
    command = Command(train_flags(root, *words), before)
    try:
        yield command
    finally:
        command.close()


def limit(command: Command, size: int) -> None:
    """A full disk for all files that are larger than `size` bytes (-1: none are)."""
    resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def entities(run: Path) -> np.ndarray:
    return np.load(run / "toy_TransE_l2_entity.npy", allow_pickle=False)


def errors(command: Command) -> list[str]:
    return [line for line in command.err if line.startswith("error: ")]


@pytest.mark.parametrize("workers", [(), ("--num_proc", "2", "--worker", "thread")])
def test_an_error_in_the_midst_of_training(tmp_path: Path, workers: tuple[str, ...]) -> None:
    with training(tmp_path, *workers, "--max_step", FOREVER, before=BREAKS.format("OSError('a broken library')")) as command:
        assert command.ends() == 1
        assert any("a broken library" in line for line in command.err)
        steps = checkpoint.latest(command.folder).meta["steps"]
        assert 30 in steps and max(steps) == 30
        saved = f"what was trained is saved at step {min(steps)}; go on with: kgdist-train --resume {command.folder}"
        assert saved in command.out
        assert train_command.main(["--resume", str(command.folder), "--max_step", "40"]) == 0


def test_what_diverges_does_not_replace_a_checkpoint(tmp_path: Path) -> None:
    broken = BREAKS.format("__import__('kgdist.base.errors').base.errors.Diverged('the loss became nan')")
    with training(tmp_path, "--checkpoint_interval", "10", "--max_step", FOREVER, before=broken) as command:
        assert command.ends() == 1
        assert errors(command) == ["error: the loss became nan"]
        assert [step for step, _ in checkpoint.numbered(command.folder)] == [30, 20]


def test_rows_that_are_no_numbers_do_not_replace_a_checkpoint(tmp_path: Path) -> None:
    broken = BREAKS.format("self.tables.rows['entity'].fill_(float('nan')).isnan().all() and RuntimeError('broken')")
    with training(tmp_path, "--checkpoint_interval", "10", "--max_step", FOREVER, before=broken) as command:
        assert command.ends() == 1
        assert (
            "ERROR: entity holds numbers that are not finite, so nothing is saved; the last checkpoint is as it was"
            in command.err
        )
        assert [step for step, _ in checkpoint.numbered(command.folder)] == [30, 20]


@pytest.mark.slow
def test_a_full_disk_at_the_end_waits_for_room(tmp_path: Path) -> None:
    """First for the checkpoint; one that finds none does not keep the embeddings from being tried; then for these."""
    with training(tmp_path, "--max_step", "2000", before=HURRY) as command:
        command.trains()
        limit(command, FULL)
        command.prints(
            r"WARNING: .*ckpt-2000: cannot be written \(File too large\).*; the embeddings are kept in memory: another try"
        )
        command.prints(r"WARNING: .*ckpt-2000: cannot be written", times=3)
        limit(command, -1)
        assert command.ends() == 0
        assert checkpoint.latest(command.folder).step == 2000 and entities(command.folder).shape == (30, 8)


@pytest.mark.parametrize("stopped", [False, True])
def test_embeddings_find_room_where_a_checkpoint_does_not(tmp_path: Path, stopped: bool) -> None:
    """At the end and at a signal. The manifest of Adam's eight files is larger than the entities' file."""
    hurry = HURRY + "course.PATIENCE = 0.5"
    with training(tmp_path, "--optimizer", "adam", "--max_step", FOREVER if stopped else "300", before=hurry) as command:
        command.prints("run folder")
        limit(command, 128 + 30 * 8 * 4)
        if stopped:
            command.trains()
            command.signal(signal.SIGTERM)
        assert command.ends() == (1 if stopped else 0)
        words = "the embeddings of step" if stopped else "the embeddings themselves may find room"
        assert any("manifest.json: cannot be written (File too large)" in line and words in line for line in command.err)
        assert checkpoint.numbered(command.folder) == [] and entities(command.folder).shape == (30, 8)


@pytest.mark.parametrize("again", [False, True])
def test_a_stop_without_any_room_waits_for_it_or_for_another_ctrl_c(tmp_path: Path, again: bool) -> None:
    """Nothing was saved before, so all that was trained would be lost."""
    with training(tmp_path, "--max_step", FOREVER, "--checkpoint_interval", "0", before=HURRY) as command:
        command.trains()
        limit(command, FULL)
        command.signal(signal.SIGINT)
        command.prints(r"saving at step \d+; another Ctrl-C quits without saving")
        command.prints("WARNING: nothing of this training is saved yet: make room, or press Ctrl-C again")
        command.prints("WARNING: .*another try in")
        if again:
            command.signal(signal.SIGINT)
            assert command.ends() == 130
            lost = "what was not saved is lost; no checkpoint was written, so there is nothing to go on from"
            assert any(lost in line for line in command.err)
            return
        limit(command, -1)
        assert command.ends() == 130
        assert any("go on with: kgdist-train --resume" in line for line in command.out)
        assert checkpoint.latest(command.folder).step > 0


LATE = """
import os, signal
from kgdist.runs import checkpoint
save = checkpoint.save
def late(folder, step, *rest, **more):
    if step == 300 and "name" not in more:
        os.kill(os.getpid(), signal.SIGTERM)
    return save(folder, step, *rest, **more)
checkpoint.save = late
"""


def test_a_signal_while_the_last_checkpoint_is_written_does_not_keep_other_rows_than_the_best(tmp_path: Path) -> None:
    words = ("--valid", "--eval_interval", "50", "--max_step", "300", "--checkpoint_interval", "0", "--lr", "1.0")
    with training(tmp_path, *words, before=LATE) as command:
        assert command.ends() == 130 and any("interrupted at step 300; go on with: " in line for line in command.out)
        assert not (command.folder / "toy_TransE_l2_entity.npy").exists()
        folder = command.folder
    best = checkpoint.load(folder / "best")
    assert train_command.main(["--resume", str(folder), "--data_path", str(tmp_path / "data")]) == 0
    if best.step != 300:
        np.testing.assert_array_equal(entities(folder), best.arrays["entity"])


@pytest.mark.slow
def test_a_validation_or_test_that_fails_costs_no_embeddings(tmp_path: Path) -> None:
    words = ("--valid", "--eval_interval", "1000", "--test", "--max_step", "1500", "--tensorboard")
    with training(tmp_path, *words) as command:
        command.trains()
        for name in ("valid.json", "test.json"):
            (command.folder / name / "in the way").mkdir(parents=True)
        assert command.ends() == 1
        missed = [line for line in command.err if "valid.json: cannot be written" in line]
        assert len(missed) == 2 and all("the run goes on without it" in line for line in missed)  # after 1000 steps and 1500
        (line,) = errors(command)
        assert "test.json: cannot be written" in line and entities(command.folder).shape == (30, 8)
        assert checkpoint.latest(command.folder).step == 1500


def test_curves_that_cannot_be_written_cost_no_training(tmp_path: Path) -> None:
    with training(tmp_path, "--max_step", FOREVER, "--tensorboard") as command:
        command.trains()
        until("curves", lambda: bool(list((command.folder / "tensorboard").iterdir())))
        limit(command, 200)
        command.prints("WARNING: --tensorboard: .*; curves will end here")
        assert not any("Traceback" in line for line in command.err)
        limit(command, -1)
        command.signal(signal.SIGTERM)
        assert command.ends() == 130
        checkpoint.latest(command.folder)
