"""Disks of one's own for machines of tests: one that can freeze, as a network file system that does not answer, and a small one.

Needs root, and for the first a loop device. Both are removed by the path that was made.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

LIMIT = 30.0


class Missing(Exception):
    """What cannot be run here, and why."""


def _run(*words: str | Path) -> None:
    """A command of the system. Raises Missing."""
    name = str(words[0])
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise Missing(f"no {name} here")
    done = subprocess.run([found, *map(str, words[1:])], capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise Missing(f"{name}: {done.stderr.strip() or done.returncode}")


class Disk:
    """A mounted file system at `path`.

    Attributes:
        frozen: whether whoever writes to it waits, in the kernel, where no signal reaches.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.frozen = path, False

    def freeze(self) -> None:
        """From now on it does not answer who writes, until `thaw`. Raises Missing where that cannot be."""
        _run("fsfreeze", "-f", self.path)
        self.frozen = True

    def thaw(self) -> None:
        """Answer again."""
        if self.frozen:
            _run("fsfreeze", "-u", self.path)
            self.frozen = False

    def fill(self, spare: int) -> None:
        """Take all its room but `spare` bytes, until `empty`."""
        free = os.statvfs(self.path)
        with (self.path / ".full").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - spare))

    def empty(self) -> None:
        """Give the room back."""
        (self.path / ".full").unlink(missing_ok=True)


@contextlib.contextmanager
def mounted(path: Path, kind: str, megabytes: int) -> Iterator[Disk]:
    """A new disk of that size at the new folder `path`: "loop", which can freeze, or "tmpfs". Raises Missing."""
    if os.geteuid() != 0:
        raise Missing("mounting a disk needs root")
    path.mkdir(parents=True)
    image = path.with_name(f"{path.name}.img")
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", path)
    else:
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-F", image)
        _run("mount", "-o", "loop", image, path)
    disk = Disk(path)
    try:
        yield disk
    finally:
        disk.thaw()
        _run("umount", "-l", path)
        image.unlink(missing_ok=True)
