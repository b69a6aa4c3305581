"""An executor of chunks of attributes whose calls are made by processes of this machine.

They are forked from one that has imported what transforms take (`main`; not torch, which takes seconds). Each gets the number of
a chunk as a line of JSON, leaves the arrays in a file of the scratch folder, and says so: nothing is pickled, and a result costs
one copy through the system's cache of files. A process has two chunks at a time, so that it never waits for the next one, and no
chunk is begun that is further ahead of the one waited for than that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.attributes.transforming import Parts, Transform, load_libraries
from kgdist.base.errors import KgdistError, WorkerError
from kgdist.runtime.processes import worker
from kgdist.runtime.processes.child import GRACE, Child, Event, Owner, end, show_traceback
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.runtime.protocol import STALL

AHEAD = 2  # chunks that each process has


def main() -> None:
    """Be the process that forks the others."""
    worker.main(load_libraries)


def serve(job: dict[str, Any], owner: Owner) -> int:
    """Be one that transforms: what it is told first, then chunk by chunk, until its owner ends it. How many it has done."""
    function, results, done = None, Path(), 0
    while (order := owner.receive(60.0)) is None or "end" not in order:
        if order is not None and "transform" in order:
            function, results = Transform(**order["transform"]), Path(order["results"])
        elif order is not None and function is not None:
            write_parts(results / f"{order['chunk']}.npz", function(order["chunk"]))
            done += 1
            owner.send(made=order["chunk"])
    return done


def write_parts(path: Path, parts: Parts) -> None:
    """Write arrays by name, without compression."""
    try:
        np.savez(path, **parts)  # type: ignore[arg-type]
    except OSError as error:
        raise KgdistError(f"{path}: cannot be written ({error.strerror or error})") from error


def read_parts(path: Path) -> Parts:
    """What `write_parts` has written; the file goes."""
    with np.load(path, allow_pickle=False) as found:
        parts = {name: found[name] for name in found.files}
    path.unlink()
    return parts


class _Forks(ForkServer):
    MODULE = "kgdist.runtime.processes.chunks"


class ProcessExecutor:
    """So many processes, from the beginning of the block to its end: they import what they need while their owner scans.

    See kgdist.attributes.transforming.Executor. Raises WorkerError when one is lost, or does nothing for `STALL` seconds.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._forks, self._selector = _Forks(threads=1), selectors.DefaultSelector()
        self.children: list[Child] = []
        self._busy: list[list[int]] = [[] for _ in range(workers)]  # the chunks that each has
        self._made: set[int] = set()
        try:
            for rank in range(workers):
                child = Child(self._forks, name=f"attributes-{rank}")
                self.children.append(child)
                self._selector.register(child.stdout, selectors.EVENT_READ)
                child.send({"role": "chunks"})
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> ProcessExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for child in self.children:
            child.send({"end": True})
        end(self.children, time.monotonic() + GRACE)
        self._forks.close()

    def map(self, function: Transform, chunks: Iterable[int]) -> Iterator[Parts]:
        """See Executor."""
        folder = Path(tempfile.mkdtemp(prefix="results-", dir=Path(function.table).parent))
        for child in self.children:
            child.send({"transform": dataclasses.asdict(function), "results": str(folder)})
        left, waiting = iter(chunks), list[int]()  # begun, and not taken yet
        while True:
            while len(waiting) < AHEAD * len(self.children) and (chunk := next(left, None)) is not None:
                waiting.append(chunk)
                rank = min(range(len(self._busy)), key=lambda rank: len(self._busy[rank]))
                self._busy[rank].append(chunk)
                self.children[rank].send({"chunk": chunk})
            if not waiting:
                return
            self._await(waiting[0])
            yield read_parts(folder / f"{waiting.pop(0)}.npz")

    def _await(self, chunk: int) -> None:
        """Until this one is made. Raises WorkerError, and what a process has raised."""
        deadline = time.monotonic() + STALL
        while chunk not in self._made and time.monotonic() < deadline:
            self._selector.select(1.0)
            for rank, child in enumerate(self.children):
                for event in child.events():
                    self._hear(rank, event)
                    deadline = time.monotonic() + STALL
                if not child.open:
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(child.stdout)
        if chunk not in self._made:
            raise WorkerError(f"no process has transformed chunk {chunk} in {STALL:.0f} s")
        self._made.remove(chunk)

    def _hear(self, rank: int, event: Event) -> None:
        who = f"process {rank} of {len(self.children)} that transforms attributes"
        if "made" in event:
            self._busy[rank].remove(event["made"])
            self._made.add(event["made"])
        elif "lost" in event:
            raise WorkerError(f"{who} {event['lost']}")
        elif "error" in event:
            show_traceback(who, event)
            failure = (WorkerError if event["traceback"] else KgdistError)(f"{who} failed: {event['error']}")
            failure.exit_code = event["code"]
            raise failure
