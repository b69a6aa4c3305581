"""What a process is to itself: alone when nobody has started it, refused before `initialize`, a function known by its name."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kgdist import distributed as kd
from kgdist.base.errors import KgdistError, UsageError
from kgdist.distributed import context
from kgdist.distributed.initialisers import filled, function_at, mapped, path_of
from kgdist.kvstore.shared_memory import SharedArray
from kgdist.sampling.loaders import Defaults


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has not called `initialize`."""
    monkeypatch.setattr(context, "_job", [])
    monkeypatch.setattr(context, "_workers", [0])
    monkeypatch.delenv("KGDIST_ROLE", raising=False)
    yield


def test_a_script_run_by_hand_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kd.initialize("not/there.txt", num_workers=3, net_type="socket")
    kd.barrier("any")
    found = kd.role(), kd.rank(), kd.num_machines(), kd.get_num_clients(), kd.num_workers()
    assert found == ("standalone", 0, 1, 1, 3)
    assert Defaults.workers == 3
    kd.initialize()  # a cell of a notebook may be run again
    assert kd.num_workers() == 0 == Defaults.workers


def test_before_initialize_a_launched_script_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGDIST_ROLE", "trainer")
    for ask in (kd.rank, kd.barrier, kd.get_num_clients, kd.num_machines, kd.num_workers):
        with pytest.raises(UsageError, match=r"^call kgdist.distributed.initialize\(\) first: this script was started by"):
            ask()
    for number in ("", "x", "99999"):
        monkeypatch.setenv("KGDIST_LINE", number)
        with pytest.raises(UsageError, match="only the process that kgdist-launch has started can call initialize"):
            kd.initialize()


@pytest.mark.parametrize(
    "given", [{"max_queue_size": 9}, {"net_type": "tensorpipe"}, {"num_worker_threads": 2}, {"use_graphbolt": True}]
)
def test_what_has_no_meaning_is_refused_by_its_name(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"^initialize\({next(iter(given))}=...\): has no meaning here; leave it out$"):
        kd.initialize(**given)
    with pytest.raises(UsageError, match="num_workers: must be an integer >= 0, not -1"):
        kd.initialize(num_workers=-1)


def test_an_agent_that_is_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setenv("KGDIST_ROLE", "trainer")
    monkeypatch.setenv("KGDIST_LINE", str(os.dup(ours.fileno())))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    ours.close()
    theirs.close()
    with pytest.raises(context.KgdistError, match="the agent of this machine is gone"):
        kd.initialize()


def ones(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


class Wrong:
    @staticmethod
    def shape(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.ones(1)

    @staticmethod
    def kind(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        return np.ones(shape)

    @staticmethod
    def error(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        raise ZeroDivisionError("by zero")


def test_a_function_is_found_by_its_name_or_refused() -> None:
    for function in (ones, Wrong.shape):
        assert function_at(path_of(function)) is function
    for nameless in (lambda shape, dtype: None, type("X", (), {"__call__": ones})()):
        with pytest.raises(UsageError, match="is looked up by its name in the servers: write it with def at the top"):
            path_of(nameless)
    for path in ("no.such.module:f", f"{__name__}:later", f"{__name__}:Wrong.later", ":"):
        with pytest.raises(UsageError, match="is not known in the server: declare it before initialize"):
            function_at(path)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_rows_are_filled_where_they_are(dtype: str) -> None:
    storage = np.dtype({"bfloat16": "<u2", "bool": "?"}.get(dtype, dtype))
    made = SharedArray.allocate((4, 3), storage)
    rows = mapped(made.handle(pid=True))
    filled(rows, "x", dtype, ones)
    assert (made.array == (0x3F80 if dtype == "bfloat16" else 1)).all()
    made.close()
    with pytest.raises(KgdistError, match="No such file or directory: it has ended, or is of another user"):
        mapped(made.handle(pid=True) | {"fd": 99999})


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (Wrong.shape, r"^'x': its init_func gave float32\[1\], not float32\[4, 3\]$"),
        (Wrong.kind, r"^'x': its init_func gave a ndarray, not float32\[4, 3\]$"),
        (Wrong.error, "^'x': init_func\\(shape, dtype\\) failed, for \\[4, 3\\] and float32: ZeroDivisionError: by zero$"),
    ],
)
def test_an_initialiser_that_gives_something_else_is_told(wrong: Any, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        filled(np.zeros((4, 3), np.float32), "x", "float32", wrong)
