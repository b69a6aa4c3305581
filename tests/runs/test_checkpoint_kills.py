"""A process that is killed while it writes a checkpoint, at any moment, leaves one that is whole, and nothing else for long."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kgdist.base.errors import KgdistError
from kgdist.options.config import Config
from kgdist.runs import checkpoint
from kgdist.runtime.agent.shard import Shard

ARRAYS = {"entity": np.arange(12, dtype=np.float32).reshape(4, 3)}
on_linux = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="this system has no /proc to look into")

# os.rename is what Path.rename calls, but has taken at its definition in Python 3.10.
DEADLY: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (Path, ("rename", "mkdir")),
    (os, ("replace", "fsync", "fdatasync", "unlink", "rmdir")),
)


def save(run: Path, number: int, step: int = 1, name: str | None = None) -> Path:
    return checkpoint.save(run, step, {"entity": np.full((4, 3), number, np.float32)}, {"n": number}, name=name)


def killed(run: Path, name: str | None, step: int, last: int) -> bool:
    """Whether a process that saves, a fork of this one, was killed before call `last` of all that changes a folder or waits
    for the disk."""
    child = os.fork()
    if child == 0:
        try:
            calls = itertools.count(1)
            for module, names in DEADLY:
                for function in names:
                    setattr(module, function, deadly(getattr(module, function), calls, last))
            save(run, 2, step, name)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def deadly(call: Callable[..., Any], calls: Iterator[int], last: int) -> Callable[..., Any]:
    """`call`, before which the process is killed if it is call number `last`."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)

    return counted


def hidden(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir() if path.name.startswith("."))


@pytest.fixture
def living() -> Iterator[subprocess.Popen[bytes]]:
    """Another process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "step"), [(None, 1), (None, 2), ("best", 1)])
def test_killed_at_any_moment(tmp_path: Path, name: str | None, step: int) -> None:
    """The only checkpoint is replaced (step 1) or gets one after it (step 2)."""
    for last in range(1, 100):
        run = tmp_path / str(last)
        run.mkdir()
        before = save(run, 1, name=name)
        over = not killed(run, name, step, last)
        checkpoint.sweep(run)
        assert hidden(run) == []
        if name is None:
            found = checkpoint.latest(run)
            assert found.meta["n"] == found.step if step == 2 else found.meta["n"] in (1, 2)
        found = checkpoint.load(before if step == 1 else run / f"ckpt-{found.step}")
        assert (found.arrays["entity"] == found.meta["n"]).all()
        if over:
            assert found.meta["n"] == 2 and last > 10
            return
    raise AssertionError("it was killed every time")


@pytest.mark.parametrize("kind", ["tmp", "old"])
def test_what_a_process_of_the_same_number_has_left_is_in_nobodys_way(tmp_path: Path, kind: str) -> None:
    """In containers every training may be number 7."""
    save(tmp_path, 0, name="best")
    left = tmp_path / f".best.{os.getpid()}.{kind}"
    left.mkdir()
    (left / "entity.npy").write_bytes(b"half")
    for number in (1, 2, 3):
        save(tmp_path, number, name="best")
    assert checkpoint.load(tmp_path / "best").meta == {"n": 3}
    checkpoint.sweep(tmp_path)
    assert hidden(tmp_path) == []


@on_linux
def test_what_a_living_process_writes_is_left_alone(tmp_path: Path, living: subprocess.Popen[bytes]) -> None:
    pid, began = living.pid, checkpoint._began(living.pid)
    assert began and began.isdigit()
    names = [f".ckpt-9.{pid}.tmp", f".ckpt-8.{pid}-{began}-0123abcd.tmp"]
    save(tmp_path, 1, name="best").rename(tmp_path / f".best.{pid}-{began}-0123abcd.old")  # between two renames
    names.append(f".best.{pid}-{began}-0123abcd.old")
    used_again = tmp_path / f".ckpt-7.{pid}-{int(began) - 1}-0123abcd.tmp"  # by one that began before it
    for path in (*(tmp_path / name for name in names), used_again):
        path.mkdir(exist_ok=True)
    checkpoint.sweep(tmp_path)
    assert hidden(tmp_path) == sorted(names)
    living.kill()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # ended, but its parent has not taken notice
    checkpoint.sweep(tmp_path)
    assert hidden(tmp_path) == [] and checkpoint.load(tmp_path / "best").meta == {"n": 1}


def test_the_newest_that_is_whole_is_put_back(tmp_path: Path) -> None:
    pid = os.getpid()
    for number, kind in enumerate(("1.tmp", "2.old", "3.old", "4.tmp", "5.tmp")):
        left = save(tmp_path, number, name="best").rename(tmp_path / f".best.{pid}-{kind.replace('.', '-0123abcd.')}")
        os.utime(left, (number, number))
        if number > 2:
            (left / "entity.npy").write_bytes((left / "entity.npy").read_bytes()[:-1] + b"?")
    os.utime(left, (9, 9))
    checkpoint.sweep(tmp_path)
    assert hidden(tmp_path) == [] and checkpoint.load(tmp_path / "best").meta == {"n": 2}


def test_what_was_replaced_is_not_removed_where_nothing_is_whole(tmp_path: Path) -> None:
    for kind in ("tmp", "old"):
        left = save(tmp_path, 1).rename(tmp_path / f".ckpt-1.{os.getpid()}-1-0123abcd.{kind}")
        (left / "manifest.json").write_text("{")
    checkpoint.sweep(tmp_path)
    assert hidden(tmp_path) == [f".ckpt-1.{os.getpid()}-1-0123abcd.old"]


def test_other_peoples_hidden_folders_and_files_stay(tmp_path: Path) -> None:
    names = [".git", ".cache.1.tmp", ".ckpt-1.x.tmp", ".best.1.tmp.tmp", ".ckpt-1.99999999.bak"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".ckpt-2.99999999.tmp").write_text("a file")
    checkpoint.sweep(tmp_path)
    assert hidden(tmp_path) == sorted([*names, ".ckpt-2.99999999.tmp"])


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("again", [False, True])
def test_a_rename_that_fails(tmp_path: Path, error: BaseException, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one has its name back; where that fails as well (`again`), it is said where it is."""
    save(tmp_path, 1, name="best")
    rename = Path.rename

    def fails(self: Path, target: Path) -> Any:
        if self.suffix == ".tmp":
            raise error
        if self.suffix == ".old" and again:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    words = r"is whole in .*\.old; it gets its name back when the run is resumed" if again else r"checkpoint is unchanged"
    if isinstance(error, OSError):
        with pytest.raises(KgdistError, match=rf"best: cannot be written \(Input/output error\); the previous .*{words}"):
            save(tmp_path, 2, name="best")
    else:
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2, name="best")
    monkeypatch.undo()
    assert len(hidden(tmp_path)) == again
    checkpoint.sweep(tmp_path)
    assert hidden(tmp_path) == [] and checkpoint.load(tmp_path / "best").meta == {"n": 1}


def test_a_machine_of_several_lists_what_it_has_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the process that serves; the other one of the machine leaves the folder alone."""
    monkeypatch.setattr("kgdist.runtime.agent.shard.take", lambda *_: None)
    monkeypatch.setattr(Shard, "_make", lambda _: None)
    monkeypatch.setattr(Shard, "place", lambda *_: tmp_path)
    monkeypatch.setattr(Shard, "tables", None)
    shard = Shard(SimpleNamespace(config=Config()), 0)  # type: ignore[arg-type]
    for step, meta in ((1, {"steps": [1, 2]}), (2, {"steps": []})):
        checkpoint.save(tmp_path, step, ARRAYS, meta | {"stamp": "job:0", "best": {}})
    (tmp_path / "ckpt-1").rename(tmp_path / f".ckpt-1.{os.getpid()}.old")
    assert hidden(tmp_path) != []
    assert shard.checkpoints("run") == [[1, "job:0", {}, 2]] and hidden(tmp_path) == []  # of step 2 nobody knows the progress
