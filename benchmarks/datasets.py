"""Where benchmarks find the data sets they train on."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

ARCHIVES = {"wn18": "WN18", "wn18rr": "WN18RR"}  # names in a folder of archives, where they differ


def prepare(dataset: str, root: Path) -> bool:
    """Have `root/dataset`: as it is, or unpacked from `$KGDIST_DATA/<name>.tar.xz`. False leaves it to kgdist-train to fetch."""
    archive = Path(os.environ.get("KGDIST_DATA", "")) / f"{ARCHIVES.get(dataset, dataset)}.tar.xz"
    if (root / dataset).exists():
        return True
    if not archive.is_file():
        return False
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="data")
    if dataset in ARCHIVES:
        (root / ARCHIVES[dataset]).rename(root / dataset)
    return True
