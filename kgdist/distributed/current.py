"""The storage of this process: one of its own, or that of the servers that `initialize` has found."""

from __future__ import annotations

from kgdist.distributed.context import job
from kgdist.distributed.standalone import Standalone
from kgdist.distributed.storage import Storage

_current: list[Storage] = []


def use(storage: Storage) -> None:
    """Make `storage` that of this process."""
    _current[:] = [storage]


def storage() -> Storage:
    """That of this process: of its own until `initialize` has found servers. Raises UsageError in a script that was launched and
    has not called it."""
    if not _current:
        job()
        use(Standalone())
    return _current[0]
