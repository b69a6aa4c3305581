"""One process at a time: a file lock that the system releases when its holder dies, and a wait that ends when the holder hangs.

It knows nothing of what is done under it. The file is gone when nobody holds or wants the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kgdist.base.errors import KgdistError
from kgdist.base.log import log

POLL = 0.2  # seconds


@contextlib.contextmanager
def exclusive(path: Path, *, patience: float = 300.0) -> Iterator[Callable[[], None]]:
    """Hold the lock `path` for the block. The block gets a function to call while it makes progress; it is cheap.

    Waits for another holder for as long as that one makes progress. Raises KgdistError when it has made none for `patience`
    seconds, or if `path` cannot be made or locked.
    """
    fd = _acquire(path, patience)
    last = time.monotonic()

    def beat() -> None:
        nonlocal last
        if time.monotonic() - last > min(1.0, patience / 10):
            last = time.monotonic()
            os.utime(fd)

    try:
        yield beat
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(fd)


def _acquire(path: Path, patience: float) -> int:
    seen, since = None, time.monotonic()
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise KgdistError(f"{path}: cannot be made ({error.strerror}); give a --data_path that can be written") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between our opening and locking it: then we hold the lock of nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
        except BlockingIOError:
            if (now := os.fstat(fd).st_mtime_ns) != seen:
                if seen is None:
                    log.info("%s: another process is at it, waiting", path)
                seen, since = now, time.monotonic()
            if time.monotonic() - since > patience:
                os.close(fd)
                raise KgdistError(f"{path}: its holder has not moved for {patience:g} s; end that process first") from None
            time.sleep(POLL)
        except OSError as error:
            os.close(fd)
            raise KgdistError(f"{path}: this file system has no locks ({error.strerror}); unpack the data set by hand") from error
        os.close(fd)
