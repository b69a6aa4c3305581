"""Processes that transform attributes: the same bytes as one, a few chunks ahead and no more, and one line when one is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgdist.attributes.declaration import read_declaration
from kgdist.attributes.preprocess import preprocess
from kgdist.attributes.transforming import Parts, Transform
from kgdist.base.errors import WorkerError
from kgdist.runtime.processes import chunks as of_chunks
from kgdist.runtime.processes.chunks import AHEAD, ProcessExecutor, read_parts, write_parts
from tests.attributes.entities import rows, schema, write_tsv
from tests.attributes.test_preprocess import made, relative
from tests.cli.graphs import tree
from tests.family import children, descendants
from tests.patience import patience


class Watched(ProcessExecutor):
    """Sees how far ahead of the chunk that is taken the last one is that was asked for."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.furthest = 0

    def map(self, function: Transform, chunks: Any) -> Iterator[Parts]:
        """See Executor."""
        asked: list[int] = []

        def numbers() -> Iterator[int]:
            for chunk in chunks:
                asked.append(chunk)
                yield chunk

        for taken, parts in enumerate(super().map(function, numbers()), 1):
            self.furthest = max(self.furthest, len(asked) - taken)
            yield parts


@pytest.mark.parametrize(("workers", "size"), [pytest.param(1, 40, marks=pytest.mark.slow), (2, 7)])
def test_processes_give_the_bytes_of_one(tmp_path: Path, workers: int, size: int) -> None:
    path, before = write_tsv(tmp_path / "e.tsv", rows(150)), set(descendants(os.getpid()))
    with Watched(workers) as executor:
        several = made(tmp_path, path, out="several", executor=executor, chunk_size=size)
        again = made(tmp_path, path, out="again", executor=executor, chunk_size=size)
    assert relative(several) == relative(again) == relative(made(tmp_path, path))
    assert executor.furthest < AHEAD * workers
    assert set(descendants(os.getpid())) <= before


def test_one_that_is_killed_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    path, others = write_tsv(tmp_path / "e.tsv", rows(60)), set(descendants(os.getpid()))
    declared = [read_declaration(schema(tmp_path))]

    class Killing(ProcessExecutor):
        def map(self, function: Transform, chunks: Any) -> Iterator[Parts]:
            """Kill the two processes, which the process that has forked them is the parent of, once they are at it."""
            for parts in super().map(function, chunks):
                for pid in set(descendants(os.getpid())) - set(children(os.getpid())) - others:
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.kill(pid, signal.SIGKILL)
                yield parts

    before = tree(tmp_path)
    killed = r"process \d of 2 that transforms attributes was killed by signal SIGKILL"
    with pytest.raises(WorkerError, match=killed), Killing(2) as executor:
        preprocess([path], declared, tmp_path / "out", executor=executor, chunk_size=3)
    assert tree(tmp_path) == before
    deadline = time.monotonic() + patience(5)
    while not set(descendants(os.getpid())) <= others and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(descendants(os.getpid())) <= others


def test_what_a_process_raises_is_told(tmp_path: Path) -> None:
    function = Transform(str(tmp_path / "none.arrow"), str(tmp_path))
    failed = r"process 0 of 1 that transforms attributes failed: FileNotFoundError: .*none.arrow"
    with pytest.raises(WorkerError, match=failed), ProcessExecutor(1) as executor:
        list(executor.map(function, range(3)))


def test_one_that_does_nothing_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_chunks, "STALL", 0.0)
    with pytest.raises(WorkerError, match="no process has transformed chunk 0 in 0 s"), ProcessExecutor(1) as executor:
        list(executor.map(Transform(str(tmp_path / "t"), str(tmp_path)), range(1)))


def test_parts_travel_as_they_are_and_their_file_goes(tmp_path: Path) -> None:
    parts = {"0.counts": np.arange(3), "1.present": np.array([True]), "1.rows": np.zeros((0, 4), np.float32)}
    write_parts(tmp_path / "p.npz", parts)
    back = read_parts(tmp_path / "p.npz")
    assert list(back) == list(parts) and not list(tmp_path.iterdir())
    for name, array in parts.items():
        assert (back[name].dtype, back[name].shape, back[name].tobytes()) == (array.dtype, array.shape, array.tobytes())
