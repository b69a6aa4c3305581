"""A training whose words nobody takes: it goes on, saves, and ends as if they had been read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kgdist.cli import train as train_command
from kgdist.runs import checkpoint
from kgdist.runtime.processes.forkserver import environment
from tests.faults.commands import LIMIT, train_flags

pytestmark = pytest.mark.timeout(120)
# Three lines a step of 60 bytes and more: 600 of them are more than a pipe or a terminal holds.
WORDS = ("--max_step", "600", "--log_interval", "1", "--test")
SHELL = ("bash", "-c")


def shell(script: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a script in which "$@" is kgdist-train with these words."""
    command = [*SHELL, script, "bash", sys.executable, "-m", "kgdist.cli.train", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment(1), check=False)


def saved(root: Path) -> Path:
    """The run folder: all steps are saved, the embeddings and the test, too."""
    (run,) = (root / "ckpts").iterdir()
    assert checkpoint.latest(run).step == 600
    assert np.load(run / "toy_TransE_l2_entity.npy").shape == (30, 8) and (run / "test.json").exists()
    return run


@pytest.mark.parametrize(
    "script",
    [
        '"$@" <&- >&- 2>&-',
        pytest.param('"$@" > /dev/full 2>&1', marks=pytest.mark.slow),
        'set -o pipefail; "$@" | head -1 > /dev/null',
    ],
)
@pytest.mark.slow
def test_stdout_that_is_closed_or_full_or_not_read(tmp_path: Path, script: str) -> None:
    done = shell(script, train_flags(tmp_path, *WORDS, "--num_proc", "2"))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    saved(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
def test_output_that_nobody_ever_reads(tmp_path: Path, terminal: bool) -> None:
    """A pipe, and a terminal with a bar: both are open and take nothing once they are full."""
    ours, theirs = os.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "kgdist.cli.train", *train_flags(tmp_path, *WORDS)]
    process = subprocess.Popen(
        command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment(1) | {"TERM": "xterm"}
    )
    try:
        os.close(theirs)
        assert process.wait(LIMIT) == 0
        assert os.read(ours, 100).startswith(b"toy: 30 entities")
    finally:
        process.kill()
        process.wait(10)
        os.close(ours)
    saved(tmp_path)


@pytest.mark.slow
def test_an_object_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """With --json the object is what was asked for, and it waits for its reader; all is saved nevertheless."""
    words = train_flags(tmp_path, *WORDS, "--json", "--quiet")
    done = shell('"$@" > /dev/full', words)
    assert (
        done.returncode == 1 and done.stderr.splitlines()[-1] == "error: the output cannot be written (No space left on device)"
    )
    run = saved(tmp_path)
    assert shell('"$@" >&-', ["--resume", str(run), "--json"]).returncode == 1
    shown = shell('"$@" | (sleep 0.1; cat)', ["--resume", str(run), "--json", "--test"]).stdout
    assert json.loads(shown)["run"] == str(run)


@pytest.mark.slow
def test_answers_that_cannot_be_written_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_command.main(train_flags(tmp_path, "--max_step", "20", "--quiet")) == 0
    (run,) = (tmp_path / "ckpts").iterdir()
    for name, words in (("predict", ["--head", "e1", "--relation", "r1"]), ("eval", [])):
        script = f'"$1" -m kgdist.cli.{name} "${{@:4}}" > /dev/full'
        done = shell(script, [str(run), "--quiet", *words])
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1] == "error: the output cannot be written (No space left on device)"
