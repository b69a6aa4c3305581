"""The file by which kgdist-server and kgdist-client find the launcher that waits for them: where it listens, and keys.

Who can read it can take part in the job, so it is its owner's alone, and it goes when the job is over. It holds no options: those
travel over the connection, which is encrypted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgdist.base.errors import CheckpointError, UsageError
from kgdist.base.files import read_json, write_json
from kgdist.base.log import log
from kgdist.kvstore.wire import Keys
from kgdist.version import __version__


@dataclass(frozen=True)
class JobFile:
    """What is in it.

    Attributes:
        run: a name that no other job has.
        machines: their number.
        timeout: seconds of silence after which a connection is given up.
        keys: of all but the launcher, of which they know the public key.
        pid, computer: the launcher, and where it runs (see `computer`).
    """

    run: str
    host: str
    port: int
    machines: int
    timeout: float
    keys: Keys
    pid: int
    computer: str
    version: str = __version__

    def write(self, path: Path) -> None:
        """Put it at `path`. Raises UsageError when what is there may be another job's that is not over, KgdistError."""
        if path.exists():
            old = JobFile.read(path, mine=False)
            if old.computer != computer():
                raise UsageError(f"{path}: is of a job of another machine; delete it if that is over, or give another --job")
            if old.alive:
                raise UsageError(f"{path}: is of a launcher that runs (pid {old.pid}); give another --job")
            log.warning("%s: was left behind by a job that is over; it is written again", path)
        write_json(path, vars(self) | {"keys": self.keys.to_json()}, private=True)

    def remove(self, path: Path) -> None:
        """Take it away, if it is still this job's."""
        with contextlib.suppress(UsageError, OSError):
            if JobFile.read(path, mine=False).run == self.run:
                path.unlink()

    @property
    def alive(self) -> bool:
        """Whether the launcher runs; asked on its own machine."""
        return Path(f"/proc/{self.pid}").is_dir()

    @classmethod
    def read(cls, path: Path, *, mine: bool = True) -> JobFile:
        """What `write` wrote; `mine`: to take part in it. Raises UsageError."""
        if not path.exists():
            raise UsageError(f"{path}: no such file; a launcher with --backend manual writes it, and removes it at its end")
        try:
            found = cls._of(read_json(path))
        except (CheckpointError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}: is not a job file of a launcher with --backend manual") from error
        if not mine:
            return found
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UsageError(f"{path}: others can read it, and it holds keys: chmod 600 {path}")
        if found.version != __version__:
            raise UsageError(f"{path}: was written by kgdist {found.version}, this is {__version__}; take the same everywhere")
        if found.computer == computer() and not found.alive:
            raise UsageError(f"{path}: its launcher has ended (pid {found.pid}); start that first")
        return found

    @classmethod
    def _of(cls, value: dict[str, Any]) -> JobFile:
        found = cls(**{**value, "keys": Keys.from_json(value["keys"])})
        for field in dataclasses.fields(cls):
            if field.name != "keys" and type(getattr(found, field.name)).__name__ != field.type:
                raise TypeError(field.name)
        return found


def computer() -> str:
    """Equal for two processes that see each other in /proc, and for no others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
