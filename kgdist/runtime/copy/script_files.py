"""What a script needs on its machines: partition n of its graph on machine n, their file and the folder of the script on all.

Each goes to the same place below the workspace as here, so that a relative path means the same everywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from kgdist.base.errors import OptionError, UsageError
from kgdist.base.files import sha256
from kgdist.options.config import Config
from kgdist.partition.manifest import folder_of
from kgdist.runtime.checks import check_parts
from kgdist.runtime.cluster.plan import workspace
from kgdist.runtime.copy.receive import MANIFEST
from kgdist.runtime.copy.send import Delivery
from kgdist.runtime.ip_config import Machine

LEFT_OUT = ("__pycache__",)  # and what begins with a dot


def deliveries_of_script(config: Config, machines: list[Machine]) -> list[list[Delivery]]:
    """What goes where, one list after the other: what all of them get goes to the first machine before it goes to the others,
    which may share its file system. Raises UsageError for what is not here."""
    found, common = list[Delivery](), list[Delivery]()
    root = workspace(config)
    if config.part_config is not None:
        path = root / Path(config.part_config).expanduser()
        parts = parts_of(path)
        check_parts(parts, machines, path.name)
        target = root / config.rel_data_path if config.rel_data_path is not None else path.parent
        for machine in machines:
            folder = folder_of(path.parent, machine.number)
            if not folder.is_dir():
                raise OptionError("--part_config", f"{path}: there is no {folder.name} beside it")
            found += deliveries(folder, folder_of(target, machine.number), [machine])
        names = [path.with_suffix(f".{kind}.tsv") for kind in ("entities", "relations")]  # of a knowledge graph
        files = digests([path, *filter(Path.exists, names)])
        common += [Delivery(machine, path.parent, str(target), files) for machine in machines]
    if config.script_folder is not None:
        folder = root / Path(config.script_folder).expanduser()
        if not folder.is_dir():
            raise OptionError("--script_folder", f"{folder}: no such folder")
        target = folder if folder.resolve().is_relative_to(root.resolve()) else root / folder.resolve().name
        common += deliveries(folder, target, machines)
    found += [each for each in common if each.machine is machines[0]]
    return [found, [each for each in common if each.machine is not machines[0]]]


def parts_of(path: Path) -> int:
    """How many partitions the file beside them tells of. Raises OptionError."""
    try:
        return int(json.loads(path.read_bytes())["num_parts"])
    except FileNotFoundError as error:
        raise OptionError("--part_config", f"{path}: no such file") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError("--part_config", f"{path}: is not a file of partitions ({type(error).__name__}: {error})") from error


def deliveries(folder: Path, target: Path, machines: list[Machine]) -> Iterator[Delivery]:
    """Of a folder with all below it, one for each folder that has files."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("."))
        files = digests(Path(place, name) for name in sorted(names) if not name.startswith("."))
        for machine in machines if files else ():
            yield Delivery(machine, Path(place), str(target / Path(place).relative_to(folder)), files)


def digests(paths: Iterator[Path] | list[Path]) -> dict[str, tuple[int, str]]:
    """Name -> bytes and sha256, a manifest last: until it is there, a folder is no partition. Raises UsageError."""
    try:
        found = {path.name: (path.stat().st_size, sha256(path)) for path in paths}
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    if MANIFEST in found:
        found[MANIFEST] = found.pop(MANIFEST)
    return found
