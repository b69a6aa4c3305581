"""The receiving end of kgdist-copy, a process on the machine: what is here already, and is what arrived what was sent?

The bytes come in over SFTP as NAME.DIGEST.part, where an interrupted transfer of the same contents goes on; here they are
hashed and get their names. Orders are lines of JSON on stdin, answers lines of JSON on stdout; the process ends with its stdin.
It writes in the one folder it was told, and only files with the names it was told.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from kgdist.base.errors import CheckpointError, KgdistError, UsageError
from kgdist.base.files import free_bytes, read_json, safe_join, sha256, sync_folder
from kgdist.runtime.processes.child import Owner

MANIFEST = "partition.json"
_PART = re.compile(r".+\.[0-9a-f]{16}\.part")


def part_name(name: str, digest: str) -> str:
    """Where the bytes of file `name` with that sha256 come in: other contents never continue these."""
    return f"{name}.{digest[:16]}.part"


class Receiver:
    """One folder that is to hold `files`, name -> (bytes, sha256), the manifest among them."""

    def __init__(self, folder: str, files: dict[str, Any]) -> None:
        self.folder = Path(folder).absolute()
        self.files = {name: (int(size), str(digest)) for name, (size, digest) in files.items()}
        for name in self.files:
            if "/" in name:
                raise UsageError(f"{name!r}: not a plain name")
            safe_join(self.folder, name)

    def look(self) -> dict[str, Any]:
        """Which files are here whole, how much of the others is, and how many bytes are free."""
        have = [name for name in self.files if self._right(self.folder / name, name)]
        parts = {}
        for name, (_, digest) in self.files.items():
            if name not in have:
                with contextlib.suppress(OSError):
                    parts[name] = (self.folder / part_name(name, digest)).stat().st_size
        return {"folder": str(self.folder), "have": have, "parts": parts, "free": free_bytes(self.folder)}

    def begin(self) -> dict[str, Any]:
        """Make the folder ready: until all is here it is no partition, and what an older one left behind goes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest = self.folder / MANIFEST
        if MANIFEST in self.files and manifest.exists() and not self._right(manifest, MANIFEST):
            old: dict[str, Any] = {}
            with contextlib.suppress(CheckpointError, AttributeError, TypeError):
                old = dict(read_json(manifest).get("files", {}))
            manifest.unlink()
            sync_folder(self.folder)
            for name in old:
                if name not in self.files and name == os.path.basename(name):
                    (self.folder / name).unlink(missing_ok=True)
        wanted = {part_name(name, digest) for name, (_, digest) in self.files.items()}
        for path in self.folder.iterdir():
            if _PART.fullmatch(path.name) and path.name not in wanted:
                path.unlink(missing_ok=True)
        return {"ready": True}

    def finish(self, name: str) -> dict[str, Any]:
        """Give a file that has arrived its name, if it is right; otherwise it is removed."""
        part = self.folder / part_name(name, self.files[name][1])
        right = self._right(part, name)
        if right:
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(part, self.folder / name)
            sync_folder(self.folder)
        else:
            part.unlink(missing_ok=True)
        return {"right": right}

    def _right(self, path: Path, name: str) -> bool:
        size, digest = self.files[name]
        try:
            return path.is_file() and path.stat().st_size == size and sha256(path) == digest
        except OSError:
            return False


def main() -> None:
    """Answer every order until stdin ends."""
    owner, receiver = Owner(), None
    with contextlib.suppress(EOFError):
        while True:
            if (order := owner.receive(60.0)) is None:
                continue
            try:
                if order["do"] == "look":
                    receiver = Receiver(order["folder"], order["files"])
                    answer = receiver.look()
                elif receiver is None:
                    raise UsageError("first comes look")
                else:
                    answer = receiver.begin() if order["do"] == "begin" else receiver.finish(order["name"])
            except OSError as error:
                answer = {"error": f"{error.filename or 'disk'}: {error.strerror or error}"}
            except KgdistError as error:
                answer = {"error": str(error)}
            except Exception as error:  # whatever it is, the sender must hear of it
                why = f"{type(error).__name__}: {error}"
                answer = {"error": f"an order was not understood ({why}); is kgdist the same everywhere?"}
            owner.send(**answer)
