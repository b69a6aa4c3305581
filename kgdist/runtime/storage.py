"""What machines that come and go share: a folder, or a bucket, which has the partitions and gets the checkpoints (`--storage`).

    <storage>/partitions/<dataset>/partition_<n>/    as kgdist-partition writes them
    <storage>/runs/<run>/machine_<n>/ckpt-<step>/    checkpoints, and best-<step>, as on the machine's own disk
    <storage>/runs/<run>/                            what the first machine has in its run folder besides

A machine works on its own disk. Before a job it fetches its partition into the workspace, unless it is there; each checkpoint is
sent when it is written, and whichever machine takes a place over fetches the last one. A manifest is sent last and removed
first, so what has one was whole; its digests tell whether it still is.

Any file system of fsspec serves (https://filesystem-spec.readthedocs.io): a path, s3://, gs://, ... Credentials are its own
business: they belong neither into the address nor into a job.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kgdist.base.errors import CheckpointError, KgdistError, OptionError
from kgdist.base.files import Moved, check_room, locked, safe_join, unwatched
from kgdist.base.log import log
from kgdist.options.config import Config
from kgdist.partition.manifest import NAME as PARTITION
from kgdist.runs import checkpoint
from kgdist.runs.checkpoint import Checkpoint
from kgdist.runtime.copy.receive import Receiver, part_name

FLAG = "--storage"
PIECE = 4 << 20  # bytes that are read or written at a time: each is a sign of life
PATIENCE = 600.0  # seconds that another process of this machine may take for the same partition
TRIES = 2  # of a file that arrives wrong
OWNER = "owner"  # of a run that is kept: the attempt at a job that keeps it
PRIVATE = ("memory", "data", "reference")  # file systems of one process


class Storage:
    """An address that all machines of a job reach. Its methods raise KgdistError naming it when that fails."""

    def __init__(self, address: str, files: Any, root: str) -> None:
        self.address, self._files, self._root = address.rstrip("/"), files, root.rstrip("/")

    @classmethod
    def of(cls, config: Config) -> Storage | None:
        """That of `--storage`, if there is one. Raises OptionError for an address that is none, or holds a password."""
        if config.storage is None:
            return None
        import fsspec

        chain = [urlsplit(part) for part in config.storage.split("::")]  # as simplecache::s3://bucket/folder
        if any(part.password is not None for part in chain):
            raise OptionError(FLAG, "holds a password, which would be kept with the run; the file system reads its own settings")
        for part in chain:
            if part.scheme in PRIVATE:
                raise OptionError(FLAG, f"{part.scheme}:// is seen by one process only; name one that all machines reach")
        try:
            files, root = fsspec.core.url_to_fs(config.storage)
        except (ImportError, ValueError, OSError) as error:
            raise OptionError(FLAG, f"{config.storage}: {said(error)}") from error
        return cls(config.storage, files, root)

    # ---- partitions

    def fetch_partition(self, folder: Path, graph: str | None, moved: Moved = unwatched) -> None:
        """Make `folder` the partition that is kept here as its name and its data set's say, of the graph with the digest `graph`
        (None: any). What is there already is not fetched. Raises CheckpointError when it is not here, or of another graph."""
        name = f"partitions/{folder.parent.name}/{folder.name}"
        raw = self.read(f"{name}/{PARTITION}")
        where = self.shown(f"{name}/{PARTITION}")
        if raw is None:
            raise CheckpointError(f"{where}: is not there; send the partitions there with --copy")
        try:
            manifest = json.loads(raw)
            files = {str(name): (int(each["bytes"]), str(each["sha256"])) for name, each in manifest["files"].items()}
            found = str(manifest["graph"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{where}: not a manifest of a partition ({said(error)}); send it again") from error
        if graph is not None and found != graph:
            raise CheckpointError(f"{where}: is of a graph {found[:12]}, not {graph[:12]}; send the partitions again with --copy")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / f".{folder.name}.lock", PATIENCE):
            self._receive(name, folder, files | {PARTITION: (len(raw), hashlib.sha256(raw).hexdigest())}, moved)

    def _receive(self, name: str, folder: Path, files: dict[str, Any], moved: Moved) -> None:
        receiver = Receiver(str(folder), files)
        has = receiver.look()
        missing = [each for each in sorted(files, key=lambda each: (each == PARTITION, each)) if each not in has["have"]]
        if not missing:
            return
        check_room(folder, sum(files[each][0] for each in missing) - sum(has["parts"].values()))
        log.info("%s: fetched from %s", folder, self.shown(name))
        receiver.begin()
        for each in missing:
            part = folder / part_name(each, files[each][1])
            for _ in range(TRIES):
                self._load(f"{name}/{each}", part, moved, go_on=True)
                if receiver.finish(each)["right"]:
                    break
            else:
                raise CheckpointError(f"{self.shown(name)}/{each}: has changed since it was written; send it again with --copy")

    def send_partition(self, folder: Path, files: Collection[str], moved: Moved = unwatched) -> bool:
        """Keep a copy of the partition in `folder`; whether one had to be sent. `files`: their names, its manifest among them."""
        name = f"partitions/{folder.parent.name}/{folder.name}"
        manifest = (folder / PARTITION).read_bytes()
        if self.read(f"{name}/{PARTITION}") == manifest:
            return False
        self._send(name, folder, [*sorted({*files} - {PARTITION}), PARTITION], moved)
        return True

    # ---- runs

    def runs(self) -> list[str]:
        """The names of runs that are kept here."""
        return self._inside("runs")

    def claim(self, run: str, stamp: str) -> None:
        """From now on it is the attempt `stamp` that keeps the run here; whoever kept it before is told so when it keeps more."""
        with self._reached(f"runs/{run}"):
            self._files.makedirs(self._path(f"runs/{run}"), exist_ok=True)
            self._files.pipe_file(self._path(f"runs/{run}/{OWNER}"), stamp.encode())

    def check_claim(self, run: str, stamp: str) -> None:
        """Raises KgdistError where another attempt has claimed the run since. A storage that was emptied has it anew."""
        found = self.read(f"runs/{run}/{OWNER}")
        if found is None:
            self.claim(run, stamp)
        elif found != stamp.encode():
            problem = "was begun or gone on with by another launcher since, so nothing of this one is kept there any more"
            raise KgdistError(f"{FLAG} {self.shown(f'runs/{run}')}: {problem}")

    def fetch_run(self, folder: Path, names: Iterable[str], moved: Moved = unwatched) -> None:
        """Files of a run folder, as they were when they were last sent; those that are not here, or longer there, are left."""
        for name in names:
            inside = f"runs/{folder.name}/{name}"
            with self._reached(inside):
                there = self._files.info(self._path(inside))["size"] if self._files.exists(self._path(inside)) else 0
            if there and (not (folder / name).exists() or (folder / name).stat().st_size < there):
                folder.mkdir(parents=True, exist_ok=True)
                half = folder / f".{name}.part"
                self._load(inside, half, moved)
                with _written(half):
                    half.replace(folder / name)

    def send_run(self, folder: Path, moved: Moved = unwatched, *, suffixes: Collection[str] = ()) -> None:
        """Keep the files of a run folder, or those with these suffixes; not its checkpoints, which have folders of their own."""
        names = [path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
        self._send(
            f"runs/{folder.name}", folder, [name for name in names if not suffixes or Path(name).suffix in suffixes], moved
        )

    def checkpoints(self, place: Path) -> list[Checkpoint]:
        """Those that are kept here for the folder `place` of a machine, newest first, as their manifests say: without arrays."""
        found = []
        for name in self._inside(self._of(place)):
            if checkpoint.NAME.fullmatch(name) and (raw := self.read(f"{self._of(place)}/{name}/{checkpoint.MANIFEST}")):
                try:
                    found.append(_described(raw, place / name))
                except CheckpointError as error:
                    log.warning("%s: %s; it is passed over", self.shown(self._of(place)), error)
        return sorted(found, key=lambda each: each.step, reverse=True)

    def fetch_checkpoint(self, path: Path, moved: Moved = unwatched, *, anew: bool = False) -> bool:
        """Have the checkpoint `path` on this disk, as it is kept here, unless it is (or `anew`); whether it is kept here. Raises
        CheckpointError when it has no proper manifest; what its files hold is told when they are read."""
        name = f"{self._of(path.parent)}/{path.name}"
        if (raw := self.read(f"{name}/{checkpoint.MANIFEST}")) is None:
            return False
        with contextlib.suppress(OSError):
            if not anew and (path / checkpoint.MANIFEST).read_bytes() == raw:
                return True
        entries = _described(raw, path).entries
        check_room(path, sum(entry.bytes for entry in entries.values()))
        log.info("%s: fetched from %s", path, self.shown(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        with checkpoint.whole(path) as temporary:
            for key in entries:
                self._load(f"{name}/{key}.npy", safe_join(temporary, f"{key}.npy"), moved)
            (temporary / checkpoint.MANIFEST).write_bytes(raw)
        return True

    def send_checkpoint(self, path: Path, moved: Moved = unwatched) -> None:
        """Keep a copy of the checkpoint `path`."""
        names = sorted(file.name for file in path.glob("*.npy"))
        self._send(f"{self._of(path.parent)}/{path.name}", path, [*names, checkpoint.MANIFEST], moved)

    def keep(self, place: Path, names: Collection[str]) -> None:
        """Give up all checkpoints of `place` but these; where that fails, there are more than are needed, with a warning."""
        try:
            for name in self._inside(self._of(place)):
                if checkpoint.NUMBERED.fullmatch(name) and name not in names:
                    self._remove(f"{self._of(place)}/{name}", checkpoint.MANIFEST)
        except KgdistError as error:
            log.warning("%s; an older checkpoint stays there", error)

    # ---- files

    def shown(self, name: str) -> str:
        """The address of what is called `name` here."""
        return f"{self.address}/{name}"

    def read(self, name: str) -> bytes | None:
        """A small file; None where there is none."""
        with self._reached(name):
            try:
                content: bytes = self._files.cat_file(self._path(name))
                return content
            except FileNotFoundError:
                return None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @staticmethod
    def _of(place: Path) -> str:
        return f"runs/{place.parent.name}/{place.name}"

    @contextlib.contextmanager
    def _reached(self, name: str) -> Iterator[None]:
        try:
            yield
        except KgdistError:
            raise
        except Exception as error:  # every file system has errors of its own
            raise KgdistError(f"{FLAG} {self.shown(name)}: {said(error)}") from error

    def _inside(self, name: str) -> list[str]:
        """The names in a folder; none where there is no such folder."""
        with self._reached(name):
            self._files.invalidate_cache()
            try:
                return sorted(each.rstrip("/").rpartition("/")[2] for each in self._files.ls(self._path(name), detail=False))
            except FileNotFoundError:
                return []

    def _load(self, name: str, file: Path, moved: Moved, *, go_on: bool = False) -> None:
        mode = "ab" if go_on else "wb"
        with _written(file), file.open(mode) as target, self._reached(name), self._files.open(self._path(name), "rb") as source:
            if target.tell():
                source.seek(target.tell())
            while piece := source.read(PIECE):
                with _written(file):
                    target.write(piece)
                moved(len(piece))

    def _send(self, name: str, folder: Path, files: Iterable[str], moved: Moved) -> None:
        """Files of a folder in their order; the last one, where it is a manifest, is missing meanwhile."""
        names = list(files)
        if names[-1:] in ([PARTITION], [checkpoint.MANIFEST]):
            self._remove(name, names[-1])
        with self._reached(name):
            self._files.makedirs(self._path(name), exist_ok=True)
        for each in names:
            inside = f"{name}/{each}"
            # A bucket has a file when it is whole; a folder gets it by its name then.
            half = f"{name}/.{each}.part" if "file" in self._files.protocol else inside
            with self._reached(inside):
                with (folder / each).open("rb") as source, self._files.open(self._path(half), "wb") as target:
                    while piece := source.read(PIECE):
                        target.write(piece)
                        moved(len(piece))
                if half != inside:
                    os.replace(self._path(half), self._path(inside))

    def _remove(self, name: str, first: str) -> None:
        """A folder, if it is there: its manifest first."""
        with self._reached(name):
            self._files.invalidate_cache()
            for path in (f"{name}/{first}", name):
                with contextlib.suppress(FileNotFoundError):
                    self._files.rm(self._path(path), recursive=path == name)


def _described(raw: bytes, path: Path) -> Checkpoint:
    """What a manifest says of the checkpoint `path`. Raises CheckpointError."""
    try:
        return checkpoint.described(json.loads(raw), path)
    except ValueError as error:
        raise CheckpointError(f"{path / checkpoint.MANIFEST}: not readable as JSON ({error})") from error


@contextlib.contextmanager
def _written(file: Path) -> Iterator[None]:
    """What goes wrong while `file` is written here, on this disk."""
    try:
        yield
    except OSError as error:
        raise KgdistError(f"{file}: cannot be written ({error.strerror or error})") from error


def said(error: Exception) -> str:
    """What an error says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
