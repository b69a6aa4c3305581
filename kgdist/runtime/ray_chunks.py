"""An executor of chunks of attributes whose calls are tasks of Ray, on this machine or on a cluster.

What was fitted is put into Ray's store once; a task gets a reference to it, and its chunk. Only some tasks are under way at a
time, and results are taken in order, the oldest first, while the others work: the driver holds as many chunks as that, however
many there are. (Asking for all results in one call is what cost the Ray paper half of its gain.) A task whose process is
lost is begun again by Ray, three times; then it is one error.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from kgdist.attributes.features import Feature
from kgdist.attributes.transforming import Parts, Transform, features_of, transformed
from kgdist.base.errors import KgdistError, OptionError, WorkerError
from kgdist.base.machine import usable_cores
from kgdist.runtime.protocol import STALL
from kgdist.runtime.ray_session import first_line, ray_of

SHORT = 42  # letters of a folder in which Ray's sockets have names that the system takes; where it is longer, Ray takes its own

_features: dict[str, list[Feature]] = {}  # of the last fit, in a process of Ray: making them anew for each chunk costs more


def work(key: str, fitted: list[dict[str, Any]], batch: Any) -> Parts:
    """A task: a chunk by what was fitted, which `key` names."""
    if key not in _features:
        _features.clear()
        _features[key] = features_of(fitted)
    return transformed(_features[key], batch)


class RayExecutor:
    """Tasks of Ray, so many at a time, from the beginning of the block to its end.

    See kgdist.attributes.transforming.Executor. `address` is a cluster's; where it is None, one of this machine is made, and
    ended with the block. `workers` tasks: where it is None, as many as the cluster has cores.

    Raises UsageError without Ray; OptionError for a cluster that is not there, or is of another version of Ray or Python;
    WorkerError when tasks are lost, or none ends in `STALL` seconds.
    """

    def __init__(self, address: str | None, workers: int | None) -> None:
        self._own, self._folder, self._kept = address is None, "", contextlib.ExitStack()
        how: dict[str, Any] = {}
        if address is None:
            self._folder = tempfile.mkdtemp(prefix="ray-")  # Ray's files are by themselves, and go with the block
            if len(self._folder) <= SHORT:
                how["_temp_dir"] = self._folder
            how |= {"num_cpus": workers or usable_cores(), "include_dashboard": False}
            address = "local"
        try:
            self._ray = ray = self._kept.enter_context(ray_of("--executor ray", address, **how))
            self.workers = workers or int(ray.cluster_resources().get("CPU", 0))
            if not self.workers:
                raise OptionError("--ray_address", f"{address}: the cluster has no CPU to work with; add a node")
        except BaseException:
            self.__exit__()
            raise
        self._task = ray.remote(num_cpus=1)(work)

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def map(self, function: Transform, chunks: Iterable[int]) -> Iterator[Parts]:
        """See Executor."""
        ray, key = self._ray, uuid.uuid4().hex
        fitted = ray.put(function.fitted())
        left, under_way = iter(chunks), deque[Any]()
        # A cluster of our own runs no more than it has cores: two chunks more wait, so that no core does.
        most = self.workers + (2 if self._own else 0)
        while True:
            while len(under_way) < most and (chunk := next(left, None)) is not None:
                under_way.append(self._task.remote(key, fitted, function.batch(chunk)))
            if not under_way:
                return
            try:
                yield ray.get(under_way.popleft(), timeout=STALL)
            except ray.exceptions.GetTimeoutError as error:
                raise WorkerError(f"Ray: no task has ended in {STALL:.0f} s; see `ray status` of the cluster") from error
            except ray.exceptions.RayTaskError as error:
                cause = error.cause if isinstance(error.cause, KgdistError) else error
                raise WorkerError(f"a task of Ray failed: {str(cause).strip().splitlines()[-1]}") from error
            except ray.exceptions.RayError as error:
                raise WorkerError(f"Ray: {first_line(error)}") from error
