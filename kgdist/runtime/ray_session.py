"""Ray, from its beginning in this process to its end: what all that works on Ray has in common.

Ray prints, takes over handlers of signals and raises errors of many lines; here it does not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kgdist.base.errors import OptionError, PeersLost, UsageError
from kgdist.base.log import complain, flush, log

Hear = Callable[[Mapping[str, Any]], None]  # of `lines`, `is_err`, `actor_name` and more, as Ray has it
ANSWER = 10.0  # seconds that a cluster has to answer
AWAY = 45.0  # seconds that its head may be away: after 60 all of Ray ends itself, and its drivers without a word of ours
LOOK = 3.0  # seconds between two looks at it


def check_address(address: str) -> None:
    """Raise OptionError where nobody listens at `host:port`: Ray itself tries for two minutes. What names no port passes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return
    if why := _missed(address, ANSWER):
        raise OptionError("--ray_address", f"{address}: no Ray there ({why}); `ray status` on the cluster says where")


def _missed(address: str, patience: float) -> str:
    """Why nobody listens at `host:port`, if so."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=patience).close()
    except (OSError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def _guard(flag: str, address: str, over: threading.Event) -> None:
    """End this process when the head of the cluster is away for too long; the body of a thread, until it is `over`. What waits
    for an answer of the cluster gets none then, so nothing could be ended in good order; agents, whom nobody tells anything
    any more, end by themselves."""
    since = None  # when it was missed first
    while not over.wait(timeout=LOOK):
        why = _missed(address, LOOK)
        since = (since or time.monotonic()) if why else None
        if since is not None and time.monotonic() - since > AWAY:
            what = f"the head of the cluster, {address}, is away for {AWAY:g} s ({why}), and all of Ray ends without it"
            complain(f"error: {flag}: {what}; `ray status` says when it is back")
            flush()
            os._exit(PeersLost.exit_code)


def first_line(error: Exception) -> str:
    """What an error of Ray says, in one line."""
    told = str(error).strip().splitlines()
    return told[0] if told else type(error).__name__


def aside(data: Mapping[str, Any]) -> None:
    """What Ray says of itself is for --debug."""
    for line in data["lines"]:
        log.debug("Ray: %s", line)


@contextlib.contextmanager
def _heard(ray: Any, hear: Hear) -> Iterator[None]:
    """Ray prints on stdout, where results belong, what it hears of processes that were lost, or of what others print; `hear` gets
    it instead. Where another Ray has no such function, it prints."""
    worker = ray._private.worker
    before = getattr(worker, "print_to_stdstream", None)

    def tell(data: dict[str, Any], ignore_prefix: bool) -> None:
        hear(data)

    worker.print_to_stdstream = tell
    try:
        yield
    finally:
        if before is not None:
            worker.print_to_stdstream = before


@contextlib.contextmanager
def ray_of(flag: str, address: str, hear: Hear | None = None, **how: Any) -> Iterator[Any]:
    """The module `ray`, of the cluster at `address`, or of a new one that ends with the block ("local").

    `flag`: what needs it, for messages; `hear`: gets what the cluster's processes print, see `_heard`; `how`: what else
    `ray.init` is told. Raises UsageError without Ray, OptionError for a cluster that is not there, or is of another version of
    Ray or Python.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"{flag} needs Ray ({error}): pip install 'kgdist[ray]'") from error
    if ray.is_initialized():
        raise UsageError(f"this process has begun Ray already: {flag} begins and ends it by itself")
    check_address(address)
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    over = threading.Event()
    with contextlib.ExitStack() as kept:
        kept.callback(over.set)
        kept.callback(_end, ray)
        kept.enter_context(_heard(ray, hear or aside))
        try:
            how |= {"log_to_driver": hear is not None, "logging_level": logging.ERROR, "configure_logging": False}
            ray.init(address=address, **how)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            hint = "; if it asks for a token, set RAY_AUTH_MODE=token here, too" if isinstance(error, ConnectionError) else ""
            hint = hint if os.environ.get("RAY_AUTH_MODE") != "token" else ""
            raise OptionError("--ray_address", f"{address}: {first_line(error)}{hint}") from error
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        watched = (flag, ray.get_runtime_context().gcs_address, over)
        threading.Thread(target=_guard, args=watched, name="kgdist-ray-head", daemon=True).start()
        yield ray


def _end(ray: Any) -> None:
    with contextlib.suppress(Exception):  # whatever Ray says at its end, the work is done, or its error is on the way
        ray.shutdown()
