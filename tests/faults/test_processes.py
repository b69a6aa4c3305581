"""What happens to a training on one machine when its processes, its terminal or its disk fail: real processes, real signals."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kgdist.base.errors import CheckpointError
from kgdist.cli import train as train_command
from kgdist.runs import checkpoint
from kgdist.runtime.interrupt import Interrupts
from tests.cli.graphs import write
from tests.family import alive, descendants
from tests.faults.commands import FOREVER, Command, train_flags, until

Start = Callable[..., Command]


class Workers(NamedTuple):
    flags: tuple[str, ...]
    counts: tuple[int, int]  # workers, and processes besides the command's own


ONE = Workers((), (1, 0))
TWO = Workers(("--num_proc", "2"), (2, 3))  # one forks the others
THREADS = Workers(("--num_proc", "2", "--worker", "thread"), (2, 0))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start kgdist-train on a small graph with these words; it is ended with the test."""
    started: list[Command] = []

    def begin(*words: str) -> Command:
        started.append(Command(train_flags(tmp_path, "--max_step", FOREVER, *words)))
        return started[-1]

    yield begin
    for command in started:
        command.close()


def whole(run: Path) -> int:
    """The step of the newest checkpoint; every checkpoint is whole and nothing lies half written beside them."""
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []
    for _, folder in checkpoint.numbered(run):
        checkpoint.load(folder)
    return checkpoint.latest(run).step


def errors(command: Command) -> list[str]:
    """The lines of stderr that are errors; there is no traceback among them."""
    assert not any("Traceback" in line or "Fatal Python" in line for line in command.err), command.err
    return [line for line in command.err if line.startswith("error: ")]


@pytest.mark.parametrize(("which", "told"), [(-1, "process 1 of 2"), pytest.param(0, "process 0 of 2", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_killed_worker_ends_the_run_with_a_checkpoint(start: Start, which: int, told: str) -> None:
    """The rows are in memory that it did not own. The first is the one that has forked the others."""
    command = start("--num_proc", "2")
    workers = command.trains(2)
    os.kill(workers[which], signal.SIGKILL)
    assert command.ends() == 1
    (line,) = errors(command)
    assert f"{told} was killed by signal SIGKILL" in line
    assert not any(map(alive, workers))
    goes_on(command, "what was trained is saved at step {}; go on with: kgdist-train ")


def goes_on(command: Command, line: str) -> None:
    """The command has saved, said so by this `line` with its step, and what it names goes on and ends well."""
    step = whole(command.folder)
    assert step >= 10
    resume = line.format(step)
    (words,) = [line.removeprefix(resume).split() for line in command.out if line.startswith(resume)]
    assert words == ["--resume", str(command.folder)]
    # One of two processes may be far ahead of the other; both have steps left up to here.
    last = max(checkpoint.latest(command.folder).meta["steps"]) + 10
    assert train_command.main([*words, "--max_step", str(last)]) == 0
    assert whole(command.folder) == last and (command.folder / "toy_TransE_l2_entity.npy").exists()


@pytest.mark.long
def test_a_worker_that_does_nothing_holds_up_no_end(start: Start) -> None:
    """It has half a minute to end its step, and is ended where it is then."""
    command = start("--num_proc", "2")
    workers = command.trains(2)
    os.kill(workers[-1], signal.SIGSTOP)
    command.signal(signal.SIGINT)
    assert command.ends() == 130
    assert any("process 1 of 2 has made no step for 30 s" in line for line in command.err)
    assert not any(map(alive, workers)) and errors(command) == []
    goes_on(command, "interrupted at step {}; go on with: kgdist-train ")


def test_workers_do_not_outlive_a_killed_parent(start: Start) -> None:
    command = start("--num_proc", "2")
    workers = command.trains(2)
    os.kill(command.pid, signal.SIGKILL)
    assert until("the workers are gone", lambda: not any(map(alive, workers)), limit=10) < 2
    command.ends()
    assert errors(command) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "number", "group"),
    [
        (ONE, signal.SIGINT, True),
        (ONE, signal.SIGTERM, False),
        (TWO, signal.SIGINT, False),
        (TWO, signal.SIGINT, True),
        (THREADS, signal.SIGINT, True),
        (THREADS, signal.SIGTERM, False),
        (ONE, signal.SIGHUP, True),
        (TWO, signal.SIGHUP, True),
    ],
)
def test_a_signal_ends_the_run_with_a_checkpoint(start: Start, workers: Workers, number: signal.Signals, group: bool) -> None:
    command = start(*workers.flags)
    pids = command.trains(*workers.counts)
    command.signal(number, group=group)
    assert command.ends() == 130
    assert not any(map(alive, pids)) and errors(command) == []
    goes_on(command, "interrupted at step {}; go on with: kgdist-train ")


@pytest.mark.slow
def test_what_systems_send_twice_still_saves(start: Start) -> None:
    """A terminal that is closed sends SIGHUP, and so does its shell; a scheduler SIGTERM, and so does the script that gets it."""
    command = start("--num_proc", "2")
    command.trains(2)
    command.signal(signal.SIGHUP, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM)
    assert command.ends() == 130
    assert whole(command.folder) >= 10


def test_a_hangup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.asked
        signal.signal(signal.SIGHUP, lambda number, frame: None)
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.asked
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [ONE, TWO, THREADS])
def test_a_run_that_is_killed_goes_on_at_a_checkpoint_by_the_clock(start: Start, workers: Workers) -> None:
    """Nobody has asked for the step; several workers stand still wherever they are, and the numbers of their steps are kept."""
    command = start(*workers.flags, "--checkpoint_interval", "0.001m", "--force_sync_interval", "1000000")
    until("two checkpoints", lambda: "run folder" in "".join(command.out) and len(checkpoint.numbered(command.folder)) > 1)
    os.kill(command.pid, signal.SIGKILL)
    command.ends()
    steps = checkpoint.latest(command.folder).meta["steps"]
    assert len(steps) == workers.counts[0] and min(steps) == checkpoint.latest(command.folder).step
    last = max(steps) + 10
    assert train_command.main(["--resume", str(command.folder), "--max_step", str(last)]) == 0
    assert whole(command.folder) == last


@pytest.mark.slow
@pytest.mark.parametrize("workers", [ONE, TWO, THREADS])
def test_two_signals_end_the_run_at_once(start: Start, workers: Workers) -> None:
    command = start(*workers.flags)
    pids = command.trains(*workers.counts)
    command.signal(signal.SIGINT, signal.SIGTERM)
    assert command.ends() == 130
    assert command.err[-1] == "interrupted" and errors(command) == []
    assert not any(map(alive, pids)) and checkpoint.numbered(command.folder) == []


def test_a_signal_without_anything_to_save(start: Start) -> None:
    command = start("--no_save_emb")
    command.trains()
    command.signal(signal.SIGINT)
    assert command.ends() == 130
    assert command.out[-1] == "interrupted; nothing was saved, because of --no_save_emb"
    with pytest.raises(CheckpointError):
        whole(command.folder)


def test_a_signal_in_the_midst_of_validation(start: Start, tmp_path: Path) -> None:
    train_flags(tmp_path)
    many = [(f"e{n % 3000}", "r1", f"e{(7 * n + n // 3000) % 3000}") for n in range(60000)]
    write(tmp_path / "data" / "valid.tsv", many)  # many seconds, with candidates drawn for each triple
    command = start("--valid", "--eval_interval", "10", "--neg_sample_size_eval", "50", "--batch_size_eval", "1")
    command.trains()
    time.sleep(0.5)
    assert not any("(20/" in line for line in command.out)
    command.signal(signal.SIGINT)
    assert command.ends() == 130
    assert errors(command) == [] and whole(command.folder) == 10 and not (command.folder / "valid.json").exists()


def limit_files(pid: int, size: int) -> None:
    """Let no file of process `pid` grow beyond `size` bytes (-1: any size): a full disk for whatever is larger."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits the files of another process")
def test_a_full_disk(start: Start) -> None:
    command = start("--checkpoint_interval", "200", "--valid", "--eval_interval", "500")
    until("a checkpoint", lambda: "run folder" in "".join(command.out) and bool(checkpoint.numbered(command.folder)))
    limit_files(command.pid, 600)  # bytes; the entities alone take more
    command.prints(r"WARNING: .*ckpt-\d+: cannot be written \(File too large\); the previous checkpoint is unchanged; training")
    command.prints(r"WARNING: .*(best|valid\.json): cannot be written .*training goes on")
    command.signal(signal.SIGSTOP)  # not to look while an attempt is under way
    before = whole_but_attempts(command.folder)
    command.signal(signal.SIGCONT)
    limit_files(command.pid, -1)
    until("checkpoints are written again", lambda: checkpoint.numbered(command.folder)[0][0] > before)
    limit_files(command.pid, 600)
    command.signal(signal.SIGINT)
    assert command.ends() == 1
    (line,) = errors(command)
    assert "cannot be written (File too large); the previous checkpoint is unchanged" in line
    assert whole(command.folder) > before


def whole_but_attempts(run: Path) -> int:
    """As `whole`, while the process stands still, maybe in the midst of an attempt."""
    for _, folder in checkpoint.numbered(run):
        checkpoint.load(folder)
    return checkpoint.latest(run).step


def test_a_run_folder_that_goes_away(start: Start) -> None:
    command = start("--checkpoint_interval", "300")
    until("a checkpoint", lambda: "run folder" in "".join(command.out) and bool(checkpoint.numbered(command.folder)))
    moved = command.folder.with_name("moved")
    command.folder.rename(moved)
    command.prints("WARNING: .*training goes on")
    command.signal(signal.SIGINT)
    assert command.ends() == 1
    (line,) = errors(command)
    assert "cannot be written (No such file or directory)" in line and str(command.folder) in line
    checkpoint.latest(moved)


def test_a_read_only_run_folder(start: Start) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    command = start()
    command.trains()
    command.folder.chmod(0o500)
    command.signal(signal.SIGINT)
    try:
        assert command.ends() == 1
    finally:
        command.folder.chmod(0o700)
    (line,) = errors(command)
    assert "cannot be written (Permission denied)" in line


def test_a_small_disk(start: Start, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    tool = shutil.which("mount")
    if tool is None or subprocess.run([tool, "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        command = start("--save_path", str(disk), "--checkpoint_interval", "300")
        until("a checkpoint", lambda: "run folder" in "".join(command.out) and bool(checkpoint.numbered(command.folder)))
        with pytest.raises(OSError, match="No space left"), (disk / "other").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        command.prints("WARNING: .*not enough disk space.*; what was there before is unchanged; training goes on")
        command.signal(signal.SIGINT)
        assert command.ends() == 1
        assert re.search("not enough disk space", *errors(command))
        assert whole(command.folder) >= 300
    finally:
        subprocess.run(["umount", "-l", disk], check=True, timeout=10)


def test_commands_have_no_children_left() -> None:
    assert descendants(os.getpid()) == []
